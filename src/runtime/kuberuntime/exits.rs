//! Records of container exits. The restart policy, the back-off, the phase and the last state use them after the dead
//! container was removed, by the kubelet or by a user.

use crate::model::{
    ContainerId, ContainerState, ContainerStatus, Pod, PodExt, PodStatus, PodUid,
    container_should_restart,
};
use crate::resources::allocation::PodResourceInfo;
use crate::runtime::kuberuntime::actions::RecordedFacts;
use crate::state::pod_cache::PodCache;
use crate::state::pod_state_store::{PodRecord, PodStateStore, is_newest_exit};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The recorded last exit codes, by container name. A container that was killed to be restarted has none: its exit code
/// decides nothing.
fn last_exit_codes(record: &PodRecord) -> BTreeMap<Arc<str>, i32> {
    let last = record.exits.last();
    last.filter(|(name, exit)| record.killed_to_restart.get(*name) != Some(&exit.id))
        .map(|(name, exit)| (name.into(), exit.exit_code))
        .collect()
}

/// The recorded facts that [`compute_pod_actions`](super::actions::compute_pod_actions) needs, by the pod's record and its
/// actuated amounts.
pub fn recorded_facts(record: &PodRecord, actuated: Option<Arc<PodResourceInfo>>) -> RecordedFacts {
    RecordedFacts {
        actuated,
        initialized_in: record.initialized_sandbox(),
        terminal: record.terminal.is_some(),
        restart_all_instances: record.restart_all_instances(),
        exits: last_exit_codes(record),
        killed_to_restart: record.killed_to_restart.clone(),
    }
}

/// The newest instance of a container, if it has ended.
fn exited<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let newest = status.newest(name)?;
    (newest.state == ContainerState::Exited).then_some(newest)
}

/// Whether a kill recorded in `killed_to_restart` still matters, by the newest instance of its container.
fn kill_matters(
    killed: &str,
    newest: Option<&ContainerStatus>,
    is_being_killed: impl Fn(&ContainerId) -> bool,
) -> bool {
    match newest {
        // Its exit is recorded, or a list lacks it by mistake.
        None => true,
        // Else the kubelet changed its mind before it stopped the container, which goes on and may end by itself.
        Some(newest) if newest.id.as_str() == killed => {
            newest.state == ContainerState::Exited || is_being_killed(&newest.id)
        }
        // A successor that has not started may be removed, and the killed instance is the newest again.
        Some(newest) => newest.state == ContainerState::Created,
    }
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
        let was_killed_to_restart = |ended: &ContainerStatus| {
            self.state_store.read(&uid, |record| record.was_killed_to_restart(ended))
        };
        let regular = pod.containers().iter().filter_map(|container| {
            let ended = exited(status, &container.name)?;
            let is_final = !restarts
                && !container_should_restart(pod, container, ended.exit_code)
                && !was_killed_to_restart(ended);
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
                self.state_store.update(&uid, |record| record.exits.record(ended, false));
            }
        }
    }

    /// Records containers that are about to be killed in order to start their successors, and waits for the write: the
    /// successor may be started by a later sync, or by a later kubelet.
    pub(super) async fn record_kills(&self, uid: &PodUid, killed: &[&ContainerStatus]) {
        if killed.is_empty() {
            return;
        }
        let change = |record: &mut PodRecord| {
            let killed = killed.iter();
            let killed = killed.map(|one| (one.name.to_string(), one.id.to_string()));
            record.killed_to_restart.extend(killed);
        };
        self.state_store.update_and_wait(uid, change).await;
    }

    /// Removes records of kills whose successors have started, and of kills that were given up.
    pub(super) fn forget_kills(
        &self,
        uid: &PodUid,
        status: &PodStatus,
        is_being_killed: impl Fn(&ContainerId) -> bool,
    ) {
        let matters =
            |name: &String, id: &String| kill_matters(id, status.newest(name), &is_being_killed);
        let all_matter = |record: &PodRecord| {
            let mut killed = record.killed_to_restart.iter();
            killed.all(|(name, id)| matters(name, id))
        };
        if !self.state_store.read(uid, all_matter) {
            self.state_store.update(uid, |record| {
                record.killed_to_restart.retain(|name, id| matters(name, id));
            });
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
            self.state_store.update(&uid, |record| record.exits.mark_superseded(name));
        }
    }

    /// Removes the exits of containers that start over.
    pub(super) fn forget(&self, uid: &PodUid, of: impl Fn(&str) -> bool) {
        if self.state_store.read(uid, |r| !r.exits.is_empty()) {
            self.state_store.update(uid, |r| r.exits.retain(|name| !of(name)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ContainerState::{Created, Exited, Running, Unknown};

    #[test]
    fn a_kill_matters_until_the_successor_has_started_or_the_kubelet_changes_its_mind() {
        for (case, newest, is_being_killed, matters) in [
            ("nothing is left", None, false, true),
            ("about to be killed", Some(("a", Running)), true, true),
            ("given up", Some(("a", Running)), false, false),
            ("in doubt", Some(("a", Unknown)), true, true),
            ("killed", Some(("a", Exited)), false, true),
            ("its successor is created", Some(("b", Created)), false, true),
            ("its successor runs", Some(("b", Running)), false, false),
            ("its successor has ended", Some(("b", Exited)), false, false),
        ] {
            let newest = newest.map(|(id, state)| ContainerStatus {
                id: id.into(),
                state,
                ..ContainerStatus::default()
            });
            let found = kill_matters("a", newest.as_ref(), |_| is_being_killed);
            assert_eq!(found, matters, "{case}");
        }
    }

    #[test]
    fn the_exit_code_of_a_container_that_was_killed_to_be_restarted_decides_nothing() {
        let dead = |name: &str| ContainerStatus {
            id: format!("{name}0").into(),
            name: name.into(),
            state: Exited,
            ..ContainerStatus::default()
        };
        let mut record = PodRecord::default();
        for name in ["killed", "ended", "ended-later"] {
            record.exits.record(&dead(name), false);
        }
        for (name, id) in [("killed", "killed0"), ("ended-later", "another")] {
            record.killed_to_restart.insert(name.into(), id.into());
        }
        let codes = last_exit_codes(&record);
        let names: Vec<&str> = codes.keys().map(|name| &**name).collect();
        assert_eq!(names, ["ended", "ended-later"]);
        assert!(record.was_killed_to_restart(&dead("killed")));
        assert!(!record.was_killed_to_restart(&dead("ended-later")));
    }
}
