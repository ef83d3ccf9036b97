//! The families of cAdvisor's series: names, meanings and types are upstream's. Pure.

use super::{
    series::{Entity, Family, Samples},
    text::{Kind, Value},
};
use crate::host::{FilesystemUsage, cgroup::DeviceIo, proc::NetworkInterface};

/// All of them, by name.
#[rustfmt::skip]
pub(super) static FAMILIES: &[Family] = &[
    Family {
        name: "container_cpu_cfs_burst_periods_total",
        help: "Number of periods when burst occurs.",
        kind: Kind::Counter,
        write: |e, s| { if let Some(cfs) = e.sample.usage.throttling { s.put(&[], Value::Whole(cfs.burst_periods)); } },
    },
    Family {
        name: "container_cpu_cfs_burst_seconds_total",
        help: "Total time duration the container has been bursted.",
        kind: Kind::Counter,
        write: |e, s| { if let Some(cfs) = e.sample.usage.throttling { s.put(&[], Value::Nanos(cfs.burst)); } },
    },
    Family {
        name: "container_cpu_cfs_periods_total",
        help: "Number of elapsed enforcement period intervals.",
        kind: Kind::Counter,
        write: |e, s| { if let Some(cfs) = e.sample.usage.throttling { s.put(&[], Value::Whole(cfs.periods)); } },
    },
    Family {
        name: "container_cpu_cfs_throttled_periods_total",
        help: "Number of throttled period intervals.",
        kind: Kind::Counter,
        write: |e, s| { if let Some(cfs) = e.sample.usage.throttling { s.put(&[], Value::Whole(cfs.throttled_periods)); } },
    },
    Family {
        name: "container_cpu_cfs_throttled_seconds_total",
        help: "Total time duration the container has been throttled.",
        kind: Kind::Counter,
        write: |e, s| { if let Some(cfs) = e.sample.usage.throttling { s.put(&[], Value::Nanos(cfs.throttled)); } },
    },
    Family {
        name: "container_cpu_system_seconds_total",
        help: "Cumulative system cpu time consumed in seconds.",
        kind: Kind::Counter,
        write: |e, s| { if let Some(cpu) = e.sample.usage.cpu { s.put(&[], Value::Nanos(cpu.system)); } },
    },
    Family {
        name: "container_cpu_usage_seconds_total",
        help: "Cumulative cpu time consumed in seconds.",
        kind: Kind::Counter,
        write: |e, s| { if let Some(cpu) = e.sample.usage.cpu { s.put(&[("cpu", "total")], Value::Nanos(cpu.total)); } },
    },
    Family {
        name: "container_cpu_user_seconds_total",
        help: "Cumulative user cpu time consumed in seconds.",
        kind: Kind::Counter,
        write: |e, s| { if let Some(cpu) = e.sample.usage.cpu { s.put(&[], Value::Nanos(cpu.user)); } },
    },
    Family {
        name: "container_fs_inodes_free",
        help: "Number of available Inodes",
        kind: Kind::Gauge,
        write: |e, s| filesystems(e, s, |fs| fs.inodes_free),
    },
    Family {
        name: "container_fs_inodes_total",
        help: "Number of Inodes",
        kind: Kind::Gauge,
        write: |e, s| filesystems(e, s, |fs| fs.inodes),
    },
    Family {
        name: "container_fs_limit_bytes",
        help: "Number of bytes that can be consumed by the container on this filesystem.",
        kind: Kind::Gauge,
        write: |e, s| filesystems(e, s, |fs| fs.capacity),
    },
    Family {
        name: "container_fs_reads_bytes_total",
        help: "Cumulative count of bytes read",
        kind: Kind::Counter,
        write: |e, s| disks(e, s, |io| io.read_bytes),
    },
    Family {
        name: "container_fs_reads_total",
        help: "Cumulative count of reads completed",
        kind: Kind::Counter,
        write: |e, s| disks(e, s, |io| io.reads),
    },
    Family {
        name: "container_fs_usage_bytes",
        help: "Number of bytes that are consumed by the container on this filesystem.",
        kind: Kind::Gauge,
        write: |e, s| filesystems(e, s, |fs| fs.used),
    },
    Family {
        name: "container_fs_writes_bytes_total",
        help: "Cumulative count of bytes written",
        kind: Kind::Counter,
        write: |e, s| disks(e, s, |io| io.write_bytes),
    },
    Family {
        name: "container_fs_writes_total",
        help: "Cumulative count of writes completed",
        kind: Kind::Counter,
        write: |e, s| disks(e, s, |io| io.writes),
    },
    Family {
        name: "container_last_seen",
        help: "Last time a container was seen by the exporter",
        kind: Kind::Gauge,
        write: |_, s| { let at = s.at(); s.put(&[], Value::Whole(whole_seconds(at))); },
    },
    Family {
        name: "container_memory_cache",
        help: "Number of bytes of page cache memory.",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], Value::Whole(memory.cache)); } },
    },
    Family {
        name: "container_memory_failcnt",
        help: "Number of memory usage hits limits",
        kind: Kind::Counter,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], Value::Whole(memory.failures)); } },
    },
    Family {
        name: "container_memory_failures_total",
        help: "Cumulative count of memory allocation failures.",
        kind: Kind::Counter,
        write: |e, s| failures(e, s),
    },
    Family {
        name: "container_memory_kernel_usage",
        help: "Size of kernel memory allocated in bytes.",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], Value::Whole(memory.kernel)); } },
    },
    Family {
        name: "container_memory_mapped_file",
        help: "Size of memory mapped files in bytes.",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], Value::Whole(memory.mapped_file)); } },
    },
    Family {
        name: "container_memory_max_usage_bytes",
        help: "Maximum memory usage recorded in bytes",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(most) = e.sample.usage.memory.and_then(|memory| memory.max_usage) { s.put(&[], Value::Whole(most)); } },
    },
    Family {
        name: "container_memory_rss",
        help: "Size of RSS in bytes.",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], Value::Whole(memory.rss)); } },
    },
    Family {
        name: "container_memory_swap",
        help: "Container swap usage in bytes.",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], Value::Whole(memory.swap)); } },
    },
    Family {
        name: "container_memory_total_active_file_bytes",
        help: "Current total active file in bytes.",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], Value::Whole(memory.active_file)); } },
    },
    Family {
        name: "container_memory_total_inactive_file_bytes",
        help: "Current total inactive file in bytes.",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], Value::Whole(memory.inactive_file)); } },
    },
    Family {
        name: "container_memory_usage_bytes",
        help: "Current memory usage in bytes, including all memory regardless of when it was accessed",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], Value::Whole(memory.usage)); } },
    },
    Family {
        name: "container_memory_working_set_bytes",
        help: "Current working set in bytes.",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], Value::Whole(memory.working_set())); } },
    },
    Family {
        name: "container_network_receive_bytes_total",
        help: "Cumulative count of bytes received",
        kind: Kind::Counter,
        write: |e, s| network(e, s, |i| { let [n, _, _, _] = i.received; n }),
    },
    Family {
        name: "container_network_receive_errors_total",
        help: "Cumulative count of errors encountered while receiving",
        kind: Kind::Counter,
        write: |e, s| network(e, s, |i| { let [_, _, n, _] = i.received; n }),
    },
    Family {
        name: "container_network_receive_packets_dropped_total",
        help: "Cumulative count of packets dropped while receiving",
        kind: Kind::Counter,
        write: |e, s| network(e, s, |i| { let [_, _, _, n] = i.received; n }),
    },
    Family {
        name: "container_network_receive_packets_total",
        help: "Cumulative count of packets received",
        kind: Kind::Counter,
        write: |e, s| network(e, s, |i| { let [_, n, _, _] = i.received; n }),
    },
    Family {
        name: "container_network_transmit_bytes_total",
        help: "Cumulative count of bytes transmitted",
        kind: Kind::Counter,
        write: |e, s| network(e, s, |i| { let [n, _, _, _] = i.sent; n }),
    },
    Family {
        name: "container_network_transmit_errors_total",
        help: "Cumulative count of errors encountered while transmitting",
        kind: Kind::Counter,
        write: |e, s| network(e, s, |i| { let [_, _, n, _] = i.sent; n }),
    },
    Family {
        name: "container_network_transmit_packets_dropped_total",
        help: "Cumulative count of packets dropped while transmitting",
        kind: Kind::Counter,
        write: |e, s| network(e, s, |i| { let [_, _, _, n] = i.sent; n }),
    },
    Family {
        name: "container_network_transmit_packets_total",
        help: "Cumulative count of packets transmitted",
        kind: Kind::Counter,
        write: |e, s| network(e, s, |i| { let [_, n, _, _] = i.sent; n }),
    },
    Family {
        name: "container_oom_events_total",
        help: "Count of out of memory events observed for the container",
        kind: Kind::Counter,
        write: |e, s| { if let Some(memory) = e.sample.usage.memory { s.put(&[], Value::Whole(memory.oom_kills)); } },
    },
    Family {
        name: "container_pressure_cpu_stalled_seconds_total",
        help: "Total time duration no tasks in the container could make progress due to CPU congestion.",
        kind: Kind::Counter,
        write: |e, s| { if let Some(p) = e.sample.usage.pressure { s.put(&[], Value::Micros(p.cpu.full.total)); } },
    },
    Family {
        name: "container_pressure_cpu_waiting_seconds_total",
        help: "Total time duration tasks in the container have waited due to CPU congestion.",
        kind: Kind::Counter,
        write: |e, s| { if let Some(p) = e.sample.usage.pressure { s.put(&[], Value::Micros(p.cpu.some.total)); } },
    },
    Family {
        name: "container_pressure_io_stalled_seconds_total",
        help: "Total time duration no tasks in the container could make progress due to IO congestion.",
        kind: Kind::Counter,
        write: |e, s| { if let Some(p) = e.sample.usage.pressure { s.put(&[], Value::Micros(p.io.full.total)); } },
    },
    Family {
        name: "container_pressure_io_waiting_seconds_total",
        help: "Total time duration tasks in the container have waited due to IO congestion.",
        kind: Kind::Counter,
        write: |e, s| { if let Some(p) = e.sample.usage.pressure { s.put(&[], Value::Micros(p.io.some.total)); } },
    },
    Family {
        name: "container_pressure_memory_stalled_seconds_total",
        help: "Total time duration no tasks in the container could make progress due to memory congestion.",
        kind: Kind::Counter,
        write: |e, s| { if let Some(p) = e.sample.usage.pressure { s.put(&[], Value::Micros(p.memory.full.total)); } },
    },
    Family {
        name: "container_pressure_memory_waiting_seconds_total",
        help: "Total time duration tasks in the container have waited due to memory congestion.",
        kind: Kind::Counter,
        write: |e, s| { if let Some(p) = e.sample.usage.pressure { s.put(&[], Value::Micros(p.memory.some.total)); } },
    },
    Family {
        name: "container_processes",
        help: "Number of processes running inside the container.",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(tasks) = e.sample.usage.tasks { s.put(&[], Value::Whole(tasks.processes)); } },
    },
    Family {
        name: "container_spec_cpu_period",
        help: "CPU period of the container.",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(value) = e.sample.limits.cpu_period { s.put_timeless(Value::Whole(value)); } },
    },
    Family {
        name: "container_spec_cpu_quota",
        help: "CPU quota of the container.",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(value) = e.sample.limits.cpu_quota { s.put_timeless(Value::Whole(value)); } },
    },
    Family {
        name: "container_spec_cpu_shares",
        help: "CPU share of the container.",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(value) = e.sample.limits.cpu_shares { s.put_timeless(Value::Whole(value)); } },
    },
    Family {
        name: "container_spec_memory_limit_bytes",
        help: "Memory limit for the container.",
        kind: Kind::Gauge,
        write: |e, s| { if e.sample.limits.has_memory { s.put_timeless(Value::Whole(e.sample.limits.memory.unwrap_or_default())); } },
    },
    Family {
        name: "container_spec_memory_reservation_limit_bytes",
        help: "Memory reservation limit for the container.",
        kind: Kind::Gauge,
        write: |e, s| { if e.sample.limits.has_memory { s.put_timeless(Value::Whole(e.sample.limits.reservation.unwrap_or_default())); } },
    },
    Family {
        name: "container_spec_memory_swap_limit_bytes",
        help: "Memory swap limit for the container.",
        kind: Kind::Gauge,
        write: |e, s| { if e.sample.limits.has_memory { s.put_timeless(Value::Whole(e.sample.limits.swap.unwrap_or_default())); } },
    },
    Family {
        name: "container_start_time_seconds",
        help: "Start time of the container since unix epoch in seconds.",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(at) = e.started { s.put_timeless(Value::Whole(whole_seconds(at))); } },
    },
    Family {
        name: "container_threads",
        help: "Number of threads running inside the container",
        kind: Kind::Gauge,
        write: |e, s| { if let Some(tasks) = e.sample.usage.tasks { s.put(&[], Value::Whole(tasks.threads)); } },
    },
    Family {
        name: "container_threads_max",
        help: "Maximum number of threads allowed inside the container, infinity if value is zero",
        kind: Kind::Gauge,
        write: |e, s| { if e.sample.usage.tasks.is_some() { s.put(&[], Value::Whole(e.sample.limits.threads.unwrap_or_default())); } },
    },
];

/// `failure_type` and `scope`, each with its count. The kernel does not distinguish a cgroup's own faults from
/// those of cgroups below it; upstream shows the same number twice as well.
fn failures(entity: &Entity, samples: &mut Samples<'_>) {
    let Some(memory) = entity.sample.usage.memory else {
        return;
    };
    for scope in ["container", "hierarchy"] {
        for (kind, count) in [
            ("pgfault", memory.page_faults),
            ("pgmajfault", memory.major_page_faults),
        ] {
            let labels = [("failure_type", kind), ("scope", scope)];
            samples.put(&labels, Value::Whole(count));
        }
    }
}

fn disks(entity: &Entity, samples: &mut Samples<'_>, value: fn(&DeviceIo) -> u64) {
    let snapshot = samples.snapshot;
    for io in &entity.sample.usage.io {
        let name = snapshot.disks.get(&io.device).map_or("", String::as_str);
        samples.put(&[("device", name)], Value::Whole(value(io)));
    }
}

fn filesystems(entity: &Entity, samples: &mut Samples<'_>, value: fn(&FilesystemUsage) -> u64) {
    for (device, fs) in &entity.filesystems {
        samples.put(&[("device", device)], Value::Whole(value(fs)));
    }
}

fn network(entity: &Entity, samples: &mut Samples<'_>, value: fn(&NetworkInterface) -> u64) {
    for interface in entity.network.iter() {
        let labels = [("interface", interface.name.as_str())];
        samples.put(&labels, Value::Whole(value(interface)));
    }
}

fn whole_seconds(nanos: i64) -> u64 {
    u64::try_from(nanos / 1_000_000_000).unwrap_or_default()
}
