use super::*;
use crate::base::metrics::Metrics;
use crate::cri::{CriConnection, CriMetrics, RuntimeEndpoint};
use crate::model::fixture;
use futures::FutureExt as _;
use serde_json::json;
use std::path::Path;

fn pod(uid: &str) -> Pod {
    fixture::pod(&format!("/{uid}/{uid}"), json!({"containers": [{"name": "c"}]}))
}

/// Managers without policies, with their checkpoints in this directory.
pub(in crate::resources) fn managers(directory: &Path) -> ResourceManagers {
    let metrics = Metrics::new();
    let endpoint = RuntimeEndpoint::parse("unix:///nonexistent/cri.sock").unwrap();
    let connection =
        CriConnection::new(endpoint, Duration::from_secs(1), &CriMetrics::register(&metrics));
    let deps = ResourceManagerDeps {
        runtime: RuntimeClient::new(connection),
        cache: PodCache::default(),
        files: StateFiles::new(directory),
        metrics: ManagerMetrics::new(&metrics, false),
        retry_after: Duration::from_secs(1),
        no_cpu_quota_with_exclusive_cpus: false,
    };
    ResourceManagers::new(
        TopologyManager::default(),
        CpuManager::default(),
        MemoryManager::default(),
        deps,
    )
}

#[tokio::test]
async fn a_pod_that_runs_already_has_its_cpus_compared_once_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let managers = managers(dir.path());
    for (uid, runs, wakes) in
        [("running", true, true), ("running", true, false), ("new", false, false)]
    {
        let admitted = managers.admit(&pod(uid), runs, |_| DeviceHints::default());
        assert!(admitted.is_ok());
        let woken = managers.0.changed.notified().now_or_never().is_some();
        assert_eq!(woken, wakes, "{uid} {runs}");
    }
}

#[test]
fn alignments_of_both_scopes_are_there_before_the_first_pod_unless_nothing_is_aligned() {
    use crate::resources::topology::{TopologyOptions, TopologyPolicy, TopologyScope};
    for (policy, expected) in [(TopologyPolicy::None, 0), (TopologyPolicy::SingleNumaNode, 4)] {
        let metrics = Metrics::new();
        let (scope, options) = (TopologyScope::Pod, TopologyOptions::default());
        let topology = TopologyManager::new(policy, scope, options, vec![(0, vec![10])]).unwrap();
        ManagerMetrics::new(&metrics, false).create_alignment_series(&topology);
        let text = metrics.text();
        let zeros = text
            .lines()
            .filter(|line| line.contains("boundary=\"numa_node\"") && line.ends_with(" 0"));
        assert_eq!(zeros.count(), expected, "{text}");
    }
}

#[test]
fn allocations_have_series_only_if_pods_with_pod_level_resources_are_managed() {
    let mut cpu = CpuManager::default();
    cpu.counters.allocations.by_pod = 2;
    cpu.counters.allocations.pod_shared = 1;
    let mut memory = MemoryManager::default();
    memory.counters.allocations.node_errors = 3;
    for (pod_level, expected) in [
        (
            true,
            &[
                "resource_manager_allocations_total{resource_name=\"cpu\",source=\"pod\"} 2",
                "resource_manager_allocation_errors_total{resource_name=\"memory\",source=\"node\"} 3",
                "resource_manager_container_assignments{resource_name=\"cpu\",assignment_type=\"pod_shared\"} 1",
            ][..],
        ),
        (false, &[]),
    ] {
        let metrics = Metrics::new();
        ManagerMetrics::new(&metrics, pod_level).update(&cpu, &memory);
        let text = metrics.text();
        let mut lines: Vec<_> =
            text.lines().filter(|line| line.starts_with("resource_manager_")).collect();
        let mut expected = expected.to_vec();
        lines.sort_unstable();
        expected.sort_unstable();
        assert_eq!(lines, expected);
    }
}
