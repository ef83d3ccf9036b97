//! What this process says of itself: its build, its node, its own use of the machine.

use super::Stores;
use crate::{
    base::metrics::{AtScrape, Metrics},
    base::panics,
    config::{KUBERNETES_VERSION, KubeletConfig, logging::LogControl},
    host::proc::{OwnProcess, own_process},
};
use parking_lot::Mutex;
use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

/// Declares the families.
pub(super) fn register(config: &KubeletConfig, stores: &Stores) {
    let metrics = &stores.metrics;
    let always =
        |labels: Vec<(&'static str, String)>| AtScrape::gauge(move || vec![(labels.clone(), 1.0)]);
    metrics.register(
        "kubelet_node_name",
        "The node's name. The count is always 1.",
        always(vec![("node", config.node_name.clone())]),
    );
    let (major, minor) = KUBERNETES_VERSION
        .trim_start_matches('v')
        .split_once('.')
        .unwrap_or_default();
    metrics.register(
        "kubernetes_build_info",
        "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
        always(vec![
            ("major", major.to_owned()),
            ("minor", minor.to_owned()),
            ("git_version", format!("{KUBERNETES_VERSION}.0+rust.{}", env!("CARGO_PKG_VERSION"))),
            ("git_commit", String::new()),
            ("git_tree_state", String::new()),
            ("build_date", String::new()),
            ("go_version", String::new()),
            ("compiler", "rustc".to_owned()),
            ("platform", format!("{}/{}", std::env::consts::OS, go_architecture())),
        ]),
    );
    let version = if stores.machine.cgroup_v2 { 2.0 } else { 1.0 };
    metrics.register(
        "kubelet_cgroup_version",
        "cgroup version on the hosts.",
        AtScrape::number(move || version),
    );
    metrics.register(
        "kubelet_panics_total",
        "Number of panics by what they were part of. Each is a defect of this program that ended this one thing.",
        AtScrape::counter(|| {
            let sample = |(place, count)| (vec![("where", String::from(place))], count as f64);
            panics::counts().map(sample).collect()
        }),
    );
    process(metrics);
    start_time(&stores.probe_metrics);
    start_time(&stores.sli_metrics);
}

/// Declares what is counted about the kubelet's own log.
pub(super) fn log(metrics: &Metrics, log: LogControl) {
    metrics.register(
        "kubelet_log_lines_dropped_total",
        "Number of lines of the kubelet's log that were dropped because they were not read in time.",
        AtScrape::counter(move || {
            #[expect(clippy::cast_precision_loss, reason = "a count of lines")]
            let dropped = log.dropped() as f64;
            vec![(Vec::new(), dropped)]
        }),
    );
}

pub(super) fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// For how long a reading of the process counts: the families of one scrape are of one reading, which is most of what
/// a scrape costs.
const ONE_SCRAPE: Duration = Duration::from_millis(50);

/// The latest reading of the process.
#[derive(Clone, Default)]
struct ProcessReader(Arc<Mutex<Option<(Instant, OwnProcess)>>>);

impl ProcessReader {
    fn now(&self) -> OwnProcess {
        let mut last = self.0.lock();
        match *last {
            Some((at, own)) if at.elapsed() < ONE_SCRAPE => own,
            _ => {
                let own = own_process();
                *last = Some((Instant::now(), own));
                own
            }
        }
    }
}

fn start_time(metrics: &Metrics) {
    // It stays what it was.
    let started = OnceLock::new();
    metrics.register(
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.",
        AtScrape::number(move || *started.get_or_init(|| own_process().started)),
    );
}

fn process(metrics: &Metrics) {
    start_time(metrics);
    let look = ProcessReader::default();
    let own = look.clone();
    metrics.register(
        "process_cpu_seconds_total",
        "Total user and system CPU time spent in seconds.",
        AtScrape::counter(move || vec![(Vec::new(), own.now().cpu_seconds)]),
    );
    for (name, help, value) in [
        (
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            (|own| own.resident) as fn(OwnProcess) -> u64,
        ),
        (
            "process_virtual_memory_bytes",
            "Virtual memory size in bytes.",
            |own| own.virtual_bytes,
        ),
        (
            "process_open_fds",
            "Number of open file descriptors.",
            |own| own.open_files,
        ),
        (
            "process_max_fds",
            "Maximum number of open file descriptors.",
            |own| own.max_files,
        ),
    ] {
        let own = look.clone();
        metrics.register(
            name,
            help,
            AtScrape::number(move || value(own.now()) as f64),
        );
    }
}
