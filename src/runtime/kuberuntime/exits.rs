//! Records of container exits. The restart policy, the back-off, the phase and the last state use them after the dead
//! container was removed, by the kubelet or by a user.

use crate::{
    model::{
        ContainerState, ContainerStatus, Pod, PodExt, PodStatus, PodUid, container_should_restart,
    },
    state::pod_cache::PodCache,
    state::pod_state_store::{PodRecord, PodStateStore, is_newest_exit},
};
use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

/// The recorded last exit codes, by container name.
pub(super) fn last_exit_codes(record: &PodRecord) -> BTreeMap<Arc<str>, i32> {
    record
        .exits
        .last()
        .map(|(name, exit)| (name.into(), exit.exit_code))
        .collect()
}

/// The newest instance of a container, if it has ended.
fn exited<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let newest = status.newest(name)?;
    (newest.state == ContainerState::Exited).then_some(newest)
}

/// The exits of containers, from the runtime and from the pod state store.
#[derive(Clone)]
pub(super) struct ExitRecords {
    pub(super) state_store: PodStateStore,
    pub(super) cache: PodCache,
}

impl ExitRecords {
    /// Records final exits of regular and ephemeral containers, so that these are not started again if they are removed
    /// from the runtime.
    pub(super) fn record_final_exits(&self, pod: &Pod, status: &PodStatus) {
        let uid = pod.uid();
        // While all regular containers are being restarted, their exits are not final.
        let restarts = self.state_store.read(&uid, |r| r.restart_all.is_some());
        let regular = pod.containers().iter().filter_map(|container| {
            let ended = exited(status, &container.name)?;
            let is_final = !restarts && !container_should_restart(pod, container, ended.exit_code);
            is_final.then_some(ended)
        });
        let ephemeral = pod.ephemeral_containers().iter();
        let ephemeral = ephemeral.filter_map(|container| exited(status, &container.name));
        for ended in regular.chain(ephemeral) {
            let known = self.state_store.read(&uid, |record| {
                let exit = record.exits.get(&ended.name);
                exit.is_some_and(|exit| exit.id == ended.id.as_str())
            });
            if !known {
                self.state_store
                    .update(&uid, |record| record.exits.record(ended, false));
            }
        }
    }

    /// Records the exit of a container that is about to be removed from the runtime.
    pub(super) async fn record_removed(&self, uid: &PodUid, container: &ContainerStatus) {
        if container.state != ContainerState::Exited {
            return;
        }
        let runtime_status = self.cache.latest(uid);
        if is_newest_exit(&runtime_status, container) {
            let newest = runtime_status.newest(&container.name);
            let superseded = newest.is_some_and(|newest| newest.id != container.id);
            let change = |record: &mut PodRecord| record.exits.record(container, superseded);
            self.state_store.update_and_wait(uid, change).await;
        }
    }

    /// The newest instance of a container, or the recorded one if the runtime has none.
    pub(super) fn newest<'a>(
        &self,
        pod: &Pod,
        status: &'a PodStatus,
        name: &str,
    ) -> Option<Cow<'a, ContainerStatus>> {
        if let Some(newest) = status.newest(name) {
            return Some(Cow::Borrowed(newest));
        }
        self.state_store.read(&pod.uid(), |record| {
            let mut exits = record.exits.last();
            let (_, exit) = exits.find(|(known, _)| *known == name)?;
            Some(Cow::Owned(exit.instance(name)))
        })
    }

    /// The last exit before the running instance of a container, from the runtime or else from the record.
    pub(super) fn previous_exit(
        &self,
        pod: &Pod,
        status: &PodStatus,
        name: &str,
    ) -> Option<ContainerStatus> {
        let exited = |status: &PodStatus| {
            let mut instances = status.instances(name);
            let exited = instances.find(|c| c.state == ContainerState::Exited);
            exited.cloned()
        };
        exited(status).or_else(|| {
            let record = |record: &PodRecord| record.exits.with_removed_instances(status);
            exited(&self.state_store.read(&pod.uid(), record)?)
        })
    }

    /// Marks the recorded exit as superseded, because a new instance was created.
    pub(super) fn mark_superseded(&self, pod: &Pod, name: &str) {
        let uid = pod.uid();
        let is_last = |record: &PodRecord| record.exits.get(name).is_some_and(|e| !e.superseded);
        if self.state_store.read(&uid, is_last) {
            self.state_store
                .update(&uid, |record| record.exits.mark_superseded(name));
        }
    }

    /// Removes the exits of containers that start over.
    pub(super) fn forget(&self, uid: &PodUid, of: impl Fn(&str) -> bool) {
        if self.state_store.read(uid, |r| !r.exits.is_empty()) {
            self.state_store
                .update(uid, |r| r.exits.retain(|name| !of(name)));
        }
    }
}
