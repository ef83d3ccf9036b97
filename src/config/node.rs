//! The configuration of the Node object, its status and lease, and of events. Pure.

use super::document::ConfigProblem;
use super::flags::Flags;
use super::kubelet_configuration::KubeletConfiguration;
use super::values::{count, some_text, time};
use crate::model::validation::{label_value, qualified};
use crate::node::NodeConfig;
use crate::node::event_sink::EventRate;
use crate::node::node_status::resources::{self, PodLimits, ReservedResources};
use crate::node::registration::RegistrationConfig;
use k8s_openapi::api::core::v1::Taint;
use std::collections::BTreeMap;

/// Labels in Kubernetes namespaces that a kubelet may set.
const ALLOWED_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// Namespaces in which a kubelet may set any label.
const ALLOWED_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Converts a validated configuration with defaults.
pub(super) fn node(config: &KubeletConfiguration, flags: &Flags) -> NodeConfig {
    NodeConfig {
        registration: RegistrationConfig {
            register: config.register_node.unwrap_or(true),
            labels: flags.node_labels.clone(),
            taints: taints(config),
            provider_id: some_text(&config.provider_id),
            external_cloud_provider: flags.cloud_provider.as_deref() == Some("external"),
            controller_attach: config.enable_controller_attach_detach.unwrap_or(true),
        },
        local_storage_isolation: config.local_storage_capacity_isolation.unwrap_or(true),
        update_period: time(config.node_status_update_frequency),
        report_period: time(config.node_status_report_frequency),
        lease_seconds: config.node_lease_duration_seconds.unwrap_or(40),
        max_images: config.node_status_max_images.and_then(|most| usize::try_from(most).ok()),
        pods: PodLimits {
            max_pods: count(config.max_pods),
            pods_per_core: count(config.pods_per_core),
        },
        reservation: reservation(config),
        events: EventRate { qps: count(config.event_record_qps), burst: count(config.event_burst) },
    }
}

fn taints(config: &KubeletConfiguration) -> Vec<Taint> {
    let taints = config.register_with_taints.iter().flatten();
    let taint = |taint: &super::kubelet_configuration::Taint| Taint {
        key: taint.key.clone().unwrap_or_default(),
        value: some_text(&taint.value),
        effect: taint.effect.clone().unwrap_or_default(),
        time_added: None,
    };
    taints.map(taint).collect()
}

/// `reservedSystemCPUs` replaces the amounts of CPU in `systemReserved` and `kubeReserved`.
fn reservation(config: &KubeletConfiguration) -> ReservedResources {
    let maps = [&config.system_reserved, &config.kube_reserved];
    let sum = |name: &str| {
        let amounts = maps.iter().filter_map(|map| map.as_ref());
        let amounts = amounts.map(|map| resources::quantity_or_zero(map, name));
        amounts.reduce(|sum, amount| sum.plus(amount))
    };
    let whole = |name: &str| sum(name).unwrap_or_default().value();
    let none = BTreeMap::new();
    let thresholds = config.eviction_hard.as_ref().unwrap_or(&none);
    let threshold = |signal: &str| resources::threshold(thresholds.get(signal)?);
    let reserved_cpus = some_text(&config.reserved_system_cpus);
    let reserved_cpus = reserved_cpus.and_then(|list| resources::cpu_count(&list));
    ReservedResources {
        milli_cpu: match reserved_cpus {
            Some(cpus) => cpus.saturating_mul(1000),
            None => sum("cpu").unwrap_or_default().milli_value(),
        },
        memory: whole("memory"),
        ephemeral_storage: whole("ephemeral-storage"),
        memory_threshold: threshold("memory.available"),
        storage_threshold: threshold("nodefs.available"),
    }
}

/// Invalid flags: labels that the API server would reject, and removed cloud providers.
pub(super) fn check(flags: &Flags, problems: &mut Vec<ConfigProblem>) {
    let labels = flags.node_labels.iter();
    let messages = labels.filter_map(|(name, value)| label_problem(name, value));
    problems.extend(messages.map(|message| ConfigProblem::of_flag("node-labels", message)));
    let provider = flags.cloud_provider.as_deref();
    if let Some(other) = provider.filter(|provider| !["", "external"].contains(provider)) {
        let message = format!("must be \"external\" or empty; got {other:?}");
        problems.push(ConfigProblem::of_flag("cloud-provider", message));
    }
}

fn label_problem(name: &str, value: &str) -> Option<String> {
    let (namespace, _) = name.split_once('/').unwrap_or(("", name));
    if qualified(name).is_some() {
        return Some(format!("{name:?} is not a label's name"));
    }
    if label_value(value).is_some() {
        return Some(format!("{name}: {value:?} is not a label's value"));
    }
    let below = |parent: &str| {
        let prefix = namespace.strip_suffix(parent);
        prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
    };
    let is_known = below("kubernetes.io") || below("k8s.io");
    let is_allowed = ALLOWED_LABELS.contains(&name)
        || ALLOWED_NAMESPACES.iter().any(|namespace| below(namespace));
    (is_known && !is_allowed).then(|| {
        format!(
            "unknown 'kubernetes.io' or 'k8s.io' label {name}: such must begin with an allowed prefix ({}) or be in \
             the specifically allowed set ({})",
            ALLOWED_NAMESPACES.join(", "),
            ALLOWED_LABELS.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_kubernetes_are_those_that_a_kubelet_may_set() {
        for (name, value, allowed) in [
            ("a", "b", true),
            ("example.com/role", "", true),
            ("node.kubernetes.io/role", "x", true),
            ("sub.node.kubernetes.io/role", "x", true),
            ("kubelet.kubernetes.io/x", "x", true),
            ("topology.kubernetes.io/zone", "z", true),
            ("kubernetes.io/role", "x", false),
            ("node-role.kubernetes.io/control-plane", "", false),
            ("a.k8s.io/x", "x", false),
            ("notkubernetes.io/x", "x", true),
            ("a/b/c", "x", false),
            ("/a", "x", false),
            ("-a", "x", false),
            ("a", "x y", false),
            ("a", &"x".repeat(64), false),
        ] {
            let problem = label_problem(name, value);
            assert_eq!(problem.is_none(), allowed, "{name}={value}: {problem:?}");
        }
    }
}
