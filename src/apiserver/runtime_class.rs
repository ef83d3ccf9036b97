//! The handlers of runtime classes.
//!
//! * Owns: one watch of all runtime classes, reduced to their handlers.
//! * Woken by the watch; publishes the pods whose class was missing.
//! * Must never take a failure for a missing class.
//! * Answers to upstream's `pkg/kubelet/runtimeclass`.

use super::{ApiServer, collection::Collection};
use crate::{
    base::DirtySet,
    model::{Pod, PodExt as _, PodUid},
};
use k8s_openapi::api::node::v1::RuntimeClass;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Why a pod has no handler; upstream's texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeClassError {
    /// There is no such class.
    #[error("runtimeclass.node.k8s.io {0:?} not found")]
    NotFound(String),
    /// Whether there is one is not known.
    #[error("failed to lookup RuntimeClass {0}: the runtime classes have not yet been read")]
    Unsynced(String),
}

/// The runtime classes of the cluster. Cheap to clone.
#[derive(Clone, Default)]
pub struct RuntimeClasses(Option<(ApiServer, Collection<String>)>);

impl RuntimeClasses {
    /// Those of this API server, or none.
    pub fn new(api: Option<ApiServer>, changed: Arc<DirtySet<PodUid>>) -> Self {
        Self(api.map(|api| (api, Collection::new(changed))))
    }

    /// Follows them until shutdown.
    ///
    /// # Errors
    /// None.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let handler = |class: &RuntimeClass| Some(class.handler.clone());
        match &self.0 {
            Some((api, classes)) => classes.follow(api, &shutdown, handler).await,
            None => shutdown.cancelled().await,
        }
        Ok(())
    }

    /// The handler that a sandbox of the pod is to be run by; empty for the runtime's default.
    ///
    /// # Errors
    /// The pod's class is not there, or not known yet.
    pub async fn handler(&self, pod: &Pod) -> Result<String, RuntimeClassError> {
        let is_looked_up = !pod.is_static() && class_of(pod).is_some();
        if let Some((_, classes)) = self.0.as_ref().filter(|_| is_looked_up) {
            classes.is_listed().await;
        }
        self.handler_now(pod)
    }

    /// The same without waiting for the first list of classes.
    ///
    /// # Errors
    /// The pod's class is not there, or not known yet.
    pub fn handler_now(&self, pod: &Pod) -> Result<String, RuntimeClassError> {
        let Some(name) = class_of(pod) else {
            return Ok(String::new());
        };
        let Some((_, classes)) = self.0.as_ref().filter(|_| !pod.is_static()) else {
            return Err(RuntimeClassError::NotFound(name));
        };
        let key = (String::new(), name);
        let find = || classes.read(|all| all.get(&key).cloned());
        if let Some(handler) = find() {
            return Ok(handler);
        }
        classes.wait(pod.uid());
        // It may have come meanwhile.
        match find() {
            Some(handler) => Ok(handler),
            None if classes.is_listed_now() => Err(RuntimeClassError::NotFound(key.1)),
            None => Err(RuntimeClassError::Unsynced(key.1)),
        }
    }
}

fn class_of(pod: &Pod) -> Option<String> {
    let name = pod.spec()?.runtime_class_name.clone()?;
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::tests::stored::{Mode, Stored};
    use serde_json::json;
    use std::time::Duration;

    fn pod(source: &str, class: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "shop", "uid": "u1",
                "annotations": {"kubernetes.io/config.source": source}},
            "spec": {"containers": [], "runtimeClassName": class},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_class_is_found_by_name_and_one_that_comes_later_wakes_its_pods() {
        let server = Stored::start().await;
        let changed = Arc::<DirtySet<PodUid>>::default();
        let classes = RuntimeClasses::new(Some(server.client().await), changed.clone());
        server.set(Mode::Refusing(503));
        let task = tokio::spawn(classes.clone().run(CancellationToken::new()));
        assert_eq!(classes.handler(&pod("api", "")).await.unwrap(), "");
        let error = classes.handler(&pod("api", "kata")).await.unwrap_err();
        assert_eq!(error, RuntimeClassError::Unsynced("kata".into()));
        let now = classes.handler_now(&pod("api", "kata"));
        assert_eq!(now.unwrap_err(), error, "without a wait");
        server.set(Mode::Serving);
        let marked = tokio::time::timeout(Duration::from_secs(20), changed.take());
        assert!(marked.await.unwrap().contains(&PodUid::from("u1")));
        let error = classes.handler(&pod("api", "kata")).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"runtimeclass.node.k8s.io "kata" not found"#
        );
        server.put(
            "runtimeclasses",
            "",
            "kata",
            json!({"handler": "kata-qemu"}),
        );
        let marked = tokio::time::timeout(Duration::from_secs(20), changed.take());
        assert!(marked.await.unwrap().contains(&PodUid::from("u1")));
        let handler = classes.handler(&pod("api", "kata")).await;
        assert_eq!(handler.unwrap(), "kata-qemu");
        let now = classes.handler_now(&pod("api", "kata"));
        assert_eq!(now.unwrap(), "kata-qemu");
        assert!(classes.handler(&pod("file", "kata")).await.is_err());
        assert!(
            RuntimeClasses::default()
                .handler(&pod("api", "kata"))
                .await
                .is_err()
        );
        task.abort();
    }
}
