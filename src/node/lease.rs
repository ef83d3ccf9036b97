//! The Lease of the node: its heartbeat.
//!
//! * Owns: the Lease object of the node; the task `node.lease`.
//! * Woken by: a timer, and by the Node object while there is no lease.
//! * Publishes: nothing.
//! * Must never depend on pods or the runtime: the lease only shows that the kubelet process is alive.
//! * Upstream: `k8s.io/component-helpers/apimachinery/lease`.

use crate::apiserver::{ApiError, ApiServer, Recovery, ResourcePath};
use crate::base::{clock, error_chain};
use crate::state::node_object::NodeObject;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use std::time::Duration;
use tokio::time::sleep;

/// Namespace of node leases.
const NAMESPACE: &str = "kube-node-lease";
/// Number of renewals per lease duration.
const RENEWALS: u32 = 4;
/// Random extra delay of renewals, as a fraction, so that nodes started together do not renew together.
const JITTER: f64 = 0.04;
/// The delay before a retry, doubling from `FIRST_DELAY` to `MAX_DELAY`. These retries go on during an outage, and
/// their first success ends the back-off of all other requests, so they are as frequent as the Go kubelet's status
/// updates.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(2);

/// Renews the lease of a node.
pub struct NodeLease {
    api: ApiServer,
    recovery: Recovery,
    node: NodeObject,
    node_name: String,
    seconds: i32,
    /// The last known version of the object.
    lease: Option<Lease>,
}

/// The next request after a failed update.
#[derive(Debug, PartialEq, Eq)]
enum NextRequest {
    /// Read the object: it was changed or deleted.
    Read,
    /// Retry the update.
    Retry,
}

/// The next request after an update failed with this error. Pure.
fn next_request(error: &ApiError) -> NextRequest {
    if error.is_conflict() || error.is_not_found() { NextRequest::Read } else { NextRequest::Retry }
}

/// The lease, renewed at `now`. Its owner reference is set to the Node object with this UID, if known, and never
/// to an earlier one, because the garbage collector would delete the lease. Pure.
fn renewed_lease(
    base: Option<&Lease>,
    node_name: &str,
    uid: Option<&str>,
    seconds: i32,
    now: Timestamp,
) -> Lease {
    let mut lease = base.cloned().unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(node_name.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        spec: None,
    });
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(node_name.to_owned()),
        lease_duration_seconds: Some(seconds),
        renew_time: Some(MicroTime(now)),
        ..lease.spec.unwrap_or_default()
    });
    if let Some(uid) = uid {
        let owners = lease.metadata.owner_references.get_or_insert_default();
        owners.retain(|owner| owner.kind != "Node" || owner.uid == uid);
        if !owners.iter().any(|owner| owner.uid == uid) {
            owners.push(OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node_name.to_owned(),
                uid: uid.to_owned(),
                ..OwnerReference::default()
            });
        }
    }
    lease
}

impl NodeLease {
    /// Builds the task. `seconds` is the duration of the lease; `node` provides the owner reference.
    pub fn new(api: ApiServer, node: NodeObject, node_name: String, seconds: i32) -> Self {
        Self { recovery: api.recovery(), api, node, node_name, seconds, lease: None }
    }

    /// Renews without an end.
    pub async fn run(mut self) {
        let seconds = u64::try_from(self.seconds).unwrap_or(1);
        let period = Duration::from_secs(seconds) / RENEWALS;
        loop {
            self.renew().await;
            let pause = sleep(period.mul_f64(1.0 + JITTER * fastrand::f64()));
            let is_missing = self.lease.is_none();
            tokio::select! {
                () = pause => {}
                Ok(_) = self.node.wait_for(Option::is_some), if is_missing => {}
            }
        }
    }

    /// Retries until the lease is renewed. While the Node object is unknown, an existing lease is renewed,
    /// but none is created, because it would have no owner.
    async fn renew(&mut self) {
        let mut delay = FIRST_DELAY;
        while let Err(error) = self.try_renew().await {
            if next_request(&error) == NextRequest::Read {
                self.lease = None;
            }
            if !self.api.is_reported(&error) {
                let place = format!("{NAMESPACE}/{}", self.node_name);
                tracing::error!(lease = place, err = %error_chain(&error), "Failed to update lease");
            }
            let mut next_try = clock::instant() + delay;
            self.recovery.wait(&mut next_try).await;
            delay = (delay * 2).min(MAX_DELAY);
        }
    }

    async fn try_renew(&mut self) -> Result<(), ApiError> {
        let known = match self.lease.take() {
            Some(lease) => Some(lease),
            None => self.read().await?,
        };
        let node = self.node.borrow().clone();
        if known.is_none() && node.is_none() {
            return Ok(());
        }
        let uid = node.and_then(|node| node.metadata.uid.clone());
        let now = clock::timestamp();
        let next =
            renewed_lease(known.as_ref(), &self.node_name, uid.as_deref(), self.seconds, now);
        let sent = match &known {
            Some(_) => self.api.update(self.place(), &next).await,
            None => self.api.create(Some(NAMESPACE), &next).await,
        };
        match sent {
            Ok(lease) => {
                self.lease = Some(lease);
                Ok(())
            }
            Err(error) => {
                // The request may have been processed despite the error; the next read shows.
                self.lease = known;
                Err(error)
            }
        }
    }

    async fn read(&self) -> Result<Option<Lease>, ApiError> {
        match self.api.get(self.place()).await {
            Ok(lease) => Ok(Some(lease)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn place(&self) -> ResourcePath<'_> {
        ResourcePath::namespaced(NAMESPACE, &self.node_name)
    }
}

#[cfg(test)]
mod tests;
