//! The image pull secrets of a pod.

use crate::{
    images::{PullSecrets, pull_secret_keys, pull_secrets},
    model::{Pod, PodExt as _, PodStatus, reasons::event},
    runtime::kuberuntime::KubeGenericRuntimeManager,
    state::events::ObjectRef,
    volumes::VolumeError,
};
use tokio_util::sync::CancellationToken;

impl KubeGenericRuntimeManager {
    /// Reads the pull secrets for a sync of the pod. Unusable ones are reported and skipped: the node may have credentials
    /// for the registry, or the image may need none.
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
        let found = self
            .volumes
            .configmaps_and_secrets(pod, wanted, cancel)
            .await?;
        let ran = runtime_status.containers.iter();
        let ran = ran.map(|container| container.image_ref.clone());
        let (secrets, failed) = pull_secrets(&keys, &found, ran);
        for (secret, error) in &failed {
            tracing::info!(
                pod = %pod.log_name(), secret, err = error,
                "Unable to retrieve pull secret, the image pull may not succeed."
            );
        }
        if !failed.is_empty() {
            let names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
            let names = names.join(", ");
            let text = format!(
                "Unable to retrieve some image pull secrets ({names}); attempting to pull the image may not succeed."
            );
            let reason = event::FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET;
            self.events.warning(&ObjectRef::pod(pod), reason, text);
        }
        Ok(secrets)
    }
}
