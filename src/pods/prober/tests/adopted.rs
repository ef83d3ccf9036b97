//! Containers that run when the kubelet starts, and of which no result is recorded.

use super::bench::{Bench, Does, S, Z, probe};
use crate::model::{ProbeKind, ProbeResult};

/// A kubelet after another one whose records it does not have; the startup probe of the container fails now.
async fn without_records(was_started: bool) -> Bench {
    let before = Bench::new(|c| {
        c.readiness_probe = Some(probe("ready"));
        c.startup_probe = Some(probe("up"));
    });
    before.start("c1");
    before.pass(15 * S).await;
    before.manager.remove_pod(&"u".into());
    before.pass(Z).await;
    assert!(before.state_store.uids().is_empty());
    before.set("up", Does::Exit(1));
    before.world.lock().view.was_started = was_started;
    before.restarted()
}

#[tokio::test(start_paused = true)]
async fn a_container_that_had_started_by_its_status_is_not_probed_for_startup_again() {
    let bench = without_records(true).await;
    bench.pass(60 * S).await;
    assert!(bench.calls("up").is_empty());
    assert!(!bench.calls("ready").is_empty());
    assert!(bench.started("c1"));
    assert_eq!(bench.probe_result("c1", ProbeKind::Startup), Some(ProbeResult::Success));
    assert!(bench.events.recent().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_container_that_had_not_started_by_its_status_is_probed_for_startup() {
    let bench = without_records(false).await;
    bench.pass(60 * S).await;
    assert_eq!(bench.events.recent().pop().unwrap().count, 3);
    assert!(bench.calls("ready").is_empty());
    assert_eq!(bench.probe_result("c1", ProbeKind::Startup), Some(ProbeResult::Failure));
}
