//! What stays of a cluster: nothing but logs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cluster::{Cluster, DEADLINE};
use crate::kubelet::Join;
use crate::support::wait::{holds, wait_for};

/// A setting of the whole machine that kubelets write, and a value that none of them writes.
const SYSCTL: &str = "/proc/sys/kernel/panic";
const UNUSUAL: &str = "86399";

pub async fn nothing_is_left_of_a_cluster_whose_owner_is_killed() {
    let mut owner = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--", "sleep", "infinity"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let cluster = Cluster::start_with(Join::Certificate, owner.id());
    cluster.inside(&[
        "sh",
        "-c",
        &format!("echo {UNUSUAL} >{SYSCTL}; test $(cat {SYSCTL}) = {UNUSUAL}"),
    ]);
    assert_ne!(std::fs::read_to_string(SYSCTL).unwrap().trim(), UNUSUAL);
    let user_namespace = "unshare --user --map-root-user --pid --fork --mount --mount-proc";
    let user_namespace = user_namespace.split(' ').chain(["true"]).collect::<Vec<_>>();
    let outside = Command::new(user_namespace[0]).args(&user_namespace[1..]).status();
    if outside.unwrap().success() {
        // Pods with users of their own need it.
        cluster.inside(&user_namespace);
    }
    let pid = cluster.kubelet.pid().expect("the kubelet runs");
    let traces = Traces::of(cluster.dir(), pid);
    let seen = traces.left();
    for kind in ["process", "cgroup", "directory"] {
        assert!(seen.iter().any(|line| line.starts_with(kind)), "no {kind} in {seen:#?}");
    }
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_for("nothing is left", DEADLINE, || async {
        let left = traces.left();
        holds(left.is_empty(), format!("{left:#?}"))
    })
    .await;
}

/// How things of a cluster are recognised from outside.
struct Traces {
    dir: PathBuf,
    /// The name of its cgroup in every hierarchy.
    cgroup: String,
}

impl Traces {
    /// `inside`: the id of one of its processes.
    fn of(dir: &Path, inside: u32) -> Traces {
        let cgroups = std::fs::read_to_string(format!("/proc/{inside}/cgroup")).unwrap();
        let path = cgroups.lines().next().unwrap().splitn(3, ':').nth(2).unwrap();
        Traces { dir: dir.to_owned(), cgroup: path.split('/').nth(1).unwrap().to_owned() }
    }

    /// Its processes, mounts and cgroups, and its private directory.
    fn left(&self) -> Vec<String> {
        let dir = self.dir.display().to_string();
        let mut left = Vec::new();
        for process in entries("/proc") {
            let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let cgroup = std::fs::read_to_string(process.join("cgroup")).unwrap_or_default();
            // A process that has ended may wait for this one to read its exit status.
            let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
            let ended = status.contains("\nState:\tZ");
            if !ended && (line.contains(&dir) || cgroup.contains(&self.cgroup)) {
                left.push(format!("process {}: {line}", process.display()));
            }
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounts = mounts.lines().filter(|line| line.contains(&dir));
        left.extend(mounts.map(|line| format!("mount {line}")));
        let hierarchies = [vec!["/sys/fs/cgroup".into()], entries("/sys/fs/cgroup")].concat();
        let cgroups = hierarchies.iter().map(|hierarchy| hierarchy.join(&self.cgroup));
        let private = self.dir.join("private");
        let found = cgroups.filter(|path| path.exists());
        left.extend(found.map(|path| format!("cgroup {}", path.display())));
        if private.exists() {
            left.push(format!("directory {}", private.display()));
        }
        left
    }
}

fn entries(dir: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}
