//! Recovers claims that an earlier kubelet prepared, after the checkpoint was damaged.

use super::{claims::PodClaim, error::DraError, manager::DraManager};
use crate::model::{Pod, PodExt as _};

impl DraManager {
    /// After the checkpoint was damaged, reads the users of a pod's claims from the API server, so that
    /// [`Self::unprepare`] finds them. Call it before the pod terminates. Claims that cannot be read are skipped.
    pub async fn recover(&self, pod: &Pod) {
        if !self.0.checkpoint_damaged {
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
}
