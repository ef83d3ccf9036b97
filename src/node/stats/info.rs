//! The response of `/stats/`: cAdvisor's `ContainerInfo`, version 1 (`github.com/google/cadvisor/info/v1`). Pure. Each
//! cgroup has a single sample, the current one.

use super::sampler::{CgroupSample, PodSample, Snapshot};
use crate::host::FilesystemUsage;
use crate::host::cgroup::{DeviceIo, MemoryUsage};
use crate::host::proc::NetworkInterface;
use crate::model::PodUid;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Selects the cgroups of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerInfoSelector {
    /// A cgroup by its path, `/` for the machine, optionally with the sampled cgroups below it.
    Cgroup {
        /// Its path.
        path: String,
        /// Whether to include the cgroups below it.
        subcontainers: bool,
    },
    /// A running container.
    Container {
        /// UID of the pod.
        pod: PodUid,
        /// Name of the container.
        name: String,
    },
}

/// The `ContainerInfo` of one cgroup.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerInfo {
    /// Its path.
    pub path: String,
    at: i64,
    facts: Map<String, Value>,
    sample: Value,
}

impl ContainerInfo {
    /// The JSON object; includes the sample only if it was taken between these times.
    pub fn into_json(self, start: Option<Timestamp>, end: Option<Timestamp>) -> Value {
        let mut facts = self.facts;
        let at = timestamp(self.at);
        let is_in = start.is_none_or(|start| start <= at) && end.is_none_or(|end| at <= end);
        if is_in {
            facts.insert("stats".to_owned(), json!([self.sample]));
        }
        Value::Object(facts)
    }
}

#[cfg(test)]
impl ContainerInfo {
    /// Of a machine with the cgroup `/a`, and the containers `c` of every pod but that of uid-b.
    pub(crate) fn example(of: &ContainerInfoSelector) -> Option<Self> {
        let path = match of {
            ContainerInfoSelector::Cgroup { path, .. } if path == "/" || path == "/a" => {
                path.clone()
            }
            ContainerInfoSelector::Container { pod, name }
                if name == "c" && pod.as_str() != "uid-b" =>
            {
                format!("/{pod}/c")
            }
            _ => return None,
        };
        let mut facts = Map::new();
        facts.insert("name".to_owned(), json!(path));
        Some(Self { path, at: 1_700_000_000_000_000_000, facts, sample: json!({"cpu": {}}) })
    }
}

/// The file systems of the kubelet's directory and of images: device and usage.
pub(super) type Filesystems = [(String, FilesystemUsage)];

/// Inputs other than the cgroup samples.
pub(super) struct InfoContext<'a> {
    /// Boot time, nanoseconds since the epoch.
    pub(super) booted: i64,
    /// The runtime's name.
    pub(super) runtime: &'a str,
    pub(super) filesystems: &'a Filesystems,
}

struct NamedCgroup<'a> {
    sample: &'a CgroupSample,
    id: Option<&'a str>,
    image: &'a str,
    labels: Value,
    network: Option<&'a [NetworkInterface]>,
    filesystems: &'a Filesystems,
}

impl<'a> NamedCgroup<'a> {
    fn of(sample: &'a CgroupSample) -> Self {
        Self { sample, id: None, image: "", labels: Value::Null, network: None, filesystems: &[] }
    }
}

/// The selected cgroups; empty if the selected one does not exist.
pub(super) fn infos(
    snapshot: &Snapshot,
    context: &InfoContext<'_>,
    of: &ContainerInfoSelector,
) -> Vec<ContainerInfo> {
    let reported = |entity: NamedCgroup<'_>| info(&entity, snapshot, context);
    match of {
        ContainerInfoSelector::Container { pod, name } => {
            let mut pods = snapshot.pods.iter();
            let found = pods.find(|sampled| sampled.pod.uid == *pod);
            let named = found.into_iter().flat_map(containers);
            let mut named = named.filter(|(of, _)| *of == name.as_str());
            named.next().map(|(_, entity)| reported(entity)).into_iter().collect()
        }
        ContainerInfoSelector::Cgroup { path, subcontainers } => {
            let top = path.trim_end_matches('/');
            let wanted = |at: &str| {
                let under = at.strip_prefix(top).is_some_and(|at| at.starts_with('/'));
                at == path || *subcontainers && under
            };
            let mut found: Vec<ContainerInfo> = all(snapshot, context)
                .filter(|entity| wanted(&entity.sample.path))
                .map(reported)
                .collect();
            found.sort_by(|a, b| a.path.cmp(&b.path));
            found.dedup_by(|a, b| a.path == b.path);
            // Without the selected cgroup itself there is no result.
            if !found.iter().any(|info| info.path == *path) {
                found.clear();
            }
            found
        }
    }
}

fn all<'a>(
    snapshot: &'a Snapshot,
    context: &InfoContext<'a>,
) -> impl Iterator<Item = NamedCgroup<'a>> {
    let machine = NamedCgroup {
        network: Some(&snapshot.network),
        filesystems: context.filesystems,
        ..NamedCgroup::of(&snapshot.node)
    };
    let of_pods = snapshot.pods.iter().flat_map(|pod| {
        let pod_cgroup = pod.pod_cgroup.iter().map(NamedCgroup::of);
        pod_cgroup.chain(sandbox(pod)).chain(containers(pod).map(|(_, entity)| entity))
    });
    let system = snapshot.system.iter().map(|system| &system.sample);
    let others = system.chain(&snapshot.ancestors).map(NamedCgroup::of);
    // If two have the same path, the first one is used, because it has names and labels.
    std::iter::once(machine).chain(of_pods).chain(others)
}

fn sandbox(pod: &PodSample) -> Option<NamedCgroup<'_>> {
    Some(NamedCgroup {
        id: pod.pod.sandbox.as_deref(),
        labels: labels(pod, "POD"),
        network: pod.network.as_deref(),
        ..NamedCgroup::of(pod.sandbox.as_ref()?)
    })
}

/// The containers of a pod that have a cgroup. All of them have the network stats of the sandbox.
fn containers(pod: &PodSample) -> impl Iterator<Item = (&str, NamedCgroup<'_>)> {
    let both = pod.pod.containers.iter().zip(&pod.containers);
    both.filter_map(move |(container, sample)| {
        let entity = NamedCgroup {
            id: Some(&container.id),
            image: &container.image,
            labels: labels(pod, &container.name),
            network: pod.network.as_deref(),
            ..NamedCgroup::of(sample.as_ref()?)
        };
        Some((&*container.name, entity))
    })
}

fn labels(pod: &PodSample, container: &str) -> Value {
    json!({
        "io.kubernetes.container.name": container,
        "io.kubernetes.pod.name": &*pod.pod.name,
        "io.kubernetes.pod.namespace": &*pod.pod.namespace,
        "io.kubernetes.pod.uid": pod.pod.uid.as_str(),
    })
}

fn info(entity: &NamedCgroup<'_>, snapshot: &Snapshot, context: &InfoContext<'_>) -> ContainerInfo {
    let path = entity.sample.path.to_string();
    let mut facts = Map::new();
    let mut put = |key: &str, value: Value| facts.insert(key.to_owned(), value);
    put("name", json!(path));
    if let Some(id) = entity.id {
        put("id", json!(id));
        put("aliases", json!([id]));
        put("namespace", json!(context.runtime));
    }
    put("spec", spec(entity, context.booted));
    ContainerInfo { path, at: entity.sample.at, facts, sample: sample(entity, &snapshot.disks) }
}

fn spec(entity: &NamedCgroup<'_>, booted: i64) -> Value {
    let (limits, usage) = (entity.sample.limits, &entity.sample.usage);
    without_null(json!({
        "creation_time": entity.sample.created.map(|at| time(at.max(booted))),
        "labels": entity.labels,
        "image": Some(entity.image).filter(|image| !image.is_empty()),
        "has_cpu": usage.cpu.is_some(),
        "cpu": {
            "limit": limits.cpu_shares.unwrap_or_default(),
            "max_limit": 0,
            "quota": limits.cpu_quota,
            "period": limits.cpu_period,
        },
        "has_memory": usage.memory.is_some(),
        "memory": {
            "limit": limits.memory,
            "reservation": limits.reservation,
            "swap_limit": limits.swap,
        },
        "has_hugetlb": false,
        "has_network": entity.network.is_some(),
        "has_processes": usage.tasks.is_some(),
        "processes": { "limit": limits.threads },
        "has_filesystem": !entity.filesystems.is_empty(),
        "has_diskio": !usage.io.is_empty(),
        "has_custom_metrics": false,
    }))
}

fn sample(entity: &NamedCgroup<'_>, disks: &HashMap<(u32, u32), String>) -> Value {
    let usage = &entity.sample.usage;
    let (cpu, cfs) = (usage.cpu.unwrap_or_default(), usage.throttling);
    let cfs = cfs.unwrap_or_default();
    without_null(json!({
        "timestamp": time(entity.sample.at),
        "cpu": {
            "usage": { "total": cpu.total, "user": cpu.user, "system": cpu.system },
            "cfs": {
                "periods": cfs.periods,
                "throttled_periods": cfs.throttled_periods,
                "throttled_time": cfs.throttled,
                "burst_periods": cfs.burst_periods,
                "burst_time": cfs.burst,
            },
            "load_average": 0,
        },
        "memory": usage.memory.as_ref().map(memory),
        "network": entity.network.map(network),
        "diskio": disk_io(&usage.io, disks),
        "filesystem": (!entity.filesystems.is_empty()).then(|| filesystems(entity.filesystems)),
        "processes": usage.tasks.map(|tasks| json!({
            "process_count": tasks.processes,
            "threads_current": tasks.threads,
            "threads_max": entity.sample.limits.threads,
        })),
    }))
}

fn memory(memory: &MemoryUsage) -> Value {
    let faults = json!({
        "pgfault": memory.page_faults,
        "pgmajfault": memory.major_page_faults,
    });
    json!({
        "usage": memory.usage,
        "max_usage": memory.max_usage.unwrap_or_default(),
        "cache": memory.cache,
        "rss": memory.rss,
        "swap": memory.swap,
        "mapped_file": memory.mapped_file,
        "working_set": memory.working_set(),
        "failcnt": memory.failures,
        "kernel": memory.kernel,
        "total_active_file": memory.active_file,
        "total_inactive_file": memory.inactive_file,
        "container_data": faults,
        "hierarchical_data": faults,
    })
}

/// The first interface in the fields for old clients, and the list of all.
fn network(interfaces: &[NetworkInterface]) -> Value {
    let one = |interface: &NetworkInterface| {
        let ([rx, rx_packets, rx_errors, rx_dropped], [tx, tx_packets, tx_errors, tx_dropped]) =
            (interface.received, interface.sent);
        json!({
            "name": interface.name,
            "rx_bytes": rx,
            "rx_packets": rx_packets,
            "rx_errors": rx_errors,
            "rx_dropped": rx_dropped,
            "tx_bytes": tx,
            "tx_packets": tx_packets,
            "tx_errors": tx_errors,
            "tx_dropped": tx_dropped,
        })
    };
    let all: Vec<Value> = interfaces.iter().map(one).collect();
    let mut reported = all.first().cloned().unwrap_or_else(|| json!({}));
    if let Some(reported) = reported.as_object_mut() {
        reported.insert("interfaces".to_owned(), Value::Array(all));
    }
    reported
}

fn disk_io(devices: &[DeviceIo], disks: &HashMap<(u32, u32), String>) -> Value {
    let table = |counts: fn(&DeviceIo) -> (u64, u64)| -> Vec<Value> {
        let row = |io: &DeviceIo| {
            let ((major, minor), (reads, writes)) = (io.device, counts(io));
            json!({
                "device": disks.get(&io.device).map_or("", String::as_str),
                "major": major,
                "minor": minor,
                "stats": { "Read": reads, "Write": writes, "Total": reads.saturating_add(writes) },
            })
        };
        devices.iter().map(row).collect()
    };
    if devices.is_empty() {
        json!({})
    } else {
        json!({
            "io_service_bytes": table(|io| (io.read_bytes, io.write_bytes)),
            "io_serviced": table(|io| (io.reads, io.writes)),
        })
    }
}

fn filesystems(filesystems: &Filesystems) -> Vec<Value> {
    let one = |(device, fs): &(String, FilesystemUsage)| {
        json!({
            "device": device,
            "capacity": fs.capacity,
            "usage": fs.used,
            "available": fs.available,
            "has_inodes": fs.inodes > 0,
            "inodes": fs.inodes,
            "inodes_free": fs.inodes_free,
        })
    };
    filesystems.iter().map(one).collect()
}

/// Removes null values at every depth.
fn without_null(mut value: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.retain(|_, value| !value.is_null());
        for inner in object.values_mut() {
            *inner = without_null(inner.take());
        }
    }
    value
}

fn timestamp(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanos.into()).unwrap_or_default()
}

fn time(nanos: i64) -> String {
    timestamp(nanos).to_string()
}

#[cfg(test)]
mod tests;
