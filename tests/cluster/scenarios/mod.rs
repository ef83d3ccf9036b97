//! What must be true of a kubelet in a cluster.

mod absences;
mod access;
mod certificates;
mod claims;
mod csi;
mod csi_objects;
mod csi_sanity;
mod joining;
mod kubeadm;
mod leaving;
mod local_devices;
mod mirrors;
mod monitoring;
mod node;
mod objects;
mod pods;
mod preflight;
mod pressure;
mod refusals;
mod resize;
mod swap;
mod swap_volumes;
mod usage;
mod workloads;

use crate::kubelet::Flavour;
use crate::support::runner::{Test, on, scenarios, strict};

/// What works with each kubelet.
pub fn tests() -> Vec<Test<Flavour>> {
    let mut tests = storage_tests();
    tests.extend(on(&[Flavour::Rust], RUST));
    tests.extend(on(&[Flavour::Go, Flavour::Rust], EVERYWHERE));
    tests.extend(monitoring_tests());
    tests
}

fn monitoring_tests() -> Vec<Test<Flavour>> {
    let tests = on(&[Flavour::Go, Flavour::Rust], MONITORING);
    if std::env::var_os("TEST_MONITORING").is_some() {
        return tests;
    }
    let tests = tests.into_iter().map(|test| test.left_out("`make test-monitoring` runs it"));
    tests.collect()
}

fn storage_tests() -> Vec<Test<Flavour>> {
    let mut tests = on(&[Flavour::Rust], STORAGE);
    tests.extend(on(&[Flavour::Go, Flavour::Rust], STORAGE_EVERYWHERE));
    match csi_objects::check_programs() {
        // Where they have to be there, the scenarios fail and say so.
        Err(why) if !strict() => {
            println!("\n!!!! the tests with a CSI driver are SKIPPED: {why}\n");
            let without = "the programs that serve a CSI driver are missing";
            let tests = tests.into_iter().map(|test| test.left_out(without));
            tests.collect()
        }
        _ => tests,
    }
}

// The long ones first, so that the lanes end together.
scenarios! {
    EVERYWHERE:
    refusals::a_deployment_whose_volume_cannot_be_mounted_has_one_waiting_pod,
    pods::a_deployment_becomes_ready_and_the_node_rests,
    pods::a_bare_pod_runs_answers_and_goes,
    joining::a_node_joins_with_a_bootstrap_token,
    leaving::nothing_is_left_of_a_cluster_whose_owner_is_killed,
}

scenarios! {
    RUST:
    objects::a_token_is_renewed_while_its_pod_runs,
    kubeadm::kubeadm_makes_a_cluster_adds_a_node_and_changes_the_control_plane,
    absences::a_control_plane_that_stops_dies_or_loses_its_storage_for_a_while_harms_nothing,
    absences::a_kubelet_that_is_killed_again_and_again_loses_and_repeats_nothing,
    workloads::pods_leave_a_node_that_is_drained_or_tainted,
    workloads::jobs_complete_or_fail_and_sets_keep_names_and_order,
    workloads::a_deployment_rolls_out_scales_and_is_undone,
    access::logs_commands_files_and_ports_of_a_pod_are_within_reach,
    mirrors::a_mirror_follows_its_manifest_and_its_deletion_touches_nothing,
    mirrors::a_static_pod_may_name_a_runtime_class_and_labels_of_the_node,
    refusals::what_is_not_supported_is_named_and_hostile_annotations_are_ignored,
    absences::an_api_server_that_is_away_and_a_killed_kubelet_restart_nothing,
    objects::objects_and_tokens_reach_a_pod_and_their_changes_too,
    pressure::a_pod_that_fills_the_disk_goes_and_the_others_stay,
    pressure::pods_that_use_up_what_all_of_them_may_have_are_evicted,
    pressure::a_node_filled_as_fast_as_a_pod_can_stays_and_so_do_its_critical_pods,
    usage::metrics_server_shows_what_the_node_and_its_pods_use,
    certificates::a_pod_has_the_certificates_of_a_signer_or_an_event_says_why_not,
    claims::a_pod_has_the_device_that_was_allocated_to_it_and_gives_it_back,
    resize::a_pod_is_resized_while_it_runs_and_a_resize_without_room_waits,
    preflight::a_preflight_changes_nothing_and_the_exchange_does_what_it_said,
    swap::a_node_changes_from_the_go_kubelet_and_back_and_no_container_restarts,
    swap::devices_exclusive_cpus_and_resized_pods_stay_what_they_are_when_the_kubelet_changes,
    objects::a_pod_waits_for_its_claim_and_reads_the_volume_that_it_is_bound_to,
    local_devices::an_empty_disk_is_formatted_for_its_first_pod_and_unmounted_after_its_last_one,
    local_devices::an_ephemeral_volume_lives_in_the_claim_that_is_generated_for_it,
    node::a_node_registers_as_it_is_configured_and_then_only_renews_its_lease,
    node::a_node_that_is_deleted_registers_again,
}

scenarios! {
    STORAGE_EVERYWHERE:
    csi::claims_get_volumes_that_are_gone_after_every_order_of_deletions,
}

scenarios! {
    STORAGE:
    swap_volumes::volumes_stay_mounted_once_and_are_undone_by_whichever_kubelet_is_there,
    csi::volumes_wait_for_a_driver_that_comes_goes_and_returns_while_the_api_server_is_away,
    csi::a_claim_grows_while_its_pod_runs_and_before_the_next_one,
    csi_sanity::the_driver_of_these_tests_is_one_by_upstreams_judgement,
}

scenarios! {
    MONITORING:
    monitoring::families_of_a_busy_node_are_those_of_the_go_kubelet,
}
