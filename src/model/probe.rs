//! Probe results.

use std::fmt;

/// The kinds of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProbeKind {
    /// A failure restarts the container.
    Liveness,
    /// Determines whether the container is ready for traffic.
    Readiness,
    /// The other probes do not run until it succeeds; a failure restarts the container.
    Startup,
}

impl ProbeKind {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Liveness, Self::Readiness, Self::Startup];
}

impl fmt::Display for ProbeKind {
    /// As in events: `Liveness`, `Readiness`, `Startup`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        })
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
