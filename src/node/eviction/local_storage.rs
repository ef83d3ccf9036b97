//! Limits on local ephemeral storage (upstream's `localStorageEviction`). Pure.

use super::rank::{Candidate, DiskLayout, bytes, local_volumes};
use crate::model::{Amount, Pod, PodExt, Quantity, canonical, is_sidecar};
use crate::node::stats::api::{ContainerStats, FsStats, PodStats};
use crate::resources::requests;
use k8s_openapi::api::core::v1::{Container, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

/// A limit.
struct StorageLimit {
    bytes: i64,
    /// The quantity in canonical form, for messages.
    text: String,
}

impl StorageLimit {
    fn of(quantity: &ApiQuantity) -> Option<Self> {
        let limit = Quantity::from_api(quantity).ok()?;
        Some(Self { bytes: limit.value(), text: canonical(quantity).0 })
    }

    /// `None` for a limit of zero, which limits the pod as a whole, but no volume and no single container, as in
    /// upstream.
    fn nonzero(self) -> Option<Self> {
        (self.bytes > 0).then_some(self)
    }
}

/// Whether a pod has a limit on local storage.
pub fn has_limits(pod: &Pod) -> bool {
    let in_containers = pod
        .containers()
        .iter()
        .chain(pod.init_containers())
        .any(|container| limit_of(container.resources.as_ref()).is_some());
    in_containers || volumes(pod).iter().any(|volume| size_limit(volume).is_some())
}

/// The limit that a pod exceeds, as a label of metrics, and the text for `status.message`; `None` if it exceeds none.
pub fn excess(candidate: &Candidate, layout: DiskLayout) -> Option<(&'static str, String)> {
    let usage = candidate.usage.as_ref()?;
    let of_volumes = empty_dir_excess(&candidate.pod, usage).map(|text| ("emptydirfs.limit", text));
    let of_pod = || pod_excess(&candidate.pod, usage).map(|text| ("ephemeralpodfs.limit", text));
    let of_containers = || {
        let text = container_excess(&candidate.pod, usage, layout)?;
        Some(("ephemeralcontainerfs.limit", text))
    };
    of_volumes.or_else(of_pod).or_else(of_containers)
}

fn volumes(pod: &Pod) -> &[Volume] {
    pod.spec().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default()
}

fn size_limit(volume: &Volume) -> Option<StorageLimit> {
    let dir = volume.empty_dir.as_ref()?;
    // An emptyDir in memory is limited by its own file system.
    let is_on_disk = dir.medium.as_deref().unwrap_or("").is_empty();
    let limit = StorageLimit::of(dir.size_limit.as_ref()?)?.nonzero();
    limit.filter(|_| is_on_disk)
}

fn empty_dir_excess(pod: &Pod, usage: &PodStats) -> Option<String> {
    volumes(pod).iter().find_map(|volume| {
        let limit = size_limit(volume)?;
        let stats = usage.volumes.iter().find(|stats| stats.name == volume.name)?;
        let used = stats.fs.used_bytes.map(bytes)?;
        (used > limit.bytes).then(|| {
            format!(
                "Usage of EmptyDir volume {:?} exceeds the limit {:?}. ",
                volume.name, limit.text
            )
        })
    })
}

/// Checks the pod's total usage against the sum of its containers' limits.
fn pod_excess(pod: &Pod, usage: &PodStats) -> Option<String> {
    let resources = requests::of_pod::<Amount>(pod).ok()?;
    let limit = resources.limits.get(requests::EPHEMERAL_STORAGE)?;
    let limit = StorageLimit::of(&limit.to_api())?;
    let of_containers = usage.containers.iter().map(used_by_container);
    let local = local_volumes(pod);
    let of_volumes = usage.volumes.iter();
    let of_volumes = of_volumes.filter(|volume| local.contains(&volume.name.as_str()));
    let of_volumes = of_volumes.filter_map(|volume| volume.fs.used_bytes);
    let used = of_containers.chain(of_volumes).fold(0, u64::saturating_add);
    (bytes(used) > limit.bytes).then(|| {
        let limit = limit.text;
        format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ")
    })
}

/// Checks each container against its limit. The limit is for the disk of the kubelet's directory: writable layers on
/// another disk do not count. An init container that is no sidecar is limited only with the pod as a whole, as in
/// upstream: it has ended when the others run.
fn container_excess(pod: &Pod, usage: &PodStats, layout: DiskLayout) -> Option<String> {
    usage.containers.iter().find_map(|stats| {
        let mut long_running = pod.containers().iter().chain(sidecars(pod));
        let container = long_running.find(|container| container.name == stats.name)?;
        let limit = limit_of(container.resources.as_ref())?.nonzero()?;
        let used = match layout {
            DiskLayout::DedicatedImages => used_on(&stats.logs),
            DiskLayout::OneDisk | DiskLayout::SplitImages => used_by_container(stats),
        };
        (bytes(used) > limit.bytes).then(|| {
            format!(
                "Container {} exceeded its local ephemeral storage limit {:?}. ",
                stats.name, limit.text
            )
        })
    })
}

fn sidecars(pod: &Pod) -> impl Iterator<Item = &Container> {
    let containers = pod.init_containers().iter();
    containers.filter(|container| is_sidecar(container))
}

fn limit_of(
    resources: Option<&k8s_openapi::api::core::v1::ResourceRequirements>,
) -> Option<StorageLimit> {
    let limits = resources?.limits.as_ref()?;
    StorageLimit::of(limits.get(requests::EPHEMERAL_STORAGE)?)
}

/// Usage of the writable layer and logs.
fn used_by_container(stats: &ContainerStats) -> u64 {
    used_on(&stats.rootfs).saturating_add(used_on(&stats.logs))
}

fn used_on(fs: &Option<FsStats>) -> u64 {
    fs.as_ref().and_then(|fs| fs.used_bytes).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::stats::api::VolumeStats;
    use std::sync::Arc;

    fn used(bytes: u64) -> FsStats {
        FsStats { used_bytes: Some(bytes), ..FsStats::default() }
    }

    fn candidate(spec: &str, layer: u64, log: u64, volume: u64) -> Candidate {
        let spec = serde_json::from_str(spec).unwrap();
        let pod = Arc::new(Pod { spec: Some(spec), ..Pod::default() });
        let usage = PodStats {
            containers: vec![ContainerStats {
                name: "c".into(),
                rootfs: Some(used(layer)),
                logs: Some(used(log)),
                ..ContainerStats::default()
            }],
            volumes: vec![VolumeStats {
                name: "v".into(),
                fs: used(volume),
                ..VolumeStats::default()
            }],
            ..PodStats::default()
        };
        let usage = Some(usage);
        Candidate { pod, usage }
    }

    #[test]
    fn a_pod_goes_when_a_volume_a_container_or_all_of_it_is_over_its_limit() {
        let limited = r#"{"containers":[{"name":"c","resources":{"limits":{"ephemeral-storage":"100"}}}],"volumes":[{"name":"v","emptyDir":{}}]}"#;
        let sized = r#"{"containers":[{"name":"c"}],"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1Ki"}}]}"#;
        let in_memory = r#"{"containers":[{"name":"c"}],"volumes":[{"name":"v","emptyDir":{"medium":"Memory","sizeLimit":"1Ki"}}]}"#;
        let decimal =
            r#"{"containers":[{"name":"c","resources":{"limits":{"ephemeral-storage":"1000M"}}}]}"#;
        let zero =
            r#"{"containers":[{"name":"c","resources":{"limits":{"ephemeral-storage":"0"}}}]}"#;
        let unsized_volume = r#"{"containers":[{"name":"c"}],"volumes":[{"name":"v","emptyDir":{"sizeLimit":"0"}}]}"#;
        let zero_of_two = r#"{"containers":[{"name":"c","resources":{"limits":{"ephemeral-storage":"0"}}},{"name":"d","resources":{"limits":{"ephemeral-storage":"100"}}}]}"#;
        let of_two = r#"{"containers":[{"name":"c","resources":{"limits":{"ephemeral-storage":"100"}}},{"name":"d","resources":{"limits":{"ephemeral-storage":"100"}}}]}"#;
        for (spec, layer, log, volume, expected) in [
            (limited, 50, 50, 0, None),
            (
                limited,
                50,
                51,
                0,
                Some((
                    "ephemeralpodfs.limit",
                    "Pod ephemeral local storage usage exceeds the total limit of containers 100. ",
                )),
            ),
            (
                limited,
                1,
                0,
                100,
                Some((
                    "ephemeralpodfs.limit",
                    "Pod ephemeral local storage usage exceeds the total limit of containers 100. ",
                )),
            ),
            (
                of_two,
                101,
                0,
                0,
                Some((
                    "ephemeralcontainerfs.limit",
                    "Container c exceeded its local ephemeral storage limit \"100\". ",
                )),
            ),
            (sized, 5000, 5000, 1024, None),
            (
                sized,
                0,
                0,
                1025,
                Some((
                    "emptydirfs.limit",
                    "Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". ",
                )),
            ),
            (
                decimal,
                1_000_000_001,
                0,
                0,
                Some((
                    "ephemeralpodfs.limit",
                    "Pod ephemeral local storage usage exceeds the total limit of containers 1G. ",
                )),
            ),
            (in_memory, 0, 0, 5000, None),
            (unsized_volume, 0, 0, 5000, None),
            (zero, 0, 0, 0, None),
            (
                zero,
                0,
                1,
                0,
                Some((
                    "ephemeralpodfs.limit",
                    "Pod ephemeral local storage usage exceeds the total limit of containers 0. ",
                )),
            ),
            (zero_of_two, 50, 50, 0, None),
        ] {
            let candidate = candidate(spec, layer, log, volume);
            assert_eq!(
                excess(&candidate, DiskLayout::OneDisk),
                expected.map(|(signal, text)| (signal, text.to_owned())),
                "{spec} {layer} {log} {volume}"
            );
            let has_none = [in_memory, unsized_volume].contains(&spec);
            assert_eq!(has_limits(&candidate.pod), !has_none, "{spec}");
        }
    }

    #[test]
    fn what_is_known_of_a_volume_may_be_over_its_limit() {
        let spec = r#"{"containers":[{"name":"c"}],"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1Gi"}}]}"#;
        for (bytes, goes) in [(1 << 30, false), (2 << 30, true)] {
            let mut candidate = candidate(spec, 0, 0, bytes);
            for volume in &mut candidate.usage.as_mut().unwrap().volumes {
                volume.fs.is_partial = true;
            }
            let found = excess(&candidate, DiskLayout::OneDisk);
            assert_eq!(found.is_some(), goes, "{bytes}");
        }
    }

    #[test]
    fn a_sidecar_is_limited_alone_and_another_init_container_with_its_pod() {
        let limits =
            |bytes: &str| format!(r#""resources":{{"limits":{{"ephemeral-storage":"{bytes}"}}}}"#);
        for (kind, goes) in [("", false), (r#""restartPolicy":"Always","#, true)] {
            let spec = format!(
                r#"{{"initContainers":[{{"name":"c",{kind}{}}}],"containers":[{{"name":"d",{}}}]}}"#,
                limits("100"),
                limits("1000"),
            );
            let found = excess(&candidate(&spec, 101, 0, 0), DiskLayout::OneDisk);
            assert_eq!(found.is_some(), goes, "{spec}");
        }
    }

    #[test]
    fn writable_layers_on_a_disk_of_their_own_do_not_count_for_a_container() {
        let spec = r#"{"containers":[{"name":"c","resources":{"limits":{"ephemeral-storage":"100"}}},{"name":"d","resources":{"limits":{"ephemeral-storage":"100"}}}]}"#;
        for (layer, log, layout, goes) in [
            (101, 0, DiskLayout::OneDisk, true),
            (101, 0, DiskLayout::SplitImages, true),
            (101, 0, DiskLayout::DedicatedImages, false),
            (0, 101, DiskLayout::DedicatedImages, true),
        ] {
            let found = excess(&candidate(spec, layer, log, 0), layout);
            assert_eq!(found.is_some(), goes, "{layer} {log} {layout:?}");
        }
    }
}
