//! What iSCSI and Fibre Channel disks share: a disk is attached and mounted once per node, and bind-mounted for each pod;
//! or its device is mapped into each pod.
//!
//! 1. The directory of the disk is created, so that the volume is in use, and the controller may attach it.
//! 2. Its kind attaches it: it logs in, or looks for it.
//! 3. It is formatted if it is empty, checked and mounted.
//! 4. It is bound into the pod's directory, whose files get the pod's group.
//!
//! Once nothing of this kubelet has the disk mounted or mapped any more, it is unmounted and detached. Mounts are read from
//! the kernel, and disks from their directories, so that a restarted kubelet continues with those of an earlier one, also
//! of a Go kubelet.

mod block;
mod sysfs;

pub(super) use block::tear_down;
pub(super) use sysfs::ScsiDisks;

use super::bind::{self, ended_or, is_mounted, make_dir};
use super::claim::{ClaimAttempt, NodePath, PersistentSource};
use super::disk::{self, Disk};
use super::local::bind_args;
use super::plan::Planning;
use super::programs::{self, ProgramFailure};
use super::releases::MountedDevices;
use crate::base::{atomic_file, if_exists, run_file_io, spawn_blocking};
use crate::host::MountEntry;
use crate::host::program::Program;
use crate::volumes::disk_dirs::{self, DiskDir, DiskPlugin};
use crate::volumes::error::cannot;
use crate::volumes::ownership::ChangePolicy;
use crate::volumes::pod_volumes::Attempt;
use crate::volumes::{Mounter, VolumeError, VolumeGroup, VolumeManagerInner, VolumePath};
use anyhow::{Context as _, anyhow};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

/// Timeout of programs that only change a mount or a device.
const SHORT_LIMIT: Duration = Duration::from_secs(60);
/// The maximum number of mounts on a disk's directory that are unmounted.
const MAX_STACKED: usize = 16;

/// A volume of a pod on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DiskVolume {
    pub(super) dir: DiskDir,
    /// Upstream's unique name, by which the volume is in use and attached.
    pub(super) unique_name: String,
    /// Name of the PersistentVolume, or of the pod's volume.
    pub(super) name: String,
    pub(super) fs_type: String,
    pub(super) options: Vec<String>,
    pub(super) read_only: bool,
    /// The pod's `fsGroup` and `fsGroupChangePolicy`, if they apply.
    pub(super) owner: Option<(VolumeGroup, ChangePolicy)>,
}

/// What is recorded for the volume of a claim.
#[derive(Serialize, Deserialize)]
pub(super) struct RecordedDisk<S> {
    /// The disk as the PersistentVolume has it.
    pub(super) source: S,
    pub(super) options: Vec<String>,
}

/// Where the volume of a claim is, with the record of its kind.
pub(super) fn node_path<S: Serialize>(
    claimed: &PersistentSource<'_>,
    key: &str,
    source: S,
) -> NodePath {
    let options = claimed.options.clone();
    let is_written = !claimed.claim.read_only && !claimed.is_device;
    NodePath {
        managed: is_written,
        owned: is_written,
        measured: !claimed.is_device,
        ..claimed.path_of_kind(key, json!(RecordedDisk { source, options }))
    }
}

impl DiskVolume {
    /// A volume that a pod defines. If it is mounted read-only, its files keep their group.
    ///
    /// # Errors
    /// The pod's security context is invalid.
    pub(super) fn of_pod(
        planning: &Planning<'_>,
        dir: DiskDir,
        unique_name: String,
        fs_type: String,
        read_only: bool,
    ) -> anyhow::Result<Self> {
        let owner = planning.owner()?;
        Ok(Self {
            dir,
            unique_name,
            name: planning.volume.name.clone(),
            fs_type,
            options: Vec::new(),
            read_only,
            owner: (!read_only).then_some(owner),
        })
    }

    /// The volume of a claim. Its file system was found to be supported when the claim was resolved.
    pub(super) fn of_claim(
        claim: &ClaimAttempt,
        dir: DiskDir,
        unique_name: String,
        fs_type: Option<&str>,
        options: Vec<String>,
    ) -> Self {
        Self {
            dir,
            unique_name,
            name: claim.resolved.volume.clone(),
            fs_type: disk::fs_type(fs_type).unwrap_or_default(),
            options,
            read_only: claim.claim.read_only,
            owner: claim.owner(),
        }
    }

    fn disk(&self, attempt: &Attempt, device: &Path) -> Disk {
        Disk {
            mounter: attempt.manager.mounter.clone(),
            volume: self.name.clone(),
            device: device.to_string_lossy().into_owned(),
            fs_type: self.fs_type.clone(),
            options: disk::options(&self.options, self.read_only),
            ended: attempt.pod.volumes.ended.clone(),
        }
    }

    fn wait_failed(&self, source: anyhow::Error) -> VolumeError {
        let volume = self.name.clone();
        if self.dir.is_block {
            let step = "WaitForAttach";
            return VolumeError::Map { step, volume, source };
        }
        VolumeError::WaitForAttach { volume, source }
    }
}

/// Sets up a volume for a pod; returns its path. `attach` is polled only if the disk is not mounted yet.
pub(super) async fn set_up(
    attempt: &Attempt,
    volume: &DiskVolume,
    attach: BoxFuture<'_, Result<PathBuf, String>>,
) -> Result<VolumePath, VolumeError> {
    let (manager, volumes) = (&attempt.manager, &attempt.pod.volumes);
    let ended = &volumes.ended;
    // The teardown waits for the programs, which end at once then.
    let _running = volumes.program_guard()?;
    let path = volume.dir.path(&manager.root);
    let key = lock_of(&path);
    let lock = manager.locks.lock(&key);
    let lock = ended.run_until_cancelled(lock).await;
    let mut lock = lock.ok_or(VolumeError::Cancelled)?;
    let fail = |error| volume.wait_failed(error);
    {
        let (csi, path) = (manager.csi.clone(), path.clone());
        let named = (volume.dir.clone(), volume.unique_name.clone());
        let begin = move || -> anyhow::Result<()> {
            make_dir(&path)?;
            // Without it in the Node's list the volume would not be attached.
            let listed = csi.read_disks(Some(named)).map(drop);
            listed.context("cannot list the disks in use")
        };
        run_file_io(begin).await?.map_err(fail)?;
    }
    // A controller has nothing to do for these disks, so without one nothing is missing.
    if manager.node.controller_attach && manager.cluster.csi.api.is_some() {
        let attached = manager.csi.wait_until_attached(&volume.unique_name, ended);
        attached.await?;
    }
    let attach = async {
        let attached = attach.await;
        attached.map_err(|why| ended_or(ended, fail(anyhow!(why))))
    };
    if volume.dir.is_block {
        let link = block::map(attempt, volume, path, attach.await?).await?;
        return Ok(VolumePath::of(link));
    }
    let (mounter, at) = (manager.mounter.clone(), path.clone());
    let is_mounted = run_file_io(move || is_mounted(mounter.as_ref(), &at)).await?;
    if !is_mounted.map_err(fail)? {
        let device = attach.await?;
        let disk = volume.disk(attempt, &device);
        let mounted = disk::mount(attempt, disk, path.clone(), lock).await?;
        lock = mounted.map_err(|why| VolumeError::MountDevice {
            volume: volume.name.clone(),
            source: anyhow!(why),
        })?;
    }
    let target = attempt.pod.directory.volume(volume.dir.plugin.plugin(), &volume.name)?;
    bind(attempt, volume, &path, &target).await?;
    // Until it is bound, it would be detached with the last other pod.
    drop(lock);
    Ok(VolumePath {
        managed: !volume.read_only,
        read_only: volume.read_only,
        ..VolumePath::of(target)
    })
}

/// Binds the mounted disk into the pod's directory, with the volume's options, and gives its files to the pod's group.
async fn bind(
    attempt: &Attempt,
    volume: &DiskVolume,
    source: &Path,
    target: &Path,
) -> Result<(), VolumeError> {
    let fail = |error| VolumeError::set_up(&volume.name, error);
    let is_bound = bind::prepare(attempt, &volume.name, target).await?;
    if !is_bound {
        bind::bind(attempt, source, target).await?.map_err(fail)?;
    }
    let (from, to) = (source.to_string_lossy(), target.to_string_lossy());
    // Also if it was bound: an interrupted attempt may have left it without its options.
    if let Some(args) = bind_args(&from, &volume.options, volume.read_only, &to)
        && let Err(why) = bind::remount(attempt, &args).await
    {
        // What a container may use stays.
        if !is_bound {
            bind::unbind(attempt, target).await?;
        }
        return Err(ended_or(&attempt.pod.volumes.ended, fail(anyhow!(why))));
    }
    match volume.owner {
        Some(owner) if owner.0.0.is_some() => {
            bind::set_group(attempt, &volume.name, owner, target).await
        }
        _ => Ok(()),
    }
}

/// What a kind does to detach its disks.
#[derive(Clone, Copy)]
pub(super) struct DiskKind {
    pub(super) plugin: DiskPlugin,
    /// The devices of a disk. Blocking.
    pub(super) devices: fn(&ScsiDisks, &DiskDir) -> Vec<String>,
    /// Whether devices are flushed before they are removed, and one that is in use by `multipath` stays.
    pub(super) is_strict: bool,
    /// The files of a disk's directory.
    pub(super) files: &'static [&'static str],
    /// Releases what only the kind has, once the devices are gone.
    pub(super) log_out:
        fn(Arc<VolumeManagerInner>, DiskDir) -> BoxFuture<'static, anyhow::Result<()>>,
}

impl MountedDevices for DiskKind {
    type Device = DiskDir;

    fn kind(&self) -> &'static str {
        self.plugin.plugin().0
    }

    fn list(
        &self,
        manager: Arc<VolumeManagerInner>,
    ) -> BoxFuture<'static, io::Result<Vec<DiskDir>>> {
        let plugin = self.plugin;
        Box::pin(async move {
            let list = move || disk_dirs::list(&manager.root, plugin);
            run_file_io(list).await.map_err(io::Error::other)?
        })
    }

    fn lock_key(&self, manager: &VolumeManagerInner, disk: &DiskDir) -> String {
        lock_of(&disk.path(&manager.root))
    }

    fn release<'a>(
        &'a self,
        manager: &'a Arc<VolumeManagerInner>,
        disk: &'a DiskDir,
    ) -> BoxFuture<'a, anyhow::Result<()>> {
        Box::pin(detach(manager, *self, disk.clone()))
    }
}

/// Unmounts and detaches a disk, unless something of this kubelet uses it.
async fn detach(
    manager: &Arc<VolumeManagerInner>,
    kind: DiskKind,
    dir: DiskDir,
) -> anyhow::Result<()> {
    let (of, at) = (manager.clone(), dir.clone());
    if !spawn_blocking(move || unmount(&of, &kind, &at)).await?? {
        return Ok(());
    }
    (kind.log_out)(manager.clone(), dir.clone()).await?;
    let manager = manager.clone();
    let remove = move || {
        let path = dir.path(&manager.root);
        for file in kind.files {
            let file = path.join(file);
            if_exists(fs::remove_file(&file)).with_context(cannot("remove", &file))?;
        }
        if_exists(atomic_file::remove_leftovers(&path)).with_context(cannot("clean", &path))?;
        if_exists(fs::remove_dir(&path)).with_context(cannot("remove", &path))?;
        if dir.iface.is_some() {
            // Of the last disk of the interface; with another one it is not empty.
            let _ = path.parent().map(fs::remove_dir);
        }
        let listed = manager.csi.read_disks(None).map(drop);
        listed.context("cannot list the disks in use")
    };
    run_file_io(remove).await?
}

/// Unmounts the disk and removes its devices; false if something of this kubelet has it mounted or mapped. Blocking.
fn unmount(manager: &VolumeManagerInner, kind: &DiskKind, dir: &DiskDir) -> anyhow::Result<bool> {
    let (mounter, path) = (manager.mounter.as_ref(), dir.path(&manager.root));
    let disks = disks_of(mounter);
    let list = || mounter.list().with_context(cannot("read the mounts of", &path));
    let mounts = list()?;
    let mut devices: BTreeSet<String> = (kind.devices)(&disks, dir).into_iter().collect();
    let multipath: BTreeSet<String> = devices.iter().filter_map(|it| disks.multipath(it)).collect();
    // All its paths go, or it stays.
    devices.extend(multipath.iter().flat_map(|it| disks.paths_of(it)));
    let numbers = devices.iter().chain(&multipath).filter_map(|it| disks.numbers(it));
    let mut numbers: BTreeSet<String> = numbers.collect();
    let own = mounts.iter().filter(|mount| mount.mount_point == path);
    numbers.extend(own.map(|mount| mount.device.clone()));
    let is_other =
        |mount: &&MountEntry| mount.mount_point != path && mount.is_beneath(manager.root.path());
    let mut others = mounts.iter().filter(is_other);
    if others.any(|mount| numbers.contains(&mount.device)) {
        return Ok(false);
    }
    if dir.is_block && block::is_mapped(&path, kind.files)? {
        return Ok(false);
    }
    for _ in 0..MAX_STACKED {
        if !is_mounted(mounter, &path)? {
            break;
        }
        mounter.unmount(&path).with_context(cannot("unmount", &path))?;
    }
    if is_mounted(mounter, &path)? {
        return Err(anyhow!("it is still mounted"));
    }
    for device in &multipath {
        remove_multipath(mounter, &disks, device, kind.is_strict)?;
    }
    for device in &devices {
        if kind.is_strict {
            let args = ["--flushbufs".to_owned(), path_of(&disks, device)];
            if let Err(error) = run(mounter, "blockdev", &args) {
                tracing::warn!(device, err = error, "Failed to flush a device");
            }
        }
        if let Err(error) = disks.delete(device) {
            tracing::warn!(device, err = %error, "Failed to remove a device");
        }
    }
    Ok(true)
}

fn remove_multipath(
    mounter: &dyn Mounter,
    disks: &ScsiDisks,
    device: &str,
    is_strict: bool,
) -> anyhow::Result<()> {
    let path = path_of(disks, device);
    let Err(error) = run(mounter, "multipath", &["-f".to_owned(), path.clone()]) else {
        return Ok(());
    };
    if is_strict {
        return Err(anyhow!("failed to flush multipath device {path}: {error}"));
    }
    tracing::warn!(device, err = error, "Failed to flush a multipath device");
    Ok(())
}

fn run(mounter: &dyn Mounter, program: &str, args: &[String]) -> Result<(), String> {
    let ran = mounter.run(Program::new(program, args, SHORT_LIMIT));
    programs::success(program, ran)
        .map_err(|ProgramFailure { status, output }| format!("{status}\n{output}"))
}

fn path_of(disks: &ScsiDisks, device: &str) -> String {
    disks.path(device).to_string_lossy().into_owned()
}

/// The disks of the mounter's machine.
pub(super) fn disks_of(mounter: &dyn Mounter) -> ScsiDisks {
    ScsiDisks::new(mounter.machine_root().to_owned())
}

/// The device to mount, given the paths to a disk: a multipath device that has one of them, if there is one.
pub(super) fn preferred(disks: &ScsiDisks, devices: &[PathBuf]) -> Option<PathBuf> {
    let names = devices.iter().filter_map(|path| disks.device(path));
    let mut multipath = names.filter_map(|name| disks.multipath(&name));
    multipath.next().map(|device| disks.path(&device))
}

fn lock_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
