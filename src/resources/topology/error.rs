//! Why a pod's resources cannot be allocated. Pure.

/// The reason of a pod's status, and the text that goes with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TopologyError {
    /// `status.reason`.
    pub reason: &'static str,
    /// `status.message`, without upstream's prefix for the pod.
    pub message: String,
}

impl TopologyError {
    /// An error that has a reason of its own.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    /// No allocation satisfies the policy of the topology manager.
    pub fn topology() -> Self {
        Self::new(
            "TopologyAffinityError",
            "Resources cannot be allocated with Topology locality",
        )
    }

    /// Any other error of a provider.
    pub fn unexpected(why: impl std::fmt::Display) -> Self {
        Self::new(
            "UnexpectedAdmissionError",
            format!("Allocate failed due to {why}, which is unexpected"),
        )
    }
}
