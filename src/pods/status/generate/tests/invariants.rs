//! Rules that hold for every pod, runtime status and history.

use super::*;
use crate::model::ProbeResult;
use proptest::prelude::*;

fn policies() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")]
}

fn instances_of(name: &'static str) -> impl Strategy<Value = Vec<model::ContainerStatus>> {
    let states =
        prop_oneof![Just(Cri::Created), Just(Cri::Running), Just(Cri::Exited), Just(Cri::Unknown)];
    prop::collection::vec((states, 0..3i32), 0..3).prop_map(move |list| {
        let newest = list.len();
        let each = list.into_iter().enumerate().map(|(index, (state, code))| {
            let attempt = (newest - index) as u32;
            model::ContainerStatus {
                exit_code: code,
                ..instance(name, &format!("{name}{attempt}"), state, attempt)
            }
        });
        each.collect()
    })
}

fn runtime_statuses() -> impl Strategy<Value = model::PodStatus> {
    (instances_of("i"), instances_of("s"), instances_of("a"), instances_of("b"), any::<bool>())
        .prop_map(|(i, s, a, b, ready)| {
            let mut runtime_status = runtime_status(&[i, s, a, b].concat());
            runtime_status.sandboxes[0].ready = ready;
            runtime_status
        })
}

fn probe_results() -> impl Strategy<Value = Option<ProbeResult>> {
    prop_oneof![
        Just(None),
        Just(Some(ProbeResult::Success)),
        Just(Some(ProbeResult::Failure)),
        Just(Some(ProbeResult::Unknown))
    ]
}

fn the_pod(policy: &str, api: bool) -> Pod {
    let mut pod = pod(policy, &["i", "s*"], &["a", "b"]);
    edit(&mut pod, "a", |a| a.readiness_probe = probe());
    edit(&mut pod, "b", |b| b.startup_probe = probe());
    if api { from_api(pod) } else { pod }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_terminal_phase_never_goes_back_whatever_the_runtime_shows(
        policy in policies(),
        api in any::<bool>(),
        steps in prop::collection::vec((runtime_statuses(), probe_results(), any::<bool>(), any::<bool>()), 1..6),
    ) {
        let pod = the_pod(policy, api);
        let mut old: Option<PodStatus> = None;
        for (runtime_status, probe_result, failing, terminal) in steps {
            let probe_results = |_: &ContainerId| ContainerProbeResults { liveness: None, readiness: probe_result, startup: probe_result };
            let failure = |_: &str| failing.then(|| ("X".to_string(), "y".to_string()));
            let inputs = StatusInputs {
                old: old.as_ref(),
                probe_results: &probe_results,
                start_failure: &failure,
                pod_is_terminal: terminal,
                ..StatusInputs::new(&pod, &runtime_status, now())
            };
            let Ok(status) = generate_api_pod_status(&inputs) else { continue };
            let phase = |s: &PodStatus| PodPhase::parse(s.phase.as_deref().unwrap()).unwrap();
            if let Some(old) = &old && phase(old).is_terminal() {
                prop_assert_eq!(phase(old), phase(&status));
            }
            old = Some(status);
        }
    }

    #[test]
    fn every_status_is_complete(
        policy in policies(),
        api in any::<bool>(),
        runtime_status in runtime_statuses(),
        probe_result in probe_results(),
    ) {
        let pod = the_pod(policy, api);
        let probe_results = |_: &ContainerId| ContainerProbeResults { liveness: None, readiness: probe_result, startup: probe_result };
        let inputs = StatusInputs { probe_results: &probe_results, ..StatusInputs::new(&pod, &runtime_status, now()) };
        let status = generate_api_pod_status(&inputs).unwrap();
        let kinds: Vec<_> = list(&status.conditions).iter().map(|c| c.type_.as_str()).collect();
        prop_assert_eq!(
            kinds,
            ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
        );
        prop_assert!(list(&status.conditions).iter().all(|c| c.last_transition_time.is_some()));
        prop_assert_eq!(list(&status.init_container_statuses).len(), 2);
        prop_assert_eq!(list(&status.container_statuses).len(), 2);
        for name in ["i", "s", "a", "b"] {
            let container = of(&status, name);
            let state = container.state.as_ref().unwrap();
            let ways = [state.running.is_some(), state.waiting.is_some(), state.terminated.is_some()];
            prop_assert_eq!(ways.iter().filter(|way| **way).count(), 1);
            let is_ready_init = name == "i" && state_text(&container.state).ends_with(":0");
            prop_assert!(!container.ready || container.started == Some(true) || is_ready_init);
        }
    }

    #[test]
    fn equal_inputs_give_an_equal_status(
        policy in policies(),
        first in runtime_statuses(),
        second in runtime_statuses(),
        failing in any::<bool>(),
    ) {
        let pod = the_pod(policy, false);
        let failure = |_: &str| failing.then(|| ("X".to_string(), "y".to_string()));
        let make = |runtime_status: &model::PodStatus, old: Option<&PodStatus>| {
            let inputs = StatusInputs { old, start_failure: &failure, ..StatusInputs::new(&pod, runtime_status, now()) };
            generate_api_pod_status(&inputs)
        };
        let before = make(&first, None).unwrap();
        if let Ok(once) = make(&second, Some(&before)) {
            prop_assert_eq!(make(&second, Some(&once)), Ok(once));
        }
    }
}
