//! What would become of one pod, by the decisions that a running kubelet makes. Pure.

use super::report::{Outcome, PodForecast};
use crate::model::{
    ContainerStatus, Pod, PodExt, PodSource, PodStatus, container_hash, is_terminal,
};
use crate::pods::sync_loop::{AdmissionError, Rejection};
use crate::runtime::kuberuntime::actions::{
    ContainerKill, ContainerStart, KillReason, PodActionInputs, PodActions, RecordedFacts,
    compute_pod_actions,
};
use crate::state::probe_results::ContainerProbeResults;

/// What is known of a desired pod.
#[derive(Clone, Copy)]
pub(super) struct PodInputs<'a> {
    /// With its allocated amounts.
    pub(super) pod: &'a Pod,
    /// Empty if the runtime has nothing of it.
    pub(super) status: &'a PodStatus,
    pub(super) facts: &'a RecordedFacts,
}

/// What other checks say about the pod.
#[derive(Debug)]
pub(super) struct PodChecks {
    /// The admission of a pod of which nothing runs.
    pub(super) admission: Result<(), AdmissionError>,
    /// A rule for new pods that a running pod breaks.
    pub(super) broken: Option<Rejection>,
    /// Why volumes of it cannot be set up.
    pub(super) volumes: Vec<String>,
    pub(super) remarks: Vec<String>,
}

impl Default for PodChecks {
    fn default() -> Self {
        Self { admission: Ok(()), broken: None, volumes: Vec::new(), remarks: Vec::new() }
    }
}

/// Decides about a desired pod.
pub(super) fn forecast(inputs: PodInputs<'_>, checks: PodChecks) -> PodForecast {
    let PodInputs { pod, status, .. } = inputs;
    let (mut outcome, mut reasons) = decide(inputs);
    let is_pending = !status.may_be_running() && outcome == Outcome::Starts;
    match checks.admission {
        Err(error) if is_pending => {
            let (refused, reason) = refusal(error);
            outcome = refused;
            reasons.push(reason);
        }
        _ => {}
    }
    if let Some(Rejection { reason, message }) = checks.broken
        && outcome == Outcome::Kept
    {
        reasons.push(format!("it would not be admitted now, and runs on: {reason}: {message}"));
    }
    if matches!(outcome, Outcome::Kept | Outcome::Starts) && !checks.volumes.is_empty() {
        outcome = Outcome::CannotStartAgain;
        reasons.extend(checks.volumes);
    }
    reasons.extend(checks.remarks);
    PodForecast { outcome, reasons, ..of_pod(pod) }
}

/// A pod of which nothing is decided yet.
pub(super) fn of_pod(pod: &Pod) -> PodForecast {
    PodForecast {
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_string(),
        source: PodSource::of(pod).unwrap_or(PodSource::Api).as_str().to_owned(),
        outcome: Outcome::Unknown,
        reasons: Vec::new(),
    }
}

/// A pod of the runtime that is not, or not known to be, desired.
pub(super) fn of_runtime(status: &PodStatus, outcome: Outcome, reason: &str) -> PodForecast {
    PodForecast {
        namespace: status.namespace.to_string(),
        name: status.name.to_string(),
        uid: status.uid.to_string(),
        source: status.source().as_str().to_owned(),
        outcome,
        reasons: vec![reason.to_owned()],
    }
}

/// Whether something of a pod runs that a stop would end.
pub(super) fn has_running_containers(status: &PodStatus) -> bool {
    status.maybe_running_containers().next().is_some()
}

fn decide(inputs: PodInputs<'_>) -> (Outcome, Vec<String>) {
    let PodInputs { pod, status, facts } = inputs;
    let runs = has_running_containers(status);
    if pod.is_being_deleted() {
        return (Outcome::Ending, vec!["it is being deleted".to_owned()]);
    }
    let has_ended = !pod.is_static() && pod.status.as_ref().is_some_and(is_terminal);
    if has_ended || facts.terminal {
        return if runs {
            (Outcome::Ending, vec!["it has ended, and its last containers are stopped".to_owned()])
        } else {
            (Outcome::Ended, Vec::new())
        };
    }
    let actions = compute_pod_actions(&PodActionInputs {
        pod,
        status,
        // A kubelet that starts has no probe results of another one.
        probe_results: &|_| ContainerProbeResults::default(),
        facts,
    });
    if let Some(reason) = &actions.kill_pod {
        let reasons = vec![reason.to_string()];
        return match (actions.create_sandbox, runs) {
            (true, true) => (Outcome::Restarted, reasons),
            (true, false) => (Outcome::Starts, reasons),
            (false, true) => (Outcome::Stopped, reasons),
            (false, false) => (Outcome::Ended, Vec::new()),
        };
    }
    if let Some(reset) = &actions.reset {
        return (Outcome::Restarted, vec![reset.to_string()]);
    }
    if !actions.containers_to_kill.is_empty() {
        let kills = actions.containers_to_kill.iter();
        let reasons = kills.clone().map(|kill| kill_text(pod, status, kill)).collect();
        let restarts = kills.clone().any(|kill| kill.restart);
        let outcome = if restarts { Outcome::Restarted } else { Outcome::Stopped };
        return (outcome, reasons);
    }
    let mut reasons = resize_texts(&actions);
    reasons.extend(starts(&actions).map(|start| format!("{}: {}", start.name, start.reason)));
    if actions.starts_something() { (Outcome::Starts, reasons) } else { (Outcome::Kept, reasons) }
}

fn starts(actions: &PodActions) -> impl Iterator<Item = &ContainerStart> {
    let ephemeral = actions.ephemeral_containers_to_start.iter();
    let init = actions.init_containers_to_start.iter();
    ephemeral.chain(init).chain(&actions.containers_to_start)
}

fn resize_texts(actions: &PodActions) -> Vec<String> {
    let containers = actions.containers_to_resize.iter();
    let mut texts: Vec<_> = containers
        .map(|resize| {
            format!(
                "{}: CPU and memory are changed in place, as a resize in progress requires",
                resize.name
            )
        })
        .collect();
    if actions.resize_pod_level {
        texts.push("the pod-level CPU and memory are changed in place".to_owned());
    }
    texts
}

fn kill_text(pod: &Pod, status: &PodStatus, kill: &ContainerKill) -> String {
    let (name, reason) = (&kill.name, kill.reason);
    let instance = status.container(&kill.id);
    match (reason, instance) {
        (KillReason::DefinitionChanged, Some(instance)) => {
            format!("{name}: {}", change_text(pod, instance))
        }
        _ => format!("{name}: {reason}"),
    }
}

/// What differs between a container's definition and the one that it was created with.
fn change_text(pod: &Pod, instance: &ContainerStatus) -> String {
    let Some(container) = pod.container(&instance.name) else {
        return KillReason::DefinitionChanged.to_string();
    };
    let image = container.image.as_deref().unwrap_or_default();
    let (hash, expected) = (&instance.hash, container_hash(container));
    if image == &*instance.image {
        // Go kubelets before v1.31 hashed the whole container.
        format!(
            "its hash is {hash} and would be {expected}, although the image is the same: another version of the kubelet created it"
        )
    } else {
        format!(
            "its image is {} and would be {image} (hash {hash}, would be {expected})",
            instance.image
        )
    }
}

fn refusal(error: AdmissionError) -> (Outcome, String) {
    match error {
        AdmissionError::Rejected(Rejection { reason, message }) => {
            (Outcome::Refused, format!("{reason}: {message}"))
        }
        AdmissionError::Deferred { message, .. } => (Outcome::Starts, message),
        AdmissionError::Preempts { victims, resource } => {
            let names: Vec<_> = victims.iter().map(|pod| pod.log_name().to_string()).collect();
            let reason = format!("it would preempt {} for {resource}", names.join(", "));
            (Outcome::Unknown, reason)
        }
    }
}

/// The name of a source for people.
pub(super) fn source_text(source: PodSource) -> &'static str {
    match source {
        PodSource::Api => "the API server",
        _ => "the static pods",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ContainerState, SandboxStatus};
    use serde_json::{Value, json};

    fn pod(changes: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
            "spec": {"containers": [{"name": "main", "image": "a:1"}], "restartPolicy": "Always"},
            "status": {"phase": "Running"},
        });
        merge(&mut pod, changes);
        serde_json::from_value(pod).unwrap()
    }

    fn merge(into: &mut Value, from: Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (key, value) in from {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, from) => *into = from,
        }
    }

    fn status(pod: &Pod, change: impl Fn(&mut SandboxStatus, &mut ContainerStatus)) -> PodStatus {
        let mut sandbox = SandboxStatus { id: "s".into(), ready: true, ..SandboxStatus::default() };
        let container = &pod.containers()[0];
        let mut instance = ContainerStatus {
            id: "c".into(),
            name: container.name.as_str().into(),
            sandbox: "s".into(),
            state: ContainerState::Running,
            image: container.image.as_deref().unwrap().into(),
            hash: container_hash(container).into(),
            ..ContainerStatus::default()
        };
        change(&mut sandbox, &mut instance);
        PodStatus {
            uid: pod.uid(),
            sandboxes: vec![sandbox],
            containers: vec![instance],
            ..PodStatus::default()
        }
    }

    fn of(pod: &Pod, status: &PodStatus, checks: PodChecks) -> PodForecast {
        let facts = RecordedFacts::default();
        let inputs = PodInputs { pod, status, facts: &facts };
        forecast(inputs, checks)
    }

    #[test]
    fn a_running_pod_is_kept_unless_a_sync_would_stop_something() {
        type Change = fn(&mut SandboxStatus, &mut ContainerStatus);
        let same: Change = |_, _| {};
        let with = |spec| pod(json!({ "spec": spec }));
        for (pod, change, outcome, reason) in [
            (with(json!({})), same, Outcome::Kept, ""),
            (
                with(json!({})),
                |_, one| one.hash = "1".into(),
                Outcome::Restarted,
                "main: its hash is 1 and would be",
            ),
            (
                with(json!({})),
                |_, one| (one.hash, one.image) = ("1".into(), "a:0".into()),
                Outcome::Restarted,
                "main: its image is a:0 and would be a:1",
            ),
            (
                with(json!({"hostNetwork": true})),
                same,
                Outcome::Restarted,
                "the network mode differs",
            ),
            (
                with(json!({})),
                |_, one| one.state = ContainerState::Unknown,
                Outcome::Restarted,
                "main: is in \"unknown\" state",
            ),
            (
                with(json!({})),
                |_, one| (one.state, one.exit_code) = (ContainerState::Exited, 3),
                Outcome::Starts,
                "main: exited with code 3",
            ),
            (
                with(json!({"restartPolicy": "Never"})),
                |_, one| one.state = ContainerState::Exited,
                Outcome::Ended,
                "",
            ),
            (
                with(json!({"restartPolicy": "Never"})),
                |sandbox, _| (sandbox.ready, sandbox.attempt) = (false, 1),
                Outcome::Stopped,
                "the sandbox is not ready and nothing is left to restart",
            ),
        ] {
            let found = of(&pod, &status(&pod, change), PodChecks::default());
            assert_eq!(found.outcome, outcome, "{found:?}");
            assert!(found.reasons.join(", ").starts_with(reason), "{found:?}");
        }
    }

    #[test]
    fn a_pod_that_ends_or_has_ended_is_not_restarted() {
        let deleted = pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        let changed = |_: &mut SandboxStatus, one: &mut ContainerStatus| one.hash = "1".into();
        let found = of(&deleted, &status(&deleted, changed), PodChecks::default());
        assert_eq!(found.outcome, Outcome::Ending);
        let failed = pod(json!({"status": {"phase": "Failed"}}));
        let found = of(&failed, &status(&failed, changed), PodChecks::default());
        assert_eq!(found.outcome, Outcome::Ending);
        let found = of(&failed, &PodStatus::default(), PodChecks::default());
        assert_eq!(found.outcome, Outcome::Ended);
    }

    #[test]
    fn admission_decides_about_a_pod_of_which_nothing_runs_and_never_about_one_that_runs() {
        let pod = pod(json!({}));
        let running = status(&pod, |_, _| {});
        let rejected = || AdmissionError::Rejected(rejection());
        fn rejection() -> Rejection {
            Rejection { reason: "OutOfcpu".into(), message: "too much".to_owned() }
        }
        let deferred = AdmissionError::Deferred {
            message: "waiting".to_owned(),
            on_timeout: None,
            delay_event: false,
            is_ending: false,
        };
        let preempts = AdmissionError::Preempts {
            victims: vec![std::sync::Arc::new(pod.clone())],
            resource: "cpu".to_owned(),
        };
        for (status, error, outcome, reason) in [
            (&PodStatus::default(), rejected(), Outcome::Refused, "OutOfcpu: too much"),
            (&PodStatus::default(), deferred, Outcome::Starts, "waiting"),
            (&PodStatus::default(), preempts, Outcome::Unknown, "preempt shop/web for cpu"),
            (&running, rejected(), Outcome::Kept, ""),
        ] {
            let checks = PodChecks { admission: Err(error), ..PodChecks::default() };
            let found = of(&pod, status, checks);
            assert_eq!(found.outcome, outcome);
            assert!(found.reasons.join(", ").contains(reason), "{found:?}");
        }
        let checks = PodChecks { broken: Some(rejection()), ..PodChecks::default() };
        let found = of(&pod, &running, checks);
        assert_eq!(found.outcome, Outcome::Kept);
        assert!(found.reasons[0].contains("runs on: OutOfcpu"), "{found:?}");
    }

    #[test]
    fn a_volume_that_cannot_be_set_up_keeps_a_pod_from_starting_again() {
        let volumes =
            || PodChecks { volumes: vec!["volume v: no".to_owned()], ..PodChecks::default() };
        let web = pod(json!({}));
        let found = of(&web, &status(&web, |_, _| {}), volumes());
        assert_eq!(found.outcome, Outcome::CannotStartAgain);
        assert_eq!(found.reasons, ["volume v: no"]);
        let failed = pod(json!({"status": {"phase": "Failed"}}));
        let found = of(&failed, &PodStatus::default(), volumes());
        assert_eq!(found.outcome, Outcome::Ended);
    }
}
