//! Polls the runtime's `Status`.

use super::{PlegContext, RuntimeState};
use crate::cri::{CriError, FeaturesWriter, RuntimeFeatures, v1::StatusResponse};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// Task `pleg.status`.
pub struct StatusTask {
    pub(super) context: PlegContext,
    pub(super) state: watch::Sender<RuntimeState>,
    pub(super) features: FeaturesWriter,
}

impl StatusTask {
    /// Polls until shutdown.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut in_error = self.state.borrow().runtime_error(Instant::now()).is_some();
        loop {
            let reply = tokio::select! {
                reply = self.context.runtime.status(false) => reply,
                () = shutdown.cancelled() => return Ok(()),
            };
            in_error = self.publish(reply, in_error);
            tokio::select! {
                () = tokio::time::sleep(self.context.config.status_period) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    /// Publishes what a reply says, and returns whether there is a runtime error now.
    fn publish(&self, reply: Result<StatusResponse, CriError>, was_in_error: bool) -> bool {
        if let Ok(reply) = &reply {
            self.publish_features(RuntimeFeatures::of(reply));
        }
        let mut in_error = false;
        self.state.send_if_modified(|state| {
            let next = match reply {
                Ok(reply) => read(&reply),
                Err(error) => RuntimeState {
                    runtime_message: error.to_string(),
                    ..state.clone()
                },
            };
            let notable = (
                next.runtime_ready,
                next.network_ready,
                &next.runtime_message,
            ) != (
                state.runtime_ready,
                state.network_ready,
                &state.runtime_message,
            );
            // The reply may be the same when the runtime has failed for so long that it counts as down, or responds again.
            in_error = next.runtime_error(Instant::now()).is_some();
            let notable = notable || in_error != was_in_error;
            if notable {
                tracing::info!(
                    "runtimeReady" = next.runtime_ready,
                    "networkReady" = next.network_ready,
                    runtime = next.runtime_message,
                    network = next.network_message,
                    "Container runtime status changed"
                );
            }
            *state = next;
            notable
        });
        in_error
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

/// The state in a reply that was just received.
pub(super) fn read(reply: &StatusResponse) -> RuntimeState {
    let conditions = reply
        .status
        .as_ref()
        .map(|s| s.conditions.as_slice())
        .unwrap_or_default();
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
        last_response: Some(Instant::now()),
        runtime_ready,
        network_ready,
        network_message,
        runtime_message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::v1::{RuntimeCondition, RuntimeStatus};

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
            read(&StatusResponse {
                status,
                ..StatusResponse::default()
            })
        };
        let now = Instant::now();
        let good = state(vec![
            condition("RuntimeReady", true),
            condition("NetworkReady", true),
        ]);
        assert_eq!(
            (good.runtime_error(now), good.network_error()),
            (None, None)
        );
        let half = state(vec![
            condition("RuntimeReady", true),
            condition("NetworkReady", false),
        ]);
        assert_eq!(half.runtime_error(now), None);
        assert!(
            half.network_error()
                .unwrap()
                .contains("reason:Why message:because")
        );
        assert!(state(vec![]).runtime_error(now).is_some());
    }
}
