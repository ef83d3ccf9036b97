//! Samples cgroups, at most once per scrape. Blocking.
//!
//! A cgroup whose CPU time and memory are unchanged since the last sample keeps its other values, which costs two small
//! reads. Other values, limits included, may have changed nevertheless, so each sample fully reads some of the cgroups
//! that were skipped for longest; a full read of all of them would cost many times as much.

use super::{
    index::{Index, ancestors, pod_cgroup},
    rate::CpuRate,
    running_pods::PodSubject,
    system::{CgroupLocation, SystemSubject},
};
use crate::host::{
    ProcDir,
    cgroup::{CgroupFs, CgroupLimits, CgroupUsage, Depth, Handles, Scratch, TaskCount},
    proc::{self, NetworkInterface},
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Age after which the kept values of an idle cgroup are due for a full read.
const TTL: Duration = Duration::from_secs(60);
/// Each sample fully reads at most one in this many cgroups,
const VERIFY_FRACTION: usize = 16;
/// but at least this many.
const MIN_VERIFIED: usize = 32;

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
    pub whole: Option<CgroupSample>,
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
    pub above: Vec<CgroupSample>,
    /// The cgroups of kubelet, runtime, system and all pods, if they have one.
    pub system: Vec<SystemSample>,
    /// The running pods, sorted by namespace and name.
    pub pods: Vec<PodSample>,
    /// Block device names by device number.
    pub disks: HashMap<(u32, u32), String>,
}

/// State of a cgroup between two samples.
#[derive(Debug)]
struct CgroupHistory {
    usage: Arc<CgroupUsage>,
    /// The depth of the last full read.
    depth: Depth,
    limits: CgroupLimits,
    created: Option<i64>,
    pulse: (u64, u64),
    /// Whether nothing had changed in the last sample. One unchanged sample is not enough to skip the next read,
    /// because the kernel reports some changes with a delay.
    still: bool,
    /// Time of the last full read.
    verified: Instant,
    rate: CpuRate,
    handles: Handles,
    seen: bool,
}

/// Samples cgroups, and keeps the last sample of each.
#[derive(Debug)]
pub(super) struct Sampler {
    fs: CgroupFs,
    index: Index,
    kept: HashMap<Arc<str>, CgroupHistory>,
    scratch: Scratch,
    quota: VerificationQuota,
}

/// Selects the idle cgroups that one pass reads fully.
#[derive(Debug, Default)]
struct VerificationQuota {
    /// Only cgroups whose last full read was at this time or earlier.
    until: Option<Instant>,
    /// Number of cgroups left.
    left: usize,
}

impl VerificationQuota {
    fn among(kept: &HashMap<Arc<str>, CgroupHistory>, now: Instant) -> Self {
        let old = |kept: &CgroupHistory| now.saturating_duration_since(kept.verified) >= TTL;
        let mut due: Vec<Instant> = kept
            .values()
            .filter(|kept| old(kept))
            .map(|kept| kept.verified)
            .collect();
        let left = (kept.len() / VERIFY_FRACTION)
            .max(MIN_VERIFIED)
            .min(due.len());
        let until = left
            .checked_sub(1)
            .map(|last| *due.select_nth_unstable(last).1);
        Self { until, left }
    }

    fn take(&mut self, verified: Instant) -> bool {
        let due = self.left > 0 && self.until.is_some_and(|until| verified <= until);
        self.left -= usize::from(due);
        due
    }
}

impl Sampler {
    pub(super) fn new(fs: CgroupFs) -> Self {
        Self {
            fs,
            index: Index::default(),
            kept: HashMap::new(),
            scratch: Scratch::default(),
            quota: VerificationQuota::default(),
        }
    }

    /// Number of sampled cgroups.
    pub(super) fn len(&self) -> usize {
        self.kept.len() + self.index.len()
    }

    /// Samples the machine, these pods and these system containers; includes networks if the depth is more than
    /// [`Depth::Core`].
    pub(super) fn snapshot(
        &mut self,
        pods: Vec<PodSubject>,
        system: &[SystemSubject],
        depth: Depth,
    ) -> Snapshot {
        let pass = Pass {
            now: Instant::now(),
            depth,
        };
        self.quota = VerificationQuota::among(&self.kept, pass.now);
        let ids = pods.iter().flat_map(ids_of).collect::<HashSet<_>>();
        let uids = pods.iter().map(|pod| pod.uid.clone()).collect();
        self.index.refresh(&ids, &uids, &self.fs, pass.now);
        self.kept.values_mut().for_each(|kept| kept.seen = false);
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let host = network(std::process::id(), &mut self.scratch);
        let mut snapshot = Snapshot {
            node: self.node(pass),
            network: host.clone().unwrap_or_default(),
            disks: proc::parse_disk_names(&text("/proc/diskstats")),
            ..Snapshot::default()
        };
        let mut above = BTreeMap::new();
        snapshot.pods = pods
            .into_iter()
            .map(|pod| self.pod(pod, host.as_ref(), &mut above, pass))
            .collect();
        snapshot.above = above.into_values().flatten().collect();
        for subject in system {
            let sample = self.system(subject, &snapshot, pass);
            snapshot.system.extend(sample);
        }
        let scratch = &mut self.scratch;
        self.kept.retain(|_, kept| {
            if !kept.seen {
                kept.handles.close(scratch);
            }
            kept.seen
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
        let path: Arc<str> = match &subject.place {
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
        let mut known = snapshot.above.iter().chain([&snapshot.node]).chain(system);
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
        above: &mut BTreeMap<String, Option<CgroupSample>>,
        pass: Pass,
    ) -> PodSample {
        let sandbox = pod.sandbox.clone();
        let sandbox = sandbox.and_then(|id| self.of_container(&id, pass));
        let containers: Vec<Option<CgroupSample>> = pod
            .containers
            .iter()
            .map(|container| self.of_container(&container.id, pass))
            .collect();
        let first = sandbox.iter().chain(containers.iter().flatten()).next();
        let around = first.and_then(|first| pod_cgroup(&first.path, pod.uid.as_str()));
        let around = around.map(Arc::<str>::from);
        // Containers in a virtual machine have no cgroup on the host, but their pod has one.
        let around = around.or_else(|| self.index.pod(&pod.uid));
        for path in around.iter().flat_map(|path| ancestors(path)) {
            if !above.contains_key(path) {
                above.insert(path.to_owned(), self.sample(&Arc::from(path), pass));
            }
        }
        let whole = around.and_then(|path| self.sample(&path, pass));
        let mut samples = sandbox.iter().chain(containers.iter().flatten());
        let one =
            samples.find_map(|sample| sample.usage.tasks.and_then(|TaskCount { one, .. }| one));
        let network = if pod.host_network {
            host.cloned()
        } else {
            one.filter(|_| pass.depth > Depth::Core)
                .and_then(|pid| network(pid, &mut self.scratch))
        };
        PodSample {
            pod,
            whole,
            sandbox,
            containers,
            network,
        }
    }

    fn of_container(&mut self, id: &str, pass: Pass) -> Option<CgroupSample> {
        let path = self.index.path(id)?;
        let sample = self.sample(&path, pass);
        if sample.is_none() {
            self.index.lost(id);
        }
        sample
    }

    fn node(&mut self, pass: Pass) -> CgroupSample {
        let mut node = self.sample(&Arc::from("/"), pass).unwrap_or_default();
        let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let info = proc::parse_meminfo(&info);
        let mut usage = CgroupUsage::clone(&node.usage);
        if usage.memory.is_none() {
            usage.memory = Some(self.fs.memory_of_machine(&info, &mut self.scratch));
        }
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
        let Self {
            fs,
            kept,
            scratch,
            quota,
            ..
        } = self;
        let Some(known) = kept.get_mut(path) else {
            let fresh = CgroupHistory::first(fs, path, at, pass, scratch)?;
            let sample = fresh.sample(path, at, None);
            kept.insert(path.clone(), fresh);
            return Some(sample);
        };
        known.seen = true;
        let usage = fs.pulse(path, &mut known.handles, scratch).ok()?;
        if quota.take(known.verified) {
            known.limits = fs.limits(path, scratch);
            known.created = fs.created_at(path);
            known.verified = pass.now;
            known.still = false;
        }
        known.take(fs, path, pass.depth, usage, scratch);
        let (rate, nano_cores) = known.rate.next(at, known.pulse.0);
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
    fn first(
        fs: &CgroupFs,
        path: &str,
        at: i64,
        pass: Pass,
        scratch: &mut Scratch,
    ) -> Option<Self> {
        let mut handles = Handles::default();
        let usage = fs.pulse(path, &mut handles, scratch).ok()?;
        let pulse = pulse_of(&usage);
        let mut first = Self {
            usage: Arc::default(),
            depth: pass.depth,
            limits: fs.limits(path, scratch),
            created: fs.created_at(path),
            pulse,
            still: false,
            verified: pass.now,
            rate: CpuRate::first(at, pulse.0),
            handles,
            seen: true,
        };
        first.take(fs, path, pass.depth, usage, scratch);
        first.still = false;
        Some(first)
    }

    /// Takes a sample. CPU time and memory are in `usage`; reads the other values only if these changed.
    fn take(
        &mut self,
        fs: &CgroupFs,
        path: &str,
        depth: Depth,
        mut usage: CgroupUsage,
        scratch: &mut Scratch,
    ) {
        let pulse = pulse_of(&usage);
        let same = pulse == self.pulse;
        let known = same && self.still;
        if known {
            // Closes the files that only a full read of an idle cgroup needs.
            self.handles.rest(scratch);
        }
        if !known || self.depth < depth {
            let how = (depth, self.limits.cpu_quota.is_some(), !same);
            fs.complete(path, how, &mut usage, &mut self.handles, scratch);
            self.usage = Arc::new(usage);
            self.depth = depth;
        }
        self.still = same;
        self.pulse = pulse;
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

fn pulse_of(usage: &CgroupUsage) -> (u64, u64) {
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
    Some(Pressures {
        cpu: one("cpu")?,
        memory: one("memory")?,
        io: one("io")?,
    })
}

/// The current time, nanoseconds since the epoch.
fn since_epoch() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
mod tests;
