//! Runtime handlers of RuntimeClasses.
//!
//! * Owns: one watch of all RuntimeClasses, reduced to their handlers.
//! * Woken by: the watch. Publishes the pods whose class was missing.
//! * Must never treat a failed request as a missing class.
//! * Upstream: `pkg/kubelet/runtimeclass`.

use super::ApiServer;
use super::collection::Collection;
use crate::base::DirtySet;
use crate::model::{Pod, PodExt as _, PodUid};
use k8s_openapi::api::node::v1::RuntimeClass;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Why the handler of a pod is unknown; upstream's texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeClassError {
    /// The class does not exist.
    #[error("runtimeclass.node.k8s.io {0:?} not found")]
    NotFound(String),
    /// The classes have not been listed yet.
    #[error("failed to lookup RuntimeClass {0}: the runtime classes have not yet been read")]
    Unsynced(String),
}

/// The RuntimeClasses of the cluster. Cheap to clone.
#[derive(Clone, Default)]
pub struct RuntimeClasses(Option<(ApiServer, Collection<String>)>);

impl RuntimeClasses {
    /// Reads from this API server; with `None` there are no classes. Waiting pods are marked in `changed`.
    pub fn new(api: Option<ApiServer>, changed: Arc<DirtySet<PodUid>>) -> Self {
        Self(api.map(|api| (api, Collection::new(changed))))
    }

    /// Watches the classes until shutdown.
    ///
    /// # Errors
    /// Never fails.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let handler = |class: &RuntimeClass| Some(class.handler.clone());
        match &self.0 {
            Some((api, classes)) => classes.follow(api, &shutdown, handler).await,
            None => shutdown.cancelled().await,
        }
        Ok(())
    }

    /// The runtime handler for the pod's sandbox; empty for the runtime's default. Waits a bounded time for the first
    /// list.
    ///
    /// # Errors
    /// The class does not exist, or the classes have not been listed yet.
    pub async fn handler(&self, pod: &Pod) -> Result<String, RuntimeClassError> {
        if let Some((_, classes)) = self.0.as_ref().filter(|_| class_of(pod).is_some()) {
            classes.is_listed().await;
        }
        self.handler_now(pod)
    }

    /// Like [`Self::handler`], without waiting for the first list.
    ///
    /// # Errors
    /// The class does not exist, or the classes have not been listed yet.
    pub fn handler_now(&self, pod: &Pod) -> Result<String, RuntimeClassError> {
        let Some(name) = class_of(pod) else {
            return Ok(String::new());
        };
        let Some((_, classes)) = &self.0 else {
            return Err(RuntimeClassError::NotFound(name));
        };
        let key = (String::new(), name);
        let find = || classes.read(|all| all.get(&key).cloned());
        if let Some(handler) = find() {
            return Ok(handler);
        }
        classes.wait(pod.uid());
        // The class may have been added in between.
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
    use crate::model::{fixture, keys};
    use serde_json::json;
    use std::time::Duration;

    fn pod(source: &str, class: &str) -> Pod {
        let pod = fixture::pod("shop/p/u1", json!({"runtimeClassName": class}));
        fixture::annotated(pod, [(keys::CONFIG_SOURCE, source)])
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
        assert_eq!(error.to_string(), r#"runtimeclass.node.k8s.io "kata" not found"#);
        server.put("runtimeclasses", "", "kata", json!({"handler": "kata-qemu"}));
        let marked = tokio::time::timeout(Duration::from_secs(20), changed.take());
        assert!(marked.await.unwrap().contains(&PodUid::from("u1")));
        for source in ["api", "file"] {
            let handler = classes.handler(&pod(source, "kata")).await;
            assert_eq!(handler.unwrap(), "kata-qemu");
        }
        let now = classes.handler_now(&pod("api", "kata"));
        assert_eq!(now.unwrap(), "kata-qemu");
        assert!(RuntimeClasses::default().handler(&pod("api", "kata")).await.is_err());
        task.abort();
    }
}
