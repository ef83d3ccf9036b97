//! Many pods that come and go, and what is left of them: nothing.
//!
//! `SOAK_PODS` and `SOAK_ROUNDS` make it longer (`make soak`); each round prints what it counted.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;

use crate::node::{Node, condition, manifest};
use crate::support::wait::{holds, wait_for};

/// For each pod, and for what any round takes anyway.
const PER_POD: Duration = Duration::from_secs(3);
const AT_LEAST: Duration = Duration::from_secs(60);
/// What the kubelet's memory may grow by after its first round: bounded stores fill up, and the
/// allocator keeps what it had.
const GROWTH_KIB: u64 = 24 * 1024;

/// Three volumes of each pod, one more mount of a part of one, and something written to it.
const SPEC: &str = r#"
containers:
- name: c
  image: localhost/busybox:dev
  command: [sh, -c, "trap exit TERM; echo written > /scratch/f; echo hello; sleep 1000 & wait"]
  volumeMounts:
  - { name: scratch, mountPath: /scratch }
  - { name: secret, mountPath: /secret }
  - { name: all, mountPath: /all }
  - { name: scratch, mountPath: /part, subPath: a/part }
volumes:
- { name: scratch, emptyDir: { medium: Memory, sizeLimit: 1Mi } }
- { name: secret, secret: { secretName: db } }
- name: all
  projected:
    sources:
    - configMap: { name: app }
    - downwardAPI: { items: [{ path: name, fieldRef: { fieldPath: metadata.name } }] }
"#;

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

/// What is there beside the kubelet and containerd themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Left {
    mounts: usize,
    /// Of pods, their logs, the journal, and of containers and sandboxes in the runtime's directories.
    directories: usize,
    /// Shims, and what runs in containers.
    processes: usize,
    cgroups: usize,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mounts, directories, processes, cgroups } = self;
        write!(
            f,
            "{mounts:5} mounts {directories:5} directories {processes:5} processes {cgroups:5} cgroups"
        )
    }
}

impl Left {
    /// `ids`: sandboxes and containers that there were.
    fn count(node: &Node, ids: &BTreeSet<String>) -> Self {
        let dir = node.dir();
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let below = format!(" {}/", dir.display());
        let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        let of_pods = ["kubelet/root/pods", "kubelet/root/journal", "kubelet/logs"];
        let mut directories: usize = of_pods.iter().map(|at| entries(&dir.join(at)).count()).sum();
        for at in ["state", "root"] {
            for plugin in entries(&dir.join(at)) {
                directories += named_after(&plugin.path(), ids, 3);
            }
        }
        Self {
            mounts: table.lines().filter(|line| line.contains(&below)).count(),
            directories,
            processes: processes(ids),
            cgroups: named_after(Path::new("/sys/fs/cgroup"), ids, 7),
        }
    }
}

/// How many directories down to this depth have one of the names, alone or between other words.
fn named_after(directory: &Path, ids: &BTreeSet<String>, depth: usize) -> usize {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return 0;
    };
    let mut found = 0;
    for entry in entries.flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
        if words.any(|word| ids.contains(word)) {
            found += 1;
        } else if depth > 1 {
            found += named_after(&entry.path(), ids, depth - 1);
        }
    }
    found
}

/// Processes whose command line or cgroup names one of these.
fn processes(ids: &BTreeSet<String>) -> usize {
    let words = |path: &Path| {
        let text = std::fs::read(path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
        words.any(|word| ids.contains(word))
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().bytes().all(|b| b.is_ascii_digit())
    });
    pids.filter(|entry| words(&entry.path().join("cmdline")) || words(&entry.path().join("cgroup")))
        .count()
}

/// The kubelet's own resident memory in KiB, and its open files. The pages of the program do not count: they come and go
/// with what the machine has free.
fn costs(node: &Node) -> (u64, usize) {
    let process = Path::new("/proc").join(node.kubelet.pid().to_string());
    let status = std::fs::read_to_string(process.join("status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let resident = line.unwrap().split_whitespace().nth(1).unwrap();
    let files = std::fs::read_dir(process.join("fd")).unwrap().count();
    (resident.parse().unwrap(), files)
}

/// Starts and stops so many pods; returns the sandboxes and containers that there were.
async fn round(node: &Node, pods: usize, limit: Duration) -> BTreeSet<String> {
    let names: Vec<String> = (0..pods).map(|number| format!("soak-{number}")).collect();
    for name in &names {
        node.put(name, &manifest(name, SPEC));
    }
    wait_for("all pods are ready", limit, || async {
        let pods = node.kubelet.pods().await.map_err(|e| e.to_string())?;
        let ready = |pod: &&Pod| condition(pod, "Ready") == Some(true);
        let ready = pods.iter().filter(ready).count();
        holds(ready == names.len(), format!("{ready} of {}", names.len()))
    })
    .await;
    let mut ids: BTreeSet<String> =
        node.runtime.containers().into_iter().map(|container| container.id).collect();
    ids.extend(node.runtime.crictl(&["pods", "-q", "--no-trunc"]).lines().map(str::to_owned));
    assert_eq!(ids.len(), 2 * pods, "a sandbox and a container of each");
    let there = Left::count(node, &ids);
    println!("    with {pods} pods: {there}");
    // What is counted afterwards can be counted at all.
    for (what, count, least) in [
        // Three of volumes, one of a part, and the runtime's own.
        ("mounts", there.mounts, 4 * pods),
        ("directories", there.directories, 4 * pods),
        ("processes", there.processes, 2 * pods),
        ("cgroups", there.cgroups, 2 * pods),
    ] {
        assert!(count >= least, "{count} {what}");
    }
    for name in &names {
        node.remove(name);
    }
    ids
}

pub async fn pods_come_and_go_and_leave_nothing() {
    let (pods, rounds) = (number("SOAK_PODS", 20), number("SOAK_ROUNDS", 2));
    let limit = AT_LEAST + PER_POD * u32::try_from(pods).unwrap();
    let node = Node::start_with_objects("").await;
    node.object("configmaps/default/app/color", "blue");
    node.object("secrets/default/db/password", "hush");
    let before = Left::count(&node, &BTreeSet::new());
    let (idle, files) = costs(&node);
    println!("    before: {before}; {idle} KiB, {files} open files");
    let mut first = None;
    for number in 1..=rounds {
        let start = Instant::now();
        let ids = round(&node, pods, limit).await;
        wait_for("nothing is left", limit, || async {
            let shown = node.kubelet.pods().await.map_err(|e| e.to_string())?;
            let left = Left::count(&node, &ids);
            holds(shown.is_empty() && left == before, format!("{left}, {} shown", shown.len()))
        })
        .await;
        let (resident, files) = costs(&node);
        println!(
            "    round {number}: {before}; {resident} KiB, {files} open files after {:.1} s",
            start.elapsed().as_secs_f64()
        );
        let (after_first, _) = *first.get_or_insert((resident, files));
        assert!(resident <= after_first + GROWTH_KIB, "from {after_first} KiB to {resident} KiB");
    }
    let (_, files_of_first) = first.unwrap_or_default();
    // Connections and watches come and go; none may stay of each round.
    wait_for("its files are closed", limit, || async {
        let (_, open) = costs(&node);
        holds(open <= files.max(files_of_first) + 4, format!("{open} open files"))
    })
    .await;
}
