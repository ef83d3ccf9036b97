//! What the kernel says about a process.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::time::{Duration, SystemTime};

/// Seconds since 1970.
pub fn wall_now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64()
}

/// A line of /proc/PID/status in KiB.
fn status_kib(pid: u32, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Resident and anonymous memory in KiB.
pub fn memory(pid: u32) -> (u64, u64) {
    (status_kib(pid, "VmRSS"), status_kib(pid, "RssAnon"))
}

/// CPU time of a process by thread, to the nanosecond. Threads come and go, so it has to be read
/// more often than they do.
#[derive(Default)]
pub struct CpuMeter(HashMap<OsString, u64>);

impl CpuMeter {
    /// All CPU time seen so far.
    pub fn look(&mut self, pid: u32) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let nanos = text.split_whitespace().next().and_then(|n| n.parse().ok());
            if let Some(nanos) = nanos {
                self.0.insert(task.file_name(), nanos);
            }
        }
        Duration::from_nanos(self.0.values().sum())
    }
}

/// The middle and the largest of some seconds, in milliseconds.
pub fn middle_and_worst(mut seconds: Vec<f64>) -> String {
    seconds.sort_by(f64::total_cmp);
    match (seconds.get(seconds.len() / 2), seconds.last()) {
        (Some(middle), Some(worst)) => format!("{:.1} / {:.1}", middle * 1e3, worst * 1e3),
        _ => "-".to_owned(),
    }
}
