//! Pods with volumes of CSI drivers that hang, fail, crash and lie, while the kubelet is killed.

mod checks;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use tonic::Code;

use super::in_lanes;
use crate::api_source::path;
use crate::csi::delete;
use crate::csi::driver::Behaviour;
use crate::csi_node::{CsiNode, NodeDriver, pod};
use crate::support::faults::{Finding, Goal, Plan, Settings, Sum, summarize};
use crate::support::scripts::target;

/// Kills in a plain run of the tests.
const KILLS: usize = 12;
/// Kills of one episode.
const EACH: usize = 4;

/// The drivers: with and without attaching and staging.
const DRIVERS: [(&str, bool, bool); 3] = [
    ("attached.example.com", true, true),
    ("staged.example.com", false, true),
    ("direct.example.com", true, false),
];
/// Volumes of each driver.
const VOLUMES: usize = 3;
const CALLS: [&str; 4] =
    ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];

/// A pod as the API server once had it.
struct KnownPod {
    name: String,
    /// It was deleted or is gone, or its container was ended.
    is_disturbed: bool,
}

/// A container that has been seen running.
struct SeenContainer {
    uid: String,
    has_ended: bool,
}

struct CsiEpisode {
    plan: Plan,
    node: CsiNode,
    rng: fastrand::Rng,
    /// By UID.
    pods: BTreeMap<String, KnownPod>,
    containers: BTreeMap<String, SeenContainer>,
    /// The sockets of drivers so far.
    sockets: usize,
    started_at: Instant,
    notes: String,
    findings: Vec<Finding>,
    sum: Sum,
}

async fn live(plan: Plan) -> Sum {
    let dir = tempfile::Builder::new().prefix("faults").tempdir().expect("a directory");
    let drivers = DRIVERS.iter().map(|(name, attach, stage)| NodeDriver {
        block: false,
        name,
        attach: *attach,
        stage: *stage,
        volumes: volumes_of(name).collect(),
    });
    let drivers: Vec<_> = drivers.collect();
    let mut rng = plan.rng();
    let Some(node) = CsiNode::start(dir.path(), &drivers, rng.u8(1..20)).await else {
        return Sum::default();
    };
    let episode = CsiEpisode {
        plan,
        node,
        rng,
        pods: BTreeMap::new(),
        containers: BTreeMap::new(),
        sockets: 0,
        started_at: Instant::now(),
        notes: String::new(),
        findings: Vec::new(),
        sum: Sum::default(),
    };
    episode.run(&target().join("faults/simulated")).await
}

fn volumes_of(driver: &str) -> impl Iterator<Item = String> {
    let word = driver.split('.').next().unwrap_or_default();
    (0..VOLUMES).map(move |number| format!("{word}-{number}"))
}

impl CsiEpisode {
    async fn run(mut self, stories: &Path) -> Sum {
        for _ in 0..self.plan.names {
            self.change_pod();
        }
        self.settle().await;
        for _ in 0..self.plan.faults {
            self.kill().await;
        }
        self.end_faults();
        let begin = Instant::now();
        if self.settle().await {
            self.sum.settled.push(begin.elapsed());
        }
        self.empty().await;
        for text in self.node.violations() {
            self.find(Goal::CsiViolation, text);
        }
        for text in self.node.not_in_use() {
            self.find(Goal::NotInUse, text);
        }
        self.sum.episodes = 1;
        self.sum.starts = self.containers.len();
        let calls = self.node.drivers.iter().map(|it| it.journal.calls().len());
        let calls: usize = calls.sum();
        println!("{}: {calls} calls of drivers", self.plan.again());
        for finding in &self.findings {
            let texts = self.sum.findings.entry(finding.goal).or_default();
            texts.push(finding.text.clone());
        }
        if !self.findings.is_empty() {
            self.write_story(stories);
        }
        self.sum
    }

    fn write_story(&self, directory: &Path) {
        std::fs::create_dir_all(directory).expect("the directory");
        let Plan { seed, number, .. } = self.plan;
        let path = directory.join(format!("failed-csi-{seed}-{number}.log"));
        let findings = &self.findings;
        println!("{}, of CSI volumes: {findings:#?}\n  see {}", self.plan.again(), path.display());
        let calls = self.node.drivers.iter().map(|driver| {
            let entries = driver.journal.entries();
            let calls = entries.iter().filter(|call| !call.volume.is_empty());
            let calls = calls.map(|call| {
                let (method, volume, code) = (call.method, &call.volume, call.code);
                format!("{method} {volume} {} {code:?}", call.target_path)
            });
            calls.collect::<Vec<_>>().join("\n")
        });
        let text = format!(
            "{:?}\n{findings:#?}\n\n==== the harness\n{}\n==== the drivers\n{}\n==== the kubelet\n{}",
            self.plan,
            self.notes,
            calls.collect::<Vec<_>>().join("\n\n"),
            self.node.kubelet.log(),
        );
        std::fs::write(&path, text).expect("write what happened");
    }

    fn note(&mut self, text: impl AsRef<str>) {
        let at = self.started_at.elapsed().as_secs_f64();
        writeln!(self.notes, "{at:8.3} {}", text.as_ref()).expect("a string takes all");
    }

    fn find(&mut self, goal: Goal, text: impl Into<String>) {
        let finding = Finding::new(goal, text);
        if !self.findings.contains(&finding) {
            self.note(format!("!!!! {finding:?}"));
            self.findings.push(finding);
        }
    }

    // -- faults -------------------------------------------------------------------------------

    async fn kill(&mut self) {
        self.observe();
        self.check_running();
        if let Some(status) = self.node.kubelet.ended() {
            self.find(Goal::KubeletEnded, format!("{status}"));
        }
        self.note("kill");
        self.node.kubelet.kill();
        self.churn_for(self.plan.lasts.clone()).await;
        self.note("start");
        self.node.kubelet.respawn();
        self.churn_for(self.plan.life.clone()).await;
        self.sum.faults += 1;
    }

    async fn churn_for(&mut self, milliseconds: Range<u64>) {
        let lasts = Duration::from_millis(self.rng.u64(milliseconds));
        let end = Instant::now() + lasts;
        loop {
            let gap = Duration::from_millis(self.rng.u64(self.plan.gap.clone()));
            let next = Instant::now() + gap;
            tokio::time::sleep_until(next.min(end).into()).await;
            self.observe();
            if next >= end {
                return;
            }
            match self.rng.u8(..12) {
                0..7 => self.change_pod(),
                7..9 => self.script(),
                9..11 => self.behave_again(),
                _ => self.disturb_process(),
            }
        }
    }

    fn change_pod(&mut self) {
        let name = format!("churn{}", self.rng.usize(..self.plan.names));
        let Some(uid) = self.node.uid(&name) else {
            self.create(&name);
            return;
        };
        self.sum.changes += 1;
        let is_being_deleted = self.is_being_deleted(&name);
        match self.rng.u8(..8) {
            0..4 if !is_being_deleted => {
                self.note(format!("delete {name} {uid}"));
                self.disturb(&uid);
                delete(&self.node.api, &name);
            }
            4 => {
                self.note(format!("remove {name} {uid}"));
                self.disturb(&uid);
                self.node.api.remove(&path(&name));
            }
            5 => {
                let Some(running) = self.node.running(&uid) else {
                    return;
                };
                self.note(format!("crash {name} {uid}"));
                self.disturb(&uid);
                for container in &running.containers {
                    self.node.fake.exit(&container.id, 1);
                }
            }
            _ => {}
        }
    }

    fn disturb(&mut self, uid: &str) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.is_disturbed = true;
        }
    }

    fn is_being_deleted(&self, name: &str) -> bool {
        let pod = self.node.api.object(&path(name));
        pod.is_some_and(|pod| !pod["metadata"]["deletionTimestamp"].is_null())
    }

    /// One or two volumes, also those that other pods have.
    fn create(&mut self, name: &str) {
        let uid = format!("uid-{}", self.pods.len());
        let mut claims = Vec::new();
        for _ in 0..self.rng.usize(1..3) {
            let (driver, ..) = DRIVERS[self.rng.usize(..DRIVERS.len())];
            let claim = volumes_of(driver).nth(self.rng.usize(..VOLUMES));
            claims.extend(claim.filter(|claim| !claims.contains(claim)));
        }
        let (driver, ..) = DRIVERS[self.rng.usize(..DRIVERS.len())];
        let inline = (self.rng.u8(..3) == 0).then_some(driver);
        self.note(format!("create {name} {uid} {claims:?} {inline:?}"));
        let claims: Vec<_> = claims.iter().map(String::as_str).collect();
        let pod = pod(name, &uid, &claims, inline);
        let known = KnownPod { name: name.to_owned(), is_disturbed: false };
        self.pods.insert(uid, known);
        self.sum.changes += 1;
        self.node.api.put(&path(name), pod);
    }

    /// Has some of the next calls of a driver misbehave.
    fn script(&mut self) {
        let driver = self.rng.usize(..self.node.drivers.len());
        let method = CALLS[self.rng.usize(..CALLS.len())];
        let behaviour = match self.rng.u8(..9) {
            0 => Behaviour::fail(Code::InvalidArgument),
            1 => Behaviour::fail(Code::Unavailable),
            2 => Behaviour::do_then_fail(Code::DeadlineExceeded),
            // A lie: this code says that it was not done.
            3 => Behaviour::do_then_fail(Code::Internal),
            4 => Behaviour::Delay(Duration::from_millis(self.rng.u64(1..200))),
            5 => Behaviour::Hang,
            6 => Behaviour::DoThenHang,
            7 => Behaviour::hang_then_fail(Code::Aborted),
            _ => {
                self.note(format!("driver {driver} leaves a mount"));
                self.node.drivers[driver].volumes.leave_mounts(1);
                return;
            }
        };
        let times = self.rng.u32(1..3);
        self.note(format!("driver {driver}: {method} {behaviour:?} {times}"));
        let script = &self.node.drivers[driver].script;
        script.add(method, None, Some(times), behaviour);
    }

    fn behave_again(&mut self) {
        self.note("release");
        for driver in &self.node.drivers {
            driver.script.release();
            driver.script.clear();
        }
    }

    fn disturb_process(&mut self) {
        let number = self.rng.usize(..self.node.drivers.len());
        let what = self.rng.u8(..6);
        self.note(format!("driver {number}: process {what}"));
        self.sockets += 1;
        let sockets = self.sockets;
        let driver = &mut self.node.drivers[number];
        match what {
            0 => driver.kill(),
            1 => driver.deregister(),
            2 => {
                driver.restart(|_| {});
                driver.register();
            }
            3 => driver.restart(|_| {}),
            _ => {
                driver.restart(|config| {
                    config.base.set_file_name(format!("socket-{sockets}"));
                });
                driver.register();
            }
        }
    }

    fn end_faults(&mut self) {
        self.note("end of faults");
        for driver in &mut self.node.drivers {
            driver.script.clear();
            driver.volumes.leave_mounts(0);
            driver.script.release();
            driver.restart(|_| {});
            driver.register();
        }
    }
}

#[test]
fn no_csi_volume_is_lost_or_left_by_faults_under_churn() {
    let settings = Settings::read(("FAULTS_CSI_KILLS", KILLS), ("FAULTS_CSI_OTHERS", &[]), EACH);
    let pace = |plan: Plan| Plan { names: 7, gap: 0..300, life: 300..4000, ..plan };
    let sums = in_lanes(&settings, settings.plans(pace), live);
    let missed = summarize("simulated-csi", &settings, &sums);
    assert_eq!(missed, [""; 0], "FAULTS_SEED={}", settings.seed);
}
