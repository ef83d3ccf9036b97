//! The runtimes that scenarios run on.

use std::cell::Cell;
use std::path::PathBuf;

use crate::support::runner;
use crate::support::scripts;

/// One of the containerds that a scenario is run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// The machine's own. Debian's is 1.6: no CRI events, no streamed lists.
    Containerd,
    /// The one that `hack/build-containerd2.sh` builds.
    Containerd2,
}

thread_local! {
    /// Every scenario has a thread to itself.
    static CURRENT: Cell<Flavour> = const { Cell::new(Flavour::Containerd) };
}

impl Flavour {
    /// The one that the scenario of this thread runs on.
    pub fn current() -> Flavour {
        CURRENT.get()
    }

    /// Where its programs are; `None` is on PATH.
    pub fn programs(self) -> Option<PathBuf> {
        match self {
            Flavour::Containerd => None,
            Flavour::Containerd2 => Some(scripts::target().join("tools/containerd2")),
        }
    }
}

impl runner::Flavour for Flavour {
    const ALL: &'static [Flavour] = &[Flavour::Containerd, Flavour::Containerd2];

    fn name(self) -> &'static str {
        match self {
            Flavour::Containerd => "containerd",
            Flavour::Containerd2 => "containerd2",
        }
    }

    fn make_current(self) {
        CURRENT.set(self);
    }

    /// That of the machine itself is looked at before.
    fn missing(self) -> Option<String> {
        match self {
            Flavour::Containerd => None,
            Flavour::Containerd2 => scripts::check("build-containerd2.sh", &[]).err(),
        }
    }
}
