//! Builds the summary from samples and measurements. Values that could not be read are left out. Pure.

mod filesystems;

pub(super) use filesystems::whole_fs;

use super::api::*;
use super::disk::DiskMeasurements;
use super::running_pods::{ContainerSubject, PodSubject};
use super::sampler::{CgroupSample, PodSample, Snapshot};
use super::system::{KUBELET, PODS};
use crate::cri::v1::{self, UInt64Value};
use crate::host::FilesystemUsage;
use crate::host::cgroup::{Pressure, PressureLine, Pressures};
use crate::host::proc::NetworkInterface;
use crate::model::PodUid;
use filesystems::{directories_fs, ephemeral, volumes, with_usage, writable_layer_fs};
use std::collections::HashMap;
use std::path::PathBuf;

/// Upstream's default interface.
const DEFAULT_INTERFACE: &str = "eth0";

pub(super) struct SummaryInputs<'a> {
    pub(super) node_name: &'a str,
    /// Start time of the machine; `started` is that of the kubelet.
    pub(super) booted: Time,
    pub(super) started: Time,
    pub(super) snapshot: &'a Snapshot,
    /// Container stats of the runtime, by container ID.
    pub(super) runtime_stats: &'a HashMap<String, v1::ContainerStats>,
    /// Disk usage; `None` leaves out all disk stats.
    pub(super) disks: Option<Disks<'a>>,
}

#[derive(Clone, Copy)]
pub(super) struct Disks<'a> {
    /// The file system of the kubelet's directory.
    pub(super) node: Option<&'a (Time, FilesystemUsage)>,
    /// The file system of images and of writable layers.
    pub(super) images: Option<&'a FsStats>,
    pub(super) measurements: &'a DiskMeasurements,
    pub(super) pods: &'a HashMap<PodUid, PodPaths>,
    /// Number of threads on the machine, and its limit.
    pub(super) threads: (Option<u64>, Option<u64>),
}

/// The directories and files of a pod that are measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PodPaths {
    pub(super) volumes: Vec<crate::model::MeasurableVolume>,
    /// Directories of logs and of termination logs by container name.
    pub(super) logs: HashMap<String, Vec<PathBuf>>,
    /// Other files of the pod, such as its hosts file.
    pub(super) files: Vec<PathBuf>,
}

pub(super) fn summary(inputs: &SummaryInputs<'_>) -> Summary {
    let pods: Vec<PodStats> = inputs.snapshot.pods.iter().map(|p| pod(inputs, p)).collect();
    Summary { node: node(inputs, &pods), pods }
}

fn node(inputs: &SummaryInputs<'_>, pods: &[PodStats]) -> NodeStats {
    let sample = &inputs.snapshot.node;
    let disks = inputs.disks;
    let mut node_memory = memory(sample);
    // Huge pages are not in the working set, but nothing else can have them. As eviction counts them.
    if let Some(available) = node_memory.as_mut().and_then(|m| m.available_bytes.as_mut()) {
        *available = available.saturating_sub(inputs.snapshot.huge_pages);
    }
    NodeStats {
        node_name: inputs.node_name.to_owned(),
        system_containers: system_containers(inputs, pods),
        start_time: inputs.booted,
        cpu: cpu(sample),
        memory: node_memory,
        swap: swap(sample),
        io: disks.and(io(sample)),
        network: disks.and(network(sample, &inputs.snapshot.network)),
        fs: disks.and_then(|disks| disks.node).map(|(at, fs)| whole_fs(*at, fs)),
        runtime: disks.map(|disks| RuntimeStats {
            image_fs: disks.images.cloned(),
            container_fs: disks.images.cloned(),
        }),
        rlimit: disks.map(|disks| RlimitStats {
            time: Time(sample.at),
            running: disks.threads.0,
            max_pid: disks.threads.1,
        }),
    }
}

/// The system containers: kubelet, runtime, other processes, and pods.
fn system_containers(inputs: &SummaryInputs<'_>, pods: &[PodStats]) -> Vec<ContainerStats> {
    let mut found: Vec<ContainerStats> = Vec::new();
    for system in &inputs.snapshot.system {
        let sample = &system.sample;
        let started = match system.name {
            KUBELET => inputs.started,
            _ if sample.path == inputs.snapshot.node.path => inputs.booted,
            _ => Time(sample.created.unwrap_or_default()),
        };
        found.push(ContainerStats {
            name: system.name.to_owned(),
            start_time: started,
            cpu: cpu(sample),
            memory: memory(sample),
            swap: swap(sample),
            io: inputs.disks.and(io(sample)),
            ..ContainerStats::default()
        });
    }
    // Without a cgroup of all pods (`cgroupsPerQOS: false`), their usage is added up.
    if !found.iter().any(|system| system.name == PODS) {
        found.push(ContainerStats {
            name: PODS.to_owned(),
            cpu: sum_cpu(pods.iter().map(|pod| &pod.cpu)),
            memory: sum_memory(pods.iter().map(|pod| &pod.memory)),
            ..ContainerStats::default()
        });
    }
    found
}

fn pod(inputs: &SummaryInputs<'_>, sampled: &PodSample) -> PodStats {
    let subject = &sampled.pod;
    let containers: Vec<ContainerStats> = subject
        .containers
        .iter()
        .zip(&sampled.containers)
        .map(|(container, sample)| self::container(inputs, subject, container, sample.as_ref()))
        .collect();
    let pod_cgroup = sampled.pod_cgroup.as_ref();
    let sandbox = sampled.sandbox.as_ref();
    // The sum of the containers, used if there is no pod cgroup.
    let sandbox_cpu = sandbox.and_then(cpu);
    let sandbox_memory = sandbox.and_then(memory);
    let of_containers_cpu = containers.iter().map(|c| &c.cpu).chain([&sandbox_cpu]);
    let of_containers_memory = containers.iter().map(|c| &c.memory).chain([&sandbox_memory]);
    let newest = containers.iter().filter_map(|c| Some(c.cpu.as_ref()?.time)).max();
    let samples = || sampled.containers.iter().flatten();
    let processes = samples().filter_map(|sample| Some(sample.usage.tasks?.processes));
    let paths = inputs.disks.and_then(|disks| disks.pods.get(&subject.uid));
    let measured: Vec<(bool, VolumeStats)> = match (inputs.disks, paths) {
        (Some(disks), Some(paths)) => volumes(disks, paths),
        _ => Vec::new(),
    };
    let at = Time(sandbox.or(samples().next()).map_or(0, |sample| sample.at));
    PodStats {
        pod_ref: PodReference {
            name: subject.name.to_string(),
            namespace: subject.namespace.to_string(),
            uid: subject.uid.to_string(),
        },
        start_time: Time(subject.created_at),
        cpu: pod_cgroup.and_then(cpu).or_else(|| sum_cpu(of_containers_cpu)),
        memory: pod_cgroup.and_then(memory).or_else(|| sum_memory(of_containers_memory)),
        swap: pod_cgroup.and_then(swap).or_else(|| sum_swap(&containers)),
        io: inputs.disks.and(pod_cgroup.and_then(io)),
        network: sampled
            .network
            .as_ref()
            .filter(|_| inputs.disks.is_some())
            .and_then(|interfaces| interface_stats(newest.unwrap_or(at), interfaces)),
        process_stats: Some(ProcessStats {
            process_count: Some(processes.fold(0, u64::saturating_add)),
        }),
        ephemeral_storage: inputs.disks.and_then(|disks| {
            let files = paths.map_or(&[][..], |paths| &paths.files);
            let files: Vec<_> = directories_fs(disks, files).collect();
            ephemeral(disks, &containers, &measured, &files)
        }),
        volumes: measured.into_iter().map(|(_, volume)| volume).collect(),
        containers,
    }
}

fn container(
    inputs: &SummaryInputs<'_>,
    pod: &PodSubject,
    container: &ContainerSubject,
    sample: Option<&CgroupSample>,
) -> ContainerStats {
    let runtime_stats = inputs.runtime_stats.get(&*container.id);
    let disks = inputs.disks;
    let logs = disks.and_then(|disks| {
        let paths = disks.pods.get(&pod.uid)?.logs.get(&*container.name)?;
        directories_fs(disks, paths).reduce(|sum, part| with_usage(sum, &part))
    });
    ContainerStats {
        name: container.name.to_string(),
        start_time: Time(container.created_at),
        cpu: sample.and_then(cpu).or_else(|| runtime_cpu(runtime_stats?)),
        memory: sample.and_then(memory).or_else(|| runtime_memory(runtime_stats?)),
        swap: sample.and_then(swap).or_else(|| runtime_swap(runtime_stats?)),
        io: disks.and(sample.and_then(io)),
        rootfs: disks.and_then(|disks| writable_layer_fs(disks, runtime_stats?)),
        logs,
    }
}

fn cpu(sample: &CgroupSample) -> Option<CpuStats> {
    let used = sample.usage.cpu?;
    Some(CpuStats {
        time: Time(sample.at),
        usage_nano_cores: sample.nano_cores,
        usage_core_nano_seconds: Some(used.total),
        psi: Some(psi(&pressures(sample).cpu)),
    })
}

fn memory(sample: &CgroupSample) -> Option<MemoryStats> {
    let used = sample.usage.memory?;
    let working_set = used.working_set();
    Some(MemoryStats {
        time: Time(sample.at),
        available_bytes: sample.limits.memory.map(|limit| limit.saturating_sub(working_set)),
        usage_bytes: Some(used.usage),
        working_set_bytes: Some(working_set),
        rss_bytes: Some(used.rss),
        page_faults: Some(used.page_faults),
        major_page_faults: Some(used.major_page_faults),
        psi: Some(psi(&pressures(sample).memory)),
    })
}

fn swap(sample: &CgroupSample) -> Option<SwapStats> {
    let used = sample.usage.memory?.swap;
    Some(SwapStats {
        time: Time(sample.at),
        swap_available_bytes: sample.limits.swap.map(|limit| limit.saturating_sub(used)),
        swap_usage_bytes: Some(used),
    })
}

fn io(sample: &CgroupSample) -> Option<IoStats> {
    Some(IoStats { time: Time(sample.at), psi: Some(psi(&pressures(sample).io)) })
}

/// Pressure stall information. Zero, as in upstream, if the kernel has none for cgroups: on version 1, or with `psi=0`.
fn pressures(sample: &CgroupSample) -> Pressures {
    sample.usage.pressure.unwrap_or_default()
}

fn psi(pressure: &Pressure) -> PsiStats {
    let data = |line: &PressureLine| {
        let [avg10, avg60, avg300] = line.average;
        PsiData { total: line.total, avg10, avg60, avg300 }
    };
    PsiStats { full: data(&pressure.full), some: data(&pressure.some) }
}

fn network(sample: &CgroupSample, interfaces: &[NetworkInterface]) -> Option<NetworkStats> {
    interface_stats(Time(sample.at), interfaces)
}

fn interface_stats(time: Time, interfaces: &[NetworkInterface]) -> Option<NetworkStats> {
    let stats = |interface: &NetworkInterface| {
        let ([rx_bytes, _, rx_errors, _], [tx_bytes, _, tx_errors, _]) =
            (interface.received, interface.sent);
        InterfaceStats {
            name: interface.name.clone(),
            rx_bytes: Some(rx_bytes),
            rx_errors: Some(rx_errors),
            tx_bytes: Some(tx_bytes),
            tx_errors: Some(tx_errors),
        }
    };
    let interfaces: Vec<InterfaceStats> = interfaces.iter().map(stats).collect();
    let default = interfaces.iter().find(|i| i.name == DEFAULT_INTERFACE);
    Some(NetworkStats { time, default: default.cloned().unwrap_or_default(), interfaces })
}

fn add(sum: &mut Option<u64>, more: Option<u64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or_default().saturating_add(more));
    }
}

fn sum_cpu<'a>(parts: impl Iterator<Item = &'a Option<CpuStats>>) -> Option<CpuStats> {
    let mut sum: Option<CpuStats> = None;
    for part in parts.flatten() {
        let sum = sum.get_or_insert_default();
        sum.time = sum.time.max(part.time);
        add(&mut sum.usage_nano_cores, part.usage_nano_cores);
        add(&mut sum.usage_core_nano_seconds, part.usage_core_nano_seconds);
    }
    sum
}

fn sum_memory<'a>(parts: impl Iterator<Item = &'a Option<MemoryStats>>) -> Option<MemoryStats> {
    let mut sum: Option<MemoryStats> = None;
    for part in parts.flatten() {
        let sum = sum.get_or_insert_default();
        sum.time = sum.time.max(part.time);
        add(&mut sum.usage_bytes, part.usage_bytes);
        add(&mut sum.working_set_bytes, part.working_set_bytes);
        add(&mut sum.rss_bytes, part.rss_bytes);
        add(&mut sum.page_faults, part.page_faults);
        add(&mut sum.major_page_faults, part.major_page_faults);
    }
    sum
}

fn sum_swap(containers: &[ContainerStats]) -> Option<SwapStats> {
    let mut sum: Option<SwapStats> = None;
    for part in containers.iter().filter_map(|container| container.swap.as_ref()) {
        let sum = sum.get_or_insert_default();
        sum.time = sum.time.max(part.time);
        add(&mut sum.swap_usage_bytes, part.swap_usage_bytes);
        add(&mut sum.swap_available_bytes, part.swap_available_bytes);
    }
    sum
}

fn value(runtime_stats: Option<&UInt64Value>) -> Option<u64> {
    runtime_stats.map(|value| value.value)
}

fn runtime_cpu(runtime_stats: &v1::ContainerStats) -> Option<CpuStats> {
    let cpu = runtime_stats.cpu.as_ref()?;
    Some(CpuStats {
        time: Time(cpu.timestamp),
        usage_nano_cores: value(cpu.usage_nano_cores.as_ref()),
        usage_core_nano_seconds: value(cpu.usage_core_nano_seconds.as_ref()),
        psi: None,
    })
}

fn runtime_memory(runtime_stats: &v1::ContainerStats) -> Option<MemoryStats> {
    let memory = runtime_stats.memory.as_ref()?;
    Some(MemoryStats {
        time: Time(memory.timestamp),
        available_bytes: value(memory.available_bytes.as_ref()),
        usage_bytes: value(memory.usage_bytes.as_ref()),
        working_set_bytes: value(memory.working_set_bytes.as_ref()),
        rss_bytes: value(memory.rss_bytes.as_ref()),
        page_faults: value(memory.page_faults.as_ref()),
        major_page_faults: value(memory.major_page_faults.as_ref()),
        psi: None,
    })
}

fn runtime_swap(runtime_stats: &v1::ContainerStats) -> Option<SwapStats> {
    let swap = runtime_stats.swap.as_ref()?;
    Some(SwapStats {
        time: Time(swap.timestamp),
        swap_available_bytes: value(swap.swap_available_bytes.as_ref()),
        swap_usage_bytes: value(swap.swap_usage_bytes.as_ref()),
    })
}

#[cfg(test)]
mod tests;
