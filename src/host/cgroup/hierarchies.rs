//! The mount points of cgroup hierarchies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The mount point of cgroup v2, or the parent directory of the v1 mounts.
const ROOT: &str = "/sys/fs/cgroup";
/// The v1 hierarchy without controllers in which systemd manages its units.
const SYSTEMD: &str = "systemd";
/// The v2 controllers that the kubelet uses.
const NEEDED_V2: [&str; 5] = ["cpu", "cpuset", "memory", "hugetlb", "pids"];
/// The v1 hierarchies in which a cgroup has to exist, as far as they are mounted.
const NEEDED_V1: [&str; 7] = ["cpu", "cpuacct", "cpuset", "hugetlb", "memory", "pids", SYSTEMD];
/// Controllers that the kubelet requires on v1.
const REQUIRED_V1: [&str; 4] = ["cpu", "cpuacct", "cpuset", "memory"];
/// Controllers that the kubelet requires on v2.
const REQUIRED_V2: [&str; 2] = ["cpu", "memory"];

/// The mount points by controller; several controllers may share one.
#[derive(Clone, Debug)]
pub(super) struct Hierarchies {
    pub(super) v2: bool,
    /// The directories are cgroup file systems, in which the kernel creates the files; otherwise they are created
    /// when written.
    pub(super) genuine: bool,
    mounts: BTreeMap<String, PathBuf>,
}

impl Hierarchies {
    /// The hierarchies of this machine. Blocking.
    pub(super) fn read(v2: bool) -> io::Result<Self> {
        let text = fs::read_to_string("/proc/self/mountinfo")?;
        let mounts = if v2 {
            let controllers = fs::read_to_string(Path::new(ROOT).join("cgroup.controllers"))?;
            of_v2(&controllers, Path::new(ROOT))
        } else {
            parse_mounts(&text)
        };
        let found = Self { v2, genuine: true, mounts };
        found.check()?;
        Ok(found)
    }

    fn check(&self) -> io::Result<()> {
        let required: &[&str] = if self.v2 { &REQUIRED_V2 } else { &REQUIRED_V1 };
        let missing = required.iter().filter(|name| !self.has(name));
        let missing: Vec<&str> = missing.copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "system validation failed - Following Cgroup subsystem not mounted: {missing:?}"
        )))
    }

    /// Plain directories instead of hierarchies, for tests.
    pub(super) fn plain(directory: &Path, v2: bool) -> Self {
        let mounts = if v2 {
            of_v2(&NEEDED_V2.join(" "), directory)
        } else {
            let mounts = NEEDED_V1.iter();
            let mounts = mounts.map(|name| ((*name).to_owned(), directory.join(name)));
            mounts.collect()
        };
        Self { v2, genuine: false, mounts }
    }

    pub(super) fn has(&self, controller: &str) -> bool {
        self.mounts.contains_key(controller)
    }

    pub(super) fn of(&self, controller: &str) -> Option<&Path> {
        self.mounts.get(controller).map(PathBuf::as_path)
    }

    /// The names of the controllers.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.mounts.keys().map(String::as_str)
    }

    /// The mount points without duplicates.
    pub(super) fn points(&self) -> Vec<&Path> {
        let mut points: Vec<&Path> = self.mounts.values().map(PathBuf::as_path).collect();
        points.sort_unstable();
        points.dedup();
        points
    }

    /// The controllers and mount points in which a cgroup has to exist.
    pub(super) fn needed(&self) -> impl Iterator<Item = (&str, &Path)> {
        let names: &[&str] = if self.v2 { &NEEDED_V2 } else { &NEEDED_V1 };
        names.iter().filter_map(|name| Some((*name, self.of(name)?)))
    }
}

fn of_v2(controllers: &str, root: &Path) -> BTreeMap<String, PathBuf> {
    let names = controllers.split_whitespace();
    names.map(|name| (name.to_owned(), root.to_owned())).collect()
}

/// Parses the v1 mounts in `/proc/self/mountinfo`, and a v2 mount beside them, which has no controllers then. Of
/// several mounts of one controller, takes the one with the shortest path.
fn parse_mounts(text: &str) -> BTreeMap<String, PathBuf> {
    let mut mounts = BTreeMap::<String, PathBuf>::new();
    for line in text.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let (Some(point), mut right) = (left.split(' ').nth(4), right.split(' ')) else {
            continue;
        };
        let (kind, options) = (right.next(), right.nth(1).unwrap_or_default());
        let names: Vec<&str> = match kind {
            Some("cgroup") => options.split(',').filter_map(controller).collect(),
            Some("cgroup2") => vec![""],
            _ => continue,
        };
        let point = PathBuf::from(point);
        for name in names {
            let known = mounts.get(name);
            if known.is_none_or(|known| point.as_os_str().len() < known.as_os_str().len()) {
                mounts.insert(name.to_owned(), point.clone());
            }
        }
    }
    mounts
}

/// The controller of a v1 mount option, if it is one.
fn controller(option: &str) -> Option<&str> {
    if let Some(name) = option.strip_prefix("name=") {
        return (name == SYSTEMD).then_some(name);
    }
    let known = [
        "blkio",
        "cpu",
        "cpuacct",
        "cpuset",
        "devices",
        "freezer",
        "hugetlb",
        "memory",
        "misc",
        "net_cls",
        "net_prio",
        "perf_event",
        "pids",
        "rdma",
    ];
    known.contains(&option).then_some(option)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_controller() {
        let text = "\
30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,xattr,name=systemd
34 30 0:30 / /sys/fs/cgroup/elogind rw - cgroup cgroup rw,name=elogind
35 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
36 30 0:28 /kubepods /run/x/rootfs/sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
";
        let found = parse_mounts(text);
        let shown = found.iter().map(|(name, path)| format!("{name}={}", path.display()));
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [
                "=/sys/fs/cgroup/unified",
                "cpu=/sys/fs/cgroup/cpu,cpuacct",
                "cpuacct=/sys/fs/cgroup/cpu,cpuacct",
                "memory=/sys/fs/cgroup/memory",
                "systemd=/sys/fs/cgroup/systemd",
            ]
        );
        let found = Hierarchies { v2: false, genuine: true, mounts: found };
        assert_eq!(found.points().len(), 4);
        let needed = found.needed().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(needed, ["cpu", "cpuacct", "memory", "systemd"]);
    }

    #[test]
    fn a_machine_without_a_required_controller_is_refused() {
        let v1 = |names: &str| {
            let names = names.split(' ').map(|name| (name.to_owned(), "/".into()));
            names.collect()
        };
        for (v2, mounts, missing) in [
            (false, v1("cpu cpuacct cpuset memory"), ""),
            (false, v1("cpu cpuacct pids"), "[\"cpuset\", \"memory\"]"),
            (true, of_v2("cpu io memory", Path::new("/")), ""),
            (true, of_v2("cpuset memory pids", Path::new("/")), "[\"cpu\"]"),
            (true, of_v2("", Path::new("/")), "[\"cpu\", \"memory\"]"),
        ] {
            let genuine = true;
            let found = Hierarchies { v2, genuine, mounts };
            let error = found.check().err().map(|error| error.to_string());
            let text = "system validation failed - Following Cgroup subsystem not mounted: ";
            let wanted = (!missing.is_empty()).then(|| format!("{text}{missing}"));
            assert_eq!(error, wanted);
        }
    }
}
