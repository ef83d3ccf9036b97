//! The tasks on a paused clock, with commands that a test controls.

use super::bench::{Bench, Does, S, Z, container, pod, probe};
use crate::cri::{CriError, Rpc};
use crate::model::{ContainerState, ProbeKind, ProbeResult};
use crate::pods::prober::task::ProbeTask;

#[tokio::test(start_paused = true)]
async fn a_container_is_probed_when_it_starts_and_then_once_a_period() {
    let bench = Bench::new(|c| c.readiness_probe = Some(probe("ready")));
    bench.start("c1");
    bench.pass(25 * S).await;
    assert_eq!(bench.calls("ready"), [Z, 10 * S, 20 * S]);
    assert_eq!(bench.probe_result("c1", ProbeKind::Readiness), Some(ProbeResult::Success));
}

#[tokio::test(start_paused = true)]
async fn without_a_container_nothing_is_run_and_nothing_polls() {
    let bench = Bench::new(|c| {
        c.readiness_probe = Some(probe("ready"));
        c.liveness_probe = Some(probe("live"));
        c.startup_probe = Some(probe("up"));
    });
    bench.pass(S).await;
    let read = bench.reads();
    bench.pass(3600 * S).await;
    assert_eq!(bench.reads(), read);
    assert!(bench.calls("").is_empty());
}

#[tokio::test(start_paused = true)]
async fn startup_holds_the_others_back_and_opens_for_readiness_at_once() {
    let bench = Bench::new(|c| {
        c.readiness_probe = Some(probe("ready"));
        c.liveness_probe = Some(probe("live"));
        c.startup_probe = Some(probe("up"));
    });
    bench.set("up", Does::Exit(1));
    bench.start("c1");
    bench.pass(15 * S).await;
    assert!(bench.calls("ready").is_empty() && bench.calls("live").is_empty());
    assert!(!bench.started("c1"));

    bench.set("up", Does::Exit(0));
    bench.pass(20 * S).await;
    assert!(bench.started("c1"));
    let up = bench.times("up").pop().unwrap();
    let ready = bench.times("ready");
    assert_eq!(ready, [up, up + 10 * S]);
    let live = bench.times("live");
    assert!((up..up + 10 * S).contains(&live[0]), "{live:?}");
    assert!(!bench.started("c2"));
}

#[tokio::test(start_paused = true)]
async fn a_dead_container_is_reported_and_then_left_alone() {
    let bench = Bench::new(|c| c.liveness_probe = Some(probe("live")));
    bench.set("live", Does::Exit(1));
    bench.start("c1");
    bench.pass(100 * S).await;
    assert_eq!(bench.calls("live").len(), 3);
    assert_eq!(bench.probe_result("c1", ProbeKind::Liveness), Some(ProbeResult::Failure));
    let event = bench.events.recent().pop().unwrap();
    assert_eq!(event.reason, "Unhealthy");
    assert_eq!(event.message, "Liveness probe failed: live says 1");
    assert_eq!(event.count, 3);
    assert_eq!(event.object.field_path, "spec.containers{c}");

    bench.set("live", Does::Exit(0));
    bench.start("c2");
    bench.pass(10 * S).await;
    assert_eq!(bench.calls("live").len(), 4);
    assert_eq!(bench.probe_result("c1", ProbeKind::Liveness), None);
    assert_eq!(bench.probe_result("c2", ProbeKind::Liveness), Some(ProbeResult::Success));
}

#[tokio::test(start_paused = true)]
async fn a_slow_probe_skips_ticks_and_never_overlaps() {
    let bench = Bench::new(|c| {
        let mut slow = probe("ready");
        slow.timeout_seconds = Some(60);
        c.readiness_probe = Some(slow);
    });
    bench.set("ready", Does::Take(25 * S));
    bench.start("c1");
    bench.pass(100 * S).await;
    assert_eq!(bench.calls("ready"), [Z, 25 * S, 50 * S, 75 * S, 100 * S]);
    assert_eq!(bench.most_at_once(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_does_not_return_fails_once_and_no_other_starts_before_it_does() {
    let bench = Bench::new(|c| {
        let mut hung = probe("ready");
        hung.failure_threshold = Some(1);
        c.readiness_probe = Some(hung);
    });
    bench.start("c1");
    bench.pass(S).await;
    bench.set("ready", Does::Take(95 * S));
    bench.pass(20 * S).await;
    assert_eq!(bench.probe_result("c1", ProbeKind::Readiness), Some(ProbeResult::Failure));
    let event = bench.events.recent().pop().unwrap();
    assert_eq!(event.message, "Readiness probe failed: probe did not return within 6s");
    assert!(bench.metrics.text().contains("kubelet_prober_overdue_probes 1"));
    bench.set("ready", Does::Exit(0));
    bench.pass(80 * S).await;
    assert_eq!(bench.calls("ready"), [Z, 10 * S]);
    bench.pass(10 * S).await;
    assert_eq!(bench.calls("ready"), [Z, 10 * S, 105 * S, 110 * S]);
    assert_eq!(bench.probe_result("c1", ProbeKind::Readiness), Some(ProbeResult::Success));
    assert_eq!(bench.events.recent().len(), 1);
    assert!(bench.metrics.text().contains("kubelet_prober_overdue_probes 0"));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_on_a_dead_instance_does_not_hold_up_the_next() {
    let bench = Bench::new(|c| c.readiness_probe = Some(probe("ready")));
    bench.set("ready", Does::Take(3600 * S));
    bench.start("c1");
    bench.pass(30 * S).await;
    bench.set("ready", Does::Exit(0));
    bench.start("c2");
    bench.pass(S).await;
    assert_eq!(bench.calls("ready"), [Z, 30 * S]);
    assert_eq!(bench.probe_result("c2", ProbeKind::Readiness), Some(ProbeResult::Success));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_cannot_be_run_is_tried_three_times_and_changes_nothing() {
    let bench = Bench::new(|c| c.liveness_probe = Some(probe("live")));
    bench.set(
        "live",
        Does::Fail(CriError::Unavailable {
            rpc: Rpc::ExecSync,
            kind: None,
            message: "no runtime".into(),
        }),
    );
    bench.start("c1");
    bench.pass(100 * S).await;
    assert_eq!(bench.calls("live").len(), 30);
    assert_eq!(bench.probe_result("c1", ProbeKind::Liveness), Some(ProbeResult::Success));
    let event = bench.events.recent().pop().unwrap();
    assert_eq!(event.count, 10);
    assert_eq!(
        event.message,
        "Liveness probe errored and resulted in unknown state: \
         rpc error: code = Unavailable desc = no runtime"
    );
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_exits_during_a_probe_is_not_reported_as_unhealthy() {
    let bench = Bench::new(|c| c.liveness_probe = Some(probe("live")));
    bench.set("live", Does::Take(S));
    bench.start("c1");
    while bench.calls("live").is_empty() {
        bench.pass(S / 10).await;
    }
    bench.set("live", Does::Exit(1));
    bench.change("c1", ContainerState::Exited);
    bench.pass(20 * S).await;
    assert!(bench.events.recent().is_empty());
    assert_eq!(bench.calls("live").len(), 1);
    assert_eq!(bench.probe_result("c1", ProbeKind::Liveness), Some(ProbeResult::Failure));
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_kubelet_flips_nothing() {
    let bench = Bench::new(|c| {
        c.readiness_probe = Some(probe("ready"));
        c.liveness_probe = Some(probe("live"));
        c.startup_probe = Some(probe("up"));
    });
    bench.start("c1");
    bench.pass(30 * S).await;
    let ready =
        |bench: &Bench| (bench.probe_result("c1", ProbeKind::Readiness), bench.started("c1"));
    assert_eq!(ready(&bench), (Some(ProbeResult::Success), true));

    let later = bench.restarted();
    later.pass(Z).await;
    assert_eq!(ready(&later), (Some(ProbeResult::Success), true));
    later.pass(15 * S).await;
    assert_eq!(ready(&later), (Some(ProbeResult::Success), true));
    assert!(later.calls("up").is_empty());
    assert!(!later.calls("ready").is_empty() && !later.calls("live").is_empty());
}

#[tokio::test(start_paused = true)]
async fn probes_of_adopted_containers_are_spread_over_their_period() {
    const PODS: usize = 500;
    let bench = Bench::new(|c| c.readiness_probe = Some(probe("ready")));
    bench.start("c1");
    bench.pass(S).await;
    bench.manager.remove_pod(&"u".into());
    bench.pass(S).await;
    let pods: Vec<_> = (0..PODS)
        .map(|i| pod(&format!("u{i}"), container(|c| c.readiness_probe = Some(probe("ready")))))
        .collect();
    for pod in &pods {
        let uid = pod.metadata.uid.as_deref().unwrap().into();
        bench.state_store.update(&uid, |record| {
            record.set_probe_result(&"c1".into(), ProbeKind::Readiness, ProbeResult::Success);
        });
        bench.manager.add_pod(pod);
    }
    let before = bench.calls("ready").len();
    bench.pass(10 * S).await;
    let calls = bench.calls("ready").split_off(before);
    // One that runs at the very beginning has its next run at the very end.
    let expected = PODS..PODS + PODS / 50;
    assert!(expected.contains(&calls.len()), "{}", calls.len());
    let mut per_second = [0; 16];
    for call in calls {
        per_second[call.as_secs() as usize] += 1;
    }
    assert!(per_second.iter().all(|n| *n < PODS / 5), "{per_second:?}");
}

#[tokio::test(start_paused = true)]
async fn a_removed_pod_leaves_nothing_behind() {
    let bench = Bench::new(|c| {
        c.readiness_probe = Some(probe("ready"));
        c.liveness_probe = Some(probe("live"));
    });
    bench.start("c1");
    bench.pass(20 * S).await;
    let text = bench.metrics.text();
    let sample = "prober_probe_total{probe_type=\"Readiness\",result=\"successful\",\
                  container=\"c\",pod=\"p\",namespace=\"ns\",pod_uid=\"u\"} 3";
    assert!(text.contains(sample), "{text}");
    assert!(!bench.state_store.uids().is_empty());

    bench.manager.remove_pod(&"u".into());
    bench.pass(Z).await;
    let calls = bench.calls("").len();
    bench.pass(60 * S).await;
    assert_eq!(bench.calls("").len(), calls);
    assert_eq!((bench.results.count(), bench.manager.count()), (0, 0));
    assert!(bench.state_store.uids().is_empty());
    assert!(!bench.metrics.text().contains("pod_uid"));
    assert_eq!(bench.tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_removal_does_not_wait_for_a_probe_under_way() {
    let bench = Bench::new(|c| c.readiness_probe = Some(probe("ready")));
    bench.set("ready", Does::Take(3600 * S));
    bench.start("c1");
    bench.pass(S).await;
    bench.manager.remove_pod(&"u".into());
    bench.pass(Z).await;
    assert_eq!(bench.tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_stopped_keeps_its_readiness_probes() {
    let bench = Bench::new(|c| {
        c.readiness_probe = Some(probe("ready"));
        c.liveness_probe = Some(probe("live"));
    });
    bench.start("c1");
    bench.pass(20 * S).await;
    bench.manager.stop_liveness_and_startup(&"u".into());
    let (live, ready) = (bench.calls("live").len(), bench.calls("ready").len());
    bench.pass(20 * S).await;
    assert_eq!(bench.calls("live").len(), live);
    assert_eq!(bench.calls("ready").len(), ready + 2);
    assert_eq!(bench.probe_result("c1", ProbeKind::Liveness), None);
    // Another sync of the pod does not bring them back.
    bench.add();
    bench.pass(20 * S).await;
    assert_eq!(bench.calls("live").len(), live);
}

#[tokio::test(start_paused = true)]
async fn adding_a_pod_again_changes_nothing() {
    let bench = Bench::new(|c| c.readiness_probe = Some(probe("ready")));
    bench.start("c1");
    for _ in 0..5 {
        bench.add();
        bench.pass(S).await;
    }
    assert_eq!(bench.calls("ready"), [Z]);
    assert_eq!(bench.tasks(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_ended_for_good_is_probed_again_if_it_runs_after_all() {
    let bench = Bench::new(|c| {
        c.restart_policy = Some("Never".into());
        c.readiness_probe = Some(probe("ready"));
    });
    bench.start("c1");
    bench.pass(S).await;
    bench.change("c1", ContainerState::Exited);
    bench.pass(S).await;
    assert_eq!(bench.tasks(), 0);
    bench.add();
    bench.pass(S).await;
    assert_eq!(bench.tasks(), 0);
    bench.start("c2");
    bench.add();
    bench.pass(S).await;
    assert_eq!(bench.calls("ready"), [Z, 3 * S]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_deleting_ends_its_liveness_probes_by_itself() {
    let bench = Bench::new(|c| c.liveness_probe = Some(probe("live")));
    bench.set("live", Does::Exit(1));
    bench.start("c1");
    bench.world.lock().view.deleting = true;
    bench.manager.pod_changed(&"u".into());
    bench.pass(60 * S).await;
    assert!(bench.calls("live").is_empty());
    assert_eq!(bench.tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn commands_are_expanded_and_the_timeout_is_the_probes() {
    let bench = Bench::new(|c| {
        c.env = Some(vec![k8s_openapi::api::core::v1::EnvVar {
            name: "WHICH".into(),
            value: Some("ready".into()),
            ..Default::default()
        }]);
        let mut probe = probe("$(WHICH)");
        probe.timeout_seconds = Some(7);
        c.readiness_probe = Some(probe);
    });
    bench.start("c1");
    bench.pass(S).await;
    assert_eq!(bench.calls("ready"), [Z]);
    assert_eq!(bench.world.lock().timeout, 7 * S);
}

#[tokio::test(start_paused = true)]
async fn an_idle_probe_is_light() {
    let bench = Bench::new(|c| c.readiness_probe = Some(probe("ready")));
    let pods = bench.manager.pods.lock();
    let probes = &pods["u"];
    let slot = probes.slots.lock()[0].clone();
    let task = ProbeTask::new(&bench.manager.shared, probes, &slot).unwrap();
    let bytes = std::mem::size_of_val(&task.run());
    assert!(bytes <= 1536, "{bytes} bytes");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_was_held_up_does_not_blame_the_container() {
    let bench = Bench::new(|c| {
        let mut strict = probe("live");
        strict.failure_threshold = Some(1);
        c.liveness_probe = Some(strict);
    });
    bench.set("live", Does::Take(3600 * S));
    bench.start("c1");
    while bench.calls("live").is_empty() {
        bench.pass(S / 10).await;
    }
    // All timers of a minute fire at once, as after a stall.
    tokio::time::advance(60 * S).await;
    bench.pass(Z).await;
    assert_eq!(bench.probe_result("c1", ProbeKind::Liveness), Some(ProbeResult::Success));
    let event = bench.events.recent().pop().unwrap();
    assert!(event.message.contains("kubelet was stalled"), "{event:?}");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_panics_is_an_error_of_that_probe_alone() {
    let bench = Bench::new(|c| {
        c.readiness_probe = Some(probe("ready"));
        c.liveness_probe = Some(probe("live"));
    });
    bench.set("live", Does::Panic);
    bench.start("c1");
    bench.pass(100 * S).await;
    assert_eq!(bench.calls("ready").len(), 11, "the other probe goes on");
    assert_eq!(bench.calls("live").len(), 30, "as one that cannot be run");
    let event = bench.events.recent().pop().unwrap();
    assert_eq!(
        event.message,
        "Liveness probe errored and resulted in unknown state: panicked: as scripted"
    );
    let probe_result = bench.probe_result("c1", ProbeKind::Liveness);
    assert_eq!(probe_result, Some(ProbeResult::Success));
    bench.set("live", Does::Exit(1));
    bench.pass(30 * S).await;
    let probe_result = bench.probe_result("c1", ProbeKind::Liveness);
    assert_eq!(probe_result, Some(ProbeResult::Failure));
}

#[tokio::test(start_paused = true)]
async fn a_probe_task_that_panics_goes_on_after_a_period() {
    let bench = Bench::new(|c| c.readiness_probe = Some(probe("ready")));
    bench.world.lock().blind = true;
    bench.start("c1");
    bench.pass(35 * S).await;
    assert!((3..10).contains(&bench.reads()), "{}", bench.reads());
    bench.world.lock().blind = false;
    bench.pass(20 * S).await;
    assert!(bench.calls("ready").len() >= 2);
    let probe_result = bench.probe_result("c1", ProbeKind::Readiness);
    assert_eq!(probe_result, Some(ProbeResult::Success));
}

#[tokio::test(start_paused = true)]
async fn results_of_an_earlier_kubelet_hold_from_the_start() {
    let bench = Bench::new(|c| {
        c.readiness_probe = Some(probe("ready"));
        c.startup_probe = Some(probe("up"));
    });
    bench.start("c1");
    bench.pass(15 * S).await;
    let success = Some(ProbeResult::Success);
    // Before any task of the new one has run.
    let second = bench.restarted();
    assert_eq!(second.probe_result("c1", ProbeKind::Startup), success);
    assert_eq!(second.probe_result("c1", ProbeKind::Readiness), success);
    // What was replaced while no kubelet ran is forgotten.
    bench.pass(S).await;
    bench.world.lock().view.container.as_mut().unwrap().id = "c2".into();
    let third = bench.restarted();
    assert_eq!(third.results.count(), 0);
}
