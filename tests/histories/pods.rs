//! The pods of a history.

use serde_json::{Value, json};

use crate::machine::NODE;

/// What a pod is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// With an init container and two others, one of which takes time to end.
    Several,
    /// With a sidecar.
    Sidecar,
    /// Ends with 0 and never restarts.
    Job,
    /// Ends with 1 again and again.
    Crashing,
    /// With a readiness and a liveness probe.
    Probed,
    /// With both hooks.
    Hooked,
    /// Ignores SIGTERM.
    Deaf,
}

impl Kind {
    pub const ALL: [Kind; 8] = [
        Kind::Plain,
        Kind::Several,
        Kind::Sidecar,
        Kind::Job,
        Kind::Crashing,
        Kind::Probed,
        Kind::Hooked,
        Kind::Deaf,
    ];

    /// The containers that run for ever, sidecars included.
    pub fn lasting(self) -> &'static [&'static str] {
        match self {
            Kind::Job | Kind::Crashing => &[],
            Kind::Several => &["main", "slow"],
            Kind::Sidecar => &["main", "side"],
            Kind::Deaf => &["deaf"],
            Kind::Plain | Kind::Probed | Kind::Hooked => &["main"],
        }
    }

    /// The containers that end with 0 and must not run again.
    pub fn once(self) -> &'static [&'static str] {
        match self {
            Kind::Several => &["init"],
            Kind::Job => &["job"],
            _ => &[],
        }
    }
}

fn exec(command: &str) -> Value {
    json!({"exec": {"command": [command]}})
}

fn probe(command: &str, period: u32) -> Value {
    json!({
        "exec": {"command": [command]},
        "periodSeconds": period,
        "failureThreshold": 2,
        "timeoutSeconds": 5,
    })
}

fn container(name: &str, version: u32) -> Value {
    let command = match name {
        "init" => ["fake-exit", "0.02", "0"],
        "job" => ["fake-exit", "0.5", "0"],
        "crashing" => ["fake-exit", "0.2", "1"],
        _ => ["run", "until", "stopped"],
    };
    json!({
        "name": name,
        "image": "localhost/busybox:dev",
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "args": [version.to_string()],
    })
}

/// A pod as its user writes it.
pub fn manifest(name: &str, kind: Kind, version: u32) -> Value {
    let names = match kind {
        Kind::Job => &["job"],
        Kind::Crashing => &["crashing"],
        Kind::Sidecar => &["main"],
        _ => kind.lasting(),
    };
    let mut containers: Vec<_> = names.iter().map(|name| container(name, version)).collect();
    let main = &mut containers[0];
    match kind {
        Kind::Probed => {
            main["readinessProbe"] = probe("is-ready", 5);
            main["livenessProbe"] = probe("is-alive", 10);
        }
        Kind::Hooked => {
            main["lifecycle"] =
                json!({"postStart": exec("post-start"), "preStop": exec("pre-stop")});
        }
        _ => {}
    }
    let mut init = Vec::new();
    if kind == Kind::Several {
        init.push(container("init", version));
    }
    if kind == Kind::Sidecar {
        let mut side = container("side", version);
        side["restartPolicy"] = json!("Always");
        init.push(side);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"version": version.to_string()}},
        "spec": {
            "terminationGracePeriodSeconds": if kind == Kind::Deaf { 2 } else { 10 },
            "restartPolicy": if kind == Kind::Job { "Never" } else { "Always" },
            "initContainers": init,
            "containers": containers,
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    })
}

/// A pod as the API server has it after it was bound to the node.
pub fn bound(name: &str, kind: Kind) -> Value {
    let mut pod = manifest(name, kind, 0);
    pod["metadata"]["uid"] = json!(format!("uid-of-{name}"));
    pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    pod["spec"]["nodeName"] = json!(NODE);
    pod
}

/// The place of a pod in the API server.
pub fn path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}
