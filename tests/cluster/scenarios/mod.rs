//! What must be true of a kubelet in a cluster.

mod joining;
mod leaving;
mod pods;

use crate::kubelet::Flavour;
use crate::support::runner::{Flavour as _, Test, on, scenarios};

/// Every scenario with every kubelet.
pub fn tests() -> Vec<Test<Flavour>> {
    on(Flavour::ALL, EVERYWHERE)
}

// The long ones first, so that the lanes end together.
scenarios! {
    EVERYWHERE:
    pods::a_deployment_becomes_ready_and_the_node_rests,
    pods::a_bare_pod_runs_answers_and_goes,
    joining::a_node_joins_with_a_bootstrap_token,
    leaving::nothing_is_left_of_a_cluster_whose_owner_is_killed,
}
