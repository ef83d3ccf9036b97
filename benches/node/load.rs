//! Many requests at once, and what they do to probes and to starts of pods.

use std::time::{Duration, Instant};

use crate::fake_process::FakeProcess;
use crate::generator::{Load, Tally};
use crate::probed::Probed;
use crate::process::{CpuMeter, memory, middle_and_worst};
use crate::simulated::{SAMPLES, setting, single_starts, until_healthy, until_true};
use crate::support::kubelet_process::{KubeletProcess, Settings};
use crate::support::report::{self, Table};

/// Pods with a probe each.
const PODS: usize = 200;
/// Requests per second.
const RATE: u32 = 2000;
/// How long they come, and how long nothing comes before, in seconds.
const WINDOW: u64 = 30;
/// How long things are left alone before anything is measured.
const SETTLE: Duration = Duration::from_secs(10);

fn number<N: std::str::FromStr>(name: &str, usual: N) -> N {
    let given = setting(name).and_then(|text| text.parse().ok());
    given.unwrap_or(usual)
}

/// A pod that is probed once a second, at a path that identifies the probe.
fn manifest(name: &str, probes: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  \
         - name: c\n    image: localhost/busybox:dev\n    command: [sleep, \"1000000\"]\n    \
         readinessProbe:\n      periodSeconds: 1\n      httpGet: {{host: 127.0.0.1, port: {probes}, path: /{name}}}\n"
    )
}

/// What is seen during a window.
struct Seen {
    cpu: f64,
    rss: u64,
    jitter: String,
    gaps: usize,
    starts: String,
}

pub async fn measure() {
    let (pods, rate) = (number("LOAD_PODS", PODS), number("LOAD_RATE", RATE));
    let window = Duration::from_secs(number("LOAD_WINDOW", WINDOW));
    let dir = tempfile::Builder::new().prefix("kb").tempdir().unwrap();
    let socket = dir.path().join("cri.sock");
    let mut fake = FakeProcess::start(&socket, true).await;
    let settings =
        Settings::new(&dir.path().join("kubelet"), &format!("unix://{}", socket.display()));
    std::fs::create_dir_all(&settings.dir).unwrap();
    let probed = Probed::start();
    let kubelet = KubeletProcess::spawn(settings);
    until_healthy(&kubelet, Instant::now()).await;
    for i in 0..pods {
        let name = format!("p{i:04}");
        let text = manifest(&name, probed.port());
        kubelet.manifests.put(&format!("{name}.yaml"), &text);
    }
    until_true(&kubelet, pods).await;
    tokio::time::sleep(SETTLE).await;

    println!("{pods} pods run, each is probed once a second");
    let quiet = look(&kubelet, &mut fake, &probed, (pods, "quiet"), window).await;
    let load = Load::start(kubelet.read_only_port, rate, window);
    let busy = look(&kubelet, &mut fake, &probed, (pods + SAMPLES, "busy"), window).await;
    let tally = tokio::task::spawn_blocking(|| load.join()).await.unwrap();
    report(pods, rate, &[("nothing", quiet), ("the load", busy)], &tally);
}

/// Watches for so long; in the meantime pods are started, one after another.
async fn look(
    kubelet: &KubeletProcess,
    fake: &mut FakeProcess,
    probed: &Probed,
    (there, prefix): (usize, &str),
    window: Duration,
) -> Seen {
    let mut meter = CpuMeter::default();
    probed.forget();
    let (used, since) = (meter.look(kubelet.pid()), Instant::now());
    let starts = single_starts(kubelet, fake, prefix, there).await;
    while since.elapsed() < window {
        let rest = window.saturating_sub(since.elapsed());
        tokio::time::sleep(rest.min(Duration::from_millis(500))).await;
        meter.look(kubelet.pid());
    }
    let cpu = meter.look(kubelet.pid()).saturating_sub(used);
    let intervals = probed.intervals();
    let off = |seconds: &f64| (seconds - 1.0).abs();
    Seen {
        cpu: cpu.as_secs_f64() / since.elapsed().as_secs_f64(),
        rss: memory(kubelet.pid()).0,
        gaps: intervals.iter().filter(|seconds| off(seconds) > 0.5).count(),
        jitter: spread(intervals.iter().map(off).collect()),
        starts: middle_and_worst(starts),
    }
}

/// Middle, 99 of 100, and worst of some seconds, in milliseconds.
fn spread(mut seconds: Vec<f64>) -> String {
    seconds.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = (seconds.len() as f64 * part) as usize;
        let found = seconds.get(place.min(seconds.len().saturating_sub(1)));
        found.map_or("-".to_owned(), |seconds| format!("{:.1}", seconds * 1e3))
    };
    format!("{} / {} / {}", at(0.5), at(0.99), at(1.0))
}

fn report(pods: usize, rate: u32, seen: &[(&str, Seen)], tally: &[(&'static str, Tally)]) {
    let mut harm = Table::new(
        &format!("{pods} pods under {rate} requests a second"),
        &[
            "beside",
            "CPUs of the kubelet",
            "RSS MiB",
            "probe period off by ms (mid/99%/max)",
            "off by more than half",
            "own share of a start ms (mid/max)",
        ],
    );
    for (beside, seen) in seen {
        harm.row(vec![
            (*beside).to_owned(),
            format!("{:.2}", seen.cpu),
            format!("{:.1}", seen.rss as f64 / 1024.0),
            seen.jitter.clone(),
            seen.gaps.to_string(),
            seen.starts.clone(),
        ]);
    }
    let mut answers = Table::new(
        "Answers",
        &[
            "path",
            "requested",
            "answered per s",
            "MiB per s",
            "refused",
            "latency ms (mid/99%/max)",
        ],
    );
    for (path, tally) in tally {
        let seconds = tally.took.as_secs_f64();
        answers.row(vec![
            (*path).to_owned(),
            tally.requested.to_string(),
            format!("{:.0}", tally.latencies.len() as f64 / seconds),
            format!("{:.1}", tally.bytes as f64 / 1048576.0 / seconds),
            tally.refused.to_string(),
            spread(tally.latencies.clone()),
        ]);
    }
    report::write("bench", "load.md", &[harm, answers]);
}
