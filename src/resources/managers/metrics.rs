//! Metrics of the CPU, memory and topology managers.

use crate::base::metrics::{Labels, Metrics};
use crate::resources::{
    AllocationCounters,
    cpu::CpuManager,
    memory::MemoryManager,
    topology::{TopologyAdmission, TopologyManager, TopologyPolicy, TopologyScope},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};
use std::time::Duration;

const PHYSICAL_CPU: &str = "physical_cpu";
const UNCORE_CACHE: &str = "uncore_cache";
const NUMA_NODE: &str = "numa_node";
const CONTAINER: &str = "container";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NumaNodeLabel {
    numa_node: u32,
}

/// The metric families.
#[derive(Clone)]
pub struct ManagerMetrics {
    cpu_requests: Counter,
    cpu_errors: Counter,
    shared_pool: Gauge,
    exclusive: Gauge,
    exclusive_by_node: Family<NumaNodeLabel, Gauge>,
    aligned: Family<Labels<2>, Counter>,
    misaligned: Family<Labels<2>, Counter>,
    memory_requests: Counter,
    memory_errors: Counter,
    admissions: Counter,
    admission_errors: Counter,
    admission_duration: Histogram,
    allocations: Option<AllocationMetrics>,
}

/// The metric families of `PodLevelResourceManagers`.
#[derive(Clone)]
struct AllocationMetrics {
    allocations: Family<Labels<2>, Counter>,
    errors: Family<Labels<2>, Counter>,
    assignments: Family<Labels<2>, Counter>,
}

impl AllocationMetrics {
    fn new(metrics: &Metrics) -> Self {
        Self {
            allocations: metrics.register_default(
                "resource_manager_allocations_total",
                "Number of exclusive resource allocations performed by a resource manager.",
            ),
            errors: metrics.register_default(
                "resource_manager_allocation_errors_total",
                "Number of errors encountered during exclusive resource allocation.",
            ),
            assignments: metrics.register_default(
                "resource_manager_container_assignments",
                "Number of containers with a specific type of resource assignment.",
            ),
        }
    }

    /// Sets the metrics to the counters of a manager. A series is created with its first count.
    fn update(&self, manager: &'static str, counters: &AllocationCounters) {
        let AllocationMetrics { allocations, errors, assignments } = self;
        for (family, label, value, count) in [
            (allocations, "source", "node", counters.by_node),
            (allocations, "source", "pod", counters.by_pod),
            (errors, "source", "node", counters.node_errors),
            (errors, "source", "pod", counters.pod_errors),
            (assignments, "assignment_type", "node_exclusive", counters.node_exclusive),
            (assignments, "assignment_type", "pod_exclusive", counters.pod_exclusive),
            (assignments, "assignment_type", "pod_shared", counters.pod_shared),
        ] {
            if count > 0 {
                let labels = [("resource_name", manager), (label, value)];
                raise(&family.get_or_create(&labels), count);
            }
        }
    }
}

impl ManagerMetrics {
    /// Registers the metric families; those of allocations only with `PodLevelResourceManagers`, as upstream.
    pub fn new(metrics: &Metrics, pod_level: bool) -> Self {
        let buckets = (0..15).map(|power| 0.05 * f64::from(1_u32 << power));
        Self {
            cpu_requests: metrics.register_default(
                "kubelet_cpu_manager_pinning_requests_total",
                "The number of cpu core allocations which required pinning.",
            ),
            cpu_errors: metrics.register_default(
                "kubelet_cpu_manager_pinning_errors_total",
                "The number of cpu core allocations which required pinning failed.",
            ),
            shared_pool: metrics.register_default(
                "kubelet_cpu_manager_shared_pool_size_millicores",
                "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
            ),
            exclusive: metrics.register_default(
                "kubelet_cpu_manager_exclusive_cpu_allocation_count",
                "The total number of CPUs exclusively allocated to containers running on this node",
            ),
            exclusive_by_node: metrics.register_default(
                "kubelet_cpu_manager_allocation_per_numa",
                "Number of CPUs allocated per NUMA node",
            ),
            aligned: metrics.register_default(
                "kubelet_container_aligned_compute_resources_count",
                "Cumulative number of aligned compute resources allocated to containers by alignment type.",
            ),
            misaligned: metrics.register_default(
                "kubelet_container_aligned_compute_resources_failure_count",
                "Cumulative number of failures to allocate aligned compute resources to containers by alignment type.",
            ),
            memory_requests: metrics.register_default(
                "kubelet_memory_manager_pinning_requests_total",
                "The number of memory pages allocations which required pinning.",
            ),
            memory_errors: metrics.register_default(
                "kubelet_memory_manager_pinning_errors_total",
                "The number of memory pages allocations which required pinning that failed.",
            ),
            admissions: metrics.register_default(
                "kubelet_topology_manager_admission_requests_total",
                "The number of admission requests where resources have to be aligned.",
            ),
            admission_errors: metrics.register_default(
                "kubelet_topology_manager_admission_errors_total",
                "The number of admission request failures where resources could not be aligned.",
            ),
            admission_duration: metrics.register(
                "kubelet_topology_manager_admission_duration_ms",
                "Duration in milliseconds to serve a pod admission request.",
                Histogram::new(buckets),
            ),
            allocations: pod_level.then(|| AllocationMetrics::new(metrics)),
        }
    }

    /// Creates the series of both scopes, at zero. Without a policy there are none.
    pub(super) fn create_alignment_series(&self, topology: &TopologyManager) {
        if topology.policy() == TopologyPolicy::None {
            return;
        }
        for scope in [TopologyScope::Container, TopologyScope::Pod] {
            let alignment = [("scope", scope.as_str()), ("boundary", NUMA_NODE)];
            drop(self.aligned.get_or_create(&alignment));
            drop(self.misaligned.get_or_create(&alignment));
        }
    }

    /// Sets the metrics to the managers' counters.
    pub(super) fn update(&self, cpu: &CpuManager, memory: &MemoryManager) {
        raise(&self.cpu_requests, cpu.counters.requests);
        raise(&self.cpu_errors, cpu.counters.errors);
        raise(&self.memory_requests, memory.counters.requests);
        raise(&self.memory_errors, memory.counters.errors);
        if let Some(metrics) = &self.allocations {
            metrics.update("cpu", &cpu.counters.allocations);
            metrics.update("memory", &memory.counters.allocations);
        }
        if !cpu.is_on() {
            return;
        }
        let of = |family: &Family<Labels<2>, Counter>, boundary, count| {
            let scope = CONTAINER;
            raise(&family.get_or_create(&[("scope", scope), ("boundary", boundary)]), count);
        };
        of(&self.aligned, PHYSICAL_CPU, cpu.counters.aligned_physical);
        of(&self.aligned, UNCORE_CACHE, cpu.counters.aligned_uncore);
        of(&self.misaligned, PHYSICAL_CPU, cpu.counters.misaligned_physical);
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let shared = number(cpu.available().len());
        self.shared_pool.set(shared.saturating_mul(1000));
        let by_node = cpu.exclusive_by_node();
        self.exclusive.set(number(by_node.values().sum()));
        for numa_node in cpu.numa_nodes() {
            let count = by_node.get(&numa_node).copied().unwrap_or_default();
            let gauge = self.exclusive_by_node.get_or_create(&NumaNodeLabel { numa_node });
            gauge.set(number(count));
        }
    }

    /// Records an admission and its duration.
    pub(super) fn admitted(
        &self,
        topology: &TopologyManager,
        admission: &TopologyAdmission,
        took: Duration,
    ) {
        self.admissions.inc();
        self.admission_duration.observe(took.as_secs_f64() * 1000.0);
        if topology.policy() == TopologyPolicy::None {
            return;
        }
        if admission.result.is_err() {
            self.admission_errors.inc();
        }
        let alignment = [("scope", topology.scope().as_str()), ("boundary", NUMA_NODE)];
        let aligned = self.aligned.get_or_create(&alignment);
        aligned.inc_by(admission.aligned);
        let misaligned = self.misaligned.get_or_create(&alignment);
        misaligned.inc_by(admission.misaligned.into());
    }
}

fn raise(counter: &Counter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}
