//! Every family of metrics is written by something that happens to a node, and is like that of the Go kubelet.

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::node::{Node, WAIT_LIMIT, is_ready, waits_for};
use crate::pods::{container, exec_probe, pod, simple, with, with_spec};
use crate::support::metric_facts;
use crate::support::wait::{holds, wait_for};
use crate::virtual_time::real_time;

/// What does not happen here: by the first part of their names, and what would write them.
const ELSEWHERE: &[(&str, &str)] = &[
    ("apiserver_delegated_auth", "an API server; tests of the secured port"),
    ("authentication_token_cache_", "an API server; tests of the secured port"),
    ("rest_client_", "an API server; tests of the secured port"),
    ("kubelet_websocket_streaming_requests_total", "a stream over WebSocket; tests of streams"),
    ("kubelet_evented_pleg_", "the stream of events; tests of cri::events"),
    ("kubelet_certificate_manager_", "a certificate of the cluster; tests of node::certificates"),
    (
        "kubelet_server_expiration_renew_errors",
        "a certificate of the cluster; tests of node::certificates",
    ),
    ("kubelet_events_dropped_total", "an API server; tests of node::event_sink"),
    ("kubelet_container_requested_resizes_total", "a resize; tests of resize"),
    (
        "kubelet_podcertificate_states",
        "a signer of the API server; tests of apiserver::pod_certificate",
    ),
    ("kubelet_volume_stats_", "a claim; tests of node::stats"),
    ("kubelet_preemptions", "a critical pod without room; tests of preemption"),
    ("kubelet_pod_in_progress_resizes", "a resize; tests of resize"),
    ("kubelet_pod_pending_resizes", "a resize; tests of resize"),
    ("kubelet_pod_deferred_accepted_resizes_total", "a resize; tests of resize"),
    ("kubelet_pod_infeasible_resizes_total", "a resize; tests of resize"),
    ("kubelet_pod_resize_duration_milliseconds", "a resize; tests of resize"),
    ("kubelet_cri_losing_support", "a runtime without RuntimeConfig; tests of cgroups"),
    ("kubelet_cgroup_manager_duration_seconds", "cgroups of the kubelet; tests of cgroups"),
    ("kubelet_container_aligned_compute_resources_", "exclusive CPUs; tests of exclusive"),
    ("kubelet_cpu_manager_", "exclusive CPUs; tests of exclusive"),
    ("resource_manager_", "a pod with pod-level resources; tests of resources::managers"),
    ("kubelet_memory_manager_", "memory of NUMA nodes; tests of exclusive"),
    (
        "kubelet_topology_manager_admission_errors_total",
        "a topology policy; tests of resources::topology",
    ),
    ("kubelet_credential_provider_", "a provider that is configured; tests of images::credentials"),
    (
        "kubelet_evictions",
        "a node that is short of something; tests of node::eviction and tests/cluster",
    ),
    ("kubelet_graceful_shutdown_", "shutdownGracePeriod; tests of node::shutdown"),
    ("kubelet_device_plugin_", "a device plugin; tests of devices"),
    ("dra_", "a driver of claims; tests of dra"),
    ("csi_", "a driver of volumes; tests of csi"),
    ("storage_operation_", "a volume; tests of volumes"),
    ("volume_operation_", "a volume; tests of volumes"),
    ("volume_manager_", "a volume; tests of volumes"),
    ("reconstruct_volume_", "CSI volumes of an earlier kubelet; tests of csi"),
    ("force_cleaned_", "directories of CSI volumes of an earlier kubelet; tests of csi"),
    ("kubelet_pod_resources_endpoint_", "an agent on the node; tests of devices"),
    ("kubelet_mirror_pods", "an API server"),
    ("kubelet_image_garbage_collected_total", "a full disk; tests of images::gc"),
    ("kubelet_lifecycle_handler_http_fallbacks_total", "a hook over https; tests of lifecycle"),
    ("kubelet_log_lines_dropped_total", "a log that is not read"),
    ("kubelet_managed_ephemeral_containers", "an API server"),
    ("kubelet_orphan_pod_cleaned_volumes", "what an earlier kubelet left on disk"),
    ("kubelet_orphaned_runtime_pods_total", "what an earlier kubelet left in the runtime"),
    ("apiserver_client_certificate_", "an API server; tests of the secured port"),
    ("kubelet_pod_status_sync_duration_seconds", "an API server; tests of status_writer"),
    ("kubelet_node_startup_", "a node that is registered; tests of node::startup_latency"),
    ("kubelet_image_volume_", "an image volume; tests of kuberuntime"),
    ("kubelet_imagemanager_ondisk_pullintents", "a pull that goes on; tests of images::records"),
    (
        "kubelet_sleep_action_terminated_early_total",
        "a preStop hook that is cut short; tests of handlers",
    ),
    ("kubelet_terminated_containers_total", "a container that ends; tests of status::terminations"),
    ("kubelet_panics_total", "a panic; tests of base::panics"),
    ("kubelet_prober_overdue_probes", "a probe that hangs; tests of prober"),
    ("kubelet_restarted_pods_total", "a UID that comes back while its pod ends"),
    ("kubelet_run_podsandbox_errors_total", "a runtime that refuses"),
    ("kubelet_runtime_operations_errors_total", "a runtime that refuses"),
    ("kubelet_started_pods_errors_total", "a runtime that refuses"),
    ("kubelet_trace_spans_total", "a collector of traces"),
    ("kubelet_started_user_namespaced_pods_", "a runtime with user namespaces"),
];

/// The families that the table for people has of a page.
fn documented(page: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let heading = format!("\n## {page}\n");
    let (_, section) = text.split_once(&heading).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let name = |line: &str| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned());
    section.lines().filter_map(name).collect()
}

/// The families of a page that have a sample other than zero.
fn written(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut family = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap();
        } else if !line.starts_with('#') && !line.ends_with(" 0") && !line.ends_with(" 0.0") {
            found.insert(family.to_owned());
        }
    }
    found
}

#[tokio::test]
async fn each_family_is_written_by_what_happens_to_a_node() {
    real_time("it measures durations");
    let node = Node::started().await;
    let probed = with(container("main"), json!({"readinessProbe": exec_probe("is-ready")}));
    node.put(&pod("probed", &[probed]));
    let pulled = with(container("main"), json!({"imagePullPolicy": "Always"}));
    node.put(&pod("plain", &[pulled]));
    let refused = with_spec(simple("refused"), json!({"os": {"name": "windows"}}));
    node.put(&refused);
    let imageless = with(container("main"), json!({"image": "no such image!"}));
    node.put(&pod("imageless", &[imageless]));
    for name in ["probed", "plain"] {
        node.wait_pod(name, "is ready", WAIT_LIMIT, is_ready).await;
    }
    let waits = |pod: &Pod| waits_for(pod, "main") == "InvalidImageName";
    node.wait_pod("imageless", "waits", WAIT_LIMIT, waits).await;
    node.get("/healthz").await;
    let recorded = metric_facts::recorded();
    wait_for("every family is written", WAIT_LIMIT, || async {
        let mut missing = Vec::new();
        for page in ["/metrics", "/metrics/probes", "/metrics/slis"] {
            let (_, text) = node.get(page).await;
            let served = metric_facts::of_page(page, &text);
            let differences = metric_facts::differences(&served, &recorded);
            assert!(differences.is_empty(), "{differences:#?}");
            let written = written(&text);
            let elsewhere =
                |name: &String| ELSEWHERE.iter().any(|(first, _)| name.starts_with(first));
            let wanted = documented(page).into_iter().filter(|name| !elsewhere(name));
            missing.extend(wanted.filter(|name| !written.contains(name)));
        }
        holds(missing.is_empty(), format!("{missing:#?}"))
    })
    .await;
}
