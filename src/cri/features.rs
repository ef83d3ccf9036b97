//! The features that the runtime supports, as it reports them.

use super::v1::StatusResponse;
use std::collections::BTreeMap;
use tokio::sync::watch;

/// The features that the runtime reports; others count as not supported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFeatures {
    /// Features by handler name, which is empty for pods without a runtime class. Older runtimes report no handlers.
    pub handlers: BTreeMap<String, HandlerFeatures>,
    /// Whether it can run a container without the groups in its image (`supplementalGroupsPolicy: Strict`).
    pub supplemental_groups_policy: bool,
}

/// The features of one runtime handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlerFeatures {
    /// Whether it supports recursive read-only mounts.
    pub recursive_read_only_mounts: bool,
    /// Whether it supports user namespaces.
    pub user_namespaces: bool,
}

/// The runtime reports handlers, but not this one; the text is upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the handler {0:?} is not known")]
pub struct UnknownHandler(pub String);

impl RuntimeFeatures {
    /// Parses the reply of `Status`.
    pub fn of(status: &StatusResponse) -> Self {
        let mut handlers = BTreeMap::new();
        for handler in &status.runtime_handlers {
            let features = handler.features.as_ref();
            let features = HandlerFeatures {
                recursive_read_only_mounts: features.is_some_and(|f| f.recursive_read_only_mounts),
                user_namespaces: features.is_some_and(|f| f.user_namespaces),
            };
            // As upstream, the first of several handlers with the same name counts.
            handlers.entry(handler.name.clone()).or_insert(features);
        }
        let features = status.features.as_ref();
        Self {
            handlers,
            supplemental_groups_policy: features.is_some_and(|f| f.supplemental_groups_policy),
        }
    }

    /// The features of a pod's handler; none if the runtime reports no handlers.
    ///
    /// # Errors
    /// The runtime reports handlers, but not this one.
    pub fn of_handler(&self, name: &str) -> Result<HandlerFeatures, UnknownHandler> {
        match self.handlers.get(name) {
            Some(features) => Ok(*features),
            None if self.handlers.is_empty() => Ok(HandlerFeatures::default()),
            None => Err(UnknownHandler(name.to_owned())),
        }
    }
}

/// Writer of the store; used by the task that polls the runtime's status.
pub type FeaturesWriter = watch::Sender<RuntimeFeatures>;

/// Reads the store; cheap to clone.
pub type FeaturesReader = watch::Receiver<RuntimeFeatures>;

/// A new store. It can change, because the runtime may be upgraded while the kubelet runs.
pub fn features_store(first: RuntimeFeatures) -> (FeaturesWriter, FeaturesReader) {
    watch::channel(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::v1;

    fn handler(name: &str, recursive: bool, user_namespaces: bool) -> v1::RuntimeHandler {
        v1::RuntimeHandler {
            name: name.into(),
            features: Some(v1::RuntimeHandlerFeatures {
                recursive_read_only_mounts: recursive,
                user_namespaces,
            }),
        }
    }

    fn features(
        runtime_handlers: Vec<v1::RuntimeHandler>,
        features: Option<v1::RuntimeFeatures>,
    ) -> RuntimeFeatures {
        RuntimeFeatures::of(&StatusResponse {
            runtime_handlers,
            features,
            ..StatusResponse::default()
        })
    }

    #[test]
    fn each_handler_has_its_own_features() {
        let silent = v1::RuntimeHandler { name: "silent".into(), features: None };
        let all = || {
            vec![
                handler("kata", true, false),
                silent.clone(),
                handler("", false, true),
                handler("kata", false, true),
            ]
        };
        let unknown = |name: &str| Err(UnknownHandler(name.into()));
        for (handlers, name, expected) in [
            (all(), "", Ok((false, true))),
            (all(), "kata", Ok((true, false))),
            (all(), "silent", Ok((false, false))),
            (all(), "gvisor", unknown("gvisor")),
            (vec![handler("kata", true, true)], "", unknown("")),
            (vec![], "", Ok((false, false))),
            (vec![], "kata", Ok((false, false))),
        ] {
            let found = features(handlers, None).of_handler(name);
            let found = found.map(|f| (f.recursive_read_only_mounts, f.user_namespaces));
            assert_eq!(found, expected, "{name:?}");
        }
    }

    #[test]
    fn groups_are_a_feature_of_the_whole_runtime() {
        for (reported, expected) in [(None, false), (Some(false), false), (Some(true), true)] {
            let reported = reported.map(|supplemental_groups_policy| v1::RuntimeFeatures {
                supplemental_groups_policy,
                ..v1::RuntimeFeatures::default()
            });
            assert_eq!(features(vec![], reported).supplemental_groups_policy, expected);
        }
    }
}
