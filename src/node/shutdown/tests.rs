use super::*;
use crate::base::metrics::Metrics;
use crate::base::{clock, spawn_blocking};
use crate::host::SystemBus;
use crate::host::systemd_fake::{FakeState, FakeSystemd};
use crate::model::{GraceDeadline, PodStatus, PodUid};
use crate::node::active_pods::TERMINATION_CHECK_INTERVAL;
use crate::pods::pod_config::SourcesReady;
use crate::pods::pod_sync::syncer::{NextSync, PodSyncer, SyncPodOutcome, SyncPodType};
use crate::pods::pod_workers::Delays;
use crate::state::pod_manager::PodManagerWriter;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const WAIT: Duration = Duration::from_secs(20);

/// Syncs at once, takes a given time for stops, and records which pods were stopped with which grace, in order.
#[derive(Default)]
struct Stops {
    takes: Mutex<HashMap<PodUid, Duration>>,
    stopped: Mutex<Vec<(String, Duration)>>,
}

impl PodSyncer for Stops {
    fn sync_pod(&self, _: Arc<Pod>, _: CancellationToken) -> BoxFuture<'_, SyncPodOutcome> {
        let next = NextSync::default();
        let result = Ok(false);
        Box::pin(async move { SyncPodOutcome { result, next } })
    }

    fn sync_terminating_pod(
        &self,
        pod: Arc<Pod>,
        grace: watch::Receiver<GraceDeadline>,
        _: TerminationReason,
    ) -> BoxFuture<'_, anyhow::Result<()>> {
        Box::pin(async move {
            let left = grace.borrow().left(clock::instant());
            let takes = self.takes.lock().get(&pod.uid()).copied();
            sleep(takes.unwrap_or_default()).await;
            self.stopped.lock().push((pod.name().to_owned(), left));
            Ok(())
        })
    }

    fn sync_terminating_runtime_pod(
        &self,
        _: Arc<PodStatus>,
        _: watch::Receiver<GraceDeadline>,
    ) -> BoxFuture<'_, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn sync_terminated_pod(&self, _: Arc<Pod>) -> BoxFuture<'_, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

struct World {
    bus: FakeSystemd,
    stops: Arc<Stops>,
    workers: PodWorkers,
    events: EventRecorder,
    shutting_down: watch::Receiver<bool>,
    /// Whether the volumes are unstaged.
    undone: Arc<AtomicBool>,
    directory: tempfile::TempDir,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn pod(name: &str, priority: i32) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": name, "uid": name, "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": {"containers": [], "priority": priority, "terminationGracePeriodSeconds": 2},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

async fn until(what: &str, fact: impl Fn() -> bool) {
    let all = async {
        while !fact() {
            sleep(TERMINATION_CHECK_INTERVAL).await;
        }
    };
    assert!(tokio::time::timeout(WAIT, all).await.is_ok(), "{what}");
}

impl World {
    /// `low` and `high` run, in phases of three seconds and one.
    async fn start(takes: &[(&str, Duration)]) -> Self {
        Self::start_with(takes, |state, directory| {
            state.inhibit_delay = 5_000_000;
            state.logind_config = Some(directory.join("logind.conf.d"));
        })
        .await
    }

    async fn start_with(
        takes: &[(&str, Duration)],
        prepare: impl FnOnce(&mut FakeState, &std::path::Path),
    ) -> Self {
        let bus = FakeSystemd::start().await;
        let directory = tempfile::tempdir().unwrap();
        prepare(&mut bus.state.lock(), directory.path());
        let stops = Arc::new(Stops::default());
        for (name, time) in takes {
            stops.takes.lock().insert(PodUid::from(*name), *time);
        }
        let workers = PodWorkers::new(stops.clone(), None, Delays::default());
        let pod_manager = PodManagerWriter::default();
        for pod in [pod("low", 1), pod("high", 10)] {
            pod_manager.set(pod.clone());
            workers.update_pod(UpdatePodOptions::sync(SyncPodType::Create, pod));
        }
        let undone = Arc::new(AtomicBool::new(true));
        let (events, shutting_down) = (EventRecorder::new(), watch::Sender::new(false));
        let reader = shutting_down.subscribe();
        let phase = |priority, grace| ShutdownPhase { priority, grace };
        let deps = ShutdownDeps {
            node_name: "node1".to_owned(),
            phases: vec![phase(0, 3), phase(10, 1)],
            root: directory.path().to_owned(),
            logind_config: directory.path().join("logind.conf.d"),
            logind: Logind::new(Arc::new(SystemBus::at(bus.address.clone()))),
            sources: SourcesReady::new(BTreeSet::new()).reader(),
            pod_manager: pod_manager.reader(),
            workers: workers.clone(),
            events: events.clone(),
            shutting_down,
            has_api_server: false,
            volumes_are_undone: {
                let undone = undone.clone();
                Arc::new(move || undone.load(Ordering::Relaxed))
            },
        };
        let manager = ShutdownManager::new(deps, &Metrics::new());
        let task = tokio::spawn(manager.run());
        let world =
            Self { bus, stops, workers, events, shutting_down: reader, undone, directory, task };
        world.locked(1).await;
        world
    }

    /// Waits until so many locks have been taken.
    async fn locked(&self, count: usize) {
        until("a lock", || self.bus.state.lock().locks.len() == count).await;
    }

    /// Waits until a lock is released.
    async fn released(&self, index: usize) {
        let lock = self.bus.state.lock().locks[index].try_clone().unwrap();
        let read = spawn_blocking(move || {
            let mut lock = lock;
            std::io::copy(&mut lock, &mut std::io::sink())
        });
        assert!(tokio::time::timeout(WAIT, read).await.is_ok(), "released");
    }

    fn stopped(&self) -> Vec<String> {
        let stopped = self.stops.stopped.lock();
        stopped.iter().map(|(name, _)| name.clone()).collect()
    }

    fn record(&self) -> ShutdownRecord {
        ShutdownRecord::load(self.directory.path()).unwrap()
    }
}

#[tokio::test]
async fn pods_stop_by_priority_before_the_lock_is_released() {
    let world = World::start(&[("low", Duration::from_millis(300))]).await;
    // Four seconds of pods, and three more for their statuses.
    assert_eq!(world.bus.state.lock().inhibit_delay, 7_000_000);
    let calls = world.bus.state.lock().calls.clone();
    assert_eq!(calls, ["kill systemd-logind.service all 1", "inhibit shutdown kubelet delay"]);
    assert_eq!(world.record(), ShutdownRecord::default());
    world.bus.prepare_for_shutdown(true).await;
    world.released(0).await;
    assert_eq!(world.stopped(), ["low", "high"]);
    let graces: Vec<u64> = {
        let stopped = world.stops.stopped.lock();
        stopped.iter().map(|(_, left)| left.as_millis().div_ceil(1000) as u64).collect()
    };
    assert_eq!(graces, [2, 1], "a pod's own, and the phase's");
    assert!(*world.shutting_down.borrow());
    let record = world.record();
    assert!(record.start_time.is_some() && record.end_time >= record.start_time);
    let events: Vec<_> = world.events.recent().iter().map(|event| event.message.clone()).collect();
    assert!(events.contains(&"Shutdown manager detected shutdown event".to_owned()), "{events:?}");
}

#[tokio::test]
async fn a_pod_that_does_not_stop_holds_its_phase_up_and_no_longer() {
    let world = World::start(&[("low", WAIT)]).await;
    let begun = clock::instant();
    world.bus.prepare_for_shutdown(true).await;
    world.released(0).await;
    assert_eq!(world.stopped(), ["high"]);
    let took = clock::since(begun);
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(7), "{took:?}");
}

#[tokio::test]
async fn a_shutdown_that_is_cancelled_is_delayed_the_next_time_as_well() {
    let world = World::start(&[]).await;
    world.bus.prepare_for_shutdown(true).await;
    world.released(0).await;
    world.bus.prepare_for_shutdown(false).await;
    world.locked(2).await;
    assert!(!*world.shutting_down.borrow());
    let again = pod("again", 1);
    world.workers.update_pod(UpdatePodOptions::sync(SyncPodType::Create, again));
    world.bus.prepare_for_shutdown(true).await;
    world.released(1).await;
    assert!(*world.shutting_down.borrow());
}

#[tokio::test]
async fn a_connection_that_breaks_is_made_again_with_a_new_lock() {
    let world = World::start(&[]).await;
    world.bus.disconnect().await;
    world.locked(2).await;
    world.released(0).await;
    world.bus.prepare_for_shutdown(true).await;
    world.released(1).await;
    assert_eq!(world.stopped(), ["low", "high"]);
}

#[tokio::test]
async fn pods_have_their_time_where_logind_cannot_be_made_to_wait_for_longer() {
    // The drop-in cannot be written, as if /etc were read-only; or one that sorts behind it counts.
    for read_only in [true, false] {
        let world = World::start_with(&[], |state, directory| {
            state.inhibit_delay = 4_000_000;
            if read_only {
                std::fs::write(directory.join("logind.conf.d"), "").unwrap();
            }
        })
        .await;
        world.bus.prepare_for_shutdown(true).await;
        world.released(0).await;
        assert_eq!(world.stopped(), ["low", "high"], "{read_only}");
        assert_eq!(world.bus.state.lock().inhibit_delay, 4_000_000);
    }
}

#[tokio::test]
async fn a_shutdown_that_is_cancelled_while_the_connection_is_broken_is_over() {
    let world = World::start(&[]).await;
    world.bus.prepare_for_shutdown(true).await;
    world.released(0).await;
    assert!(*world.shutting_down.borrow());
    world.bus.state.lock().preparing = false;
    world.bus.disconnect().await;
    world.locked(2).await;
    until("no shutdown", || !*world.shutting_down.borrow()).await;
}

#[tokio::test]
async fn a_shutdown_that_begins_while_the_connection_is_broken_stops_pods() {
    let world = World::start(&[]).await;
    world.bus.state.lock().preparing = true;
    world.bus.disconnect().await;
    until("a shutdown", || *world.shutting_down.borrow()).await;
    until("stopped", || world.stopped() == ["low", "high"]).await;
}

#[tokio::test]
async fn the_lock_is_held_until_volumes_are_unstaged_or_the_time_of_the_pods_is_over() {
    for is_late in [false, true] {
        let world = World::start(&[]).await;
        world.undone.store(false, Ordering::Relaxed);
        world.bus.prepare_for_shutdown(true).await;
        until("pods are stopped", || world.stopped().len() == 2).await;
        let begun = clock::instant();
        if !is_late {
            sleep(Duration::from_millis(300)).await;
            assert_eq!(world.record().end_time, None, "volumes are waited for");
            world.undone.store(true, Ordering::Relaxed);
        }
        world.released(0).await;
        // Four seconds for pods, and three more for their statuses.
        let is_over = clock::since(begun) > Duration::from_secs(5);
        assert_eq!(is_over, is_late, "{:?}", clock::since(begun));
    }
}
