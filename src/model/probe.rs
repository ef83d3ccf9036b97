//! Probe results.

use crate::base::named_enum;

named_enum! {
    /// The kinds of probes, with their names in events.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum ProbeKind {
        /// A failure restarts the container.
        Liveness = "Liveness",
        /// Determines whether the container is ready for traffic.
        Readiness = "Readiness",
        /// The other probes do not run until it succeeds; a failure restarts the container.
        Startup = "Startup",
    }
}

/// The result of a probe for one container instance, after its thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeResult {
    /// `successThreshold` was reached.
    Success,
    /// `failureThreshold` was reached.
    Failure,
    /// No threshold was reached yet.
    Unknown,
}
