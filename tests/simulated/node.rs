//! A node of its own for a test: the whole app in this process, on a fake runtime.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use kubelet::app::{App, Periods};
use kubelet::config::{self, HostFacts, Invocation};
use kubelet::host::{System, SystemBus};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::fake_runtime::{Call, ContainerView, FakeRuntime, Options, Rpc};
use crate::support::http;
use crate::support::kubelet_process::{KubeletProcess, Settings, free_ports};
use crate::support::log::Log;
use crate::support::manifests::Manifests;
use crate::support::wait::{holds, wait_for};
use crate::threaded_kubelet::ThreadedKubelet;

/// Far longer than anything takes that does not wait for a long timer of its own, also where the machine has
/// much else to do; sooner than a relist would find what was missed.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(45);

/// How often ports are chosen again that another process took meanwhile.
const PORT_TRIES: usize = 5;

/// The node's name; static pods carry it as a suffix.
const NODE: &str = "node1";

enum Running {
    Here { stop: oneshot::Sender<()>, task: JoinHandle<anyhow::Result<()>> },
    Threaded(ThreadedKubelet),
}

thread_local! {
    /// The directories of this test's nodes, which are removed when its thread ends. Until then its runtime may
    /// still write to them, and what is created in a directory while it is being removed stays.
    static DIRS: RefCell<Vec<NodeDir>> = const { RefCell::new(Vec::new()) };
}

/// The directory of a node. What a test that failed has left mounted there goes with it.
struct NodeDir(tempfile::TempDir);

impl Drop for NodeDir {
    fn drop(&mut self) {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        let below: Vec<_> =
            points.map(Path::new).filter(|point| point.starts_with(self.0.path())).collect();
        for point in below.into_iter().rev() {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// A node; everything of it ends with the test.
pub(crate) struct Node {
    pub(crate) fake: FakeRuntime,
    pub(crate) manifests: Manifests,
    config: String,
    args: Vec<String>,
    periods: Periods,
    ports: [u16; 2],
    running: Option<Running>,
    dir: PathBuf,
    system_bus: Option<String>,
    _log: tracing::subscriber::DefaultGuard,
}

impl Node {
    /// A node with a current runtime; the kubelet does not run yet.
    pub(crate) async fn new() -> Node {
        Self::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Node {
        crate::virtual_time::begin();
        let dir = tempfile::Builder::new().prefix("node").tempdir().expect("a temporary directory");
        let path = dir.path().to_owned();
        DIRS.with_borrow_mut(|dirs| dirs.push(NodeDir(dir)));
        let manifests = Manifests::new(&path.join("manifests"), &path.join("aside"));
        Node {
            fake: FakeRuntime::start(options).await,
            manifests,
            config: String::new(),
            args: Vec::new(),
            periods: Periods::default(),
            ports: [0; 2],
            running: None,
            dir: path,
            system_bus: None,
            _log: crate::support::log::print_on_this_thread(),
        }
    }

    /// A node whose kubelet runs.
    pub(crate) async fn started() -> Node {
        let mut node = Self::new().await;
        node.start().await;
        node
    }

    /// Adds a line to the configuration file.
    pub(crate) fn configure(&mut self, line: &str) {
        self.config.push_str(line);
        self.config.push('\n');
    }

    /// Adds an argument to the command line.
    pub(crate) fn argue(&mut self, arg: &str) {
        self.args.push(arg.to_owned());
    }

    /// Where systemd and logind are, from the next start on.
    pub(crate) fn system_bus_at(&mut self, address: &str) {
        self.system_bus = Some(address.to_owned());
    }

    /// How often the kubelet looks by itself, from its next start on.
    pub(crate) fn periods(&mut self) -> &mut Periods {
        &mut self.periods
    }

    /// Takes all added lines out of the configuration file again.
    pub(crate) fn configure_anew(&mut self) {
        self.config.clear();
    }

    /// Starts the kubelet; returns once its sockets are open.
    pub(crate) async fn start(&mut self) {
        assert!(self.running.is_none(), "the kubelet runs already");
        let mut tries = 0;
        let mut app = loop {
            if self.ports == [0; 2] {
                self.ports = free_ports();
            }
            match App::build(self.load()).await {
                Ok(app) => break app,
                Err(error) if tries == PORT_TRIES => {
                    panic!("the kubelet does not start: {error:#}")
                }
                Err(error) => println!("trying again: {error:#}"),
            }
            self.ports = [0; 2];
            tries += 1;
        };
        let (stop, stopped) = oneshot::channel();
        let stop_requested = async move {
            let _ = stopped.await;
            "the test"
        };
        let mut system = System { cgroups: Some(self.path("cgroup")), ..System::default() };
        for (path, place) in [("proc", &mut system.proc), ("sys", &mut system.sys)] {
            if self.path(path).exists() {
                *place = self.path(path);
            }
        }
        if let Some(address) = self.system_bus.clone() {
            system.bus = Arc::new(SystemBus::at(address));
        }
        app.periods = self.periods.clone();
        app.system = system;
        let task = tokio::spawn(app.run_until(stop_requested));
        self.running = Some(Running::Here { stop, task });
    }

    /// Starts the kubelet on threads of its own, where it can be killed; returns once its sockets are
    /// open.
    pub(crate) async fn start_on_threads(&mut self, log: &Log) {
        assert!(self.running.is_none(), "the kubelet runs already");
        let mut tries = 0;
        loop {
            if self.ports == [0; 2] {
                self.ports = free_ports();
            }
            let started =
                ThreadedKubelet::start(self.load(), self.periods.clone(), log.clone()).await;
            match started {
                Ok(kubelet) => {
                    self.running = Some(Running::Threaded(kubelet));
                    return;
                }
                Err(error) if tries == PORT_TRIES => {
                    panic!("the kubelet does not start: {error:#}")
                }
                Err(error) => println!("trying again: {error:#}"),
            }
            self.ports = [0; 2];
            tries += 1;
        }
    }

    /// Stops the kubelet as SIGTERM does.
    pub(crate) async fn stop(&mut self) {
        match self.running.take().expect("a running kubelet") {
            Running::Here { stop, task } => {
                let _ = stop.send(());
                task.await.expect("no panic").expect("the kubelet ends well");
            }
            Running::Threaded(kubelet) => kubelet.stop().await,
        }
    }

    /// Starts the kubelet, which ends by itself, and returns the error.
    pub(crate) async fn start_error(&mut self) -> String {
        self.start().await;
        let Some(Running::Here { stop, task }) = self.running.take() else {
            panic!("the kubelet does not run here");
        };
        let ended = task.await.expect("no panic");
        drop(stop);
        format!("{:#}", ended.expect_err("the kubelet ends well"))
    }

    /// Ends a kubelet that was started on threads of its own, as kill -9 does.
    pub(crate) async fn kill(&mut self) {
        match self.running.take() {
            Some(Running::Threaded(kubelet)) => kubelet.kill().await,
            _ => panic!("no kubelet runs on threads of its own"),
        }
    }

    fn load(&self) -> kubelet::config::KubeletConfig {
        let path = self.path("config.yaml");
        std::fs::create_dir_all(self.path("root")).expect("the root directory");
        std::fs::write(&path, self.config_file()).expect("write the configuration");
        let args = [
            "--config".into(),
            path.into_os_string(),
            "--root-dir".into(),
            self.path("root").into_os_string(),
            "--hostname-override".into(),
            NODE.into(),
        ];
        let args = args.into_iter().chain(self.args.iter().map(Into::into));
        let Ok(Invocation::Run(flags)) = config::parse_args(args) else {
            panic!("the command line is not accepted");
        };
        let facts = HostFacts { hostname: NODE.to_owned() };
        config::load(&flags, &facts).expect("a configuration")
    }

    /// The configuration file.
    pub(crate) fn config_file(&self) -> String {
        let [read_only, healthz] = self.ports;
        let dir = self.dir.display();
        let endpoint = self.fake.endpoint();
        let own = &self.config;
        // The machine's disk may be nearly full.
        let image_gc = if own.contains("imageGCHighThresholdPercent") {
            ""
        } else {
            "imageGCHighThresholdPercent: 100\n"
        };
        let eviction = if own.contains("evictionHard") {
            ""
        } else {
            "evictionHard: {memory.available: \"0%\", nodefs.available: \"0%\", nodefs.inodesFree: \"0%\", imagefs.available: \"0%\", imagefs.inodesFree: \"0%\"}\n"
        };
        let cgroups = if own.contains("cgroupRoot:") {
            ""
        } else {
            "cgroupsPerQOS: false\nenforceNodeAllocatable: []\n"
        };
        let max_pods = if own.contains("maxPods") { "" } else { "maxPods: 10000\n" };
        let server = if own.contains("enableServer") { "" } else { "enableServer: false\n" };
        format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\n\
             kind: KubeletConfiguration\n\
             staticPodPath: {dir}/manifests\n\
             podLogsDir: {dir}/logs\n\
             containerRuntimeEndpoint: {endpoint}\n\
             address: 127.0.0.1\n\
             readOnlyPort: {read_only}\n\
             healthzBindAddress: 127.0.0.1\n\
             healthzPort: {healthz}\n\
             failSwapOn: false\n\
             failCgroupV1: false\n\
             {image_gc}{eviction}{cgroups}{max_pods}{server}{own}"
        )
    }

    /// The same node with its kubelet as a process, for tests that kill it. In-process and process
    /// are never used by one test.
    pub(crate) async fn process(fake: &FakeRuntime, dir: &Path) -> KubeletProcess {
        KubeletProcess::start(Settings::new(dir, &fake.endpoint())).await
    }

    // -- files --------------------------------------------------------------------------------

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.join(below)
    }

    /// Puts a manifest under the pod's name.
    pub(crate) fn put(&self, pod: &Value) {
        put(&self.manifests, pod);
    }

    /// Takes a pod's manifest away.
    pub(crate) fn remove(&self, name: &str) {
        self.manifests.remove(&format!("{name}.yaml"));
    }

    /// Entries of a directory below the node's; none when it is not there.
    pub(crate) fn entries(&self, below: &str) -> Vec<String> {
        entries(&self.path(below))
    }

    // -- what the kubelet says ------------------------------------------------------------------

    pub(crate) async fn healthz(&self) -> anyhow::Result<(u16, String)> {
        http::get(self.ports[1], "/healthz").await
    }

    pub(crate) async fn wait_healthy(&self) {
        wait_for("the kubelet is healthy", WAIT_LIMIT, async || match self.healthz().await {
            Ok((200, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }

    pub(crate) async fn pods(&self) -> Vec<Pod> {
        http::pods(self.ports[0]).await.expect("/pods answers")
    }

    /// The events that the kubelet shows, as text.
    pub(crate) async fn events(&self) -> String {
        http::get(self.ports[0], "/events").await.expect("/events answers").1
    }

    pub(crate) fn read_only_port(&self) -> u16 {
        self.ports[0]
    }

    /// What the read-only port answers.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        http::get(self.ports[0], path).await.expect("it answers")
    }

    /// Sends a request to the read-only port as part of a trace.
    pub(crate) async fn get_as_part(&self, path: &str, traceparent: &str) {
        http::get_with(self.ports[0], path, ("traceparent", traceparent))
            .await
            .expect("it answers");
    }

    /// One pod of namespace `default`, named as in its manifest.
    pub(crate) async fn pod(&self, name: &str) -> Option<Pod> {
        let name = full(name);
        let of_name = |pod: &Pod| pod.metadata.name.as_deref() == Some(&*name);
        self.pods().await.into_iter().find(of_name)
    }

    /// Waits until a pod is shown of which `fact` holds.
    pub(crate) async fn wait_pod(
        &self,
        name: &str,
        what: &str,
        deadline: Duration,
        fact: impl Fn(&Pod) -> bool,
    ) -> Pod {
        wait_for(&format!("{name}: {what}"), deadline, async || match self.pod(name).await {
            Some(pod) if fact(&pod) => Ok(pod),
            Some(pod) => Err(serde_json::to_string_pretty(&pod.status).expect("a status")),
            None => Err("it is not shown".to_owned()),
        })
        .await
    }

    pub(crate) async fn wait_phase(&self, name: &str, phase: &str) -> Pod {
        let fact = |pod: &Pod| self::phase(pod) == phase;
        self.wait_pod(name, phase, WAIT_LIMIT, fact).await
    }

    /// Waits until a pod is not shown any more.
    pub(crate) async fn wait_gone(&self, name: &str) {
        wait_for(&format!("{name} is not shown any more"), WAIT_LIMIT, async || {
            holds(self.pod(name).await.is_none(), "it is shown")
        })
        .await;
    }

    /// Waits until so many pods are shown.
    pub(crate) async fn wait_shown(&self, number: usize) {
        wait_for("so many pods are shown", WAIT_LIMIT, async || {
            let shown = self.pods().await.len();
            holds(shown == number, format!("{shown} instead of {number}"))
        })
        .await;
    }

    // -- what the runtime says ------------------------------------------------------------------

    /// Waits until `main` of a pod runs, and returns it.
    pub(crate) async fn wait_runs(&self, name: &str) -> ContainerView {
        wait_runs(&self.fake, name).await
    }

    /// Waits until nothing of a pod is left in the runtime.
    pub(crate) async fn wait_removed(&self, name: &str) {
        let name = full(name);
        let what = format!("nothing is left of {name}");
        self.fake.wait_until(&what, WAIT_LIMIT, |fake| fake.pod(&name).is_none()).await;
    }

    /// The kept calls of one kind about a pod.
    pub(crate) fn calls(&self, name: &str, rpc: Rpc) -> Vec<Call> {
        calls(&self.fake, name, rpc)
    }

    /// True when `fact` stays false for that long.
    pub(crate) async fn never(
        &self,
        within: Duration,
        fact: impl FnMut(&FakeRuntime) -> bool,
    ) -> bool {
        !self.fake.comes_true(within, fact).await
    }
}

/// A pod's name on this node.
pub(crate) fn full(name: &str) -> String {
    format!("{name}-{NODE}")
}

pub(crate) fn put(manifests: &Manifests, pod: &Value) {
    let name = pod["metadata"]["name"].as_str().expect("a name");
    manifests.put(&format!("{name}.yaml"), &pod.to_string());
}

pub(crate) fn entries(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into()).collect()
}

pub(crate) async fn wait_runs(fake: &FakeRuntime, name: &str) -> ContainerView {
    let word = format!("{}/main", full(name));
    let runs = |fake: &FakeRuntime| fake.container(&word).is_some_and(|c| c.is_running());
    fake.wait_until(&format!("{word} runs"), WAIT_LIMIT, runs).await;
    fake.container(&word).expect("a container")
}

pub(crate) fn calls(fake: &FakeRuntime, name: &str, rpc: Rpc) -> Vec<Call> {
    let name = full(name);
    let mut calls = fake.calls_of(rpc);
    calls.retain(|call| call.subject.pod == name);
    calls
}

/// Watches whether two pods of one name ever ran at once.
pub(crate) struct OverlapWatch(JoinHandle<bool>);

impl OverlapWatch {
    pub(crate) fn watch(fake: &FakeRuntime, name: &str) -> OverlapWatch {
        let (fake, name) = (fake.clone(), full(name));
        OverlapWatch(tokio::spawn(async move {
            let two = |fake: &FakeRuntime| {
                let live = |pod: &&crate::support::fake_runtime::PodView| {
                    pod.name == name
                        && (pod.ready || pod.containers.iter().any(ContainerView::is_running))
                };
                fake.pods().iter().filter(live).count() > 1
            };
            fake.comes_true(Duration::from_secs(600), two).await
        }))
    }

    pub(crate) fn assert_never(self) {
        assert!(!self.0.is_finished(), "two pods of one name ran at once");
        self.0.abort();
    }
}

// -- reading statuses ---------------------------------------------------------------------------

pub(crate) fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status.and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The status of a container, an init container included.
pub(crate) fn status_of<'p>(pod: &'p Pod, name: &str) -> Option<&'p ContainerStatus> {
    let status = pod.status.as_ref()?;
    let regular = status.container_statuses.iter().flatten();
    let init = status.init_container_statuses.iter().flatten();
    regular.chain(init).find(|status| status.name == name)
}

fn state<'p>(pod: &'p Pod, name: &str) -> Option<&'p ContainerState> {
    status_of(pod, name)?.state.as_ref()
}

/// Why a container waits; empty when it does not.
pub(crate) fn waits_for<'p>(pod: &'p Pod, name: &str) -> &'p str {
    state(pod, name)
        .and_then(|state| state.waiting.as_ref())
        .and_then(|waiting| waiting.reason.as_deref())
        .unwrap_or_default()
}

/// Whether a container is shown to wait in a back-off of that length, as `10s`.
pub(crate) fn backs_off_for(pod: &Pod, name: &str, delay: &str) -> bool {
    let waiting = state(pod, name).and_then(|state| state.waiting.as_ref());
    let message = waiting.and_then(|waiting| waiting.message.as_deref());
    let begin = format!("back-off {delay} restarting failed container={name} ");
    waits_for(pod, name) == "CrashLoopBackOff" && message.is_some_and(|m| m.starts_with(&begin))
}

pub(crate) fn runs(pod: &Pod, name: &str) -> bool {
    state(pod, name).is_some_and(|state| state.running.is_some())
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|all| all.iter().any(|known| known.type_ == "Ready" && known.status == "True"))
}
