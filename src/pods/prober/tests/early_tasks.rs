//! Early attempts of tasks: on a paused clock with commands, and with servers on real sockets.

use super::bench::{Bench, Does, S, Z, probe};
use crate::base::clock;
use crate::model::{ProbeKind, ProbeResult};
use k8s_openapi::api::core::v1::{HTTPGetAction, Probe, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::time::sleep;

const MS: Duration = Duration::from_millis(1);

impl Bench {
    /// Waits until the probe has succeeded, and returns how long that took.
    async fn until_success(&self, kind: ProbeKind) -> Duration {
        let begun = clock::instant();
        while self.probe_result("c1", kind) != Some(ProbeResult::Success) {
            assert!(clock::since(begun) < 120 * S, "it never succeeds");
            sleep(MS).await;
        }
        clock::since(begun)
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_is_ready_within_three_tenths_after_what_it_waits_for() {
    for up_at in (0..30).map(|n| n * 103 * MS) {
        for ready_after in [Z, 300 * MS, 2900 * MS] {
            let bench = Bench::new(|c| {
                c.startup_probe = Some(probe("up"));
                c.readiness_probe = Some(probe("ready"));
            });
            bench.set("up", Does::Exit(1));
            bench.set("ready", Does::Exit(1));
            bench.start("c1");
            sleep(up_at).await;
            bench.set("up", Does::Exit(0));
            let took = bench.until_success(ProbeKind::Startup).await;
            assert!(took <= 301 * MS, "started after {up_at:?} and {took:?}");
            sleep(ready_after).await;
            bench.set("ready", Does::Exit(0));
            let took = bench.until_success(ProbeKind::Readiness).await;
            assert!(took <= 301 * MS, "ready after {ready_after:?} and {took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn early_failures_are_not_shown() {
    let bench = Bench::new(|c| {
        c.readiness_probe = Some(probe("ready"));
    });
    bench.set("ready", Does::Exit(1));
    bench.start("c1");
    bench.pass(15 * S).await;
    assert!(bench.calls("ready").len() > 20);
    let event = bench.events.recent().pop().unwrap();
    assert_eq!((event.reason.as_ref(), event.count), ("Unhealthy", 2));
    let failed = "prober_probe_total{probe_type=\"Readiness\",result=\"failed\",\
                  container=\"c\",pod=\"p\",namespace=\"ns\",pod_uid=\"u\"} 2";
    let text = bench.metrics.text();
    assert!(text.contains(failed), "{text}");
    let view = bench.manager.views(&"u".into()).pop().unwrap();
    assert_eq!(view.last.unwrap().in_a_row, 2);

    bench.set("ready", Does::Exit(0));
    bench.until_success(ProbeKind::Readiness).await;
    let succeeded = failed.replace("failed", "successful").replace("} 2", "} 1");
    let text = bench.metrics.text();
    assert!(text.contains(&succeeded), "{text}");
    let view = bench.manager.views(&"u".into()).pop().unwrap();
    assert_eq!(view.last.unwrap().result, ProbeResult::Success);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_does_not_start_up_fails_when_its_periods_say() {
    let bench = Bench::new(|c| c.startup_probe = Some(probe("up")));
    bench.set("up", Does::Exit(1));
    bench.start("c1");
    bench.pass(20 * S - 10 * MS).await;
    assert_eq!(bench.probe_result("c1", ProbeKind::Startup), Some(ProbeResult::Unknown));
    bench.pass(20 * MS).await;
    assert_eq!(bench.probe_result("c1", ProbeKind::Startup), Some(ProbeResult::Failure));
}

#[tokio::test(start_paused = true)]
async fn a_sync_of_the_pod_probes_what_has_not_succeeded_and_nothing_else() {
    let bench = Bench::new(|c| {
        let mut rare = probe("ready");
        rare.period_seconds = Some(3600);
        c.readiness_probe = Some(rare);
        let mut rare = probe("live");
        rare.period_seconds = Some(3600);
        rare.initial_delay_seconds = Some(3600);
        c.liveness_probe = Some(rare);
    });
    bench.set("ready", Does::Exit(1));
    bench.start("c1");
    bench.pass(100 * S).await;
    let before = bench.calls("ready").len();
    bench.manager.pod_changed(&"u".into());
    bench.pass(S).await;
    assert_eq!(bench.calls("ready").len(), before);
    for more in 1..4 {
        bench.manager.pod_synced(&"u".into());
        bench.pass(10 * S).await;
        assert_eq!(bench.calls("ready").len(), before + more);
    }
    bench.set("ready", Does::Exit(0));
    bench.manager.pod_synced(&"u".into());
    assert!(bench.until_success(ProbeKind::Readiness).await <= MS);
    for _ in 0..3 {
        bench.manager.pod_synced(&"u".into());
        bench.pass(10 * S).await;
    }
    assert_eq!(bench.calls("ready").len(), before + 4);
    assert!(bench.calls("live").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_takes_its_timeout_never_runs_twice_at_once() {
    let bench = Bench::new(|c| c.readiness_probe = Some(probe("ready")));
    bench.set("ready", Does::Time(S, 1));
    bench.start("c1");
    for _ in 0..100 {
        bench.manager.pod_synced(&"u".into());
        bench.pass(390 * MS).await;
    }
    assert_eq!(bench.most_at_once(), 1);
    // Ten seconds after each: only the period makes it due.
    assert_eq!(bench.calls("ready"), [Z, 10 * S, 20 * S, 30 * S]);
}

#[tokio::test(start_paused = true)]
async fn an_early_attempt_that_does_not_return_is_the_failure_of_the_next_tick() {
    let bench = Bench::new(|c| {
        let mut strict = probe("up");
        strict.failure_threshold = Some(2);
        c.startup_probe = Some(strict);
    });
    bench.set("up", Does::Exit(1));
    bench.start("c1");
    bench.pass(S).await;
    bench.set("up", Does::Take(3600 * S));
    bench.pass(8 * S).await;
    let unknown = Some(ProbeResult::Unknown);
    assert_eq!(bench.probe_result("c1", ProbeKind::Startup), unknown);
    assert_eq!(bench.events.recent().pop().unwrap().count, 1);
    bench.pass(S + 10 * MS).await;
    let failure = Some(ProbeResult::Failure);
    assert_eq!(bench.probe_result("c1", ProbeKind::Startup), failure);
    let event = bench.events.recent().pop().unwrap();
    assert_eq!(event.message, "Startup probe failed: probe did not return within 6s");
    assert_eq!(event.count, 1);
}

/// A probe whose period is far longer than the test may take.
fn rare(shape: impl FnOnce(&mut Probe)) -> Probe {
    let mut probe = Probe { period_seconds: Some(3600), ..Probe::default() };
    shape(&mut probe);
    probe
}

#[tokio::test]
async fn servers_that_listen_late_are_found_before_the_period_is_over() {
    for http in [false, true] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = IntOrString::Int(socket.local_addr().unwrap().port().into());
        let bench = Bench::new(|c| {
            c.readiness_probe = Some(rare(|probe| {
                if http {
                    probe.http_get = Some(HTTPGetAction { port, ..HTTPGetAction::default() });
                } else {
                    probe.tcp_socket = Some(TCPSocketAction { port, ..TCPSocketAction::default() });
                }
            }));
        });
        bench.world.lock().view.pod_ip = Some("127.0.0.1".into());
        bench.start("c1");
        while bench.events.recent().is_empty() {
            sleep(10 * MS).await;
        }
        let event = bench.events.recent().pop().unwrap();
        assert!(event.message.contains("connection refused"), "{event:?}");
        let listener = socket.listen(16).unwrap();
        let serve = async {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                let _ = stream.write_all(answer).await;
            }
        };
        tokio::select! {
            _ = bench.until_success(ProbeKind::Readiness) => {}
            () = serve => {}
        }
    }
}
