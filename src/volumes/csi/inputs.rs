//! What calls need from the API server: secrets, tokens, and the context of attached volumes.
//!
//! Secrets and contexts are read for each call, as upstream does, and nothing of them is kept. Tokens are kept until
//! they have to be renewed.

use super::drivers::CsiDrivers;
use super::identity::VolumeIdentity;
use super::requests::MountingPod;
use super::spec::{CsiVolumeSpec, SecretRef};
use crate::apiserver::csi_driver::{CsiDriverLister, DriverTokenRequest};
use crate::apiserver::token::{IssuedTokens, TokenKey};
use crate::apiserver::volume_attachment::VolumeAttachments;
use crate::apiserver::{ApiServer, ResourcePath};
use crate::base::{DirtySet, error_chain};
use crate::state::events::EventRecorder;
use crate::state::node_object::NodeObject;
use crate::state::volumes_in_use::VolumesInUse;
use crate::volumes::VolumeMetrics;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Maximum size of a secret's data: the API server's.
const MAX_SECRET: usize = 1024 * 1024;
/// Why a call cannot be made without an API server; upstream's text.
const STANDALONE: &str = "failed to get a kubernetes client";

/// What CSI volumes need from elsewhere. Cheap to clone.
#[derive(Clone)]
pub struct CsiSources {
    /// The registered drivers.
    pub drivers: CsiDrivers,
    /// The CSIDriver objects.
    pub objects: CsiDriverLister,
    /// The attachments.
    pub attachments: VolumeAttachments,
    /// The API server, for secrets.
    pub api: Option<ApiServer>,
    /// Tokens for drivers.
    pub tokens: IssuedTokens,
    /// The Node object, for `volumesAttached`.
    pub node: NodeObject,
    /// The node's name.
    pub node_name: String,
    /// The volumes in use, which the node reports.
    pub in_use: VolumesInUse,
    /// Drivers whose volumes cannot be attached because the node has too many.
    pub full_drivers: Arc<DirtySet<String>>,
    /// How often PersistentVolumes that may become larger are read at least; `syncFrequency`, as in the Go kubelet.
    pub resync_interval: Duration,
    /// Whether the health of volumes is reported (`CSIVolumeHealth`).
    pub reports_health: bool,
    /// Events of pods.
    pub events: EventRecorder,
    /// Metrics of all volumes.
    pub metrics: VolumeMetrics,
}

/// Values that a driver receives and that nothing else may show.
pub(super) type Secrets = BTreeMap<String, String>;

impl CsiSources {
    /// What the driver's controller passes on to calls on the node.
    ///
    /// # Errors
    /// The volume is not attached, or it is unknown whether it is.
    pub(super) async fn publish_context(&self, spec: &CsiVolumeSpec) -> Result<Secrets, String> {
        let handle = spec.handle();
        let attachments = &self.attachments;
        let found = attachments.get(&handle, spec.driver(), &self.node_name);
        let attached = found.await.map_err(|error| error.to_string())?;
        Ok(attached.publish_context)
    }

    /// Whether a volume cannot be attached because the node has too many volumes of the driver, which adapts its limit to
    /// that: its CSIDriver object has a period for updates of the limit. Then the limit is read again at once.
    pub(super) async fn is_over_limit(&self, volume: &VolumeIdentity) -> bool {
        let driver = volume.driver();
        let object = self.objects.get(driver).await.ok().flatten();
        if object.is_none_or(|object| object.node_allocatable_update_period.is_none()) {
            return false;
        }
        let handle = volume.handle();
        let found = self.attachments.get(&handle, driver, &self.node_name).await;
        let is_full = found.is_err_and(|error| error.is_limit_reached());
        if is_full {
            self.full_drivers.mark(driver.to_owned());
        }
        is_full
    }

    /// The data of a secret. `field` is the field that refers to it.
    ///
    /// # Errors
    /// It cannot be read. The text has no value.
    pub(super) async fn secret(
        &self,
        field: &str,
        reference: Option<&SecretRef>,
    ) -> Result<Secrets, String> {
        let Some(SecretRef { namespace, name }) = reference else {
            return Ok(Secrets::new());
        };
        let read = self.read_secret(namespace, name).await;
        read.map_err(|why| format!("fetching {field} {namespace}/{name} failed: {why}"))
    }

    async fn read_secret(&self, namespace: &str, name: &str) -> Result<Secrets, String> {
        let api = self.api.as_ref().ok_or(STANDALONE)?;
        let place = ResourcePath::namespaced(namespace, name);
        let secret = api.get::<Secret>(place).await;
        let data = secret.map_err(|error| error_chain(&error))?.data;
        let data = data.unwrap_or_default().into_iter();
        let (mut secrets, mut size) = (Secrets::new(), 0);
        for (key, value) in data {
            size += key.len() + value.0.len();
            if size > MAX_SECRET {
                return Err("the secret is too large".into());
            }
            // The text of the error would have a part of the value.
            let Ok(value) = String::from_utf8(value.0) else {
                return Err(format!("the value of key {key:?} is not UTF-8"));
            };
            secrets.insert(key, value);
        }
        Ok(secrets)
    }

    /// The tokens that a driver receives for a pod, as JSON by audience; `None` if it wants none.
    ///
    /// # Errors
    /// One cannot be requested.
    pub(super) async fn tokens(
        &self,
        pod: &MountingPod,
        requests: &[DriverTokenRequest],
    ) -> Result<Option<String>, String> {
        if requests.is_empty() {
            return Ok(None);
        }
        let mut by_audience = Map::new();
        for request in requests {
            let audience = Some(&request.audience).filter(|audience| !audience.is_empty());
            let key = TokenKey {
                namespace: pod.namespace.clone(),
                service_account: pod.service_account.clone(),
                audience: audience.cloned(),
                expiration_seconds: request.expiration_seconds,
                pod_name: pod.name.clone(),
                pod_uid: pod.uid.clone(),
            };
            let issued = self.tokens.get(key).await;
            let issued = issued.map_err(|error| error.to_string())?;
            let token = String::from_utf8_lossy(&issued.token.0);
            let expires = issued.expires.to_string();
            let entry = json!({"token": token, "expirationTimestamp": expires});
            by_audience.insert(request.audience.clone(), entry);
        }
        Ok(Some(Value::from(by_audience).to_string()))
    }
}
