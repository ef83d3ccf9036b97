//! Parses the kernel's cgroup files. Unknown lines are skipped, because newer kernels add some. Pure.

use super::{CpuUsage, DeviceIo, MemoryUsage, Pressure, Throttling};

/// Ticks of `cpuacct.stat` per second (`USER_HZ`, the same on all Linux architectures).
const TICKS: u64 = 100;
/// Limits from this value on mean unlimited: cgroup v1 has the maximum number of pages.
const UNLIMITED: u64 = 1 << 62;

/// One line of a pressure file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PressureLine {
    /// Averages in percent over the last 10, 60 and 300 seconds.
    pub average: [f64; 3],
    /// Total in microseconds.
    pub total: u64,
}

/// Lines of the form `key value`.
pub(super) fn keyed(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((key, value.trim().parse().ok()?))
    })
}

/// A file with one number; `None` for `max`, and for unlimited in cgroup v1.
pub(super) fn limit(text: &str) -> Option<u64> {
    let value: u64 = text.trim().parse().ok()?;
    (value < UNLIMITED).then_some(value)
}

/// A file with one number.
pub(super) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// `cpu.stat` of v2, with times in microseconds.
pub(super) fn cpu_stat_v2(text: &str) -> (CpuUsage, Throttling) {
    let (mut cpu, mut throttling) = (CpuUsage::default(), Throttling::default());
    for (key, value) in keyed(text) {
        let nanos = value.saturating_mul(1000);
        match key {
            "usage_usec" => cpu.total = nanos,
            "user_usec" => cpu.user = nanos,
            "system_usec" => cpu.system = nanos,
            "nr_periods" => throttling.periods = value,
            "nr_throttled" => throttling.throttled_periods = value,
            "throttled_usec" => throttling.throttled = nanos,
            "nr_bursts" => throttling.burst_periods = value,
            "burst_usec" => throttling.burst = nanos,
            _ => {}
        }
    }
    (cpu, throttling)
}

/// `cpu.stat` of v1, with times in nanoseconds.
pub(super) fn cpu_stat_v1(text: &str) -> Throttling {
    let mut throttling = Throttling::default();
    for (key, value) in keyed(text) {
        match key {
            "nr_periods" => throttling.periods = value,
            "nr_throttled" => throttling.throttled_periods = value,
            "throttled_time" => throttling.throttled = value,
            "nr_bursts" => throttling.burst_periods = value,
            "burst_time" => throttling.burst = value,
            _ => {}
        }
    }
    throttling
}

/// `cpuacct.stat`: user and system time in nanoseconds.
pub(super) fn cpuacct_stat(text: &str) -> (u64, u64) {
    let (mut user, mut system) = (0, 0);
    for (key, ticks) in keyed(text) {
        let nanos = ticks.saturating_mul(1_000_000_000 / TICKS);
        match key {
            "user" => user = nanos,
            "system" => system = nanos,
            _ => {}
        }
    }
    (user, system)
}

/// `memory.stat` of v1: the totals including descendants.
pub(super) fn memory_stat_v1(text: &str, memory: &mut MemoryUsage) {
    for (key, value) in keyed(text) {
        match key {
            "total_cache" => memory.cache = value,
            "total_rss" => memory.rss = value,
            "total_swap" => memory.swap = value,
            "total_mapped_file" => memory.mapped_file = value,
            "total_active_file" => memory.active_file = value,
            "total_inactive_file" => memory.inactive_file = value,
            "pgfault" => memory.page_faults = value,
            "pgmajfault" => memory.major_page_faults = value,
            _ => {}
        }
    }
}

/// `memory.stat` of v2.
pub(super) fn memory_stat_v2(text: &str, memory: &mut MemoryUsage) {
    for (key, value) in keyed(text) {
        match key {
            "file" => memory.cache = value,
            "anon" => memory.rss = value,
            "file_mapped" => memory.mapped_file = value,
            "active_file" => memory.active_file = value,
            "inactive_file" => memory.inactive_file = value,
            "kernel" => memory.kernel = value,
            "pgfault" => memory.page_faults = value,
            "pgmajfault" => memory.major_page_faults = value,
            _ => {}
        }
    }
}

/// The value of one key; zero if it is missing.
pub(super) fn value_of(text: &str, wanted: &str) -> u64 {
    let mut lines = keyed(text);
    lines.find(|(key, _)| *key == wanted).map_or(0, |(_, value)| value)
}

/// `io.stat`: `8:0 rbytes=1 wbytes=2 rios=3 wios=4 …`.
pub(super) fn io_stat_v2(text: &str) -> Vec<DeviceIo> {
    let line = |line: &str| {
        let (device, rest) = line.split_once(' ')?;
        let mut io = DeviceIo { device: device_number(device)?, ..DeviceIo::default() };
        let mut any = false;
        for (key, value) in rest.split(' ').filter_map(|pair| pair.split_once('=')) {
            let Ok(value) = value.parse() else { continue };
            any = true;
            match key {
                "rbytes" => io.read_bytes = value,
                "wbytes" => io.write_bytes = value,
                "rios" => io.reads = value,
                "wios" => io.writes = value,
                _ => {}
            }
        }
        // Some kernels list devices without any values.
        any.then_some(io)
    };
    text.lines().filter_map(line).collect()
}

/// `blkio.throttle.io_service_bytes` and `…io_serviced`: `8:0 Read 1`, and other operations.
pub(super) fn blkio(bytes: &str, operations: &str) -> Vec<DeviceIo> {
    let mut found: Vec<DeviceIo> = Vec::new();
    for (text, is_bytes) in [(bytes, true), (operations, false)] {
        for line in text.lines() {
            let mut words = line.split(' ');
            let parsed = (|| {
                let device = device_number(words.next()?)?;
                let operation = words.next()?;
                Some((device, operation, words.next()?.parse::<u64>().ok()?))
            })();
            let Some((device, operation, value)) = parsed else {
                continue;
            };
            let at = found.iter().position(|io| io.device == device);
            let at = at.unwrap_or_else(|| {
                found.push(DeviceIo { device, ..DeviceIo::default() });
                found.len() - 1
            });
            let Some(io) = found.get_mut(at) else {
                continue;
            };
            match (operation, is_bytes) {
                ("Read", true) => io.read_bytes = value,
                ("Write", true) => io.write_bytes = value,
                ("Read", false) => io.reads = value,
                ("Write", false) => io.writes = value,
                _ => {}
            }
        }
    }
    found
}

fn device_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// A pressure file, of a cgroup or of the machine: `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
pub fn parse_pressure(text: &str) -> Pressure {
    let mut pressure = Pressure::default();
    for line in text.lines() {
        let Some((kind, rest)) = line.split_once(' ') else {
            continue;
        };
        let mut parsed = PressureLine::default();
        let [ten, sixty, three_hundred] = &mut parsed.average;
        for (key, value) in rest.split(' ').filter_map(|pair| pair.split_once('=')) {
            let percent = value.parse::<f64>().ok().filter(|value| value.is_finite());
            match key {
                "avg10" => *ten = percent.unwrap_or_default(),
                "avg60" => *sixty = percent.unwrap_or_default(),
                "avg300" => *three_hundred = percent.unwrap_or_default(),
                "total" => parsed.total = value.parse().unwrap_or_default(),
                _ => {}
            }
        }
        match kind {
            "some" => pressure.some = parsed,
            "full" => pressure.full = parsed,
            _ => {}
        }
    }
    pressure
}

/// The number of lines, and the number in the first one.
pub(super) fn processes(text: &str) -> (u64, Option<u32>) {
    let count = text.lines().count();
    let first = text.lines().next().and_then(|line| line.trim().parse().ok());
    (u64::try_from(count).unwrap_or(u64::MAX), first)
}

/// `cpu.max`: quota (if there is one) and period, in microseconds.
pub(super) fn cpu_max(text: &str) -> (Option<u64>, Option<u64>) {
    let (quota, period) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    (quota.parse().ok(), period.parse().ok())
}

/// CPU shares for a v2 weight.
pub(super) fn shares_of_weight(weight: u64) -> Option<u64> {
    (1..=10_000).contains(&weight).then(|| 2 + (weight - 1) * 262_142 / 9_999)
}
