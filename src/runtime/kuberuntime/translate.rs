//! Converts CRI types to the model (upstream's `toKubeContainerStatus`). Pure except for string interning.
//!
//! Objects without a kubelet's labels belong to other users of the runtime: they are `None` here,
//! so this kubelet ignores them.

use super::generate::stop_signal::signal_name;
use super::labels;
use crate::base::StringInterner;
use crate::cri::v1;
use crate::model::{
    AddressOrder, ContainerId, ContainerResources, ContainerState, ContainerStatus, ContainerUser,
    NetworkMode, PodSource, SandboxId, SandboxStatus, keys, reasons,
};
use crate::resources::{quota_to_milli_cpu, shares_to_milli_cpu};
use crate::state::pod_cache::ListEntry;
use std::net::IpAddr;
use std::sync::Arc;

/// Longest message kept of a container, and maximum number of bytes that are read from the end of its termination
/// message file.
pub const MAX_MESSAGE: usize = 4096;
/// Longest reason, image name or other short text, bytes.
const MAX_TEXT: usize = 1024;
/// Limit of addresses that are read of one sandbox.
const MAX_ADDRESSES: usize = 16;
/// Maximum number of image volumes that are kept of one container.
const MAX_IMAGES: usize = 1024;
/// Maximum number of groups that are kept of one container; the kernel's limit for a process.
const MAX_GROUPS: usize = 65536;

/// The status and the pod that the labels name.
fn with_pod<T>(
    labels: &labels::StringMap,
    strings: &StringInterner,
    status: T,
) -> Option<ListEntry<T>> {
    let pod_ref = labels::pod_of(labels, strings)?;
    Some(ListEntry { pod_ref, status })
}

/// A sandbox in a list reply, which has no network status; [`NetworkMode::Pod`] is assumed.
pub fn sandbox_from_list(
    sandbox: &v1::PodSandbox,
    strings: &StringInterner,
) -> Option<ListEntry<SandboxStatus>> {
    let object = SandboxStatus {
        id: SandboxId::from(sandbox.id.as_str()),
        attempt: sandbox.metadata.as_ref().map_or(0, |m| m.attempt),
        ready: sandbox.state == v1::PodSandboxState::SandboxReady as i32,
        created_at: sandbox.created_at.max(0),
        network: NetworkMode::Pod,
        has_network_status: false,
        ips: Vec::new(),
        source: source(&sandbox.annotations),
        manifest_digest: digest(&sandbox.annotations, strings),
    };
    with_pod(&sandbox.labels, strings, object)
}

/// A sandbox from its status.
pub fn sandbox_status(
    status: &v1::PodSandboxStatus,
    strings: &StringInterner,
    order: AddressOrder,
) -> Option<ListEntry<SandboxStatus>> {
    let namespaces = status.linux.as_ref().and_then(|l| l.namespaces.as_ref());
    let network = namespaces.and_then(|n| n.options.as_ref()).map(|o| o.network);
    let object = SandboxStatus {
        id: SandboxId::from(status.id.as_str()),
        attempt: status.metadata.as_ref().map_or(0, |m| m.attempt),
        ready: status.state == v1::PodSandboxState::SandboxReady as i32,
        created_at: status.created_at.max(0),
        network: if network == Some(v1::NamespaceMode::Node as i32) {
            NetworkMode::Node
        } else {
            NetworkMode::Pod
        },
        has_network_status: status.network.is_some(),
        ips: status.network.as_ref().map_or_else(Vec::new, |network| addresses(network, order)),
        source: source(&status.annotations),
        manifest_digest: digest(&status.annotations, strings),
    };
    with_pod(&status.labels, strings, object)
}

/// The sandbox's addresses, primary first; none at all if one is not an address, as upstream does.
fn addresses(network: &v1::PodSandboxNetworkStatus, order: AddressOrder) -> Vec<String> {
    if network.ip.is_empty() {
        return Vec::new();
    }
    let more = network.additional_ips.iter().map(|more| more.ip.as_str());
    let all: Option<Vec<IpAddr>> = std::iter::once(network.ip.as_str())
        .chain(more)
        .take(MAX_ADDRESSES)
        .map(|ip| ip.parse().ok())
        .collect();
    order.pick(&all.unwrap_or_default())
}

/// A container in a list reply, which has no exit code.
pub fn container_from_list(
    container: &v1::Container,
    strings: &StringInterner,
) -> Option<ListEntry<ContainerStatus>> {
    let object = ContainerStatus {
        id: ContainerId::from(container.id.as_str()),
        name: strings.intern(labels::container_name(&container.labels)?),
        sandbox: SandboxId::new(strings.intern(&container.pod_sandbox_id)),
        state: state(container.state),
        restart_count: restart_count(&container.annotations, container.metadata.as_ref()),
        created_at: container.created_at.max(0),
        image: image(container.image.as_ref(), strings),
        image_ref: strings.intern(truncate(&container.image_ref, MAX_TEXT)),
        hash: hash(&container.annotations, strings),
        reason: strings.intern(""),
        message: strings.intern(""),
        grace_seconds: grace_seconds(&container.annotations),
        source: source(&container.annotations),
        host_ports: labels::host_ports(&container.annotations),
        ..ContainerStatus::default()
    };
    with_pod(&container.labels, strings, object)
}

/// A container from its status, which does not name the sandbox, so the caller does.
pub fn container_status(
    status: &v1::ContainerStatus,
    sandbox: SandboxId,
    strings: &StringInterner,
) -> Option<ListEntry<ContainerStatus>> {
    let (state, start_cancelled) = match state(status.state) {
        ContainerState::Exited if start_was_cancelled(status) => (ContainerState::Created, true),
        state => (state, false),
    };
    let exited = state == ContainerState::Exited;
    let text_if = |when: bool, text: &str, limit| {
        if when { strings.intern(truncate(text, limit)) } else { strings.intern("") }
    };
    let object = ContainerStatus {
        id: ContainerId::from(status.id.as_str()),
        name: strings.intern(labels::container_name(&status.labels)?),
        sandbox,
        state,
        start_cancelled,
        restart_count: restart_count(&status.annotations, status.metadata.as_ref()),
        created_at: status.created_at.max(0),
        started_at: match state {
            ContainerState::Created => 0,
            _ => status.started_at.max(0),
        },
        finished_at: if exited { status.finished_at.max(0) } else { 0 },
        exit_code: if exited { status.exit_code } else { 0 },
        image: image(status.image.as_ref(), strings),
        image_ref: strings.intern(truncate(&status.image_ref, MAX_TEXT)),
        hash: hash(&status.annotations, strings),
        reason: text_if(exited, &status.reason, MAX_TEXT),
        // Not interned, because messages rarely repeat.
        message: if exited && !status.message.is_empty() {
            truncate(&status.message, MAX_MESSAGE).into()
        } else {
            strings.intern("")
        },
        user: user(status),
        stop_signal: signal_name(status.stop_signal),
        resources: resources(status),
        mounted_images: mounted_images(status, strings),
        grace_seconds: grace_seconds(&status.annotations),
        source: source(&status.annotations),
        host_ports: labels::host_ports(&status.annotations),
    };
    with_pod(&status.labels, strings, object)
}

fn mounted_images(status: &v1::ContainerStatus, strings: &StringInterner) -> Vec<Arc<str>> {
    let images = status.mounts.iter().filter_map(|mount| mount.image.as_ref());
    let names = images.map(|image| truncate(&image.image, MAX_TEXT));
    let names = names.filter(|name| !name.is_empty()).take(MAX_IMAGES);
    names.map(|name| strings.intern(name)).collect()
}

/// Upstream's `toKubeContainerResources`.
fn resources(status: &v1::ContainerStatus) -> Option<Arc<ContainerResources>> {
    let reported = status.resources.as_ref()?.linux.as_ref()?;
    let positive = |amount: i64| (amount > 0).then_some(amount);
    let resources = ContainerResources {
        cpu_request: positive(shares_to_milli_cpu(reported.cpu_shares)),
        cpu_limit: positive(quota_to_milli_cpu(reported.cpu_quota, reported.cpu_period)),
        memory_limit: positive(reported.memory_limit_in_bytes),
    };
    (resources != ContainerResources::default()).then(|| Arc::new(resources))
}

fn user(status: &v1::ContainerStatus) -> Option<Arc<ContainerUser>> {
    let reported = status.user.as_ref()?.linux.as_ref()?;
    let groups = reported.supplemental_groups.iter().take(MAX_GROUPS);
    Some(Arc::new(ContainerUser {
        uid: reported.uid,
        gid: reported.gid,
        supplemental_groups: groups.copied().collect(),
    }))
}

/// Whether the StartContainer call was cancelled before the container ran, which containerd reports as an
/// exit with code 128. StartContainer continues after its deadline (`outlives_deadline`), so usually the kubelet was
/// killed or lost its connection during the call. The container must be started again whatever its restart policy.
fn start_was_cancelled(status: &v1::ContainerStatus) -> bool {
    status.started_at <= 0
        && status.reason == reasons::START_ERROR
        && status.message.contains("context canceled")
}

fn state(state: i32) -> ContainerState {
    match v1::ContainerState::try_from(state) {
        Ok(v1::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(v1::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(v1::ContainerState::ContainerExited) => ContainerState::Exited,
        Ok(v1::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unknown,
    }
}

fn restart_count(annotations: &labels::StringMap, metadata: Option<&v1::ContainerMetadata>) -> u32 {
    annotations
        .get(keys::CONTAINER_RESTART_COUNT)
        .and_then(|count| count.parse().ok())
        .or(metadata.map(|m| m.attempt))
        .unwrap_or(0)
}

fn image(image: Option<&v1::ImageSpec>, strings: &StringInterner) -> Arc<str> {
    let name = image.map_or("", |image| match image.user_specified_image.as_str() {
        "" => &image.image,
        written => written,
    });
    strings.intern(truncate(name, MAX_TEXT))
}

fn hash(annotations: &labels::StringMap, strings: &StringInterner) -> Arc<str> {
    let hash = annotations.get(keys::CONTAINER_HASH);
    strings.intern(hash.map_or("", |hash| truncate(hash, 64)))
}

fn grace_seconds(annotations: &labels::StringMap) -> Option<u32> {
    let seconds = annotations.get(keys::POD_TERMINATION_GRACE_PERIOD)?;
    seconds.parse().ok()
}

fn source(annotations: &labels::StringMap) -> Option<PodSource> {
    PodSource::parse(annotations.get(keys::CONFIG_SOURCE)?)
}

fn digest(annotations: &labels::StringMap, strings: &StringInterner) -> Option<Arc<str>> {
    let digest = annotations.get(keys::MANIFEST_DIGEST)?;
    Some(strings.intern(truncate(digest, MAX_TEXT)))
}

/// Truncates to at most `limit` bytes at a character boundary.
pub(super) fn truncate(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or(text)
}

#[cfg(test)]
mod tests;
