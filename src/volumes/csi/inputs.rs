//! What calls need from the API server: secrets, tokens, and the context of attached volumes.
//!
//! Secrets and contexts are read for each call, as upstream does, and nothing of them is kept. Tokens are kept until
//! they have to be renewed.

use super::{
    drivers::CsiDrivers,
    requests::MountingPod,
    spec::{CsiVolumeSpec, SecretRef},
};
use crate::apiserver::{
    ApiServer, ResourcePath,
    csi_driver::{CsiDriverLister, DriverTokenRequest},
    token::{self, IssuedOnce, TokenKey},
    volume_attachment::VolumeAttachments,
};
use crate::base::{DirtySet, error_chain};
use crate::model::PodUid;
use crate::state::{node_object::NodeObject, volumes_in_use::VolumesInUse};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, sync::Arc};

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
    /// The API server, for secrets and tokens.
    pub api: Option<ApiServer>,
    /// The Node object, for `volumesAttached`.
    pub node: NodeObject,
    /// The node's name.
    pub node_name: String,
    /// The volumes in use, which the node reports.
    pub in_use: VolumesInUse,
    /// Drivers whose volumes cannot be attached because the node has too many.
    pub full_drivers: Arc<DirtySet<String>>,
    tokens: Arc<Mutex<BTreeMap<TokenKey, IssuedOnce>>>,
}

/// Values that a driver receives and that nothing else may show.
pub(super) type Secrets = BTreeMap<String, String>;

impl CsiSources {
    /// Sources without drivers so far.
    pub fn new(
        drivers: CsiDrivers,
        (objects, attachments): (CsiDriverLister, VolumeAttachments),
        api: Option<ApiServer>,
        node: NodeObject,
        node_name: &str,
        in_use: VolumesInUse,
    ) -> Self {
        Self {
            drivers,
            objects,
            attachments,
            api,
            node,
            node_name: node_name.to_owned(),
            in_use,
            full_drivers: Arc::default(),
            tokens: Arc::default(),
        }
    }

    /// What the driver's controller passes on to calls on the node.
    ///
    /// # Errors
    /// The volume is not attached, or it is unknown whether it is.
    pub(super) async fn publish_context(&self, spec: &CsiVolumeSpec) -> Result<Secrets, String> {
        let handle = spec.handle();
        let attachments = &self.attachments;
        let found = attachments.get(&handle, spec.driver(), &self.node_name);
        match found.await {
            Ok(attached) => Ok(attached.publish_context),
            Err(error) => {
                if error.is_limit_reached() {
                    self.full_drivers.mark(spec.driver().to_owned());
                }
                Err(error.to_string())
            }
        }
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
            let issued = self.token(pod, request).await;
            let issued = issued.map_err(|why| format!("failed to fetch token: {why}"))?;
            let token = String::from_utf8_lossy(&issued.token.0);
            let expires = issued.expires.to_string();
            let entry = json!({"token": token, "expirationTimestamp": expires});
            by_audience.insert(request.audience.clone(), entry);
        }
        Ok(Some(Value::from(by_audience).to_string()))
    }

    async fn token(
        &self,
        pod: &MountingPod,
        request: &DriverTokenRequest,
    ) -> Result<IssuedOnce, String> {
        let audience = Some(&request.audience).filter(|audience| !audience.is_empty());
        let key = TokenKey {
            namespace: pod.namespace.clone(),
            service_account: pod.service_account.clone(),
            audience: audience.cloned(),
            expiration_seconds: request.expiration_seconds,
            pod_name: pod.name.clone(),
            pod_uid: pod.uid.clone(),
        };
        let known = self.tokens.lock().get(&key).cloned();
        if let Some(known) = known.filter(|known| known.renew > Timestamp::now()) {
            return Ok(known);
        }
        let api = self.api.as_ref().ok_or(STANDALONE)?;
        let issued = token::issue(api, &key).await;
        let issued = issued.map_err(|error| error_chain(&error))?;
        self.tokens.lock().insert(key, issued.clone());
        Ok(issued)
    }

    /// Removes the tokens of a pod.
    pub(super) fn forget(&self, uid: &PodUid) {
        self.tokens.lock().retain(|key, _| key.pod_uid != *uid);
    }
}
