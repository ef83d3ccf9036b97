//! Exits of containers whose runtime instances may have been removed. Pure.

use crate::model::{ContainerState, ContainerStatus, PodStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The exit of one container instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Exit {
    /// The runtime's ID of the instance.
    pub id: String,
    /// Its restart count.
    pub restart_count: u32,
    /// Nanoseconds since the epoch, like `started_at` and `finished_at`; 0 if the state was not reached.
    pub created_at: i64,
    /// See `created_at`.
    pub started_at: i64,
    /// See `created_at`.
    pub finished_at: i64,
    /// Its exit code.
    pub exit_code: i32,
    /// The reason that the runtime reported.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The termination message.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Image name, as in the runtime status.
    pub image: String,
    /// Image reference, as in the runtime status.
    pub image_ref: String,
    /// A later instance was created: this exit is the `lastState`, not the `state`, of the container.
    #[serde(rename = "followed", skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
}

impl Exit {
    fn of(instance: &ContainerStatus, superseded: bool) -> Self {
        Self {
            id: instance.id.to_string(),
            restart_count: instance.restart_count,
            created_at: instance.created_at,
            started_at: instance.started_at,
            finished_at: instance.finished_at,
            exit_code: instance.exit_code,
            reason: instance.reason.to_string(),
            message: instance.message.to_string(),
            image: instance.image.to_string(),
            image_ref: instance.image_ref.to_string(),
            superseded,
        }
    }

    /// The runtime status of the instance, as the runtime would report it.
    pub fn instance(&self, name: &str) -> ContainerStatus {
        ContainerStatus {
            id: self.id.as_str().into(),
            name: name.into(),
            state: ContainerState::Exited,
            restart_count: self.restart_count,
            created_at: self.created_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            exit_code: self.exit_code,
            image: self.image.as_str().into(),
            image_ref: self.image_ref.as_str().into(),
            reason: self.reason.as_str().into(),
            message: self.message.as_str().into(),
            ..ContainerStatus::default()
        }
    }
}

/// The latest exit of each container, by container name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Exits(BTreeMap<String, Exit>);

impl Exits {
    /// Whether there are no exits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The exit of a container, if one is known.
    pub fn get(&self, name: &str) -> Option<&Exit> {
        self.0.get(name)
    }

    /// Records the exit of an instance, unless that of a later one is known: instances are removed in any order, so the
    /// last one to be removed need not be the last one created.
    pub fn record(&mut self, instance: &ContainerStatus, superseded: bool) {
        let known = self.get(&instance.name);
        if known.is_some_and(|known| known.restart_count > instance.restart_count) {
            return;
        }
        let exit = Exit::of(instance, superseded);
        self.0.insert(instance.name.to_string(), exit);
    }

    /// The exits of containers without a later instance, by container name. To be used where the runtime has no
    /// instance of the container.
    pub fn last(&self) -> impl Iterator<Item = (&str, &Exit)> {
        let all = self.0.iter().map(|(name, exit)| (name.as_str(), exit));
        all.filter(|(_, exit)| !exit.superseded)
    }

    /// Records that a later instance of a container was created.
    pub fn mark_superseded(&mut self, name: &str) {
        if let Some(exit) = self.0.get_mut(name) {
            exit.superseded = true;
        }
    }

    /// Removes the exits of containers for which `keep` returns false.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| keep(name));
    }

    /// The runtime status with the removed instances that the API status needs: as the current state of a
    /// container without an instance, or as the last state of one with a single instance. `None` if there are none.
    pub fn with_removed_instances(&self, runtime_status: &PodStatus) -> Option<PodStatus> {
        let missing = |(name, exit): (&String, &Exit)| {
            let mut known = runtime_status.instances(name);
            let is_needed = match (known.next(), known.next()) {
                (None, _) => !exit.superseded,
                (Some(only), None) => {
                    only.id.as_str() != exit.id && only.restart_count >= exit.restart_count
                }
                (Some(_), Some(_)) => false,
            };
            is_needed.then(|| exit.instance(name))
        };
        let missing: Vec<_> = self.0.iter().filter_map(missing).collect();
        if missing.is_empty() {
            return None;
        }
        let mut status = runtime_status.clone();
        status.containers.extend(missing);
        status.sort();
        Some(status)
    }
}

/// Whether an instance that is about to be removed is the newest exited one of its container, so that its exit has to be
/// recorded.
pub fn is_newest_exit(runtime_status: &PodStatus, instance: &ContainerStatus) -> bool {
    let mut instances = runtime_status.instances(&instance.name);
    let newest_exited = instances.find(|known| known.state == ContainerState::Exited);
    newest_exited.is_some_and(|newest| newest.id == instance.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(name: &str, n: u32, state: ContainerState) -> ContainerStatus {
        ContainerStatus {
            id: format!("{name}{n}").into(),
            name: name.into(),
            state,
            restart_count: n,
            created_at: i64::from(n) + 1,
            exit_code: 7,
            ..ContainerStatus::default()
        }
    }

    fn runtime_status(containers: Vec<ContainerStatus>) -> PodStatus {
        let mut runtime_status = PodStatus { containers, ..PodStatus::default() };
        runtime_status.sort();
        runtime_status
    }

    fn ids(runtime_status: &PodStatus) -> Vec<&str> {
        runtime_status.containers.iter().map(|c| c.id.as_str()).collect()
    }

    use ContainerState::{Exited, Running};

    #[test]
    fn a_recorded_exit_is_used_until_a_newer_instance_exists() {
        let dead = instance("a", 1, Exited);
        let mut exits = Exits::default();
        exits.record(&dead, false);
        let (name, exit) = exits.last().next().unwrap();
        assert_eq!((name, exit.exit_code), ("a", 7));
        let shown = exits.with_removed_instances(&runtime_status(vec![])).unwrap();
        assert_eq!(shown.containers, std::slice::from_ref(&dead));
        // With a later instance, it is the last state of that one.
        let shown = exits.with_removed_instances(&runtime_status(vec![instance("a", 2, Running)]));
        assert_eq!(ids(&shown.unwrap()), ["a2", "a1"]);
        // Other instances have a last state of their own.
        for known in [
            vec![dead],
            vec![instance("a", 0, Exited)],
            vec![instance("a", 3, Running), instance("a", 2, Exited)],
        ] {
            assert_eq!(exits.with_removed_instances(&runtime_status(known)), None);
        }
    }

    #[test]
    fn after_a_later_instance_was_lost_the_exit_before_it_is_not_how_it_ended() {
        let mut exits = Exits::default();
        exits.record(&instance("a", 1, Exited), true);
        assert_eq!(exits.last().count(), 0);
        assert_eq!(exits.with_removed_instances(&runtime_status(vec![])), None);
        let shown = exits.with_removed_instances(&runtime_status(vec![instance("a", 2, Running)]));
        assert_eq!(ids(&shown.unwrap()), ["a2", "a1"]);
    }

    #[test]
    fn an_instance_that_is_removed_late_does_not_hide_how_a_later_one_ended() {
        let mut exits = Exits::default();
        let both = [1, 0].map(|n| instance("a", n, Exited));
        for dead in &both {
            exits.record(dead, false);
        }
        let (_, exit) = exits.last().next().unwrap();
        assert_eq!(exit.restart_count, 1);
    }

    #[test]
    fn the_newest_dead_instance_counts() {
        let (old, dead, live) =
            (instance("a", 0, Exited), instance("a", 1, Exited), instance("a", 2, Running));
        let both = runtime_status(vec![old.clone(), dead.clone()]);
        assert!(!is_newest_exit(&both, &old));
        assert!(is_newest_exit(&both, &dead));
        let all = runtime_status(vec![old, dead.clone(), live.clone()]);
        assert!(is_newest_exit(&all, &dead));
        assert!(!is_newest_exit(&all, &live));
        assert!(!is_newest_exit(&runtime_status(vec![]), &dead));
    }
}
