//! NFS volumes, of pods and of claims. Each is mounted for one pod, by `mount` and its helper `mount.nfs`.
//!
//! A server may not respond for ever: the programs run without a thread and end with the pod, and nothing reads the mounted
//! path. Mounts are read from the kernel, so that a restarted kubelet continues with those of an earlier one.

use super::bind::{self, is_mounted};
use super::claim::{ClaimAttempt, NodePath, PersistentSource};
use super::plan::Planning;
use super::{KindRow, programs};
use crate::base::{if_exists, run_file_io, spawn_blocking};
use crate::host::program::Program;
use crate::model::PodUid;
use crate::volumes::error::io_error;
use crate::volumes::mounter::unmount_beneath;
use crate::volumes::pod_volumes::{Attempt, Kind, PlannedKind, ReadyVolume, SetUp};
use crate::volumes::{
    HostPathCheck, Mounter, VolumeError, VolumeManagerInner, VolumePath, VolumePlugin,
};
use anyhow::anyhow;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

/// Timeout of `mount`, which tries for two minutes itself if no option says otherwise.
const MOUNT_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Timeout of `umount`, as upstream's, and of `umount -f` after it.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(60);

const PLUGIN: VolumePlugin = VolumePlugin("kubernetes.io/nfs");
const KEY: &str = "nfs";

pub(super) const KIND: KindRow = KindRow {
    plugins: &[PLUGIN],
    plan,
    resolve,
    key: KEY,
    set_up_claim: |claim| Box::pin(set_up_claim(claim)),
    tear_down: |manager, uid| Box::pin(tear_down(manager, uid)),
    ..KindRow::NONE
};

/// What is mounted. Recorded for the volume of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NfsMount {
    server: String,
    path: String,
    /// Sorted, without `ro`.
    options: Vec<String>,
}

impl NfsMount {
    /// # Errors
    /// `mount` would take the server for an option.
    fn new(server: &str, path: &str, options: Vec<String>) -> anyhow::Result<Self> {
        if server.is_empty() || server.starts_with('-') {
            return Err(anyhow!("nfs.server {server:?} is not the name of a server"));
        }
        Ok(Self { server: server.to_owned(), path: path.to_owned(), options })
    }

    /// The arguments of `mount`.
    fn args(&self, read_only: bool, target: &Path) -> Vec<String> {
        let mut options: BTreeSet<&str> = self.options.iter().map(String::as_str).collect();
        if read_only {
            options.insert("ro");
        }
        let mut args = vec!["-t".to_owned(), "nfs".to_owned()];
        if !options.is_empty() {
            let options: Vec<_> = options.into_iter().collect();
            args.extend(["-o".to_owned(), options.join(",")]);
        }
        let server = match self.server.parse::<Ipv6Addr>() {
            Ok(_) => format!("[{}]", self.server),
            Err(_) => self.server.clone(),
        };
        args.push(format!("{server}:{}", self.path));
        args.push(target.to_string_lossy().into_owned());
        args
    }
}

/// An NFS volume that a pod defines.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NfsVolume {
    mount: NfsMount,
    read_only: bool,
}

fn plan(planning: &Planning<'_>) -> anyhow::Result<PlannedKind> {
    let Some(source) = &planning.volume.nfs else {
        return Ok(None);
    };
    Ok(Some(Arc::new(NfsVolume {
        mount: NfsMount::new(&source.server, &source.path, Vec::new())?,
        read_only: source.read_only.unwrap_or_default(),
    })))
}

impl Kind for NfsVolume {
    fn waits_for(&self) -> Cow<'static, str> {
        format!("the NFS server {}", self.mount.server).into()
    }

    fn directory(&self) -> Option<(VolumePlugin, bool)> {
        Some((PLUGIN, true))
    }

    fn set_up(self: Arc<Self>, attempt: Attempt) -> SetUp {
        Box::pin(async move {
            let target = attempt.pod.directory.volume(PLUGIN, &attempt.name)?;
            mount(&attempt, &attempt.name, &self.mount, self.read_only, &target).await?;
            let path = VolumePath { read_only: self.read_only, ..VolumePath::of(target) };
            Ok(path.into())
        })
    }
}

fn resolve(source: &PersistentSource<'_>) -> Result<Option<NodePath>, VolumeError> {
    let Some(nfs) = &source.spec.nfs else {
        return Ok(None);
    };
    if source.is_device {
        return source.unsupported("spec.volumeMode \"Block\" beside spec.nfs");
    }
    let mount = NfsMount::new(&nfs.server, &nfs.path, source.options.clone());
    let mount = mount.map_err(|error| VolumeError::set_up(source.name, error))?;
    Ok(Some(NodePath { measured: true, ..source.path_of_kind(KEY, json!(mount)) }))
}

async fn set_up_claim(claim: ClaimAttempt) -> Result<ReadyVolume, VolumeError> {
    let (name, pod) = (claim.resolved.volume.clone(), &claim.attempt.pod);
    let target = pod.directory.volume(PLUGIN, &name)?;
    let of_kind = claim.resolved.at.of_kind(KEY);
    let nfs: NfsMount = of_kind.map_err(|error| claim.fail(error))?;
    let read_only = claim.claim.read_only;
    mount(&claim.attempt, &name, &nfs, read_only, &target).await?;
    run_file_io(move || claim.finish(target, HostPathCheck::None)).await?
}

/// Mounts the volume for the pod, unless it is mounted. `name` is the name in errors.
async fn mount(
    attempt: &Attempt,
    name: &str,
    nfs: &NfsMount,
    read_only: bool,
    target: &Path,
) -> Result<(), VolumeError> {
    let fail = |error| VolumeError::set_up(name, error);
    let volumes = &attempt.pod.volumes;
    // The teardown waits for the program, which ends at once then.
    let _running = volumes.program_guard()?;
    let mounter = &attempt.manager.mounter;
    if bind::prepare(attempt, name, target).await? {
        return Ok(());
    }
    let args = nfs.args(read_only, target);
    let program = Program {
        ended: volumes.ended.clone(),
        ..Program::new(programs::MOUNT, &args, MOUNT_LIMIT)
    };
    let failed = match mounter.execute(program).await {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            return Err(VolumeError::Cancelled);
        }
        end => programs::success(programs::MOUNT, end).err(),
    };
    let check = {
        let (mounter, target) = (mounter.clone(), target.to_owned());
        let has_failed = failed.is_some();
        run_file_io(move || {
            let is_mounted = is_mounted(mounter.as_ref(), &target)?;
            if has_failed && !is_mounted {
                // The empty directory; if this fails, it is removed with the pod's.
                let _ = fs::remove_dir(&target);
            }
            Ok(is_mounted)
        })
        .await?
    };
    match (failed, check.map_err(fail)?) {
        (None, true) => Ok(()),
        // With the option `bg`, `mount` succeeds before it has mounted anything.
        (None, false) => Err(fail(anyhow!("mount has ended and nothing is mounted"))),
        (Some(failure), is_mounted) => {
            if is_mounted {
                // As upstream: what may lack an option is mounted anew.
                unmount(mounter, name, target).await?;
            }
            Err(fail(anyhow!(failure.of_mount(&args))))
        }
    }
}

/// Unmounts the pod's volumes, their sub-paths first.
async fn tear_down(manager: Arc<VolumeManagerInner>, uid: PodUid) -> Result<(), VolumeError> {
    let pod = manager.root.pod(&uid)?;
    let (mounter, directory) = (manager.mounter.clone(), pod.volumes_of(PLUGIN));
    let find = move || -> Result<Vec<PathBuf>, VolumeError> {
        let found = if_exists(directory.symlink_metadata());
        if found.map_err(io_error("read", &directory))?.is_none() {
            return Ok(Vec::new());
        }
        let mounts = mounter.list();
        let mounts = mounts.map_err(io_error("list the mounts below", &directory))?;
        let mounts = mounts.into_iter().filter(|mount| mount.is_beneath(&directory));
        let found: Vec<_> = mounts.map(|mount| mount.mount_point).rev().collect();
        if !found.is_empty() {
            unmount_beneath(&pod.sub_paths(), mounter.as_ref())?;
        }
        Ok(found)
    };
    let mut torn_down = Ok(());
    for target in spawn_blocking(find).await?? {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let unmounted = unmount(&manager.mounter, &name, &target).await;
        // A server that does not respond keeps no other volume.
        torn_down = torn_down.and(unmounted);
    }
    torn_down
}

/// Unmounts a volume, by force if the server does not respond.
async fn unmount(mounter: &Arc<dyn Mounter>, name: &str, target: &Path) -> Result<(), VolumeError> {
    let path = target.to_string_lossy().into_owned();
    let unmount = |args: &[String]| mounter.execute(Program::new("umount", args, UNMOUNT_LIMIT));
    let mut ended = unmount(std::slice::from_ref(&path)).await;
    if ended.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        tracing::warn!(volume = name, path, "umount has not ended in time; unmounting by force");
        ended = unmount(&["-f".to_owned(), path.clone()]).await;
    }
    let why = match ended {
        Ok(end) if end.code == Some(0) => return Ok(()),
        Ok(end) => {
            let (status, output) = (programs::status(&end), programs::output(&end));
            format!("unmount failed: {status}\nUnmounting arguments: {path}\nOutput: {output}")
        }
        Err(error) => programs::not_run("umount", &error),
    };
    // An `umount` that was killed may have detached it all the same.
    let (lister, at) = (mounter.clone(), target.to_owned());
    let is_mounted = run_file_io(move || is_mounted(lister.as_ref(), &at)).await?;
    if matches!(is_mounted, Ok(false)) {
        return Ok(());
    }
    Err(VolumeError::TearDown { volume: name.to_owned(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_has_upstreams_arguments() {
        for (server, options, read_only, expected) in [
            ("s", &[][..], false, "-t nfs s:/e /t"),
            ("s", &[], true, "-t nfs -o ro s:/e /t"),
            ("s", &["vers=4.1", "hard"], true, "-t nfs -o hard,ro,vers=4.1 s:/e /t"),
            ("s", &["ro"], true, "-t nfs -o ro s:/e /t"),
            ("10.0.0.1", &[], false, "-t nfs 10.0.0.1:/e /t"),
            ("fd00::1", &[], false, "-t nfs [fd00::1]:/e /t"),
        ] {
            let options = options.iter().map(|option| (*option).to_owned());
            let mount = NfsMount::new(server, "/e", options.collect()).unwrap();
            assert_eq!(mount.args(read_only, Path::new("/t")).join(" "), expected);
        }
        for server in ["", "-o", "--bind"] {
            assert!(NfsMount::new(server, "/e", Vec::new()).is_err(), "{server}");
        }
    }
}
