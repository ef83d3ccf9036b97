//! Metrics of the CPU, memory and topology managers.

use crate::base::metrics::{Counter, Metrics, exponential_buckets, metric_set};
use crate::resources::AllocationCounters;
use crate::resources::cpu::CpuManager;
use crate::resources::memory::MemoryManager;
use crate::resources::topology::{
    TopologyAdmission, TopologyManager, TopologyPolicy, TopologyScope,
};
use std::time::Duration;

const PHYSICAL_CPU: &str = "physical_cpu";
const UNCORE_CACHE: &str = "uncore_cache";
const NUMA_NODE: &str = "numa_node";
const CONTAINER: &str = "container";

metric_set! {
    /// The metric families.
    pub struct ManagerMetrics {
        cpu_requests: Counter = "kubelet_cpu_manager_pinning_requests_total",
            "The number of cpu core allocations which required pinning.";
        cpu_errors: Counter = "kubelet_cpu_manager_pinning_errors_total",
            "The number of cpu core allocations which required pinning failed.";
        shared_pool: Gauge = "kubelet_cpu_manager_shared_pool_size_millicores",
            "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.";
        exclusive: Gauge = "kubelet_cpu_manager_exclusive_cpu_allocation_count",
            "The total number of CPUs exclusively allocated to containers running on this node";
        exclusive_by_node: Gauge["numa_node"] = "kubelet_cpu_manager_allocation_per_numa",
            "Number of CPUs allocated per NUMA node";
        aligned: Counter["scope", "boundary"] = "kubelet_container_aligned_compute_resources_count",
            "Cumulative number of aligned compute resources allocated to containers by alignment type.";
        misaligned: Counter["scope", "boundary"] =
            "kubelet_container_aligned_compute_resources_failure_count", "Cumulative number of failures to allocate aligned compute resources to containers by alignment type.";
        memory_requests: Counter = "kubelet_memory_manager_pinning_requests_total",
            "The number of memory pages allocations which required pinning.";
        memory_errors: Counter = "kubelet_memory_manager_pinning_errors_total",
            "The number of memory pages allocations which required pinning that failed.";
        admissions: Counter = "kubelet_topology_manager_admission_requests_total",
            "The number of admission requests where resources have to be aligned.";
        admission_errors: Counter = "kubelet_topology_manager_admission_errors_total",
            "The number of admission request failures where resources could not be aligned.";
        admission_duration: Histogram(exponential_buckets(0.05, 2.0, 15)) =
            "kubelet_topology_manager_admission_duration_ms", "Duration in milliseconds to serve a pod admission request.";
    } and {
        allocations: Option<AllocationMetrics>;
    }
}

metric_set! {
    /// The metric families of `PodLevelResourceManagers`.
    struct AllocationMetrics {
        allocations: Counter["resource_name", "source"] = "resource_manager_allocations_total",
            "Number of exclusive resource allocations performed by a resource manager.";
        errors: Counter["resource_name", "source"] = "resource_manager_allocation_errors_total",
            "Number of errors encountered during exclusive resource allocation.";
        assignments: Counter["resource_name", "assignment_type"] =
            "resource_manager_container_assignments", "Number of containers with a specific type of resource assignment.";
    }
}

impl AllocationMetrics {
    /// Sets the metrics to the counters of a manager. A series is created with its first count.
    fn update(&self, manager: &str, counters: &AllocationCounters) {
        let AllocationMetrics { allocations, errors, assignments } = self;
        for (family, value, count) in [
            (allocations, "node", counters.by_node),
            (allocations, "pod", counters.by_pod),
            (errors, "node", counters.node_errors),
            (errors, "pod", counters.pod_errors),
            (assignments, "node_exclusive", counters.node_exclusive),
            (assignments, "pod_exclusive", counters.pod_exclusive),
            (assignments, "pod_shared", counters.pod_shared),
        ] {
            if count > 0 {
                raise(&family.with([manager, value]), count);
            }
        }
    }
}

impl ManagerMetrics {
    /// Registers the metric families; those of allocations only with `PodLevelResourceManagers`, as upstream.
    pub fn new(metrics: &Metrics, pod_level: bool) -> Self {
        let mut new = Self::register(metrics);
        new.allocations = pod_level.then(|| AllocationMetrics::register(metrics));
        new
    }

    /// Creates the series of both scopes, at zero. Without a policy there are none.
    pub(super) fn create_alignment_series(&self, topology: &TopologyManager) {
        if topology.policy() == TopologyPolicy::None {
            return;
        }
        for scope in [TopologyScope::Container, TopologyScope::Pod] {
            self.aligned.with([scope.as_str(), NUMA_NODE]);
            self.misaligned.with([scope.as_str(), NUMA_NODE]);
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
        for (family, boundary, count) in [
            (&self.aligned, PHYSICAL_CPU, cpu.counters.aligned_physical),
            (&self.aligned, UNCORE_CACHE, cpu.counters.aligned_uncore),
            (&self.misaligned, PHYSICAL_CPU, cpu.counters.misaligned_physical),
        ] {
            raise(&family.with([CONTAINER, boundary]), count);
        }
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let shared = number(cpu.available().len());
        self.shared_pool.set(shared.saturating_mul(1000));
        let by_node = cpu.exclusive_by_node();
        self.exclusive.set(number(by_node.values().sum()));
        for numa_node in cpu.numa_nodes() {
            let count = by_node.get(&numa_node).copied().unwrap_or_default();
            self.exclusive_by_node.with([&numa_node.to_string()]).set(number(count));
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
        let alignment = [topology.scope().as_str(), NUMA_NODE];
        self.aligned.with(alignment).inc_by(admission.aligned);
        self.misaligned.with(alignment).inc_by(admission.misaligned.into());
    }
}

fn raise(counter: &Counter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}
