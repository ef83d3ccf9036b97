//! Content volumes, whose files the kubelet writes: configMap, secret, downwardAPI, projected.
//!
//! `plan`, `sources`, `payload` and `mount_points` are pure; this file, `atomic_writer` and `owner` access the file
//! system.

mod atomic_writer;
mod mount_points;
mod payload;
mod plan;
mod sources;

pub use atomic_writer::{Written, write as write_files};
pub use payload::{FileContent, Payload};

use super::KindRow;
use crate::apiserver::configmap_secret::ConfigMapsAndSecrets;
use crate::host::files::open_without_links;
use crate::volumes::cluster::VolumeKeys;
use crate::volumes::error::cannot;
use crate::volumes::group::{READ_ONLY, VolumeGroup};
use crate::volumes::pod_dirs::{create_dir, write_marker};
use crate::volumes::pod_volumes::{Attempt, Kind, ReadyVolume, SetUp};
use crate::volumes::{Mounter, PodDir, VolumeError, VolumePath, VolumePlugin};
use anyhow::Context as _;
use plan::{ContentVolume, VolumeFileSource};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CONFIG_MAP: VolumePlugin = VolumePlugin("kubernetes.io/configmap");
pub(in crate::volumes) const SECRET: VolumePlugin = VolumePlugin("kubernetes.io/secret");
const PROJECTED: VolumePlugin = VolumePlugin("kubernetes.io/projected");
const DOWNWARD_API: VolumePlugin = VolumePlugin("kubernetes.io/downward-api");

pub(super) const KIND: KindRow = KindRow {
    plugins: &[CONFIG_MAP, SECRET, PROJECTED, DOWNWARD_API],
    plan: plan::plan,
    ..KindRow::NONE
};

/// Mode of a volume's root directory on disk: every container of the pod may write to an emptyDir.
pub(super) const DISK_MODE: u32 = 0o777;
/// The same in memory: the kernel's default of a tmpfs; sticky, so that users cannot remove each other's files.
pub(super) const MEMORY_MODE: u32 = 0o1777;
const MOUNT_POINT_MODE: u32 = 0o755;

impl Kind for ContentVolume {
    fn directory(&self) -> Option<(VolumePlugin, bool)> {
        Some((self.plugin, self.memory.is_some()))
    }

    fn has_content(&self) -> bool {
        true
    }

    fn add_keys(&self, keys: &mut VolumeKeys) {
        for source in &self.sources {
            match source {
                VolumeFileSource::Pod(_) => {}
                VolumeFileSource::Object(object) => {
                    keys.configmaps_and_secrets.insert(object.key.clone());
                }
                VolumeFileSource::Token(token) => {
                    keys.tokens.insert(token.key.clone());
                }
                VolumeFileSource::Certificate(certificate) => {
                    keys.certificates.insert(certificate.key.clone());
                }
                VolumeFileSource::Bundle(_) => keys.has_bundles = true,
            }
        }
    }

    fn may_change(&self, immutable: &ConfigMapsAndSecrets) -> bool {
        let mut keys = sources::object_keys(&self.sources).into_iter();
        sources::may_change(&self.sources) || keys.any(|key| !immutable.contains_key(&key))
    }

    fn is_on_disk(&self, pod: &PodDir, name: &str, mounter: &dyn Mounter) -> bool {
        self.find_existing(pod, name, mounter).is_some()
    }

    fn set_up(self: Arc<Self>, attempt: Attempt) -> SetUp {
        attempt.create(move |attempt| {
            let mut ready = match &attempt.ready {
                Some(ready) => self.update(attempt, ready),
                None => self.make(attempt)?,
            };
            ready.immutable = immutable(&attempt.inputs.configmaps_and_secrets);
            Ok(ready)
        })
    }
}

impl ContentVolume {
    /// Sets the volume up. If its configmaps and secrets are missing or immutable, a volume of an earlier kubelet is kept
    /// as it is, because a restart of the kubelet must not affect pods.
    fn make(&self, attempt: &Attempt) -> anyhow::Result<ReadyVolume> {
        let (pod, name, inputs) = (&attempt.pod.directory, &attempt.name, &attempt.inputs);
        let mounter = attempt.manager.mounter.as_ref();
        let ready = |path: PathBuf| {
            ReadyVolume::from(VolumePath { managed: true, read_only: true, ..VolumePath::of(path) })
        };
        let find_existing = || self.find_existing(pod, name, mounter).map(ready);
        if sources::is_fixed(&self.sources, &inputs.configmaps_and_secrets)
            && let Some(before) = find_existing()
        {
            return Ok(before);
        }
        let payload = match sources::payload(&self.sources, inputs) {
            Ok(payload) => payload,
            Err(error) => {
                let Some(mut before) = find_existing() else {
                    return Err(error);
                };
                before.update_error = Some(VolumeError::set_up(name, error));
                return Ok(before);
            }
        };
        let mut made = ready(self.create(pod, name, &payload, mounter)?);
        made.content_digest = Some(digest(&payload));
        Ok(made)
    }

    /// Updates a volume whose configmaps or secrets changed. If that fails, it keeps its old content.
    fn update(&self, attempt: &Attempt, ready: &ReadyVolume) -> ReadyVolume {
        let mut updated = ReadyVolume::from(ready.path.clone());
        updated.content_digest = ready.content_digest;
        let written = sources::payload(&self.sources, &attempt.inputs).and_then(|payload| {
            let now = Some(digest(&payload));
            if updated.content_digest != now {
                self.write(&updated.path.host_path, &payload)?;
            }
            updated.content_digest = now;
            Ok(())
        });
        let error = written.err();
        updated.update_error = error.map(|error| VolumeError::set_up(&attempt.name, error));
        updated
    }

    /// Creates the volume and its files if they do not exist yet. Returns its path.
    fn create(
        &self,
        pod: &PodDir,
        name: &str,
        payload: &Payload,
        mounter: &dyn Mounter,
    ) -> anyhow::Result<PathBuf> {
        create_dir(&pod.volumes_of(self.plugin), 0o750)?;
        let directory = pod.volume(self.plugin, name)?;
        let fresh = create_dir(&directory, DISK_MODE)?;
        if let Some(size) = self.memory
            && (fresh || !is_mounted(&directory, mounter)?)
        {
            mounter
                .tmpfs(&directory, size, MEMORY_MODE)
                .with_context(cannot("mount a tmpfs on", &directory))?;
        }
        prepare_root(&directory, self).with_context(cannot("prepare", &directory))?;
        self.write(&directory, payload)?;
        // Records that the volume was set up and from which specification, at the path where upstream records it.
        let (marker, specification) = (pod.content_marker(name)?, spec_digest(self));
        write_marker(pod, &marker, specification.as_bytes(), 0o644)?;
        Ok(directory)
    }

    /// Replaces the content of an existing volume.
    fn write(&self, directory: &Path, payload: &Payload) -> anyhow::Result<()> {
        let written = write_files(directory, payload, self.group);
        if let Ok(Written::Now) = written {
            tracing::debug!(volume = %directory.display(), files = payload.len(), "Wrote a volume");
        }
        let written = written.map(drop);
        written.with_context(cannot("write the files of", directory))
    }

    /// The path of the volume if an earlier kubelet set it up from the same specification and it still exists.
    fn find_existing(&self, pod: &PodDir, name: &str, mounter: &dyn Mounter) -> Option<PathBuf> {
        let ready = pod.content_marker(name).ok()?.join("ready");
        let recorded = std::fs::read_to_string(ready).ok()?;
        let directory = pod.volume(self.plugin, name).ok()?;
        let mounted = self.memory.is_none() || is_mounted(&directory, mounter).unwrap_or(false);
        let there =
            recorded == spec_digest(self) && mounted && atomic_writer::is_written(&directory);
        there.then_some(directory)
    }
}

/// The immutable ones.
fn immutable(found: &ConfigMapsAndSecrets) -> ConfigMapsAndSecrets {
    let mut immutable = found.clone();
    immutable.retain(|_, it| it.as_ref().is_ok_and(|object| object.is_immutable()));
    immutable
}

/// The digest of what identifies a volume: its sources, but not what may change while the pod runs (values of the pod,
/// the size of the tmpfs) or with a version of the kubelet.
fn spec_digest(volume: &ContentVolume) -> String {
    let mut text = format!("{} {:?}\n", volume.plugin.0, volume.group);
    for source in &volume.sources {
        text += &source.identity();
        text.push('\n');
    }
    let digest = Sha256::digest(text);
    crate::base::hex(digest.iter().take(16))
}

/// The SHA-256 of a payload.
fn digest(payload: &Payload) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for (path, content) in payload.files() {
        hasher.update((path.len() as u64).to_le_bytes());
        hasher.update(path);
        hasher.update(content.mode.to_le_bytes());
        hasher.update(content.owner.map_or(-1, i64::from).to_le_bytes());
        hasher.update((content.data.len() as u64).to_le_bytes());
        hasher.update(&content.data);
    }
    hasher.finalize().into()
}

fn is_mounted(directory: &Path, mounter: &dyn Mounter) -> anyhow::Result<bool> {
    mounter.is_mounted(directory).with_context(cannot("read", directory))
}

/// Sets the group of the volume's root directory and creates the mount points in it.
fn prepare_root(directory: &Path, volume: &ContentVolume) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(directory, flags, Mode::empty())?;
    if volume.group != VolumeGroup(None) {
        let mode = rustix::fs::fstat(&root)?.st_mode & 0o7777;
        volume.group.set_group_and_mode(root.as_fd(), mode, READ_ONLY, true)?;
    }
    for point in &volume.mount_points {
        create_dirs(root.as_fd(), point)?;
    }
    Ok(())
}

/// Creates a directory and its parents, without following links.
fn create_dirs(root: BorrowedFd<'_>, path: &str) -> Result<(), Errno> {
    let mut at: OwnedFd = open_dir(root, ".")?;
    for name in path.split('/') {
        match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(MOUNT_POINT_MODE)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        at = open_dir(at.as_fd(), name)?;
    }
    Ok(())
}

fn open_dir(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    open_without_links(parent, name, OFlags::PATH | OFlags::DIRECTORY, 0)
}

#[cfg(test)]
mod writer_tests;
