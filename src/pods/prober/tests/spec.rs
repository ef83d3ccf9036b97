use crate::model::{Pod, ProbeKind};
use crate::pods::prober::spec::{handler, probes_of, restarts, rules, timeout};
use crate::runtime::handlers::Handler;
use k8s_openapi::api::core::v1::{Container, EnvVar, ExecAction, PodSpec, Probe};
use std::time::Duration;

fn container(name: &str) -> Container {
    Container { name: name.into(), ..Container::default() }
}

fn pod(spec: PodSpec) -> Pod {
    Pod { spec: Some(spec), ..Pod::default() }
}

#[test]
fn regular_containers_and_sidecars_are_probed_and_plain_init_containers_are_not() {
    let probed = |name: &str, policy: Option<&str>| Container {
        restart_policy: policy.map(Into::into),
        readiness_probe: Some(Probe::default()),
        ..container(name)
    };
    let pod = pod(PodSpec {
        init_containers: Some(vec![probed("init", None), probed("side", Some("Always"))]),
        containers: vec![
            Container { liveness_probe: Some(Probe::default()), ..probed("main", None) },
            container("quiet"),
        ],
        ..PodSpec::default()
    });
    let slots: Vec<_> =
        probes_of(&pod).into_iter().map(|slot| (slot.container.to_string(), slot.kind)).collect();
    assert_eq!(
        slots,
        [
            ("main".to_string(), ProbeKind::Readiness),
            ("main".to_string(), ProbeKind::Liveness),
            ("side".to_string(), ProbeKind::Readiness),
        ]
    );
}

#[test]
fn absent_and_senseless_parameters_become_the_defaults() {
    let senseless = Probe {
        period_seconds: Some(0),
        initial_delay_seconds: Some(-5),
        success_threshold: Some(-1),
        failure_threshold: Some(0),
        timeout_seconds: Some(0),
        ..Probe::default()
    };
    for probe in [Probe::default(), senseless] {
        let rules = rules(&probe, ProbeKind::Liveness);
        assert_eq!(rules.period, Duration::from_secs(10));
        assert_eq!(rules.initial_delay, Duration::ZERO);
        assert_eq!((rules.success_threshold, rules.failure_threshold), (1, 3));
        assert_eq!(timeout(&probe), Duration::from_secs(1));
    }
}

#[test]
fn only_the_policy_never_rules_out_another_instance() {
    let table = [
        ("Always", None, true),
        ("OnFailure", None, true),
        ("Never", None, false),
        ("Never", Some("Always"), true),
        ("Always", Some("Never"), false),
    ];
    for (pod_policy, own, expected) in table {
        let pod = pod(PodSpec { restart_policy: Some(pod_policy.into()), ..PodSpec::default() });
        let container = Container { restart_policy: own.map(Into::into), ..container("c") };
        assert_eq!(restarts(&pod, &container), expected, "{pod_policy} {own:?}");
    }
}

#[test]
fn commands_see_only_the_values_that_stand_in_the_spec() {
    let variable = |name: &str, value: Option<&str>| EnvVar {
        name: name.into(),
        value: value.map(Into::into),
        ..EnvVar::default()
    };
    let container = Container {
        env: Some(vec![
            variable("PORT", Some("80")),
            variable("PORT", Some("81")),
            variable("FROM_ELSEWHERE", None),
        ]),
        ..container("c")
    };
    let command = ["nc", "$(PORT)", "$(FROM_ELSEWHERE)", "$(NOBODY)", "$$(PORT)"];
    let probe = Probe {
        exec: Some(ExecAction { command: Some(command.map(Into::into).to_vec()) }),
        ..Probe::default()
    };
    let Some(Handler::Exec(expanded)) = handler(&container, &probe) else {
        panic!("no command");
    };
    assert_eq!(*expanded, ["nc", "81", "", "$(NOBODY)", "$(PORT)"]);
}

#[test]
fn a_probe_without_a_handler_has_none() {
    assert_eq!(handler(&container("c"), &Probe::default()), None);
}
