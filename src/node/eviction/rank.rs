//! The order in which pods are evicted, and their status messages. Pure.

use super::decide::Observation;
use super::thresholds::{EvictionResource, EvictionSignal, EvictionThreshold};
use crate::model::{Pod, PodExt, PodStatus, Quantity, canonical};
use crate::node::stats::api::{ContainerStats, FsStats, PodStats};
use crate::resources::requests;
use crate::state::events::Annotations;
use k8s_openapi::api::core::v1::{Container, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use std::fmt::Write as _;
use std::sync::Arc;

/// A pod that may be evicted, with its usage if known.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its usage.
    pub usage: Option<PodStats>,
}

/// Which files of a pod are on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesOnDisk {
    /// Writable layers of containers.
    pub layers: bool,
    /// Logs and volumes.
    pub logs_and_volumes: bool,
}

/// Which of the kubelet's directory, images and writable layers share a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskLayout {
    /// Everything is on one disk.
    #[default]
    OneDisk,
    /// Images and writable layers are on another disk than the kubelet's directory.
    DedicatedImages,
    /// Images are on another disk; writable layers are on that of the kubelet's directory (upstream's split image file
    /// system).
    SplitImages,
}

impl DiskLayout {
    /// Derives the layout from the devices of the kubelet's directory, of images and of writable layers, as far as
    /// known.
    pub fn of(root: Option<u64>, images: Option<u64>, layers: Option<u64>) -> Self {
        if images == root {
            Self::OneDisk
        } else if layers.is_some() && layers == root {
            Self::SplitImages
        } else {
            Self::DedicatedImages
        }
    }
}

impl FilesOnDisk {
    /// The files that are on the disk of this signal.
    pub fn of(signal: EvictionSignal, layout: DiskLayout) -> Self {
        let of_images = signal.is_of_images();
        let (layers, logs_and_volumes) = match layout {
            DiskLayout::OneDisk => (true, true),
            DiskLayout::DedicatedImages => (of_images, !of_images),
            DiskLayout::SplitImages => (!of_images, !of_images),
        };
        Self { layers, logs_and_volumes }
    }
}

/// Whether evicting a pod can free some of the resource. A pod without running containers uses no memory and no
/// processes; it may use disk, if its usage is known. A pod that did not run before the measurement (`ran_before`) has
/// only just started if its usage is unknown. `settled` is its runtime status if that is up to date; otherwise the pod
/// counts as running.
pub fn can_free(
    candidate: &Candidate,
    ran_before: bool,
    settled: Option<&PodStatus>,
    resource: EvictionResource,
) -> bool {
    let has_usage = candidate.usage.is_some();
    let runs = settled.is_none_or(PodStatus::may_be_running) && (has_usage || ran_before);
    runs || resource.is_on_disk() && has_usage
}

fn priority(pod: &Pod) -> i32 {
    pod.spec().and_then(|spec| spec.priority).unwrap_or(0)
}

/// Sorts pods in the order of eviction: first pods with unknown usage, then pods over their requests, then pods of
/// lower priority, then pods with the highest usage above their requests. There are no requests for processes. A pod
/// whose usage of a disk is known only in part counts as over its request.
pub fn rank(candidates: &mut [Candidate], signal: EvictionSignal, files: FilesOnDisk) {
    candidates.sort_by_cached_key(|candidate| {
        let resource = signal.resource();
        let used = candidate.usage.as_ref().map(|usage| used(candidate, usage, resource, files));
        let requested = request(&candidate.pod, resource);
        let excess = used.map(|used| used.saturating_sub(requested));
        let exceeds = resource != EvictionResource::Pids && excess.is_some_and(|excess| excess > 0);
        let is_over = exceeds || resource.is_on_disk() && is_partial(candidate, files);
        let known = candidate.usage.is_some();
        (known, !is_over, priority(&candidate.pod), std::cmp::Reverse(excess))
    });
}

pub(super) fn used(
    candidate: &Candidate,
    usage: &PodStats,
    resource: EvictionResource,
    files: FilesOnDisk,
) -> i64 {
    match resource {
        EvictionResource::Memory => {
            let memory = usage.memory.as_ref().and_then(|memory| memory.working_set_bytes);
            let of_containers = usage.containers.iter().filter_map(working_set).sum();
            bytes(memory.unwrap_or(of_containers))
        }
        EvictionResource::Disk => on_disk(candidate, usage, files, |fs| fs.used_bytes),
        EvictionResource::Inodes => on_disk(candidate, usage, files, |fs| fs.inodes_used),
        EvictionResource::Pids => {
            let processes = usage.process_stats.as_ref().and_then(|stats| stats.process_count);
            bytes(processes.unwrap_or(0))
        }
    }
}

fn working_set(container: &ContainerStats) -> Option<u64> {
    container.memory.as_ref()?.working_set_bytes
}

fn on_disk(
    candidate: &Candidate,
    usage: &PodStats,
    files: FilesOnDisk,
    of: fn(&FsStats) -> Option<u64>,
) -> i64 {
    let of = |fs: &Option<FsStats>| fs.as_ref().and_then(of).unwrap_or(0);
    let mut sum = 0_u64;
    for container in &usage.containers {
        if files.layers {
            sum = sum.saturating_add(of(&container.rootfs));
        }
        if files.logs_and_volumes {
            sum = sum.saturating_add(of(&container.logs));
        }
    }
    if files.logs_and_volumes {
        let local = local_volumes(&candidate.pod);
        let volumes = usage.volumes.iter();
        for volume in volumes.filter(|volume| local.contains(&volume.name.as_str())) {
            sum = sum.saturating_add(of(&Some(volume.fs.clone())));
        }
    }
    bytes(sum)
}

/// Whether more of a disk is used than is known: a volume is not measured yet, cannot be read, or was not read to the end.
fn is_partial(candidate: &Candidate, files: FilesOnDisk) -> bool {
    let Some(usage) = candidate.usage.as_ref().filter(|_| files.logs_and_volumes) else {
        return false;
    };
    let is_known = |name: &str| {
        let volume = usage.volumes.iter().find(|volume| volume.name == name);
        volume.is_some_and(|volume| volume.fs.used_bytes.is_some() && !volume.fs.is_partial)
    };
    let logs = usage.containers.iter().filter_map(|one| one.logs.as_ref());
    let mut volumes = local_volumes(&candidate.pod).into_iter();
    !volumes.all(is_known) || logs.into_iter().any(|logs| logs.is_partial)
}

/// Volumes of a pod that are on the node's disk and are removed with the pod.
pub(super) fn local_volumes(pod: &Pod) -> Vec<&str> {
    let volumes = pod.spec().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let is_on_disk = |volume: &&Volume| {
        let medium = volume.empty_dir.as_ref().map(|dir| dir.medium.as_deref().unwrap_or(""));
        medium == Some("")
            || volume.config_map.is_some()
            || volume.downward_api.is_some()
            || volume.git_repo.is_some()
    };
    volumes.iter().filter(is_on_disk).map(|volume| volume.name.as_str()).collect()
}

pub(super) fn bytes(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

fn request(pod: &Pod, resource: EvictionResource) -> i64 {
    let of_pod = requests::of_pod_and_overhead::<Quantity>(pod);
    let request = of_pod.ok().and_then(|all| all.request(resource.as_str()));
    request.unwrap_or_default().value()
}

/// `status.message` of an evicted pod; it ends in a space, as upstream's.
pub fn message(
    candidate: &Candidate,
    threshold: &EvictionThreshold,
    observed: Option<Observation>,
) -> String {
    let resource = threshold.signal.resource();
    let mut text = format!("The node was low on resource: {}. ", resource.as_str());
    if let Some(observed) = observed {
        let quantity = threshold.value.of(observed.capacity);
        let _ = write!(
            text,
            "Threshold quantity: {}, available: {}. ",
            resource.format(quantity),
            resource.format(observed.available)
        );
    }
    if let Some((used, request)) = pod_level_usage(candidate, resource) {
        let _ = write!(
            text,
            "Pod {} was using {}, request is {request}, has larger consumption of {}. ",
            candidate.pod.name(),
            resource.format(used),
            resource.as_str()
        );
    }
    for (stats, used, request) in over_requests(candidate, resource) {
        let _ = write!(
            text,
            "Container {} was using {}, request is {request}, has larger consumption of {}. ",
            stats.name,
            resource.format(used),
            resource.as_str()
        );
    }
    text
}

/// Annotations of upstream's eviction event: the starved resource, the containers over their requests, and the pod if
/// it has a pod-level request.
pub fn annotations(candidate: &Candidate, resource: EvictionResource) -> Annotations {
    let (names, used): (Vec<&str>, Vec<String>) = over_requests(candidate, resource)
        .map(|(stats, used, _)| (stats.name.as_str(), resource.format(used)))
        .unzip();
    let mut all = vec![
        ("starved_resource", resource.as_str().to_owned()),
        ("offending_containers", names.join(",")),
        ("offending_containers_usage", used.join(",")),
    ];
    if let Some((used, _)) = pod_level_usage(candidate, resource) {
        all.push(("offending_pod", candidate.pod.name().to_owned()));
        all.push(("offending_pod_usage", resource.format(used)));
    }
    let all = all.into_iter();
    all.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Memory usage and pod-level request of the pod; upstream reports them even if the usage is below the request.
fn pod_level_usage(candidate: &Candidate, resource: EvictionResource) -> Option<(i64, String)> {
    if resource != EvictionResource::Memory {
        return None;
    }
    let resources = candidate.pod.spec()?.resources.as_ref()?;
    let request = resources.requests.as_ref()?.get(EvictionResource::Memory.as_str())?;
    let memory = candidate.usage.as_ref()?.memory.as_ref()?;
    let used = bytes(memory.working_set_bytes.unwrap_or(0));
    Some((used, canonical(request).0))
}

/// Containers over their requests, with usage and request.
fn over_requests(
    candidate: &Candidate,
    resource: EvictionResource,
) -> impl Iterator<Item = (&ContainerStats, i64, String)> {
    let usage = candidate.usage.iter().flat_map(|usage| &usage.containers);
    usage.filter_map(move |stats| over_request(candidate, stats, resource))
}

fn over_request<'a>(
    candidate: &Candidate,
    stats: &'a ContainerStats,
    resource: EvictionResource,
) -> Option<(&'a ContainerStats, i64, String)> {
    let used = match resource {
        EvictionResource::Memory => bytes(working_set(stats)?),
        EvictionResource::Disk => {
            // As in upstream, a container with unknown usage of either is left out.
            let of = |fs: &Option<FsStats>| fs.as_ref()?.used_bytes;
            bytes(of(&stats.rootfs)?.saturating_add(of(&stats.logs)?))
        }
        EvictionResource::Inodes | EvictionResource::Pids => return None,
    };
    let container = candidate.pod.container(&stats.name)?;
    let request = container_request(container, resource);
    let requested = Quantity::from_api(&request).unwrap_or_default().value();
    (used > requested).then(|| (stats, used, canonical(&request).0))
}

fn container_request(container: &Container, resource: EvictionResource) -> ApiQuantity {
    let resources = container.resources.as_ref();
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    let request = requests.and_then(|requests| requests.get(resource.as_str()));
    request.cloned().unwrap_or_else(|| ApiQuantity("0".to_owned()))
}

#[cfg(test)]
mod tests;
