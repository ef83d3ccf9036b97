//! Pods that churn while the kubelet is killed, the runtime is away, the disk is full. See
//! `tests/support/faults` for what is counted and how, and `make faults` for many of them.

mod csi;
mod oracle;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::support::fake_runtime::{
    Behaviour, Call, ExecCall, ExecOutcome, FakeRuntime, Fault as RuntimeFault, Features, Options,
    Rpc,
};
use crate::support::faults::oracle::{Container, Sandbox, Snapshot, State};
use crate::support::faults::pods::VERSION_LABEL;
use crate::support::faults::{Episode, Fault, HookRun, Plan, Settings, Side, Sum, summarize};
use crate::support::kubelet_process::{KubeletProcess, Settings as KubeletSettings};
use crate::support::scripts::target;

/// Kills in a plain run of the tests.
const KILLS: usize = 25;
/// Faults of one episode.
const EACH: usize = 10;
/// Calls of a fake that an episode keeps.
const CALLS: usize = 200_000;
/// Size of a root directory that is to become full.
const ROOT_SIZE: &str = "size=4m";

struct Simulated(FakeRuntime);

fn snapshot(fake: &FakeRuntime) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for pod in fake.pods() {
        let version = pod.config.labels.get(VERSION_LABEL);
        snapshot.sandboxes.push(Sandbox {
            id: pod.id.clone(),
            pod: pod.name.clone(),
            version: version.and_then(|text| text.parse().ok()).unwrap_or(0),
            ready: pod.ready,
        });
        let containers = pod.containers.iter().map(|container| Container {
            id: container.id.clone(),
            sandbox: pod.id.clone(),
            name: container.name.clone(),
            state: match container.state {
                kubelet::cri::v1::ContainerState::ContainerRunning => State::Running,
                kubelet::cri::v1::ContainerState::ContainerExited => State::Exited,
                _ => State::Created,
            },
        });
        snapshot.containers.extend(containers);
    }
    snapshot
}

impl Side for Simulated {
    async fn watch(&self, observe: &dyn Fn(Snapshot)) {
        let pass = |fake: &FakeRuntime| {
            observe(snapshot(fake));
            false
        };
        self.0.comes_true(Duration::MAX, pass).await;
    }

    async fn crash(&self, container: &str) {
        self.0.exit(container, 1);
    }

    async fn begin(&self, fault: Fault, rng: &mut fastrand::Rng) {
        match fault {
            Fault::RuntimeAway => self.0.vanish(),
            Fault::HangingStatus => {
                let pods = self.0.pods();
                let some = pods.iter().filter(|_| rng.u8(..3) == 0);
                for pod in some {
                    let hang = RuntimeFault::hang(Rpc::ContainerStatus);
                    self.0.inject(hang.only(&pod.name));
                }
            }
            _ => {}
        }
    }

    async fn end(&self, fault: Fault) {
        match fault {
            Fault::RuntimeAway => self.0.come_back(),
            Fault::HangingStatus => self.0.clear_faults(),
            _ => {}
        }
    }

    fn hooks(&self) -> Vec<HookRun> {
        let kinds = ["post-start", "pre-stop"];
        let calls = self.0.calls_of(Rpc::ExecSync);
        let runs = calls.into_iter().filter_map(|call| {
            let kind = kinds.into_iter().find(|kind| call.detail.contains(kind))?;
            Some(HookRun {
                kind: kind.to_owned(),
                ended: call.succeeded().then(|| ended(&call)).flatten(),
                instance: call.subject.id,
            })
        });
        runs.collect()
    }

    fn hooks_name_containers(&self) -> bool {
        true
    }

    fn is_instance(&self, instance: &str, _: &str, container: &str) -> bool {
        instance == container
    }

    fn stop_began(&self, instance: &str) -> Option<Instant> {
        let calls = self.0.calls_of(Rpc::StopContainer);
        let stop = calls.iter().find(|call| call.subject.id == instance);
        stop.map(|call| call.at.into_std())
    }

    fn history(&self) -> String {
        let mut text = format!("twins: {:#?}\n", self.0.overlaps());
        let calls = self.0.calls();
        for call in calls.iter().filter(|call| call.rpc.is_mutating() || call.rpc == Rpc::ExecSync)
        {
            let line = format!(
                "{:?} {:?} {:?} {} {:?} {:?}\n",
                call.at, call.rpc, call.subject, call.detail, call.took, call.code
            );
            text.push_str(&line);
        }
        text
    }
}

fn ended(call: &Call) -> Option<Instant> {
    Some((call.at + call.took?).into_std())
}

/// Probes check files as `test -e FILE` and `test ! -e FILE` do.
fn exec(call: &ExecCall) -> ExecOutcome {
    let command: Vec<_> = call.command.iter().map(String::as_str).collect();
    match command.as_slice() {
        ["test", "-e", path] => ExecOutcome::code(i32::from(!Path::new(path).exists())),
        ["test", "!", "-e", path] => ExecOutcome::code(i32::from(Path::new(path).exists())),
        _ => ExecOutcome { delay: Duration::from_millis(30), ..ExecOutcome::default() },
    }
}

async fn runtime(features: Features) -> FakeRuntime {
    let fake = FakeRuntime::start(Options {
        features,
        // A full disk is the kubelet's fault to bear, not the fake's.
        write_logs: false,
        keep_calls: CALLS,
        ..Options::default()
    })
    .await;
    let ms = Duration::from_millis;
    fake.behave("init", Behaviour::exits(ms(20), 0));
    fake.behave("job", Behaviour::exits(ms(50), 0));
    fake.behave("crashing", Behaviour::exits(ms(150), 1));
    fake.behave("slow", Behaviour::ends_slowly(ms(200), 0));
    fake.behave("deaf", Behaviour::ignores_term());
    fake.on_exec(exec);
    fake
}

/// A small file system, unmounted when dropped.
struct SmallRoot(PathBuf);

impl SmallRoot {
    fn mount(path: &Path) -> SmallRoot {
        std::fs::create_dir_all(path).expect("the root directory");
        let mut mount = Command::new("mount");
        let args = ["-t", "tmpfs", "-o", ROOT_SIZE, "faults"];
        let status = mount.args(args).arg(path).status();
        assert!(status.expect("run mount").success(), "cannot mount, which needs root");
        SmallRoot(path.to_owned())
    }
}

impl Drop for SmallRoot {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

async fn live(plan: Plan) -> Sum {
    let dir = tempfile::Builder::new().prefix("faults").tempdir().expect("a directory");
    let home = dir.path().join("kubelet");
    let _small = (plan.fault == Fault::DiskFull).then(|| SmallRoot::mount(&home.join("root")));
    let features = if plan.rng().bool() { Features::default() } else { Features::old() };
    let fake = runtime(features).await;
    let mut kubelet = KubeletProcess::start(KubeletSettings::new(&home, &fake.endpoint())).await;
    let episode = Episode::new(plan, Simulated(fake), &mut kubelet, &dir.path().join("shared"));
    episode.run(&target().join("faults/simulated")).await
}

/// The pace of faults other than kills, which take a while to be noticed.
fn pace(plan: Plan) -> Plan {
    match plan.fault {
        Fault::Kill => plan,
        _ => Plan { lasts: 100..1500, life: 300..1500, ..plan },
    }
}

/// Lives these episodes, some at once.
fn in_lanes<F: Future<Output = Sum>>(
    settings: &Settings,
    mut plans: Vec<Plan>,
    live: impl Fn(Plan) -> F + Sync,
) -> BTreeMap<Fault, Sum> {
    println!("FAULTS_SEED={}", settings.seed);
    plans.reverse();
    let (plans, sums) = (Mutex::new(plans), Mutex::new(BTreeMap::<_, Sum>::new()));
    let lane = || {
        loop {
            let Some(plan) = plans.lock().expect("no panic").pop() else {
                return;
            };
            let fault = plan.fault;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let sum = runtime.expect("a runtime").block_on(live(plan));
            sums.lock().expect("no panic").entry(fault).or_default().add(sum);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..settings.lanes {
            scope.spawn(lane);
        }
    });
    sums.into_inner().expect("no panic")
}

#[test]
fn nothing_is_harmed_by_faults_under_churn() {
    let others = [Fault::RuntimeAway, Fault::DiskFull, Fault::Garbage, Fault::HangingStatus];
    let settings = Settings::read(("FAULTS_KILLS", KILLS), ("FAULTS_OTHERS", &others), EACH);
    let sums = in_lanes(&settings, settings.plans(pace), live);
    let missed = summarize("simulated", &settings, &sums);
    assert_eq!(missed, [""; 0], "FAULTS_SEED={}", settings.seed);
}
