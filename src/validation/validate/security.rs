//! Rules for security contexts and shared namespaces.

use super::{Errors, Path, names, text};
use crate::model::keys;
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, PodSecurityContext, PodSpec, SeccompProfile, Sysctl,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::HashSet;

const MAX_ID: i64 = i32::MAX as i64;

/// The former way to name AppArmor profiles: for a container of this pod, and in one of three forms.
pub(super) fn app_armor_annotations(meta: &ObjectMeta, spec: &PodSpec, errors: &mut Errors) {
    let metadata = Path::root("metadata");
    let path = metadata.child("annotations");
    for (key, profile) in meta.annotations.iter().flatten() {
        let Some(name) = key.strip_prefix(keys::APP_ARMOR_PREFIX) else {
            continue;
        };
        let init = spec.init_containers.iter().flatten();
        if !spec.containers.iter().chain(init).any(|c| c.name == name) {
            errors.invalid(&path.key(key), name, "container not found");
        }
        let known = matches!(profile.as_str(), "" | "runtime/default" | "unconfined");
        let local = profile.strip_prefix("localhost/");
        if !known && local.is_none_or(str::is_empty) {
            let detail = format!("invalid AppArmor profile name: {profile:?}");
            errors.invalid(&path.key(key), profile, detail);
        }
    }
}

pub(super) fn validate_pod(spec: &PodSpec, path: &Path<'_>, errors: &mut Errors) {
    if spec.host_pid == Some(true) && spec.share_process_namespace == Some(true) {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid_raw(&path.child("shareProcessNamespace"), true, detail);
    }
    if spec.host_users == Some(false) {
        for (field, shared) in [
            ("hostNetwork", spec.host_network),
            ("hostPID", spec.host_pid),
            ("hostIPC", spec.host_ipc),
        ] {
            if shared == Some(true) {
                errors.forbidden(&path.child(field), "when `hostUsers` is false");
            }
        }
    }
    let Some(context) = &spec.security_context else {
        return;
    };
    let path = path.child("securityContext");
    ids(context, &path, errors);
    for (field, value, values) in [
        (
            "fsGroupChangePolicy",
            &context.fs_group_change_policy,
            ["Always", "OnRootMismatch"],
        ),
        (
            "supplementalGroupsPolicy",
            &context.supplemental_groups_policy,
            ["Merge", "Strict"],
        ),
        (
            "seLinuxChangePolicy",
            &context.se_linux_change_policy,
            ["MountOption", "Recursive"],
        ),
    ] {
        errors.one_of(&path.child(field), value.as_deref(), &values);
    }
    if let Some(profile) = &context.seccomp_profile {
        seccomp(profile, &path.child("seccompProfile"), errors);
    }
    if let Some(profile) = &context.app_armor_profile {
        app_armor(profile, &path.child("appArmorProfile"), errors);
    }
    let sysctls = context.sysctls.as_deref().unwrap_or_default();
    validate_sysctls(spec, sysctls, &path.child("sysctls"), errors);
}

fn ids(context: &PodSecurityContext, path: &Path<'_>, errors: &mut Errors) {
    id(&path.child("runAsUser"), context.run_as_user, errors);
    id(&path.child("runAsGroup"), context.run_as_group, errors);
    id(&path.child("fsGroup"), context.fs_group, errors);
    for (index, group) in context.supplemental_groups.iter().flatten().enumerate() {
        let list = path.child("supplementalGroups");
        id(&list.index(index), Some(*group), errors);
    }
}

fn id(path: &Path<'_>, value: Option<i64>, errors: &mut Errors) {
    if let Some(value) = value
        && !(0..=MAX_ID).contains(&value)
    {
        errors.invalid_raw(
            path,
            value,
            format!("must be between 0 and {MAX_ID}, inclusive"),
        );
    }
}

fn seccomp(profile: &SeccompProfile, path: &Path<'_>, errors: &mut Errors) {
    let values = ["Localhost", "RuntimeDefault", "Unconfined"];
    let local = text(profile.localhost_profile.as_ref());
    local_profile(&profile.type_, &values, local, path, errors);
    if local.starts_with('/') || names::has_backstep(local) {
        let detail = "must be a relative path without '..'";
        errors.invalid(&path.child("localhostProfile"), local, detail);
    }
}

fn app_armor(profile: &AppArmorProfile, path: &Path<'_>, errors: &mut Errors) {
    let values = ["Localhost", "RuntimeDefault", "Unconfined"];
    let local = text(profile.localhost_profile.as_ref());
    local_profile(&profile.type_, &values, local, path, errors);
    if local.trim() != local {
        let detail = "must not be padded with whitespace";
        errors.invalid(&path.child("localhostProfile"), local, detail);
    }
}

fn local_profile(kind: &str, values: &[&str], local: &str, path: &Path<'_>, errors: &mut Errors) {
    match kind {
        "" => errors.required(&path.child("type"), "type is required"),
        _ => errors.one_of(&path.child("type"), Some(kind), values),
    }
    let at = path.child("localhostProfile");
    if kind == "Localhost" && local.is_empty() {
        errors.required(&at, "must be set when type is Localhost");
    }
    if kind != "Localhost" && !local.is_empty() {
        errors.invalid(&at, local, "can only be set when type is Localhost");
    }
}

fn validate_sysctls(spec: &PodSpec, sysctls: &[Sysctl], path: &Path<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (index, sysctl) in sysctls.iter().enumerate() {
        let at = path.index(index);
        let name = sysctl.name.replace('/', ".");
        let at_name = at.child("name");
        if name.is_empty() {
            errors.required(&at_name, "");
            continue;
        }
        if !is_sysctl(&name) {
            errors.invalid(
                &at_name,
                &sysctl.name,
                "must be a sysctl name, e.g. net.core.somaxconn",
            );
        }
        let shared = |on: Option<bool>, prefixes: &[&str]| {
            on == Some(true) && prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        if shared(spec.host_network, &["net."]) {
            let detail = "may not be specified when 'hostNetwork' is true";
            errors.invalid(&at_name, &sysctl.name, detail);
        }
        if shared(
            spec.host_ipc,
            &["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."],
        ) {
            let detail = "may not be specified when 'hostIPC' is true";
            errors.invalid(&at_name, &sysctl.name, detail);
        }
        if !seen.insert(name) {
            errors.duplicate(&at_name, &sysctl.name);
        }
    }
}

fn is_sysctl(name: &str) -> bool {
    let part = |part: &str| {
        let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        part.starts_with(inside)
            && part.ends_with(inside)
            && part.chars().all(|c| inside(c) || matches!(c, '-' | '_'))
    };
    name.len() <= 253 && name.split('.').all(part)
}

/// `path` is the container's `securityContext`.
pub(super) fn validate_container(
    spec: &PodSpec,
    container: &Container,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let Some(context) = &container.security_context else {
        return;
    };
    id(&path.child("runAsUser"), context.run_as_user, errors);
    id(&path.child("runAsGroup"), context.run_as_group, errors);
    let proc_mount = context.proc_mount.as_deref();
    errors.one_of(
        &path.child("procMount"),
        proc_mount,
        &["Default", "Unmasked"],
    );
    if proc_mount == Some("Unmasked") && spec.host_users != Some(false) {
        let detail = "`hostUsers` must be false to use `Unmasked`";
        errors.invalid(&path.child("procMount"), "Unmasked", detail);
    }
    if let Some(profile) = &context.seccomp_profile {
        seccomp(profile, &path.child("seccompProfile"), errors);
    }
    if let Some(profile) = &context.app_armor_profile {
        app_armor(profile, &path.child("appArmorProfile"), errors);
    }
    if context.allow_privilege_escalation == Some(false) {
        if context.privileged == Some(true) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.invalid_raw(path, "privileged", detail);
        }
        let added = context
            .capabilities
            .iter()
            .flat_map(|c| c.add.iter().flatten());
        if added.into_iter().any(|name| name == "CAP_SYS_ADMIN") {
            let detail = "cannot set `allowPrivilegeEscalation` to false and add CAP_SYS_ADMIN";
            errors.invalid_raw(path, "CAP_SYS_ADMIN", detail);
        }
    }
}
