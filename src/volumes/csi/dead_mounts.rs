//! Mounts whose server is gone: a driver in user space that was restarted, or a server on the network. Everything below
//! them fails for ever, and only a new mount ends that.

use super::manager::CsiVolumes;
use super::paths::StageDir;
use super::volume::CsiVolume;
use crate::base::spawn_blocking;
use crate::model::PodUid;
use futures::future::join_all;
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long a file system may take to respond. One that hangs is not dead: its server may come back.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A volume of a pod whose mount is dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::volumes) struct DeadMount {
    /// The volume's name in the pod.
    pub(in crate::volumes) volume: String,
    /// Name of the PersistentVolume, or of the inline volume.
    pub(in crate::volumes) spec_name: String,
    /// The system's error.
    pub(in crate::volumes) error: String,
    unique_name: String,
    is_stage_dead: bool,
}

impl CsiVolumes {
    /// The volumes of a pod whose mounts are dead.
    pub(in crate::volumes) async fn dead_mounts(&self, uid: &PodUid) -> Vec<DeadMount> {
        let volumes: Vec<_> = self.0.volumes.lock().values().cloned().collect();
        let ready = volumes.into_iter().filter(|volume| volume.state.lock().machine.is_ready(uid));
        let dead = ready.map(|volume| self.dead_mount(volume, uid));
        join_all(dead).await.into_iter().flatten().collect()
    }

    async fn dead_mount(&self, volume: Arc<CsiVolume>, uid: &PodUid) -> Option<DeadMount> {
        if volume.identity.is_block() {
            // A device is no mount of its server.
            return None;
        }
        let request = volume.pod(uid)?.request?;
        let target = self.0.publish_dir(&volume, uid).ok()?.target();
        let error = dead(&volume, target).await?;
        let stage = StageDir::new(&self.0.root, &volume.identity).target();
        let is_stage_dead = !volume.is_inline() && dead(&volume, stage).await.is_some();
        Some(DeadMount {
            volume: request.volume.clone(),
            spec_name: request.spec.spec_name.clone(),
            error: error.to_string(),
            unique_name: volume.identity.unique_name(),
            is_stage_dead,
        })
    }

    /// Mounts a volume again for a pod without running containers that use it.
    pub(in crate::volumes) fn remount(&self, uid: &PodUid, dead: &DeadMount) {
        let volume = self.0.volumes.lock().get(&dead.unique_name).cloned();
        if let Some(volume) = volume {
            volume.modify(|state| {
                state.machine.remount(uid);
                if dead.is_stage_dead {
                    state.machine.replace_stage();
                }
            });
        }
    }
}

/// The error of a path that is dead. While other work on files of the volume hangs, no thread is added to it.
async fn dead(volume: &CsiVolume, path: PathBuf) -> Option<Errno> {
    let lock = volume.files.clone().try_lock_owned().ok()?;
    let read = move || {
        let _lock = lock;
        rustix::fs::statfs(&path).err()
    };
    let error = timeout(TIMEOUT, spawn_blocking(read)).await.ok()?.ok()?;
    error.filter(|error| is_dead(*error))
}

/// Whether this error of a file system says that its server is gone.
fn is_dead(error: Errno) -> bool {
    matches!(
        error,
        Errno::NOTCONN | Errno::CONNABORTED | Errno::STALE | Errno::IO | Errno::HOSTDOWN
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_path_is_not_dead() {
        assert!(is_dead(Errno::NOTCONN) && is_dead(Errno::STALE) && is_dead(Errno::IO));
        assert!(!is_dead(Errno::NOENT) && !is_dead(Errno::ACCESS));
    }
}
