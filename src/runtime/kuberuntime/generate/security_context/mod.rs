//! Security contexts of sandboxes and containers. Pure.

use crate::cri::v1;
use crate::images::ReadyImage;
use crate::model::{ContainerId, Pod, PodExt, keys};
use crate::runtime::kuberuntime::generate::settings::GenerateSettings;
use crate::runtime::kuberuntime::generate::user_namespaces::ranges::IdRange;
use anyhow::{anyhow, bail};
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, Container, PodSecurityContext, SELinuxOptions, SeccompProfile,
    SecurityContext,
};
use v1::security_profile::ProfileType;

/// Paths that containers must not read.
const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// Paths that containers must not write.
const READONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The image's default user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageUser {
    /// By number; 0 if the image sets none.
    Uid(i64),
    /// By name.
    Name(String),
}

impl ImageUser {
    /// The user in the image status; an image without a user runs as root.
    pub fn of(image: &ReadyImage) -> Self {
        match (image.uid, image.username.as_str()) {
            (Some(uid), _) => Self::Uid(uid),
            (None, "") => Self::Uid(0),
            (None, name) => Self::Name(name.to_string()),
        }
    }
}

/// The container's settings merged over the pod's.
struct EffectiveSecurityContext<'a> {
    container: Option<&'a SecurityContext>,
    pod: Option<&'a PodSecurityContext>,
}

impl<'a> EffectiveSecurityContext<'a> {
    fn of(pod: &'a Pod, container: &'a Container) -> Self {
        Self { container: container.security_context.as_ref(), pod: pod_context(pod) }
    }

    fn run_as_user(&self) -> Option<i64> {
        let of_container = self.container.and_then(|c| c.run_as_user);
        of_container.or_else(|| self.pod?.run_as_user)
    }

    fn run_as_group(&self) -> Option<i64> {
        let of_container = self.container.and_then(|c| c.run_as_group);
        of_container.or_else(|| self.pod?.run_as_group)
    }

    fn run_as_non_root(&self) -> bool {
        let of_container = self.container.and_then(|c| c.run_as_non_root);
        of_container.or_else(|| self.pod?.run_as_non_root).unwrap_or(false)
    }

    fn selinux(&self) -> Option<&'a SELinuxOptions> {
        let of_container = self.container.and_then(|c| c.se_linux_options.as_ref());
        of_container.or_else(|| self.pod?.se_linux_options.as_ref())
    }

    fn seccomp(&self) -> Option<&'a SeccompProfile> {
        let of_container = self.container.and_then(|c| c.seccomp_profile.as_ref());
        of_container.or_else(|| self.pod?.seccomp_profile.as_ref())
    }
}

fn pod_context(pod: &Pod) -> Option<&PodSecurityContext> {
    pod.spec()?.security_context.as_ref()
}

/// Refuses a container that must not run as root but would (upstream's `verifyRunAsNonRoot`).
pub fn verify_run_as_non_root(
    pod: &Pod,
    container: &Container,
    image_user: &ImageUser,
) -> anyhow::Result<()> {
    let effective = EffectiveSecurityContext::of(pod, container);
    if !effective.run_as_non_root() {
        return Ok(());
    }
    let pod = format!("{}_{}({})", pod.name(), pod.namespace(), pod.uid());
    let container = &container.name;
    match (effective.run_as_user(), image_user) {
        (Some(0), _) => bail!(
            "container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})"
        ),
        (Some(_), _) => Ok(()),
        (None, ImageUser::Uid(0)) => bail!(
            "container has runAsNonRoot and image will run as root (pod: {pod:?}, container: {container})"
        ),
        (None, ImageUser::Uid(_)) => Ok(()),
        (None, ImageUser::Name(user)) => bail!(
            "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: {pod:?}, container: {container})"
        ),
    }
}

/// The container's security context for the runtime (upstream's
/// `determineEffectiveSecurityContext`). Capabilities are passed on as written: runtimes take them
/// with and without `CAP_`.
pub fn container_security_context(
    pod: &Pod,
    container: &Container,
    image_user: &ImageUser,
    settings: &GenerateSettings,
    user_namespace: Option<IdRange>,
) -> anyhow::Result<v1::LinuxContainerSecurityContext> {
    let effective = EffectiveSecurityContext::of(pod, container);
    let of_container = effective.container;
    let (run_as_user, run_as_username) = match (effective.run_as_user(), image_user) {
        (Some(uid), _) => (Some(uid), String::new()),
        (None, ImageUser::Uid(uid)) => (Some(*uid), String::new()),
        (None, ImageUser::Name(name)) => (None, name.clone()),
    };
    let unmasked = of_container.and_then(|c| c.proc_mount.as_deref()) == Some("Unmasked");
    let paths = |list: &[&str], more: &[String]| {
        if unmasked {
            Vec::new()
        } else {
            list.iter().map(ToString::to_string).chain(more.iter().cloned()).collect()
        }
    };
    let apparmor = apparmor(pod, container)?;
    #[allow(deprecated)]
    Ok(v1::LinuxContainerSecurityContext {
        capabilities: of_container.and_then(|c| c.capabilities.as_ref()).map(capabilities),
        privileged: is_privileged(container),
        namespace_options: Some(namespaces(pod, user_namespace)),
        selinux_options: effective.selinux().map(selinux),
        run_as_user: run_as_user.map(number),
        run_as_group: effective.run_as_group().map(number),
        run_as_username,
        readonly_rootfs: of_container.and_then(|c| c.read_only_root_filesystem) == Some(true),
        supplemental_groups: supplemental_groups(pod),
        supplemental_groups_policy: supplemental_groups_policy(pod),
        no_new_privs: of_container.and_then(|c| c.allow_privilege_escalation) == Some(false),
        masked_paths: paths(&MASKED_PATHS, &settings.node.masked_paths),
        readonly_paths: paths(&READONLY_PATHS, &[]),
        seccomp: Some(seccomp(effective.seccomp(), settings)?),
        // For runtimes that only know the deprecated field.
        apparmor_profile: apparmor.as_ref().map(old_apparmor_name).unwrap_or_default(),
        apparmor,
        seccomp_profile_path: String::new(),
    })
}

/// The sandbox's security context (upstream's `generatePodSandboxLinuxConfig`). Its seccomp profile
/// is always the runtime's: the sandbox process is not the user's.
pub fn sandbox_security_context(
    pod: &Pod,
    user_namespace: Option<IdRange>,
) -> v1::LinuxSandboxSecurityContext {
    let context = pod_context(pod);
    #[allow(deprecated)]
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod, user_namespace)),
        selinux_options: context.and_then(|c| c.se_linux_options.as_ref()).map(selinux),
        run_as_user: context.and_then(|c| c.run_as_user).map(number),
        // The CRI allows `run_as_group` only with a user.
        run_as_group: context
            .filter(|c| c.run_as_user.is_some())
            .and_then(|c| c.run_as_group)
            .map(number),
        readonly_rootfs: false,
        supplemental_groups: supplemental_groups(pod),
        supplemental_groups_policy: supplemental_groups_policy(pod),
        privileged: pod.containers().iter().chain(pod.init_containers()).any(is_privileged),
        seccomp: Some(profile(ProfileType::RuntimeDefault)),
        apparmor: None,
        seccomp_profile_path: String::new(),
    }
}

/// Which namespaces the pod's containers share with each other and with the node.
pub fn namespaces(pod: &Pod, user_namespace: Option<IdRange>) -> v1::NamespaceOption {
    use v1::NamespaceMode as Mode;
    let is_set = |flag: Option<bool>| flag == Some(true);
    let spec = pod.spec();
    let node_or_pod = |node: bool| if node { Mode::Node } else { Mode::Pod };
    let pid = if is_set(spec.and_then(|s| s.host_pid)) {
        Mode::Node
    } else if is_set(spec.and_then(|s| s.share_process_namespace)) {
        Mode::Pod
    } else {
        Mode::Container
    };
    v1::NamespaceOption {
        network: node_or_pod(pod.host_network()).into(),
        pid: pid.into(),
        ipc: node_or_pod(is_set(spec.and_then(|s| s.host_ipc))).into(),
        target_id: String::new(),
        userns_options: Some(user_namespace_options(user_namespace)),
    }
}

/// `options` with the PID namespace of `target`, for an ephemeral container with `targetContainerName`.
pub fn with_target_pid_namespace(
    options: v1::NamespaceOption,
    target: &ContainerId,
) -> v1::NamespaceOption {
    v1::NamespaceOption {
        pid: v1::NamespaceMode::Target.into(),
        target_id: target.to_string(),
        ..options
    }
}

fn user_namespace_options(range: Option<IdRange>) -> v1::UserNamespace {
    let mappings = id_mappings(range);
    v1::UserNamespace {
        mode: match range {
            Some(_) => v1::NamespaceMode::Pod.into(),
            None => v1::NamespaceMode::Node.into(),
        },
        uids: mappings.clone(),
        gids: mappings,
    }
}

/// The pod's ID mappings; empty without a user namespace.
pub fn id_mappings(range: Option<IdRange>) -> Vec<v1::IdMapping> {
    let mapping = |range: IdRange| v1::IdMapping {
        host_id: range.host_id,
        container_id: 0,
        length: range.length,
    };
    range.into_iter().map(mapping).collect()
}

fn is_privileged(container: &Container) -> bool {
    let context = container.security_context.as_ref();
    context.and_then(|c| c.privileged) == Some(true)
}

fn supplemental_groups(pod: &Pod) -> Vec<i64> {
    let context = pod_context(pod);
    let fs_group = context.and_then(|c| c.fs_group);
    let more = context.and_then(|c| c.supplemental_groups.as_deref());
    fs_group.into_iter().chain(more.unwrap_or_default().iter().copied()).collect()
}

fn supplemental_groups_policy(pod: &Pod) -> i32 {
    let policy = pod_context(pod).and_then(|c| c.supplemental_groups_policy.as_deref());
    match policy {
        Some("Strict") => v1::SupplementalGroupsPolicy::Strict.into(),
        _ => v1::SupplementalGroupsPolicy::Merge.into(),
    }
}

fn number(value: i64) -> v1::Int64Value {
    v1::Int64Value { value }
}

fn capabilities(wanted: &Capabilities) -> v1::Capability {
    v1::Capability {
        add_capabilities: wanted.add.clone().unwrap_or_default(),
        drop_capabilities: wanted.drop.clone().unwrap_or_default(),
        add_ambient_capabilities: Vec::new(),
    }
}

fn selinux(options: &SELinuxOptions) -> v1::SeLinuxOption {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    v1::SeLinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    }
}

fn profile(kind: ProfileType) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref: String::new() }
}

fn seccomp(
    wanted: Option<&SeccompProfile>,
    settings: &GenerateSettings,
) -> anyhow::Result<v1::SecurityProfile> {
    let fallback = if settings.seccomp_default {
        ProfileType::RuntimeDefault
    } else {
        ProfileType::Unconfined
    };
    let Some(wanted) = wanted else {
        return Ok(profile(fallback));
    };
    match wanted.type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault)),
        "Unconfined" => Ok(profile(ProfileType::Unconfined)),
        "Localhost" => {
            let name = wanted.localhost_profile.as_deref().unwrap_or_default();
            if name.is_empty() {
                bail!("localhostProfile must be set if seccompProfile type is Localhost.");
            }
            let plain = crate::volumes::components(name);
            let names = plain.map_err(|_| {
                anyhow!("localhostProfile {name:?} leads out of the seccomp directory")
            })?;
            let file = settings.root.seccomp_dir().join(names.join("/"));
            Ok(localhost(&file.to_string_lossy()))
        }
        _ => Ok(profile(fallback)),
    }
}

fn localhost(reference: &str) -> v1::SecurityProfile {
    v1::SecurityProfile {
        profile_type: ProfileType::Localhost.into(),
        localhost_ref: reference.to_string(),
    }
}

/// The container's own AppArmor profile, else the annotation's, else the pod's.
fn apparmor(pod: &Pod, container: &Container) -> anyhow::Result<Option<v1::SecurityProfile>> {
    let of_container = container.security_context.as_ref();
    if let Some(field) = of_container.and_then(|c| c.app_armor_profile.as_ref()) {
        return apparmor_field(field).map(Some);
    }
    let annotation = pod.annotation(&format!("{}{}", keys::APP_ARMOR_PREFIX, container.name));
    match annotation {
        Some("runtime/default") => return Ok(Some(profile(ProfileType::RuntimeDefault))),
        Some("unconfined") => return Ok(Some(profile(ProfileType::Unconfined))),
        Some(other) if let Some(name) = other.strip_prefix("localhost/") => {
            return Ok(Some(localhost(name)));
        }
        _ => {}
    }
    let pod_level = pod_context(pod).and_then(|c| c.app_armor_profile.as_ref());
    pod_level.map(apparmor_field).transpose()
}

fn apparmor_field(field: &AppArmorProfile) -> anyhow::Result<v1::SecurityProfile> {
    match field.type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault)),
        "Unconfined" => Ok(profile(ProfileType::Unconfined)),
        "Localhost" => match field.localhost_profile.as_deref() {
            None | Some("") => bail!("missing localhost apparmor profile name"),
            Some(name) => Ok(localhost(name)),
        },
        other => bail!("unknown apparmor profile type {other:?}"),
    }
}

fn old_apparmor_name(profile: &v1::SecurityProfile) -> String {
    match profile.profile_type() {
        ProfileType::RuntimeDefault => "runtime/default".to_string(),
        ProfileType::Unconfined => "unconfined".to_string(),
        ProfileType::Localhost => format!("localhost/{}", profile.localhost_ref),
    }
}

#[cfg(test)]
mod tests;
