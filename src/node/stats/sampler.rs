//! Samples cgroups, at most once per scrape. Blocking.
//!
//! A cgroup whose CPU time and memory are unchanged since the last sample keeps its other values, which costs two small
//! reads. Other values, limits included, may have changed nevertheless, so each sample fully reads some of the cgroups
//! that were skipped for longest; a full read of all of them would cost many times as much.

use super::index::{CgroupIndex, ancestors, pod_cgroup};
use super::rate::CpuRate;
use super::running_pods::PodSubject;
use super::system::{CgroupLocation, SystemSubject};
use crate::base::clock::{self, Instant};
use crate::host::ProcDir;
use crate::host::cgroup::{
    CgroupFs, CgroupLimits, CgroupUsage, Depth, Handles, ReadOptions, Scratch, TaskCount,
};
use crate::host::proc::{self, MemInfo, NetworkInterface};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Age after which an idle cgroup is due for a full read.
const FULL_READ_AGE: Duration = Duration::from_secs(60);
/// Each pass fully reads at most 1/`FULL_READ_FRACTION` of the cgroups while they are idle, but [`MIN_FULL_READS`] if
/// that is more.
const FULL_READ_FRACTION: usize = 16;
/// See [`FULL_READ_FRACTION`].
const MIN_FULL_READS: usize = 32;

/// The sample of one cgroup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CgroupSample {
    /// Path of the cgroup, `/` for the machine.
    pub path: Arc<str>,
    /// Time of the sample, nanoseconds since the epoch.
    pub at: i64,
    /// Creation time of the cgroup, if its files show it; nanoseconds since the epoch.
    pub created: Option<i64>,
    /// Resource usage.
    pub usage: Arc<CgroupUsage>,
    /// Resource limits.
    pub limits: CgroupLimits,
    /// Recent CPU usage, nanoseconds of CPU time per second; `None` before the second sample.
    pub nano_cores: Option<u64>,
}

/// The sample of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodSample {
    /// The pod.
    pub pod: PodSubject,
    /// The pod's cgroup, if there is one.
    pub pod_cgroup: Option<CgroupSample>,
    /// The sandbox's cgroup.
    pub sandbox: Option<CgroupSample>,
    /// The containers' cgroups, in the order of the pod's containers; `None` if not found.
    pub containers: Vec<Option<CgroupSample>>,
    /// Network stats of the sandbox, if found.
    pub network: Option<Arc<[NetworkInterface]>>,
}

/// The sample of a system container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SystemSample {
    /// Upstream's name, such as `kubelet`.
    pub name: &'static str,
    /// The sample.
    pub sample: CgroupSample,
}

/// The samples of one pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The root cgroup.
    pub node: CgroupSample,
    /// The network stats of the host.
    pub network: Arc<[NetworkInterface]>,
    /// Ancestors of pod cgroups, sorted by path.
    pub ancestors: Vec<CgroupSample>,
    /// The cgroups of kubelet, runtime, system and all pods, if they have one.
    pub system: Vec<SystemSample>,
    /// The running pods, sorted by namespace and name.
    pub pods: Vec<PodSample>,
    /// Block device names by device number.
    pub disks: HashMap<(u32, u32), String>,
    /// Huge pages of the machine, bytes.
    pub huge_pages: u64,
}

/// State of a cgroup between two samples.
#[derive(Debug)]
struct CgroupHistory {
    usage: Arc<CgroupUsage>,
    /// The depth of the last full read.
    depth: Depth,
    limits: CgroupLimits,
    created: Option<i64>,
    /// Total CPU time (ns) and memory usage (bytes) at the last sample: equal values mean that the cgroup was idle.
    activity: (u64, u64),
    /// Whether nothing had changed in the last sample. One unchanged sample is not enough to skip the next read,
    /// because the kernel reports some changes with a delay.
    was_idle: bool,
    /// Time of the last full read.
    fully_read_at: Instant,
    rate: CpuRate,
    handles: Handles,
    seen: bool,
}

/// Samples cgroups, and keeps the last sample of each.
#[derive(Debug)]
pub(super) struct Sampler {
    fs: CgroupFs,
    index: CgroupIndex,
    cgroups: HashMap<Arc<str>, CgroupHistory>,
    scratch: Scratch,
    quota: FullReadQuota,
}

/// Selects the idle cgroups that one pass reads fully.
#[derive(Debug, Default)]
struct FullReadQuota {
    /// Only cgroups whose last full read was at this time or earlier.
    due_before: Option<Instant>,
    /// Number of cgroups left.
    left: usize,
}

impl FullReadQuota {
    fn for_pass(cgroups: &HashMap<Arc<str>, CgroupHistory>, now: Instant) -> Self {
        let is_due = |cgroup: &CgroupHistory| {
            now.saturating_duration_since(cgroup.fully_read_at) >= FULL_READ_AGE
        };
        let mut due: Vec<Instant> = cgroups
            .values()
            .filter(|cgroup| is_due(cgroup))
            .map(|cgroup| cgroup.fully_read_at)
            .collect();
        let left = (cgroups.len() / FULL_READ_FRACTION).max(MIN_FULL_READS).min(due.len());
        let due_before = left.checked_sub(1).map(|last| *due.select_nth_unstable(last).1);
        Self { due_before, left }
    }

    fn take(&mut self, fully_read_at: Instant) -> bool {
        let due =
            self.left > 0 && self.due_before.is_some_and(|due_before| fully_read_at <= due_before);
        self.left -= usize::from(due);
        due
    }
}

impl Sampler {
    pub(super) fn new(fs: CgroupFs) -> Self {
        Self {
            fs,
            index: CgroupIndex::default(),
            cgroups: HashMap::new(),
            scratch: Scratch::default(),
            quota: FullReadQuota::default(),
        }
    }

    /// Number of sampled cgroups.
    pub(super) fn len(&self) -> usize {
        self.cgroups.len() + self.index.len()
    }

    /// Samples the machine, these pods and these system containers. Reads the networks of pods only if the depth is
    /// more than [`Depth::Core`].
    pub(super) fn snapshot(
        &mut self,
        pods: Vec<PodSubject>,
        system: &[SystemSubject],
        depth: Depth,
    ) -> Snapshot {
        let pass = Pass { now: clock::instant(), depth };
        self.quota = FullReadQuota::for_pass(&self.cgroups, pass.now);
        let ids = pods.iter().flat_map(ids_of).collect::<HashSet<_>>();
        let uids = pods.iter().map(|pod| pod.uid.clone()).collect();
        self.index.refresh(&ids, &uids, &self.fs, pass.now);
        self.cgroups.values_mut().for_each(|cgroup| cgroup.seen = false);
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let host = network(std::process::id(), &mut self.scratch);
        let info = proc::parse_meminfo(&text("/proc/meminfo"));
        let mut snapshot = Snapshot {
            node: self.node(&info, pass),
            huge_pages: info.huge_pages,
            network: host.clone().unwrap_or_default(),
            disks: proc::parse_disk_names(&text("/proc/diskstats")),
            ..Snapshot::default()
        };
        let mut ancestor_samples = BTreeMap::new();
        snapshot.pods = pods
            .into_iter()
            .map(|pod| self.pod(pod, host.as_ref(), &mut ancestor_samples, pass))
            .collect();
        snapshot.ancestors = ancestor_samples.into_values().flatten().collect();
        for subject in system {
            let sample = self.system(subject, &snapshot, pass);
            snapshot.system.extend(sample);
        }
        let scratch = &mut self.scratch;
        self.cgroups.retain(|_, cgroup| {
            if !cgroup.seen {
                cgroup.handles.close(scratch);
            }
            cgroup.seen
        });
        snapshot
    }

    /// Samples a system container; reuses a sample of the same path from this pass.
    fn system(
        &mut self,
        subject: &SystemSubject,
        snapshot: &Snapshot,
        pass: Pass,
    ) -> Option<SystemSample> {
        let path: Arc<str> = match &subject.location {
            CgroupLocation::Cgroup(path) => path.as_str().into(),
            CgroupLocation::Process(pid) => {
                let cgroups = ProcDir::default().cgroups(*pid).ok()?;
                let path = cgroups.accounted(self.fs.is_v2()).ok()?;
                path.to_string().into()
            }
        };
        if &*path == "/" && !subject.may_be_root {
            return None;
        }
        let system = snapshot.system.iter().map(|system| &system.sample);
        let mut known = snapshot.ancestors.iter().chain([&snapshot.node]).chain(system);
        let known = known.find(|sample| sample.path == path).cloned();
        Some(SystemSample {
            name: subject.name,
            sample: known.or_else(|| self.sample(&path, pass))?,
        })
    }

    fn pod(
        &mut self,
        pod: PodSubject,
        host: Option<&Arc<[NetworkInterface]>>,
        ancestor_samples: &mut BTreeMap<String, Option<CgroupSample>>,
        pass: Pass,
    ) -> PodSample {
        let sandbox = pod.sandbox.clone();
        let sandbox = sandbox.and_then(|id| self.of_container(&id, pass));
        let containers: Vec<Option<CgroupSample>> =
            pod.containers.iter().map(|container| self.of_container(&container.id, pass)).collect();
        let first = sandbox.iter().chain(containers.iter().flatten()).next();
        let pod_path = first.and_then(|first| pod_cgroup(&first.path, pod.uid.as_str()));
        let pod_path = pod_path.map(Arc::<str>::from);
        // Containers in a virtual machine have no cgroup on the host, but their pod has one.
        let pod_path = pod_path.or_else(|| self.index.pod(&pod.uid));
        for path in pod_path.iter().flat_map(|path| ancestors(path)) {
            if !ancestor_samples.contains_key(path) {
                ancestor_samples.insert(path.to_owned(), self.sample(&Arc::from(path), pass));
            }
        }
        let pod_cgroup = pod_path.and_then(|path| self.sample(&path, pass));
        let mut samples = sandbox.iter().chain(containers.iter().flatten());
        let pid = samples
            .find_map(|sample| sample.usage.tasks.and_then(|TaskCount { any_pid, .. }| any_pid));
        let network = if pod.host_network {
            host.cloned()
        } else {
            pid.filter(|_| pass.depth > Depth::Core).and_then(|pid| network(pid, &mut self.scratch))
        };
        PodSample { pod, pod_cgroup, sandbox, containers, network }
    }

    fn of_container(&mut self, id: &str, pass: Pass) -> Option<CgroupSample> {
        let path = self.index.path(id)?;
        let sample = self.sample(&path, pass);
        if sample.is_none() {
            self.index.remove(id);
        }
        sample
    }

    fn node(&mut self, info: &MemInfo, pass: Pass) -> CgroupSample {
        let mut node = self.sample(&Arc::from("/"), pass).unwrap_or_default();
        let mut usage = CgroupUsage::clone(&node.usage);
        let (fs, scratch) = (&self.fs, &mut self.scratch);
        usage.memory = Some(fs.memory_of_machine(info, usage.memory, scratch));
        usage.pressure = usage.pressure.or_else(machine_pressure);
        node.usage = Arc::new(usage);
        node.path = "/".into();
        node.limits.memory = Some(info.total);
        node.limits.swap = Some(info.swap_total);
        node.limits.has_memory = true;
        node
    }

    /// Samples one cgroup; `None` if it does not exist.
    fn sample(&mut self, path: &Arc<str>, pass: Pass) -> Option<CgroupSample> {
        let at = since_epoch();
        let Self { fs, cgroups, scratch, quota, .. } = self;
        let Some(known) = cgroups.get_mut(path) else {
            let fresh = CgroupHistory::new(fs, path, at, pass, scratch)?;
            let sample = fresh.sample(path, at, None);
            cgroups.insert(path.clone(), fresh);
            return Some(sample);
        };
        known.seen = true;
        let usage = fs.read_activity(path, &mut known.handles, scratch).ok()?;
        if quota.take(known.fully_read_at) {
            known.limits = fs.limits(path, scratch);
            known.created = fs.created_at(path);
            known.fully_read_at = pass.now;
            known.was_idle = false;
        }
        known.update(fs, path, pass.depth, usage, scratch);
        let (rate, nano_cores) = known.rate.next(at, known.activity.0);
        known.rate = rate;
        Some(known.sample(path, at, nano_cores))
    }
}

/// Time and depth of one pass.
#[derive(Clone, Copy)]
struct Pass {
    now: Instant,
    depth: Depth,
}

impl CgroupHistory {
    fn new(fs: &CgroupFs, path: &str, at: i64, pass: Pass, scratch: &mut Scratch) -> Option<Self> {
        let mut handles = Handles::default();
        let usage = fs.read_activity(path, &mut handles, scratch).ok()?;
        let activity = activity_of(&usage);
        let mut history = Self {
            usage: Arc::default(),
            depth: pass.depth,
            limits: fs.limits(path, scratch),
            created: fs.created_at(path),
            activity,
            was_idle: false,
            fully_read_at: pass.now,
            rate: CpuRate::first(at, activity.0),
            handles,
            seen: true,
        };
        history.update(fs, path, pass.depth, usage, scratch);
        history.was_idle = false;
        Some(history)
    }

    /// Records a sample. CPU time and memory are in `usage`; the other values are read only if these changed.
    fn update(
        &mut self,
        fs: &CgroupFs,
        path: &str,
        depth: Depth,
        mut usage: CgroupUsage,
        scratch: &mut Scratch,
    ) {
        let activity = activity_of(&usage);
        let same = activity == self.activity;
        let known = same && self.was_idle;
        if known {
            // Closes the files that only a full read of an idle cgroup needs.
            self.handles.close_rarely_read(scratch);
        }
        if !known || self.depth < depth {
            let options = ReadOptions {
                depth,
                has_cpu_quota: self.limits.cpu_quota.is_some(),
                keep_open: !same,
            };
            fs.complete(path, options, &mut usage, &mut self.handles, scratch);
            self.usage = Arc::new(usage);
            self.depth = depth;
        }
        self.was_idle = same;
        self.activity = activity;
    }

    fn sample(&self, path: &Arc<str>, at: i64, nano_cores: Option<u64>) -> CgroupSample {
        CgroupSample {
            path: path.clone(),
            at,
            created: self.created,
            usage: self.usage.clone(),
            limits: self.limits,
            nano_cores,
        }
    }
}

fn ids_of(pod: &PodSubject) -> impl Iterator<Item = Arc<str>> {
    let containers = pod.containers.iter().map(|container| container.id.clone());
    containers.chain(pod.sandbox.clone())
}

fn activity_of(usage: &CgroupUsage) -> (u64, u64) {
    let cpu = usage.cpu.map(|cpu| cpu.total).unwrap_or_default();
    let memory = usage.memory.map(|memory| memory.usage).unwrap_or_default();
    (cpu, memory)
}

fn network(pid: u32, scratch: &mut Scratch) -> Option<Arc<[NetworkInterface]>> {
    let text = scratch.read(&format!("/proc/{pid}/net/dev")).ok()?;
    Some(proc::parse_net_dev(text).into())
}

/// Pressure stall information of the machine, which the root cgroup may lack.
fn machine_pressure() -> Option<crate::host::cgroup::Pressures> {
    use crate::host::cgroup::{Pressures, parse_pressure};
    let one = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/pressure/{name}")).ok()?;
        Some(parse_pressure(&text))
    };
    Some(Pressures { cpu: one("cpu")?, memory: one("memory")?, io: one("io")? })
}

/// The current time, nanoseconds since the epoch.
fn since_epoch() -> i64 {
    let since = clock::system_time().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
