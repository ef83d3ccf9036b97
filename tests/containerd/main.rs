//! The built kubelet against real runtimes (containerd 1.6, containerd 2, CRI-O), observed from outside with
//! crictl and `/pods`.
//!
//! Each scenario gets a runtime and a kubelet of its own, so they run beside one another, and runs once on each
//! flavour of runtime. Without root, containerd or crictl they are skipped with a warning, unless `CI=true`:
//! there they fail. The same holds for a flavour that is not built; a machine whose Go is too old to build it is
//! excused.
//! `KUBELET_UNDER_TEST` runs them against another kubelet with the same flags.
// What it observes happens in real time, so it reads the real clock.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    unreachable_pub
)]

mod flavour;
mod node;
mod registry;
mod runtime;
mod scenarios;

#[allow(dead_code, unused_imports, unreachable_pub)]
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use support::runner::{self, Suite};
use support::scripts;

fn main() -> ExitCode {
    runner::run(Suite {
        needs: "real runtimes",
        prepare: scripts::prepare,
        // They mostly wait. Each is a runtime, and more of them keep one another from making progress.
        lanes: 5,
        tests: scenarios::tests(),
    })
}
