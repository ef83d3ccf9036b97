//! The cAdvisor metric families, with upstream's names, help texts and types. Pure.

use super::{
    series::{MetricSubject, Samples, SeriesFamily},
    text::{MetricKind, MetricValue},
};
use crate::host::{FilesystemUsage, cgroup::DeviceIo, proc::NetworkInterface};

/// All families, sorted by name.
#[rustfmt::skip]
pub(super) static FAMILIES: &[SeriesFamily] = &[
    SeriesFamily {
        name: "container_cpu_cfs_burst_periods_total",
        help: "Number of periods when burst occurs.",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(cfs) = e.sample.usage.throttling { s.put(&[], MetricValue::Whole(cfs.burst_periods)); } },
    },
    SeriesFamily {
        name: "container_cpu_cfs_burst_seconds_total",
        help: "Total time duration the container has been bursted.",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(cfs) = e.sample.usage.throttling { s.put(&[], MetricValue::Nanos(cfs.burst)); } },
    },
    SeriesFamily {
        name: "container_cpu_cfs_periods_total",
        help: "Number of elapsed enforcement period intervals.",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(cfs) = e.sample.usage.throttling { s.put(&[], MetricValue::Whole(cfs.periods)); } },
    },
    SeriesFamily {
        name: "container_cpu_cfs_throttled_periods_total",
        help: "Number of throttled period intervals.",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(cfs) = e.sample.usage.throttling { s.put(&[], MetricValue::Whole(cfs.throttled_periods)); } },
    },
    SeriesFamily {
        name: "container_cpu_cfs_throttled_seconds_total",
        help: "Total time duration the container has been throttled.",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(cfs) = e.sample.usage.throttling { s.put(&[], MetricValue::Nanos(cfs.throttled)); } },
    },
    SeriesFamily {
        name: "container_cpu_system_seconds_total",
        help: "Cumulative system cpu time consumed in seconds.",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(cpu) = e.sample.usage.cpu { s.put(&[], MetricValue::Nanos(cpu.system)); } },
    },
    SeriesFamily {
        name: "container_cpu_usage_seconds_total",
        help: "Cumulative cpu time consumed in seconds.",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(cpu) = e.sample.usage.cpu { s.put(&[("cpu", "total")], MetricValue::Nanos(cpu.total)); } },
    },
    SeriesFamily {
        name: "container_cpu_user_seconds_total",
        help: "Cumulative user cpu time consumed in seconds.",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(cpu) = e.sample.usage.cpu { s.put(&[], MetricValue::Nanos(cpu.user)); } },
    },
    SeriesFamily {
        name: "container_fs_inodes_free",
        help: "Number of available Inodes",
        kind: MetricKind::Gauge,
        write: |e, s| filesystems(e, s, |fs| fs.inodes_free),
    },
    SeriesFamily {
        name: "container_fs_inodes_total",
        help: "Number of Inodes",
        kind: MetricKind::Gauge,
        write: |e, s| filesystems(e, s, |fs| fs.inodes),
    },
    SeriesFamily {
        name: "container_fs_limit_bytes",
        help: "Number of bytes that can be consumed by the container on this filesystem.",
        kind: MetricKind::Gauge,
        write: |e, s| filesystems(e, s, |fs| fs.capacity),
    },
    SeriesFamily {
        name: "container_fs_reads_bytes_total",
        help: "Cumulative count of bytes read",
        kind: MetricKind::Counter,
        write: |e, s| disks(e, s, |io| io.read_bytes),
    },
    SeriesFamily {
        name: "container_fs_reads_total",
        help: "Cumulative count of reads completed",
        kind: MetricKind::Counter,
        write: |e, s| disks(e, s, |io| io.reads),
    },
    SeriesFamily {
        name: "container_fs_usage_bytes",
        help: "Number of bytes that are consumed by the container on this filesystem.",
        kind: MetricKind::Gauge,
        write: |e, s| filesystems(e, s, |fs| fs.used),
    },
    SeriesFamily {
        name: "container_fs_writes_bytes_total",
        help: "Cumulative count of bytes written",
        kind: MetricKind::Counter,
        write: |e, s| disks(e, s, |io| io.write_bytes),
    },
    SeriesFamily {
        name: "container_fs_writes_total",
        help: "Cumulative count of writes completed",
        kind: MetricKind::Counter,
        write: |e, s| disks(e, s, |io| io.writes),
    },
    SeriesFamily {
        name: "container_last_seen",
        help: "Last time a container was seen by the exporter",
        kind: MetricKind::Gauge,
        write: |_, s| { let at = s.at(); s.put(&[], MetricValue::Whole(whole_seconds(at))); },
    },
    SeriesFamily {
        name: "container_memory_cache",
        help: "Number of bytes of page cache memory.",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], MetricValue::Whole(memory.cache)); } },
    },
    SeriesFamily {
        name: "container_memory_failcnt",
        help: "Number of memory usage hits limits",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], MetricValue::Whole(memory.failures)); } },
    },
    SeriesFamily {
        name: "container_memory_failures_total",
        help: "Cumulative count of memory allocation failures.",
        kind: MetricKind::Counter,
        write: |e, s| failures(e, s),
    },
    SeriesFamily {
        name: "container_memory_kernel_usage",
        help: "Size of kernel memory allocated in bytes.",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], MetricValue::Whole(memory.kernel)); } },
    },
    SeriesFamily {
        name: "container_memory_mapped_file",
        help: "Size of memory mapped files in bytes.",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], MetricValue::Whole(memory.mapped_file)); } },
    },
    SeriesFamily {
        name: "container_memory_max_usage_bytes",
        help: "Maximum memory usage recorded in bytes",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(most) = e.sample.usage.memory.and_then(|memory| memory.max_usage) { s.put(&[], MetricValue::Whole(most)); } },
    },
    SeriesFamily {
        name: "container_memory_rss",
        help: "Size of RSS in bytes.",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], MetricValue::Whole(memory.rss)); } },
    },
    SeriesFamily {
        name: "container_memory_swap",
        help: "Container swap usage in bytes.",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], MetricValue::Whole(memory.swap)); } },
    },
    SeriesFamily {
        name: "container_memory_total_active_file_bytes",
        help: "Current total active file in bytes.",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], MetricValue::Whole(memory.active_file)); } },
    },
    SeriesFamily {
        name: "container_memory_total_inactive_file_bytes",
        help: "Current total inactive file in bytes.",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], MetricValue::Whole(memory.inactive_file)); } },
    },
    SeriesFamily {
        name: "container_memory_usage_bytes",
        help: "Current memory usage in bytes, including all memory regardless of when it was accessed",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], MetricValue::Whole(memory.usage)); } },
    },
    SeriesFamily {
        name: "container_memory_working_set_bytes",
        help: "Current working set in bytes.",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], MetricValue::Whole(memory.working_set())); } },
    },
    SeriesFamily {
        name: "container_network_receive_bytes_total",
        help: "Cumulative count of bytes received",
        kind: MetricKind::Counter,
        write: |e, s| network(e, s, |i| { let [n, _, _, _] = i.received; n }),
    },
    SeriesFamily {
        name: "container_network_receive_errors_total",
        help: "Cumulative count of errors encountered while receiving",
        kind: MetricKind::Counter,
        write: |e, s| network(e, s, |i| { let [_, _, n, _] = i.received; n }),
    },
    SeriesFamily {
        name: "container_network_receive_packets_dropped_total",
        help: "Cumulative count of packets dropped while receiving",
        kind: MetricKind::Counter,
        write: |e, s| network(e, s, |i| { let [_, _, _, n] = i.received; n }),
    },
    SeriesFamily {
        name: "container_network_receive_packets_total",
        help: "Cumulative count of packets received",
        kind: MetricKind::Counter,
        write: |e, s| network(e, s, |i| { let [_, n, _, _] = i.received; n }),
    },
    SeriesFamily {
        name: "container_network_transmit_bytes_total",
        help: "Cumulative count of bytes transmitted",
        kind: MetricKind::Counter,
        write: |e, s| network(e, s, |i| { let [n, _, _, _] = i.sent; n }),
    },
    SeriesFamily {
        name: "container_network_transmit_errors_total",
        help: "Cumulative count of errors encountered while transmitting",
        kind: MetricKind::Counter,
        write: |e, s| network(e, s, |i| { let [_, _, n, _] = i.sent; n }),
    },
    SeriesFamily {
        name: "container_network_transmit_packets_dropped_total",
        help: "Cumulative count of packets dropped while transmitting",
        kind: MetricKind::Counter,
        write: |e, s| network(e, s, |i| { let [_, _, _, n] = i.sent; n }),
    },
    SeriesFamily {
        name: "container_network_transmit_packets_total",
        help: "Cumulative count of packets transmitted",
        kind: MetricKind::Counter,
        write: |e, s| network(e, s, |i| { let [_, n, _, _] = i.sent; n }),
    },
    SeriesFamily {
        name: "container_oom_events_total",
        help: "Count of out of memory events observed for the container",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], MetricValue::Whole(memory.oom_kills)); } },
    },
    SeriesFamily {
        name: "container_pressure_cpu_stalled_seconds_total",
        help: "Total time duration no tasks in the container could make progress due to CPU congestion.",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(p) = e.sample.usage.pressure { s.put(&[], MetricValue::Micros(p.cpu.full.total)); } },
    },
    SeriesFamily {
        name: "container_pressure_cpu_waiting_seconds_total",
        help: "Total time duration tasks in the container have waited due to CPU congestion.",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(p) = e.sample.usage.pressure { s.put(&[], MetricValue::Micros(p.cpu.some.total)); } },
    },
    SeriesFamily {
        name: "container_pressure_io_stalled_seconds_total",
        help: "Total time duration no tasks in the container could make progress due to IO congestion.",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(p) = e.sample.usage.pressure { s.put(&[], MetricValue::Micros(p.io.full.total)); } },
    },
    SeriesFamily {
        name: "container_pressure_io_waiting_seconds_total",
        help: "Total time duration tasks in the container have waited due to IO congestion.",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(p) = e.sample.usage.pressure { s.put(&[], MetricValue::Micros(p.io.some.total)); } },
    },
    SeriesFamily {
        name: "container_pressure_memory_stalled_seconds_total",
        help: "Total time duration no tasks in the container could make progress due to memory congestion.",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(p) = e.sample.usage.pressure { s.put(&[], MetricValue::Micros(p.memory.full.total)); } },
    },
    SeriesFamily {
        name: "container_pressure_memory_waiting_seconds_total",
        help: "Total time duration tasks in the container have waited due to memory congestion.",
        kind: MetricKind::Counter,
        write: |e, s| { if let Some(p) = e.sample.usage.pressure { s.put(&[], MetricValue::Micros(p.memory.some.total)); } },
    },
    SeriesFamily {
        name: "container_processes",
        help: "Number of processes running inside the container.",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(tasks) = e.sample.usage.tasks { s.put(&[], MetricValue::Whole(tasks.processes)); } },
    },
    SeriesFamily {
        name: "container_spec_cpu_period",
        help: "CPU period of the container.",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(value) = e.sample.limits.cpu_period { s.put_without_timestamp(MetricValue::Whole(value)); } },
    },
    SeriesFamily {
        name: "container_spec_cpu_quota",
        help: "CPU quota of the container.",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(value) = e.sample.limits.cpu_quota { s.put_without_timestamp(MetricValue::Whole(value)); } },
    },
    SeriesFamily {
        name: "container_spec_cpu_shares",
        help: "CPU share of the container.",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(value) = e.sample.limits.cpu_shares { s.put_without_timestamp(MetricValue::Whole(value)); } },
    },
    SeriesFamily {
        name: "container_spec_memory_limit_bytes",
        help: "Memory limit for the container.",
        kind: MetricKind::Gauge,
        write: |e, s| { if e.sample.limits.has_memory { s.put_without_timestamp(MetricValue::Whole(e.sample.limits.memory.unwrap_or_default())); } },
    },
    SeriesFamily {
        name: "container_spec_memory_reservation_limit_bytes",
        help: "Memory reservation limit for the container.",
        kind: MetricKind::Gauge,
        write: |e, s| { if e.sample.limits.has_memory { s.put_without_timestamp(MetricValue::Whole(e.sample.limits.reservation.unwrap_or_default())); } },
    },
    SeriesFamily {
        name: "container_spec_memory_swap_limit_bytes",
        help: "Memory swap limit for the container.",
        kind: MetricKind::Gauge,
        write: |e, s| { if e.sample.limits.has_memory { s.put_without_timestamp(MetricValue::Whole(e.sample.limits.swap.unwrap_or_default())); } },
    },
    SeriesFamily {
        name: "container_start_time_seconds",
        help: "Start time of the container since unix epoch in seconds.",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(at) = e.started { s.put_without_timestamp(MetricValue::Whole(whole_seconds(at))); } },
    },
    SeriesFamily {
        name: "container_threads",
        help: "Number of threads running inside the container",
        kind: MetricKind::Gauge,
        write: |e, s| { if let Some(tasks) = e.sample.usage.tasks { s.put(&[], MetricValue::Whole(tasks.threads)); } },
    },
    SeriesFamily {
        name: "container_threads_max",
        help: "Maximum number of threads allowed inside the container, infinity if value is zero",
        kind: MetricKind::Gauge,
        write: |e, s| { if e.sample.usage.tasks.is_some() { s.put(&[], MetricValue::Whole(e.sample.limits.threads.unwrap_or_default())); } },
    },
];

/// Samples with the labels `failure_type` and `scope`. The kernel does not separate the page faults of a cgroup from
/// those of its children, so both scopes have the same value, as in upstream.
fn failures(entity: &MetricSubject, samples: &mut Samples<'_>) {
    let Some(memory) = entity.sample.usage.memory else {
        return;
    };
    for scope in ["container", "hierarchy"] {
        for (kind, count) in [
            ("pgfault", memory.page_faults),
            ("pgmajfault", memory.major_page_faults),
        ] {
            let labels = [("failure_type", kind), ("scope", scope)];
            samples.put(&labels, MetricValue::Whole(count));
        }
    }
}

fn disks(entity: &MetricSubject, samples: &mut Samples<'_>, value: fn(&DeviceIo) -> u64) {
    let snapshot = samples.snapshot;
    for io in &entity.sample.usage.io {
        let name = snapshot.disks.get(&io.device).map_or("", String::as_str);
        samples.put(&[("device", name)], MetricValue::Whole(value(io)));
    }
}

fn filesystems(
    entity: &MetricSubject,
    samples: &mut Samples<'_>,
    value: fn(&FilesystemUsage) -> u64,
) {
    for (device, fs) in &entity.filesystems {
        samples.put(&[("device", device)], MetricValue::Whole(value(fs)));
    }
}

fn network(entity: &MetricSubject, samples: &mut Samples<'_>, value: fn(&NetworkInterface) -> u64) {
    for interface in entity.network.iter() {
        let labels = [("interface", interface.name.as_str())];
        samples.put(&labels, MetricValue::Whole(value(interface)));
    }
}

fn whole_seconds(nanos: i64) -> u64 {
    u64::try_from(nanos / 1_000_000_000).unwrap_or_default()
}
