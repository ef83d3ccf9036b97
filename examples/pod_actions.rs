//! Shows what the kubelet would do next for a pod, without any runtime.
//!
//! ```text
//! cargo run --example pod_actions                       # three built-in cases
//! cargo run --example pod_actions -- POD.yaml           # a pod the runtime knows nothing of
//! cargo run --example pod_actions -- POD.yaml STATE.yaml
//! ```
//!
//! The state is YAML or JSON in the form of the built-in cases below; lists are newest first.

use anyhow::Context as _;
use kubelet::{
    model::{
        ContainerState, ContainerStatus, NetworkMode, Pod, PodExt, PodStatus, ProbeResult,
        SandboxStatus, container_hash,
    },
    runtime::kuberuntime::actions::{
        ContainerStart, PodActionInputs, PodActions, RecordedFacts, compute_pod_actions,
    },
    state::probe_results::ContainerProbeResults,
};
use serde::Deserialize;
use std::{collections::HashMap, env, fs};

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: shop, namespace: default}
spec:
  restartPolicy: Always
  initContainers:
  - {name: migrate, image: shop/migrate:1}
  - name: proxy
    image: proxy:2
    restartPolicy: Always
    startupProbe: {tcpSocket: {port: 15000}}
  containers:
  - {name: web, image: shop/web:1}
  - {name: queue, image: shop/queue:1}
"#;

const CASES: [(&str, &str); 3] = [
    ("The runtime knows nothing of the pod", "{}"),
    (
        "The proxy has just started",
        r"
sandboxes:
- {id: s0, ready: true, ip: 10.0.0.7}
containers:
- {name: proxy, state: running, sandbox: s0, startup: success}
- {name: migrate, state: exited, exitCode: 0, sandbox: s0}
",
    ),
    (
        "web fails its liveness probe, queue crashed, the proxy's image was changed",
        r"
initializedIn: s1
sandboxes:
- {id: s1, attempt: 1, ready: true, ip: 10.0.0.9}
- {id: s0, attempt: 0, ready: false}
containers:
- {name: web, state: running, sandbox: s1, liveness: failure}
- {name: queue, state: exited, exitCode: 3, sandbox: s1}
- {name: proxy, state: running, sandbox: s1, startup: success, image: 'proxy:1'}
- {name: queue, state: exited, exitCode: 137, sandbox: s0}
",
    ),
];

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
#[derive(Default)]
struct State {
    initialized_in: Option<String>,
    sandboxes: Vec<Sandbox>,
    containers: Vec<Instance>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Sandbox {
    id: String,
    #[serde(default)]
    attempt: u32,
    ready: bool,
    ip: Option<String>,
    #[serde(rename = "specDigest")]
    manifest_digest: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Instance {
    name: String,
    state: StateName,
    sandbox: String,
    #[serde(default)]
    exit_code: i32,
    /// The image it was created with; the pod's when absent.
    image: Option<String>,
    liveness: Option<ProbeResultName>,
    startup: Option<ProbeResultName>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StateName {
    Created,
    Running,
    Exited,
    Unknown,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ProbeResultName {
    Success,
    Failure,
    Unknown,
}

fn main() -> anyhow::Result<()> {
    let mut arguments = env::args().skip(1);
    let Some(pod_path) = arguments.next() else {
        let pod: Pod = serde_yaml::from_str(POD)?;
        for (title, state) in CASES {
            println!("{title}:");
            show(&pod, &serde_yaml::from_str(state)?);
            println!();
        }
        return Ok(());
    };
    let pod: Pod = read(&pod_path)?;
    let state = match arguments.next() {
        Some(path) => read(&path)?,
        None => State::default(),
    };
    show(&pod, &state);
    Ok(())
}

fn read<T: serde::de::DeserializeOwned>(path: &str) -> anyhow::Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    serde_yaml::from_str(&text).with_context(|| format!("cannot understand {path}"))
}

fn show(pod: &Pod, state: &State) {
    let mut probe_results = HashMap::new();
    let containers: Vec<ContainerStatus> = state
        .containers
        .iter()
        .enumerate()
        .map(|(n, instance)| {
            let status = instance.status(pod, n);
            let probe_result = ContainerProbeResults {
                liveness: instance.liveness.map(Into::into),
                startup: instance.startup.map(Into::into),
                readiness: None,
            };
            probe_results.insert(status.id.clone(), probe_result);
            status
        })
        .collect();
    let status = PodStatus {
        sandboxes: state.sandboxes.iter().map(|s| s.status(pod)).collect(),
        containers,
        ..PodStatus::default()
    };
    let facts = RecordedFacts {
        initialized_in: state.initialized_in.as_deref().map(Into::into),
        ..RecordedFacts::default()
    };
    print_actions(&compute_pod_actions(&PodActionInputs {
        pod,
        status: &status,
        probe_results: &|id| probe_results.get(id).copied().unwrap_or_default(),
        facts: &facts,
    }));
}

impl Sandbox {
    fn status(&self, pod: &Pod) -> SandboxStatus {
        let network = if pod.host_network() { NetworkMode::Node } else { NetworkMode::Pod };
        SandboxStatus {
            id: self.id.as_str().into(),
            attempt: self.attempt,
            ready: self.ready,
            network,
            has_network_status: self.ip.is_some(),
            ips: self.ip.iter().cloned().collect(),
            manifest_digest: self.manifest_digest.as_deref().map(Into::into),
            ..SandboxStatus::default()
        }
    }
}

impl Instance {
    fn status(&self, pod: &Pod, n: usize) -> ContainerStatus {
        let hash = pod.container(&self.name).map(|container| {
            let mut created_with = container.clone();
            if self.image.is_some() {
                created_with.image.clone_from(&self.image);
            }
            container_hash(&created_with)
        });
        ContainerStatus {
            id: format!("{}#{n}", self.name).into(),
            name: self.name.as_str().into(),
            sandbox: self.sandbox.as_str().into(),
            state: self.state.into(),
            exit_code: self.exit_code,
            hash: hash.unwrap_or_default().into(),
            ..ContainerStatus::default()
        }
    }
}

impl From<StateName> for ContainerState {
    fn from(name: StateName) -> Self {
        match name {
            StateName::Created => Self::Created,
            StateName::Running => Self::Running,
            StateName::Exited => Self::Exited,
            StateName::Unknown => Self::Unknown,
        }
    }
}

impl From<ProbeResultName> for ProbeResult {
    fn from(name: ProbeResultName) -> Self {
        match name {
            ProbeResultName::Success => Self::Success,
            ProbeResultName::Failure => Self::Failure,
            ProbeResultName::Unknown => Self::Unknown,
        }
    }
}

fn print_actions(actions: &PodActions) {
    if actions.is_empty() {
        println!("  nothing to do");
    }
    if let Some(reason) = &actions.kill_pod {
        println!("  stop the pod: {reason}");
    }
    for kill in &actions.containers_to_kill {
        println!("  stop {}: {kill}", kill.id);
    }
    if actions.create_sandbox {
        println!("  create a sandbox, attempt {}", actions.attempt);
    }
    let print = |what: &str, starts: &[ContainerStart]| {
        for start in starts {
            println!("  start {what} {}: {}", start.name, start.reason);
        }
    };
    print("ephemeral container", &actions.ephemeral_containers_to_start);
    print("init container", &actions.init_containers_to_start);
    print("container", &actions.containers_to_start);
}
