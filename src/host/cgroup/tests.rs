use super::*;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io};

/// All of it, with files that do not stay open.
fn usage(fs: &CgroupFs, path: &str, quota: bool) -> io::Result<CgroupUsage> {
    let (mut handles, mut scratch) = (Handles::default(), Scratch::default());
    let mut usage = fs.read_activity(path, &mut handles, &mut scratch)?;
    let options = ReadOptions { depth: Depth::Full, has_cpu_quota: quota, keep_open: false };
    fs.complete(path, options, &mut usage, &mut handles, &mut scratch);
    Ok(usage)
}

fn put(root: &Path, path: &str, text: &str) {
    let full = root.join(path);
    fs::create_dir_all(full.parent().unwrap()).unwrap();
    fs::write(full, text).unwrap();
}

/// As a kernel 6.1 shows a busy container with limits.
fn v2() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| put(root.path(), &format!("pods/a/{name}"), text);
    put(
        "cpu.stat",
        "usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\nnr_periods 10\nnr_throttled 3\n\
         throttled_usec 70\nnr_bursts 1\nburst_usec 2\n",
    );
    put("memory.current", "8192000\n");
    put("memory.peak", "9000000\n");
    put("memory.swap.current", "4096\n");
    put(
        "memory.stat",
        "anon 1000\nfile 7000\nkernel 192\nfile_mapped 50\ninactive_file 2000\nactive_file 5000\n\
         pgfault 12\npgmajfault 3\nnew_in_some_kernel 9\nbroken\n",
    );
    put("memory.events", "low 0\nhigh 0\nmax 4\noom 1\noom_kill 2\n");
    put("cgroup.procs", "17\n18\n");
    put("pids.current", "5\n");
    put("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n7:1 \nodd\n");
    for name in ["cpu", "memory", "io"] {
        put(
            &format!("{name}.pressure"),
            "some avg10=1.50 avg60=0.10 avg300=0.00 total=42\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
        );
    }
    put("cpu.weight", "100\n");
    put("cpu.max", "50000 100000\n");
    put("memory.max", "16777216\n");
    put("memory.swap.max", "max\n");
    put("memory.min", "0\n");
    put("pids.max", "max\n");
    root
}

fn v1() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| put(root.path(), path, text);
    put("memory/pods/a/memory.usage_in_bytes", "8192000\n");
    put("memory/pods/a/memory.max_usage_in_bytes", "9000000\n");
    put("memory/pods/a/memory.failcnt", "4\n");
    put("memory/pods/a/memory.kmem.usage_in_bytes", "192\n");
    put(
        "memory/pods/a/memory.stat",
        "cache 1\nrss 2\npgfault 12\npgmajfault 3\ntotal_cache 7000\ntotal_rss 1000\ntotal_swap 4096\n\
         total_mapped_file 50\ntotal_inactive_file 2000\ntotal_active_file 5000\n",
    );
    put("memory/pods/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
    put("memory/pods/a/memory.limit_in_bytes", "16777216\n");
    put("memory/pods/a/memory.memsw.limit_in_bytes", "9223372036854771712\n");
    put("memory/pods/a/memory.soft_limit_in_bytes", "0\n");
    put("cpuacct/pods/a/cpuacct.usage", "5000000000\n");
    put("cpuacct/pods/a/cpuacct.stat", "user 300\nsystem 200\n");
    put(
        "cpu/pods/a/cpu.stat",
        "nr_periods 10\nnr_throttled 3\nthrottled_time 70000\nnr_bursts 1\nburst_time 2000\n",
    );
    put("cpu/pods/a/cpu.shares", "2597\n");
    put("cpu/pods/a/cpu.cfs_period_us", "100000\n");
    put("cpu/pods/a/cpu.cfs_quota_us", "50000\n");
    put("pids/pods/a/cgroup.procs", "17\n18\n");
    put("pids/pods/a/pids.current", "5\n");
    put("pids/pods/a/pids.max", "max\n");
    put(
        "blkio/pods/a/blkio.throttle.io_service_bytes_recursive",
        "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n",
    );
    put("blkio/pods/a/blkio.throttle.io_serviced_recursive", "8:0 Read 3\n8:0 Write 4\nTotal 7\n");
    root
}

#[test]
fn both_versions_say_the_same_of_the_same() {
    let (one, two) = (v1(), v2());
    let mut scratch = Scratch::default();
    let mut read = |root: &tempfile::TempDir, v2| {
        let fs = CgroupFs::new(root.path(), v2);
        let usage = usage(&fs, "/pods/a", true).unwrap();
        (usage, fs.limits("/pods/a", &mut scratch))
    };
    let (mut usage, limits) = read(&two, true);
    let io = usage.pressure.take().unwrap().io;
    assert_eq!((io.some.total, io.full.total), (42, 7));
    assert_eq!(io.some.average, [1.5, 0.1, 0.0]);
    assert_eq!(read(&one, false), (usage.clone(), limits));
    let memory = usage.memory.unwrap();
    assert_eq!(memory.working_set(), 8_190_000);
    assert_eq!((memory.failures, memory.oom_kills), (4, 2));
    assert_eq!((memory.usage, usage.cpu.unwrap().total), (8_192_000, 5_000_000_000));
    assert_eq!(usage.throttling.unwrap().throttled, 70_000);
    assert_eq!(usage.tasks.unwrap().any_pid, Some(17));
    let io = usage.io.first().unwrap();
    assert_eq!((io.device, io.read_bytes, io.reads, io.writes), ((8, 0), 1, 3, 4));
    assert_eq!((limits.memory, limits.swap, limits.threads), (Some(16 << 20), None, None));
    assert_eq!((limits.cpu_quota, limits.cpu_shares), (Some(50_000), Some(2597)));
}

#[test]
fn what_is_missing_broken_or_gone_is_left_out() {
    let root = v2();
    let fs = CgroupFs::new(root.path(), true);
    let mut scratch = Scratch::default();
    assert!(usage(&fs, "/pods/gone", true).is_err());
    assert!(usage(&CgroupFs::new(root.path(), false), "/pods/gone", true).is_err());
    assert_eq!(fs.limits("/pods/gone", &mut scratch), CgroupLimits::default());
    put(root.path(), "pods/a/memory.current", "-5\n");
    put(root.path(), "pods/a/cpu.stat", "usage_usec 99999999999999999999\n");
    put(root.path(), "pods/a/cpu.max", "max 100000\n");
    put(root.path(), "pods/a/cpu.weight", "0\n");
    let usage = self::usage(&fs, "/pods/a", false).unwrap();
    assert_eq!((usage.memory, usage.cpu), (None, Some(CpuUsage::default())));
    assert_eq!(usage.throttling, None);
    let limits = fs.limits("/pods/a", &mut scratch);
    assert_eq!(
        (limits.cpu_quota, limits.cpu_period, limits.cpu_shares),
        (None, Some(100_000), None)
    );
    std::fs::write(root.path().join("pods/a/memory.stat"), [0xff, 0xfe]).unwrap();
    assert!(self::usage(&fs, "/pods/a", false).is_ok());
}

#[test]
fn a_file_longer_than_one_read_is_read_to_its_end() {
    let root = v2();
    let pids: String = (1..=3000).map(|pid| format!("{pid}\n")).collect();
    put(root.path(), "pods/a/cgroup.procs", &pids);
    let fs = CgroupFs::new(root.path(), true);
    let tasks = usage(&fs, "/pods/a", false).unwrap().tasks.unwrap();
    assert_eq!((tasks.processes, tasks.any_pid), (3000, Some(1)));
}

#[test]
fn a_walk_shows_every_cgroup_once_and_ends_where_it_is_told_to() {
    let root = tempfile::tempdir().unwrap();
    for path in ["a/b/c", "a/d", "e"] {
        fs::create_dir_all(root.path().join("memory").join(path)).unwrap();
    }
    fs::write(root.path().join("memory/tasks"), "").unwrap();
    let cgroups = CgroupFs::new(root.path(), false);
    let walk = |limit, answer: fn(&str) -> Descend| {
        let mut seen = Vec::new();
        let count = cgroups.walk(limit, |name, path| {
            seen.push(path.to_owned());
            answer(name)
        });
        seen.sort();
        (count, seen)
    };
    let all = walk(100, |_| Descend::Yes);
    assert_eq!(all.1, ["/a", "/a/b", "/a/b/c", "/a/d", "/e"]);
    assert_eq!(all.0, 5);
    let not_below_b = walk(100, |name| match name {
        "b" => Descend::No,
        _ => Descend::Yes,
    });
    assert_eq!(not_below_b.1, ["/a", "/a/b", "/a/d", "/e"]);
    assert_eq!(walk(2, |_| Descend::Yes).0, 2);
    assert_eq!(walk(100, |_| Descend::Stop).0, 1);
    let nothing = CgroupFs::new(root.path().join("none"), true);
    assert_eq!(nothing.walk(9, |_, _| Descend::Yes), 0);
}

#[test]
fn a_walk_ends_where_paths_take_too_much_memory() {
    let root = tempfile::tempdir().unwrap();
    let long = vec!["c".repeat(255); 14].join("/");
    let innermost = root.path().join(&long);
    fs::create_dir_all(&innermost).unwrap();
    for number in 0..5_000 {
        fs::create_dir(innermost.join(number.to_string())).unwrap();
    }
    let cgroups = CgroupFs::new(root.path(), true);
    let mut bytes = 0;
    let seen = cgroups.walk(50_000, |_, path| {
        bytes += path.len();
        Descend::Yes
    });
    assert!((4_000..5_000).contains(&seen), "{seen}");
    assert!(bytes < 17 * 1024 * 1024, "{bytes}");
}

/// A cgroup of the machine without processes, gone with this.
struct Genuine {
    fs: CgroupFs,
    path: String,
    directories: Vec<std::path::PathBuf>,
}

impl Genuine {
    /// `None` where this process may not make any.
    fn new() -> Option<Self> {
        let v2 = fs::exists("/sys/fs/cgroup/cgroup.controllers").unwrap();
        let root = Path::new("/sys/fs/cgroup");
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = format!("/kubelet-test-{}-{number}", std::process::id());
        let directories = if v2 {
            vec![root.join(path.trim_start_matches('/'))]
        } else {
            ["memory", "cpuacct", "pids"]
                .map(|name| root.join(name).join(path.trim_start_matches('/')))
                .to_vec()
        };
        let made = Self { fs: CgroupFs::new(root, v2), path, directories };
        match made.make() {
            Ok(()) => Some(made),
            Err(error) => {
                eprintln!("SKIPPED: no cgroup can be made here: {error}");
                None
            }
        }
    }

    fn make(&self) -> io::Result<()> {
        self.directories.iter().try_for_each(fs::create_dir)
    }

    fn remove(&self) {
        for directory in &self.directories {
            let _ = fs::remove_dir(directory);
        }
    }
}

impl Drop for Genuine {
    fn drop(&mut self) {
        self.remove();
    }
}

#[test]
fn files_that_stay_open_tell_the_end_and_do_not_outlive_it() {
    let Some(cgroup) = Genuine::new() else { return };
    let (fs, path) = (&cgroup.fs, cgroup.path.as_str());
    let (mut handles, mut scratch) = (Handles::default(), Scratch::default());
    let mut whole = |handles: &mut Handles, keep: bool| -> io::Result<CgroupUsage> {
        let mut usage = fs.read_activity(path, handles, &mut scratch)?;
        let options = ReadOptions { depth: Depth::Full, has_cpu_quota: false, keep_open: keep };
        fs.complete(path, options, &mut usage, handles, &mut scratch);
        Ok(usage)
    };
    let first = whole(&mut handles, true).unwrap();
    let open = handles.len();
    assert!(open > 2, "{handles:?}");
    let again = whole(&mut handles, true).unwrap();
    assert_eq!((again.cpu, again.tasks, handles.len()), (first.cpu, first.tasks, open));
    cgroup.remove();
    assert!(whole(&mut handles, true).is_err());
    assert!(handles.is_empty(), "{handles:?}");
    cgroup.make().unwrap();
    assert_eq!(whole(&mut handles, false).unwrap().tasks, first.tasks);
    assert!(handles.len() <= 2, "only what tells whether anything happened");
}

#[test]
fn no_more_files_stay_open_than_there_is_room_for() {
    let Some(cgroup) = Genuine::new() else { return };
    let (mut handles, mut scratch) = (Handles::default(), Scratch::with_budget(1));
    let (fs, path) = (&cgroup.fs, cgroup.path.as_str());
    for _ in 0..2 {
        fs.read_activity(path, &mut handles, &mut scratch).unwrap();
        assert_eq!(handles.len(), 1);
    }
    handles.close(&mut scratch);
    fs.read_activity(path, &mut handles, &mut scratch).unwrap();
    assert_eq!(handles.len(), 1, "what was closed makes room");
}

#[test]
fn a_cgroup_is_as_old_as_its_oldest_directory_or_file_in_the_hierarchies_that_count() {
    let root = tempfile::tempdir().unwrap();
    let at = |seconds: u64| std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    let aged = |path: &str, seconds: u64| {
        let file = fs::File::open(root.path().join(path)).unwrap();
        file.set_modified(at(seconds)).unwrap();
    };
    for (path, file, directory) in
        [("memory/a", 300, 500), ("cpu/a", 400, 200), ("freezer/a", 100, 100)]
    {
        put(root.path(), &format!("{path}/cgroup.clone_children"), "0\n");
        aged(&format!("{path}/cgroup.clone_children"), file);
        aged(path, directory);
    }
    let v1 = CgroupFs::new(root.path(), false);
    assert_eq!(v1.created_at("/a"), Some(200_000_000_000));
    assert_eq!(v1.created_at("/none"), None);
    put(root.path(), "b/cgroup.events", "populated 1\n");
    aged("b/cgroup.events", 700);
    aged("b", 900);
    let v2 = CgroupFs::new(root.path(), true);
    assert_eq!(v2.created_at("/b"), Some(700_000_000_000));
}
