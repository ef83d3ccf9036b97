//! The image pull secrets of a pod.

use super::PodSync;
use crate::{
    apiserver::configmap_secret::{ObjectKey, ObjectKind},
    images::{PullSecret, PullSecrets},
    model::{Pod, PodExt as _, reasons::event},
    state::events::ObjectRef,
    volumes::VolumeError,
};
use tokio_util::sync::CancellationToken;

impl PodSync {
    /// Reads them. Those that cannot be used are reported and left out: the node may have a login, or the image
    /// need none.
    pub(super) async fn pull_secrets(
        &self,
        pod: &Pod,
        cancel: &CancellationToken,
    ) -> Result<PullSecrets, VolumeError> {
        let references = pod.spec().and_then(|spec| spec.image_pull_secrets.as_ref());
        let names = references.into_iter().flatten().map(|it| it.name.as_str());
        let key = |name: &str| ObjectKey {
            kind: ObjectKind::Secret,
            namespace: pod.namespace().to_owned(),
            name: name.to_owned(),
        };
        let keys: Vec<_> = names.filter(|name| !name.is_empty()).map(key).collect();
        if keys.is_empty() {
            return Ok(PullSecrets::default());
        }
        let wanted = keys.iter().cloned().collect();
        let found = self.volumes.objects(pod, wanted, cancel).await?;
        let (mut secrets, mut failed) = (Vec::new(), Vec::new());
        for key in &keys {
            let secret = match found.get(key) {
                Some(Ok(object)) => PullSecret::of(key, object),
                Some(Err(error)) => Err(error.to_string()),
                None => continue,
            };
            match secret {
                Ok(secret) => secrets.push(secret),
                Err(error) => {
                    tracing::info!(
                        pod = %pod.full_name(), secret = key.name, err = error,
                        "Unable to retrieve pull secret, the image pull may not succeed."
                    );
                    failed.push(key.name.as_str());
                }
            }
        }
        if !failed.is_empty() {
            let names = failed.join(", ");
            let text = format!(
                "Unable to retrieve some image pull secrets ({names}); attempting to pull the image may not succeed."
            );
            let reason = event::FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET;
            self.events.warning(&ObjectRef::pod(pod), reason, text);
        }
        Ok(secrets.into())
    }
}
