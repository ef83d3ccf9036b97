//! iSCSI volumes, of pods and of claims: `iscsiadm` logs in to the target, and the disk is mounted, or mapped.
//!
//! A target may not respond for ever: `iscsiadm` runs without a thread, has a timeout and ends with the pod.

mod disk;
mod session;

use super::claim::{ClaimAttempt, NodePath, PersistentSource};
use super::disk::fs_type;
use super::plan::Planning;
use super::scsi::{self, DiskKind, DiskVolume, RecordedDisk};
use super::{KindRow, releases};
use crate::apiserver::ResourcePath;
use crate::base::{atomic_file, error_chain, if_exists, run_file_io};
use crate::model::PodExt as _;
use crate::volumes::disk_dirs::{DiskDir, DiskPlugin, IscsiName};
use crate::volumes::error::cannot;
use crate::volumes::pod_volumes::{Attempt, Kind, PlannedKind, ReadyVolume, SetUp};
use crate::volumes::{
    HostPathCheck, Unsupported, VolumeError, VolumeManagerInner, VolumePath, VolumePlugin,
};
use anyhow::Context as _;
use disk::{FILE, IscsiDisk, IscsiFile, IscsiLogin, IscsiSource};
use k8s_openapi::api::core::v1::Secret;
use serde_json::{from_value, to_value};
use session::Initiator;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

const PLUGIN: VolumePlugin = DiskPlugin::Iscsi.plugin();
const KEY: &str = "iscsi";

pub(super) const KIND: KindRow = KindRow {
    plugins: &[PLUGIN],
    plan,
    resolve,
    key: KEY,
    set_up_claim: |claim| Box::pin(set_up_claim(claim)),
    tear_down: |manager, uid| Box::pin(scsi::tear_down(manager, uid, DiskPlugin::Iscsi)),
    release: |manager| Box::pin(releases::release(manager, &DISK_KIND)),
};

static DISK_KIND: DiskKind = DiskKind {
    plugin: DiskPlugin::Iscsi,
    devices: |disks, dir| {
        let name = IscsiName::parse(&dir.name);
        name.map(|of| disks.iscsi_devices(&of.iqn, of.lun)).unwrap_or_default()
    },
    is_strict: false,
    files: &[FILE],
    log_out: |manager, dir| Box::pin(log_out(manager, dir)),
};

/// An iSCSI volume that a pod defines.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IscsiVolume {
    disk: IscsiDisk,
    volume: DiskVolume,
}

fn plan(planning: &Planning<'_>) -> anyhow::Result<PlannedKind> {
    let Some(source) = &planning.volume.iscsi else {
        return Ok(None);
    };
    let source: IscsiSource = from_value(to_value(source)?)?;
    let Some(fs_type) = fs_type(source.fs_type.as_deref()) else {
        let wanted = format!("iscsi.fsType {:?}", source.fs_type);
        return Ok(Some(Arc::new(Unsupported(wanted))));
    };
    let disk = IscsiDisk::new(&planning.volume.name, planning.pod.namespace(), &source);
    let (dir, unique_name) = (disk.dir(false)?, disk.unique_name());
    let volume = DiskVolume::of_pod(planning, dir, unique_name, fs_type, source.read_only)?;
    Ok(Some(Arc::new(IscsiVolume { disk, volume })))
}

impl Kind for IscsiVolume {
    fn waits_for(&self) -> Cow<'static, str> {
        format!("the iSCSI target {}", self.disk.iqn).into()
    }

    fn directory(&self) -> Option<(VolumePlugin, bool)> {
        Some((PLUGIN, true))
    }

    fn set_up(self: Arc<Self>, attempt: Attempt) -> SetUp {
        Box::pin(async move { Ok(set_up(&attempt, &self.disk, &self.volume).await?.into()) })
    }
}

fn resolve(source: &PersistentSource<'_>) -> Result<Option<NodePath>, VolumeError> {
    let Some(iscsi) = &source.spec.iscsi else {
        return Ok(None);
    };
    let fail = |error| VolumeError::set_up(source.name, error);
    let of: IscsiSource =
        to_value(iscsi).and_then(from_value).map_err(|error| fail(error.into()))?;
    if fs_type(of.fs_type.as_deref()).is_none() {
        let wanted = of.fs_type.unwrap_or_default();
        return source.unsupported(&format!("spec.iscsi.fsType {wanted:?}"));
    }
    let disk = IscsiDisk::new(source.name, &source.claim.key.namespace, &of);
    disk.dir(source.is_device).map_err(fail)?;
    Ok(Some(scsi::node_path(source, KEY, of)))
}

async fn set_up_claim(claim: ClaimAttempt) -> Result<ReadyVolume, VolumeError> {
    let (of_pod, resolved) = (&claim.claim, &claim.resolved);
    let recorded = resolved.at.of_kind(KEY);
    let RecordedDisk::<IscsiSource> { source, options } =
        recorded.map_err(|error| claim.fail(error))?;
    let disk = IscsiDisk::new(&resolved.volume, &of_pod.key.namespace, &source);
    let dir = disk.dir(resolved.at.is_device);
    let dir = dir.map_err(|error| claim.fail(error))?;
    let (unique_name, fs_type) = (disk.unique_name(), source.fs_type.as_deref());
    let volume = DiskVolume::of_claim(&claim, dir, unique_name, fs_type, options);
    let path = set_up(&claim.attempt, &disk, &volume).await?.host_path;
    run_file_io(move || claim.finish(path, HostPathCheck::None)).await?
}

async fn set_up(
    attempt: &Attempt,
    disk: &IscsiDisk,
    volume: &DiskVolume,
) -> Result<VolumePath, VolumeError> {
    let attach = async {
        let initiator = Initiator {
            manager: attempt.manager.clone(),
            secret: secret(attempt, disk).await?,
            ended: attempt.pod.volumes.ended.clone(),
        };
        // Written first: what a login leaves behind is undone by it.
        let text = disk.to_file().text().map_err(|error| error.to_string())?;
        let file = volume.dir.path(&attempt.manager.root).join(FILE);
        let write = move || atomic_file::write(&file, text.as_bytes());
        let written = run_file_io(write).await.map_err(|error| error.to_string())?;
        written.map_err(|error| format!("iscsi: create {FILE} err {error}"))?;
        initiator.attach(disk).await
    };
    scsi::set_up(attempt, volume, Box::pin(attach)).await
}

/// The values for authentication. They are read for each attempt, and nothing of them is kept.
///
/// # Errors
/// They cannot be read. The text has no value.
async fn secret(attempt: &Attempt, disk: &IscsiDisk) -> Result<BTreeMap<String, String>, String> {
    let Some((namespace, name)) = &disk.secret else {
        return Ok(BTreeMap::new());
    };
    let api = attempt.manager.cluster.csi.api.as_ref();
    let api = api.ok_or("cannot get kube client")?;
    let found = api.get::<Secret>(ResourcePath::namespaced(namespace, name)).await;
    let found = found.map_err(|error| {
        let why = error_chain(&error);
        format!("couldn't get secret {namespace}/{name} error: {why}")
    })?;
    let data = found.data.unwrap_or_default().into_iter();
    let text = |value: Vec<u8>| String::from_utf8_lossy(&value).into_owned();
    Ok(data.map(|(key, value)| (key, text(value.0))).collect())
}

async fn log_out(manager: Arc<VolumeManagerInner>, dir: DiskDir) -> anyhow::Result<()> {
    let file: PathBuf = dir.path(&manager.root).join(FILE);
    let read = move || {
        let text = if_exists(fs::read_to_string(&file)).with_context(cannot("read", &file))?;
        // What has no form says nothing; the directory's name does.
        Ok(text.and_then(|text| serde_json::from_str::<IscsiFile>(&text).ok()))
    };
    let found: anyhow::Result<_> = run_file_io(read).await?;
    let login = IscsiLogin::of(&dir, found?.as_ref());
    let login = login.context("its directory does not have the name of a disk")?;
    let initiator = Initiator { manager, secret: BTreeMap::new(), ended: CancellationToken::new() };
    initiator.log_out(&dir, &login).await
}
