//! Converts requests and limits to `LinuxContainerResources` of the CRI.

use super::memory_controls::{self, MemoryQos, SwapBehavior};
use super::qos;
use super::requests::{self, Amounts, CPU, HUGEPAGES_PREFIX, InvalidQuantity, MEMORY, Resources};
use crate::cri::v1::{HugepageLimit, LinuxContainerResources};
use crate::model::{NodeFacts, Pod, PodExt, Quantity};
use k8s_openapi::api::core::v1::Container;

const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const SHARES_PER_CPU: i128 = 1024;
const MIN_QUOTA_MICROSECONDS: i64 = 1000;

/// How CPU and memory limits are enforced on this node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResourceEnforcement {
    /// Whether CPU limits become CFS quotas (`cpuCFSQuota`, default true).
    pub cfs_quota: bool,
    /// `cpuCFSQuotaPeriod` in microseconds, default 100 ms.
    pub period_microseconds: i64,
    /// Whether the OOM killer kills all processes of a container (`memory.oom.group`): with cgroup v2, unless
    /// `singleProcessOOMKill`.
    pub oom_group: bool,
    /// Whether containers may swap.
    pub swap: SwapBehavior,
    /// Memory protection and throttling (cgroup v2, `MemoryQoS`).
    pub memory_qos: Option<MemoryQos>,
}

impl Default for ResourceEnforcement {
    fn default() -> Self {
        Self {
            cfs_quota: true,
            period_microseconds: 100_000,
            oom_group: false,
            swap: SwapBehavior::Unlimited,
            memory_qos: None,
        }
    }
}

/// CPU shares for millicores: 1024 per CPU, within 2..=262144.
pub fn milli_cpu_to_shares(milli_cpu: i64) -> i64 {
    let shares = i128::from(milli_cpu) * SHARES_PER_CPU / 1000;
    i64::try_from(shares).unwrap_or(MAX_SHARES).clamp(MIN_SHARES, MAX_SHARES)
}

/// CFS quota in microseconds per period for millicores; at least 1 ms, and 0 (no quota) for 0.
pub fn milli_cpu_to_quota(milli_cpu: i64, period_microseconds: i64) -> i64 {
    if milli_cpu == 0 {
        return 0;
    }
    let quota = i128::from(milli_cpu) * i128::from(period_microseconds) / 1000;
    i64::try_from(quota).unwrap_or(i64::MAX).max(MIN_QUOTA_MICROSECONDS)
}

/// Millicores for CPU shares, rounded up; 0 for less than the minimum shares.
pub fn shares_to_milli_cpu(shares: i64) -> i64 {
    if shares < MIN_SHARES {
        return 0;
    }
    let milli = (i128::from(shares) * 1000 + SHARES_PER_CPU - 1) / SHARES_PER_CPU;
    i64::try_from(milli).unwrap_or(i64::MAX)
}

/// Millicores for a CFS quota; 0 without a quota.
pub fn quota_to_milli_cpu(quota_microseconds: i64, period_microseconds: i64) -> i64 {
    if quota_microseconds <= 0 || period_microseconds <= 0 {
        return 0;
    }
    let milli = i128::from(quota_microseconds) * 1000 / i128::from(period_microseconds);
    i64::try_from(milli).unwrap_or(i64::MAX)
}

/// Resources of one container (upstream's `generateLinuxContainerResources`). A container without limits has the limits
/// of its pod.
///
/// # Errors
/// An amount in the spec cannot be parsed.
pub fn container_resources(
    pod: &Pod,
    container: &Container,
    node: &NodeFacts,
    enforcement: &ResourceEnforcement,
) -> Result<LinuxContainerResources, InvalidQuantity> {
    let container_level: Resources = requests::of_container(container)?;
    let pod_level: Resources = requests::of_pod_level(pod)?;
    let limit = |name| match container_level.limit(name) {
        Some(limit) if !limit.is_zero() => Some(limit),
        _ => pod_level.limit(name),
    };
    let mut resources = base(container_level.request(CPU), limit(CPU), limit(MEMORY), enforcement);
    resources.oom_score_adj = qos::oom_score_adj(pod, container, node.memory_capacity_bytes)?;
    resources.hugepage_limits =
        hugepage_limits(&container_level.limits, &pod_level.limits, &node.hugepage_sizes);
    if enforcement.swap == SwapBehavior::NoSwapV1 {
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
    }
    let swap = memory_controls::swap_limit(pod, &container_level, node, enforcement.swap)?;
    let qos = enforcement
        .memory_qos
        .map(|qos| memory_controls::memory_qos(pod, &container_level, node, qos));
    let files = swap.map(|bytes| ("memory.swap.max", bytes)).into_iter();
    for (file, bytes) in files.chain(qos.transpose()?.unwrap_or_default()) {
        resources.unified.insert(file.to_owned(), bytes.to_string());
    }
    Ok(resources)
}

/// Resources of the whole pod without its overhead, for runtimes that size the sandbox (upstream's
/// `calculateSandboxResources`).
///
/// # Errors
/// An amount in the spec cannot be parsed.
pub fn sandbox_resources(
    pod: &Pod,
    enforcement: &ResourceEnforcement,
) -> Result<LinuxContainerResources, InvalidQuantity> {
    let total: Resources = requests::of_pod(pod)?;
    let (request, limit) = (total.request(CPU), total.limit(CPU));
    Ok(base(request, limit, total.limit(MEMORY), enforcement))
}

/// Resources of the pod's overhead; `None` if the pod has none.
///
/// # Errors
/// An amount in the spec cannot be parsed.
pub fn sandbox_overhead(
    pod: &Pod,
    enforcement: &ResourceEnforcement,
) -> Result<Option<LinuxContainerResources>, InvalidQuantity> {
    if pod.spec().and_then(|spec| spec.overhead.as_ref()).is_none() {
        return Ok(None);
    }
    let overhead: Amounts = requests::overhead(pod)?;
    let amount = |name| overhead.get(name).copied();
    Ok(Some(base(amount(CPU), amount(CPU), amount(MEMORY), enforcement)))
}

fn base(
    cpu_request: Option<Quantity>,
    cpu_limit: Option<Quantity>,
    memory_limit: Option<Quantity>,
    enforcement: &ResourceEnforcement,
) -> LinuxContainerResources {
    let limit_milli = cpu_limit.unwrap_or_default().milli_value();
    let request_milli = cpu_request.map_or(limit_milli, Quantity::milli_value);
    let mut resources = LinuxContainerResources {
        cpu_shares: milli_cpu_to_shares(request_milli),
        memory_limit_in_bytes: memory_limit.unwrap_or_default().value(),
        ..Default::default()
    };
    if enforcement.cfs_quota {
        resources.cpu_quota = milli_cpu_to_quota(limit_milli, enforcement.period_microseconds);
        resources.cpu_period = enforcement.period_microseconds;
    }
    if enforcement.oom_group {
        let unified = ("memory.oom.group".to_string(), "1".to_string());
        resources.unified.extend([unified]);
    }
    resources
}

/// The container's limit for every huge page size of the node: its own, else that of the pod as a whole, else 0.
fn hugepage_limits(
    container_level: &Amounts,
    pod_level: &Amounts,
    node_sizes: &[u64],
) -> Vec<HugepageLimit> {
    let limits: Vec<(u64, u64)> = container_level
        .iter()
        .chain(pod_level)
        .filter_map(|(name, amount)| {
            let size = Quantity::parse(name.strip_prefix(HUGEPAGES_PREFIX)?).ok()?;
            let size = u64::try_from(size.value()).ok()?;
            Some((size, u64::try_from(amount.value()).unwrap_or(0)))
        })
        .collect();
    node_sizes
        .iter()
        .map(|size| HugepageLimit {
            page_size: page_size_name(*size),
            limit: limits.iter().find(|(s, _)| s == size).map_or(0, |(_, limit)| *limit),
        })
        .collect()
}

/// A huge page size as in the names of hugetlb cgroup files: `64KB`, `2MB`, `1GB`.
pub(super) fn page_size_name(bytes: u64) -> String {
    let units = [("GB", 30), ("MB", 20), ("KB", 10)];
    units
        .into_iter()
        .find(|(_, shift)| bytes >> shift > 0)
        .map_or_else(|| format!("{bytes}B"), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}
