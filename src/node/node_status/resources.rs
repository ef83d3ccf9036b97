//! Capacity and allocatable. Pure.

use super::NodeMachineInfo;
use crate::host::parse_cpu_list;
use crate::model::requests::{
    CPU, EPHEMERAL_STORAGE, HUGEPAGES_PREFIX, MEMORY, huge_page_resource,
};
use crate::model::{Amount, Quantity};
use crate::state::device_capacity::Capacities;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use std::collections::BTreeMap;

/// Amounts by resource.
pub type ResourceList = BTreeMap<String, ApiQuantity>;

const PODS: &str = "pods";

/// The value of an eviction threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ThresholdValue {
    /// Bytes, or a number of inodes or processes.
    Absolute(i64),
    /// Fraction of the capacity, 0 to 1. 32 bits as in upstream, for equal results.
    Percentage(f32),
}

impl ThresholdValue {
    /// Parses a value of the configuration.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix('%') {
            Some(percent) => Some(Self::Percentage(percent.parse::<f32>().ok()? / 100.0)),
            None => Some(Self::Absolute(Quantity::parse(text).ok()?.value())),
        }
    }

    /// The amount for this capacity.
    pub fn of(self, capacity: i64) -> i64 {
        match self {
            Self::Absolute(amount) => amount,
            #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
            Self::Percentage(fraction) => (capacity as f64 * f64::from(fraction)) as i64,
        }
    }
}

/// Parses a threshold of the configuration; `None` for `0`, `0%` and `100%`, which disable it.
pub fn threshold(text: &str) -> Option<ThresholdValue> {
    ThresholdValue::parse(text).filter(|value| match *value {
        ThresholdValue::Absolute(amount) => amount > 0,
        ThresholdValue::Percentage(fraction) => fraction > 0.0 && fraction < 1.0,
    })
}

/// Resources that are not allocatable.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReservedResources {
    /// CPU, millicores.
    pub milli_cpu: i64,
    /// Memory, bytes.
    pub memory: i64,
    /// Ephemeral storage, bytes.
    pub ephemeral_storage: i64,
    /// The hard eviction threshold of memory.
    pub memory_threshold: Option<ThresholdValue>,
    /// The hard eviction threshold of ephemeral storage.
    pub storage_threshold: Option<ThresholdValue>,
}

/// The pod capacity of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodLimits {
    /// `maxPods`.
    pub max_pods: u32,
    /// `podsPerCore`; zero for no limit.
    pub pods_per_core: u32,
}

impl PodLimits {
    fn on(self, cpus: u32) -> u32 {
        match self.pods_per_core {
            0 => self.max_pods,
            each => cpus.saturating_mul(each).min(self.max_pods),
        }
    }
}

/// Allocatable CPU, memory and ephemeral storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocatable {
    /// CPU, millicores.
    pub milli_cpu: i64,
    /// Memory, bytes, before huge pages are subtracted.
    pub memory: i64,
    /// Ephemeral storage, bytes.
    pub ephemeral_storage: i64,
}

impl Allocatable {
    /// Capacity minus reservations and thresholds.
    pub fn of(reservation: &ReservedResources, milli_cpu: i64, memory: i64, storage: i64) -> Self {
        let threshold = |threshold: Option<ThresholdValue>, of: i64| {
            threshold.map_or(0, |threshold| threshold.of(of))
        };
        let left = |all: i64, reserved: i64, threshold: i64| {
            all.saturating_sub(reserved).saturating_sub(threshold).max(0)
        };
        Self {
            milli_cpu: left(milli_cpu, reservation.milli_cpu, 0),
            memory: left(
                memory,
                reservation.memory,
                threshold(reservation.memory_threshold, memory),
            ),
            ephemeral_storage: left(
                storage,
                reservation.ephemeral_storage,
                threshold(reservation.storage_threshold, storage),
            ),
        }
    }
}

/// Capacity and allocatable. Resources in `known` that other components set, such as administrators, are kept. Huge
/// page sizes that the kernel no longer offers are removed.
pub(super) fn resources(
    machine: &NodeMachineInfo,
    pods: PodLimits,
    reservation: &ReservedResources,
    devices: &Capacities,
    known: &ResourceList,
) -> (ResourceList, ResourceList) {
    let milli_cpu = i64::from(machine.cpus).saturating_mul(1000);
    let left = Allocatable::of(
        reservation,
        milli_cpu,
        machine.memory,
        machine.ephemeral_storage.unwrap_or_default(),
    );
    let mut capacity = known.clone();
    capacity.retain(|name, _| !name.starts_with(HUGEPAGES_PREFIX));
    if machine.ephemeral_storage.is_none() {
        capacity.remove(EPHEMERAL_STORAGE);
    }
    let mut own = vec![
        (CPU.to_owned(), Amount::of_milli(milli_cpu)),
        (MEMORY.to_owned(), Amount::of_bytes(machine.memory)),
        (PODS.to_owned(), count(pods.on(machine.cpus))),
    ];
    let storage = machine.ephemeral_storage.map(Amount::of_bytes);
    own.extend(storage.map(|amount| (EPHEMERAL_STORAGE.to_owned(), amount)));
    let mut huge = 0_i64;
    for (size, bytes) in &machine.huge_pages {
        huge = huge.saturating_add(*bytes);
        own.push((huge_page_resource(*size), Amount::of_bytes(*bytes)));
    }
    capacity.extend(own.into_iter().map(|(name, amount)| (name, amount.to_api())));
    let mut allocatable = capacity.clone();
    // As in upstream: preallocated huge pages cannot be used as other memory.
    let memory = left.memory.saturating_sub(huge).max(0);
    allocatable.insert(CPU.into(), Amount::of_milli(left.milli_cpu).to_api());
    allocatable.insert(MEMORY.into(), Amount::of_bytes(memory).to_api());
    if machine.ephemeral_storage.is_some() {
        let amount = Amount::of_bytes(left.ephemeral_storage);
        allocatable.insert(EPHEMERAL_STORAGE.into(), amount.to_api());
    }
    for (name, amount) in devices {
        // A name that never comes back must not stay in the Node for ever, nor with the capacity that it had.
        let known = known.get(name).and_then(|known| Quantity::from_api(known).ok());
        if amount.is_forgotten && known.unwrap_or_default().is_zero() {
            capacity.remove(name);
            allocatable.remove(name);
            continue;
        }
        let number = |amount: usize| ApiQuantity(amount.to_string());
        capacity.insert(name.clone(), number(amount.capacity));
        allocatable.insert(name.clone(), number(amount.allocatable));
    }
    (capacity, allocatable)
}

fn count(number: u32) -> Amount {
    Amount::of_milli(i64::from(number).saturating_mul(1000))
}

/// The quantity of a resource in a configuration map; zero if missing or invalid.
pub fn quantity_or_zero(map: &BTreeMap<String, String>, name: &str) -> Quantity {
    let text = map.get(name);
    text.and_then(|text| Quantity::parse(text).ok()).unwrap_or_default()
}

/// The number of CPUs in a list such as `0-3,8`.
pub fn cpu_count(list: &str) -> Option<i64> {
    i64::try_from(parse_cpu_list(list)?.len()).ok()
}
