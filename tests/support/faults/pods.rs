//! The pods of the churn. One manifest works on the fake runtime and on containerd: probes check files of the
//! host, and the name of a container says how it behaves.

use std::path::Path;

use serde_json::{Value, json};

/// What the kubelet appends to the names of static pods.
const NODE_SUFFIX: &str = "-node1";
/// The label that says which version of a manifest a sandbox was made from.
pub const VERSION_LABEL: &str = "version";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Ends at SIGTERM.
    Plain,
    /// Takes a while to end.
    Slow,
    /// Ends only at SIGKILL.
    Deaf,
    /// A readiness and a liveness probe.
    Probed,
    /// Both hooks.
    Hooked,
    /// An init container and two containers.
    Several,
    /// Ends with 0 and is never restarted.
    Job,
    /// Ends with 1, again and again.
    Crashing,
}

impl Kind {
    pub const ALL: &[Kind] = &[
        Kind::Plain,
        Kind::Slow,
        Kind::Deaf,
        Kind::Probed,
        Kind::Hooked,
        Kind::Several,
        Kind::Job,
        Kind::Crashing,
    ];

    /// The containers that run until the kubelet stops them.
    pub fn lasting(self) -> &'static [&'static str] {
        match self {
            Kind::Plain | Kind::Probed => &["main"],
            Kind::Slow => &["slow"],
            Kind::Deaf => &["deaf"],
            Kind::Hooked => &["hooked"],
            Kind::Several => &["main", "side"],
            Kind::Job | Kind::Crashing => &[],
        }
    }
}

/// Whether a container ends with 0 by itself and must not be started again in its sandbox.
pub fn runs_once(container: &str) -> bool {
    matches!(container, "init" | "job")
}

/// Whether a container ends by itself.
pub fn ends_by_itself(container: &str) -> bool {
    runs_once(container) || container == "crashing"
}

/// One version of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    pub kind: Kind,
    /// Unique in an episode, except that a manifest may come back as it was.
    pub number: u32,
}

/// A pod's name as the runtime has it.
pub fn full(name: &str) -> String {
    format!("{name}{NODE_SUFFIX}")
}

/// A pod's name as its manifest has it.
pub fn short(name: &str) -> &str {
    name.strip_suffix(NODE_SUFFIX).unwrap_or(name)
}

/// A probe of the pod fails while the file is missing.
pub fn ready_file(shared: &Path, name: &str) -> std::path::PathBuf {
    shared.join(format!("ready-{name}"))
}

/// A liveness probe of the pod fails while the file is there.
pub fn sick_file(shared: &Path, name: &str) -> std::path::PathBuf {
    shared.join(format!("sick-{name}"))
}

/// Has the script in place that the hooks run, see [`hook`].
pub fn prepare(shared: &Path) {
    // The start time of the first process distinguishes the instances of a container.
    let script = r#"sleep 0.03
set -- "$1" "$2" $(cat /proc/1/stat)
read -r uptime _ </proc/uptime
echo "$1 $2 ${24} $uptime" >>"$(dirname "$0")/hooks"
"#;
    std::fs::create_dir_all(shared).expect("the shared directory");
    std::fs::write(shared.join("hook.sh"), script).expect("the script of the hooks");
}

/// A hook, which takes 30 ms and leaves a line with its kind, pod, instance and the uptime in the file
/// `hooks`.
fn hook(shared: &Path, kind: &str, name: &str) -> Value {
    json!({"exec": {"command": ["sh", shared.join("hook.sh"), kind, name]}})
}

fn probe(command: Value) -> Value {
    json!({"exec": {"command": command}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 30})
}

fn container(shared: &Path, name: &str) -> Value {
    let script = match name {
        "slow" => "trap 'sleep 0.2; exit' TERM; sleep 1000000 & wait",
        "deaf" => "trap '' TERM; while true; do sleep 1000000; done",
        "init" => "sleep 0.02",
        "job" => "sleep 0.05",
        "crashing" => "sleep 0.15; exit 1",
        _ => "trap exit TERM; sleep 1000000 & wait",
    };
    json!({
        "name": name,
        "image": "localhost/busybox:dev",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "shared", "mountPath": shared}],
    })
}

/// The manifest of a pod; `shared` is a directory that its containers see at the same path.
pub fn manifest(name: &str, version: Version, shared: &Path) -> String {
    let kind = version.kind;
    let names = match kind {
        Kind::Job => &["job"],
        Kind::Crashing => &["crashing"],
        _ => kind.lasting(),
    };
    let mut containers: Vec<_> = names.iter().map(|name| container(shared, name)).collect();
    if kind == Kind::Probed {
        let (ready, sick) = (ready_file(shared, name), sick_file(shared, name));
        containers[0]["readinessProbe"] = probe(json!(["test", "-e", ready]));
        containers[0]["livenessProbe"] = probe(json!(["test", "!", "-e", sick]));
    }
    if kind == Kind::Hooked {
        let hooks = json!({"postStart": hook(shared, "post-start", name), "preStop": hook(shared, "pre-stop", name)});
        containers[0]["lifecycle"] = hooks;
    }
    let init: Vec<_> = match kind {
        Kind::Several => vec![container(shared, "init")],
        _ => Vec::new(),
    };
    let never = kind == Kind::Job;
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {VERSION_LABEL: version.number.to_string()},
            "annotations": {"kubelet.rs/max-container-restart-period": "1s"},
        },
        "spec": {
            "terminationGracePeriodSeconds": if kind == Kind::Deaf { 1 } else { 5 },
            "restartPolicy": if never { "Never" } else { "Always" },
            "initContainers": init,
            "containers": containers,
            "volumes": [{"name": "shared", "hostPath": {"path": shared}}],
        },
    });
    pod.to_string()
}
