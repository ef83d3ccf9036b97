//! The runtime's own health.

use crate::base::clock::Instant;
use std::time::Duration;
use tokio::sync::watch;

/// How long `Status` may fail before the runtime counts as down; as upstream.
const MAX_WAIT_FOR_RUNTIME: Duration = Duration::from_secs(30);

/// The runtime's last status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuntimeState {
    /// When `Status` last succeeded.
    pub last_response: Option<Instant>,
    /// The condition RuntimeReady.
    pub runtime_ready: bool,
    /// The condition NetworkReady.
    pub network_ready: bool,
    /// Why the network is not ready, from the runtime.
    pub network_message: String,
    /// Why the runtime is not ready, or the last error of the call.
    pub runtime_message: String,
}

impl RuntimeState {
    /// The error text if the runtime is down or not ready at `now`.
    pub fn runtime_error(&self, now: Instant) -> Option<String> {
        match self.last_response {
            None => Some("container runtime status check may not have completed yet".into()),
            Some(at) if now.saturating_duration_since(at) > MAX_WAIT_FOR_RUNTIME => {
                Some(format!("container runtime is down: {}", self.runtime_message))
            }
            Some(_) if !self.runtime_ready => {
                Some(format!("container runtime is not ready: {}", self.runtime_message))
            }
            Some(_) => None,
        }
    }

    /// The error text if pods with their own network cannot be started; upstream's text.
    pub fn network_error(&self) -> Option<String> {
        match (self.last_response.is_some(), self.network_ready) {
            (true, true) => None,
            (true, false) => Some(format!(
                "network is not ready: container runtime network not ready: NetworkReady=false \
                 {}",
                self.network_message
            )),
            (false, _) => Some("network is not ready: the runtime has not reported it yet".into()),
        }
    }
}

/// Reads the state; cheap to clone.
pub type RuntimeStateReader = watch::Receiver<RuntimeState>;

pub(super) fn runtime_state(
    first: RuntimeState,
) -> (watch::Sender<RuntimeState>, RuntimeStateReader) {
    watch::channel(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    #[test]
    fn a_runtime_silent_for_longer_than_the_grace_is_down() {
        let now = clock::instant();
        let state = RuntimeState {
            last_response: Some(now),
            runtime_ready: true,
            ..RuntimeState::default()
        };
        assert_eq!(state.runtime_error(now + Duration::from_secs(29)), None);
        assert!(state.runtime_error(now + Duration::from_secs(31)).is_some());
        assert!(RuntimeState::default().runtime_error(now).is_some());
    }

    #[test]
    fn a_network_that_is_not_ready_has_a_reason() {
        let state = RuntimeState {
            last_response: Some(clock::instant()),
            network_message: "reason:NetworkPluginNotReady".into(),
            ..RuntimeState::default()
        };
        assert!(state.network_error().unwrap().contains("NetworkPluginNotReady"));
    }
}
