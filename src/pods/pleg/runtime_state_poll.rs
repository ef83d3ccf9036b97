//! Polls the runtime's `Status`: its conditions, and its features.

use super::{PlegContext, RuntimeState};
use crate::base::clock::{self, Instant};
use crate::cri::v1::StatusResponse;
use crate::cri::{CriError, FeaturesWriter, RuntimeFeatures};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Task `pleg.runtime_state`.
pub struct RuntimeStateTask {
    pub(super) context: PlegContext,
    pub(super) state: watch::Sender<RuntimeState>,
    pub(super) features: FeaturesWriter,
}

impl RuntimeStateTask {
    /// Polls until shutdown.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut in_error = self.state.borrow().runtime_error(clock::instant()).is_some();
        loop {
            let reply = tokio::select! {
                reply = self.context.runtime.status(false) => reply,
                () = shutdown.cancelled() => return Ok(()),
            };
            if let Ok(reply) = &reply {
                self.publish_features(RuntimeFeatures::of(reply));
            }
            in_error = publish(&self.state, reply, in_error, clock::instant());
            tokio::select! {
                () = tokio::time::sleep(self.context.config.status_period) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    fn publish_features(&self, features: RuntimeFeatures) {
        self.features.send_if_modified(|known| {
            let changed = *known != features;
            if changed {
                tracing::info!(?features, "The container runtime's features changed");
                *known = features;
            }
            changed
        });
    }
}

/// Publishes the state after a reply, and returns whether there is a runtime error at `now`.
fn publish(
    state: &watch::Sender<RuntimeState>,
    reply: Result<StatusResponse, CriError>,
    was_in_error: bool,
    now: Instant,
) -> bool {
    let mut in_error = was_in_error;
    state.send_if_modified(|state| {
        let next = match reply {
            Ok(reply) => state_of(&reply, now),
            Err(error) => RuntimeState { runtime_message: error.to_string(), ..state.clone() },
        };
        in_error = next.runtime_error(now).is_some();
        // `runtime_error` depends on how long ago `Status` last succeeded, so it can change although the reply does
        // not, also because this process was suspended. Readers must be notified of that too.
        let counted_as_down = state.runtime_error(now).is_some();
        let notable = in_error != was_in_error
            || in_error != counted_as_down
            || next.runtime_ready != state.runtime_ready
            || next.network_ready != state.network_ready
            || next.runtime_message != state.runtime_message;
        if notable {
            tracing::info!(
                "runtimeReady" = next.runtime_ready,
                "networkReady" = next.network_ready,
                runtime = next.runtime_message,
                network = next.network_message,
                "Container runtime conditions changed"
            );
        }
        *state = next;
        notable
    });
    in_error
}

/// The state that a reply reports, received at `now`.
pub(super) fn state_of(reply: &StatusResponse, now: Instant) -> RuntimeState {
    let conditions = reply.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
    let condition = |kind: &str| {
        let found = conditions.iter().find(|c| c.r#type == kind);
        match found {
            Some(c) if c.status => (true, String::new()),
            Some(c) => (false, format!("reason:{} message:{}", c.reason, c.message)),
            None => (false, format!("the runtime does not report {kind}")),
        }
    };
    let (runtime_ready, runtime_message) = condition("RuntimeReady");
    let (network_ready, network_message) = condition("NetworkReady");
    RuntimeState {
        last_response: Some(now),
        runtime_ready,
        network_ready,
        network_message,
        runtime_message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::Rpc;
    use crate::cri::v1::{RuntimeCondition, RuntimeStatus};
    use std::time::Duration;

    #[test]
    fn both_conditions_are_read_and_one_that_is_missing_is_false() {
        let condition = |kind: &str, status| RuntimeCondition {
            r#type: kind.into(),
            status,
            reason: "Why".into(),
            message: "because".into(),
        };
        let state = |conditions| {
            let status = Some(RuntimeStatus { conditions });
            let reply = StatusResponse { status, ..StatusResponse::default() };
            state_of(&reply, clock::instant())
        };
        let now = clock::instant();
        let good = state(vec![condition("RuntimeReady", true), condition("NetworkReady", true)]);
        assert_eq!((good.runtime_error(now), good.network_error()), (None, None));
        let half = state(vec![condition("RuntimeReady", true), condition("NetworkReady", false)]);
        assert_eq!(half.runtime_error(now), None);
        assert!(half.network_error().unwrap().contains("reason:Why message:because"));
        assert!(state(vec![]).runtime_error(now).is_some());
    }

    #[test]
    fn readers_are_notified_when_a_runtime_counts_as_down_and_when_it_responds_again() {
        let condition = |kind: &str| RuntimeCondition {
            r#type: kind.into(),
            status: true,
            ..RuntimeCondition::default()
        };
        let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
        let reply = StatusResponse {
            status: Some(RuntimeStatus { conditions }),
            ..StatusResponse::default()
        };
        let first = clock::instant();
        let (state, mut reader) = watch::channel(state_of(&reply, first));
        let mut in_error = false;
        let mut after = |seconds, reply| {
            let now = first + Duration::from_secs(seconds);
            in_error = publish(&state, reply, in_error, now);
            let notified = reader.has_changed().unwrap();
            reader.mark_unchanged();
            (in_error, notified)
        };
        let away =
            || Err(CriError::Unavailable { rpc: Rpc::Status, kind: None, message: "away".into() });
        assert_eq!(after(10, Ok(reply.clone())), (false, false));
        assert_eq!(after(20, away()), (false, true), "another message");
        assert_eq!(after(30, away()), (false, false));
        assert_eq!(after(41, away()), (true, true), "30 s without a reply");
        assert_eq!(after(51, away()), (true, false));
        assert_eq!(after(61, Ok(reply.clone())), (false, true));
        assert_eq!(after(66, Ok(reply.clone())), (false, false));
        assert_eq!(after(106, Ok(reply)), (false, true), "the kubelet stalled");
    }
}
