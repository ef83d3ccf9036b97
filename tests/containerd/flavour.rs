//! The runtimes that scenarios run on.

use std::cell::Cell;
use std::ffi::OsString;

use crate::support::runner;
use crate::support::scripts::{self, Missing};

/// One of the runtimes that a scenario is run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// The machine's own containerd, or the version that `make test-runtimes` names. Debian's is 1.6: no CRI events, no
    /// streamed lists.
    Containerd,
    /// The one that `hack/build-containerd.sh` builds.
    Containerd2,
    /// CRI-O, which `hack/build-crio.sh` builds, as it is by default: without events.
    Crio,
    /// The same CRI-O with `enable_pod_events`.
    CrioEvents,
}

thread_local! {
    /// Every scenario has a thread to itself.
    static CURRENT: Cell<Flavour> = const { Cell::new(Flavour::Containerd) };
}

/// The version of containerd in place of the machine's, which `hack/build-containerd.sh` has built.
fn named_version() -> Option<String> {
    std::env::var("CONTAINERD_VERSION").ok()
}

impl Flavour {
    /// Those that every scenario is run on, unless it is left out by name.
    pub const MAIN: &[Flavour] = &[Flavour::Containerd, Flavour::Containerd2, Flavour::Crio];

    /// The one that the scenario of this thread runs on.
    pub fn current() -> Flavour {
        CURRENT.get()
    }

    pub fn is_crio(self) -> bool {
        matches!(self, Flavour::Crio | Flavour::CrioEvents)
    }

    /// Whether the kubelet takes events of its CRI: not those of containerd 1.7, of which each goes to one client alone.
    pub fn has_cri_events(self) -> bool {
        matches!(self, Flavour::Containerd2 | Flavour::CrioEvents)
    }

    /// What starts and stops it.
    pub fn script(self) -> &'static str {
        if self.is_crio() { "crio.sh" } else { "containerd.sh" }
    }

    /// What its script needs to know.
    pub fn environment(self) -> Vec<(&'static str, OsString)> {
        let tools = |name: &str| scripts::target().join("tools").join(name).into();
        match self {
            Flavour::Containerd => {
                let named = named_version().map(|version| format!("containerd-{version}"));
                let named = named.map(|name| ("CONTAINERD_DIR", tools(&name)));
                named.into_iter().collect()
            }
            Flavour::Containerd2 => vec![("CONTAINERD_DIR", tools("containerd2"))],
            Flavour::Crio => vec![("CRIO_DIR", tools("crio"))],
            Flavour::CrioEvents => vec![("CRIO_DIR", tools("crio")), ("POD_EVENTS", "true".into())],
        }
    }
}

impl runner::Flavour for Flavour {
    const ALL: &'static [Flavour] =
        &[Flavour::Containerd, Flavour::Containerd2, Flavour::Crio, Flavour::CrioEvents];

    fn name(self) -> &'static str {
        match self {
            Flavour::Containerd => "containerd",
            Flavour::Containerd2 => "containerd2",
            Flavour::Crio => "crio",
            Flavour::CrioEvents => "crio_events",
        }
    }

    fn make_current(self) {
        CURRENT.set(self);
    }

    /// What all flavours need is checked before.
    fn missing(self) -> Option<Missing> {
        match self {
            Flavour::Containerd if named_version().is_none() => None,
            Flavour::Containerd | Flavour::Containerd2 => {
                scripts::installed("build-containerd.sh", &[]).err()
            }
            Flavour::Crio | Flavour::CrioEvents => scripts::installed("build-crio.sh", &[]).err(),
        }
    }
}
