//! The families of the Go kubelet's metrics that this kubelet does not write. Pure.
//!
//! They were found by comparing the pages of the Go kubelet v1.36 with `docs/metrics.md`; a scenario repeats that.

use crate::app::Finding;

/// The names; a name that ends with an asterisk stands for the families that begin so and are not in `docs/metrics.md`.
const LOST: &[&str] = &[
    "aggregator_*",
    "apiserver_*",
    "cardinality_enforcement_unexpected_categorizations_total",
    "container_cpu_load_average_10s",
    "container_cpu_load_d_average_10s",
    "container_file_descriptors",
    "container_fs_io_current",
    "container_fs_io_time_seconds_total",
    "container_fs_io_time_weighted_seconds_total",
    "container_fs_read_seconds_total",
    "container_fs_reads_merged_total",
    "container_fs_sector_reads_total",
    "container_fs_sector_writes_total",
    "container_fs_write_seconds_total",
    "container_fs_writes_merged_total",
    "container_health_state",
    "container_sockets",
    "container_tasks_state",
    "container_ulimits_soft",
    "disabled_metrics_total",
    "go_*",
    "hidden_metrics_total",
    "kubelet_container_log_filesystem_used_bytes",
    "kubelet_image_manager_ensure_image_requests_total",
    "kubelet_image_volume_mounted_errors_total",
    "kubelet_image_volume_mounted_succeed_total",
    "kubelet_image_volume_requested_total",
    "kubelet_imagemanager_image_mustpull_checks_total",
    "kubelet_imagemanager_inmemory_pulledrecords_usage_percent",
    "kubelet_imagemanager_inmemory_pullintents_usage_percent",
    "kubelet_imagemanager_ondisk_pulledrecords",
    "kubelet_imagemanager_ondisk_pullintents",
    "kubelet_metrics_provider",
    "kubelet_node_startup_duration_seconds",
    "kubelet_node_startup_post_registration_duration_seconds",
    "kubelet_node_startup_pre_kubelet_duration_seconds",
    "kubelet_node_startup_pre_registration_duration_seconds",
    "kubelet_node_startup_registration_duration_seconds",
    "kubelet_pleg_discard_events",
    "kubelet_pod_status_sync_duration_seconds",
    "kubelet_pod_watch_events_dropped_total",
    "kubelet_sleep_action_terminated_early_total",
    "kubelet_terminated_containers_total",
    "kubernetes_feature_enabled",
    "machine_cpu_books",
    "machine_cpu_drawers",
    "machine_nvm_avg_power_budget_watts",
    "machine_nvm_capacity",
    "process_network_receive_bytes_total",
    "process_network_transmit_bytes_total",
    "process_virtual_memory_max_bytes",
    "registered_metrics_total",
    "rest_client_exec_plugin_certificate_rotation_age",
    "rest_client_exec_plugin_ttl_seconds",
    "rest_client_rate_limiter_duration_seconds",
    "rest_client_request_size_bytes",
    "rest_client_response_size_bytes",
    "rest_client_transport_*",
    "workqueue_*",
];

/// The finding for those who have dashboards.
pub(super) fn finding() -> Finding {
    let message = format!(
        "families that the Go kubelet writes and this kubelet does not: {}",
        LOST.join(" ")
    );
    Finding::ok("metrics", message)
}
