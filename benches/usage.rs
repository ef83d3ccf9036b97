//! What a scrape of `/metrics/cadvisor`, `/metrics/resource` and `/stats/summary` costs with hundreds of pods,
//! in CPU time of this process, kernel and user together. The cgroups are real, with a process in each; nothing
//! else of the node is. `cargo bench --bench usage`, as root; `USAGE_PODS` (500).
//!
//! Twice: with processes that do nothing, and with processes that wake up between any two scrapes.
// What it observes happens in real time, so it reads the real clock.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::indexing_slicing
)]

use kubelet::base::metrics::Metrics;
use kubelet::cri::{CriConnection, CriMetrics, ImageClient, RuntimeClient, RuntimeEndpoint};
use kubelet::host::HostMachine;
use kubelet::model::{ContainerState, ContainerStatus, SandboxStatus};
use kubelet::node::stats::{Stats, StatsDeps, SystemCgroups};
use kubelet::state::pod_cache::{self, InspectedItem, ItemId, PodCacheWriter, PodRef};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Scrapes that are averaged.
const SCRAPES: u32 = 10;
/// Longer than an answer is shared.
const APART: Duration = Duration::from_millis(1500);

fn main() {
    let mode = std::env::args().nth(1).unwrap_or_default();
    if mode == "rest" || mode == "tick" {
        loop {
            std::thread::sleep(match mode.as_str() {
                "tick" => Duration::from_millis(400),
                _ => Duration::from_secs(3600),
            });
        }
    }
    open_files();
    let pods = std::env::var("USAGE_PODS").ok();
    let pods: usize = pods.map_or(500, |pods| pods.parse().unwrap());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for mode in ["rest", "tick"] {
        runtime.block_on(measure(pods, mode));
    }
}

async fn measure(pods: usize, mode: &str) {
    let node = Node::new(pods, mode);
    let (writer, cache) = pod_cache::pod_cache();
    for pod in 0..pods {
        node.runtime_status(&writer, pod);
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = format!("unix://{}", directory.path().join("none.sock").display());
    let metrics = CriMetrics::register(&Metrics::new());
    let connection = CriConnection::new(
        RuntimeEndpoint::parse(&socket).unwrap(),
        Duration::from_secs(1),
        &metrics,
    );
    let parts = StatsDeps {
        runtime: RuntimeClient::new(connection.clone()),
        images: ImageClient::new(connection),
        cache,
        volumes: Arc::new(|_| Vec::new()),
        measure_volumes: Arc::new(|| Box::pin(async {})),
        hosts_file: Arc::new(|_| None),
        termination_logs: Arc::new(|_, _| None),
        node_name: "n1".into(),
        root_dir: directory.path().to_owned(),
        pod_logs_dir: directory.path().join("logs"),
        volume_period: None,
        started_at: 1,
        system: SystemCgroups::default(),
    };
    let stats = Stats::new(parts, &HostMachine::read().unwrap());
    println!("{pods} pods, {} cgroups, processes that {mode}:", 2 * pods);
    for name in ["cadvisor", "resource", "summary"] {
        let mut sum = Duration::ZERO;
        let mut bytes = 0;
        for scrape in 0..SCRAPES + 2 {
            tokio::time::sleep(APART).await;
            let before = own_cpu();
            bytes = match name {
                "cadvisor" => stats.cadvisor().await.unwrap().map(|piece| piece.len()).sum(),
                "resource" => stats.resource().await.len(),
                _ => serde_json::to_vec(&stats.summary(false).await.unwrap()).unwrap().len(),
            };
            // The first read of everything is not what it costs from then on.
            if scrape >= 2 {
                sum += own_cpu() - before;
            } else if scrape == 0 {
                println!("  {name}: first {:?}", own_cpu() - before);
            }
        }
        println!("  {name}: {:?} of CPU a scrape, {bytes} bytes", sum / SCRAPES);
    }
}

/// As many as the kubelet lets itself have.
fn open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum.map_or(Some(1_000_000), |hard| Some(hard.min(1_000_000)));
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Time on a CPU of all threads that there are.
fn own_cpu() -> Duration {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let of_thread = |path: PathBuf| {
        let text = fs::read_to_string(path.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    let nanos = threads.filter_map(|thread| of_thread(thread.ok()?.path()));
    Duration::from_nanos(nanos.sum())
}

/// Cgroups with a process each; they end with this.
struct Node {
    directories: Vec<PathBuf>,
    children: Vec<Child>,
}

const CONTROLLERS: [&str; 6] = ["memory", "cpu", "cpuacct", "pids", "blkio", "cpuset"];

impl Node {
    fn new(pods: usize, mode: &str) -> Self {
        let v2 = fs::exists("/sys/fs/cgroup/cgroup.controllers").unwrap();
        let roots: Vec<PathBuf> = if v2 {
            vec!["/sys/fs/cgroup".into()]
        } else {
            CONTROLLERS.map(|name| format!("/sys/fs/cgroup/{name}").into()).to_vec()
        };
        let mut node = Self { directories: Vec::new(), children: Vec::new() };
        let own = std::env::current_exe().unwrap();
        for pod in 0..pods {
            for (id, mode) in [(sandbox(pod), "rest"), (container(pod), mode)] {
                let child = Command::new(&own).arg(mode).stdin(Stdio::null()).spawn().unwrap();
                for root in &roots {
                    let directory = root.join("usage-bench").join(&id);
                    if fs::create_dir_all(&directory).is_err() {
                        continue;
                    }
                    let pid = child.id().to_string();
                    // A CPU set has to be filled before anybody may enter; it is not measured anyway.
                    let entered = fs::write(directory.join("cgroup.procs"), pid);
                    assert!(entered.is_ok() || root.ends_with("cpuset"), "{entered:?}");
                    node.directories.push(directory);
                }
                node.children.push(child);
            }
        }
        node
    }

    fn runtime_status(&self, writer: &PodCacheWriter, pod: usize) {
        let pod_ref = PodRef {
            uid: format!("00000000-0000-0000-0000-{pod:012}").as_str().into(),
            name: format!("deployment-with-a-name-{pod}").into(),
            namespace: "a-namespace".into(),
        };
        let of_sandbox = SandboxStatus {
            id: sandbox(pod).into(),
            ready: true,
            created_at: 1,
            ..SandboxStatus::default()
        };
        let of_container = ContainerStatus {
            id: container(pod).into(),
            name: "main".into(),
            image: "registry.example.org/team/application:v1.2.3".into(),
            sandbox: sandbox(pod).into(),
            state: ContainerState::Running,
            created_at: 1,
            started_at: 1,
            ..ContainerStatus::default()
        };
        let item = ItemId::Sandbox(of_sandbox.id.clone());
        writer.apply(&pod_ref, &item, writer.next_seq(), InspectedItem::Sandbox(of_sandbox));
        let item = ItemId::Container(of_container.id.clone());
        writer.apply(&pod_ref, &item, writer.next_seq(), InspectedItem::Container(of_container));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.directories.iter().rev().for_each(|directory| {
            let _ = fs::remove_dir(directory);
        });
        for name in CONTROLLERS {
            let _ = fs::remove_dir(format!("/sys/fs/cgroup/{name}/usage-bench"));
        }
        let _ = fs::remove_dir("/sys/fs/cgroup/usage-bench");
    }
}

fn sandbox(pod: usize) -> String {
    format!("5{pod:063x}")
}

fn container(pod: usize) -> String {
    format!("c{pod:063x}")
}
