//! What the runtime can do, as it says itself.

use super::v1::StatusResponse;
use tokio::sync::watch;

/// What pods may ask of the runtime's default handler, the one without a name that pods without a
/// runtime class get. A runtime that does not report it counts as one that cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFeatures {
    /// Mount a whole tree read-only.
    pub recursive_read_only_mounts: bool,
    /// Give a pod a user namespace.
    pub user_namespaces: bool,
    /// Run a container without the groups that its image names (`supplementalGroupsPolicy: Strict`).
    pub supplemental_groups_policy: bool,
    /// The runtime lists its handlers, and none of them is the default one.
    pub default_handler_unknown: bool,
}

impl RuntimeFeatures {
    /// Reads the runtime's answer to `Status`.
    pub fn of(status: &StatusResponse) -> Self {
        let handlers = &status.runtime_handlers;
        let default = handlers.iter().find(|handler| handler.name.is_empty());
        let handler = default.and_then(|handler| handler.features.as_ref());
        Self {
            recursive_read_only_mounts: handler.is_some_and(|h| h.recursive_read_only_mounts),
            user_namespaces: handler.is_some_and(|h| h.user_namespaces),
            supplemental_groups_policy: status
                .features
                .as_ref()
                .is_some_and(|features| features.supplemental_groups_policy),
            default_handler_unknown: !handlers.is_empty() && default.is_none(),
        }
    }
}

/// The store's one writer: the task that polls the runtime's status.
pub type FeaturesWriter = watch::Sender<RuntimeFeatures>;

/// Reads the store; cheap to clone.
pub type FeaturesReader = watch::Receiver<RuntimeFeatures>;

/// A new store. The runtime may be replaced by a newer one while the kubelet runs.
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

    fn told(
        runtime_handlers: Vec<v1::RuntimeHandler>,
        groups: Option<bool>,
    ) -> (bool, bool, bool, bool) {
        let features = groups.map(|supplemental_groups_policy| v1::RuntimeFeatures {
            supplemental_groups_policy,
            ..v1::RuntimeFeatures::default()
        });
        let read = RuntimeFeatures::of(&StatusResponse {
            runtime_handlers,
            features,
            ..StatusResponse::default()
        });
        (
            read.recursive_read_only_mounts,
            read.user_namespaces,
            read.supplemental_groups_policy,
            read.default_handler_unknown,
        )
    }

    #[test]
    fn only_the_default_handlers_features_count() {
        let other = || handler("other", true, true);
        let table = [
            (told(vec![], None), (false, false, false, false)),
            (told(vec![], Some(true)), (false, false, true, false)),
            (told(vec![other()], None), (false, false, false, true)),
            (
                told(vec![other(), handler("", false, true)], Some(false)),
                (false, true, false, false),
            ),
            (
                told(vec![handler("", true, false), other()], None),
                (true, false, false, false),
            ),
        ];
        for (index, (read, expected)) in table.into_iter().enumerate() {
            assert_eq!(read, expected, "row {index}");
        }
    }
}
