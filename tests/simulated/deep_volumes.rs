//! Volumes whose contents are chosen to make measuring them expensive.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use serde_json::{Value, json};

use crate::node::{Node, WAIT_LIMIT, put, wait_runs};
use crate::pods::{container, pod, with, with_spec};
use crate::support::fake_runtime::{FakeRuntime, Options};
use crate::support::http;
use crate::support::kubelet_process::KubeletProcess;
use crate::support::wait::{holds, wait_for};

/// Directories in the innermost one. `DEEP_DIRECTORIES=1999900` fills a volume up to the limit.
const DIRECTORIES: usize = 20_000;
/// Directories around them with the longest possible name each: together nearly the longest path.
const LEVELS: usize = 15;
/// How much more memory the kubelet may ever have used than before: all paths together have 80 MB.
const MAX_GROWTH_KIB: u64 = 24 * 1024;

fn make_dir(parent: &OwnedFd, name: &str) {
    mkdirat(parent, name, Mode::from_raw_mode(0o700)).unwrap();
}

/// Fills a volume; relative to open directories, because the whole paths are too long.
fn fill(volume: &Path, count: usize) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut innermost = openat(CWD, volume, flags, Mode::empty()).unwrap();
    let name = "d".repeat(255);
    for _ in 0..LEVELS {
        make_dir(&innermost, &name);
        innermost = openat(&innermost, &name, flags, Mode::empty()).unwrap();
    }
    for number in 0..count {
        make_dir(&innermost, &format!("{number:x}"));
    }
}

/// Bytes and inodes that `/stats/summary` reports of the volume, once it was measured.
async fn measured(kubelet: &KubeletProcess, deadline: Duration) -> (u64, u64) {
    let found = std::sync::Mutex::new((0, 0));
    wait_for("the volume is measured", deadline, async || {
        let (code, text) = http::get(kubelet.read_only_port, "/stats/summary")
            .await
            .map_err(|error| error.to_string())?;
        let summary: Value = serde_json::from_str(&text).unwrap_or_default();
        let volume = &summary["pods"][0]["volume"][0];
        let number = |name: &str| volume[name].as_u64();
        let Some(both) = number("usedBytes").zip(number("inodesUsed")) else {
            return Err(format!("{code}: {volume}"));
        };
        *found.lock().unwrap() = both;
        holds(true, String::new())
    })
    .await;
    found.into_inner().unwrap()
}

#[tokio::test]
async fn measuring_a_volume_of_long_paths_takes_little_memory() {
    let count = std::env::var("DEEP_DIRECTORIES");
    let count = count.map_or(DIRECTORIES, |count| count.parse().unwrap());
    let fake = FakeRuntime::start(Options::default()).await;
    let dir = tempfile::tempdir().unwrap();
    let kubelet = Node::process(&fake, dir.path()).await;
    let mount = json!({"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]});
    let volumes = json!({"volumes": [{"name": "scratch", "emptyDir": {}}]});
    let scratch = pod("deep", &[with(container("main"), mount)]);
    put(&kubelet.manifests, &with_spec(scratch, volumes));
    wait_runs(&fake, "deep").await;
    let before = crate::idle_cost::status_kib(&kubelet, "VmHWM:");
    let pods = dir.path().join("root/pods");
    let uid = crate::node::entries(&pods).remove(0);
    fill(&pods.join(uid).join("volumes/kubernetes.io~empty-dir/scratch"), count);
    let deadline = WAIT_LIMIT + Duration::from_micros(100 * u64::try_from(count).unwrap());
    let (bytes, inodes) = measured(&kubelet, deadline).await;
    let peak = crate::idle_cost::status_kib(&kubelet, "VmHWM:");
    println!("{count} directories, {bytes} bytes, {inodes} inodes, peak {before} and {peak} KiB");
    assert_eq!(inodes, u64::try_from(count + LEVELS + 1).unwrap());
    assert!(peak.saturating_sub(before) < MAX_GROWTH_KIB, "from {before} to {peak} KiB");
}
