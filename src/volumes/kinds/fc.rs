//! Fibre Channel volumes, of pods and of claims: the disk is looked for, and mounted, or mapped. Nothing logs in.

use super::claim::{ClaimAttempt, NodePath, PersistentSource};
use super::disk::fs_type;
use super::plan::Planning;
use super::scsi::{self, DiskKind, DiskVolume, RecordedDisk, ScsiDisks, disks_of, preferred};
use super::{KindRow, releases};
use crate::base::{run_file_io, spawn_blocking};
use crate::volumes::disk_dirs::{DiskDir, DiskPlugin, FcName};
use crate::volumes::pod_volumes::{Attempt, Kind, PlannedKind, ReadyVolume, SetUp};
use crate::volumes::{
    HostPathCheck, Unsupported, VolumeError, VolumePath, VolumePlugin, component,
};
use anyhow::anyhow;
use k8s_openapi::api::core::v1::FCVolumeSource;
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

const PLUGIN: VolumePlugin = DiskPlugin::Fc.plugin();
const KEY: &str = "fc";

pub(super) const KIND: KindRow = KindRow {
    plugins: &[PLUGIN],
    plan,
    resolve,
    key: KEY,
    set_up_claim: |claim| Box::pin(set_up_claim(claim)),
    tear_down: |manager, uid| Box::pin(scsi::tear_down(manager, uid, DiskPlugin::Fc)),
    release: |manager| Box::pin(releases::release(manager, &DISK_KIND)),
};

static DISK_KIND: DiskKind = DiskKind {
    plugin: DiskPlugin::Fc,
    devices: |disks, dir| {
        let name = FcName::parse(&dir.name);
        let links = name.map(|name| links(disks, &name)).unwrap_or_default();
        links.iter().filter_map(|link| disks.device(link)).collect()
    },
    is_strict: true,
    files: &[],
    log_out: |_, _| Box::pin(async { Ok(()) }),
};

/// The names of a volume's disk.
///
/// # Errors
/// There are none, or they cannot be the name of a directory.
fn name_of(source: &FCVolumeSource) -> anyhow::Result<(FcName, String)> {
    let (ports, units) = (source.target_wwns.as_deref(), source.wwids.as_deref());
    let (name, unique) = match (ports, source.lun, units) {
        (Some(ports @ [_, ..]), Some(lun), _) => {
            let name = FcName::Ports(ports.to_vec(), lun);
            (name.clone(), name)
        }
        (_, _, Some(units @ [_, ..])) => {
            // As udev has them.
            let written = units.iter().map(|unit| unit.replace(' ', "_")).collect();
            (FcName::Units(written), FcName::Units(units.to_vec()))
        }
        _ => {
            return Err(anyhow!("fc: no fc disk information found. failed to make a new mounter"));
        }
    };
    let directory = name.directory();
    component(&directory)?;
    if FcName::parse(&directory).is_none()
        || directory == crate::volumes::disk_dirs::BLOCK_DIRECTORY
    {
        return Err(anyhow!("fc: {directory:?} names no disk"));
    }
    Ok((name, format!("{}/{}", PLUGIN.0, unique.unique_name())))
}

/// Which of the names in a directory of links are paths to the disk. Pure.
fn matching<'n>(name: &FcName, links: &'n [String]) -> Vec<&'n String> {
    let is_of = |link: &str| match name {
        FcName::Ports(ports, lun) => ports.iter().any(|port| {
            let suffix = format!("fc-0x{port}-lun-{lun}");
            let adapter = link.strip_suffix(&suffix);
            adapter.is_some_and(|of| of.is_empty() || (of.starts_with("pci-") && of.ends_with('-')))
        }),
        FcName::Units(units) => {
            let unit = link.strip_prefix("scsi-");
            unit.is_some_and(|unit| units.iter().any(|one| one == unit))
        }
    };
    links.iter().filter(|link| is_of(link)).collect()
}

/// The links to the disk.
fn links(disks: &ScsiDisks, name: &FcName) -> Vec<PathBuf> {
    let directory = match name {
        FcName::Ports(..) => "by-path",
        FcName::Units(_) => "by-id",
    };
    let all = disks.links(directory);
    let found = matching(name, &all).into_iter();
    found.map(|link| disks.link(directory, link)).collect()
}

/// Looks for the disk, and again after a scan unless it has a multipath device. Blocking.
fn search(disks: &ScsiDisks, name: &FcName) -> Result<PathBuf, String> {
    if let Some(device) = preferred(disks, &links(disks, name)) {
        return Ok(device);
    }
    disks.scan_all();
    let found = links(disks, name);
    let device = || {
        let names = found.iter().filter_map(|link| disks.device(link));
        names.map(|device| disks.path(&device)).next()
    };
    let device = preferred(disks, &found).or_else(device);
    device.ok_or_else(|| "no fc disk found".to_owned())
}

/// A Fibre Channel volume that a pod defines.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FcVolume {
    name: FcName,
    volume: DiskVolume,
}

fn dir(name: &FcName, is_block: bool) -> DiskDir {
    DiskDir { plugin: DiskPlugin::Fc, is_block, iface: None, name: name.directory() }
}

fn plan(planning: &Planning<'_>) -> anyhow::Result<PlannedKind> {
    let Some(source) = &planning.volume.fc else {
        return Ok(None);
    };
    let Some(fs_type) = fs_type(source.fs_type.as_deref()) else {
        let wanted = format!("fc.fsType {:?}", source.fs_type);
        return Ok(Some(Arc::new(Unsupported(wanted))));
    };
    let (name, unique_name) = name_of(source)?;
    let (dir, read_only) = (dir(&name, false), source.read_only.unwrap_or_default());
    let volume = DiskVolume::of_pod(planning, dir, unique_name, fs_type, read_only)?;
    Ok(Some(Arc::new(FcVolume { name, volume })))
}

impl Kind for FcVolume {
    fn waits_for(&self) -> Cow<'static, str> {
        "the Fibre Channel disk".into()
    }

    fn directory(&self) -> Option<(VolumePlugin, bool)> {
        Some((PLUGIN, true))
    }

    fn set_up(self: Arc<Self>, attempt: Attempt) -> SetUp {
        Box::pin(async move { Ok(set_up(&attempt, &self.name, &self.volume).await?.into()) })
    }
}

fn resolve(source: &PersistentSource<'_>) -> Result<Option<NodePath>, VolumeError> {
    let Some(fc) = &source.spec.fc else {
        return Ok(None);
    };
    if fs_type(fc.fs_type.as_deref()).is_none() {
        let wanted = fc.fs_type.as_deref().unwrap_or_default();
        return source.unsupported(&format!("spec.fc.fsType {wanted:?}"));
    }
    name_of(fc).map_err(|error| VolumeError::set_up(source.name, error))?;
    Ok(Some(scsi::node_path(source, KEY, fc)))
}

async fn set_up_claim(claim: ClaimAttempt) -> Result<ReadyVolume, VolumeError> {
    let resolved = &claim.resolved;
    let recorded = resolved.at.of_kind(KEY);
    let RecordedDisk::<FCVolumeSource> { source, options } =
        recorded.map_err(|error| claim.fail(error))?;
    let (name, unique_name) = name_of(&source).map_err(|error| claim.fail(error))?;
    let (dir, fs_type) = (dir(&name, resolved.at.is_device), source.fs_type.as_deref());
    let volume = DiskVolume::of_claim(&claim, dir, unique_name, fs_type, options);
    let path = set_up(&claim.attempt, &name, &volume).await?.host_path;
    run_file_io(move || claim.finish(path, HostPathCheck::None)).await?
}

async fn set_up(
    attempt: &Attempt,
    name: &FcName,
    volume: &DiskVolume,
) -> Result<VolumePath, VolumeError> {
    let attach = async {
        let (mounter, name) = (attempt.manager.mounter.clone(), name.clone());
        let found = spawn_blocking(move || search(&disks_of(mounter.as_ref()), &name)).await;
        found.map_err(|error| error.to_string())?
    };
    scsi::set_up(attempt, volume, Box::pin(attach)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn a_disk_is_found_by_the_names_of_its_links() {
        let strings = |texts: &[&str]| -> Vec<String> {
            texts.iter().map(|text| (*text).to_owned()).collect()
        };
        let by_path = strings(&[
            "fc-0x500a-lun-0",
            "fc-0x500a-lun-0-part1",
            "fc-0x500a-lun-00",
            "pci-0000:41:00.0-fc-0x500a-lun-0",
            "pci-0000:41:00.1-fc-0x500b-lun-0",
            "pci-0000:41:00.0-fc-0x1500a-lun-0",
            "xpci-fc-0x500a-lun-0",
            "pci-0000:41:00.0fc-0x500a-lun-0",
            "pci-0000:41:00.0-fc-0x500a-lun-1",
            "ip-10.0.0.1:3260-iscsi-iqn.x-lun-0",
        ]);
        let by_id = strings(&[
            "scsi-3600",
            "scsi-3600-part1",
            "scsi-36001",
            "wwn-0x3600",
            "3600",
            "scsi-V_1",
        ]);
        for (name, links, expected) in [
            (FcName::Ports(strings(&["500a"]), 0), &by_path, &[0, 3][..]),
            (FcName::Ports(strings(&["500c", "500b"]), 0), &by_path, &[4]),
            (FcName::Ports(strings(&["500a"]), 1), &by_path, &[8]),
            (FcName::Ports(strings(&["500a"]), 2), &by_path, &[]),
            (FcName::Units(strings(&["3600"])), &by_id, &[0]),
            (FcName::Units(strings(&["x", "V_1"])), &by_id, &[5]),
            (FcName::Units(strings(&["360"])), &by_id, &[]),
        ] {
            let expected: Vec<_> = expected.iter().map(|at: &usize| &links[*at]).collect();
            assert_eq!(matching(&name, links), expected, "{name:?}");
        }
    }

    #[test]
    fn a_volume_has_upstreams_names() {
        for (source, expected) in [
            (
                json!({"targetWWNs": ["500a", "500b"], "lun": 0}),
                Some(("500a-500b-lun-0", "kubernetes.io/fc/[500a 500b]:0")),
            ),
            (json!({"wwids": ["VENDOR 1"]}), Some(("VENDOR_1", "kubernetes.io/fc/[VENDOR 1]"))),
            (
                json!({"targetWWNs": ["500a"], "wwids": ["3600"]}),
                Some(("3600", "kubernetes.io/fc/[3600]")),
            ),
            (json!({"targetWWNs": ["500a"]}), None),
            (json!({"targetWWNs": [], "lun": 1, "wwids": []}), None),
            (json!({"wwids": ["../x"]}), None),
            (json!({"wwids": [""]}), None),
            (json!({"wwids": ["volumeDevices"]}), None),
        ] {
            let named = name_of(&from_value(source.clone()).unwrap()).ok();
            let named = named.map(|(name, unique)| (name.directory(), unique));
            let expected = expected.map(|(name, unique)| (name.to_owned(), unique.to_owned()));
            assert_eq!(named, expected, "{source}");
        }
    }
}
