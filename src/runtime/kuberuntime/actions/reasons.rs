//! The reasons of actions; `Display` gives the texts that users see.

use crate::base::named_enum;
use std::fmt;

named_enum! {
    /// Why the pod needs a new sandbox (upstream's `PodSandboxChanged`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum SandboxChange {
        /// The runtime has no sandbox of the pod.
        NoSandbox = "the pod has no sandbox",
        /// More than one sandbox is READY.
        SeveralReady = "several sandboxes are ready",
        /// The newest sandbox is not READY.
        NotReady = "the sandbox is not ready",
        /// The sandbox uses the pod's network namespace and should use the node's, or vice versa.
        NetworkModeDiffers = "the network mode differs",
        /// The runtime reports a network without an address.
        LostIp = "the sandbox lost its IP address",
    }
}

/// Why everything of the pod is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KillPodReason {
    /// A new sandbox replaces the present one, or is the first.
    SandboxReplaced(SandboxChange),
    /// The sandbox cannot be used and no container may run again.
    SandboxLost(SandboxChange),
    /// This init container failed and may not be restarted.
    InitFailed(String),
    /// No regular container is left to keep or to start.
    NothingToRun,
    /// The pod reached a terminal phase earlier.
    Terminal,
}

impl fmt::Display for KillPodReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SandboxReplaced(change) => write!(f, "{change}, it will be re-created"),
            Self::SandboxLost(change) => write!(f, "{change} and nothing is left to restart"),
            Self::InitFailed(name) => {
                write!(f, "init container {name} failed and may not be restarted")
            }
            Self::NothingToRun => f.write_str("no container is left to run"),
            Self::Terminal => f.write_str("the pod is terminal"),
        }
    }
}

named_enum! {
    /// Why one container is stopped.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum KillReason {
        /// Name or image differs from what it was created with.
        DefinitionChanged = "definition changed",
        /// Its liveness probe failed.
        LivenessProbe = "failed liveness probe",
        /// Its startup probe failed.
        StartupProbe = "failed startup probe",
        /// The runtime reports its state as unknown.
        UnknownState = "is in \"unknown\" state",
        /// Its resize policy requires a restart.
        Resize = "resize requires restart",
    }
}

/// Why one container is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StartReason {
    /// There is no instance of it.
    NoInstance,
    /// The sandbox is new.
    NewSandbox,
    /// The previous init container completed.
    PreviousInitialized,
    /// The runtime created it but did not start it.
    NeverStarted,
    /// It exited with this code, and its policy requires a restart.
    Exited(i32),
    /// It is stopped for this reason and started again.
    Killed(KillReason),
    /// An earlier sync stopped it in order to start it again.
    KilledToRestart,
}

impl fmt::Display for StartReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInstance => f.write_str("has no instance yet"),
            Self::NewSandbox => f.write_str("the sandbox is new"),
            Self::PreviousInitialized => f.write_str("the previous init container completed"),
            Self::NeverStarted => f.write_str("was created but never started"),
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed(reason) => reason.fmt(f),
            Self::KilledToRestart => f.write_str("was killed to be restarted"),
        }
    }
}
