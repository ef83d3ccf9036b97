//! What happens in a history: users, faults, kills, and then an end at which all must be right.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kubelet::base::clock;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::checks::{Checks, Known, trace};
use crate::machine::{self, Machine};
use crate::pods::{Kind, bound, manifest, path};
use crate::support::api_server::Mode;
use crate::support::fake_runtime::{Behaviour, ExecOutcome, Fault, Rpc};

/// How much time passes before the end begins.
const LASTS: Duration = Duration::from_secs(600);
/// Within which all is right, once nothing goes wrong any more: back-offs of five minutes, and a resync.
const SETTLES: Duration = Duration::from_secs(480);
/// How long nothing may be done when all is right.
const RESTS: Duration = Duration::from_secs(300);
/// Pods at once.
const MOST: usize = 8;

/// Calls that faults hit.
const HIT: [Rpc; 12] = [
    Rpc::RunPodSandbox,
    Rpc::StopPodSandbox,
    Rpc::RemovePodSandbox,
    Rpc::PodSandboxStatus,
    Rpc::ListPodSandbox,
    Rpc::CreateContainer,
    Rpc::StartContainer,
    Rpc::StopContainer,
    Rpc::RemoveContainer,
    Rpc::ListContainers,
    Rpc::ContainerStatus,
    Rpc::ImageStatus,
];

/// How a history ended.
pub struct End {
    pub findings: Vec<String>,
    pub notes: String,
    pub trace: String,
}

/// Lives the history of a seed, or the first actions of it and then the end.
pub fn live(seed: u64, actions: u64) -> End {
    let begin = Timestamp::from_second(1_800_000_000).expect("a time");
    machine::live(begin, async |machine| Story::new(machine, seed, begin).tell(actions).await)
}

struct Story {
    machine: Rc<Machine>,
    checks: Checks,
    rng: RefCell<fastrand::Rng>,
    pods: RefCell<BTreeMap<String, Known>>,
    /// Full names of pods whose readiness and liveness probe fails.
    unready: Arc<Mutex<BTreeSet<String>>>,
    sick: Arc<Mutex<BTreeSet<String>>>,
    count: Cell<u32>,
    begin: Timestamp,
    notes: RefCell<String>,
}

impl Story {
    fn new(machine: Rc<Machine>, seed: u64, begin: Timestamp) -> Self {
        let (unready, sick) = (Arc::<Mutex<BTreeSet<String>>>::default(), Arc::default());
        let probed = Arc::<Mutex<BTreeSet<String>>>::default();
        let checks = Checks::new(&machine, probed.clone());
        let fake = &machine.fake;
        fake.behave("slow", Behaviour::ends_slowly(Duration::from_millis(300), 0));
        fake.behave("deaf", Behaviour::ignores_term());
        fake.take_time(Duration::from_millis(15), seed);
        let (is_unready, is_sick) = (unready.clone(), Arc::<Mutex<BTreeSet<String>>>::clone(&sick));
        fake.on_exec(move |call| {
            let pod = &call.subject.pod;
            let fails = match call.command[0].as_str() {
                "is-ready" => is_unready.lock().contains(pod),
                "is-alive" => is_sick.lock().contains(pod),
                _ => false,
            };
            if call.command[0] == "is-ready" && !fails {
                probed.lock().insert(call.subject.id.clone());
            }
            ExecOutcome::code(i32::from(fails))
        });
        Story {
            machine,
            checks,
            rng: RefCell::new(fastrand::Rng::with_seed(seed)),
            pods: RefCell::default(),
            unready,
            sick,
            count: Cell::default(),
            begin,
            notes: RefCell::default(),
        }
    }

    fn random(&self, below: usize) -> usize {
        self.rng.borrow_mut().usize(..below)
    }

    fn milliseconds(&self, below: u64) -> Duration {
        Duration::from_micros(self.rng.borrow_mut().u64(..below * 1000))
    }

    fn note(&self, text: &str) {
        let at = (clock::timestamp().as_duration() - self.begin.as_duration()).as_secs_f64();
        *self.notes.borrow_mut() += &format!("{at:9.3} {text}\n");
    }

    fn elapsed(&self) -> Duration {
        let since = clock::timestamp().duration_since(self.begin);
        Duration::try_from(since).unwrap_or_default()
    }

    async fn tell(self, mut actions: u64) -> End {
        self.machine.start();
        while self.elapsed() < LASTS && actions > 0 {
            actions -= 1;
            // Mostly close together, so that one thing meets the other.
            let gap = match self.random(4) {
                0 => Duration::ZERO,
                1 => self.milliseconds(60),
                2 => self.milliseconds(2000),
                _ => self.milliseconds(30_000),
            };
            sleep(gap).await;
            for _ in 0..self.random(30) {
                tokio::task::yield_now().await;
            }
            self.act().await;
            self.checks.always(&self.machine, &self.pods.borrow());
        }
        self.end().await;
        let trace = trace(&self.machine);
        let mut notes = self.notes.take();
        let findings = self.checks.findings.take();
        for finding in &findings {
            notes += &format!("!!! {finding}\n");
        }
        End { findings, notes, trace }
    }

    async fn act(&self) {
        if let Some(ended) = self.machine.ended().await {
            self.checks.findings.add(format!("the kubelet ended by itself: {ended}"));
            self.machine.start();
        }
        match self.random(40) {
            0..10 => self.create(),
            10..15 => self.delete(),
            15 => self.force_delete(),
            16..19 => self.edit(),
            19..22 => self.crash(),
            22..24 => self.flip(),
            24 => self.lose_sandbox(),
            25..31 => self.kill().await,
            31 => self.restart().await,
            32..35 => self.fail_calls(),
            35..37 => self.break_api(),
            37 => self.lose_runtime().await,
            38 => self.lose_events(),
            _ => self.mend(),
        }
    }

    /// A pod that is wanted.
    fn any(&self, fits: impl Fn(&Known) -> bool) -> Option<Known> {
        let pods = self.pods.borrow();
        let fitting: Vec<_> = pods.values().filter(|pod| pod.is_wanted && fits(pod)).collect();
        if fitting.is_empty() {
            return None;
        }
        let chosen = self.random(fitting.len());
        Some(fitting[chosen].clone())
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Known)) {
        if let Some(pod) = self.pods.borrow_mut().get_mut(name) {
            change(pod);
        }
    }

    fn create(&self) {
        if self.pods.borrow().values().filter(|pod| pod.is_wanted).count() >= MOST {
            return;
        }
        let number = self.count.replace(self.count.get() + 1);
        let kind = Kind::ALL[self.random(Kind::ALL.len())];
        let is_static = self.random(3) == 0;
        let name = format!("{}{number}", if is_static { "s" } else { "p" });
        self.note(&format!("create {name} {kind:?}"));
        if is_static {
            let text = manifest(&name, kind, 0).to_string();
            self.machine.manifests.put(&format!("{name}.yaml"), &text);
        } else {
            self.machine.api.put(&path(&name), bound(&name, kind));
        }
        let (is_wanted, is_disturbed, version) = (true, false, 0);
        let pod = Known { name: name.clone(), kind, is_static, is_wanted, is_disturbed, version };
        self.pods.borrow_mut().insert(name, pod);
    }

    fn unwant(&self, pod: &Known) {
        self.change(&pod.name, |pod| (pod.is_wanted, pod.is_disturbed) = (false, true));
        self.unready.lock().remove(&pod.full_name());
        self.sick.lock().remove(&pod.full_name());
    }

    fn delete(&self) {
        if let Some(pod) = self.any(|_| true) {
            self.delete_now(&pod);
        }
    }

    fn delete_now(&self, pod: &Known) {
        self.unwant(pod);
        if pod.is_static {
            self.note(&format!("remove {}", pod.name));
            self.machine.manifests.remove(&format!("{}.yaml", pod.name));
            return;
        }
        let grace = [1, 5, 30][self.random(3)];
        self.note(&format!("delete {} with {grace} s", pod.name));
        let Some(mut object) = self.machine.api.object(&path(&pod.name)) else {
            self.checks.findings.add(format!("{} has vanished", pod.name));
            return;
        };
        let at = clock::timestamp() + Duration::from_secs(grace);
        object["metadata"]["deletionTimestamp"] =
            json!(at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        self.machine.api.put(&path(&pod.name), object);
    }

    fn force_delete(&self) {
        if let Some(pod) = self.any(|pod| !pod.is_static) {
            self.note(&format!("delete {} by force", pod.name));
            self.unwant(&pod);
            self.machine.api.remove(&path(&pod.name));
        }
    }

    /// A manifest with other arguments.
    fn edit(&self) {
        if let Some(pod) = self.any(|pod| pod.is_static && pod.kind != Kind::Job) {
            let version = pod.version + 1;
            self.note(&format!("edit {} to {version}", pod.name));
            self.change(&pod.name, |pod| (pod.version, pod.is_disturbed) = (version, true));
            let text = manifest(&pod.name, pod.kind, version).to_string();
            self.machine.manifests.put(&format!("{}.yaml", pod.name), &text);
        }
    }

    /// A process ends by itself.
    fn crash(&self) {
        if let Some(pod) = self.any(|pod| !pod.kind.lasting().is_empty()) {
            let containers = pod.kind.lasting();
            let word = format!("{}/{}", pod.full_name(), containers[self.random(containers.len())]);
            self.note(&format!("crash {word}: {}", self.machine.fake.exit(&word, 1)));
        }
    }

    fn flip(&self) {
        if let Some(pod) = self.any(|pod| pod.kind == Kind::Probed) {
            let is_liveness = self.random(3) == 0;
            let failing = if is_liveness { &self.sick } else { &self.unready };
            self.note(&format!("flip {} liveness={is_liveness}", pod.name));
            if is_liveness {
                self.change(&pod.name, |pod| pod.is_disturbed = true);
            }
            let name = pod.full_name();
            let mut failing = failing.lock();
            if !failing.remove(&name) {
                failing.insert(name);
            }
        }
    }

    fn lose_sandbox(&self) {
        if let Some(pod) = self.any(|pod| pod.kind != Kind::Job) {
            self.note(&format!("the sandbox of {} dies", pod.name));
            self.change(&pod.name, |pod| pod.is_disturbed = true);
            self.machine.fake.kill_sandbox(&pod.full_name());
        }
    }

    async fn kill(&self) {
        if self.machine.runs() {
            self.note("kill");
            self.machine.kill().await;
        }
        if self.random(3) > 0 {
            sleep(self.milliseconds(3000)).await;
        }
        self.note("start");
        self.machine.start();
    }

    async fn restart(&self) {
        self.note("stop");
        if let Err(ended) = self.machine.stop().await {
            self.checks.findings.add(format!("the kubelet does not end well: {ended}"));
        }
        sleep(self.milliseconds(20_000)).await;
        // The process is gone with all that did not stop.
        self.machine.kill().await;
        self.note("start");
        self.machine.start();
    }

    fn fail_calls(&self) {
        let rpc = HIT[self.random(HIT.len())];
        let times = 1 + self.random(4) as u32;
        let fault = match self.random(4) {
            0 => Fault::hang(rpc),
            1 => Fault::lose_answer(rpc, Code::DeadlineExceeded, "the answer is lost"),
            2 => Fault::delay(rpc, self.milliseconds(20_000)),
            _ => Fault::fail(rpc, Code::Unknown, "no"),
        };
        self.note(&format!("{rpc} goes wrong"));
        self.machine.fake.inject(fault.times(times));
    }

    fn break_api(&self) {
        let modes = [
            Mode::Status(500),
            Mode::Status(429),
            Mode::Silent,
            Mode::Garbage,
            Mode::Empty,
            Mode::Away,
        ];
        let mode = modes[self.random(modes.len())];
        self.note(&format!("the API server is {mode:?}"));
        self.machine.api.answer(mode);
    }

    async fn lose_runtime(&self) {
        self.note("the runtime is away");
        self.machine.fake.vanish();
        sleep(self.milliseconds(20_000)).await;
        self.note("the runtime is back");
        self.machine.fake.come_back();
    }

    fn lose_events(&self) {
        match self.random(3) {
            0 => self.machine.fake.lose_events(1 + self.random(10) as u32),
            1 => self.machine.fake.end_event_streams(Some(Status::internal("no events"))),
            _ => self.machine.fake.drop_connections(),
        }
        self.note("events are lost");
    }

    fn mend(&self) {
        self.note("all is mended");
        self.machine.fake.clear_faults();
        self.machine.api.answer(Mode::Well);
        self.unready.lock().clear();
        self.sick.lock().clear();
    }

    async fn end(&self) {
        self.mend();
        self.machine.fake.lose_events(0);
        self.settle("after the last fault").await;
        self.checks.starts(&self.machine, &self.pods.borrow());
        // They are never at rest.
        while let Some(pod) = self.any(|pod| pod.kind == Kind::Crashing) {
            self.delete_now(&pod);
        }
        self.settle("without those that crash").await;
        self.rest().await;
        while let Some(pod) = self.any(|_| true) {
            self.delete_now(&pod);
        }
        self.settle("after all were deleted").await;
    }

    async fn settle(&self, when: &str) {
        self.note(&format!("settle {when}"));
        let begin = self.elapsed();
        loop {
            self.checks.always(&self.machine, &self.pods.borrow());
            let problems = self.checks.unsettled(&self.machine, &self.pods.borrow());
            if problems.is_empty() {
                self.note("settled");
                return;
            }
            if self.elapsed() - begin > SETTLES {
                for problem in problems {
                    self.checks.findings.add(format!("not settled {when}: {problem}"));
                }
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Nothing is done and nothing is said of pods when all is right.
    async fn rest(&self) {
        // What is late: garbage collection, events.
        sleep(Duration::from_secs(120)).await;
        let mutations = self.machine.fake.mutations();
        let writes = || {
            let seen = self.machine.api.seen();
            let of_pods = |path: &str| path.contains("/pods/");
            seen.iter().filter(|seen| seen.method != "GET" && of_pods(&seen.path)).count()
        };
        let before = writes();
        sleep(RESTS).await;
        if self.machine.fake.mutations() != mutations {
            let calls = self.machine.fake.calls();
            let last = calls.iter().rev().find(|call| call.rpc.is_mutating());
            self.checks.findings.add(format!("the runtime is called at rest: {last:?}"));
        }
        if writes() != before {
            let seen = self.machine.api.seen();
            let last = seen.iter().rev().find(|seen| seen.path.contains("/pods/"));
            self.checks
                .findings
                .add(format!("pods are written to the API server at rest: {last:?}"));
        }
    }
}
