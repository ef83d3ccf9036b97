//! The process metrics that every Prometheus client library exports.

use super::proc::{OwnProcess, own_process};
use crate::base::clock::{self, Instant};
use crate::base::metrics::{AtScrape, Metrics};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a reading is reused, so that the metrics of one scrape share it: reading is most of a scrape's cost.
const ONE_SCRAPE: Duration = Duration::from_millis(50);

/// The latest reading of the process.
#[derive(Clone, Default)]
struct ProcessReader(Arc<Mutex<Option<(Instant, OwnProcess)>>>);

impl ProcessReader {
    fn now(&self) -> OwnProcess {
        let mut last = self.0.lock();
        match *last {
            Some((at, own)) if clock::since(at) < ONE_SCRAPE => own,
            _ => {
                let own = own_process();
                *last = Some((clock::instant(), own));
                own
            }
        }
    }
}

/// Registers the metric of the process's start time.
pub fn register_start_time(metrics: &Metrics) {
    // Read once, because it does not change.
    let started = OnceLock::new();
    metrics.register(
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.",
        AtScrape::number(move || *started.get_or_init(|| own_process().started)),
    );
}

/// Registers the metrics of resource usage and start time.
pub fn register(metrics: &Metrics) {
    register_start_time(metrics);
    let reader = ProcessReader::default();
    let own = reader.clone();
    metrics.register(
        "process_cpu_seconds_total",
        "Total user and system CPU time spent in seconds.",
        AtScrape::counter(move || vec![(Vec::new(), own.now().cpu_seconds)]),
    );
    for (name, help, value) in [
        (
            "process_network_receive_bytes_total",
            "Number of bytes received by the process over the network.",
            (|[received, _]| received) as fn([u64; 2]) -> u64,
        ),
        (
            "process_network_transmit_bytes_total",
            "Number of bytes sent by the process over the network.",
            |[_, sent]| sent,
        ),
    ] {
        let own = reader.clone();
        let bytes = move || value(own.now().network);
        metrics.register(name, help, AtScrape::counter(move || vec![(Vec::new(), bytes() as f64)]));
    }
    for (name, help, value) in [
        (
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            (|own| own.resident) as fn(OwnProcess) -> u64,
        ),
        ("process_virtual_memory_bytes", "Virtual memory size in bytes.", |own| own.virtual_bytes),
        (
            "process_virtual_memory_max_bytes",
            "Maximum amount of virtual memory available in bytes.",
            |own| own.max_virtual,
        ),
        ("process_open_fds", "Number of open file descriptors.", |own| own.open_files),
        ("process_max_fds", "Maximum number of open file descriptors.", |own| own.max_files),
    ] {
        let own = reader.clone();
        metrics.register(name, help, AtScrape::number(move || value(own.now()) as f64));
    }
}
