//! Reports the volumes in use, and confirms those that the API server has stored.
//!
//! A name is confirmed only when no earlier report can still remove it. The response to a report shows that. A read
//! shows it only if the last report was answered and the read is not older than that response: after a report with an
//! unknown outcome, the next confirmation is the response to another report.

use crate::base::clock::{self, Instant};
use crate::node::node_status::GeneratedStatus;
use crate::state::volumes_in_use::{VolumesInUse, WantedVolumes};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep_until;

/// Minimum interval between two syncs that are caused by changed volumes. The first one is immediate; the names of
/// pods that start together share the next report.
const SYNC_INTERVAL: Duration = Duration::from_millis(200);

pub(super) struct VolumesInUseReport {
    store: VolumesInUse,
    wanted: watch::Receiver<WantedVolumes>,
    /// Whether the last report was answered.
    is_settled: bool,
    /// The `resourceVersion` of its response, if it is a number.
    answered_version: Option<u64>,
    paused_until: Instant,
}

impl VolumesInUseReport {
    pub(super) fn new(store: VolumesInUse) -> Self {
        Self {
            wanted: store.wanted(),
            store,
            // A report of an earlier kubelet may still be under way.
            is_settled: false,
            answered_version: None,
            paused_until: clock::instant(),
        }
    }

    /// Waits for a change of the wanted names since the last [`Self::wanted`]. Cancel safe.
    pub(super) async fn changed(&mut self) {
        sleep_until(self.paused_until).await;
        if self.wanted.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.paused_until = clock::instant() + SYNC_INTERVAL;
    }

    pub(super) fn wanted(&mut self) -> WantedVolumes {
        self.wanted.borrow_and_update().clone()
    }

    /// Confirms the names in the Node object as it is known. Returns whether a report has to be sent although nothing
    /// else requires one, because the object does not show what the API server has.
    pub(super) fn read(&self, known: &Node) -> bool {
        if self.wanted.borrow().is_none() {
            return false;
        }
        let is_older = version(known)
            .zip(self.answered_version)
            .is_some_and(|(known, answered)| known < answered);
        if !self.is_settled || is_older {
            return true;
        }
        self.confirm(known);
        false
    }

    /// Records the response to a report.
    pub(super) fn answered(&mut self, node: &Node) {
        self.is_settled = true;
        self.answered_version = version(node);
        self.confirm(node);
    }

    /// Records a report without a response, or one with an error that leaves the outcome unknown.
    pub(super) fn failed(&mut self) {
        self.is_settled = false;
    }

    /// Nothing is confirmed, because there is no Node object.
    pub(super) fn withdraw(&self) {
        self.store.confirm([], "");
    }

    fn confirm(&self, node: &Node) {
        let resource_version = node.metadata.resource_version.as_deref();
        self.store.confirm(names(node), resource_version.unwrap_or_default());
    }

    /// Completes the patch from the known Node object to a generated status.
    pub(super) fn complete(
        &self,
        patch: Option<Value>,
        known: &Node,
        generated: &GeneratedStatus,
    ) -> Option<Value> {
        let wanted = generated.status.volumes_in_use.as_deref().unwrap_or_default();
        let mut patch = match patch {
            Some(Value::Object(patch)) => patch,
            _ => Map::new(),
        };
        let mut insert = |part: &str, name: &str, value: Value| {
            let part = patch.entry(part).or_insert_with(|| json!({}));
            if let Some(part) = part.as_object_mut() {
                part.insert(name.to_owned(), value);
            }
        };
        // The known list may differ from the one that the API server has.
        if self.wanted.borrow().is_some() && !self.is_settled {
            let list = if wanted.is_empty() { Value::Null } else { json!(wanted) };
            insert("status", "volumesInUse", list);
        }
        // A report that removes a name must not take effect after a later one that adds it again, even if it was
        // delayed on its way: the version of the object has then changed.
        let removes = names(known).any(|name| !wanted.iter().any(|wanted| wanted == name));
        if let (true, Some(version)) = (removes, &known.metadata.resource_version) {
            insert("metadata", "resourceVersion", json!(version));
        }
        (!patch.is_empty()).then(|| patch.into())
    }
}

fn names(node: &Node) -> impl Iterator<Item = &str> {
    let names = node.status.as_ref();
    let names = names.and_then(|status| status.volumes_in_use.as_deref());
    names.unwrap_or_default().iter().map(String::as_str)
}

fn version(node: &Node) -> Option<u64> {
    node.metadata.resource_version.as_deref()?.parse().ok()
}
