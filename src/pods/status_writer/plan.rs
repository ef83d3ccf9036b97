//! The next request about one pod. Pure.

use super::merge;
use crate::base::clock::Instant;
use crate::model::{Pod, PodExt, PodUid};
use crate::pods::status::VersionedPodStatus;
use crate::pods::status::generate::IllegalTransition;
use serde_json::Value;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

/// Minimum interval between two patches of the same status, after another client changed it. Upstream's status manager
/// compares at the same interval.
const MIN_REPEAT: Duration = Duration::from_secs(10);
/// For how long a response is used in place of an older watched object. Limited, because the watch never catches up if the
/// storage was restored from a backup.
const RESPONSE_TTL: Duration = Duration::from_secs(30);

/// For how long a status that is forbidden keeps a pod from being deleted. The node authorizer forbids the first statuses of
/// a pod for milliseconds, until it knows that the pod is bound to the node; a policy may forbid them for ever.
const FORBIDDEN_LIMIT: Duration = Duration::from_secs(300);

/// The requests and responses about one pod object (upstream's `apiStatusVersions`, per pod).
#[derive(Clone, Debug)]
pub(super) struct SentStatuses {
    /// The UID of the object; the UID of a mirror pod differs from that of its static pod.
    object: PodUid,
    /// The last patch and its response.
    sent: Option<SentPatch>,
    /// A status that the API server rejected, and the resource version of the object.
    rejected: Option<(StatusVersion, Option<String>)>,
    /// Since when every status has been forbidden.
    forbidden_since: Option<Instant>,
    /// When the object was deleted by this kubelet.
    deleted: Option<Instant>,
}

#[derive(Clone, Debug)]
struct SentPatch {
    version_sent: StatusVersion,
    /// Hash of the patch; kept instead of the patch to save memory.
    patch: u64,
    at: Instant,
    response: Arc<Pod>,
    /// The version of the watched object that was patched.
    watched: Option<u128>,
}

impl SentPatch {
    /// Until when the response is used in place of the watched object: if it is newer, and the watch has not gone back.
    fn counts_until(&self, watched: &Pod, now: Instant) -> Option<Instant> {
        let (watched, end) = (number(watched), self.at + RESPONSE_TTL);
        let is_newer = number(&self.response) > watched && watched >= self.watched;
        (is_newer && now < end).then_some(end)
    }
}

/// The inputs of a patch: the version of a status, and whether containers of the pod may still run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StatusVersion {
    version: u64,
    may_be_running: bool,
}

/// The next request.
#[derive(Clone, Debug)]
pub(super) enum NextStatusRequest {
    /// None: the API server has the status.
    Nothing,
    /// Compare again at this instant.
    Later(Instant),
    /// Patch the status; the `status` of a strategic merge patch.
    Patch(StatusVersion, Value),
    /// Delete the pod: it has ended, and the API server has its last status.
    Delete,
    /// None: the transition from the API server's status to this one is illegal.
    Illegal(StatusVersion, IllegalTransition),
}

impl SentStatuses {
    /// No request was sent about this object yet.
    pub(super) fn new(object: &Pod) -> Self {
        Self {
            object: object.uid(),
            sent: None,
            rejected: None,
            forbidden_since: None,
            deleted: None,
        }
    }

    /// Whether it is about this object.
    pub(super) fn is_about(&self, object: &Pod) -> bool {
        self.object == object.uid()
    }

    /// Once the watch has delivered the version of the response, replaces the response by the shared object, to save memory.
    pub(super) fn watched(&mut self, object: &Arc<Pod>) {
        if let Some(sent) = &mut self.sent
            && version_of(&sent.response) == version_of(object)
        {
            sent.response = object.clone();
        }
    }

    /// Decides the next request. `watched` is the object as the watch delivered it.
    pub(super) fn next(
        &self,
        entry: &VersionedPodStatus,
        watched: &Pod,
        may_be_running: bool,
        now: Instant,
    ) -> NextStatusRequest {
        // After a deletion, wait for the watch to deliver it. If the storage was restored, it never does.
        if let Some(end) = self.deleted.map(|at| at + RESPONSE_TTL).filter(|end| now < *end) {
            return NextStatusRequest::Later(end);
        }
        let newest = self.newest(watched, now);
        let api_status = newest.status.clone().unwrap_or_default();
        let version = entry.version;
        let version_sent = StatusVersion { version, may_be_running };
        let rejected = Some((version_sent, version_of(newest)));
        let may_delete = !may_be_running && entry.pod_is_finished && newest.is_being_deleted();
        let delete = may_delete && !entry.pod.is_static();
        let sent = self.sent.as_ref();
        let again = sent.and_then(|sent| sent.counts_until(watched, now));
        let rest = || match again {
            _ if delete => NextStatusRequest::Delete,
            Some(at) => NextStatusRequest::Later(at),
            None => NextStatusRequest::Nothing,
        };
        if self.rejected == rejected {
            return rest();
        }
        let patch = match merge::merge(&entry.pod, &entry.status, &api_status, may_be_running) {
            Ok(Some(patch)) => patch,
            Ok(None) => return rest(),
            // The pod has nothing left on this node, so it is deleted although its last status cannot be sent.
            Err(_) if delete => return NextStatusRequest::Delete,
            Err(illegal) => return NextStatusRequest::Illegal(version_sent, illegal),
        };
        match sent.filter(|sent| sent.version_sent == version_sent) {
            Some(sent) if sent.patch == hash(&patch) && self.is_ignored(entry, sent) => rest(),
            Some(sent) if now < sent.at + MIN_REPEAT => {
                NextStatusRequest::Later(sent.at + MIN_REPEAT)
            }
            _ => NextStatusRequest::Patch(version_sent, patch),
        }
    }

    /// Whether the API server ignored the last patch, as it does for fields that it does not know. The patch is not repeated
    /// then.
    fn is_ignored(&self, entry: &VersionedPodStatus, sent: &SentPatch) -> bool {
        let Some(response) = &sent.response.status else {
            return false;
        };
        let may_be_running = sent.version_sent.may_be_running;
        let left = merge::merge(&entry.pod, &entry.status, response, may_be_running);
        left.is_ok_and(|left| left.as_ref().map(hash) == Some(sent.patch))
    }

    /// The watched object, or the response to the last patch if that is newer.
    fn newest<'a>(&'a self, watched: &'a Pod, now: Instant) -> &'a Pod {
        match &self.sent {
            Some(sent) if sent.counts_until(watched, now).is_some() => &sent.response,
            _ => watched,
        }
    }

    /// Records a patch that the API server accepted.
    pub(super) fn patched(
        &mut self,
        version_sent: StatusVersion,
        patch: &Value,
        watched: &Pod,
        response: Pod,
        at: Instant,
    ) {
        self.forbidden_since = None;
        self.sent = Some(SentPatch {
            version_sent,
            patch: hash(patch),
            at,
            response: Arc::new(response),
            watched: number(watched),
        });
    }

    /// Records a status that the API server rejected.
    pub(super) fn rejected(&mut self, version_sent: StatusVersion, watched: &Pod, now: Instant) {
        self.rejected = Some((version_sent, version_of(self.newest(watched, now))));
    }

    /// Records that a status was forbidden. Returns whether it counts as rejected, so that the pod can be deleted without
    /// it.
    pub(super) fn forbidden(&mut self, watched: &Pod, now: Instant) -> bool {
        let since = *self.forbidden_since.get_or_insert(now);
        watched.is_being_deleted() && now.duration_since(since) >= FORBIDDEN_LIMIT
    }

    /// Records that the deletion was forbidden, too: then it is not the status alone, which gets its time again.
    pub(super) fn deletion_forbidden(&mut self) {
        self.rejected = None;
        self.forbidden_since = None;
    }

    /// Records that the object was deleted, or does not exist. Returns whether that was so before: the watch still shows
    /// it after [`RESPONSE_TTL`].
    pub(super) fn deleted(&mut self, at: Instant) -> bool {
        self.deleted.replace(at).is_some()
    }
}

fn hash(patch: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    patch.hash(&mut hasher);
    hasher.finish()
}

fn version_of(pod: &Pod) -> Option<String> {
    pod.metadata.resource_version.clone()
}

fn number(pod: &Pod) -> Option<u128> {
    pod.metadata.resource_version.as_ref()?.parse().ok()
}
