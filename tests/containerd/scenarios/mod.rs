//! What must be true of a kubelet on a real runtime.

mod broken_parts;
mod containers;
mod lifecycle;
mod manifests;

use crate::runner::Scenario;

macro_rules! scenarios {
    ($($module:ident::$name:ident),* $(,)?) => {
        /// All scenarios; the long ones first, so that the lanes end together.
        pub const ALL: &[Scenario] = &[$((stringify!($name), || Box::pin($module::$name()))),*];
    };
}

scenarios! {
    containers::a_crashing_container_is_restarted_at_growing_gaps,
    containers::restart_policies_decide_what_is_started_again,
    containers::a_failing_liveness_probe_restarts_the_container,
    broken_parts::a_killed_kubelet_finds_its_pods_as_they_were,
    lifecycle::a_removed_pod_runs_its_pre_stop_hook_and_gets_its_grace,
    lifecycle::a_container_that_ignores_sigterm_is_killed_after_its_grace,
    broken_parts::a_restarted_containerd_costs_no_container,
    broken_parts::sigterm_ends_the_kubelet_and_leaves_the_pods,
    manifests::a_changed_manifest_replaces_the_pod,
    manifests::broken_manifests_stand_beside_good_ones,
    containers::init_containers_run_one_after_the_other_before_the_main_ones,
    containers::a_sidecar_starts_before_and_ends_after_the_main_container,
    lifecycle::a_web_server_becomes_ready_and_answers_on_its_pod_ip,
    lifecycle::volumes_are_shared_between_containers_and_with_the_host,
    lifecycle::a_host_network_pod_has_the_hosts_network,
    lifecycle::logs_are_where_they_belong_and_crictl_reads_them,
    manifests::one_name_in_two_namespaces_is_two_pods,
}
