//! Every history: a watch that lags, requests that fail before or after they took effect, other writers.

use super::merge::merge;
use super::*;
use crate::base::clock;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Happens {
    /// The pod's readiness changes here.
    Ready(bool),
    Exits(i32),
    /// Its worker has seen that nothing of it runs.
    Stopped,
    /// Its volumes are torn down.
    Ended,
    /// A client deletes it.
    DeletionRequested,
    /// Another writer sets its own condition.
    Gate(bool),
    /// Another client overwrites fields of the kubelet.
    Overwritten,
    /// The watch delivers what there is.
    Watched,
    /// The writer runs; the request may be lost before or after it took effect.
    Sends {
        arrives: bool,
        response: bool,
    },
    /// Time passes.
    Later,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        2 => any::<bool>().prop_map(Happens::Ready),
        1 => (0..2).prop_map(Happens::Exits),
        1 => Just(Happens::Stopped),
        1 => Just(Happens::Ended),
        1 => Just(Happens::DeletionRequested),
        1 => any::<bool>().prop_map(Happens::Gate),
        1 => Just(Happens::Overwritten),
        3 => Just(Happens::Watched),
        6 => (any::<bool>(), any::<bool>()).prop_map(|(arrives, response)| Happens::Sends { arrives, response }),
        1 => Just(Happens::Later),
    ]
}

struct World {
    entry: VersionedPodStatus,
    may_be_running: bool,
    /// What the API server has; `None` when it was deleted.
    server: Option<Pod>,
    watched: Pod,
    /// The watch has delivered its deletion.
    is_gone: bool,
    sent_statuses: SentStatuses,
    now: Instant,
    deletions: usize,
    patches: usize,
}

impl World {
    fn new() -> Self {
        let pod = pod("api");
        Self {
            entry: VersionedPodStatus {
                changed_at: clock::instant(),
                pod: Arc::new(pod.clone()),
                status: Arc::new(PodStatus {
                    container_statuses: Some(vec![container(None)]),
                    ..phase("Running")
                }),
                version: 1,
                pod_is_finished: false,
            },
            may_be_running: true,
            sent_statuses: SentStatuses::new(&pod),
            server: Some(pod.clone()),
            watched: pod,
            is_gone: false,
            now: clock::instant(),
            deletions: 0,
            patches: 0,
        }
    }

    fn set(&mut self, change: impl FnOnce(&mut PodStatus)) {
        let mut status = PodStatus::clone(&self.entry.status);
        change(&mut status);
        if status != *self.entry.status {
            self.entry.status = Arc::new(status);
            self.entry.version += 1;
        }
    }

    fn on_server(&mut self, change: impl FnOnce(&mut Pod)) {
        if let Some(pod) = &mut self.server {
            change(pod);
            let version: u64 = pod.metadata.resource_version.as_ref().unwrap().parse().unwrap();
            pod.metadata.resource_version = Some((version + 1).to_string());
        }
    }

    fn set_condition(&mut self, kind: &str, holds: bool) {
        let kind = kind.to_owned();
        self.on_server(|pod| {
            let conditions = pod.status.as_mut().unwrap().conditions.get_or_insert_default();
            conditions.retain(|c| c.type_ != kind);
            conditions.push(condition(&kind, if holds { "True" } else { "False" }));
        });
    }

    fn on(&mut self, happens: &Happens) {
        match happens {
            Happens::Ready(ready) => {
                let ready = if *ready { "True" } else { "False" };
                self.set(|status| status.conditions = Some(vec![condition("Ready", ready)]));
            }
            Happens::Exits(code) => self.set(|status| {
                let known = status.container_statuses.as_mut().unwrap();
                if known[0] == container(None) {
                    *known = vec![container(Some(*code))];
                    status.phase = Some(if *code == 0 { "Succeeded" } else { "Failed" }.into());
                }
            }),
            Happens::Stopped => {
                self.may_be_running = false;
                self.on(&Happens::Exits(1));
            }
            Happens::Ended if !self.may_be_running => self.entry.pod_is_finished = true,
            Happens::Ended => {}
            Happens::DeletionRequested => {
                self.on_server(|pod| pod.metadata.deletion_timestamp = Some(epoch()));
            }
            Happens::Gate(holds) => self.set_condition("example.com/gate", *holds),
            Happens::Overwritten => self.set_condition("Ready", true),
            Happens::Watched => match &self.server {
                Some(pod) => self.watched = pod.clone(),
                None => self.is_gone = true,
            },
            Happens::Sends { arrives, response } => self.send(*arrives, *response),
            Happens::Later => self.now += Duration::from_secs(11),
        }
    }

    fn send(&mut self, arrives: bool, response: bool) {
        if self.is_gone {
            return;
        }
        match self.sent_statuses.next(&self.entry, &self.watched, self.may_be_running, self.now) {
            NextStatusRequest::Nothing => {}
            NextStatusRequest::Later(at) => assert!(at > self.now),
            NextStatusRequest::Illegal(..) => panic!("nothing here runs again"),
            NextStatusRequest::Patch(version_sent, patch) if arrives => {
                self.patches += 1;
                let Some(server) = &mut self.server else {
                    self.sent_statuses.deleted(self.now);
                    return;
                };
                let status = patched(server.status.as_ref().unwrap(), &patch);
                let ends =
                    |s: &PodStatus| matches!(s.phase.as_deref(), Some("Failed" | "Succeeded"));
                assert!(!self.may_be_running || !ends(&status), "terminal while it may run");
                self.on_server(|pod| pod.status = Some(status));
                if let (Some(pod), true) = (&self.server, response) {
                    self.sent_statuses.patched(
                        version_sent,
                        &patch,
                        &self.watched,
                        pod.clone(),
                        self.now,
                    );
                }
            }
            NextStatusRequest::Delete if arrives => {
                if let Some(pod) = self.server.take() {
                    assert!(
                        self.entry.pod_is_finished && !self.may_be_running,
                        "something is left of it"
                    );
                    assert!(pod.metadata.deletion_timestamp.is_some(), "no client deleted it");
                    let shown = pod.status.unwrap();
                    assert_eq!(shown.phase, self.entry.status.phase, "its end was not sent");
                    assert_eq!(shown.container_statuses, self.entry.status.container_statuses);
                    self.deletions += 1;
                }
                if response {
                    self.sent_statuses.deleted(self.now);
                }
            }
            NextStatusRequest::Patch(..) | NextStatusRequest::Delete => {}
        }
    }

    /// From here on no request fails.
    fn settle(&mut self) {
        for _ in 0..8 {
            for happens in
                [Happens::Sends { arrives: true, response: true }, Happens::Watched, Happens::Later]
            {
                self.on(&happens);
            }
        }
    }
}

proptest! {
    #[test]
    fn the_api_server_ends_with_the_last_status_and_each_pod_is_deleted_once(
        history in prop::collection::vec(happens(), 0..60)
    ) {
        let mut world = World::new();
        let mut gate = None;
        for happens in &history {
            if let (Happens::Gate(holds), Some(_)) = (happens, &world.server) {
                gate = Some(*holds);
            }
            world.on(happens);
        }
        world.settle();
        let wanted = history.iter().any(|h| matches!(h, Happens::DeletionRequested));
        match &world.server {
            None => prop_assert_eq!(world.deletions, 1),
            Some(pod) => {
                prop_assert!(!(wanted && world.entry.pod_is_finished), "it has ended and is still there");
                let api_status = pod.status.as_ref().unwrap();
                let mut expected = PodStatus::clone(&world.entry.status);
                if world.may_be_running && expected.phase.as_deref() != Some("Running") {
                    expected.phase = api_status.phase.clone();
                }
                let left = merge(pod, &expected, api_status, world.may_be_running).unwrap();
                prop_assert_eq!(left, None);
                let known = api_status.conditions.iter().flatten();
                let mut known = known.filter(|c| c.type_ == "example.com/gate");
                let known = known.next().map(|c| c.status == "True");
                prop_assert_eq!(known, gate, "another writer's condition");
            }
        }
        let sent = world.patches;
        world.settle();
        prop_assert_eq!(world.patches, sent, "at rest nothing is sent");
    }
}
