//! One episode: pods, faults, and what came of them.

mod disturb;
mod hooks;
mod settled;
mod shown;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::findings::{Finding, Goal, Sum};
use super::ledger::Ledger;
use super::oracle::{Oracle, Snapshot, State};
use super::pods::{self, Kind, Version};
use super::settings::{Fault, Plan};
use crate::support::kubelet_process::KubeletProcess;
use crate::support::manifests::Manifests;

/// Within which everything is as the manifests say, once nothing goes wrong any more: sooner than a relist
/// would find what was missed.
const SETTLES: Duration = Duration::from_secs(45);
/// What is not settled after this is noted, for people.
const LONG: Duration = Duration::from_secs(8);
/// How long an episode goes on to be watched after everything is right: an unneeded restart comes now.
const QUIET: Duration = Duration::from_millis(700);

/// A hook that ran in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookRun {
    /// `post-start` or `pre-stop`.
    pub kind: String,
    /// What distinguishes the instances of containers.
    pub instance: String,
    /// When it ended; `None` when the caller went away before.
    pub ended: Option<Instant>,
}

/// What differs between the fake runtime and containerd.
pub trait Side {
    /// Passes on a snapshot after every change of the runtime, as soon as it can; does not return.
    fn watch(&self, observe: &dyn Fn(Snapshot)) -> impl Future<Output = ()>;

    /// Ends the process of a container.
    fn crash(&self, container: &str) -> impl Future<Output = ()>;

    /// Begins a fault that is the runtime's.
    fn begin(&self, fault: Fault, rng: &mut fastrand::Rng) -> impl Future<Output = ()>;

    fn end(&self, fault: Fault) -> impl Future<Output = ()>;

    fn hooks(&self) -> Vec<HookRun>;

    /// Whether [`HookRun::instance`] is the container's id.
    fn hooks_name_containers(&self) -> bool;

    /// Whether [`HookRun::instance`] is, or may be, this container of this pod.
    fn is_instance(&self, instance: &str, pod: &str, container: &str) -> bool;

    /// When the runtime was first asked to stop the container of a hook, if that is known.
    fn stop_began(&self, instance: &str) -> Option<Instant>;

    /// For a failed episode.
    fn history(&self) -> String;
}

pub struct Episode<'k, S> {
    pub plan: Plan,
    pub(super) side: S,
    kubelet: RefCell<&'k mut KubeletProcess>,
    port: u16,
    root: PathBuf,
    logs: PathBuf,
    pub(super) manifests: Manifests,
    pub(super) shared: PathBuf,
    pub(super) ledger: RefCell<Ledger>,
    pub(super) oracle: RefCell<Oracle>,
    rng: RefCell<fastrand::Rng>,
    numbers: Cell<u32>,
    started_at: Instant,
    notes: RefCell<Vec<String>>,
    /// When the kubelet was killed.
    kills: RefCell<Vec<Instant>>,
    /// When each container of each pod was first shown as running.
    first_shown: RefCell<BTreeMap<(String, String), Instant>>,
    findings: RefCell<Vec<Finding>>,
    sum: RefCell<Sum>,
}

impl<'k, S: Side> Episode<'k, S> {
    /// `shared` is a directory for the pods.
    pub fn new(plan: Plan, side: S, kubelet: &'k mut KubeletProcess, shared: &Path) -> Self {
        pods::prepare(shared);
        let dir = kubelet.settings().dir.clone();
        Episode {
            rng: RefCell::new(plan.rng()),
            plan,
            side,
            port: kubelet.read_only_port,
            kubelet: RefCell::new(kubelet),
            root: dir.join("root"),
            logs: dir.join("logs"),
            manifests: Manifests::new(&dir.join("manifests"), &dir.join("manifests.new")),
            shared: shared.to_owned(),
            ledger: RefCell::default(),
            oracle: RefCell::default(),
            numbers: Cell::new(0),
            started_at: Instant::now(),
            notes: RefCell::default(),
            kills: RefCell::default(),
            first_shown: RefCell::default(),
            findings: RefCell::default(),
            sum: RefCell::default(),
        }
    }

    pub(super) fn random(&self, range: Range<u64>) -> u64 {
        self.rng.borrow_mut().u64(range)
    }

    pub(super) fn next_number(&self) -> u32 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    pub(super) fn note(&self, text: String) {
        let at = self.started_at.elapsed().as_secs_f64();
        self.notes.borrow_mut().push(format!("{at:8.3} {text}"));
    }

    fn find(&self, goal: Goal, text: impl Into<String>) {
        let finding = Finding::new(goal, text);
        if !self.findings.borrow().contains(&finding) {
            self.note(format!("!!!! {finding:?}"));
            self.findings.borrow_mut().push(finding);
        }
    }

    /// The pods that are never touched.
    fn steady() -> [(&'static str, Kind); 5] {
        [
            ("plain", Kind::Plain),
            ("probed", Kind::Probed),
            ("hooked", Kind::Hooked),
            ("several", Kind::Several),
            ("job", Kind::Job),
        ]
    }

    pub(super) fn churning(&self) -> Vec<String> {
        (0..self.plan.names).map(|n| format!("churn{n}")).collect()
    }

    /// Lives it to its end. One that failed, or was slow to settle, leaves a file in the directory
    /// `stories` that says what happened.
    pub async fn run(self, stories: &Path) -> Sum {
        let observe = |snapshot| self.oracle.borrow_mut().observe(Instant::now(), snapshot);
        tokio::select! {
            () = self.side.watch(&observe) => unreachable!("it does not return"),
            () = self.live() => {}
        }
        self.check_hooks();
        self.judge();
        let mut sum = self.sum.take();
        sum.episodes = 1;
        sum.changes = self.ledger.borrow().changes();
        sum.starts = self.oracle.borrow().starts();
        for finding in self.findings.borrow().iter() {
            let texts = sum.findings.entry(finding.goal).or_default();
            texts.push(finding.text.clone());
        }
        if !sum.missed().is_empty() {
            self.write_story("failed", stories);
        } else if sum.settled.iter().chain(&sum.emptied).any(|took| *took > LONG) {
            self.write_story("slow", stories);
        }
        sum
    }

    fn write_story(&self, word: &str, directory: &Path) {
        std::fs::create_dir_all(directory).expect("the directory");
        let path = directory.join(format!("{word}-{}-{}.log", self.plan.seed, self.plan.number));
        let findings = self.findings.borrow();
        let findings: Vec<_> =
            findings.iter().map(|f| format!("{:?}: {}", f.goal, f.text)).collect();
        let findings = findings.join("\n");
        println!(
            "{} {:?}:\n{findings}\n  see {}",
            self.plan.again(),
            self.plan.fault,
            path.display()
        );
        let text = format!(
            "{:?}\n{findings}\n\n==== the harness\n{}\n\n==== the runtime at last\n{:#?}\n\n==== the runtime\n{}\n\n==== the kubelet\n{}",
            self.plan,
            self.notes.borrow().join("\n"),
            self.oracle.borrow().latest(),
            self.side.history(),
            self.kubelet.borrow().log(),
        );
        std::fs::write(&path, text).expect("write what happened");
    }

    async fn live(&self) {
        for (name, kind) in Self::steady() {
            let number = self.next_number();
            self.put(name, Version { kind, number });
        }
        self.settle().await;
        for _ in 0..self.plan.faults {
            match self.plan.fault {
                Fault::Kill => self.kill().await,
                _ => self.other_fault().await,
            }
        }
        self.heal(true);
        let churned = Instant::now();
        if self.settle().await {
            self.sum.borrow_mut().settled.push(churned.elapsed());
        }
        tokio::time::sleep(QUIET).await;
        self.check_post_start();
        self.empty().await;
    }

    async fn kill(&self) {
        self.check_kubelet();
        self.note("kill".to_owned());
        self.kills.borrow_mut().push(Instant::now());
        self.kubelet.borrow_mut().kill();
        let away = self.random(self.plan.lasts.clone());
        self.churn_until(Instant::now() + Duration::from_millis(away)).await;
        self.note("start".to_owned());
        self.kubelet.borrow_mut().respawn();
        self.recover().await;
    }

    fn check_kubelet(&self) {
        if let Some(status) = self.kubelet.borrow_mut().ended() {
            self.find(Goal::KubeletEnded, format!("{status}"));
            self.kubelet.borrow_mut().respawn();
        }
    }

    /// Lets the kubelet live for a while, under churn, and measures how long the statuses take to be right.
    async fn recover(&self) {
        let begin = Instant::now();
        let end = begin + Duration::from_millis(self.random(self.plan.life.clone()));
        let ((), right) = tokio::join!(self.churn_until(end), self.right_within(begin, end));
        let mut sum = self.sum.borrow_mut();
        sum.faults += 1;
        sum.recoveries.extend(right);
    }

    /// How long it takes until the statuses of the untouched pods are correct.
    async fn right_within(&self, begin: Instant, end: Instant) -> Option<Duration> {
        let mut right = None;
        while Instant::now() < end {
            let shown = tokio::time::timeout_at(end.into(), self.shown()).await;
            if let Ok(Some(shown)) = shown
                && self.steady_is_right(&shown)
            {
                right.get_or_insert_with(|| begin.elapsed());
            }
            let pause = if right.is_some() { 40 } else { 5 };
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        right
    }

    async fn shown(&self) -> Option<shown::Pods> {
        let pods = shown::pods(self.port).await?;
        let now = Instant::now();
        let mut first_shown = self.first_shown.borrow_mut();
        for (name, pod) in &pods {
            for id in &pod.running {
                let key = (name.clone(), id.clone());
                first_shown.entry(key).or_insert(now);
            }
        }
        Some(pods)
    }

    /// Whether they are shown with their running containers. That one is missing or not ready is a finding.
    fn steady_is_right(&self, shown: &shown::Pods) -> bool {
        let mut right = true;
        for (name, kind) in Self::steady() {
            let Some(pod) = shown.get(name) else {
                self.find(Goal::ShownWrong, format!("{name} is not shown"));
                return false;
            };
            let well = if kind == Kind::Job { pod.succeeded } else { pod.ready };
            if !well {
                self.find(Goal::ShownWrong, format!("{name} is shown as {pod:?}"));
            }
            let oracle = self.oracle.borrow();
            let running = oracle.latest().running(name);
            right &= well && running.iter().all(|container| pod.running.contains(&container.id));
        }
        right
    }

    /// Waits until everything is as the manifests say; what is not is a finding.
    async fn settle(&self) -> bool {
        self.note("settle".to_owned());
        let (begin, end) = (Instant::now(), Instant::now() + SETTLES);
        let mut noted = Vec::new();
        loop {
            self.check_kubelet();
            let shown = self.shown().await.unwrap_or_default();
            let left = self.unsettled(&shown);
            if left.is_empty() {
                self.note("settled".to_owned());
                return true;
            }
            if Instant::now() >= end {
                for finding in left {
                    self.find(finding.goal, finding.text);
                }
                return false;
            }
            if begin.elapsed() > LONG && left != noted {
                let texts: Vec<_> = left.iter().map(|finding| finding.text.as_str()).collect();
                self.note(format!("not settled: {}", texts.join("; ")));
                noted = left;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn unsettled(&self, shown: &shown::Pods) -> Vec<Finding> {
        let (ledger, oracle) = (self.ledger.borrow(), self.oracle.borrow());
        let mut left = settled::left_in_runtime(oracle.latest(), &ledger);
        left.extend(settled::not_ready(oracle.latest(), &ledger, shown));
        let unwanted = shown.keys().filter(|name| ledger.version(name).is_none());
        left.extend(
            unwanted.map(|name| Finding::new(Goal::LostKill, format!("{name} is still shown"))),
        );
        left
    }

    /// Takes all manifests away; nothing may be left.
    async fn empty(&self) {
        let wanted = self.ledger.borrow().wanted();
        for name in wanted.keys() {
            self.remove(name);
        }
        let begin = Instant::now();
        if !self.settle().await {
            return;
        }
        let mut noted = Vec::new();
        loop {
            let left = self.left_on_disk();
            if left.is_empty() {
                self.sum.borrow_mut().emptied.push(begin.elapsed());
                return;
            }
            if begin.elapsed() >= SETTLES {
                for path in left {
                    self.find(Goal::Leak, path);
                }
                return;
            }
            if begin.elapsed() > LONG && left != noted {
                self.note(format!("still there: {}", left.join("; ")));
                noted = left;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn left_on_disk(&self) -> Vec<String> {
        let directories = [self.root.join("pods"), self.root.join("journal"), self.logs.clone()];
        let entries = directories
            .iter()
            .flat_map(|directory| std::fs::read_dir(directory).into_iter().flatten());
        entries.flatten().map(|entry| entry.path().display().to_string()).collect()
    }

    fn judge(&self) {
        let findings = self.oracle.borrow().judge(&self.ledger.borrow());
        for finding in findings {
            self.find(finding.goal, finding.text);
        }
    }
}
