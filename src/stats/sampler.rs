//! Reading cgroups: all of those that matter, once per scrape at most. Blocking.
//!
//! A cgroup that has not run since the last look, and has the same memory, is what it was: two small
//! files tell, and the others are read again after a minute at the latest.

use super::{
    index::{Index, ancestors, pod_cgroup},
    picture::PodSubject,
    rate::Rate,
};
use crate::host::{
    cgroup::{CgroupFs, Limits, Scratch, TaskCount, Usage},
    proc::{self, NetworkInterface},
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// What was read is believed for so long while nothing seems to happen.
const BELIEVED: Duration = Duration::from_secs(60);

/// One cgroup at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Its path, `/` for the machine.
    pub path: Arc<str>,
    /// When, nanoseconds since the epoch.
    pub at: i64,
    /// What it has used.
    pub usage: Arc<Usage>,
    /// What it may use.
    pub limits: Limits,
    /// Nanoseconds of CPU time per second lately; `None` until there have been two looks.
    pub nano_cores: Option<u64>,
}

/// One pod at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct PodSample {
    /// Whose.
    pub pod: PodSubject,
    /// The cgroup around all of it, if it has one.
    pub whole: Option<Sample>,
    /// The sandbox's own.
    pub sandbox: Option<Sample>,
    /// Those of its containers, in their order; `None` where the cgroup was not found.
    pub containers: Vec<Option<Sample>>,
    /// Its network, if it was found.
    pub network: Option<Arc<[NetworkInterface]>>,
}

/// Everything at about one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The machine.
    pub node: Sample,
    /// The machine's network.
    pub network: Arc<[NetworkInterface]>,
    /// Cgroups that have pods in them, by path.
    pub above: Vec<Sample>,
    /// The kubelet's own cgroup and the runtime's, where they have one.
    pub system: Vec<(&'static str, Sample)>,
    /// Pods in their order.
    pub pods: Vec<PodSample>,
    /// Names of block devices.
    pub disks: HashMap<(u32, u32), String>,
}

/// What is kept of a cgroup between two looks.
#[derive(Debug)]
struct Kept {
    usage: Arc<Usage>,
    limits: Limits,
    pulse: (u64, u64),
    /// The last look found nothing new, so that the next one begins with the pulse.
    still: bool,
    usage_read: Instant,
    limits_read: Instant,
    rate: Rate,
    seen: bool,
}

/// Reads cgroups and remembers the last look at each.
#[derive(Debug)]
pub(super) struct Sampler {
    fs: CgroupFs,
    index: Index,
    kept: HashMap<Arc<str>, Kept>,
    scratch: Scratch,
}

impl Sampler {
    pub(super) fn new(fs: CgroupFs) -> Self {
        Self {
            fs,
            index: Index::default(),
            kept: HashMap::new(),
            scratch: Scratch::default(),
        }
    }

    /// How much is kept.
    pub(super) fn len(&self) -> usize {
        self.kept.len() + self.index.len()
    }

    /// Looks at the machine, at these pods, and at the cgroups of these processes.
    pub(super) fn look(
        &mut self,
        pods: Vec<PodSubject>,
        system: &[(&'static str, u32)],
    ) -> Snapshot {
        let now = Instant::now();
        let ids = pods.iter().flat_map(ids_of).collect::<HashSet<_>>();
        self.index.learn(&ids, &self.fs, now);
        self.kept.values_mut().for_each(|kept| kept.seen = false);
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let host = network(std::process::id());
        let mut snapshot = Snapshot {
            node: self.node(now),
            network: host.clone().unwrap_or_default(),
            disks: proc::parse_disk_names(&text("/proc/diskstats")),
            ..Snapshot::default()
        };
        let mut above = BTreeMap::new();
        snapshot.pods = pods
            .into_iter()
            .map(|pod| self.pod(pod, host.as_ref(), &mut above, now))
            .collect();
        snapshot.above = above.into_values().flatten().collect();
        for (name, pid) in system {
            let path = proc::cgroup_of(*pid, self.fs.is_v2()).filter(|path| path != "/");
            let sample = path.and_then(|path| self.sample(&Arc::from(path), now));
            snapshot.system.extend(sample.map(|sample| (*name, sample)));
        }
        self.kept.retain(|_, kept| kept.seen);
        snapshot
    }

    fn pod(
        &mut self,
        pod: PodSubject,
        host: Option<&Arc<[NetworkInterface]>>,
        above: &mut BTreeMap<String, Option<Sample>>,
        now: Instant,
    ) -> PodSample {
        let sandbox = pod.sandbox.clone();
        let sandbox = sandbox.and_then(|id| self.of_container(&id, now));
        let containers: Vec<Option<Sample>> = pod
            .containers
            .iter()
            .map(|container| self.of_container(&container.id, now))
            .collect();
        let first = sandbox.iter().chain(containers.iter().flatten()).next();
        let around = first.and_then(|first| pod_cgroup(&first.path, pod.uid.as_str()));
        let around = around.map(Arc::<str>::from);
        for path in around.iter().flat_map(|path| ancestors(path)) {
            if !above.contains_key(path) {
                above.insert(path.to_owned(), self.sample(&Arc::from(path), now));
            }
        }
        let whole = around.and_then(|path| self.sample(&path, now));
        let mut samples = sandbox.iter().chain(containers.iter().flatten());
        let one =
            samples.find_map(|sample| sample.usage.tasks.and_then(|TaskCount { one, .. }| one));
        let network = match pod.host_network {
            true => host.cloned(),
            false => one.and_then(network),
        };
        PodSample {
            pod,
            whole,
            sandbox,
            containers,
            network,
        }
    }

    fn of_container(&mut self, id: &str, now: Instant) -> Option<Sample> {
        let path = self.index.path(id)?;
        let sample = self.sample(&path, now);
        if sample.is_none() {
            self.index.lost(id);
        }
        sample
    }

    fn node(&mut self, now: Instant) -> Sample {
        let mut node = self.sample(&Arc::from("/"), now).unwrap_or_default();
        let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let info = proc::parse_meminfo(&info);
        let mut usage = Usage::clone(&node.usage);
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

    /// One cgroup; `None` when it is not there.
    fn sample(&mut self, path: &Arc<str>, now: Instant) -> Option<Sample> {
        let at = since_epoch();
        let Self {
            fs, kept, scratch, ..
        } = self;
        let Some(known) = kept.get_mut(path) else {
            let limits = fs.limits(path, scratch);
            let usage = Arc::new(fs.usage(path, limits.cpu_quota.is_some(), scratch).ok()?);
            let pulse = pulse_of(&usage);
            let fresh = Kept {
                usage: usage.clone(),
                limits,
                pulse,
                still: false,
                usage_read: now,
                limits_read: now,
                rate: Rate::first(at, pulse.0),
                seen: true,
            };
            kept.insert(path.clone(), fresh);
            return Some(Sample {
                path: path.clone(),
                at,
                usage,
                limits,
                nano_cores: None,
            });
        };
        known.seen = true;
        if now.saturating_duration_since(known.limits_read) >= BELIEVED {
            known.limits = fs.limits(path, scratch);
            known.limits_read = now;
        }
        let believed = now.saturating_duration_since(known.usage_read) < BELIEVED;
        let as_before = known.still && believed && fs.pulse(path, scratch).ok()? == known.pulse;
        if !as_before {
            let quota = known.limits.cpu_quota.is_some();
            known.usage = Arc::new(fs.usage(path, quota, scratch).ok()?);
            let pulse = pulse_of(&known.usage);
            known.still = pulse == known.pulse;
            known.pulse = pulse;
            known.usage_read = now;
        }
        let (rate, nano_cores) = known.rate.next(at, known.pulse.0);
        known.rate = rate;
        Some(Sample {
            path: path.clone(),
            at,
            usage: known.usage.clone(),
            limits: known.limits,
            nano_cores,
        })
    }
}

fn ids_of(pod: &PodSubject) -> impl Iterator<Item = Arc<str>> {
    let containers = pod.containers.iter().map(|container| container.id.clone());
    containers.chain(pod.sandbox.clone())
}

fn pulse_of(usage: &Usage) -> (u64, u64) {
    let cpu = usage.cpu.map(|cpu| cpu.total).unwrap_or_default();
    let memory = usage.memory.map(|memory| memory.usage).unwrap_or_default();
    (cpu, memory)
}

fn network(pid: u32) -> Option<Arc<[NetworkInterface]>> {
    proc::network_of(pid).ok().map(Into::into)
}

/// The machine's own, where the root cgroup has none.
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

/// The wall clock, nanoseconds.
fn since_epoch() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::picture::ContainerSubject;
    use std::{fs, path::Path};

    fn cgroup(root: &Path, path: &str, cpu: u64, memory: u64, faults: u64) {
        let at = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(&at).unwrap();
        let put = |name: &str, text: String| fs::write(at.join(name), text).unwrap();
        put("cpu.stat", format!("usage_usec {cpu}\n"));
        put("memory.current", format!("{memory}\n"));
        put("memory.stat", format!("pgfault {faults}\n"));
        put("cgroup.procs", format!("{}\n", std::process::id()));
    }

    fn pod(uid: &str, containers: &[&str]) -> PodSubject {
        let container = |id: &&str| ContainerSubject {
            id: Arc::from(*id),
            name: Arc::from(*id),
            image: "image".into(),
            created_at: 1,
            started_at: 1,
        };
        PodSubject {
            uid: uid.into(),
            name: uid.into(),
            namespace: "default".into(),
            created_at: 1,
            sandbox: None,
            host_network: false,
            containers: containers.iter().map(container).collect(),
        }
    }

    fn faults(snapshot: &Snapshot) -> Option<u64> {
        let sample = snapshot.pods.first()?.containers.first()?.as_ref()?;
        Some(sample.usage.memory?.page_faults)
    }

    #[test]
    fn what_has_not_run_is_not_read_again_and_what_has_is() {
        let root = tempfile::tempdir().unwrap();
        let mut sampler = Sampler::new(CgroupFs::new(root.path(), true));
        let pods = || vec![pod("u", &["one"])];
        cgroup(root.path(), "/k8s.io/one", 5, 7, 1);
        assert_eq!(faults(&sampler.look(pods(), &[])), Some(1));
        // The second look is a whole one too: only then is it known that nothing happens.
        cgroup(root.path(), "/k8s.io/one", 5, 7, 2);
        assert_eq!(faults(&sampler.look(pods(), &[])), Some(2));
        cgroup(root.path(), "/k8s.io/one", 5, 7, 3);
        assert_eq!(faults(&sampler.look(pods(), &[])), Some(2));
        cgroup(root.path(), "/k8s.io/one", 5, 8, 4);
        assert_eq!(faults(&sampler.look(pods(), &[])), Some(4));
        cgroup(root.path(), "/k8s.io/one", 6, 8, 5);
        assert_eq!(faults(&sampler.look(pods(), &[])), Some(5));
    }

    #[test]
    fn a_cgroup_that_goes_comes_back_elsewhere_or_never_is_no_error() {
        let root = tempfile::tempdir().unwrap();
        let mut sampler = Sampler::new(CgroupFs::new(root.path(), true));
        let pods = || vec![pod("u", &["one", "none"])];
        cgroup(root.path(), "/k8s.io/one", 5, 7, 1);
        let first = sampler.look(pods(), &[]);
        assert_eq!(first.pods[0].containers[1], None);
        fs::remove_dir_all(root.path().join("k8s.io")).unwrap();
        assert_eq!(faults(&sampler.look(pods(), &[])), None);
        cgroup(root.path(), "/other/cri-containerd-one.scope", 5, 7, 9);
        let again = sampler.look(pods(), &[]);
        assert_eq!(faults(&again), Some(9));
        assert_eq!(
            again.pods[0].containers[0].as_ref().unwrap().nano_cores,
            None
        );
        sampler.look(Vec::new(), &[]);
        // The machine itself stays.
        assert!(sampler.len() <= 1, "{}", sampler.len());
    }

    #[test]
    fn a_pod_in_a_cgroup_of_its_own_has_it_read_and_those_above_once() {
        let root = tempfile::tempdir().unwrap();
        let mut sampler = Sampler::new(CgroupFs::new(root.path(), true));
        for path in [
            "/kubepods",
            "/kubepods/poda",
            "/kubepods/poda/one",
            "/kubepods/podb",
            "/kubepods/podb/two",
        ] {
            cgroup(root.path(), path, 5, 7, 1);
        }
        let seen = sampler.look(vec![pod("a", &["one"]), pod("b", &["two"])], &[]);
        let above: Vec<&str> = seen.above.iter().map(|sample| &*sample.path).collect();
        assert_eq!(above, ["/kubepods"]);
        let whole: Vec<_> = seen
            .pods
            .iter()
            .map(|p| p.whole.as_ref().map(|s| &*s.path))
            .collect();
        assert_eq!(whole, [Some("/kubepods/poda"), Some("/kubepods/podb")]);
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let v2 = crate::host::Machine::read().unwrap().cgroup_v2;
        let mut sampler = Sampler::new(CgroupFs::new("/sys/fs/cgroup", v2));
        let seen = sampler.look(Vec::new(), &[("kubelet", std::process::id())]);
        let memory = seen.node.usage.memory.unwrap();
        assert!(
            memory.usage > 0 && memory.working_set() <= memory.usage,
            "{memory:?}"
        );
        assert!(seen.node.limits.memory > Some(0));
        assert!(!seen.disks.is_empty() || !Path::new("/sys/block").exists());
    }
}
