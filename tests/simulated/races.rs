//! Static pods that are replaced in every way, in any order, while the runtime takes its time and the
//! kubelet dies: one pod of a name runs at a time, and in the end what the last manifests say.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;
use kubelet::model::{Pod, PodExt as _, keys};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use tonic::Code;

use crate::node::{Node, full, phase};
use crate::pods::{container, pod, with, with_metadata, with_spec};
use crate::support::fake_runtime::{Behaviour, ContainerView, Fault, Options, PodView, Rpc};
use crate::support::log::Log;
use crate::support::wait::{holds, wait_for};
use crate::virtual_time::real_time;

/// Histories that are lived at the same time: most of the time they wait.
const LANES: usize = 6;
/// Histories of each lane, unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 3;
/// More than the longest pause that the kubelet makes after a failed call, and some stops.
const IN_THE_END: Duration = Duration::from_secs(60);

/// More than the grace of a container.
const LONGEST_STOP: Duration = Duration::from_millis(1300);

const NAMES: [&str; 2] = ["a", "b"];
const FILES: [&str; 3] = ["f0.yaml", "f1.yaml", "f2.yaml"];
const UIDS: [&str; 2] = ["uid-0", "uid-1"];
const IMAGES: [&str; 3] = ["localhost/v0:dev", "localhost/v1:dev", "localhost/v2:dev"];

/// What a file says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Written {
    name: usize,
    version: usize,
    uid: Option<usize>,
}

impl Written {
    fn manifest(&self) -> Value {
        let image = json!({"image": IMAGES[self.version], "args": [self.args()]});
        let pod = pod(NAMES[self.name], &[with(container("main"), image)]);
        let pod = with_spec(pod, json!({"terminationGracePeriodSeconds": 1}));
        match self.uid {
            Some(uid) => with_metadata(pod, json!({"uid": UIDS[uid]})),
            None => pod,
        }
    }

    fn args(&self) -> String {
        format!("v{}", self.version)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Put(usize, Written),
    /// Not in one step: for a moment the file is half there.
    Write(usize, Written),
    Remove(usize),
    Rename(usize, usize),
    Pause(u64),
    Kill(u64),
    Stop(u64),
    Slow(Rpc, u64),
    Fail(Rpc),
    LoseAnswer(Rpc),
    LoseEvents(u32),
    LoseConnections,
}

fn op() -> impl Strategy<Value = Op> {
    let file = 0..FILES.len();
    let written = (0..NAMES.len(), 0..IMAGES.len(), prop::option::of(0..UIDS.len()));
    let written = written.prop_map(|(name, version, uid)| Written { name, version, uid });
    let changing = vec![
        Rpc::RunPodSandbox,
        Rpc::CreateContainer,
        Rpc::StartContainer,
        Rpc::StopContainer,
        Rpc::StopPodSandbox,
        Rpc::RemoveContainer,
        Rpc::RemovePodSandbox,
    ];
    let reading =
        vec![Rpc::PodSandboxStatus, Rpc::ContainerStatus, Rpc::ListPodSandbox, Rpc::ListContainers];
    let any = changing.iter().chain(&reading).copied().collect::<Vec<_>>();
    prop_oneof![
        9 => (file.clone(), written.clone()).prop_map(|(file, written)| Op::Put(file, written)),
        1 => (file.clone(), written).prop_map(|(file, written)| Op::Write(file, written)),
        3 => file.clone().prop_map(Op::Remove),
        2 => (file.clone(), file).prop_map(|(from, to)| Op::Rename(from, to)),
        6 => (0u64..250).prop_map(Op::Pause),
        3 => (0u64..30).prop_map(Op::Kill),
        1 => (0u64..30).prop_map(Op::Stop),
        4 => (select(any.clone()), 1u64..300).prop_map(|(rpc, by)| Op::Slow(rpc, by)),
        1 => select(any).prop_map(Op::Fail),
        1 => select(changing).prop_map(Op::LoseAnswer),
        1 => (1u32..4).prop_map(Op::LoseEvents),
        1 => Just(Op::LoseConnections),
    ]
}

/// A pod that should run, and the file that says so.
type Wanted = BTreeSet<(usize, Written)>;

struct History {
    node: Node,
    log: Log,
    files: BTreeMap<usize, Written>,
    /// How often each pod began to be wanted.
    calls_for: BTreeMap<(usize, Written), usize>,
    wanted: Wanted,
}

impl History {
    async fn begin() -> History {
        let mut images = Options::default().images;
        images.extend(IMAGES.map(str::to_owned));
        let options = Options { images, ..Options::default() };
        let mut node = Node::with(options).await;
        let slowly = Behaviour::ends_slowly(Duration::from_millis(150), 0);
        node.fake.behave(IMAGES[1], slowly);
        node.fake.behave(IMAGES[2], Behaviour::ignores_term());
        // What a lost event or a failed call leaves is found soon.
        node.periods().housekeeping = Duration::from_secs(1);
        node.periods().pleg.relist_period_with_events = Duration::from_secs(2);
        let mut history = History {
            node,
            log: Log::new(),
            files: BTreeMap::new(),
            calls_for: BTreeMap::new(),
            wanted: Wanted::new(),
        };
        history.start().await;
        history
    }

    async fn start(&mut self) {
        self.node.start_on_threads(&self.log).await;
    }

    /// Of two files with a pod of one name or UID the first counts.
    fn wanted_now(&self) -> Wanted {
        let mut names = BTreeSet::new();
        let named = self.files.iter().filter(|(_, w)| names.insert(w.name));
        let mut uids = BTreeSet::new();
        let counting = named.filter(|(_, w)| w.uid.is_none_or(|uid| uids.insert(uid)));
        counting.map(|(file, w)| (*file, w.clone())).collect()
    }

    /// The files are others now.
    fn changed(&mut self) {
        let now = self.wanted_now();
        for new in now.difference(&self.wanted) {
            *self.calls_for.entry(new.clone()).or_default() += 1;
        }
        self.wanted = now;
    }

    async fn apply(&mut self, op: &Op) {
        let fake = self.node.fake.clone();
        match op {
            Op::Put(file, written) => {
                let text = written.manifest().to_string();
                self.node.manifests.put(FILES[*file], &text);
                self.files.insert(*file, written.clone());
            }
            Op::Write(file, written) => {
                let text = written.manifest().to_string();
                let path = self.node.manifests.dir().join(FILES[*file]);
                std::fs::write(&path, &text[..text.len() / 2]).unwrap();
                tokio::time::sleep(Duration::from_millis(3)).await;
                std::fs::write(&path, &text).unwrap();
                self.files.insert(*file, written.clone());
            }
            Op::Remove(file) => {
                if self.files.remove(file).is_some() {
                    self.node.manifests.remove(FILES[*file]);
                }
            }
            Op::Rename(from, to) => {
                if let Some(written) = self.files.remove(from) {
                    let path = |file: usize| self.node.manifests.dir().join(FILES[file]);
                    std::fs::rename(path(*from), path(*to)).unwrap();
                    self.files.insert(*to, written);
                }
            }
            Op::Pause(ms) => tokio::time::sleep(Duration::from_millis(*ms)).await,
            Op::Kill(down) => {
                self.node.kill().await;
                tokio::time::sleep(Duration::from_millis(*down)).await;
                self.start().await;
            }
            Op::Stop(down) => {
                self.node.stop().await;
                tokio::time::sleep(Duration::from_millis(*down)).await;
                self.start().await;
            }
            Op::Slow(rpc, by) => {
                fake.inject(Fault::delay(*rpc, Duration::from_millis(*by)).times(3));
            }
            Op::Fail(rpc) => fake.inject(Fault::fail(*rpc, Code::Internal, "not now").times(1)),
            Op::LoseAnswer(rpc) => {
                let fault = Fault::lose_answer(*rpc, Code::Unavailable, "the answer is lost");
                fake.inject(fault.times(1));
            }
            Op::LoseEvents(n) => fake.lose_events(*n),
            Op::LoseConnections => fake.drop_connections(),
        }
        self.changed();
    }

    /// Whether the kubelet has read the files as they are. A pod whose file was renamed is another pod
    /// with the same containers: in the runtime, the old one looks like the new one.
    async fn what_is_unread(&self) -> Result<(), String> {
        let shown = self.node.pods().await;
        let shown: BTreeSet<_> = shown.iter().map(identity).collect();
        let wanted = self.wanted.iter().map(|(file, written)| {
            let path = self.node.manifests.dir().join(FILES[*file]);
            let path = path.to_string_lossy().into_owned();
            (path, full(NAMES[written.name]), written.args())
        });
        let wanted: BTreeSet<_> = wanted.collect();
        holds(shown == wanted, format!("shown: {shown:?}, not {wanted:?}"))
    }

    /// Whether the runtime has what is wanted, running, and nothing else.
    fn what_is_wrong(&self) -> Option<String> {
        let pods = self.node.fake.pods();
        if pods.len() != self.wanted.len() {
            return Some(format!("{} sandboxes: {}", pods.len(), reported(&pods)));
        }
        let runs = |pod: &PodView, written: &Written| {
            // One that is not given is a digest of the file.
            let given = UIDS.iter().position(|uid| *uid == pod.uid);
            pod.name == full(NAMES[written.name])
                && given == written.uid
                && pod.ready
                && pod.containers.iter().filter(|c| c.is_running()).count() == 1
                && pod
                    .containers
                    .last()
                    .is_some_and(|c| c.is_running() && c.config.args == [written.args()])
        };
        let missing =
            self.wanted.iter().find(|(_, written)| !pods.iter().any(|pod| runs(pod, written)));
        missing.map(|(_, written)| format!("{written:?} does not run: {}", reported(&pods)))
    }

    fn running(&self) -> BTreeSet<String> {
        let pods = self.node.fake.pods().into_iter();
        let containers = pods.flat_map(|pod| pod.containers);
        let running = containers.filter(|container| container.is_running());
        running.map(|container| container.id).collect()
    }

    /// What lies about on the disk, and what is shown.
    async fn what_is_left(&self) -> Result<(), String> {
        let uids: BTreeSet<_> = self.node.fake.pods().into_iter().map(|pod| pod.uid).collect();
        let directories: BTreeSet<_> = self.node.entries("root/pods").into_iter().collect();
        holds(directories == uids, format!("directories: {directories:?}, not {uids:?}"))?;
        let logs: BTreeSet<_> = self.node.entries("logs").into_iter().collect();
        let of_pods: BTreeSet<_> = self.node.fake.pods().iter().map(log_directory).collect();
        holds(logs == of_pods, format!("logs: {logs:?}, not {of_pods:?}"))?;
        let links = self.node.entries("containers").len();
        let containers: usize = self.node.fake.pods().iter().map(|p| p.containers.len()).sum();
        holds(links == containers, format!("{links} links, not {containers}"))?;
        let state_store = self.node.entries("root/journal");
        let known = |file: &String| uids.iter().any(|uid| *file == format!("{uid}.json"));
        holds(state_store.iter().all(known), format!("journal: {state_store:?}"))?;
        let shown = self.node.pods().await;
        let all_run = shown.len() == uids.len() && shown.iter().all(|pod| phase(pod) == "Running");
        holds(all_run, format!("shown: {shown:#?}"))
    }

    /// How often each version of each pod may have been started.
    fn check_starts(&self) {
        let mut starts: BTreeMap<(String, String, String), usize> = BTreeMap::new();
        for start in self.node.fake.starts() {
            let args = start.args.first().cloned().unwrap_or_default();
            let key = (start.subject.pod, start.subject.uid, args);
            *starts.entry(key).or_default() += 1;
        }
        for ((name, uid, args), number) in starts {
            let own_uid = UIDS.iter().position(|known| *known == uid);
            let same = |written: &Written| {
                full(NAMES[written.name]) == name
                    && written.args() == args
                    && written.uid == own_uid
            };
            let calls = self.calls_for.iter().filter(|((_, written), _)| same(written));
            let numbers = calls.map(|(_, number)| *number);
            // A UID that is not given is one of a file.
            let allowed: usize = match own_uid {
                Some(_) => numbers.sum(),
                None => numbers.max().unwrap_or(0),
            };
            assert!(
                number <= allowed,
                "{name} {uid} {args} was started {number} times, and wanted {allowed} times"
            );
        }
    }

    async fn end(mut self) {
        self.node.fake.clear_faults();
        wait_for("the last manifests are read", IN_THE_END, async || self.what_is_unread().await)
            .await;
        wait_for("what the last manifests say runs", IN_THE_END, async || {
            self.what_is_wrong().map_or(Ok(()), Err)
        })
        .await;
        // A container that is being stopped runs still: what runs in the end also runs later.
        loop {
            let before = self.running();
            wait_for("nothing is left", IN_THE_END, async || {
                self.what_is_wrong().map_or(Ok(()), Err)?;
                self.what_is_left().await
            })
            .await;
            tokio::time::sleep(LONGEST_STOP).await;
            if self.running() == before {
                break;
            }
        }
        assert_eq!(self.node.fake.overlaps(), [""; 0]);
        self.check_starts();
        // And all of it holds for the next kubelet.
        self.node.kill().await;
        self.node.fake.clear_calls();
        self.start().await;
        self.node.wait_healthy().await;
        wait_for("they are shown again", IN_THE_END, async || self.what_is_left().await).await;
        assert_eq!(self.node.fake.mutations(), 0, "{:?}", self.node.fake.counts());
        self.node.stop().await;
    }
}

/// The file, name and arguments of a pod of `/pods`.
fn identity(pod: &Pod) -> (String, String, String) {
    let file = pod.annotation(keys::MANIFEST).unwrap_or_default();
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let args = containers.flat_map(|c| c.args.iter().flatten());
    (file.into(), pod.name().into(), args.cloned().collect::<String>())
}

fn reported(pods: &[PodView]) -> String {
    let container = |c: &ContainerView| format!("{:?} {:?}", c.config.args, c.state);
    let pod = |pod: &PodView| {
        let containers: Vec<_> = pod.containers.iter().map(container).collect();
        let PodView { name, uid, attempt, .. } = pod;
        format!("{name} {uid} {attempt} {} {containers:?}", pod.ready)
    };
    pods.iter().map(pod).collect::<Vec<_>>().join("; ")
}

fn log_directory(pod: &PodView) -> String {
    format!("{}_{}_{}", pod.namespace, pod.name, pod.uid)
}

async fn live(ops: &[Op]) {
    let mut history = History::begin().await;
    let (log, fake) = (history.log.clone(), history.node.fake.clone());
    let lived = async {
        for op in ops {
            history.apply(op).await;
        }
        history.end().await;
    };
    if let Err(panic) = AssertUnwindSafe(lived).catch_unwind().await {
        println!("---- of {ops:#?}");
        log.print();
        for call in fake.calls().iter().filter(|call| call.rpc.is_mutating()) {
            println!("{:?} {:?} {} {:?}", call.rpc, call.subject, call.detail, call.code);
        }
        std::panic::resume_unwind(panic);
    }
}

fn live_some() -> Result<(), String> {
    real_time("the kubelet is killed on threads of its own");
    let mut config = Config {
        // A history takes seconds; what happened is shown anyway.
        max_shrink_iters: 0,
        failure_persistence: None,
        ..Config::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = CASES;
    }
    let histories = prop::collection::vec(op(), 1..16);
    let lived = TestRunner::new(config).run(&histories, |ops| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(live(&ops));
        Ok(())
    });
    lived.map_err(|error| error.to_string())
}

#[test]
fn one_pod_of_a_name_runs_at_a_time_and_in_the_end_the_last_manifests_win() {
    let lanes: Vec<_> = (0..LANES).map(|_| std::thread::spawn(live_some)).collect();
    let ends = lanes.into_iter().map(|lane| lane.join().expect("a lane"));
    let failed: Vec<_> = ends.filter_map(Result::err).collect();
    assert_eq!(failed, [""; 0]);
}
