//! Computes the settings of each cgroup (upstream's `ResourceConfigForPod`, `getCgroupConfig` and
//! `setCPUCgroupConfig`). Pure.

use crate::cri::v1::LinuxContainerResources;
use crate::host::cgroup::CgroupSettings;
use crate::model::{Pod, PodExt, Quantity};
use crate::resources::requests::{
    self, Amounts, CPU, HUGEPAGES_PREFIX, InvalidQuantity, MEMORY, Resources,
};
use crate::resources::{
    QosClass, ResourceEnforcement, linux, milli_cpu_to_quota, milli_cpu_to_shares, pod_qos,
};
use k8s_openapi::api::core::v1::Container;
use std::collections::BTreeMap;

/// Huge page limit of QoS classes, bytes: larger than any machine's memory, as upstream's.
const UNBOUNDED: u64 = 1 << 62;
/// CPU shares of a pod without a CPU request (the kernel's minimum).
const MIN_SHARES: u64 = 2;

/// Rules for the limits of pods on this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodRules {
    /// How CPU and memory limits are enforced.
    pub enforcement: ResourceEnforcement,
    /// `podPidsLimit`, if there is a limit.
    pub pids: Option<i64>,
    /// Huge page sizes that the kernel can limit, bytes.
    pub page_sizes: Vec<u64>,
    /// Whether requested memory is protected from reclaim (cgroup v2, `MemoryQoS` with tiered reservation).
    pub protect_memory: bool,
}

/// The settings of a pod's cgroup.
///
/// # Errors
/// An amount in the spec cannot be parsed.
pub fn resource_config_for_pod(
    pod: &Pod,
    rules: &PodRules,
) -> Result<CgroupSettings, InvalidQuantity> {
    let total: Resources = requests::of_pod_and_overhead(pod)?;
    let qos = pod_qos(pod)?;
    let milli = |amount: Option<Quantity>| amount.unwrap_or_default().milli_value();
    let shares = milli_cpu_to_shares(milli(total.request(CPU)));
    let quota = if rules.enforcement.cfs_quota {
        milli_cpu_to_quota(milli(total.limit(CPU)), rules.enforcement.period_microseconds)
    } else {
        -1
    };
    let memory = total.limit(MEMORY).unwrap_or_default().value();
    let limited = |resource| Ok(qos == QosClass::Guaranteed || is_limited(pod, resource)?);
    let mut settings = CgroupSettings {
        cpu_shares: Some(u64::try_from(shares).unwrap_or(MIN_SHARES)),
        huge_pages: huge_pages(&total.requests, &rules.page_sizes),
        pids: rules.pids,
        ..CgroupSettings::default()
    };
    if qos == QosClass::BestEffort {
        settings.cpu_shares = Some(MIN_SHARES);
        return Ok(settings);
    }
    if limited(CPU)? {
        settings.cpu_quota = Some(quota);
        settings.cpu_period = u64::try_from(rules.enforcement.period_microseconds).ok();
    }
    if limited(MEMORY)? {
        settings.memory = Some(memory);
    }
    let request = total.request(MEMORY).unwrap_or_default().value();
    if rules.protect_memory && request > 0 {
        let file = if qos == QosClass::Guaranteed { "memory.min" } else { "memory.low" };
        settings.unified.insert(file, request.to_string());
    }
    Ok(settings)
}

/// The higher limits of CPU and memory of both settings. A limit that one of them lacks is not set.
pub fn higher_limits(settings: CgroupSettings, other: &CgroupSettings) -> CgroupSettings {
    let is_limit = |value: &i64| *value > 0;
    let higher = |one: Option<i64>, other: Option<i64>| {
        let both = one.filter(is_limit).zip(other.filter(is_limit));
        both.map(|(one, other)| one.max(other))
    };
    CgroupSettings {
        cpu_shares: settings.cpu_shares.max(other.cpu_shares),
        cpu_quota: higher(settings.cpu_quota, other.cpu_quota),
        memory: higher(settings.memory, other.memory),
        ..settings
    }
}

/// CPU and memory settings in the form of the CRI.
pub fn for_runtime(settings: CgroupSettings) -> LinuxContainerResources {
    let signed = |value: Option<u64>| value.map(|value| i64::try_from(value).unwrap_or(i64::MAX));
    let unified = settings.unified.into_iter();
    LinuxContainerResources {
        cpu_shares: signed(settings.cpu_shares).unwrap_or_default(),
        cpu_quota: settings.cpu_quota.unwrap_or_default(),
        cpu_period: signed(settings.cpu_period).unwrap_or_default(),
        memory_limit_in_bytes: settings.memory.unwrap_or_default(),
        unified: unified.map(|(file, value)| (file.to_owned(), value)).collect(),
        ..LinuxContainerResources::default()
    }
}

/// The new memory limit of a cgroup, if it is lower than the old one or there was none.
pub fn lowered_memory_limit(old: Option<i64>, new: Option<i64>) -> Option<u64> {
    let is_limit = |value: &i64| *value > 0;
    let new = new.filter(is_limit)?;
    let lowered = old.filter(is_limit).is_none_or(|old| new < old);
    u64::try_from(new).ok().filter(|_| lowered)
}

/// Whether every container, or the pod as a whole, has a limit for a resource.
fn is_limited(pod: &Pod, resource: &str) -> Result<bool, InvalidQuantity> {
    let given = |limit: Option<Quantity>| limit.is_some_and(|limit| !limit.is_zero());
    if given(requests::of_pod_level::<Quantity>(pod)?.limit(resource)) {
        return Ok(true);
    }
    for container in containers(pod) {
        if !given(requests::of_container::<Quantity>(container)?.limit(resource)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.containers().iter().chain(pod.init_containers())
}

/// The requested amount of each page size; zero for sizes without a request.
fn huge_pages(amounts: &Amounts, sizes: &[u64]) -> BTreeMap<String, u64> {
    let mut limits: BTreeMap<String, u64> =
        sizes.iter().map(|size| (linux::page_size_name(*size), 0)).collect();
    for (name, amount) in amounts {
        let size = name.strip_prefix(HUGEPAGES_PREFIX);
        let size = size.and_then(|size| Quantity::parse(size).ok());
        let size = size.and_then(|size| u64::try_from(size.value()).ok());
        if let Some(size) = size.filter(|_| !sizes.is_empty()) {
            let limit = limits.entry(linux::page_size_name(size)).or_default();
            *limit = limit.saturating_add(u64::try_from(amount.value()).unwrap_or_default());
        }
    }
    limits
}

/// The settings of the cgroups of QoS classes. Guaranteed pods have no QoS cgroup: `guaranteed` is set on the cgroup
/// of all pods, in addition to the limits of the node. Pods with invalid amounts are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QosSettings {
    /// All pods.
    pub guaranteed: CgroupSettings,
    /// Burstable pods.
    pub burstable: CgroupSettings,
    /// Best-effort pods.
    pub best_effort: CgroupSettings,
}

impl QosSettings {
    pub(super) fn of(&self, class: QosClass) -> &CgroupSettings {
        match class {
            QosClass::Guaranteed => &self.guaranteed,
            QosClass::Burstable => &self.burstable,
            QosClass::BestEffort => &self.best_effort,
        }
    }
}

/// These settings with the current memory usage as the limit, if that is higher than theirs.
pub fn limited_to_usage(settings: &CgroupSettings, usage: u64) -> Option<CgroupSettings> {
    let usage = i64::try_from(usage).unwrap_or(i64::MAX);
    let limit = settings.memory.filter(|limit| *limit < usage);
    limit.map(|_| CgroupSettings { memory: Some(usage), ..settings.clone() })
}

/// Computes [`QosSettings`]. `qos_reserved` is set with `qosReserved`: allocatable memory, and the percentage of
/// memory requests that lower classes cannot use.
pub fn of_classes<'p>(
    pods: impl Iterator<Item = &'p Pod>,
    rules: &PodRules,
    memory_qos: bool,
    qos_reserved: Option<(i64, i64)>,
) -> QosSettings {
    let (mut milli_cpu, mut burstable, mut guaranteed) = (0_i64, 0_i64, 0_i64);
    for pod in pods {
        let Ok(total) = requests::of_pod_and_overhead::<Quantity>(pod) else {
            continue;
        };
        let memory = total.request(MEMORY).unwrap_or_default().value();
        // Only burstable pods count for CPU shares: guaranteed pods have no QoS cgroup, and best-effort pods have no
        // requests.
        match pod_qos(pod) {
            Ok(QosClass::Burstable) => {
                let request = total.request(CPU).unwrap_or_default().milli_value();
                milli_cpu = milli_cpu.saturating_add(request);
                burstable = burstable.saturating_add(memory);
            }
            Ok(QosClass::Guaranteed) => guaranteed = guaranteed.saturating_add(memory),
            Ok(QosClass::BestEffort) | Err(_) => {}
        }
    }
    let limitless: BTreeMap<String, u64> =
        rules.page_sizes.iter().map(|size| (linux::page_size_name(*size), UNBOUNDED)).collect();
    let with_shares = |cpu_shares| CgroupSettings {
        cpu_shares,
        huge_pages: limitless.clone(),
        ..CgroupSettings::default()
    };
    let shares = u64::try_from(milli_cpu_to_shares(milli_cpu)).unwrap_or(MIN_SHARES);
    let mut settings = QosSettings {
        guaranteed: with_shares(None),
        burstable: with_shares(Some(shares)),
        best_effort: with_shares(Some(MIN_SHARES)),
    };
    if memory_qos {
        let (all, low) = if rules.protect_memory {
            (guaranteed.saturating_add(burstable), burstable)
        } else {
            (0, 0)
        };
        settings.guaranteed.unified = [("memory.min", all.to_string())].into();
        settings.burstable.unified = [("memory.low", low.to_string())].into();
    }
    if let Some((allocatable, percent)) = qos_reserved.filter(|(memory, _)| *memory != 0) {
        let reserved = |requests: i64| requests.saturating_mul(percent) / 100;
        let limit = allocatable.saturating_sub(reserved(guaranteed));
        settings.burstable.memory = Some(limit);
        settings.best_effort.memory = Some(limit.saturating_sub(reserved(burstable)));
    }
    settings
}

/// Amounts for a node, or a part of it; `None` means unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAmounts {
    /// Millicores.
    pub milli_cpu: Option<i64>,
    /// Bytes.
    pub memory: Option<i64>,
    /// Processes and threads.
    pub pids: Option<i64>,
}

impl NodeAmounts {
    /// These amounts minus `others`, at least zero.
    #[must_use]
    pub fn without(&self, others: &[&Self]) -> Self {
        let left = |all: Option<i64>, of: fn(&Self) -> Option<i64>| {
            let others = others.iter().filter_map(|other| of(other));
            all.map(|all| others.fold(all, i64::saturating_sub).max(0))
        };
        Self {
            milli_cpu: left(self.milli_cpu, |amounts| amounts.milli_cpu),
            memory: left(self.memory, |amounts| amounts.memory),
            pids: left(self.pids, |amounts| amounts.pids),
        }
    }

    /// The cgroup settings for these limits, or only the CPU shares.
    pub fn settings(&self, only_compressible: bool) -> CgroupSettings {
        let shares = self.milli_cpu.map(milli_cpu_to_shares);
        let all = (!only_compressible).then_some(self);
        CgroupSettings {
            cpu_shares: shares.and_then(|shares| u64::try_from(shares).ok()),
            memory: all.and_then(|all| all.memory),
            pids: all.and_then(|all| all.pids),
            ..CgroupSettings::default()
        }
    }
}
