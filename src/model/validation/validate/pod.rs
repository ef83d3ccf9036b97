//! Validates pod-level fields.

use super::{Errors, Path, containers, dns, metadata, names, resources, security, text, volumes};
use crate::model::validation::FieldError;
use k8s_openapi::api::core::v1::{Pod, PodSpec, Toleration};
use std::net::IpAddr;

/// Maximum length of the kernel's host name, in bytes.
const MAX_HOSTNAME: usize = 64;

/// Validates a defaulted pod by the API's rules for creation. Empty if it is valid.
pub fn validate_pod(pod: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::default();
    metadata::validate(&pod.metadata, &mut errors);
    let path = Path::root("spec");
    match &pod.spec {
        Some(spec) => {
            validate_spec(spec, &path, &mut errors);
            security::app_armor_annotations(&pod.metadata, spec, &mut errors);
            security::app_armor_agrees(&pod.metadata, spec, &path, &mut errors);
        }
        None => errors.required(&path, ""),
    }
    errors.into_vec()
}

fn validate_spec(spec: &PodSpec, path: &Path<'_>, errors: &mut Errors) {
    let volumes = volumes::validate(spec, &path.child("volumes"), errors);
    containers::validate(spec, &volumes, path, errors);
    if spec.ephemeral_containers.as_ref().is_some_and(|list| !list.is_empty()) {
        errors.forbidden(&path.child("ephemeralContainers"), "cannot be set on create");
    }
    resources::validate_pod(spec, &path.child("resources"), errors);
    enumerations(spec, path, errors);
    numbers(spec, path, errors);
    hostnames(spec, path, errors);
    dns::validate(spec, path, errors);
    security::validate_pod(spec, path, errors);
    if let Some(selector) = &spec.node_selector {
        metadata::labels(selector, &path.child("nodeSelector"), errors);
    }
    for (index, toleration) in spec.tolerations.iter().flatten().enumerate() {
        let list = path.child("tolerations");
        validate_toleration(toleration, &list.index(index), errors);
    }
    if spec.scheduling_gates.as_ref().is_some_and(|list| !list.is_empty()) {
        let detail = "a pod that has a node may not have scheduling gates";
        errors.forbidden(&path.child("schedulingGates"), detail);
    }
    for (index, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let list = path.child("readinessGates");
        let at = list.index(index);
        errors.check(&at.child("conditionType"), &gate.condition_type, names::qualified);
    }
}

fn enumerations(spec: &PodSpec, path: &Path<'_>, errors: &mut Errors) {
    let policy = spec.restart_policy.as_deref();
    if policy.is_none_or(str::is_empty) {
        errors.required(&path.child("restartPolicy"), "");
    } else {
        let values = ["Always", "OnFailure", "Never"];
        errors.one_of(&path.child("restartPolicy"), policy, &values);
    }
    errors.one_of(
        &path.child("preemptionPolicy"),
        spec.preemption_policy.as_deref(),
        &["PreemptLowerPriority", "Never"],
    );
    if let Some(os) = &spec.os {
        let os_path = path.child("os");
        let name = Some(os.name.as_str());
        errors.one_of(&os_path.child("name"), name, &["linux", "windows"]);
    }
    if let Some(class) = &spec.runtime_class_name {
        errors.check(&path.child("runtimeClassName"), class, names::dns_subdomain);
    }
    for (field, name) in [
        ("priorityClassName", &spec.priority_class_name),
        ("serviceAccountName", &spec.service_account_name),
    ] {
        errors.check_optional(&path.child(field), text(name.as_ref()), names::dns_subdomain);
    }
}

fn numbers(spec: &PodSpec, path: &Path<'_>, errors: &mut Errors) {
    let max = i64::from(i32::MAX);
    if let Some(seconds) = spec.active_deadline_seconds
        && !(1..=max).contains(&seconds)
    {
        let detail = format!("must be between 1 and {max}, inclusive");
        errors.invalid_raw(&path.child("activeDeadlineSeconds"), seconds, detail);
    }
}

fn hostnames(spec: &PodSpec, path: &Path<'_>, errors: &mut Errors) {
    for (field, name) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        errors.check_optional(&path.child(field), text(name.as_ref()), names::dns_label);
    }
    if let Some(name) = &spec.hostname_override {
        hostname_override(spec, name, &path.child("hostnameOverride"), errors);
    }
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let list = path.child("hostAliases");
        let at = list.index(index);
        if alias.ip.parse::<IpAddr>().is_err() {
            errors.invalid(&at.child("ip"), &alias.ip, "must be a valid IP address");
        }
        for (index, name) in alias.hostnames.iter().flatten().enumerate() {
            let list = at.child("hostnames");
            errors.check(&list.index(index), name, names::dns_subdomain);
        }
    }
}

/// Validates `hostnameOverride`: it must be valid for the kernel, and no other field may set the host name.
fn hostname_override(spec: &PodSpec, name: &str, path: &Path<'_>, errors: &mut Errors) {
    errors.check(path, name, names::dns_subdomain);
    if name.len() > MAX_HOSTNAME {
        errors.too_long(path, MAX_HOSTNAME);
    }
    for (field, given) in
        [("hostNetwork", spec.host_network), ("setHostnameAsFQDN", spec.set_hostname_as_fqdn)]
    {
        if given == Some(true) {
            errors.forbidden(path, format!("may not be specified when {field} is true"));
        }
    }
}

fn validate_toleration(toleration: &Toleration, path: &Path<'_>, errors: &mut Errors) {
    let key = text(toleration.key.as_ref());
    let operator = text(toleration.operator.as_ref());
    let value = text(toleration.value.as_ref());
    let effect = text(toleration.effect.as_ref());
    errors.check_optional(&path.child("key"), key, names::qualified);
    if key.is_empty() && operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty";
        errors.invalid(&path.child("operator"), operator, detail);
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.invalid(&path.child("effect"), effect, detail);
    }
    match operator {
        "Equal" | "" => errors.check(&path.child("value"), value, names::label_value),
        "Exists" if !value.is_empty() => {
            let detail = "value must be empty when `operator` is 'Exists'";
            errors.invalid(&path.child("value"), value, detail);
        }
        "Exists" => {}
        other => errors.unsupported(&path.child("operator"), other, &["Equal", "Exists"]),
    }
    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    if !effect.is_empty() {
        errors.one_of(&path.child("effect"), Some(effect), &effects);
    }
}
