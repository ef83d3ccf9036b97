//! Invariants of the workers under random operations.

use super::super::*;
use super::syncer::{How, Scripted, settle};
use super::*;
use crate::pods::pod_sync::syncer::{SyncPodType, TerminationReason};
use proptest::prelude::*;
use proptest::sample::select;
use std::time::Duration;

/// Four pods: three static ones of which two share a name, and one of an API server.
const PODS: [&str; 4] = ["web-1", "web-2", "dns-1", "api-1"];

fn pod(index: usize) -> Pod {
    let uid = PODS[index];
    let name = &uid[..3];
    if name == "api" { api_pod(uid, name) } else { static_pod(uid, name) }
}

#[derive(Clone, Debug)]
enum Op {
    Sync(usize, SyncPodType, Option<bool>),
    Kill(usize, Option<i64>),
    Delete(usize, i64),
    Orphan(usize),
    End(usize, How),
    Advance(u64),
    Compare(u8),
    Collect(bool),
    Observe(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let pod = 0..PODS.len();
    let kind = select(vec![SyncPodType::Create, SyncPodType::Update, SyncPodType::Sync]);
    let seen = prop::option::of(any::<bool>());
    let how = select(vec![How::Well, How::Well, How::Well, How::Terminal, How::Badly, How::Panic]);
    prop_oneof![
        6 => (pod.clone(), kind, seen).prop_map(|(p, kind, seen)| Op::Sync(p, kind, seen)),
        3 => (pod.clone(), prop::option::of(-1i64..60)).prop_map(|(p, grace)| Op::Kill(p, grace)),
        1 => (pod.clone(), 0i64..60).prop_map(|(p, grace)| Op::Delete(p, grace)),
        1 => pod.clone().prop_map(Op::Orphan),
        8 => (pod, how).prop_map(|(p, how)| Op::End(p, how)),
        2 => (1u64..100).prop_map(Op::Advance),
        1 => any::<u8>().prop_map(Op::Compare),
        2 => any::<bool>().prop_map(Op::Collect),
        1 => any::<u8>().prop_map(Op::Observe),
    ]
}

struct World {
    workers: PodWorkers,
    syncer: Scripted,
    killed: HashSet<PodUid>,
}

impl World {
    fn wanted(mask: u8) -> HashSet<PodUid> {
        let chosen = PODS.iter().enumerate().filter(|(n, _)| mask & (1 << n) != 0);
        chosen.map(|(_, uid)| PodUid::from(*uid)).collect()
    }

    fn forgotten(&mut self, uid: &PodUid) {
        self.killed.remove(uid);
        self.syncer.forget(uid);
    }

    async fn collect(&mut self, wanted: bool) {
        self.workers.shared.finished.take_now();
        for uid in PODS.map(PodUid::from) {
            if self.workers.remove_terminated(&uid, wanted) == WorkerRemoval::Removed {
                self.forgotten(&uid);
            }
        }
    }

    fn kill(&mut self, options: UpdatePodOptions, uid: &str) {
        self.workers.update_pod(options);
        if self.workers.worker_pods().iter().any(|known| known.uid.as_str() == uid) {
            self.killed.insert(uid.into());
        }
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Sync(p, kind, seen) => {
                let mut options = UpdatePodOptions::sync(kind, Arc::new(pod(p)));
                options.runtime_status =
                    seen.map(|active| in_runtime(PODS[p], &PODS[p][..3], active));
                self.workers.update_pod(options);
            }
            Op::Kill(p, grace) => {
                let mut options =
                    UpdatePodOptions::kill(Arc::new(pod(p)), TerminationReason::Deleted);
                if let Some(grace) = grace {
                    options = options.with_grace(grace);
                }
                self.kill(options, PODS[p]);
            }
            Op::Delete(p, grace) => {
                let pod = Arc::new(deleted(pod(p), Some(grace)));
                self.kill(UpdatePodOptions::sync(SyncPodType::Update, pod), PODS[p]);
            }
            Op::Orphan(p) => {
                let running = in_runtime(PODS[p], &PODS[p][..3], true);
                self.kill(UpdatePodOptions::orphan(running), PODS[p]);
            }
            Op::End(p, how) => {
                self.syncer.end(PODS[p], how);
            }
            Op::Advance(seconds) => tokio::time::advance(Duration::from_secs(seconds)).await,
            Op::Compare(mask) => {
                for uid in self.workers.sync_known_pods(&Self::wanted(mask)).forgotten {
                    self.forgotten(&uid);
                }
            }
            Op::Collect(wanted) => self.collect(wanted).await,
            Op::Observe(mask) => {
                let running = Self::wanted(mask);
                let runtime_status =
                    |uid: &PodUid| in_runtime(uid.as_str(), &uid.as_str()[..3], true);
                self.workers
                    .update_start_gate(&running.iter().map(runtime_status).collect::<Vec<_>>());
            }
        }
        settle().await;
    }

    /// A killed pod is terminating or has no worker, and never syncs again. It loses its worker only when it was
    /// collected or its orphan was stopped.
    fn check(&mut self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.syncer.broken(), Vec::<String>::new());
        let known = self.workers.worker_pods();
        let log = self.syncer.log();
        for uid in self.killed.clone() {
            match known.iter().find(|known| known.uid == uid) {
                Some(known) => {
                    let terminating = !matches!(
                        known.phase,
                        WorkerPhase::WaitingToStart { .. }
                            | WorkerPhase::Starting { .. }
                            | WorkerPhase::Syncing
                    );
                    prop_assert!(terminating, "the kill of {} was lost", uid);
                }
                None => {
                    let suffix = format!(":{uid}");
                    let last = log.iter().rfind(|sync| sync.ends_with(&suffix));
                    let stopped = format!("stop-runtime:{uid}");
                    prop_assert_eq!(last, Some(&stopped), "{} was forgotten", uid);
                    self.forgotten(&uid);
                }
            }
        }
        Ok(())
    }

    /// Ends every sync successfully and advances the clock until nothing is pending.
    async fn finish_everything(&mut self) {
        self.workers.update_start_gate(&[]);
        for _ in 0..40 {
            self.workers.sync_known_pods(&HashSet::new());
            tokio::time::advance(Duration::from_secs(15)).await;
            settle().await;
            for uid in self.syncer.busy() {
                self.syncer.end(uid.as_str(), How::Well);
            }
            settle().await;
            self.collect(false).await;
            // A stop that failed waits out its delay.
            tokio::time::sleep(Duration::from_secs(15)).await;
        }
    }
}

async fn live(ops: Vec<Op>) -> Result<(), TestCaseError> {
    let syncer = Scripted::default();
    let mut world = World {
        workers: PodWorkers::new(Arc::new(syncer.clone()), None, Delays::default()),
        syncer,
        killed: HashSet::new(),
    };
    for op in ops {
        world.apply(op).await;
        world.check()?;
    }
    world.finish_everything().await;
    world.check()?;
    let left = world.workers.worker_pods();
    prop_assert!(world.workers.shared.map.lock().is_empty(), "left: {left:?}");
    prop_assert!(world.workers.shared.tasks.is_empty(), "tasks leak");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_rules_hold_and_everything_comes_to_an_end(ops in prop::collection::vec(op(), 0..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(live(ops))?;
    }
}
