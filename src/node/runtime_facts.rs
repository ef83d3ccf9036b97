//! Reads the runtime's version, features and images for the node status.
//!
//! * Owns: the task `node.runtime`.
//! * Woken by: a timer.
//! * Publishes: [`RuntimeFacts`].
//! * Must never delay the node status while the runtime hangs.

use crate::cri::v1::{Image, StatusResponse, VersionResponse};
use crate::cri::{ImageClient, RuntimeClient};
use crate::node::node_status::RuntimeFacts;
use k8s_openapi::api::core::v1::{ContainerImage, NodeRuntimeHandler, NodeRuntimeHandlerFeatures};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// Interval of reads; the runtime reports no events for images.
const PERIOD: Duration = Duration::from_secs(60);

/// Reads the facts.
pub struct RuntimeFactsReader {
    runtime: RuntimeClient,
    images: ImageClient,
    facts: watch::Sender<RuntimeFacts>,
}

impl RuntimeFactsReader {
    /// Builds the reader and its output, which starts with the facts of these responses.
    pub fn new(
        runtime: RuntimeClient,
        images: ImageClient,
        version: &VersionResponse,
        status: &StatusResponse,
    ) -> (Self, watch::Receiver<RuntimeFacts>) {
        let (facts, reader) = watch::channel(with_status(
            RuntimeFacts { version: version_of(version), ..RuntimeFacts::default() },
            status,
        ));
        let own = Self { runtime, images, facts };
        (own, reader)
    }

    /// Reads without an end.
    pub async fn run(self) {
        loop {
            self.read().await;
            sleep(PERIOD).await;
        }
    }

    /// Reads the facts. Facts that cannot be read keep their last value; the runtime's health is reported elsewhere.
    async fn read(&self) {
        let (version, status, images) = tokio::join!(
            self.runtime.version(),
            self.runtime.status(false),
            self.images.list_images(None),
        );
        let mut next = self.facts.borrow().clone();
        if let Ok(version) = version {
            next.version = version_of(&version);
        }
        if let Ok(status) = status {
            next = with_status(next, &status);
        }
        if let Ok(images) = images {
            next.images = Some(to_container_images(images));
        }
        self.facts.send_if_modified(|known| {
            let changed = *known != next;
            *known = next;
            changed
        });
    }
}

fn version_of(reply: &VersionResponse) -> String {
    let version = plain_version(&reply.runtime_version);
    format!("{}://{version}", reply.runtime_name)
}

/// Removes a distribution's suffix from a version: `1.6.20~ds1` becomes `1.6.20`; `2.1.0-rc.1` is kept.
fn plain_version(text: &str) -> &str {
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    match end.and_then(|end| text.split_at_checked(end)) {
        Some((numbers, rest)) if !numbers.is_empty() && !rest.starts_with(['-', '+']) => numbers,
        _ => text,
    }
}

fn with_status(facts: RuntimeFacts, status: &StatusResponse) -> RuntimeFacts {
    let handlers = status.runtime_handlers.iter().map(|handler| {
        let features = handler.features.unwrap_or_default();
        NodeRuntimeHandler {
            name: Some(handler.name.clone()),
            features: Some(NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(features.recursive_read_only_mounts),
                user_namespaces: Some(features.user_namespaces),
            }),
        }
    });
    let mut handlers: Vec<_> = handlers.collect();
    // The runtime returns them in no order, but equal lists must compare as equal.
    handlers.sort_by(|a, b| a.name.cmp(&b.name));
    let features = status.features.as_ref();
    RuntimeFacts {
        handlers,
        supplemental_groups_policy: features.map(|features| features.supplemental_groups_policy),
        ..facts
    }
}

fn to_container_images(images: Vec<Image>) -> Vec<ContainerImage> {
    let images = images.into_iter().map(|image| ContainerImage {
        names: Some([image.repo_digests, image.repo_tags].concat()),
        size_bytes: Some(i64::try_from(image.size).unwrap_or(i64::MAX)),
    });
    let mut images: Vec<_> = images.collect();
    // The runtime returns them in no order, but equal lists must compare as equal.
    images.sort_by(|a, b| a.names.cmp(&b.names));
    images
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::v1::{RuntimeFeatures, RuntimeHandler, RuntimeHandlerFeatures};

    #[test]
    fn what_the_runtime_does_not_say_is_not_in_the_status() {
        let version = VersionResponse {
            runtime_name: "containerd".into(),
            runtime_version: "1.6.20".into(),
            ..VersionResponse::default()
        };
        assert_eq!(version_of(&version), "containerd://1.6.20");
        for (given, expected) in [
            ("1.6.20~ds1", "1.6.20"),
            ("v2.1.0-rc.1", "2.1.0-rc.1"),
            ("1.34.0", "1.34.0"),
            ("unknown", "unknown"),
        ] {
            assert_eq!(plain_version(given), expected);
        }
        let silent = with_status(RuntimeFacts::default(), &StatusResponse::default());
        assert_eq!(silent, RuntimeFacts::default());
        let handler = RuntimeHandler {
            name: "runc".into(),
            features: Some(RuntimeHandlerFeatures {
                recursive_read_only_mounts: true,
                user_namespaces: false,
            }),
        };
        let plain = RuntimeHandler { name: String::new(), features: None };
        let status = StatusResponse {
            runtime_handlers: vec![handler, plain],
            features: Some(RuntimeFeatures {
                supplemental_groups_policy: true,
                ..RuntimeFeatures::default()
            }),
            ..StatusResponse::default()
        };
        let facts = with_status(RuntimeFacts::default(), &status);
        assert_eq!(facts.supplemental_groups_policy, Some(true));
        let handlers = facts.handlers.iter().map(|handler| {
            let features = handler.features.clone().unwrap();
            let recursive = features.recursive_read_only_mounts;
            (handler.name.as_deref(), recursive, features.user_namespaces)
        });
        assert_eq!(
            handlers.collect::<Vec<_>>(),
            [(Some(""), Some(false), Some(false)), (Some("runc"), Some(true), Some(false))]
        );
    }

    #[test]
    fn an_image_has_its_digests_before_its_tags_and_the_order_of_the_list_is_no_matter() {
        let image = |digest: &str, tag: &str| Image {
            repo_digests: vec![digest.into()],
            repo_tags: vec![tag.into()],
            size: 7,
            ..Image::default()
        };
        let (one, two) = (image("a@1", "a:1"), image("b@1", "b:1"));
        let images = to_container_images(vec![two.clone(), one.clone()]);
        assert_eq!(images, to_container_images(vec![one, two]));
        let names = images[0].names.clone().unwrap();
        assert_eq!(names, ["a@1", "a:1"]);
        assert_eq!(images[0].size_bytes, Some(7));
    }
}
