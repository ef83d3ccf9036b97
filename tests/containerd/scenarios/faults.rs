//! Pods that churn while the kubelet is killed and containerd is away. See `tests/support/faults` for what is
//! counted and how, and `make faults` for many of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kubelet::cri::v1;
use rustix::process::{Pid, Signal, kill_process};

use crate::flavour::Flavour;
use crate::node::Node;
use crate::runtime::Runtime;
use crate::support::cri_client::{self, Client};
use crate::support::faults::oracle::{Container, Sandbox, Snapshot, State};
use crate::support::faults::pods::VERSION_LABEL;
use crate::support::faults::{Episode, Fault, Goal, HookRun, Plan, Settings, Side, Sum, summarize};
use crate::support::runner::Flavour as _;
use crate::support::scripts::target;

/// Kills in a plain run of the tests.
const KILLS: usize = 5;
/// Faults of one episode.
const EACH: usize = 25;
/// Between two snapshots.
const INTERVAL: Duration = Duration::from_millis(100);

struct Real<'r> {
    client: Client,
    runtime: &'r Runtime,
    shared: PathBuf,
}

async fn snapshot(client: &mut Client) -> Result<Snapshot, tonic::Status> {
    // Containers first: their sandboxes are there longer than they are.
    let containers = client.list_containers(v1::ListContainersRequest::default());
    let containers = containers.await?.into_inner().containers;
    let sandboxes = client.list_pod_sandbox(v1::ListPodSandboxRequest::default());
    let sandboxes = sandboxes.await?.into_inner().items;
    let containers = containers.into_iter().map(|container| Container {
        state: match container.state() {
            v1::ContainerState::ContainerRunning => State::Running,
            v1::ContainerState::ContainerExited => State::Exited,
            _ => State::Created,
        },
        id: container.id,
        sandbox: container.pod_sandbox_id,
        name: container.metadata.unwrap_or_default().name,
    });
    let sandboxes = sandboxes.into_iter().map(|sandbox| Sandbox {
        ready: sandbox.state() == v1::PodSandboxState::SandboxReady,
        id: sandbox.id,
        pod: sandbox.metadata.unwrap_or_default().name,
        version: sandbox.labels.get(VERSION_LABEL).and_then(|text| text.parse().ok()).unwrap_or(0),
    });
    Ok(Snapshot { containers: containers.collect(), sandboxes: sandboxes.collect() })
}

impl Real<'_> {
    /// Whether a container ended without ever having run; `known` is what was read before.
    async fn was_cut_short(&self, id: &str, known: &mut BTreeMap<String, bool>) -> bool {
        if let Some(known) = known.get(id) {
            return *known;
        }
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let cut_short = match self.client.clone().container_status(request).await {
            // CRI-O reports the time of creation twice for a container that it failed to start.
            Ok(answer) => answer.into_inner().status.is_some_and(|status| {
                status.started_at <= 0 || status.started_at == status.finished_at
            }),
            // CRI-O lists a container as exited while it removes what a creation left that was cut short.
            Err(error) if error.code() == tonic::Code::NotFound => true,
            Err(_) => return false,
        };
        known.insert(id.to_owned(), cut_short);
        cut_short
    }

    async fn main_process(&self, container: &str) -> Option<Pid> {
        let request =
            v1::ContainerStatusRequest { container_id: container.to_owned(), verbose: true };
        let answer = self.client.clone().container_status(request).await.ok()?;
        let info = answer.into_inner().info.remove("info")?;
        let info: serde_json::Value = serde_json::from_str(&info).ok()?;
        let pid = i32::try_from(info["pid"].as_i64()?).ok()?;
        Pid::from_raw(pid).filter(|_| pid > 1)
    }
}

impl Side for Real<'_> {
    async fn watch(&self, observe: &dyn Fn(Snapshot)) {
        let mut client = self.client.clone();
        let mut cut_short = BTreeMap::new();
        loop {
            // While the runtime is away there is nothing to be seen.
            if let Ok(mut snapshot) = snapshot(&mut client).await {
                for container in &mut snapshot.containers {
                    if container.state == State::Exited
                        && self.was_cut_short(&container.id, &mut cut_short).await
                    {
                        container.state = State::CutShort;
                    }
                }
                observe(snapshot);
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    async fn crash(&self, container: &str) {
        if let Some(pid) = self.main_process(container).await {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    async fn begin(&self, fault: Fault, _: &mut fastrand::Rng) {
        if fault == Fault::RuntimeAway {
            self.runtime.halt();
        }
    }

    async fn end(&self, fault: Fault) {
        if fault == Fault::RuntimeAway {
            self.runtime.resume();
        }
    }

    fn hooks(&self) -> Vec<HookRun> {
        let text = std::fs::read_to_string(self.shared.join("hooks")).unwrap_or_default();
        let runs = text.lines().filter_map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let [kind, pod, started, uptime] = words[..] else {
                return None;
            };
            Some(HookRun {
                kind: kind.to_owned(),
                instance: format!("{pod} {started}"),
                ended: instant_of(uptime),
            })
        });
        runs.collect()
    }

    fn hooks_name_containers(&self) -> bool {
        false
    }

    fn is_instance(&self, instance: &str, pod: &str, _: &str) -> bool {
        instance.split(' ').next() == Some(pod)
    }

    fn stop_began(&self, _: &str) -> Option<Instant> {
        None
    }

    fn history(&self) -> String {
        let hooks = std::fs::read_to_string(self.shared.join("hooks")).unwrap_or_default();
        let list = |args: &[&str]| self.runtime.try_crictl(args).unwrap_or_else(|error| error);
        format!("{hooks}\n{}\n{}", list(&["pods"]), list(&["ps", "-a"]))
    }
}

/// The moment of a first field of `/proc/uptime`.
fn instant_of(uptime: &str) -> Option<Instant> {
    let now = std::fs::read_to_string("/proc/uptime").ok()?;
    let now: f64 = now.split(' ').next()?.parse().ok()?;
    let ago = now - uptime.parse::<f64>().ok()?;
    Instant::now().checked_sub(Duration::try_from_secs_f64(ago.max(0.0)).ok()?)
}

async fn live(plan: Plan, stories: &Path) -> Sum {
    let mut node = Node::start().await;
    let shared = node.shared();
    let side = Real {
        client: cri_client::connect(node.runtime.endpoint()).await,
        runtime: &node.runtime,
        shared: shared.clone(),
    };
    let episode = Episode::new(plan, side, &mut node.kubelet, &shared);
    episode.run(stories).await
}

fn pace(plan: Plan) -> Plan {
    Plan {
        names: 5,
        gap: 200..900,
        life: match plan.fault {
            Fault::Kill => 0..4000,
            _ => 2000..6000,
        },
        lasts: match plan.fault {
            Fault::Kill => 0..200,
            _ => 200..2000,
        },
        ..plan
    }
}

pub async fn nothing_real_is_harmed_by_faults_under_churn() {
    let mut settings = Settings::read(
        ("FAULTS_CONTAINERD_KILLS", KILLS),
        ("FAULTS_CONTAINERD_OTHERS", &[Fault::RuntimeAway]),
        EACH,
    );
    settings.lanes = 1;
    // Its hooks cannot say in which container they ran.
    settings.uncounted = &[Goal::PreStopLost, Goal::PostStartLost];
    println!("FAULTS_SEED={}", settings.seed);
    let stories = target().join("faults").join(Flavour::current().name());
    let mut sums = BTreeMap::<_, Sum>::new();
    for plan in settings.plans(pace) {
        let fault = plan.fault;
        let sum = live(plan, &stories).await;
        sums.entry(fault).or_default().add(sum);
    }
    let missed = summarize(Flavour::current().name(), &settings, &sums);
    assert_eq!(missed, [""; 0], "FAULTS_SEED={}", settings.seed);
}
