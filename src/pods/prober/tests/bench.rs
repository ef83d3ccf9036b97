//! A pod `p` with a container `c` (or many pods with the same), whose commands follow a script.

use crate::base::clock::{self, Instant};
use crate::base::metrics::Metrics;
use crate::cri::{CriError, ExecOutput};
use crate::model::{
    ContainerId, ContainerState, ContainerStatus, Pod, ProbeKind, ProbeResult, fixture,
};
use crate::pods::prober::{ProbeManager, ProbedContainer, ProbedContainerReader, ProberDeps};
use crate::runtime::handlers::ExecFn;
use crate::state::events::EventRecorder;
use crate::state::pod_state_store::PodStateStore;
use crate::state::probe_results::{self, ProbeResults};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ExecAction, Probe};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

pub(super) const S: Duration = Duration::from_secs(1);
pub(super) const Z: Duration = Duration::ZERO;

/// What a command does, by its first argument.
#[derive(Clone)]
pub(super) enum Does {
    Exit(i32),
    Take(Duration),
    /// Takes some time and then exits with this code.
    Time(Duration, i32),
    Fail(CriError),
    Panic,
}

pub(super) struct World {
    pub(super) view: ProbedContainer,
    /// Timeout of the last command.
    pub(super) timeout: Duration,
    reads: usize,
    /// Whether reading a container panics.
    pub(super) blind: bool,
    script: HashMap<String, Does>,
    calls: Vec<(String, Instant)>,
    at_once: usize,
    most_at_once: usize,
}

pub(super) struct Bench {
    pub(super) manager: ProbeManager,
    pub(super) results: ProbeResults,
    pub(super) events: EventRecorder,
    pub(super) state_store: PodStateStore,
    pub(super) metrics: Metrics,
    pub(super) world: Arc<Mutex<World>>,
    pod: Arc<Pod>,
    dir: Arc<tempfile::TempDir>,
    /// When the first container was started, or this bench began.
    zero: Mutex<Instant>,
}

pub(super) fn probe(command: &str) -> Probe {
    Probe { exec: Some(ExecAction { command: Some(vec![command.into()]) }), ..Probe::default() }
}

pub(super) fn container(shape: impl FnOnce(&mut Container)) -> Container {
    let mut container = Container { name: "c".into(), ..Container::default() };
    shape(&mut container);
    container
}

pub(super) fn pod(uid: &str, container: Container) -> Arc<Pod> {
    let spec = serde_json::json!({"containers": [container]});
    Arc::new(fixture::pod(&format!("ns/p/{uid}"), spec))
}

impl Bench {
    pub(super) fn new(shape: impl FnOnce(&mut Container)) -> Self {
        let world = World {
            view: ProbedContainer::default(),
            timeout: Duration::ZERO,
            reads: 0,
            blind: false,
            script: HashMap::new(),
            calls: Vec::new(),
            at_once: 0,
            most_at_once: 0,
        };
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let state_store = PodStateStore::open(dir.path().to_owned()).unwrap();
        let pod = pod("u", container(shape));
        Self::over(Arc::new(Mutex::new(world)), state_store, dir, pod, clock::timestamp())
    }

    fn over(
        world: Arc<Mutex<World>>,
        state_store: PodStateStore,
        dir: Arc<tempfile::TempDir>,
        pod: Arc<Pod>,
        started_at: Timestamp,
    ) -> Self {
        let (writer, results) = probe_results::probe_results();
        let (events, metrics) = (EventRecorder::new(), Metrics::new());
        let deps = ProberDeps {
            started_at,
            exec: exec(world.clone()),
            view: view(world.clone()),
            results: writer,
            state_store: state_store.clone(),
            events: events.clone(),
        };
        let bench = Self {
            manager: ProbeManager::new(deps, &metrics, &metrics),
            results,
            events,
            state_store,
            metrics,
            world,
            pod,
            dir,
            zero: Mutex::new(clock::instant()),
        };
        bench.add();
        bench
    }

    /// Another kubelet, an hour later by the wall clock, with the same pod state store and the same containers.
    /// Commands run before do not show.
    pub(super) fn restarted(&self) -> Self {
        let (world, dir) = (self.world.clone(), self.dir.clone());
        world.lock().calls.clear();
        let started_at = clock::timestamp() + Duration::from_secs(3600);
        Self::over(world, self.state_store.clone(), dir, self.pod.clone(), started_at)
    }

    pub(super) fn add(&self) {
        self.manager.add_pod(&self.pod);
    }

    /// Lets time pass and everything due happen.
    pub(super) async fn pass(&self, time: Duration) {
        // A little more, for what happens exactly at the end.
        sleep(time + Duration::from_millis(1)).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    pub(super) fn set(&self, command: &str, does: Does) {
        self.world.lock().script.insert(command.into(), does);
    }

    /// A new instance of the container runs.
    pub(super) fn start(&self, id: &str) {
        if self.world.lock().view.container.is_none() {
            *self.zero.lock() = clock::instant();
        }
        self.change(id, ContainerState::Running);
    }

    pub(super) fn change(&self, id: &str, state: ContainerState) {
        let started_at = i64::try_from(clock::timestamp().as_nanosecond()).unwrap();
        self.world.lock().view.container = Some(ContainerStatus {
            id: id.into(),
            name: "c".into(),
            state,
            started_at,
            ..ContainerStatus::default()
        });
        self.manager.pod_changed(&"u".into());
    }

    /// When a command was run, in whole seconds since the container started; all commands for "".
    pub(super) fn calls(&self, command: &str) -> Vec<Duration> {
        let times = self.times(command).into_iter();
        times.map(|at| Duration::from_secs(at.as_secs())).collect()
    }

    /// Like [`Self::calls`], exactly.
    pub(super) fn times(&self, command: &str) -> Vec<Duration> {
        let zero = *self.zero.lock();
        let calls = &self.world.lock().calls;
        let these = calls.iter().filter(|(name, _)| command.is_empty() || name == command);
        these.map(|(_, at)| at.saturating_duration_since(zero)).collect()
    }

    pub(super) fn reads(&self) -> usize {
        self.world.lock().reads
    }

    pub(super) fn most_at_once(&self) -> usize {
        self.world.lock().most_at_once
    }

    pub(super) fn probe_result(&self, id: &str, kind: ProbeKind) -> Option<ProbeResult> {
        self.results.get(&ContainerId::from(id)).get(kind)
    }

    pub(super) fn started(&self, id: &str) -> bool {
        self.manager.started(&"u".into(), "c", &id.into())
    }

    /// How many probe tasks there are.
    pub(super) fn tasks(&self) -> usize {
        tokio::runtime::Handle::current().metrics().num_alive_tasks()
    }
}

fn view(world: Arc<Mutex<World>>) -> ProbedContainerReader {
    Arc::new(move |_, _| {
        let mut world = world.lock();
        world.reads += 1;
        assert!(!world.blind, "as scripted");
        world.view.clone()
    })
}

fn exec(world: Arc<Mutex<World>>) -> ExecFn {
    Arc::new(move |_, command, timeout| {
        let world = world.clone();
        Box::pin(async move {
            let does = {
                let mut world = world.lock();
                world.calls.push((command[0].clone(), clock::instant()));
                world.timeout = timeout;
                world.at_once += 1;
                world.most_at_once = world.most_at_once.max(world.at_once);
                world.script.get(&command[0]).cloned().unwrap_or(Does::Exit(0))
            };
            let result = match does {
                Does::Exit(exit_code) => said(&command[0], exit_code),
                Does::Take(time) => {
                    sleep(time).await;
                    said(&command[0], 0)
                }
                Does::Time(time, exit_code) => {
                    sleep(time).await;
                    said(&command[0], exit_code)
                }
                Does::Fail(error) => Err(error),
                Does::Panic => panic!("as scripted"),
            };
            world.lock().at_once -= 1;
            result
        })
    })
}

fn said(command: &str, exit_code: i32) -> Result<ExecOutput, CriError> {
    Ok(ExecOutput {
        stdout: format!("{command} says {exit_code}").into(),
        stderr: Vec::new(),
        exit_code,
    })
}
