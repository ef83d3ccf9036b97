//! `kubelet preflight` on the files of a node.

use std::path::Path;
use std::time::SystemTime;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::node::{Node, full, put, wait_runs};
use crate::pods::{container, pod, simple, with, with_spec};
use crate::support::fake_runtime::{Call, FakeRuntime, Options};
use crate::support::kubelet_process::KubeletProcess;

/// The report and the exit code of a preflight with these arguments.
async fn preflight(args: &[&str]) -> (Value, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubelet"));
    command.args(["preflight", "-o", "json"]).args(args);
    let output = command.output().await.unwrap();
    let report = serde_json::from_slice(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = report.unwrap_or_else(|error| panic!("{error}: {errors}"));
    (report, output.status.code().unwrap())
}

async fn preflight_of(kubelet: &KubeletProcess) -> (Value, i32) {
    preflight(&["--pid", &kubelet.pid().to_string()]).await
}

fn outcome<'a>(report: &'a Value, name: &str) -> &'a str {
    let mut pods = report["pods"].as_array().unwrap().iter();
    let found = pods.find(|pod| pod["name"] == full(name));
    found.map_or("missing", |pod| pod["outcome"].as_str().unwrap())
}

fn says(report: &Value, words: &str) -> bool {
    report["findings"].to_string().contains(words)
}

fn mutating(fake: &FakeRuntime) -> Vec<Call> {
    let mut calls = fake.calls();
    calls.retain(|call| call.rpc.is_mutating());
    calls
}

/// Every file below a directory, with its time of change and content.
fn files(directory: &Path, into: &mut Vec<(String, SystemTime, Vec<u8>)>) {
    let mut entries: Vec<_> = std::fs::read_dir(directory).unwrap().flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::path);
    for entry in entries {
        let (path, meta) = (entry.path(), entry.metadata().unwrap());
        let content = if meta.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
        into.push((path.display().to_string(), meta.modified().unwrap(), content));
        if meta.is_dir() {
            files(&path, into);
        }
    }
}

#[tokio::test]
async fn a_preflight_keeps_what_runs_and_says_what_does_not_fit_and_where() {
    let fake = FakeRuntime::start(Options::default()).await;
    let dir = tempfile::tempdir().unwrap();
    let mut kubelet = Node::process(&fake, dir.path()).await;
    put(&kubelet.manifests, &simple("web"));
    put(&kubelet.manifests, &simple("other"));
    wait_runs(&fake, "web").await;
    wait_runs(&fake, "other").await;
    let calls = mutating(&fake).len();
    let (report, code) = preflight_of(&kubelet).await;
    assert_eq!((code, &report["verdict"]), (0, &json!("safe")), "{report:#}");
    assert_eq!(outcome(&report, "web"), "kept", "{report:#}");

    // A manifest that is refused is named, and what runs is not taken for removed.
    let bad = pod("bad", &[with(container("main"), json!({"image": ""}))]);
    put(&kubelet.manifests, &bad);
    let (report, code) = preflight_of(&kubelet).await;
    assert_eq!(code, 1, "{report:#}");
    assert!(says(&report, "bad.yaml") && outcome(&report, "web") == "kept", "{report:#}");
    kubelet.manifests.remove("bad.yaml");

    // Checkpoints that were cut short: one without which the start fails, and one without which devices are not known.
    let root = dir.path().join("root");
    for (name, expected) in
        [("allocated_pods_state", 1), ("device-plugins/kubelet_internal_checkpoint", 2)]
    {
        let path = root.join(name);
        let whole = std::fs::read(&path).ok();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "{\"da").unwrap();
        let (report, code) = preflight_of(&kubelet).await;
        assert_eq!(code, expected, "{report:#}");
        assert!(says(&report, name), "{report:#}");
        match whole {
            Some(whole) => std::fs::write(&path, whole).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
    }
    // No such process, and another runtime than the one that runs.
    let (report, code) = preflight(&["--pid", "4194303"]).await;
    assert_eq!(code, 2, "{report:#}");
    assert_eq!(mutating(&fake).len(), calls, "nothing was started or stopped");

    // The other pod was changed, and the kubelet is gone: everything that is read stays as it is.
    kubelet.kill();
    put(&kubelet.manifests, &with_spec(simple("other"), json!({"hostNetwork": true})));
    let mut before = Vec::new();
    files(dir.path(), &mut before);
    let config = dir.path().join("config.yaml");
    let flags = [
        "--config",
        config.to_str().unwrap(),
        "--root-dir",
        root.to_str().unwrap(),
        "--hostname-override=node1",
    ];
    let (report, code) = preflight(&flags).await;
    assert_eq!(code, 1, "{report:#}");
    assert_eq!(outcome(&report, "other"), "restarted", "{report:#}");
    assert_eq!(outcome(&report, "web"), "kept", "{report:#}");
    let mut after = Vec::new();
    files(dir.path(), &mut after);
    assert_eq!(after, before);
    assert_eq!(mutating(&fake).len(), calls);

    // Without the runtime nothing is known of the pods.
    let text = std::fs::read_to_string(&config).unwrap();
    let away = text.replace(&fake.endpoint(), "unix:///does/not/exist.sock");
    std::fs::write(&config, away).unwrap();
    let (report, code) = preflight(&flags).await;
    assert_ne!(code, 0, "{report:#}");
    assert_eq!(report["pods"], json!([]), "{report:#}");
    assert!(says(&report, "does/not/exist.sock"), "{report:#}");
}
