//! Probe results.

use std::fmt;

/// The three probes a container can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProbeKind {
    /// Failure restarts the container.
    Liveness,
    /// Decides whether the container gets traffic.
    Readiness,
    /// Holds the other two back until it succeeds; failure restarts the container.
    Startup,
}

impl ProbeKind {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Liveness, Self::Readiness, Self::Startup];
}

impl fmt::Display for ProbeKind {
    /// As events spell it: `Liveness`, `Readiness`, `Startup`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        })
    }
}

/// The settled result of one probe on one container instance, after thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeResult {
    /// Enough successes in a row.
    Success,
    /// Enough failures in a row.
    Failure,
    /// Not settled yet.
    Unknown,
}
