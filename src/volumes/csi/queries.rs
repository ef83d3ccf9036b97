//! What others need to know of the CSI volumes of the node.

use super::machine::{Known, Wish};
use super::manager::CsiVolumes;
use super::spec::CsiVolumeSpec;
use crate::model::PodUid;
use crate::volumes::metrics::{ACTUAL, DESIRED, VolumeTotals};

impl CsiVolumes {
    /// Whether a volume is mounted with the SELinux label of the pod.
    pub(in crate::volumes) fn mounts_with_label(&self, uid: &PodUid, volume: &str) -> bool {
        let volume = self.0.volume_of(uid, volume);
        let request = volume.and_then(|volume| volume.pod(uid)?.request);
        request.is_some_and(|request| {
            let object = self.0.sources.objects.get_now(request.spec.driver());
            let object = object.ok().flatten();
            object.is_some_and(|object| request.file_label(&object).is_some())
        })
    }

    /// Whether a pod mounts a volume of this name.
    pub(in crate::volumes) fn has_volume(&self, uid: &PodUid, volume: &str) -> bool {
        self.0.volume_of(uid, volume).is_some()
    }

    /// The handle of another volume that the pod has or may have in the directory of this one: the PersistentVolume has been
    /// replaced under the running pod.
    pub(in crate::volumes) fn replaced_handle(
        &self,
        uid: &PodUid,
        spec: &CsiVolumeSpec,
    ) -> Option<String> {
        let volumes = self.0.volumes.lock();
        let mut others = volumes.values().filter(|it| it.identity != spec.identity);
        let other = others.find(|other| {
            let state = other.state.lock();
            let name = state.pods.get(uid).map(|pod| &pod.spec_name);
            let is_of_mode = other.identity.is_block() == spec.identity.is_block();
            is_of_mode && name == Some(&spec.spec_name) && state.machine.is_held_by(uid)
        })?;
        Some(other.identity.handle())
    }

    /// Whether everything that no pod wants is undone, and the API server knows it.
    pub fn is_undone(&self) -> bool {
        let volumes = self.0.volumes.lock();
        let mut volumes = volumes.values();
        let is_undone = volumes.all(|volume| {
            let state = volume.state.lock();
            let mut uids = state.machine.pods().keys();
            state.machine.is_undone() || uids.any(|uid| state.machine.is_wanted_by(uid))
        });
        let node = self.0.sources.node.borrow();
        let status = node.as_ref().and_then(|node| node.status.as_ref());
        let reported = status.and_then(|status| status.volumes_in_use.as_ref());
        let wanted = self.0.sources.in_use.wanted().borrow().clone();
        let is_wanted = |name: &String| wanted.as_ref().is_none_or(|names| names.contains(name));
        is_undone && reported.into_iter().flatten().all(is_wanted)
    }

    /// The number of volumes that pods want and have.
    pub(in crate::volumes) fn totals(&self) -> VolumeTotals {
        let mut totals = VolumeTotals::new();
        for volume in self.0.volumes.lock().values() {
            let state = volume.state.lock();
            for pod in state.machine.pods().values() {
                let states =
                    [(DESIRED, pod.wish == Wish::Wanted), (ACTUAL, pod.published == Known::Yes)];
                for (name, _) in states.into_iter().filter(|(_, counts)| *counts) {
                    *totals.entry((volume.plugin(), name)).or_default() += 1;
                }
            }
        }
        totals
    }
}
