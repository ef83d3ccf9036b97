//! `local` volumes of claims. A device is mounted once per node, and bind-mounted for each pod, as is a directory with
//! mount options; a directory without them, and a device for `volumeDevices`, are used at their path.
//!
//! Mounts are read from the kernel, so that a restarted kubelet continues with those of an earlier one.

mod rules;

pub(super) use rules::bind_args;

use super::bind::make_dir;
use super::claim::{ClaimAttempt, NodePath, PersistentSource};
use super::disk::{self, Disk};
use super::{KindRow, host_path, programs};
use crate::base::panics::PanicScope;
use crate::base::{spawn, spawn_blocking};
use crate::volumes::error::cannot;
use crate::volumes::ownership::{self, OwnershipWalk};
use crate::volumes::pod_volumes::ReadyVolume;
use crate::volumes::{
    HostPathCheck, KubeletRoot, Mounter, VolumeError, VolumeManagerInner, VolumePlugin, component,
};
use anyhow::{Context as _, anyhow};
use futures::future::join_all;
use rules::LocalMount;
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags};
use serde_json::json;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long the teardown of a pod waits for unmounting unused devices.
pub(in crate::volumes) const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of programs that only change a mount.
const SHORT_LIMIT: Duration = Duration::from_secs(60);

const KEY: &str = "local";

pub(super) const KIND: KindRow = KindRow {
    plugins: &[VolumePlugin::LOCAL],
    resolve,
    key: KEY,
    set_up_claim: |claim| Box::pin(set_up_claim(claim)),
    release: |manager| Box::pin(release_devices(manager)),
    ..KindRow::NONE
};

fn resolve(source: &PersistentSource<'_>) -> Result<Option<NodePath>, VolumeError> {
    let Some(local) = &source.spec.local else {
        return Ok(None);
    };
    let Some(fs_type) = disk::fs_type(local.fs_type.as_deref()) else {
        let wanted = local.fs_type.as_deref().unwrap_or_default();
        return source.unsupported(&format!("spec.local.fsType {wanted:?}"));
    };
    let path = local.path.clone();
    if source.is_device {
        return Ok(Some(NodePath { path, check: HostPathCheck::BlockDevice, ..source.path() }));
    }
    let recorded = json!({"fsType": fs_type, "options": source.options});
    Ok(Some(NodePath {
        path,
        check: HostPathCheck::Directory,
        managed: !source.claim.read_only,
        owned: source.claim.owner.0.0.is_some() && !source.claim.read_only,
        measured: true,
        ..source.path_of_kind(KEY, recorded)
    }))
}

/// Sets up the volume of a claim. Waits for attempts of other pods with the same device, without occupying a thread.
async fn set_up_claim(claim: ClaimAttempt) -> Result<ReadyVolume, VolumeError> {
    let (manager, volume) = (claim.attempt.manager.clone(), &claim.resolved);
    let path = PathBuf::from(&volume.at.path);
    let (threads, ended) = claim.attempt.threads();
    let lock = manager.locks.lock(&volume.volume).await;
    // Programs and walks may keep a thread for hours, so they have their own, once the path responds.
    threads.run(path, &[], &ended, || ()).await?;
    let permit = manager.local_threads.clone().acquire_owned();
    let permit = ended.run_until_cancelled(permit).await;
    let permit = permit.ok_or(VolumeError::Cancelled)?;
    let set_up = move || {
        let _held = (lock, permit);
        set_up(claim)
    };
    spawn_blocking(set_up).await?
}

/// The same, with the volume's lock. Blocking.
fn set_up(claim: ClaimAttempt) -> Result<ReadyVolume, VolumeError> {
    let attempt = &claim.attempt;
    // The pod may have been torn down while this waited for the lock.
    drop(attempt.pod.volumes.creation_guard()?);
    let mount = claim.resolved.at.of_kind(KEY);
    let volume = LocalVolume {
        claim: &claim,
        root: &attempt.manager.root,
        mounter: attempt.manager.mounter.as_ref(),
        name: &claim.resolved.volume,
        path: &claim.resolved.at.path,
        mount: mount.map_err(|error| claim.fail(error))?,
    };
    match volume.set_up()? {
        Some(target) => claim.finish(target, HostPathCheck::None),
        None => host_path::use_for_claim(claim),
    }
}

/// A volume that is mounted for a pod.
struct LocalVolume<'a> {
    claim: &'a ClaimAttempt,
    root: &'a KubeletRoot,
    mounter: &'a dyn Mounter,
    /// Name of the PersistentVolume.
    name: &'a str,
    /// The path of the directory or the device.
    path: &'a str,
    mount: LocalMount,
}

impl LocalVolume<'_> {
    /// Mounts the volume for the pod; `None` if it needs no mount: a directory without options.
    fn set_up(&self) -> Result<Option<PathBuf>, VolumeError> {
        let pod = &self.claim.attempt.pod.directory;
        let target = pod.volume(VolumePlugin::LOCAL, self.name)?;
        let bound = self.mounter.is_mounted(&target);
        let bound = bound.with_context(cannot("read", &target));
        let bound = bound.map_err(|error| self.claim.fail(error))?;
        if bound && self.claim.was_made() {
            return Ok(Some(target));
        }
        let is_device = self.is_device()?;
        let source = if is_device {
            self.mount_device()?
        } else if self.mount.options.is_empty() && !bound {
            return Ok(None);
        } else {
            PathBuf::from(self.path)
        };
        let result = self.give_and_bind(&source, &target, bound);
        if result.is_err() && is_device {
            // The pod may not retry, and another pod's release may have been skipped while this held the lock.
            release(self.root, self.mounter, self.name);
        }
        result.map(|()| Some(target))
    }

    /// Whether its path is a block device; otherwise it must be a directory. Follows links.
    fn is_device(&self) -> Result<bool, VolumeError> {
        let path = Path::new(self.path);
        let source = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return Ok(false),
            Ok(metadata) if metadata.file_type().is_block_device() => return Ok(true),
            Ok(_) => anyhow!("only directory and block device are supported"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                anyhow!("path {:?} does not exist", self.path)
            }
            Err(error) => anyhow!(error).context(format!("cannot read {}", self.path)),
        };
        Err(VolumeError::NewMounter { volume: self.name.to_owned(), source })
    }

    /// Mounts the device, unless it is mounted for another pod.
    fn mount_device(&self) -> Result<PathBuf, VolumeError> {
        let target = self.root.local_devices().join(component(self.name)?);
        let fail = |source| VolumeError::MountDevice { volume: self.name.to_owned(), source };
        let is_mounted = self.mounter.is_mounted(&target);
        let is_mounted = is_mounted.with_context(cannot("read", &target));
        if is_mounted.map_err(fail)? {
            return Ok(target);
        }
        make_dir(&target).map_err(fail)?;
        let options = &self.mount.options;
        let disk = Disk {
            mounter: self.claim.attempt.manager.mounter.clone(),
            volume: self.name.to_owned(),
            device: self.path.to_owned(),
            fs_type: self.mount.fs_type.clone(),
            options: disk::options(options, self.claim.claim.read_only),
            ended: CancellationToken::new(),
        };
        if let Err(error) = disk.format_and_mount(&target) {
            // The empty directory; if this fails, it is removed with the next device.
            let _ = fs::remove_dir(&target);
            let (path, fs_type) = (self.path, &self.mount.fs_type);
            let at = target.display();
            return Err(fail(anyhow!(
                "local: failed to mount device {path} at {at} (fstype: {fs_type}), error {error}"
            )));
        }
        Ok(target)
    }

    /// Sets the group of the mounted files and bind-mounts them into the pod's directory with the volume's options.
    fn give_and_bind(&self, source: &Path, target: &Path, bound: bool) -> Result<(), VolumeError> {
        let fail = |source| self.claim.fail(source);
        let pod = &self.claim.attempt.pod;
        if let Some(owner) = self.claim.owner() {
            let mounts = self.mounter.list();
            let mounts = mounts.with_context(cannot("list the mounts of", source));
            let mounts = mounts.map_err(fail)?;
            let (pods, own) = (self.root.pods_dir(), &pod.directory);
            let shared = rules::is_bound(&mounts, &pods, self.name, Some(own.path()));
            let walk = OwnershipWalk::default();
            ownership::set_up(own, self.name, source, owner, || shared, &walk).map_err(fail)?;
        }
        // Opened first, because this may hang, and the teardown waits for what follows.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(source, flags, Mode::empty())
            .with_context(cannot("open", source))
            .map_err(fail)?;
        let opened = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let _creating = pod.volumes.creation_guard()?;
        if bound {
            // Left by an interrupted attempt: it may lack the mount options.
            self.unbind(target).map_err(fail)?;
        }
        make_dir(target).map_err(fail)?;
        self.mounter
            .bind(&opened, target)
            .with_context(cannot("bind onto", target))
            .map_err(fail)?;
        let (from, to) = (source.to_string_lossy(), target.to_string_lossy());
        let options = &self.mount.options;
        let Some(args) = rules::bind_args(&from, options, self.claim.claim.read_only, &to) else {
            return Ok(());
        };
        let never = CancellationToken::new();
        programs::mount(self.mounter, &args, SHORT_LIMIT, &never).map_err(|error| {
            if let Err(error) = self.unbind(target) {
                tracing::warn!(volume = self.name, err = %error, "Failed to unmount volume");
            }
            fail(anyhow::Error::msg(error))
        })
    }

    fn unbind(&self, target: &Path) -> anyhow::Result<()> {
        let unmounted = self.mounter.unmount(target);
        unmounted.with_context(cannot("unmount", target))?;
        fs::remove_dir(target).with_context(cannot("remove", target))
    }
}

/// Unmounts devices that no pod uses any more, each on a thread of its own. If that takes longer than
/// [`RELEASE_TIMEOUT`], it continues in the background, and later teardowns do not wait for it again.
async fn release_devices(manager: Arc<VolumeManagerInner>) {
    let release = async move {
        let lister = manager.clone();
        let list = move || lock_unused(&lister);
        let unused = spawn_blocking(list).await.unwrap_or_default();
        let releases = unused.into_iter().map(|(name, lock)| {
            let manager = manager.clone();
            spawn_blocking(move || {
                let _lock = lock;
                release(&manager.root, manager.mounter.as_ref(), &name);
            })
        });
        join_all(releases).await;
    };
    let _ = timeout(RELEASE_TIMEOUT, spawn(PanicScope::Sync, release)).await;
}

/// The devices that no pod uses, locked. Those that are locked already are skipped; their holder releases them.
fn lock_unused(manager: &VolumeManagerInner) -> Vec<(String, OwnedMutexGuard<()>)> {
    let entries = fs::read_dir(manager.root.local_devices()).into_iter();
    let names = entries.flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let locked = names.filter_map(|name| manager.locks.try_lock(&name).map(|lock| (name, lock)));
    let mut locked: Vec<_> = locked.collect();
    if locked.is_empty() {
        return locked;
    }
    // Listed once they are locked, because pods bind them under the lock.
    match manager.mounter.list() {
        Ok(mounts) => {
            let pods = manager.root.pods_dir();
            locked.retain(|(name, _)| !rules::is_bound(&mounts, &pods, name, None));
        }
        Err(error) => {
            tracing::warn!(err = %error, "Failed to list the mounts of devices");
            locked.clear();
        }
    }
    locked
}

/// Unmounts a device unless a pod uses it. A failure is retried when the next pod ends.
fn release(root: &KubeletRoot, mounter: &dyn Mounter, volume: &str) {
    let target = root.local_devices().join(volume);
    let released = mounter.list().and_then(|mounts| {
        if rules::is_bound(&mounts, &root.pods_dir(), volume, None) {
            return Ok(());
        }
        mounter.unmount(&target)?;
        fs::remove_dir(&target)
    });
    if let Err(error) = released {
        tracing::warn!(volume, path = %target.display(), err = %error, "Failed to unmount device");
    }
}
