//! The configuration of the CPU, memory and topology managers.

use super::feature_gates::FeatureGate;
use super::kubelet_configuration::KubeletConfiguration;
use super::values::some_text;
use crate::base::GoDuration;
use crate::model::Quantity;
use crate::resources::cpu::{CpuOptions, CpuSet, OptionGates};
use crate::resources::managers::ManagersConfig;
use crate::resources::memory::ReservedMemory;
use crate::resources::topology::{TopologyOptions, TopologyPolicy, TopologyScope};
use std::collections::BTreeMap;
use std::time::Duration;

/// Converts a validated configuration with defaults.
pub(super) fn managers(config: &KubeletConfiguration) -> ManagersConfig {
    let period = config.cpu_manager_reconcile_period;
    let is_static = config.memory_manager_policy.as_deref() == Some("Static");
    let scope = config.topology_manager_scope.as_deref();
    let cpus = some_text(&config.reserved_system_cpus).unwrap_or_default();
    let gates = config.feature_gates.as_ref();
    ManagersConfig {
        cpu: cpu_options(config).unwrap_or_default(),
        reserved_cpus: CpuSet::parse(&cpus).unwrap_or_default(),
        retry_after: period.map_or(Duration::from_secs(10), GoDuration::to_std),
        no_cpu_quota_with_exclusive_cpus: FeatureGate::DisableCpuQuotaWithExclusiveCpus
            .is_on(gates),
        memory: is_static.then(|| reserved_memory(config)),
        topology_policy: topology_policy(config),
        topology_scope: scope.and_then(TopologyScope::parse).unwrap_or_default(),
        topology_options: topology_options(config).unwrap_or_default(),
        pod_level: FeatureGate::PodLevelResourceManagers.is_on(gates),
    }
}

/// Invalid options, with their fields; the texts are upstream's.
pub(super) fn problems(config: &KubeletConfiguration) -> Vec<(&'static str, String)> {
    let cpu = cpu_options(config).map(drop);
    let topology = topology_options(config).map(drop);
    [("cpuManagerPolicyOptions", cpu), ("topologyManagerPolicyOptions", topology)]
        .into_iter()
        .filter_map(|(field, checked)| Some((field, checked.err()?)))
        .collect()
}

fn cpu_options(config: &KubeletConfiguration) -> Result<Option<CpuOptions>, String> {
    let none = BTreeMap::new();
    let options = config.cpu_manager_policy_options.as_ref().unwrap_or(&none);
    if config.cpu_manager_policy.as_deref() != Some("static") {
        let list: Vec<_> = options.iter().map(|(name, value)| format!("{name}:{value}")).collect();
        return if list.is_empty() {
            Ok(None)
        } else {
            Err(format!("None policy: received unsupported options=map[{}]", list.join(" ")))
        };
    }
    let gates = config.feature_gates.as_ref();
    let gates = OptionGates {
        alpha: FeatureGate::CpuManagerPolicyAlphaOptions.is_on(gates),
        beta: FeatureGate::CpuManagerPolicyBetaOptions.is_on(gates),
    };
    CpuOptions::parse(options, gates).map(Some)
}

fn topology_policy(config: &KubeletConfiguration) -> TopologyPolicy {
    let name = config.topology_manager_policy.as_deref();
    name.and_then(TopologyPolicy::parse).unwrap_or_default()
}

/// As upstream, the options are ignored without a policy.
fn topology_options(config: &KubeletConfiguration) -> Result<TopologyOptions, String> {
    match &config.topology_manager_policy_options {
        Some(options) if topology_policy(config) != TopologyPolicy::None => {
            TopologyOptions::parse(options)
        }
        _ => Ok(TopologyOptions::default()),
    }
}

fn reserved_memory(config: &KubeletConfiguration) -> ReservedMemory {
    let entries = config.reserved_memory.iter().flatten();
    let entries = entries.map(|entry| {
        let limits = entry.limits.iter().flatten();
        let limits = limits.filter_map(|(resource, amount)| {
            let amount = Quantity::parse(amount).ok()?;
            Some((resource.clone(), amount))
        });
        let node = u32::try_from(entry.numa_node.unwrap_or_default()).unwrap_or_default();
        (node, limits.collect())
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> KubeletConfiguration {
        let mut config: KubeletConfiguration = serde_yaml::from_str(text).unwrap();
        super::super::defaults::apply(&mut config);
        config
    }

    #[test]
    fn without_settings_nothing_is_managed() {
        let expected = ManagersConfig {
            retry_after: Duration::from_secs(10),
            no_cpu_quota_with_exclusive_cpus: true,
            ..ManagersConfig::default()
        };
        assert_eq!(managers(&parse("{}")), expected);
    }

    #[test]
    fn policies_and_their_options_are_read() {
        let config = parse(
            "
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: \"true\", distribute-cpus-across-numa: \"true\"}
cpuManagerReconcilePeriod: 5s
reservedSystemCPUs: 0-1
memoryManagerPolicy: Static
reservedMemory: [{numaNode: 1, limits: {memory: 1Gi}}]
topologyManagerPolicy: restricted
topologyManagerScope: pod
topologyManagerPolicyOptions: {prefer-closest-numa-nodes: \"true\"}
featureGates: {DisableCPUQuotaWithExclusiveCPUs: false}
",
        );
        assert_eq!(problems(&config), []);
        let managers = managers(&config);
        let options = managers.cpu.unwrap();
        assert!(
            options.full_pcpus_only && options.distribute_across_numa && !options.align_by_socket
        );
        assert_eq!(managers.reserved_cpus.to_string(), "0-1");
        assert_eq!(managers.retry_after, Duration::from_secs(5));
        let memory = Quantity::parse("1Gi").unwrap();
        assert_eq!(managers.memory, Some(vec![(1, [("memory".to_owned(), memory)].into())]));
        assert_eq!(managers.topology_policy, TopologyPolicy::Restricted);
        assert_eq!(managers.topology_scope, TopologyScope::Pod);
        assert!(
            managers.topology_options.prefer_closest && !managers.no_cpu_quota_with_exclusive_cpus
        );
    }

    #[test]
    fn options_that_cannot_be_used_are_problems() {
        for (text, field, message) in [
            (
                "cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}",
                "cpuManagerPolicyOptions",
                "None policy: received unsupported options=map[full-pcpus-only:true]",
            ),
            (
                "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {align-by-socket: \"true\"}",
                "cpuManagerPolicyOptions",
                "CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided",
            ),
            (
                "cpuManagerPolicy: static\nfeatureGates: {AllBeta: false}\ncpuManagerPolicyOptions: {distribute-cpus-across-numa: \"true\"}",
                "cpuManagerPolicyOptions",
                "CPU Manager Policy Beta-level Options not enabled, but option \"distribute-cpus-across-numa\" provided",
            ),
            (
                "topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {x: \"1\"}",
                "topologyManagerPolicyOptions",
                "unknown Topology Manager Policy option: \"x\"",
            ),
        ] {
            assert_eq!(problems(&parse(text)), [(field, message.to_owned())]);
        }
        let alpha = "cpuManagerPolicy: static\nfeatureGates: {AllAlpha: true}\ncpuManagerPolicyOptions: {align-by-socket: \"1\"}";
        assert_eq!(problems(&parse(alpha)), []);
        assert_eq!(problems(&parse("topologyManagerPolicyOptions: {x: \"1\"}")), []);
    }
}
