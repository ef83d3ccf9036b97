//! What the end of a pod waits for on a node that is drained: the pod's volumes that no pod wants any more and that are
//! still staged.

use super::machine::NodeVolume;
use super::manager::CsiVolumes;
use super::volume::CsiVolume;
use crate::model::PodUid;
use std::sync::Arc;

/// The volumes that a pod had.
#[derive(Default)]
pub struct VolumesOfPod(Vec<Arc<CsiVolume>>);

impl CsiVolumes {
    /// The volumes that a pod has. Has to be called before they are unpublished.
    pub fn of_pod(&self, uid: &PodUid) -> VolumesOfPod {
        VolumesOfPod(self.0.volumes_of_pod(uid))
    }
}

impl VolumesOfPod {
    /// Adds those that are not among them.
    pub fn extend(&mut self, others: Self) {
        for other in others.0 {
            if !self.0.iter().any(|known| Arc::ptr_eq(known, &other)) {
                self.0.push(other);
            }
        }
    }

    /// The names of the PersistentVolumes that are not undone yet and that no other pod wants.
    pub fn left(&self) -> Vec<String> {
        let volumes = self.0.iter().map(|volume| volume.state.lock());
        let left = volumes.filter(|state| is_left(&state.machine));
        left.map(|state| state.spec_name.clone()).collect()
    }

    /// Waits until none is left.
    pub async fn undone(&self) {
        for volume in &self.0 {
            let mut changes = volume.changes.subscribe();
            while is_left(&volume.state.lock().machine) {
                if changes.changed().await.is_err() {
                    break;
                }
            }
        }
    }
}

fn is_left(machine: &NodeVolume) -> bool {
    let mut uids = machine.pods().keys();
    machine.is_in_use() && !uids.any(|uid| machine.is_wanted_by(uid))
}
