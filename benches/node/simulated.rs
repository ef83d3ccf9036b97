//! The kubelet against the fake runtime: its own costs and nothing else.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::fake_process::FakeProcess;
use crate::process::{CpuMeter, memory, middle_and_worst, wall_now};
use crate::support::http;
use crate::support::kubelet_process::{KubeletProcess, Settings};
use crate::support::report::{self, Table};

const LONG: Duration = Duration::from_secs(600);

/// How long things are left alone before idling is measured.
const SETTLE: Duration = Duration::from_secs(10);

/// Single pods and single deaths per round.
pub const SAMPLES: usize = 10;

/// Time between two of them.
const APART: Duration = Duration::from_millis(300);

fn manifest(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  \
         - name: c\n    image: localhost/busybox:dev\n    command: [sleep, \"1000000\"]\n"
    )
}

pub fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

pub async fn measure() {
    let pods = setting("BENCH_PODS").unwrap_or_else(|| "0,100,500,1000".to_owned());
    let window = setting("BENCH_WINDOW").and_then(|text| text.parse().ok()).unwrap_or(30);
    let window = Duration::from_secs(window);
    let mut costs = Table::new(
        "Costs at rest",
        &[
            "pods",
            "events",
            "RSS MiB",
            "anon MiB",
            "KiB per pod",
            "CPU s per min",
            "CRI calls per min",
        ],
    );
    let mut times = Table::new(
        "Times",
        &[
            "pods",
            "events",
            "start to healthy ms",
            "own share of a start ms (mid/max)",
            "CPU per start ms",
            "all started s",
            "death to replacement ms (mid/max)",
            "restart: true status s",
            "restart: healthy ms",
        ],
    );
    let mut empty_anon = BTreeMap::new();
    for n in pods.split(',').map(|n| n.trim().parse::<usize>().expect("BENCH_PODS")) {
        for events in [true, false] {
            println!("measuring {n} pods, events {events}");
            let round = round(n, events, window).await;
            let empty = *empty_anon.entry(events).or_insert(round.anon);
            let per_pod = if n == 0 {
                "-".to_owned()
            } else {
                (round.anon.saturating_sub(empty) / n as u64).to_string()
            };
            let (pods, word) = (n.to_string(), if events { "on" } else { "off" }.to_owned());
            let mib = |kib: u64| format!("{:.1}", kib as f64 / 1024.0);
            costs.row(vec![
                pods.clone(),
                word.clone(),
                mib(round.rss),
                mib(round.anon),
                per_pod,
                format!("{:.3}", round.cpu_per_minute),
                round.calls_per_minute,
            ]);
            times.row(vec![
                pods,
                word,
                round.healthy,
                round.own_share,
                format!("{:.1}", round.cpu_per_start),
                round.all_started,
                round.replacement,
                round.true_status,
                round.healthy_again,
            ]);
        }
    }
    let mut binary = Table::new("Binary", &["what", "MiB"]);
    let size = std::fs::metadata(Settings::program_under_test()).unwrap().len();
    binary.row(vec!["kubelet".to_owned(), format!("{:.1}", size as f64 / 1048576.0)]);
    report::write("bench", "node.md", &[costs, times, binary]);
}

struct Round {
    rss: u64,
    anon: u64,
    cpu_per_minute: f64,
    calls_per_minute: String,
    healthy: String,
    own_share: String,
    cpu_per_start: f64,
    all_started: String,
    replacement: String,
    true_status: String,
    healthy_again: String,
}

async fn round(n: usize, events: bool, window: Duration) -> Round {
    let dir = tempfile::Builder::new().prefix("kb").tempdir().unwrap();
    let socket = dir.path().join("cri.sock");
    let mut fake = FakeProcess::start(&socket, events).await;
    let settings =
        Settings::new(&dir.path().join("kubelet"), &format!("unix://{}", socket.display()));
    std::fs::create_dir_all(&settings.dir).unwrap();

    let spawned = Instant::now();
    let mut kubelet = KubeletProcess::spawn(settings);
    let healthy = until_healthy(&kubelet, spawned).await;
    let all_started = drop_at_once(&kubelet, &mut fake, n).await;
    until_true(&kubelet, n).await;
    tokio::time::sleep(SETTLE).await;

    let (rss, anon) = memory(kubelet.pid());
    let (cpu_per_minute, calls_per_minute) = idle(&kubelet, &mut fake, window).await;
    let mut meter = CpuMeter::default();
    let before = meter.look(kubelet.pid());
    let own_share = middle_and_worst(single_starts(&kubelet, &mut fake, "single", n).await);
    let used = meter.look(kubelet.pid()).saturating_sub(before);
    let cpu_per_start = used.as_secs_f64() * 1e3 / SAMPLES as f64;
    let replacement = middle_and_worst(deaths(&mut fake, n).await);

    kubelet.kill();
    let again = Instant::now();
    kubelet.respawn();
    let healthy_again = until_healthy(&kubelet, again).await;
    until_true(&kubelet, n + SAMPLES).await;
    let true_status = format!("{:.2}", again.elapsed().as_secs_f64());
    Round {
        rss,
        anon,
        cpu_per_minute,
        calls_per_minute,
        healthy,
        own_share,
        cpu_per_start,
        all_started,
        replacement,
        true_status,
        healthy_again,
    }
}

pub async fn until_healthy(kubelet: &KubeletProcess, since: Instant) -> String {
    let port = kubelet.healthz_port;
    while !matches!(http::get(port, "/healthz").await, Ok((200, _))) {
        assert!(since.elapsed() < LONG, "the kubelet does not become healthy");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    format!("{:.0}", since.elapsed().as_secs_f64() * 1e3)
}

/// Renames n finished files into place and waits until the runtime has started n containers.
async fn drop_at_once(kubelet: &KubeletProcess, fake: &mut FakeProcess, n: usize) -> String {
    if n == 0 {
        return "-".to_owned();
    }
    let aside = kubelet.settings().dir.join("prepared");
    std::fs::create_dir_all(&aside).unwrap();
    let name = |i: usize| format!("p{i:04}");
    for i in 0..n {
        std::fs::write(aside.join(name(i)), manifest(&name(i))).unwrap();
    }
    let dropped = wall_now();
    for i in 0..n {
        std::fs::rename(
            aside.join(name(i)),
            kubelet.manifests.dir().join(format!("{}.yaml", name(i))),
        )
        .unwrap();
    }
    fake.starts(n).await.map_or("late".to_owned(), |at| format!("{:.2}", at - dropped))
}

/// Waits until /pods shows so many pods, each running and ready.
pub async fn until_true(kubelet: &KubeletProcess, n: usize) {
    let deadline = Instant::now() + LONG;
    while Instant::now() < deadline {
        if let Ok(pods) = http::pods(kubelet.read_only_port).await
            && pods.len() >= n
            && pods.iter().all(is_ready)
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(if n > 200 { 30 } else { 10 })).await;
    }
    panic!("{n} pods did not become ready within {LONG:?}");
}

fn is_ready(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// CPU seconds per minute and the calls per minute by kind, with nothing to do.
async fn idle(kubelet: &KubeletProcess, fake: &mut FakeProcess, window: Duration) -> (f64, String) {
    let mut meter = CpuMeter::default();
    let calls = fake.counts().await;
    let (used, start) = (meter.look(kubelet.pid()), Instant::now());
    while start.elapsed() < window {
        let rest = window.saturating_sub(start.elapsed());
        tokio::time::sleep(rest.min(Duration::from_secs(1))).await;
        meter.look(kubelet.pid());
    }
    let used = meter.look(kubelet.pid()).saturating_sub(used);
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    let mut words = Vec::new();
    let mut sum = 0;
    for (name, n) in fake.counts().await {
        let more = n - calls.get(&name).copied().unwrap_or(0);
        if more > 0 {
            sum += more;
            words.push(format!("{name} {:.0}", more as f64 / minutes));
        }
    }
    let words = if words.is_empty() {
        "none".to_owned()
    } else {
        format!("{:.0}: {}", sum as f64 / minutes, words.join(", "))
    };
    (used.as_secs_f64() / minutes, words)
}

/// One pod at a time: rename to StartContainer answered, less the runtime's own time.
pub async fn single_starts(
    kubelet: &KubeletProcess,
    fake: &mut FakeProcess,
    prefix: &str,
    n: usize,
) -> Vec<f64> {
    let mut shares = Vec::new();
    for i in 0..SAMPLES {
        let name = format!("{prefix}{i}");
        let aside: &Path = &kubelet.settings().dir.join(&name);
        std::fs::write(aside, manifest(&name)).unwrap();
        let dropped = wall_now();
        std::fs::rename(aside, kubelet.manifests.dir().join(format!("{name}.yaml"))).unwrap();
        let started = fake.started(&format!("{name}-node1"), n + i + 1).await;
        if let Some((at, runtime)) = started {
            shares.push(at - dropped - runtime);
        }
        // A single start is one that nothing else is near.
        tokio::time::sleep(APART).await;
    }
    shares
}

/// One death at a time, each the first of its container.
async fn deaths(fake: &mut FakeProcess, n: usize) -> Vec<f64> {
    let mut waits = Vec::new();
    for i in 0..SAMPLES {
        // At no fixed distance from the kubelet's own timers.
        let extra = Duration::from_millis(370 * i as u64 % 1000);
        tokio::time::sleep(APART + extra).await;
        let pod = if n > SAMPLES { format!("p{i:04}") } else { format!("single{i}") };
        waits.extend(fake.exit(&format!("{pod}-node1/c")).await);
    }
    waits
}
