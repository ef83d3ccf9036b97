//! Stats of file systems, and of directories on them. Pure.

use super::{Disks, PodPaths, add, value};
use crate::cri::v1;
use crate::host::FilesystemUsage;
use crate::model::{MeasurableVolume, ReportedUsage, UsageSource};
use crate::node::stats::api::{
    ContainerStats, FsStats, PvcReference, Time, VolumeHealthStats, VolumeStats,
};
use crate::node::stats::disk::DiskMeasurement;
use std::path::PathBuf;

/// Stats of a whole file system.
pub(in crate::node::stats) fn whole_fs(time: Time, fs: &FilesystemUsage) -> FsStats {
    let inodes = (fs.inodes > 0).then_some(fs.inodes);
    FsStats {
        time,
        available_bytes: Some(fs.available),
        capacity_bytes: Some(fs.capacity),
        used_bytes: Some(fs.used),
        inodes_free: inodes.map(|_| fs.inodes_free),
        inodes,
        inodes_used: inodes.map(|inodes| inodes.saturating_sub(fs.inodes_free)),
        is_partial: false,
    }
}

/// Stats of a volume whose driver has reported them. As upstream, what the driver does not know is 0.
fn reported_fs(usage: &ReportedUsage) -> FsStats {
    FsStats {
        time: Time(usage.at),
        available_bytes: Some(usage.available_bytes),
        capacity_bytes: Some(usage.capacity_bytes),
        used_bytes: Some(usage.used_bytes),
        inodes_free: Some(usage.inodes_free),
        inodes: Some(usage.inodes),
        inodes_used: Some(usage.inodes_used),
        is_partial: false,
    }
}

/// Stats of a directory on the file system of the kubelet's directory.
fn directory_fs(disks: Disks<'_>, measured: &DiskMeasurement) -> FsStats {
    let node_fs = disks.node.map(|(at, fs)| whole_fs(*at, fs)).unwrap_or_default();
    FsStats {
        time: Time(measured.at),
        used_bytes: measured.usage.map(|usage| usage.bytes),
        inodes_used: measured.usage.map(|usage| usage.inodes),
        is_partial: measured.usage.is_some_and(|usage| usage.is_partial),
        ..node_fs
    }
}

/// Stats of a container's writable layer.
pub(super) fn writable_layer_fs(
    disks: Disks<'_>,
    runtime_stats: &v1::ContainerStats,
) -> Option<FsStats> {
    let layer = runtime_stats.writable_layer.as_ref()?;
    let image_fs = disks.images.cloned().unwrap_or_default();
    Some(FsStats {
        time: Time(layer.timestamp),
        used_bytes: value(layer.used_bytes.as_ref()),
        inodes_used: value(layer.inodes_used.as_ref()),
        ..image_fs
    })
}

/// Stats of those directories that were measured.
pub(super) fn directories_fs(disks: Disks<'_>, paths: &[PathBuf]) -> impl Iterator<Item = FsStats> {
    let measured = paths.iter();
    let measured = measured.filter_map(move |path| disks.measurements.get(path));
    measured.map(move |measured| directory_fs(disks, measured))
}

/// Stats of volumes, each with whether it is on the node's disk.
pub(super) fn volumes(disks: Disks<'_>, paths: &PodPaths) -> Vec<(bool, VolumeStats)> {
    let stats = |volume: &MeasurableVolume| {
        let measured = || disks.measurements.get(&volume.path);
        let (on_disk, fs) = match volume.source {
            UsageSource::Driver(reported) => (false, reported_fs(&reported?)),
            UsageSource::Filesystem | UsageSource::Files(_) => match measured()? {
                DiskMeasurement { at, filesystem: Some(fs), .. } => {
                    (false, whole_fs(Time(*at), fs))
                }
                measured => (true, directory_fs(disks, measured)),
            },
        };
        let pvc_ref = volume.claim.as_ref().map(|claim| PvcReference {
            name: claim.name.clone(),
            namespace: claim.namespace.clone(),
        });
        let name = volume.name.clone();
        let is_abnormal = match volume.source {
            UsageSource::Driver(reported) => reported.and_then(|reported| reported.is_abnormal),
            UsageSource::Filesystem | UsageSource::Files(_) => None,
        };
        let stats = VolumeStats {
            fs,
            name,
            pvc_ref,
            volume_health_stats: is_abnormal.map(|abnormal| VolumeHealthStats { abnormal }),
        };
        Some((on_disk, stats))
    };
    paths.volumes.iter().filter_map(stats).collect()
}

/// Ephemeral storage of the pod: writable layers, logs, volumes on the node's disk, and other files of the pod.
pub(super) fn ephemeral(
    disks: Disks<'_>,
    containers: &[ContainerStats],
    volumes: &[(bool, VolumeStats)],
    files: &[FsStats],
) -> Option<FsStats> {
    let (at, fs) = disks.node?;
    let none = FsStats { time: *at, used_bytes: None, inodes_used: None, ..whole_fs(*at, fs) };
    let of_containers = containers.iter().flat_map(|c| c.rootfs.iter().chain(&c.logs));
    let on_disk = volumes.iter().filter(|(on_disk, _)| *on_disk);
    let volumes = on_disk.map(|(_, volume)| &volume.fs);
    let parts = of_containers.chain(volumes).chain(files);
    Some(parts.fold(none, with_usage))
}

/// Adds what a part uses.
pub(super) fn with_usage(mut sum: FsStats, part: &FsStats) -> FsStats {
    sum.time = sum.time.max(part.time);
    sum.is_partial |= part.is_partial;
    add(&mut sum.used_bytes, part.used_bytes);
    add(&mut sum.inodes_used, part.inodes_used);
    sum
}
