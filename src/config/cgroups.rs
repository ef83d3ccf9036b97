//! The configuration of the node's cgroups. Pure.

use super::feature_gates::FeatureGate;
use super::kubelet_configuration::KubeletConfiguration;
use super::values::some_text;
use crate::model::Quantity;
use crate::node::node_status::resources;
use crate::resources::cm::resource_config::NodeAmounts;
use crate::resources::cm::{CgroupDriver, CgroupName, CgroupsConfig, ReservedCgroup};
use std::collections::BTreeMap;

/// Converts a validated configuration with defaults.
pub(super) fn cgroups(
    config: &KubeletConfiguration,
    runtime: Option<&str>,
    gate: impl Fn(FeatureGate) -> bool,
) -> CgroupsConfig {
    let cpus = some_text(&config.reserved_system_cpus);
    let cpus = cpus.and_then(|list| resources::cpu_count(&list));
    let mut system = amounts(config.system_reserved.as_ref());
    let mut kube = amounts(config.kube_reserved.as_ref());
    if let Some(cpus) = cpus.filter(|cpus| *cpus > 0) {
        system.milli_cpu = Some(cpus.saturating_mul(1000));
        kube.milli_cpu = None;
    }
    let list = config.enforce_node_allocatable.as_deref();
    let enforced = |name: &str| list.unwrap_or_default().iter().any(|entry| entry == name);
    let mut reserved_cgroups = Vec::new();
    for (entry, name, what, only_compressible) in [
        ("system-reserved", "system", "System Reserved", false),
        ("kube-reserved", "kube", "Kube Reserved", false),
        ("system-reserved-compressible", "system", "System Reserved Compressible", true),
        ("kube-reserved-compressible", "kube", "Kube Reserved Compressible", true),
    ] {
        let (cgroup, amounts) = if name == "system" {
            (&config.system_reserved_cgroup, &system)
        } else {
            (&config.kube_reserved_cgroup, &kube)
        };
        if enforced(entry) {
            reserved_cgroups.push(ReservedCgroup {
                what,
                name,
                cgroup: cgroup.clone().unwrap_or_default(),
                amounts: amounts.clone(),
                only_compressible,
            });
        }
    }
    let percent = config.qos_reserved.as_ref().and_then(|map| map.get("memory"));
    let percent = percent.and_then(|text| text.strip_suffix('%')?.parse().ok());
    let policy = config.memory_reservation_policy.as_deref();
    CgroupsConfig {
        per_qos: config.cgroups_per_qos.unwrap_or(true),
        root: some_text(&config.cgroup_root).unwrap_or_else(|| "/".to_owned()),
        driver: match config.cgroup_driver.as_deref() {
            Some("systemd") => CgroupDriver::Systemd,
            _ => CgroupDriver::Cgroupfs,
        },
        enforce_pods: enforced("pods"),
        reserved_amounts: [system, kube],
        reserved_cgroups,
        pod_pids: config.pod_pids_limit.filter(|limit| *limit > 0),
        memory_qos: gate(FeatureGate::MemoryQos),
        tiered_reservation: policy == Some("TieredReservation"),
        kubelet: some_text(&config.kubelet_cgroups).and_then(|path| cgroup(&path)),
        protect_kernel_defaults: config.protect_kernel_defaults.unwrap_or_default(),
        system: some_text(&config.system_cgroups).and_then(|path| cgroup(&path)),
        runtime: runtime.filter(|path| !path.is_empty()).and_then(cgroup),
        qos_reserved_percent: percent.filter(|_| gate(FeatureGate::QosReserved)),
    }
}

/// The path of a cgroup in the kernel's form, for both drivers; `None` if it is invalid.
pub(super) fn cgroup(path: &str) -> Option<String> {
    let name = CgroupName::of_cgroupfs(path);
    let path = name.path(CgroupDriver::Cgroupfs).ok()?;
    Some(path.to_string())
}

/// Upstream's warning about cgroup settings that contradict each other.
pub(super) fn warning(config: &KubeletConfiguration) -> Option<String> {
    let kubelet = some_text(&config.kubelet_cgroups)?;
    let reserved = some_text(&config.kube_reserved_cgroup)?;
    let text = "unsupported configuration:KubeletCgroups is not within KubeReservedCgroup";
    (!kubelet.starts_with(&reserved)).then(|| text.to_owned())
}

fn amounts(map: Option<&BTreeMap<String, String>>) -> NodeAmounts {
    let amount = |name: &str| Quantity::parse(map?.get(name)?).ok();
    NodeAmounts {
        milli_cpu: amount("cpu").map(Quantity::milli_value),
        memory: amount("memory").map(Quantity::value),
        pids: amount("pid").map(Quantity::value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> CgroupsConfig {
        let mut config: KubeletConfiguration = serde_yaml::from_str(text).unwrap();
        super::super::defaults::apply(&mut config);
        cgroups(&config, Some("runtime/"), |gate| gate == FeatureGate::MemoryQos)
    }

    #[test]
    fn defaults_are_those_of_upstream() {
        let config = of("{}");
        let expected = CgroupsConfig {
            per_qos: true,
            root: "/".into(),
            enforce_pods: true,
            memory_qos: true,
            runtime: Some("/runtime".into()),
            ..CgroupsConfig::default()
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn cgroups_of_the_kubelet_and_the_system_have_plain_paths() {
        let config = of("{kubeletCgroups: kube//kubelet/, systemCgroups: /system, cgroupRoot: /}");
        assert_eq!(config.kubelet.as_deref(), Some("/kube/kubelet"));
        assert_eq!(config.system.as_deref(), Some("/system"));
        let config = of("{kubeletCgroups: \"\", systemCgroups: \"\"}");
        assert_eq!((config.kubelet, config.system), (None, None));
        assert_eq!(cgroup("/a/../b"), None);
    }

    #[test]
    fn a_kubelet_outside_of_what_is_reserved_for_it_is_warned_of() {
        for (text, warns) in [
            ("{kubeletCgroups: /kube/kubelet, kubeReservedCgroup: /kube}", false),
            ("{kubeletCgroups: /kubelet, kubeReservedCgroup: /kube/x}", true),
            ("{kubeletCgroups: /kubelet}", false),
            ("{kubeReservedCgroup: /kube}", false),
        ] {
            let config: KubeletConfiguration = serde_yaml::from_str(text).unwrap();
            assert_eq!(warning(&config).is_some(), warns, "{text}");
        }
    }

    #[test]
    fn what_is_reserved_is_found_with_its_cgroup() {
        let config = of("
cgroupRoot: /x
cgroupDriver: systemd
podPidsLimit: 100
qosReserved: {memory: 50%}
memoryReservationPolicy: TieredReservation
systemReserved: {cpu: 200m, memory: 1Gi, pid: \"1000\", ephemeral-storage: 1Gi}
kubeReserved: {cpu: 100m}
systemReservedCgroup: /system
kubeReservedCgroup: /kube
enforceNodeAllocatable: [pods, kube-reserved-compressible, system-reserved]
");
        let system = NodeAmounts { milli_cpu: Some(200), memory: Some(1 << 30), pids: Some(1000) };
        let kube = NodeAmounts { milli_cpu: Some(100), ..NodeAmounts::default() };
        let reserved = |what, name, amounts: &NodeAmounts, only_compressible| ReservedCgroup {
            what,
            name,
            cgroup: format!("/{name}"),
            amounts: amounts.clone(),
            only_compressible,
        };
        assert_eq!(
            config.reserved_cgroups,
            [
                reserved("System Reserved", "system", &system, false),
                reserved("Kube Reserved Compressible", "kube", &kube, true),
            ]
        );
        assert_eq!(config.reserved_amounts, [system, kube]);
        assert_eq!((config.root.as_str(), config.driver), ("/x", CgroupDriver::Systemd));
        assert_eq!(config.pod_pids, Some(100));
        assert!(config.tiered_reservation && config.enforce_pods);
        assert_eq!(config.qos_reserved_percent, None, "its gate is off");
        let by_number = of(
            "reservedSystemCPUs: 0-1\nsystemReserved: {memory: 1Gi}\nkubeReserved: {cpu: 100m}\n",
        );
        let [system, kube] = by_number.reserved_amounts;
        assert_eq!((system.milli_cpu, kube.milli_cpu), (Some(2000), None));
    }
}
