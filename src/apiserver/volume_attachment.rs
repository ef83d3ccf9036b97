//! VolumeAttachments: whether the attach/detach controller has attached a volume to this node.
//!
//! * Owns: nothing; each call reads one object, because a node may get these objects but not watch them.
//! * Woken by: its callers. Publishes nothing.
//! * Must never treat a volume as attached while its attachment is being deleted.
//! * Upstream: `WaitForAttach` of `pkg/volume/csi/csi_attacher.go`.

use super::{ApiServer, ResourcePath};
use crate::base::{error_chain, hex};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

/// The gRPC code of an attach error when the node has reached its maximum number of volumes (`RESOURCE_EXHAUSTED`).
const RESOURCE_EXHAUSTED: i32 = 8;

/// The name of the VolumeAttachment of a volume and a node, and the `attachmentID` in `vol_data.json`.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    let mut hasher = Sha256::new();
    for part in [handle, driver, node] {
        hasher.update(part);
    }
    format!("csi-{}", hex(&hasher.finalize()))
}

/// A volume that is attached to this node.
#[derive(Clone, PartialEq, Eq)]
pub struct Attached {
    /// What the driver's controller passes on to the calls on the node.
    pub publish_context: BTreeMap<String, String>,
}

impl std::fmt::Debug for Attached {
    /// Values may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys = self.publish_context.keys();
        f.debug_tuple("Attached").field(&keys).finish()
    }
}

/// Why a volume is not attached; upstream's texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachmentError {
    /// There is no API server.
    #[error("failed to get a kubernetes client")]
    Standalone,
    /// The VolumeAttachment does not exist.
    #[error("volume {handle} has GET error for volume attachment {name}: {why}")]
    Absent {
        /// The volume's handle.
        handle: String,
        /// The name of the VolumeAttachment.
        name: String,
        /// The API server's error.
        why: String,
    },
    /// The VolumeAttachment cannot be read.
    #[error("volume {handle} has GET error for volume attachment {name}: {why}")]
    Get {
        /// The volume's handle.
        handle: String,
        /// The name of the VolumeAttachment.
        name: String,
        /// The error of the request.
        why: String,
    },
    /// The VolumeAttachment is being deleted.
    #[error("volume attachment is being deleted")]
    Deleted,
    /// The last attempt to attach failed.
    #[error("{message}")]
    Failed {
        /// The error of the driver's controller.
        message: String,
        /// Its gRPC code.
        code: Option<i32>,
    },
    /// The volume is not attached yet.
    #[error("volume {handle} is not attached for volume attachment {name}")]
    NotAttached {
        /// The volume's handle.
        handle: String,
        /// The name of the VolumeAttachment.
        name: String,
    },
}

impl AttachmentError {
    /// Whether the volume cannot be attached because the node has reached its maximum number of volumes.
    pub fn is_limit_reached(&self) -> bool {
        matches!(self, Self::Failed { code: Some(code), .. } if *code == RESOURCE_EXHAUSTED)
    }
}

/// Reads VolumeAttachments. Cheap to clone.
#[derive(Clone, Default)]
pub struct VolumeAttachments(Option<ApiServer>);

impl VolumeAttachments {
    /// Reads from this API server; with `None` every call fails.
    pub fn new(api: Option<ApiServer>) -> Self {
        Self(api)
    }

    /// Reads whether a volume is attached to a node: one request.
    ///
    /// # Errors
    /// It is not attached, or it is unknown whether it is.
    pub async fn get(
        &self,
        handle: &str,
        driver: &str,
        node: &str,
    ) -> Result<Attached, AttachmentError> {
        let api = self.0.as_ref().ok_or(AttachmentError::Standalone)?;
        let name = attachment_name(handle, driver, node);
        let read = api.get::<VolumeAttachment>(ResourcePath::cluster(&name)).await;
        match read {
            Ok(attachment) => attached(handle, node, name, attachment),
            Err(error) => {
                let (handle, why) = (handle.to_owned(), error_chain(&error));
                Err(if error.is_not_found() {
                    AttachmentError::Absent { handle, name, why }
                } else {
                    AttachmentError::Get { handle, name, why }
                })
            }
        }
    }
}

fn attached(
    handle: &str,
    node: &str,
    name: String,
    attachment: VolumeAttachment,
) -> Result<Attached, AttachmentError> {
    if attachment.metadata.deletion_timestamp.is_some() {
        return Err(AttachmentError::Deleted);
    }
    let status = attachment.status.unwrap_or_default();
    if status.attached && attachment.spec.node_name == node {
        let publish_context = status.attachment_metadata.unwrap_or_default();
        return Ok(Attached { publish_context });
    }
    Err(match status.attach_error {
        Some(error) => AttachmentError::Failed {
            message: error.message.unwrap_or_default(),
            code: error.error_code,
        },
        None => AttachmentError::NotAttached { handle: handle.to_owned(), name },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::tests::stored::{Mode, Stored};
    use serde_json::{Value, json};

    #[test]
    fn the_name_is_the_hash_of_handle_driver_and_node_run_together() {
        let name = attachment_name("vol-1", "d.example.com", "node1");
        assert_eq!(name, attachment_name("vol-", "1d.example.com", "node1"));
        assert_ne!(name, attachment_name("vol-1", "d.example.com", "node2"));
        let empty = "csi-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(attachment_name("", "", ""), empty);
    }

    fn read(deleted: bool, status: Value) -> Result<Attached, AttachmentError> {
        let mut object = json!({
            "metadata": {"name": "csi-1"},
            "spec": {"attacher": "d", "nodeName": "n", "source": {}},
            "status": status,
        });
        if deleted {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let object = serde_json::from_value(object).unwrap();
        attached("vol", "n", "csi-1".into(), object)
    }

    #[test]
    fn a_volume_is_attached_only_while_its_attachment_says_so_and_stays() {
        let not_attached = "volume vol is not attached for volume attachment csi-1";
        for (deleted, status, expected) in [
            (false, json!({"attached": true, "attachmentMetadata": {"k": "v"}}), Ok("v")),
            (false, json!({"attached": true}), Ok("")),
            // An error of an earlier attempt.
            (false, json!({"attached": true, "attachError": {"message": "no"}}), Ok("")),
            (true, json!({"attached": true}), Err("volume attachment is being deleted")),
            (false, json!({"attached": false, "attachError": {"message": "full"}}), Err("full")),
            (false, json!({"attached": false}), Err(not_attached)),
            (false, json!(null), Err(not_attached)),
        ] {
            let read = read(deleted, status.clone()).map_err(|error| error.to_string());
            let value = read.map(|it| it.publish_context.get("k").cloned().unwrap_or_default());
            let value = value.as_deref().map_err(String::as_str);
            assert_eq!(value, expected, "{deleted} {status}");
        }
    }

    #[test]
    fn the_code_of_an_attach_error_says_whether_the_node_is_full() {
        for (code, full) in [(json!(8), true), (json!(13), false), (json!(null), false)] {
            let status = json!({"attached": false, "attachError": {"errorCode": code}});
            assert_eq!(read(false, status).unwrap_err().is_limit_reached(), full);
        }
    }

    #[tokio::test]
    async fn an_attachment_is_read_by_its_name_and_a_failed_request_is_not_a_missing_object() {
        let server = Stored::start().await;
        let attachments = VolumeAttachments::new(Some(server.client().await));
        let name = attachment_name("vol", "d", "n");
        let get = || attachments.get("vol", "d", "n");
        let absent = get().await.unwrap_err();
        assert!(matches!(absent, AttachmentError::Absent { .. }), "{absent:?}");
        let text = format!("volume vol has GET error for volume attachment {name}: ");
        assert!(absent.to_string().starts_with(&text), "{absent}");
        let spec = json!({"attacher": "d", "nodeName": "n", "source": {}});
        let object = json!({"spec": spec, "status": {"attached": true}});
        server.put("volumeattachments", "", &name, object);
        assert!(get().await.unwrap().publish_context.is_empty());
        server.set(Mode::Refusing(503));
        let failed = get().await.unwrap_err();
        assert!(matches!(failed, AttachmentError::Get { .. }), "{failed:?}");
    }
}
