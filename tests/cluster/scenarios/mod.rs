//! What must be true of a kubelet in a cluster.

mod absences;
mod joining;
mod leaving;
mod node;
mod objects;
mod pods;

use crate::kubelet::Flavour;
use crate::support::runner::{Test, on, scenarios};

/// What works with each kubelet.
pub fn tests() -> Vec<Test<Flavour>> {
    let mut tests = on(&[Flavour::Go, Flavour::Rust], EVERYWHERE);
    tests.extend(on(&[Flavour::Rust], RUST));
    tests
}

// The long ones first, so that the lanes end together.
scenarios! {
    EVERYWHERE:
    pods::a_deployment_becomes_ready_and_the_node_rests,
    pods::a_bare_pod_runs_answers_and_goes,
    joining::a_node_joins_with_a_bootstrap_token,
    leaving::nothing_is_left_of_a_cluster_whose_owner_is_killed,
}

scenarios! {
    RUST:
    absences::an_api_server_that_is_away_and_a_killed_kubelet_restart_nothing,
    objects::objects_and_tokens_reach_a_pod_and_their_changes_too,
    objects::a_pod_waits_for_its_claim_and_reads_the_volume_that_it_is_bound_to,
    node::a_node_registers_as_it_is_configured_and_then_only_renews_its_lease,
    node::a_node_that_is_deleted_registers_again,
}
