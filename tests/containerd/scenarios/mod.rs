//! What must be true of a kubelet on a real runtime.

mod api_pods;
mod broken_parts;
mod cgroups;
mod containers;
mod faults;
mod images;
mod lifecycle;
mod logs;
mod manifests;
mod probes;
mod soak;
mod storage;
mod streaming;
mod users;
mod watching;
mod spec_network;
mod spec_refusals;
mod spec_security;
mod spec_sources;
mod spec_storage;
mod statuses;
mod usage;
mod verbs;
mod volumes;

use crate::flavour::Flavour;
use crate::support::runner::{Test, leave_out, on, scenarios};

/// Every scenario on every flavour that it is for, and those left out with the reason.
pub fn tests() -> Vec<Test<Flavour>> {
    let mut tests = on(Flavour::MAIN, EVERYWHERE);
    for (name, why) in NOT_ON_CRIO {
        leave_out(&mut tests, Flavour::Crio, name, why);
    }
    tests.extend(on(&[Flavour::Containerd2], ON_CONTAINERD2));
    tests.extend(on(&[Flavour::Crio], ON_CRIO));
    tests.extend(on(&[Flavour::CrioEvents], ON_CRIO_EVENTS));
    tests
}

/// Scenarios that say nothing about CRI-O, and why.
const NOT_ON_CRIO: &[(&str, &str)] = &[
    (
        "deaths_and_removals_are_seen_without_a_list",
        "it has no events by default; crio_events runs this one",
    ),
    (
        "what_died_while_containerd_was_away_is_replaced_and_events_are_taken_up_again",
        "it has no events by default; crio_events runs this one",
    ),
    (
        "settled_pods_cost_no_calls",
        "it has no events by default, so it is listed every second; crio_events runs this one",
    ),
    (
        "root_in_a_container_that_sees_the_socket_is_refused",
        "it refuses a mount of / where that is not shared, as in its own mount namespace",
    ),
];

scenarios! {
    ON_CONTAINERD2:
    watching::streamed_lists_show_what_plain_ones_show,
    users::pods_with_users_of_their_own_get_different_ones_and_write_their_volumes,
}

scenarios! {
    ON_CRIO:
    watching::a_stream_that_ends_at_once_is_given_up_and_lists_show_what_happens,
    containers::a_container_whose_start_fails_is_not_created_again_and_again,
}

scenarios! {
    ON_CRIO_EVENTS:
    watching::what_died_while_containerd_was_away_is_replaced_and_events_are_taken_up_again,
    watching::settled_pods_cost_no_calls,
    watching::deaths_and_removals_are_seen_without_a_list,
}

// The long ones first, so that the lanes end together.
scenarios! {
    EVERYWHERE:
    cgroups::pods_have_the_cgroups_of_their_classes_with_their_limits,
    cgroups::pods_that_go_while_no_kubelet_runs_leave_no_cgroup,
    cgroups::a_pod_from_before_keeps_its_parent_and_is_not_restarted,
    cgroups::a_cgroup_that_somebody_removed_is_made_again_for_the_next_pod,
    cgroups::containers_share_the_cpus_that_their_pod_has_for_itself,
    containers::a_crashing_container_is_restarted_at_growing_gaps,
    logs::a_chatty_container_is_rotated_and_no_line_is_lost,
    soak::pods_come_and_go_and_leave_nothing,
    containers::restart_policies_decide_what_is_started_again,
    containers::a_failing_liveness_probe_restarts_the_container,
    verbs::the_next_start_of_a_crashing_container_comes_when_explain_says,
    faults::nothing_real_is_harmed_by_faults_under_churn,
    broken_parts::a_killed_kubelet_finds_its_pods_as_they_were,
    watching::what_died_while_containerd_was_away_is_replaced_and_events_are_taken_up_again,
    watching::settled_pods_cost_no_calls,
    watching::deaths_and_removals_are_seen_without_a_list,
    watching::a_list_too_large_for_one_message_is_read_all_the_same,
    lifecycle::a_removed_pod_runs_its_pre_stop_hook_and_gets_its_grace,
    lifecycle::a_container_that_ignores_sigterm_is_killed_after_its_grace,
    broken_parts::a_restarted_containerd_costs_no_container,
    broken_parts::a_kubelet_killed_while_a_container_starts_fails_no_pod,
    broken_parts::sigterm_ends_the_kubelet_and_leaves_the_pods,
    images::unused_images_go_until_there_is_space_and_used_ones_stay,
    images::a_private_image_is_pulled_once_the_login_is_right,
    logs::a_log_that_was_moved_away_is_reopened_and_followed_on,
    api_pods::pods_of_an_api_server_live_on_whatever_the_flags,
    manifests::a_changed_manifest_replaces_the_pod,
    manifests::broken_manifests_stand_beside_good_ones,
    containers::init_containers_run_one_after_the_other_before_the_main_ones,
    containers::a_container_without_its_command_is_not_created_again_and_again,
    containers::a_sidecar_starts_before_and_ends_after_the_main_container,
    lifecycle::a_web_server_becomes_ready_and_answers_on_its_pod_ip,
    containers::a_container_over_its_memory_limit_shows_as_oom_killed,
    lifecycle::volumes_are_shared_between_containers_and_with_the_host,
    lifecycle::a_host_network_pod_has_the_hosts_network,
    lifecycle::logs_are_where_they_belong_and_crictl_reads_them,
    images::images_of_three_containers_are_pulled_at_the_same_time,
    images::a_program_provides_the_login_for_all_images_of_a_registry,
    images::an_image_that_was_there_is_not_everybodys_when_all_are_verified,
    manifests::one_name_in_two_namespaces_is_two_pods,
    probes::probes_of_every_kind_ask_the_container,
    probes::a_server_that_listens_late_is_found_long_before_its_period_is_over,
    probes::a_container_that_does_not_start_up_is_replaced_before_anything_else_is_asked,
    probes::a_probe_that_hangs_is_a_failure_and_may_shorten_the_grace,
    probes::a_removal_shortens_the_stop_that_a_failed_probe_began,
    spec_network::pods_are_called_and_resolve_names_as_they_say,
    spec_refusals::what_a_node_refuses_has_failed_with_upstreams_reason,
    spec_security::users_groups_capabilities_and_profiles_reach_the_process,
    spec_security::namespaces_are_shared_as_asked,
    spec_security::a_pod_with_ids_of_its_own_keeps_them,
    spec_storage::mounts_propagate_and_are_read_only_as_asked,
    spec_storage::devices_and_hidden_paths_are_as_asked,
    spec_storage::an_image_is_a_volume,
    spec_sources::variables_come_from_a_file_that_an_init_container_wrote,
    spec_sources::last_words_are_kept_by_policy,
    spec_sources::the_signal_that_ends_a_container_can_be_chosen,
    streaming::a_kube_client_runs_commands_attaches_and_reads_logs,
    streaming::a_kube_client_reaches_ports,
    streaming::a_client_of_spdy_runs_commands_and_reaches_ports,
    statuses::an_exit_that_asks_for_it_makes_all_containers_start_over,
    statuses::resources_are_shown_as_allocated_and_as_the_runtime_has_them,
    storage::host_paths_are_what_their_type_says,
    storage::an_empty_dir_outlives_its_containers_and_not_its_pod,
    storage::an_empty_dir_may_be_in_huge_pages,
    storage::a_changed_annotation_is_shown_by_the_pod_that_follows,
    storage::an_immutable_object_stays_for_a_pod_what_it_was,
    storage::what_is_mounted_in_an_orphans_directory_is_left_alone,
    storage::a_pod_starts_once_its_manifest_no_longer_names_a_host_path_that_hangs,
    usage::usage_is_told_in_every_form_and_promtool_finds_nothing_wrong,
    verbs::pods_are_shown_as_crictl_has_them,
    verbs::root_in_a_container_that_sees_the_socket_is_refused,
    volumes::a_kubelet_killed_at_any_moment_leaves_what_the_next_one_cleans,
    volumes::a_changed_object_reaches_the_running_container,
    volumes::files_are_what_the_objects_and_the_pod_say,
    volumes::what_is_missing_is_waited_for_and_named,
    volumes::without_local_objects_a_pod_that_needs_one_is_refused,
}
