//! Publishes and saves changes of the device manager's state.

use super::checkpoint;
use super::manager::{CHECKPOINT, DeviceManager};
use crate::base::{clock, wait_until};
use crate::model::PodUid;
use crate::resources::checkpoint_file::CheckpointWriter;

impl DeviceManager {
    /// Publishes capacity and saves the checkpoint after a change. Marks `pods`, and all pods that wait for devices.
    pub(super) async fn publish(&self, pods: impl IntoIterator<Item = PodUid>) {
        {
            // Published under the lock, so that an older value cannot replace a newer one.
            let state = self.state();
            self.0.capacity.set(state.capacities());
        }
        let pods = pods.into_iter().map(Some);
        self.0.changed.mark_all(pods.chain([None]));
        self.save_or_report().await;
    }

    pub(super) async fn save(&self) -> Result<(), String> {
        let shared = self.0.clone();
        let work = move |file: &mut CheckpointWriter| {
            let (state, changes) = {
                let plugins = shared.plugins.lock();
                (plugins.state.clone(), plugins.changes)
            };
            let bytes = checkpoint::encode(state.to_checkpoint());
            file.write(bytes.map_err(|error| error.to_string())?)?;
            if !state.is_damaged() {
                file.remove_damaged()?;
            }
            let mut plugins = shared.plugins.lock();
            plugins.saved_changes = plugins.saved_changes.max(changes);
            Ok(())
        };
        self.0.file.update(work).await
    }

    async fn save_or_report(&self) {
        if let Err(error) = self.save().await {
            tracing::error!(
                checkpoint = CHECKPOINT,
                err = error,
                "Failed to write checkpoint file"
            );
        }
    }

    /// Saves releases, and removes resources whose plugins have been disconnected for too long.
    pub(super) async fn run_housekeeping(&self) {
        loop {
            let expiry = self.state().next_expiry();
            tokio::select! {
                () = self.0.housekeeping.notified() => self.save_or_report().await,
                () = wait_until(expiry) => {
                    if self.state().expire(clock::instant()) {
                        self.publish([]).await;
                    }
                }
            }
        }
    }
}
