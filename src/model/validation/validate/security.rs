//! Validates security contexts and shared namespaces.

use super::rules::local_path;
use super::{Errors, Path, text};
use crate::model::keys;
use crate::model::validation::sysctl::{self, Namespace};
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, PodSecurityContext, PodSpec, SeccompProfile, Sysctl,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::HashSet;

const MAX_ID: i64 = i32::MAX as i64;
/// The kernel's maximum path length without the final NUL, in bytes.
const MAX_PROFILE: usize = 4095;

/// Validates the deprecated AppArmor annotations: each must name a container of the pod and have one of three forms.
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
    for_windows(spec, context.windows_options.is_some(), &path, errors);
    ids(context, &path, errors);
    for (field, value, values) in [
        ("fsGroupChangePolicy", &context.fs_group_change_policy, ["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", &context.supplemental_groups_policy, ["Merge", "Strict"]),
        ("seLinuxChangePolicy", &context.se_linux_change_policy, ["MountOption", "Recursive"]),
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
        errors.invalid_raw(path, value, format!("must be between 0 and {MAX_ID}, inclusive"));
    }
}

fn seccomp(profile: &SeccompProfile, path: &Path<'_>, errors: &mut Errors) {
    let local = text(profile.localhost_profile.as_ref());
    let given = profile.localhost_profile.is_some();
    local_profile(
        &profile.type_,
        profile.localhost_profile.as_ref(),
        ("seccomp", "seccompProfile"),
        path,
        errors,
    );
    if profile.type_ == "Localhost" && given {
        local_path(local, &path.child("localhostProfile"), errors);
    }
}

fn app_armor(profile: &AppArmorProfile, path: &Path<'_>, errors: &mut Errors) {
    let local = text(profile.localhost_profile.as_ref());
    let given = profile.localhost_profile.is_some();
    local_profile(
        &profile.type_,
        profile.localhost_profile.as_ref(),
        ("AppArmor", "appArmorProfile"),
        path,
        errors,
    );
    if profile.type_ != "Localhost" || !given {
        return;
    }
    let at = path.child("localhostProfile");
    if local.trim() != local {
        errors.invalid(&at, local, "must not be padded with whitespace");
    } else if local.is_empty() {
        errors.required(&at, "must be set when AppArmor type is Localhost");
    }
    if local.len() > MAX_PROFILE {
        errors.too_long(&at, MAX_PROFILE);
    }
}

/// Validates the common part of seccomp and AppArmor profiles: a type, and `localhostProfile` only with type
/// `Localhost`.
fn local_profile(
    kind: &str,
    local: Option<&String>,
    (what, field): (&str, &str),
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let values = ["Localhost", "RuntimeDefault", "Unconfined"];
    match kind {
        "" => errors.required(&path.child("type"), format!("type is required when {field} is set")),
        _ => errors.one_of(&path.child("type"), Some(kind), &values),
    }
    let at = path.child("localhostProfile");
    match (kind, local) {
        ("Localhost", None) => {
            errors.required(&at, format!("must be set when {what} type is Localhost"));
        }
        ("RuntimeDefault" | "Unconfined", Some(local)) => {
            let detail = format!("can only be set when {what} type is Localhost");
            errors.invalid(&at, local, detail);
        }
        _ => {}
    }
}

/// Annotations and fields may both be set if they have the same value.
pub(super) fn app_armor_agrees(
    meta: &ObjectMeta,
    spec: &PodSpec,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let annotations = meta.annotations.as_ref();
    let at_pod = spec.security_context.as_ref();
    let at_pod = at_pod.and_then(|context| context.app_armor_profile.as_ref());
    let init = spec.init_containers.as_deref().unwrap_or_default();
    for (field, containers) in
        [("containers", spec.containers.as_slice()), ("initContainers", init)]
    {
        for (index, container) in containers.iter().enumerate() {
            let own = container.security_context.as_ref();
            let own = own.and_then(|context| context.app_armor_profile.as_ref());
            let key = format!("{}{}", keys::APP_ARMOR_PREFIX, container.name);
            let annotation = annotations.and_then(|annotations| annotations.get(&key));
            let (Some(profile), Some(annotation)) = (own.or(at_pod), annotation) else {
                continue;
            };
            let list = path.child(field);
            let container = list.index(index);
            let context = container.child("securityContext");
            profiles_agree(profile, annotation, &context.child("appArmorProfile"), errors);
        }
    }
}

fn profiles_agree(
    profile: &AppArmorProfile,
    annotation: &str,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let local = annotation.strip_prefix("localhost/");
    let same_type = match profile.type_.as_str() {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => annotation == "runtime/default",
        "Localhost" => local.is_some(),
        _ => return,
    };
    if !same_type {
        let detail = "apparmor type in annotation and field must match";
        errors.forbidden(&path.child("type"), detail);
    } else if local.is_some() && local != profile.localhost_profile.as_deref() {
        let detail = "apparmor profile in annotation and field must match";
        errors.forbidden(&path.child("localhostProfile"), detail);
    }
}

fn validate_sysctls(spec: &PodSpec, sysctls: &[Sysctl], path: &Path<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (index, sysctl) in sysctls.iter().enumerate() {
        let at = path.index(index);
        let at_name = at.child("name");
        let name = sysctl.name.as_str();
        let dotted = sysctl::dotted(name);
        if name.is_empty() {
            errors.required(&at_name, "");
        } else if !sysctl::is_name(name) {
            errors.invalid(&at_name, name, sysctl::NAME_RULE);
        } else if seen.contains(&dotted) {
            errors.duplicate(&at_name, name);
        }
        match sysctl::namespace_of(&dotted) {
            Some(Namespace::Net) if spec.host_network == Some(true) => {
                let detail = "may not be specified when 'hostNetwork' is true";
                errors.invalid(&at_name, name, detail);
            }
            Some(Namespace::Ipc) if spec.host_ipc == Some(true) => {
                let detail = "may not be specified when 'hostIPC' is true";
                errors.invalid(&at_name, name, detail);
            }
            _ => {}
        }
        seen.insert(dotted);
    }
}

/// Rejects `windowsOptions` in a pod with `os: linux`. `path` is the container's `securityContext`.
fn for_windows(spec: &PodSpec, given: bool, path: &Path<'_>, errors: &mut Errors) {
    if given && spec.os.as_ref().is_some_and(|os| os.name == "linux") {
        let detail = "windows options cannot be set for a linux pod";
        errors.forbidden(&path.child("windowsOptions"), detail);
    }
}

pub(super) fn validate_container(
    spec: &PodSpec,
    container: &Container,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let Some(context) = &container.security_context else {
        return;
    };
    for_windows(spec, context.windows_options.is_some(), path, errors);
    id(&path.child("runAsUser"), context.run_as_user, errors);
    id(&path.child("runAsGroup"), context.run_as_group, errors);
    let proc_mount = context.proc_mount.as_deref();
    errors.one_of(&path.child("procMount"), proc_mount, &["Default", "Unmasked"]);
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
        let added = context.capabilities.iter().flat_map(|c| c.add.iter().flatten());
        if added.into_iter().any(|name| name == "CAP_SYS_ADMIN") {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.invalid_raw(path, "CAP_SYS_ADMIN", detail);
        }
    }
}
