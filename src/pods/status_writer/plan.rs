//! What the API server has to be sent about one pod. Pure.

use super::merge;
use crate::{
    model::{Pod, PodExt, PodUid},
    pods::status::{PodEntry, generate::IllegalTransition},
};
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Time after which the edit of another client is overwritten, if the status has not changed since it was sent.
/// Upstream's status manager compares as often.
const MIN_REPEAT: Duration = Duration::from_secs(10);
/// Time for which a response counts that the watch has not caught up with. The watch of storage that was restored from
/// a backup never catches up.
const RESPONSE_TTL: Duration = Duration::from_secs(30);

/// What has been exchanged about one object.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    /// The object's UID; that of a mirror is not that of its pod.
    object: PodUid,
    /// What was sent last, and what the API server made of it.
    sent: Option<Sent>,
    /// What the API server will not take, and of which object.
    refused: Option<(StatusVersion, Option<String>)>,
    /// When the object was deleted by this kubelet.
    deleted: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Sent {
    version_sent: StatusVersion,
    patch: Value,
    at: Instant,
    response: Arc<Pod>,
    /// The version of the watched object that was patched.
    watched: Option<u128>,
}

impl Sent {
    /// Until when the response counts and not the watched object: it is newer, and the watch has not gone back.
    fn counts_until(&self, watched: &Pod, now: Instant) -> Option<Instant> {
        let (watched, end) = (number(watched), self.at + RESPONSE_TTL);
        let is_newer = number(&self.response) > watched && watched >= self.watched;
        (is_newer && now < end).then_some(end)
    }
}

/// The content of a patch: the version of a status, and whether containers of the pod may still run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StatusVersion {
    version: u64,
    may_run: bool,
}

/// What to send.
#[derive(Clone, Debug)]
pub(super) enum NextStatusRequest {
    /// The API server has all of it.
    Nothing,
    /// Look again then.
    Later(Instant),
    /// The `status` of a strategic merge patch.
    Patch(StatusVersion, Value),
    /// The pod has ended, and the API server knows how.
    Delete,
    /// The API server has a status that this one cannot follow.
    Illegal(StatusVersion, IllegalTransition),
}

impl Exchange {
    /// Nothing was exchanged about this object.
    pub(super) fn new(object: &Pod) -> Self {
        Self {
            object: object.uid(),
            sent: None,
            refused: None,
            deleted: None,
        }
    }

    /// Whether it is about this object.
    pub(super) fn is_about(&self, object: &Pod) -> bool {
        self.object == object.uid()
    }

    /// The watch has caught up with what was sent: the object that all share takes the place of the response.
    pub(super) fn watched(&mut self, object: &Arc<Pod>) {
        if let Some(sent) = &mut self.sent
            && version_of(&sent.response) == version_of(object)
        {
            sent.response = object.clone();
        }
    }

    /// What to send next. `watched` is the object as the watch delivered it.
    pub(super) fn next(
        &self,
        entry: &PodEntry,
        watched: &Pod,
        may_run: bool,
        now: Instant,
    ) -> NextStatusRequest {
        // The watch says that it is gone before that, unless its storage was restored.
        if let Some(end) = self
            .deleted
            .map(|at| at + RESPONSE_TTL)
            .filter(|end| now < *end)
        {
            return NextStatusRequest::Later(end);
        }
        let newest = self.newest(watched, now);
        let remote = newest.status.clone().unwrap_or_default();
        let version = entry.version;
        let version_sent = StatusVersion { version, may_run };
        let refused = Some((version_sent, version_of(newest)));
        let may_delete = !may_run && entry.ended && newest.is_being_deleted();
        let delete = may_delete && !entry.pod.is_static();
        let sent = self.sent.as_ref();
        let again = sent.and_then(|sent| sent.counts_until(watched, now));
        let rest = || match again {
            _ if delete => NextStatusRequest::Delete,
            Some(at) => NextStatusRequest::Later(at),
            None => NextStatusRequest::Nothing,
        };
        if self.refused == refused {
            return rest();
        }
        let patch = match merge::merge(&entry.pod, &entry.status, &remote, may_run) {
            Ok(Some(patch)) => patch,
            Ok(None) => return rest(),
            // Whatever it shows, nothing of the pod is left.
            Err(_) if delete => return NextStatusRequest::Delete,
            Err(illegal) => return NextStatusRequest::Illegal(version_sent, illegal),
        };
        match sent.filter(|sent| sent.version_sent == version_sent) {
            Some(sent) if sent.patch == patch && self.is_ignored(entry, sent) => rest(),
            Some(sent) if now < sent.at + MIN_REPEAT => {
                NextStatusRequest::Later(sent.at + MIN_REPEAT)
            }
            _ => NextStatusRequest::Patch(version_sent, patch),
        }
    }

    /// Whether a patch changed nothing: the API server drops fields that it does not know, which is not a reason
    /// to send them again.
    fn is_ignored(&self, entry: &PodEntry, sent: &Sent) -> bool {
        let Some(response) = &sent.response.status else {
            return false;
        };
        let may_run = sent.version_sent.may_run;
        let left = merge::merge(&entry.pod, &entry.status, response, may_run);
        left.is_ok_and(|left| left.as_ref() == Some(&sent.patch))
    }

    /// The response to a patch may be newer than what the watch has delivered.
    fn newest<'a>(&'a self, watched: &'a Pod, now: Instant) -> &'a Pod {
        match &self.sent {
            Some(sent) if sent.counts_until(watched, now).is_some() => &sent.response,
            _ => watched,
        }
    }

    /// A patch of the watched object was taken.
    pub(super) fn taken(
        &mut self,
        version_sent: StatusVersion,
        patch: Value,
        watched: &Pod,
        response: Pod,
        at: Instant,
    ) {
        self.sent = Some(Sent {
            version_sent,
            patch,
            at,
            response: Arc::new(response),
            watched: number(watched),
        });
    }

    /// The API server will not take this status.
    pub(super) fn refused(&mut self, version_sent: StatusVersion, watched: &Pod, now: Instant) {
        self.refused = Some((version_sent, version_of(self.newest(watched, now))));
    }

    /// The object was deleted, or is no more.
    pub(super) fn deleted(&mut self, at: Instant) {
        self.deleted = Some(at);
    }
}

fn version_of(pod: &Pod) -> Option<String> {
    pod.metadata.resource_version.clone()
}

fn number(pod: &Pod) -> Option<u128> {
    pod.metadata.resource_version.as_ref()?.parse().ok()
}
