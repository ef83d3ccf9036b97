//! The built kubelet against a real containerd, looked at from outside with crictl and `/pods`.
//!
//! Each scenario gets a containerd and a kubelet of its own, so they run beside one another, and runs once
//! on each flavour of containerd. Without root, containerd or crictl they are skipped with a loud line,
//! unless `CI=true`: there they fail. Those on containerd 2 are skipped, as loudly, where it is not built.
//! `KUBELET_UNDER_TEST` runs them against another kubelet with the same flags.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
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
        needs: "a real containerd",
        prepare: scripts::prepare,
        // They mostly wait. Each is a containerd, and more of them keep one another from making progress.
        lanes: 5,
        tests: scenarios::tests(),
    })
}
