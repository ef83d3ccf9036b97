//! The cAdvisor metric families, with upstream's names, help texts and types. Pure.

use super::series::{MetricSubject, Samples, SeriesFamily, counter, gauge};
use super::text::MetricValue::{self, Micros, Nanos, Whole};
use crate::host::FilesystemUsage;
use crate::host::cgroup::{
    CgroupLimits, CpuUsage, DeviceIo, MemoryUsage, Pressures, TaskCount, Throttling,
};
use crate::host::proc::NetworkInterface;

/// All families, sorted by name.
#[rustfmt::skip] // One line per family reads best.
pub(super) static FAMILIES: &[SeriesFamily] = &[
    counter("container_cpu_cfs_burst_periods_total", "Number of periods when burst occurs.", |e, s| cfs(e, s, |cfs| Whole(cfs.burst_periods))),
    counter("container_cpu_cfs_burst_seconds_total", "Total time duration the container has been bursted.", |e, s| cfs(e, s, |cfs| Nanos(cfs.burst))),
    counter("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", |e, s| cfs(e, s, |cfs| Whole(cfs.periods))),
    counter("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.", |e, s| cfs(e, s, |cfs| Whole(cfs.throttled_periods))),
    counter("container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled.", |e, s| cfs(e, s, |cfs| Nanos(cfs.throttled))),
    counter("container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds.", |e, s| cpu(e, s, &[], |cpu| cpu.system)),
    counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", |e, s| cpu(e, s, &[("cpu", "total")], |cpu| cpu.total)),
    counter("container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", |e, s| cpu(e, s, &[], |cpu| cpu.user)),
    gauge("container_fs_inodes_free", "Number of available Inodes", |e, s| filesystems(e, s, |fs| fs.inodes_free)),
    gauge("container_fs_inodes_total", "Number of Inodes", |e, s| filesystems(e, s, |fs| fs.inodes)),
    gauge("container_fs_limit_bytes", "Number of bytes that can be consumed by the container on this filesystem.", |e, s| filesystems(e, s, |fs| fs.capacity)),
    counter("container_fs_reads_bytes_total", "Cumulative count of bytes read", |e, s| disks(e, s, |io| io.read_bytes)),
    counter("container_fs_reads_total", "Cumulative count of reads completed", |e, s| disks(e, s, |io| io.reads)),
    gauge("container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.", |e, s| filesystems(e, s, |fs| fs.used)),
    counter("container_fs_writes_bytes_total", "Cumulative count of bytes written", |e, s| disks(e, s, |io| io.write_bytes)),
    counter("container_fs_writes_total", "Cumulative count of writes completed", |e, s| disks(e, s, |io| io.writes)),
    gauge("container_last_seen", "Last time a container was seen by the exporter", |_, s| s.put(&[], Whole(whole_seconds(s.at)))),
    gauge("container_memory_cache", "Number of bytes of page cache memory.", |e, s| memory(e, s, |m| m.cache)),
    counter("container_memory_failcnt", "Number of memory usage hits limits", |e, s| memory(e, s, |m| m.failures)),
    counter("container_memory_failures_total", "Cumulative count of memory allocation failures.", failures),
    gauge("container_memory_kernel_usage", "Size of kernel memory allocated in bytes.", |e, s| memory(e, s, |m| m.kernel)),
    gauge("container_memory_mapped_file", "Size of memory mapped files in bytes.", |e, s| memory(e, s, |m| m.mapped_file)),
    gauge("container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", max_memory),
    gauge("container_memory_rss", "Size of RSS in bytes.", |e, s| memory(e, s, |m| m.rss)),
    gauge("container_memory_swap", "Container swap usage in bytes.", |e, s| memory(e, s, |m| m.swap)),
    gauge("container_memory_total_active_file_bytes", "Current total active file in bytes.", |e, s| memory(e, s, |m| m.active_file)),
    gauge("container_memory_total_inactive_file_bytes", "Current total inactive file in bytes.", |e, s| memory(e, s, |m| m.inactive_file)),
    gauge("container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", |e, s| memory(e, s, |m| m.usage)),
    gauge("container_memory_working_set_bytes", "Current working set in bytes.", |e, s| memory(e, s, |m| m.working_set())),
    counter("container_network_receive_bytes_total", "Cumulative count of bytes received", |e, s| network(e, s, |i| { let [n, _, _, _] = i.received; n })),
    counter("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", |e, s| network(e, s, |i| { let [_, _, n, _] = i.received; n })),
    counter("container_network_receive_packets_dropped_total", "Cumulative count of packets dropped while receiving", |e, s| network(e, s, |i| { let [_, _, _, n] = i.received; n })),
    counter("container_network_receive_packets_total", "Cumulative count of packets received", |e, s| network(e, s, |i| { let [_, n, _, _] = i.received; n })),
    counter("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", |e, s| network(e, s, |i| { let [n, _, _, _] = i.sent; n })),
    counter("container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", |e, s| network(e, s, |i| { let [_, _, n, _] = i.sent; n })),
    counter("container_network_transmit_packets_dropped_total", "Cumulative count of packets dropped while transmitting", |e, s| network(e, s, |i| { let [_, _, _, n] = i.sent; n })),
    counter("container_network_transmit_packets_total", "Cumulative count of packets transmitted", |e, s| network(e, s, |i| { let [_, n, _, _] = i.sent; n })),
    counter("container_oom_events_total", "Count of out of memory events observed for the container", |e, s| memory(e, s, |m| m.oom_kills)),
    counter("container_pressure_cpu_stalled_seconds_total", "Total time duration no tasks in the container could make progress due to CPU congestion.", |e, s| pressure(e, s, |p| p.cpu.full.total)),
    counter("container_pressure_cpu_waiting_seconds_total", "Total time duration tasks in the container have waited due to CPU congestion.", |e, s| pressure(e, s, |p| p.cpu.some.total)),
    counter("container_pressure_io_stalled_seconds_total", "Total time duration no tasks in the container could make progress due to IO congestion.", |e, s| pressure(e, s, |p| p.io.full.total)),
    counter("container_pressure_io_waiting_seconds_total", "Total time duration tasks in the container have waited due to IO congestion.", |e, s| pressure(e, s, |p| p.io.some.total)),
    counter("container_pressure_memory_stalled_seconds_total", "Total time duration no tasks in the container could make progress due to memory congestion.", |e, s| pressure(e, s, |p| p.memory.full.total)),
    counter("container_pressure_memory_waiting_seconds_total", "Total time duration tasks in the container have waited due to memory congestion.", |e, s| pressure(e, s, |p| p.memory.some.total)),
    gauge("container_processes", "Number of processes running inside the container.", |e, s| tasks(e, s, |tasks| tasks.processes)),
    gauge("container_spec_cpu_period", "CPU period of the container.", |e, s| constant(s, e.sample.limits.cpu_period)),
    gauge("container_spec_cpu_quota", "CPU quota of the container.", |e, s| constant(s, e.sample.limits.cpu_quota)),
    gauge("container_spec_cpu_shares", "CPU share of the container.", |e, s| constant(s, e.sample.limits.cpu_shares)),
    gauge("container_spec_memory_limit_bytes", "Memory limit for the container.", |e, s| memory_limit(e, s, |limits| limits.memory)),
    gauge("container_spec_memory_reservation_limit_bytes", "Memory reservation limit for the container.", |e, s| memory_limit(e, s, |limits| limits.reservation)),
    gauge("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.", |e, s| memory_limit(e, s, |limits| limits.swap)),
    gauge("container_start_time_seconds", "Start time of the container since unix epoch in seconds.", |e, s| constant(s, e.started.map(whole_seconds))),
    gauge("container_threads", "Number of threads running inside the container", |e, s| tasks(e, s, |tasks| tasks.threads)),
    gauge("container_threads_max", "Maximum number of threads allowed inside the container, infinity if value is zero", max_threads),
];

fn cfs(entity: &MetricSubject, samples: &mut Samples<'_>, value: fn(&Throttling) -> MetricValue) {
    if let Some(throttling) = &entity.sample.usage.throttling {
        samples.put(&[], value(throttling));
    }
}

fn cpu(
    entity: &MetricSubject,
    samples: &mut Samples<'_>,
    more: &[(&str, &str)],
    nanos: fn(&CpuUsage) -> u64,
) {
    if let Some(cpu) = &entity.sample.usage.cpu {
        samples.put(more, Nanos(nanos(cpu)));
    }
}

fn memory(entity: &MetricSubject, samples: &mut Samples<'_>, value: fn(&MemoryUsage) -> u64) {
    if let Some(memory) = &entity.sample.usage.memory {
        samples.put(&[], Whole(value(memory)));
    }
}

fn max_memory(entity: &MetricSubject, samples: &mut Samples<'_>) {
    let memory = entity.sample.usage.memory;
    if let Some(max) = memory.and_then(|memory| memory.max_usage) {
        samples.put(&[], Whole(max));
    }
}

/// Samples with the labels `failure_type` and `scope`. The kernel does not separate the page faults of a cgroup from
/// those of its children, so both scopes have the same value, as in upstream.
fn failures(entity: &MetricSubject, samples: &mut Samples<'_>) {
    let Some(memory) = entity.sample.usage.memory else {
        return;
    };
    for scope in ["container", "hierarchy"] {
        for (kind, count) in
            [("pgfault", memory.page_faults), ("pgmajfault", memory.major_page_faults)]
        {
            let labels = [("failure_type", kind), ("scope", scope)];
            samples.put(&labels, Whole(count));
        }
    }
}

fn disks(entity: &MetricSubject, samples: &mut Samples<'_>, value: fn(&DeviceIo) -> u64) {
    let snapshot = samples.snapshot;
    for io in &entity.sample.usage.io {
        let name = snapshot.disks.get(&io.device).map_or("", String::as_str);
        samples.put(&[("device", name)], Whole(value(io)));
    }
}

fn filesystems(
    entity: &MetricSubject,
    samples: &mut Samples<'_>,
    value: fn(&FilesystemUsage) -> u64,
) {
    for (device, fs) in &entity.filesystems {
        samples.put(&[("device", device)], Whole(value(fs)));
    }
}

fn network(entity: &MetricSubject, samples: &mut Samples<'_>, value: fn(&NetworkInterface) -> u64) {
    for interface in entity.network.iter() {
        let labels = [("interface", interface.name.as_str())];
        samples.put(&labels, Whole(value(interface)));
    }
}

fn pressure(entity: &MetricSubject, samples: &mut Samples<'_>, micros: fn(&Pressures) -> u64) {
    if let Some(pressures) = &entity.sample.usage.pressure {
        samples.put(&[], Micros(micros(pressures)));
    }
}

fn tasks(entity: &MetricSubject, samples: &mut Samples<'_>, count: fn(&TaskCount) -> u64) {
    if let Some(tasks) = &entity.sample.usage.tasks {
        samples.put(&[], Whole(count(tasks)));
    }
}

fn max_threads(entity: &MetricSubject, samples: &mut Samples<'_>) {
    if entity.sample.usage.tasks.is_some() {
        let max = entity.sample.limits.threads.unwrap_or_default();
        samples.put(&[], Whole(max));
    }
}

/// A value that does not change while the container runs.
fn constant(samples: &mut Samples<'_>, value: Option<u64>) {
    if let Some(value) = value {
        samples.put_without_timestamp(Whole(value));
    }
}

fn memory_limit(
    entity: &MetricSubject,
    samples: &mut Samples<'_>,
    limit: fn(&CgroupLimits) -> Option<u64>,
) {
    let limits = &entity.sample.limits;
    if limits.has_memory {
        samples.put_without_timestamp(Whole(limit(limits).unwrap_or_default()));
    }
}

fn whole_seconds(nanos: i64) -> u64 {
    u64::try_from(nanos / 1_000_000_000).unwrap_or_default()
}
