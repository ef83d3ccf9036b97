//! Validates containers of all kinds.

use super::probes::{port_number, validate_hook, validate_probe};
use super::rules::{pull_policy, unique};
use super::volumes::validate_mounts;
use super::{Errors, Path, env, names, resources, security, text};
use crate::model::ProbeKind;
use crate::model::validation::signals;
use k8s_openapi::api::core::v1::{Container, ContainerPort, ContainerRestartRule, PodSpec};
use std::collections::HashSet;
use std::net::IpAddr;

const RESTART_POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];
/// Maximum number of restart rules per container.
const MAX_RESTART_RULES: usize = 20;
/// Maximum number of exit codes per rule.
const MAX_EXIT_CODES: usize = 255;

/// Validates regular and init containers; `volumes` are the names of the pod's volumes.
pub(super) fn validate(
    spec: &PodSpec,
    volumes: &HashSet<&str>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let list = path.child("containers");
    if spec.containers.is_empty() {
        errors.required(&list, "");
    }
    let mut seen = HashSet::new();
    let mut host_ports = HashSet::new();
    for (index, container) in spec.containers.iter().enumerate() {
        let at = list.index(index);
        unique(&mut seen, &container.name, &at.child("name"), errors);
        validate_container(spec, container, volumes, &at, errors);
        lifecycle(spec, container, &at, errors);
        host_port_conflicts(container, &mut host_ports, &at, errors);
    }
    let list = path.child("initContainers");
    for (index, container) in spec.init_containers.iter().flatten().enumerate() {
        let at = list.index(index);
        unique(&mut seen, &container.name, &at.child("name"), errors);
        validate_container(spec, container, volumes, &at, errors);
        match container.restart_policy.as_deref() {
            Some("Always") => {
                lifecycle(spec, container, &at, errors);
                host_port_conflicts(container, &mut host_ports, &at, errors);
            }
            _ => forbid_lifecycle(container, &at, errors),
        }
    }
}

fn validate_container(
    spec: &PodSpec,
    container: &Container,
    volumes: &HashSet<&str>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    errors.check_required(&path.child("name"), &container.name, names::dns_label);
    let image = text(container.image.as_ref());
    if image.is_empty() {
        errors.required(&path.child("image"), "");
    } else if image.trim() != image {
        let detail = "must not have leading or trailing whitespace";
        errors.invalid(&path.child("image"), image, detail);
    }
    enumerations(container, path, errors);
    let host_network = spec.host_network == Some(true);
    ports(container, host_network, &path.child("ports"), errors);
    env::validate(spec, container, path, errors);
    validate_mounts(container, volumes, path, errors);
    if let Some(wanted) = &container.resources {
        let claims = spec.resource_claims.as_deref().unwrap_or_default();
        resources::validate(wanted, claims, &path.child("resources"), errors);
    }
    security::validate_container(spec, container, &path.child("securityContext"), errors);
}

fn enumerations(container: &Container, path: &Path<'_>, errors: &mut Errors) {
    let policy = text(container.image_pull_policy.as_ref());
    pull_policy(policy, &path.child("imagePullPolicy"), errors);
    let policy = text(container.termination_message_policy.as_ref());
    let at = path.child("terminationMessagePolicy");
    match policy {
        "" => errors.required(&at, ""),
        _ => errors.one_of(&at, Some(policy), &["File", "FallbackToLogsOnError"]),
    }
    let policy = container.restart_policy.as_deref();
    errors.one_of(&path.child("restartPolicy"), policy, &RESTART_POLICIES);
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    if !rules.is_empty() && policy.is_none() {
        let detail = "must specify restartPolicy when restart rules are used";
        errors.required(&path.child("restartPolicy"), detail);
    }
    restart_rules(rules, &path.child("restartPolicyRules"), errors);
}

fn restart_rules(rules: &[ContainerRestartRule], path: &Path<'_>, errors: &mut Errors) {
    if rules.len() > MAX_RESTART_RULES {
        errors.too_many(path, rules.len(), MAX_RESTART_RULES);
    }
    for (index, rule) in rules.iter().enumerate() {
        let at = path.index(index);
        let actions = ["Restart", "RestartAllContainers"];
        errors.one_of(&at.child("action"), Some(&rule.action), &actions);
        let at = at.child("exitCodes");
        let Some(codes) = &rule.exit_codes else {
            errors.required(&at, "must be specified");
            continue;
        };
        let operator = Some(codes.operator.as_str());
        errors.one_of(&at.child("operator"), operator, &["In", "NotIn"]);
        let count = codes.values.as_ref().map_or(0, Vec::len);
        if count > MAX_EXIT_CODES {
            errors.too_many(&at.child("values"), count, MAX_EXIT_CODES);
        }
    }
}

fn lifecycle(spec: &PodSpec, container: &Container, path: &Path<'_>, errors: &mut Errors) {
    for (field, probe, role) in [
        ("livenessProbe", &container.liveness_probe, ProbeKind::Liveness),
        ("readinessProbe", &container.readiness_probe, ProbeKind::Readiness),
        ("startupProbe", &container.startup_probe, ProbeKind::Startup),
    ] {
        if let Some(probe) = probe {
            validate_probe(probe, role, &path.child(field), errors);
        }
    }
    let Some(lifecycle) = &container.lifecycle else {
        return;
    };
    let at = path.child("lifecycle");
    let grace = spec.termination_grace_period_seconds;
    if let Some(hook) = &lifecycle.post_start {
        validate_hook(hook, grace, &at.child("postStart"), errors);
    }
    if let Some(hook) = &lifecycle.pre_stop {
        validate_hook(hook, grace, &at.child("preStop"), errors);
    }
    if let Some(signal) = &lifecycle.stop_signal {
        stop_signal(spec, signal, &at.child("stopSignal"), errors);
    }
}

/// Validates a stop signal, whose name depends on the pod's operating system.
fn stop_signal(spec: &PodSpec, signal: &str, path: &Path<'_>, errors: &mut Errors) {
    match spec.os.as_ref().map(|os| os.name.as_str()) {
        None => {
            let detail = "may not be set for containers with empty `spec.os.name`";
            errors.forbidden(path, detail);
        }
        Some("linux") => errors.one_of(path, Some(signal), &signals::LINUX),
        Some("windows") => errors.one_of(path, Some(signal), &["SIGKILL", "SIGTERM"]),
        Some(_) => {}
    }
}

/// Rejects probes and hooks of init containers that are not sidecars.
fn forbid_lifecycle(container: &Container, path: &Path<'_>, errors: &mut Errors) {
    for (field, given) in [
        ("lifecycle", container.lifecycle.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
    ] {
        if given {
            let detail = "may not be set for init containers without restartPolicy=Always";
            errors.forbidden(&path.child(field), detail);
        }
    }
}

fn ports(container: &Container, host_network: bool, path: &Path<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let at = path.index(index);
        let name = text(port.name.as_ref());
        match names::port_name(name) {
            Some(wrong) if !name.is_empty() => errors.invalid(&at.child("name"), name, wrong),
            _ => unique(&mut seen, name, &at.child("name"), errors),
        }
        validate_port(port, host_network, &at, errors);
    }
}

fn validate_port(port: &ContainerPort, host_network: bool, path: &Path<'_>, errors: &mut Errors) {
    match port.container_port {
        0 => errors.required(&path.child("containerPort"), ""),
        number => port_number(number.into(), &path.child("containerPort"), errors),
    }
    let host_port = port.host_port.unwrap_or_default();
    let at = path.child("hostPort");
    if host_port != 0 {
        port_number(host_port.into(), &at, errors);
        if host_network && host_port != port.container_port {
            let detail = "must match `containerPort` when `hostNetwork` is true";
            errors.invalid_raw(&at, host_port, detail);
        }
    }
    let protocol = text(port.protocol.as_ref());
    match protocol {
        "" => errors.required(&path.child("protocol"), ""),
        _ => errors.one_of(&path.child("protocol"), Some(protocol), &["SCTP", "TCP", "UDP"]),
    }
    let ip = text(port.host_ip.as_ref());
    if !ip.is_empty() && ip.parse::<IpAddr>().is_err() {
        errors.invalid(&path.child("hostIP"), ip, "must be a valid IP address");
    }
}

fn host_port_conflicts<'a>(
    container: &'a Container,
    seen: &mut HashSet<(&'a str, &'a str, i32)>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let list = path.child("ports");
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let number = port.host_port.unwrap_or_default();
        let key = (text(port.protocol.as_ref()), text(port.host_ip.as_ref()), number);
        if number != 0 && !seen.insert(key) {
            let shown = format!("{}/{}/{}", key.0, key.1, key.2);
            let at = list.index(index);
            errors.duplicate(&at.child("hostPort"), &shown);
        }
    }
}
