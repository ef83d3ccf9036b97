//! Validates the settings of pods' resources: policies, eviction, swap, user namespaces, static pod sources.

use super::{KubeletConfiguration, Violations};
use crate::base::GoDuration;
use crate::config::managers;
use crate::model::Quantity;
use crate::model::validation::sysctl_allowlist::Allowlist;

const EVICTION_SIGNALS: &[&str] = &[
    "memory.available",
    "allocatableMemory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
];

pub(super) fn check(config: &KubeletConfiguration, found: &mut Violations) {
    policies(config, found);
    sources(config, found);
    eviction(config, found);
    reservations(config, found);
    if let Some(ids) = config.user_namespaces.as_ref().and_then(|section| section.ids_per_pod)
        && (ids <= 0 || ids % 65536 != 0 || ids > i64::from(u32::MAX))
    {
        let message = format!("must be a multiple of 65536 above 0 and below 2^32, got {ids}");
        found.add("userNamespaces.idsPerPod", message);
    }
    let patterns = config.allowed_unsafe_sysctls.as_deref();
    if let Err(error) = Allowlist::new("", patterns.unwrap_or_default()) {
        found.add("allowedUnsafeSysctls", error.to_string());
    }
    if config.run_once == Some(true) {
        found.add("runOnce", "must be false: the run-once mode has been removed");
    }
}

fn policies(config: &KubeletConfiguration, found: &mut Violations) {
    found.one_of("cgroupDriver", config.cgroup_driver.as_ref(), &["cgroupfs", "systemd"]);
    found.one_of("cpuManagerPolicy", config.cpu_manager_policy.as_ref(), &["none", "static"]);
    let memory = config.memory_manager_policy.as_ref();
    found.one_of("memoryManagerPolicy", memory, &["None", "Static"]);
    let topology = ["none", "best-effort", "restricted", "single-numa-node"];
    found.one_of("topologyManagerPolicy", config.topology_manager_policy.as_ref(), &topology);
    let scope = config.topology_manager_scope.as_ref();
    found.one_of("topologyManagerScope", scope, &["container", "pod"]);
    for (field, message) in managers::problems(config) {
        found.add(field, message);
    }
    let hairpin = ["promiscuous-bridge", "hairpin-veth", "none"];
    found.one_of("hairpinMode", config.hairpin_mode.as_ref(), &hairpin);
    let reservation = config.memory_reservation_policy.as_ref();
    found.one_of("memoryReservationPolicy", reservation, &["None", "TieredReservation"]);
    let change = config.config_map_and_secret_change_detection_strategy.as_ref();
    let strategies = ["Get", "Cache", "Watch"];
    found.one_of("configMapAndSecretChangeDetectionStrategy", change, &strategies);
    let swap = config.memory_swap.as_ref().and_then(|section| section.swap_behavior.as_ref());
    found.one_of("memorySwap.swapBehavior", swap, &["", "NoSwap", "LimitedSwap"]);
}

fn sources(config: &KubeletConfiguration, found: &mut Violations) {
    let url = config.static_pod_url.as_deref().unwrap_or_default();
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    if !url.is_empty() && rest.is_none_or(|rest| rest.is_empty() || rest.starts_with('/')) {
        found.add("staticPodURL", "must be an http:// or https:// URL with a host");
    }
    for (name, values) in config.static_pod_url_header.iter().flatten() {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if name.is_empty() || !name.chars().all(token) {
            found.add("staticPodURLHeader", format!("{name:?} is not a header name"));
        }
        // The value may be a credential, so it is not repeated.
        if values.0.iter().any(|value| value.contains(['\r', '\n', '\0'])) {
            let message = "has a value with a line break or NUL in it";
            found.add(&format!("staticPodURLHeader.{name}"), message);
        }
    }
}

fn eviction(config: &KubeletConfiguration, found: &mut Violations) {
    for (field, map) in [
        ("evictionHard", &config.eviction_hard),
        ("evictionSoft", &config.eviction_soft),
        ("evictionMinimumReclaim", &config.eviction_minimum_reclaim),
    ] {
        for (signal, amount) in map.iter().flatten() {
            let field = format!("{field}.{signal}");
            known_signal(&field, signal, found);
            threshold(&field, amount, found);
        }
    }
    let grace = config.eviction_soft_grace_period.clone().unwrap_or_default();
    for signal in config.eviction_soft.iter().flatten().map(|(signal, _)| signal) {
        found.require(grace.contains_key(signal), &format!("evictionSoft.{signal}"), || {
            "needs an entry in evictionSoftGracePeriod".to_owned()
        });
    }
    for (signal, period) in &grace {
        let field = format!("evictionSoftGracePeriod.{signal}");
        known_signal(&field, signal, found);
        match period.parse::<GoDuration>() {
            Ok(period) if period.is_negative() => found.add(&field, "must not be negative"),
            Ok(_) => {}
            Err(error) => found.add(&field, format!("{period:?} {error}")),
        }
    }
}

fn known_signal(field: &str, signal: &str, found: &mut Violations) {
    found.require(EVICTION_SIGNALS.contains(&signal), field, || {
        format!("unknown eviction signal; known are {}", EVICTION_SIGNALS.join(", "))
    });
}

/// A percentage or a quantity; `0`, `0%` and `100%` disable a threshold.
fn threshold(field: &str, amount: &str, found: &mut Violations) {
    match amount.strip_suffix('%') {
        Some(percent) => {
            let valid = percent.parse().is_ok_and(|p: f64| (0.0..=100.0).contains(&p));
            found.require(valid, field, || format!("must be between 0% and 100%, got {amount:?}"));
        }
        None => {
            found.quantity(field, amount);
        }
    }
}

fn reservations(config: &KubeletConfiguration, found: &mut Violations) {
    for (field, map) in
        [("systemReserved", &config.system_reserved), ("kubeReserved", &config.kube_reserved)]
    {
        for (resource, amount) in map.iter().flatten() {
            let field = format!("{field}.{resource}");
            let known = ["cpu", "memory", "ephemeral-storage", "pid"].contains(&resource.as_str());
            found.require(known, &field, || {
                "must be cpu, memory, ephemeral-storage or pid".to_owned()
            });
            found.quantity(&field, amount);
        }
    }
    for (resource, percent) in config.qos_reserved.iter().flatten() {
        let field = format!("qosReserved.{resource}");
        found.require(resource == "memory", &field, || "only memory can be reserved".to_owned());
        let valid = percent
            .strip_suffix('%')
            .and_then(|digits| digits.parse::<u8>().ok())
            .is_some_and(|percent| percent <= 100);
        found.require(valid, &field, || format!("must be a percentage, got {percent:?}"));
    }
    for (index, node) in config.reserved_memory.iter().flatten().enumerate() {
        let field = format!("reservedMemory[{index}]");
        let limits = node.limits.clone().unwrap_or_default();
        found.require(!limits.is_empty(), &field, || "needs limits".to_owned());
        found.at_least(&format!("{field}.numaNode"), node.numa_node, 0);
        for (resource, amount) in &limits {
            let field = format!("{field}.limits.{resource}");
            let known = resource == "memory" || resource.starts_with("hugepages-");
            found.require(known, &field, || "must be memory or hugepages-<size>".to_owned());
            let positive = Quantity::parse(amount).is_ok_and(Quantity::is_positive);
            found.require(positive, &field, || {
                format!("must be a quantity greater than 0, got {amount:?}")
            });
        }
    }
}
