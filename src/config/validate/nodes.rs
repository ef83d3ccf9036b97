//! Validates the settings of the node: reserved cgroups and CPUs, shutdown, taints, server and authorization.

use super::super::cgroups::cgroup;
use super::super::feature_gates::FeatureGate;
use super::{KubeletConfiguration, Violations};
use crate::base::GoDuration;
use crate::base::otel::Collector;
use crate::server::tls::TlsOptions;

pub(super) fn check(config: &KubeletConfiguration, found: &mut Violations) {
    enforced_reservations(config, found);
    reserved_cpus(config, found);
    shutdown(config, found);
    taints(config, found);
    server(config, found);
    system_containers(config, found);
}

/// As upstream. Further requirements are checked before processes are moved.
fn system_containers(config: &KubeletConfiguration, found: &mut Violations) {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let system = given(&config.system_cgroups);
    if system.is_some() && given(&config.cgroup_root).is_none() {
        found.add(
            "systemCgroups",
            "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified",
        );
    }
    for (field, path) in
        [("kubeletCgroups", given(&config.kubelet_cgroups)), ("systemCgroups", system)]
    {
        let Some(path) = path else { continue };
        match cgroup(&path).as_deref() {
            None => found.add(field, format!("{path:?} is not the path of a cgroup")),
            Some("/") if field == "systemCgroups" => {
                found.add(field, "system container cannot be root (\"/\")");
            }
            Some(_) => {}
        }
    }
}

fn enforced_reservations(config: &KubeletConfiguration, found: &mut Violations) {
    const FIELD: &str = "enforceNodeAllocatable";
    let list = config.enforce_node_allocatable.as_deref().unwrap_or_default();
    let has = |name: &str| list.iter().any(|entry| entry == name);
    let cgroup_of = |name: &str| {
        if name.starts_with("system") {
            ("systemReservedCgroup", &config.system_reserved_cgroup)
        } else {
            ("kubeReservedCgroup", &config.kube_reserved_cgroup)
        }
    };
    for (index, name) in list.iter().enumerate() {
        let field = format!("{FIELD}[{index}]");
        if list.iter().take(index).any(|earlier| earlier == name) {
            found.add(&field, format!("{name:?} is given twice"));
            continue;
        }
        match name.as_str() {
            "none" => {
                let alone = list.len() == 1;
                found.require(alone, &field, || "\"none\" must stand alone".to_owned());
                continue;
            }
            "pods" => {}
            "system-reserved"
            | "system-reserved-compressible"
            | "kube-reserved"
            | "kube-reserved-compressible" => {
                let (needed, cgroup) = cgroup_of(name);
                let given = cgroup.as_ref().is_some_and(|cgroup| !cgroup.is_empty());
                found.require(given, &field, || format!("{name:?} needs {needed}"));
            }
            _ => {
                found.add(
                    &field,
                    format!(
                        "must be pods, system-reserved, system-reserved-compressible, \
                         kube-reserved, kube-reserved-compressible or none; got {name:?}"
                    ),
                );
                continue;
            }
        }
        if config.cgroups_per_qos == Some(false) {
            found.add(&field, format!("{name:?} needs cgroupsPerQOS: true"));
        }
    }
    for kind in ["system-reserved", "kube-reserved"] {
        let compressible = format!("{kind}-compressible");
        if has(kind) && has(&compressible) {
            found.add(FIELD, format!("{kind:?} and {compressible:?} exclude each other"));
        }
    }
}

fn reserved_cpus(config: &KubeletConfiguration, found: &mut Violations) {
    let text = config.reserved_system_cpus.as_deref().unwrap_or_default();
    if text.is_empty() {
        return;
    }
    let valid = text.split(',').all(|range| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        matches!((low.parse::<u32>(), high.parse::<u32>()), (Ok(low), Ok(high)) if low <= high)
    });
    found.require(valid, "reservedSystemCPUs", || {
        format!("must be a list of CPUs such as 0-3,8; got {text:?}")
    });
    for cgroup in [&config.system_reserved_cgroup, &config.kube_reserved_cgroup] {
        if cgroup.as_ref().is_some_and(|cgroup| !cgroup.is_empty()) {
            let message = "cannot be used with systemReservedCgroup or kubeReservedCgroup";
            found.add("reservedSystemCPUs", message);
            break;
        }
    }
}

fn shutdown(config: &KubeletConfiguration, found: &mut Violations) {
    let total = config.shutdown_grace_period.unwrap_or_default();
    let critical = config.shutdown_grace_period_critical_pods.unwrap_or_default();
    for (field, period) in
        [("shutdownGracePeriod", total), ("shutdownGracePeriodCriticalPods", critical)]
    {
        let valid = period == GoDuration::default() || period >= GoDuration::from_secs(1);
        found.require(valid, field, || format!("must be 0s or at least 1s, got {period}"));
    }
    found.require(critical <= total, "shutdownGracePeriodCriticalPods", || {
        format!("must not exceed shutdownGracePeriod ({total}), got {critical}")
    });
    let by_priority = config.shutdown_grace_period_by_pod_priority.as_deref().unwrap_or_default();
    let gates = config.feature_gates.as_ref();
    for (gate, field, is_set) in [
        (FeatureGate::GracefulNodeShutdown, "shutdownGracePeriod", total > GoDuration::default()),
        (
            FeatureGate::GracefulNodeShutdownBasedOnPodPriority,
            "shutdownGracePeriodByPodPriority",
            !by_priority.is_empty(),
        ),
    ] {
        found.require(!is_set || gate.is_on(gates), field, || {
            format!("must not be set while feature gate {} is off", gate.name())
        });
    }
    if !by_priority.is_empty() && (total, critical) != Default::default() {
        let message = "cannot be used with shutdownGracePeriod";
        found.add("shutdownGracePeriodByPodPriority", message);
    }
    for (index, class) in by_priority.iter().enumerate() {
        let field = format!("shutdownGracePeriodByPodPriority[{index}].shutdownGracePeriodSeconds");
        found.at_least(&field, class.shutdown_grace_period_seconds, 0);
    }
}

fn taints(config: &KubeletConfiguration, found: &mut Violations) {
    for (index, taint) in config.register_with_taints.iter().flatten().enumerate() {
        let field = format!("registerWithTaints[{index}]");
        let key = taint.key.as_deref().unwrap_or_default();
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._/".contains(c);
        found.require(!key.is_empty() && key.chars().all(allowed), &field, || {
            format!("key {key:?} is not a valid taint key")
        });
        let effect = taint.effect.clone().unwrap_or_default();
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        found.one_of(&format!("{field}.effect"), Some(&effect), &effects);
        found
            .require(taint.time_added.is_none(), &field, || "timeAdded must not be set".to_owned());
    }
}

fn server(config: &KubeletConfiguration, found: &mut Violations) {
    let mode = config.authorization.as_ref().and_then(|section| section.mode.as_ref());
    found.one_of("authorization.mode", mode, &["AlwaysAllow", "Webhook"]);
    let versions = ["", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];
    found.one_of("tlsMinVersion", config.tls_min_version.as_ref(), &versions);
    let suites = config.tls_cipher_suites.as_deref().unwrap_or_default();
    let curves = config.tls_curve_preferences.as_deref().unwrap_or_default();
    for error in TlsOptions::of("", suites, curves).err().into_iter().flatten() {
        found.add(&error.field, error.message);
    }
    let given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if given(&config.tls_cert_file) != given(&config.tls_private_key_file) {
        let (field, other) = if given(&config.tls_cert_file) {
            ("tlsCertFile", "tlsPrivateKeyFile")
        } else {
            ("tlsPrivateKeyFile", "tlsCertFile")
        };
        found.add(field, format!("needs {other}"));
    }
    if config.enable_system_log_query == Some(true)
        && config.enable_system_log_handler == Some(false)
    {
        found.add("enableSystemLogQuery", "needs enableSystemLogHandler");
    }
    tracing(config, found);
}

fn tracing(config: &KubeletConfiguration, found: &mut Violations) {
    let Some(section) = &config.tracing else {
        return;
    };
    let rate = section.sampling_rate_per_million;
    found.in_range("tracing.samplingRatePerMillion", rate, 0, 1_000_000);
    let endpoint = section.endpoint.as_deref().unwrap_or_default();
    if let Some(Err(error)) = (!endpoint.is_empty()).then(|| endpoint.parse::<Collector>()) {
        found.add("tracing.endpoint", error.to_string());
    }
}
