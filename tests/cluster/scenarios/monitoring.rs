//! The pages of metrics of a node that does what nodes do, beside those of the Go kubelet. `make test-monitoring` runs
//! this.

use std::path::Path;
use std::time::Duration;

use crate::cluster::{ADDRESS, Cluster, NODE};
use crate::kubelet::{Flavour, beside_control_plane};
use crate::scenarios::objects::VOLUME;
use crate::support::metric_facts::{self, Deviations, Facts};
use crate::support::prometheus::Prometheus;
use crate::support::wait::{holds, wait_for};

/// The Go kubelet measures volumes each minute.
const MEASURED: Duration = Duration::from_secs(180);

/// Writes the Go kubelet's facts again.
const RENEW: &str = "RENEW_METRIC_FACTS";

/// Most kinds of pods, with most of what has metrics.
const PODS: &str = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  storageClassName: by-hand
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Mi}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: words}
data: {word: hello}
---
apiVersion: v1
kind: Pod
metadata: {name: busy}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 5
  initContainers:
  - {name: first, image: localhost/busybox:dev, command: ['true']}
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sh, -c, 'while :; do echo said; sleep 1; done']
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 500m, memory: 64Mi}}
    volumeMounts: [{name: data, mountPath: /data}, {name: words, mountPath: /words}, {name: empty, mountPath: /empty}]
    startupProbe: {exec: {command: ['true']}}
    livenessProbe: {exec: {command: ['true']}, periodSeconds: 1}
    readinessProbe: {exec: {command: ['true']}, periodSeconds: 1}
    lifecycle: {preStop: {sleep: {seconds: 1}}}
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data, readOnly: true}}
  - {name: words, configMap: {name: words}}
  - {name: empty, emptyDir: {}}
---
apiVersion: v1
kind: Pod
metadata: {name: failing}
spec:
  nodeName: node1
  containers: [{name: main, image: localhost/busybox:dev, command: ['false']}]
---
apiVersion: v1
kind: Pod
metadata: {name: missing}
spec:
  nodeName: node1
  containers: [{name: main, image: localhost/busybox:dev, command: [/no/such/program]}]
---
apiVersion: v1
kind: Pod
metadata: {name: imageless}
spec:
  nodeName: node1
  containers: [{name: main, image: 'localhost:1/nothing:dev', imagePullPolicy: Always}]
---
apiVersion: v1
kind: Pod
metadata: {name: refused}
spec:
  nodeName: node1
  nodeSelector: {no-such: label}
  containers: [{name: main, image: localhost/busybox:dev}]
";

/// The expressions about kubelets of the rules, alerts and dashboards of kubernetes-mixin (2026-08), for all instances, and
/// alerts without their thresholds: as it asks for what kubelets serve.
const MIXIN: &[&str] = &[
    // Rules and alerts.
    "histogram_quantile(0.99, sum(rate(kubelet_pleg_relist_duration_seconds_bucket[5m])) by (instance, le) * on (instance) group_left (node) max by (instance, node) (kubelet_node_name))",
    "histogram_quantile(0.99, sum(rate(kubelet_pod_worker_duration_seconds_bucket[5m])) by (instance, le)) * on (instance) group_left (node) kubelet_node_name",
    "kubelet_certificate_manager_client_ttl_seconds",
    "increase(kubelet_certificate_manager_client_expiration_renew_errors[5m])",
    "kubelet_certificate_manager_server_ttl_seconds",
    "increase(kubelet_server_expiration_renew_errors[5m])",
    "kubelet_volume_stats_available_bytes / kubelet_volume_stats_capacity_bytes",
    "kubelet_volume_stats_inodes_free / kubelet_volume_stats_inodes",
    "kubelet_volume_stats_used_bytes",
    "kubelet_volume_stats_inodes_used",
    "sum(rate(rest_client_requests_total{code=~\"5..\"}[5m])) by (instance) / sum(rate(rest_client_requests_total[5m])) by (instance)",
    "count by (git_version) (kubernetes_build_info)",
    "sum(increase(container_cpu_cfs_throttled_periods_total{container!=\"\"}[5m])) without (id, metrics_path, name, image, endpoint, job, node) / sum(increase(container_cpu_cfs_periods_total[5m])) without (id, metrics_path, name, image, endpoint, job, node)",
    "sum by (namespace, pod, container) (rate(container_cpu_usage_seconds_total{image!=\"\"}[5m]))",
    "container_memory_working_set_bytes{image!=\"\"}",
    "container_memory_rss{image!=\"\"}",
    "container_memory_cache{image!=\"\"}",
    "container_memory_swap{image!=\"\"}",
    // The dashboard of kubelets.
    "sum(kubelet_node_name)",
    "sum(kubelet_running_pods)",
    "sum(kubelet_running_containers)",
    "sum(volume_manager_total_volumes{state=\"actual_state_of_world\"})",
    "sum(volume_manager_total_volumes{state=\"desired_state_of_world\"})",
    "sum(rate(kubelet_node_config_error[5m]))",
    "sum(rate(kubelet_runtime_operations_total[5m])) by (operation_type, instance)",
    "sum(rate(kubelet_runtime_operations_errors_total[5m])) by (instance, operation_type)",
    "histogram_quantile(0.99, sum(rate(kubelet_runtime_operations_duration_seconds_bucket[5m])) by (instance, operation_type, le))",
    "sum(rate(kubelet_pod_start_duration_seconds_count[5m])) by (instance)",
    "sum(rate(kubelet_pod_worker_duration_seconds_count[5m])) by (instance)",
    "histogram_quantile(0.99, sum(rate(kubelet_pod_start_duration_seconds_bucket[5m])) by (instance, le))",
    "histogram_quantile(0.99, sum(rate(kubelet_pod_worker_duration_seconds_bucket[5m])) by (instance, le))",
    "sum(rate(storage_operation_duration_seconds_count[5m])) by (instance, operation_name, volume_plugin)",
    "sum(rate(storage_operation_errors_total[5m])) by (instance, operation_name, volume_plugin)",
    "histogram_quantile(0.99, sum(rate(storage_operation_duration_seconds_bucket[5m])) by (instance, operation_name, volume_plugin, le))",
    "sum(rate(kubelet_cgroup_manager_duration_seconds_count[5m])) by (instance, operation_type)",
    "histogram_quantile(0.99, sum(rate(kubelet_cgroup_manager_duration_seconds_bucket[5m])) by (instance, operation_type, le))",
    "sum(rate(kubelet_pleg_relist_duration_seconds_count[5m])) by (instance)",
    "histogram_quantile(0.99, sum(rate(kubelet_pleg_relist_interval_seconds_bucket[5m])) by (instance, le))",
    "histogram_quantile(0.99, sum(rate(kubelet_pleg_relist_duration_seconds_bucket[5m])) by (instance, le))",
    "sum(rate(rest_client_requests_total{code=~\"2..\"}[5m]))",
    "sum(rate(rest_client_requests_total{code=~\"4..\"}[5m]))",
    "histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket[5m])) by (instance, verb, url, le))",
    "process_resident_memory_bytes",
    "rate(process_cpu_seconds_total[5m])",
    // The dashboards of pods and namespaces.
    "sum(rate(container_network_receive_bytes_total{namespace!=\"\"}[5m])) by (namespace, pod)",
    "sum(rate(container_network_transmit_bytes_total{namespace!=\"\"}[5m])) by (namespace, pod)",
    "sum(rate(container_network_receive_packets_total{namespace!=\"\"}[5m])) by (namespace)",
    "sum(rate(container_network_transmit_packets_total{namespace!=\"\"}[5m])) by (namespace)",
    "sum(rate(container_network_receive_packets_dropped_total{namespace!=\"\"}[5m])) by (namespace)",
    "sum(rate(container_network_transmit_packets_dropped_total{namespace!=\"\"}[5m])) by (namespace)",
    "ceil(sum by (namespace) (rate(container_fs_reads_total{container!=\"\"}[5m]) + rate(container_fs_writes_total{container!=\"\"}[5m])))",
    "sum by (namespace) (rate(container_fs_reads_bytes_total{container!=\"\"}[5m]) + rate(container_fs_writes_bytes_total{container!=\"\"}[5m]))",
    "sum by (namespace, pod) (container_memory_max_usage_bytes{container!=\"\"})",
    "machine_memory_bytes",
    "machine_cpu_cores",
];

/// Those of [`MIXIN`] that return nothing from a node with the Go kubelet here: families that are gone upstream, serving
/// certificates of the cluster, requests that fail, bytes of disks on cgroup v1.
const WITHOUT_DATA: &[&str] = &[
    "kubelet_certificate_manager_server_ttl_seconds",
    "increase(kubelet_server_expiration_renew_errors[5m])",
    "sum(rate(kubelet_node_config_error[5m]))",
    "sum(rate(storage_operation_errors_total[5m])) by (instance, operation_name, volume_plugin)",
    "sum(rate(rest_client_requests_total{code=~\"5..\"}[5m])) by (instance) / sum(rate(rest_client_requests_total[5m])) by (instance)",
    "sum by (namespace) (rate(container_fs_reads_bytes_total{container!=\"\"}[5m]) + rate(container_fs_writes_bytes_total{container!=\"\"}[5m]))",
    "ceil(sum by (namespace) (rate(container_fs_reads_total{container!=\"\"}[5m]) + rate(container_fs_writes_total{container!=\"\"}[5m])))",
];

/// What Prometheus may do, as docs/operate/monitoring.md has it.
const RIGHTS: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: kubelet-metrics}
rules:
- {apiGroups: [''], resources: [nodes/metrics], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kubelet-metrics}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: kubelet-metrics}
subjects: [{kind: ServiceAccount, name: prometheus, namespace: default}]
";

/// Families that are in the table of docs/metrics.md, but have no samples on this node.
const WITHOUT_SAMPLES: [&str; 6] = [
    // Of disks that the cgroup controller counts. The Go kubelet has file systems of the machine here.
    "container_fs_reads_total",
    "container_fs_writes_total",
    // Of pods with claims. The Go kubelet counts every pod.
    "dra_operations_duration_seconds",
    // Only with `shutdownGracePeriod`.
    "kubelet_graceful_shutdown_end_time_seconds",
    "kubelet_graceful_shutdown_start_time_seconds",
    // The API server translates streams for this kubelet.
    "kubelet_websocket_streaming_requests_total",
];

/// The families that are served.
fn served(cluster: &Cluster) -> Facts {
    let mut facts = Facts::new();
    for page in metric_facts::PAGES {
        let path = format!("/api/v1/nodes/{NODE}/proxy{page}");
        let text = cluster.kubectl(&["get", "--raw", &path]);
        facts.extend(metric_facts::of_page(page, &text));
    }
    facts
}

/// A node on which most things have happened.
async fn busy_node() -> Cluster {
    let mut cluster = Cluster::start();
    if Flavour::current() == Flavour::Go {
        // Without the socket its cAdvisor knows no container by its name.
        let socket = cluster.runtime().trim_start_matches("unix://").to_owned();
        cluster.restart_kubelet_with(&["--containerd", &socket]);
    }
    cluster.create(VOLUME);
    cluster.create(PODS);
    cluster.wait("condition=Ready", "pod/busy");
    cluster.wait("jsonpath={.status.phase}=Failed", "pod/refused");
    for stream in [&["exec", "busy", "--", "true"][..], &["logs", "busy"]] {
        cluster.kubectl(stream);
    }
    cluster.kubectl(&["delete", "pod", "refused"]);
    cluster.kubectl(&[
        "run",
        "short",
        "--image=localhost/busybox:dev",
        "--command",
        "sleep",
        "1000",
    ]);
    cluster.wait("condition=Ready", "pod/short");
    cluster.kubectl(&["delete", "pod", "short", "--grace-period=1"]);
    wait_for("usage, probes and volumes are measured", MEASURED, || async {
        let all = served(&cluster);
        let wanted = [
            ("/metrics", "kubelet_volume_stats_used_bytes"),
            ("/metrics/cadvisor", "container_cpu_cfs_periods_total"),
            ("/metrics/resource", "pod_memory_working_set_bytes"),
            ("/metrics/probes", "prober_probe_total"),
        ];
        let missing: Vec<_> = wanted
            .into_iter()
            .filter(|(page, name)| {
                let family = all.get(&((*page).to_owned(), (*name).to_owned()));
                family.is_none_or(|family| !family.sampled)
            })
            .collect();
        holds(missing.is_empty(), format!("{missing:?}"))
    })
    .await;
    cluster
}

pub async fn families_of_a_busy_node_are_those_of_the_go_kubelet() {
    let cluster = busy_node().await;
    let served = served(&cluster);
    if Flavour::current() == Flavour::Go && std::env::var_os(RENEW).is_some() {
        std::fs::write(metric_facts::path(), metric_facts::written(&served)).unwrap();
    }
    let recorded = metric_facts::recorded();
    let mut wrong = metric_facts::differences(&served, &recorded);
    let keys = |facts: &Facts| facts.keys().cloned().collect::<Vec<_>>();
    match Flavour::current() {
        Flavour::Go => {
            let new = keys(&served).into_iter().filter(|key| !recorded.contains_key(key));
            wrong.extend(
                new.map(|(page, name)| format!("{page} {name} is not recorded; renew the facts")),
            );
        }
        Flavour::Rust => {
            let deviations = Deviations::read();
            let is_served =
                |key: &(String, String)| served.get(key).is_some_and(|family| family.sampled);
            let missing = keys(&recorded)
                .into_iter()
                .filter(|key| !is_served(key) && !deviations.have(&key.1))
                .filter(|(_, name)| !WITHOUT_SAMPLES.contains(&name.as_str()));
            wrong.extend(missing.map(|(page, name)| format!("{page} {name} has no samples")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    the_public_dashboards_have_data(&cluster).await;
}

/// Whether Prometheus, with the rights and the jobs of the documentation, gets data for what kubernetes-mixin asks.
async fn the_public_dashboards_have_data(cluster: &Cluster) {
    cluster.create(RIGHTS);
    let token = cluster.kubectl(&["create", "token", "prometheus"]);
    let directory = cluster.dir().join("private/prometheus");
    std::fs::create_dir_all(&directory).unwrap();
    let token_file = directory.join("token");
    std::fs::write(&token_file, token.trim()).unwrap();
    let job = |name: &str, page: &str| {
        format!(
            "- {{job_name: {name}, scheme: https, metrics_path: {page}, authorization: {{credentials_file: \"{}\"}}, \
             tls_config: {{insecure_skip_verify: true}}, static_configs: [{{targets: [\"{ADDRESS}:10250\"]}}]}}\n",
            token_file.display()
        )
    };
    let jobs = job("kubelet", "/metrics") + &job("cadvisor", "/metrics/cadvisor");
    let inside = |program: &str| beside_control_plane(cluster.dir(), Path::new(program));
    let prometheus = Prometheus::start(&directory, 9090, &jobs, None, inside);
    let expected = |expression: &&&str| !WITHOUT_DATA.contains(*expression);
    wait_for("the expressions have data", MEASURED, || async {
        let expressions = MIXIN.iter().filter(expected).copied();
        let empty = prometheus.without_data(expressions);
        holds(empty.is_empty(), format!("{empty:#?}\n{}", prometheus.log()))
    })
    .await;
}
