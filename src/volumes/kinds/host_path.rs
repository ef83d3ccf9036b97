//! hostPath volumes, and volumes of claims that are used at their path on the node: checks the path's type.

use super::KindRow;
use super::claim::{ClaimAttempt, NodePath, PersistentSource};
use super::plan::Planning;
use crate::base::if_exists;
use crate::volumes::error::cannot;
use crate::volumes::metrics::HOST_PATH;
use crate::volumes::ownership::{self, OwnershipWalk};
use crate::volumes::pod_volumes::{Attempt, Kind, PlannedKind, ReadyVolume, SetUp};
use crate::volumes::{HostPathCheck, VolumeError, VolumePath};
use anyhow::{Context as _, anyhow};
use k8s_openapi::api::core::v1::HostPathVolumeSource;
use std::borrow::Cow;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) const KIND: KindRow = KindRow { plan, resolve, ..KindRow::NONE };

#[derive(Clone, Debug, PartialEq, Eq)]
struct HostPath {
    path: PathBuf,
    check: HostPathCheck,
}

fn plan(planning: &Planning<'_>) -> anyhow::Result<PlannedKind> {
    let Some(source) = &planning.volume.host_path else {
        return Ok(None);
    };
    let (path, check) = (source.path.clone().into(), check_of(source)?);
    Ok(Some(Arc::new(HostPath { path, check })))
}

fn check_of(source: &HostPathVolumeSource) -> anyhow::Result<HostPathCheck> {
    let wanted = source.type_.as_deref().unwrap_or_default();
    HostPathCheck::parse(wanted).with_context(|| format!("{wanted} is an invalid volume type"))
}

impl Kind for HostPath {
    fn metric_plugin(&self, _path: Option<&VolumePath>) -> Option<&'static str> {
        Some(HOST_PATH)
    }

    fn waits_for(&self) -> Cow<'static, str> {
        format!("the path {} of the node", self.path.display()).into()
    }

    fn set_up(self: Arc<Self>, attempt: Attempt) -> SetUp {
        Box::pin(async move {
            let (threads, ended) = attempt.threads();
            let (path, check) = (self.path.clone(), self.check);
            let work = move || {
                // Teardown removes nothing that this creates, so it need not wait for it.
                drop(attempt.pod.volumes.creation_guard()?);
                let checked = check_path(&self.path, check);
                checked.map_err(|source| VolumeError::set_up(&attempt.name, source))
            };
            if check == HostPathCheck::None {
                // Nothing is read.
                work()?;
            } else {
                threads.run(path.clone(), &[], &ended, work).await??;
            }
            let path = VolumePath { check, ..VolumePath::of(path) };
            Ok(path.into())
        })
    }
}

fn resolve(source: &PersistentSource<'_>) -> Result<Option<NodePath>, VolumeError> {
    let Some(host_path) = &source.spec.host_path else {
        return Ok(None);
    };
    if source.is_device {
        return source.unsupported("spec.volumeMode \"Block\" beside spec.hostPath");
    }
    if !source.options.is_empty() {
        return Err(VolumeError::MountOptions(source.name.to_owned()));
    }
    let check = check_of(host_path);
    Ok(Some(NodePath {
        path: host_path.path.clone(),
        check: check.map_err(|error| VolumeError::set_up(source.name, error))?,
        ..source.path()
    }))
}

/// Sets up a volume of a claim that needs no mount.
pub(super) fn set_up_claim(claim: ClaimAttempt) -> SetUp {
    Box::pin(async move {
        let (threads, ended) = claim.attempt.threads();
        let path = PathBuf::from(&claim.resolved.at.path);
        let work = move || use_for_claim(claim);
        threads.run(path, &[], &ended, work).await?
    })
}

/// The same. Blocking.
pub(super) fn use_for_claim(claim: ClaimAttempt) -> Result<ReadyVolume, VolumeError> {
    let at = &claim.resolved.at;
    let (path, check) = (PathBuf::from(&at.path), at.check);
    let pod = &claim.attempt.pod;
    // The pod may have been torn down while this waited.
    drop(pod.volumes.creation_guard()?);
    check_path(&path, check).map_err(|error| claim.fail(error))?;
    if let Some(owner) = claim.owner() {
        let (name, shared) = (&claim.resolved.volume, || claim.is_in_use());
        let walk = OwnershipWalk::default();
        let given = ownership::set_up(&pod.directory, name, &path, owner, shared, &walk);
        given.map_err(|error| claim.fail(error))?;
    }
    claim.finish(path, check)
}

/// Checks the path, following links as upstream does, and creates it for the `…OrCreate` types.
pub(in crate::volumes) fn check_path(path: &Path, check: HostPathCheck) -> anyhow::Result<()> {
    use HostPathCheck as Check;
    if check == Check::None {
        return Ok(());
    }
    let found = if_exists(fs::metadata(path)).with_context(cannot("read", path))?;
    let Some(found) = found.map(|metadata| metadata.file_type()) else {
        return make(path, check);
    };
    let matches = match check {
        Check::None => true,
        Check::Directory | Check::DirectoryOrCreate => found.is_dir(),
        Check::File | Check::FileOrCreate => found.is_file(),
        Check::Socket => found.is_socket(),
        Check::CharDevice => found.is_char_device(),
        Check::BlockDevice => found.is_block_device(),
    };
    if matches { Ok(()) } else { Err(not_expected(path, check)) }
}

/// The path does not exist: the `…OrCreate` types create it, the others fail.
fn make(path: &Path, check: HostPathCheck) -> anyhow::Result<()> {
    match check {
        HostPathCheck::DirectoryOrCreate => fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .with_context(cannot("make directory", path)),
        HostPathCheck::FileOrCreate => fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(path)
            .map(drop)
            .with_context(cannot("make file", path)),
        _ => Err(not_expected(path, check)),
    }
}

fn not_expected(path: &Path, check: HostPathCheck) -> anyhow::Error {
    use HostPathCheck as Check;
    let expected = match check {
        Check::None => "anything",
        Check::Directory | Check::DirectoryOrCreate => "a directory",
        Check::File | Check::FileOrCreate => "a file",
        Check::Socket => "a socket file",
        Check::CharDevice => "a character device",
        Check::BlockDevice => "a block device",
    };
    let path = path.display();
    anyhow!("hostPath type check failed: {path} is not {expected}")
}
