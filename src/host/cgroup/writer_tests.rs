//! Cgroups in plain directories, and in the kernel where the tests may make some.

use super::{CgroupPath, CgroupSettings, Cgroups};
use crate::host::ProcDir;
use std::fs;
use std::path::Path;
use std::process::Command;

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

fn read(directory: &Path, file: &str) -> String {
    fs::read_to_string(directory.join(file)).unwrap_or_default()
}

#[test]
fn a_cgroup_is_created_limited_listed_and_removed() {
    for v2 in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = Cgroups::in_directory(dir.path(), path("/r"), v2);
        let missing = cgroups.validate(&path("/r")).unwrap_err().to_string();
        assert!(missing.contains("cgroup /r has some missing paths"), "{missing}");
        let points = if v2 {
            vec![""]
        } else {
            vec!["cpu", "cpuacct", "cpuset", "hugetlb", "memory", "pids", "systemd"]
        };
        for point in &points {
            fs::create_dir_all(dir.path().join(point).join("r")).unwrap();
        }
        cgroups.validate(&path("/r")).unwrap();
        cgroups.create(&path("/r/kubepods/podu")).unwrap();
        cgroups.create(&path("/r/kubepods/podu")).unwrap();
        cgroups.validate(&path("/r/kubepods/podu")).unwrap();
        let settings = CgroupSettings { memory: Some(4096), ..CgroupSettings::default() };
        cgroups.set(&path("/r/kubepods/podu"), &settings).unwrap();
        let file = if v2 {
            "r/kubepods/podu/memory.max"
        } else {
            "memory/r/kubepods/podu/memory.limit_in_bytes"
        };
        assert_eq!(read(dir.path(), file), "4096");
        let children = cgroups.children(&path("/r/kubepods")).unwrap();
        assert_eq!(Vec::from_iter(children), ["podu"]);
        cgroups.remove(&path("/r/kubepods")).unwrap();
        cgroups.remove(&path("/r/kubepods")).unwrap();
        for point in &points {
            let left = fs::read_dir(dir.path().join(point).join("r")).unwrap();
            assert_eq!(left.count(), 0, "{point}");
        }
        assert!(cgroups.children(&path("/r/kubepods")).unwrap().is_empty());
    }
}

#[test]
fn nothing_outside_of_the_root_is_created_killed_or_removed() {
    let dir = tempfile::tempdir().unwrap();
    let cgroups = Cgroups::in_directory(dir.path(), path("/r"), true);
    for outside in ["/", "/r", "/other", "/rr/x"] {
        let outside = path(outside);
        assert!(cgroups.create(&outside).is_err(), "{outside}");
        assert!(cgroups.kill(&outside).is_err(), "{outside}");
        assert!(cgroups.remove(&outside).is_err(), "{outside}");
    }
}

#[test]
fn the_kernel_takes_the_settings_and_gives_back_the_cgroups() {
    let v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let name = format!("/kubelet-test-{}", std::process::id());
    let root = CgroupPath::default();
    let Ok(cgroups) = Cgroups::below(root, v2) else {
        return skip("there are no cgroups");
    };
    if let Err(error) = cgroups.create(&path(&name)) {
        return skip(&error.to_string());
    }
    let pod = path(&format!("{name}/podu"));
    let made = cgroups.create(&pod).and_then(|()| cgroups.validate(&pod));
    let settings = CgroupSettings {
        cpu_shares: Some(102),
        cpu_quota: Some(20_000),
        cpu_period: Some(100_000),
        memory: Some(64 << 20),
        pids: Some(77),
        ..CgroupSettings::default()
    };
    let set = cgroups.set(&pod, &settings);
    let files = if v2 {
        ["cpu.weight=4", "cpu.max=20000 100000", "memory.max=67108864", "pids.max=77"]
    } else {
        [
            "cpu/cpu.shares=102",
            "cpu/cpu.cfs_quota_us=20000",
            "memory/memory.limit_in_bytes=67108864",
            "pids/pids.max=77",
        ]
    };
    let values = files.map(|file| {
        let (file, wanted) = file.split_once('=').unwrap();
        let place = match file.split_once('/') {
            Some((point, file)) => format!("/sys/fs/cgroup/{point}{pod}/{file}"),
            None => format!("/sys/fs/cgroup{pod}/{file}"),
        };
        (fs::read_to_string(&place).unwrap_or_default().trim().to_owned(), wanted, place)
    });
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let place = if v2 {
        format!("/sys/fs/cgroup{pod}/cgroup.procs")
    } else {
        format!("/sys/fs/cgroup/pids{pod}/cgroup.procs")
    };
    let joined = fs::write(place, child.id().to_string());
    let seen = cgroups.processes(&path(&name)).unwrap_or_default();
    let killed = cgroups.kill(&path(&name));
    // Were it still there, the wait would not end.
    let ended = match &killed {
        Ok(1) => child.wait().is_ok(),
        _ => child.kill().is_ok() && child.wait().is_err(),
    };
    let removed = cgroups.remove(&path(&name));
    made.unwrap();
    set.unwrap();
    for (value, wanted, place) in values {
        assert_eq!(value, wanted, "{place}");
    }
    joined.unwrap();
    assert!(seen.contains(&child.id()), "{seen:?}");
    assert_eq!(killed.unwrap(), 1);
    assert!(ended);
    removed.unwrap();
    assert!(cgroups.validate(&path(&name)).is_err());
}

/// Forks and ends, over and over: hardly any listing of processes is still right when it is read.
const CHAIN: &str = "f() { (f) & }; f";

#[test]
fn what_forks_all_the_time_is_killed_as_well() {
    let v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let name = path(&format!("/kubelet-forks-{}", std::process::id()));
    let Ok(cgroups) = Cgroups::below(CgroupPath::default(), v2) else {
        return skip("there are no cgroups");
    };
    if let Err(error) = cgroups.create(&name) {
        return skip(&error.to_string());
    }
    // On a busy machine those that have ended are reaped late, and count until then.
    let limit = CgroupSettings { pids: Some(1024), ..CgroupSettings::default() };
    let limited = cgroups.set(&name, &limit);
    // In its cgroup before it forks: a shell that waits for its input.
    let mut child = Command::new("sh")
        .args(["-c", &format!("read -r _; {CHAIN}")])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let joined = cgroups.join(&name, child.id());
    drop(child.stdin.take());
    let ended = child.wait();
    let alive = cgroups.processes(&name).unwrap_or_default();
    let killed = cgroups.kill(&name);
    let removed = cgroups.remove(&name);
    limited.unwrap();
    assert!(joined.unwrap());
    ended.unwrap();
    assert!(!alive.is_empty(), "nothing forks");
    killed.unwrap();
    removed.unwrap();
}

#[test]
fn the_kernel_moves_a_process_in_every_hierarchy_and_one_that_has_ended_is_no_error() {
    let v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let to = path(&format!("/kubelet-join-{}/below", std::process::id()));
    let top = path(&format!("/kubelet-join-{}", std::process::id()));
    let Ok(cgroups) = Cgroups::below(CgroupPath::default(), v2) else {
        return skip("there are no cgroups");
    };
    if let Err(error) = cgroups.create(&to) {
        return skip(&error.to_string());
    }
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let joined = cgroups.join(&to, child.id());
    let seen = ProcDir::default().cgroups(child.id());
    let listed = cgroups.pids(&to);
    let killed = child.kill().and_then(|()| child.wait());
    let ended = cgroups.join(&to, child.id());
    let removed = cgroups.remove(&top);
    killed.unwrap();
    removed.unwrap();
    assert!(joined.unwrap() && !ended.unwrap());
    assert_eq!(listed.unwrap(), [child.id()]);
    let seen = seen.unwrap();
    for controller in cgroups.joined() {
        let at = seen.of(controller);
        assert_eq!(at, Some(to.to_string().as_str()), "{controller}");
    }
    assert_eq!(seen.accounted(v2).unwrap(), to);
    let missing = cgroups.join(&to, std::process::id()).unwrap_err();
    assert!(missing.to_string().contains("cannot write"), "{missing}");
}

fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "no cgroups can be made: {why}");
    eprintln!("SKIPPED: no cgroups can be made here: {why}");
}
