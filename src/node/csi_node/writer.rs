//! The requests that bring the CSINode object and the Node object in line.

use super::facts::DriverFacts;
use super::objects::{
    CsiNodeStep, NodeOwner, WantedDrivers, csi_node_step, node_patch, node_patch_without,
};
use crate::apiserver::{ApiError, ApiServer, ResourcePath, StrategicPatch};
use crate::base::error_chain;
use crate::model::LenientNode;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use serde_json::Value;
use std::time::Duration;
use tokio::time::sleep;

/// Maximum number of tries of an update.
const MAX_TRIES: u32 = 4;
/// The delay before a retry, which is multiplied by `DELAY_FACTOR` each time.
const FIRST_DELAY: Duration = Duration::from_millis(10);
const DELAY_FACTOR: u32 = 5;
/// Maximum number of writes in one try: delete, create, remove an entry, add it again, and one to spare.
const MAX_STEPS: usize = 5;

/// Why an object was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// A request failed.
    #[error("{}", error_chain(.0))]
    Api(#[from] ApiError),
    /// The driver's facts contradict the object.
    #[error("{0}")]
    Refused(String),
    /// The object was still not as it should be after this many writes.
    #[error("the object is still different after {0} writes")]
    Unstable(usize),
}

impl WriteError {
    /// Whether no API server responded.
    pub(super) fn is_absence(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_absence())
    }
}

/// Writes the objects of this node. Its calls must not overlap: each replaces what it has read.
pub(super) struct CsiNodeWriter {
    pub(super) api: ApiServer,
    pub(super) node_name: String,
}

impl CsiNodeWriter {
    /// Brings the CSINode object in line with this Node object and these drivers. `removed` is a driver to remove.
    pub(super) async fn write_csi_node(
        &self,
        node_uid: &str,
        wanted: &WantedDrivers,
        removed: Option<&str>,
    ) -> Result<(), WriteError> {
        retry(|| self.try_csi_node(node_uid, wanted, removed)).await
    }

    /// Adds a driver to the Node object; returns the UID of the object.
    pub(super) async fn add_to_node(
        &self,
        driver: &str,
        facts: &DriverFacts,
    ) -> Result<String, WriteError> {
        let patch = |node: &Node| node_patch(node, driver, facts).map_err(WriteError::Refused);
        retry(|| self.try_node(&patch)).await
    }

    /// Removes a driver from the Node object; returns the UID of the object.
    pub(super) async fn remove_from_node(&self, driver: &str) -> Result<String, WriteError> {
        let patch = |node: &Node| Ok(node_patch_without(node, driver));
        retry(|| self.try_node(&patch)).await
    }

    async fn try_csi_node(
        &self,
        node_uid: &str,
        wanted: &WantedDrivers,
        removed: Option<&str>,
    ) -> Result<(), WriteError> {
        let owner = NodeOwner { name: &self.node_name, uid: node_uid };
        let mut existing = match self.api.get::<CSINode>(self.place()).await {
            Err(error) if error.is_not_found() => None,
            existing => Some(existing?),
        };
        for _ in 0..MAX_STEPS {
            // The response to a write is the newest version.
            existing = match csi_node_step(existing, owner, wanted, removed) {
                CsiNodeStep::Done => return Ok(()),
                CsiNodeStep::Create(csi_node) => Some(self.api.create(None, &*csi_node).await?),
                CsiNodeStep::Update(csi_node) => {
                    Some(self.api.update(self.place(), &*csi_node).await?)
                }
                CsiNodeStep::Delete(uid) => {
                    tracing::info!(
                        node = self.node_name,
                        "Deleting the CSINode object of an earlier Node object"
                    );
                    self.delete(uid).await?;
                    None
                }
            };
        }
        Err(WriteError::Unstable(MAX_STEPS))
    }

    async fn delete(&self, uid: Option<String>) -> Result<(), ApiError> {
        let options = DeleteOptions {
            preconditions: Some(Preconditions { uid, ..Preconditions::default() }),
            ..DeleteOptions::default()
        };
        match self.api.delete::<CSINode>(self.place(), &options).await {
            Err(error) if error.is_not_found() => Ok(()),
            deleted => deleted,
        }
    }

    async fn try_node(
        &self,
        patch: &impl Fn(&Node) -> Result<Option<Value>, WriteError>,
    ) -> Result<String, WriteError> {
        let node = self.api.get::<LenientNode>(self.place()).await?.node;
        if let Some(patch) = patch(&node)? {
            let patch = StrategicPatch(patch);
            let patched = self.api.patch::<LenientNode>(self.place(), Some("status"), &patch);
            patched.await?;
        }
        Ok(node.metadata.uid.unwrap_or_default())
    }

    /// Both objects have the name of the node.
    fn place(&self) -> ResourcePath<'_> {
        ResourcePath::cluster(&self.node_name)
    }
}

/// Tries again after a conflict or another failure, unless trying again is of no use.
async fn retry<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, WriteError>
where
    F: Future<Output = Result<T, WriteError>>,
{
    let mut delay = FIRST_DELAY;
    for _ in 1..MAX_TRIES {
        match attempt().await {
            Err(error @ WriteError::Refused(_)) => return Err(error),
            // The caller waits until it responds.
            Err(error) if error.is_absence() => return Err(error),
            Err(error) => {
                tracing::debug!(err = %error, "Failed to update the objects of CSI drivers, will retry");
            }
            done => return done,
        }
        sleep(delay.mul_f64(1.0 + 0.1 * fastrand::f64())).await;
        delay *= DELAY_FACTOR;
    }
    attempt().await
}
