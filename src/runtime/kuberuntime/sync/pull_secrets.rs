//! The image pull secrets of a pod.

use crate::images::{PullSecrets, pull_secret_keys, pull_secrets};
use crate::model::{Pod, PodStatus};
use crate::runtime::kuberuntime::KubeGenericRuntimeManager;
use crate::volumes::VolumeError;
use tokio_util::sync::CancellationToken;

impl KubeGenericRuntimeManager {
    /// Reads the pull secrets for a sync of the pod. A pull reports unusable ones and goes on without them: the node may
    /// have credentials for the registry, or the image may need none.
    ///
    /// # Errors
    /// [`VolumeError::Cancelled`] when `cancel` fires first.
    pub async fn pull_secrets(
        &self,
        pod: &Pod,
        runtime_status: &PodStatus,
        cancel: &CancellationToken,
    ) -> Result<PullSecrets, VolumeError> {
        let keys = pull_secret_keys(pod);
        if keys.is_empty() {
            return Ok(PullSecrets::default());
        }
        let wanted = keys.iter().cloned().collect();
        let found = self.volumes.configmaps_and_secrets(pod, wanted, cancel).await?;
        let ran = runtime_status.containers.iter();
        let ran = ran.map(|container| container.image_ref.clone());
        Ok(pull_secrets(&keys, &found, ran))
    }
}
