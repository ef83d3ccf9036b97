//! A kubelet as the node of a real cluster: an API server, scheduler and controllers of v1.36, and a containerd,
//! all in namespaces of their own. The scenarios see what a user of the cluster sees, through kubectl, and what the
//! kubelet requests, through the API server's audit log.
//!
//! Every scenario starts a cluster and runs once on each [`kubelet::Flavour`]. Without root or containerd they are
//! skipped with a warning, unless `CI=true`: there they fail. So are they where the cluster's programs are not built;
//! `hack/build-kubernetes.sh --control-plane --kubelet --kubeadm --metrics` builds them, and with `--storage` those that
//! serve a CSI driver, without which the scenarios of CSI volumes are left out.
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

mod audit;
mod cluster;
mod csi_driver;
mod inventory;
mod kubelet;
mod scenarios;

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/resources/plugin_manager/tests/registrar.rs"]
mod registrar;
#[allow(dead_code, unused_imports, unreachable_pub)]
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use ::kubelet::base::{self, connections};
use ::kubelet::resources::plugin_manager::registration_proto;
use support::runner::{self, Suite};
use support::scripts;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some(csi_driver::WORD) {
        return csi_driver::serve(args);
    }
    runner::run(Suite {
        needs: "a real cluster",
        prepare: scripts::prepare,
        // A cluster takes most of a core for the seconds in which it starts.
        lanes: 3,
        tests: scenarios::tests(),
    })
}
