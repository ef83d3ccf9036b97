//! Recovers claims that an earlier kubelet prepared, after the checkpoint was damaged.

use super::claims::PodClaim;
use super::error::DraError;
use super::manager::DraManager;
use super::unrecovered::UnrecoveredPods;
use crate::base::panics::PanicScope;
use crate::base::spawn;
use crate::model::{Pod, PodExt as _, PodUid};
use crate::resources::checkpoint_file::CheckpointWriter;
use std::collections::HashSet;

impl DraManager {
    /// Reports the desired pods, once all of them are known. Those of which the checkpoint lacks a claim may have been
    /// started before it was damaged; later pods were not.
    pub fn inventory_complete(&self, pods: &[impl AsRef<Pod>]) {
        let mut unrecovered = self.0.unrecovered.lock();
        if let UnrecoveredPods::Pods(_) = *unrecovered {
            return;
        }
        let claims = self.0.claims.lock();
        let lacks_claims = |pod: &&Pod| {
            let known = claims.of_pod(&pod.uid()).len();
            !super::claims::of_pod(pod).is_ok_and(|wanted| wanted.len() <= known)
        };
        let pods = pods.iter().map(AsRef::as_ref).filter(lacks_claims);
        let pods: HashSet<_> = pods.map(|pod| pod.uid()).collect();
        let is_empty = pods.is_empty();
        *unrecovered = UnrecoveredPods::Pods(pods);
        drop((unrecovered, claims));
        if is_empty {
            self.spawn_end_of_recovery();
        }
    }

    /// After the checkpoint was damaged, reads the users of a pod's claims from the API server, so that
    /// [`Self::unprepare`] finds them. Call it before the pod terminates. Claims that cannot be read are skipped.
    pub async fn recover(&self, pod: &Pod) {
        if !self.0.unrecovered.lock().contains(&pod.uid()) {
            return;
        }
        for wanted in super::claims::of_pod(pod).unwrap_or_default() {
            if let Err(error) = self.recover_claim(pod, &wanted).await {
                tracing::warn!(
                    pod = %pod.log_name(),
                    podUID = %pod.uid(),
                    claim = wanted.name,
                    err = %error,
                    "Failed to recover ResourceClaim; it will not be unprepared"
                );
            }
        }
        let uid = pod.uid();
        let is_last = self.0.unrecovered.lock().retain(|other| *other != uid);
        if is_last {
            self.end_recovery().await;
        }
    }

    async fn recover_claim(&self, pod: &Pod, wanted: &PodClaim) -> Result<(), DraError> {
        let read = self.read_claim(pod, wanted).await?;
        let _lock = self.0.locks.lock(&read.key).await;
        let mut claims = self.0.claims.lock();
        claims.check_uid(&read.key, &read.uid)?;
        for user in &read.users {
            claims.add_user(user, &read.key, &read.uid, &read.drivers);
        }
        Ok(())
    }

    pub(super) fn retain_unrecovered(&self, is_known: impl Fn(&PodUid) -> bool) {
        if self.0.unrecovered.lock().retain(is_known) {
            self.spawn_end_of_recovery();
        }
    }

    fn spawn_end_of_recovery(&self) {
        let manager = self.clone();
        spawn(PanicScope::CleanUp, async move { manager.end_recovery().await });
    }

    /// Removes the damaged checkpoint, once what was recovered is in the new one.
    async fn end_recovery(&self) {
        let saved = self.save().await;
        let removed = match saved {
            Ok(()) => {
                let remove = |file: &mut CheckpointWriter| file.remove_damaged();
                self.0.file.update(remove).await.map_err(DraError::Checkpoint)
            }
            Err(error) => Err(error),
        };
        match removed {
            Ok(()) => tracing::info!("All claims of the damaged DRA checkpoint are recovered"),
            // The next kubelet tries again.
            Err(error) => {
                tracing::warn!(err = %error, "Failed to remove the damaged DRA checkpoint");
            }
        }
    }
}
