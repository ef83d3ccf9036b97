//! The history of a pod in order, from its conditions, container states, history and events. Pure.
//!
//! Steps that none of these sources has any more are missing.

use super::row::terminated;
use super::{EventReport, PastEvent};
use crate::model::reasons::event;
use crate::model::{Pod, PodExt, keys};
use crate::state::pod_history::{DecisionKind, PodHistoryRecord};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

/// Events that are steps, in order. Only the first one of each container counts, because later ones belong to
/// restarts.
const EVENTS: [(&str, &str); 4] = [
    (event::PULLING, "image pull started"),
    (event::PULLED, "image present"),
    (event::CREATED, "created"),
    (event::STARTED, "started"),
];
/// Ranks of the other steps of a container.
const STARTED: usize = 3;
const ENDED: usize = 4;
const RESTARTED: usize = 5;
/// Number of ranks per container, and for the pod before its first container.
const PLACES: usize = 10;

struct Steps<'a> {
    pod: &'a Pod,
    /// Each with its rank, which orders steps within the same second, because times in a status are whole seconds.
    found: Vec<(usize, PastEvent)>,
}

impl Steps<'_> {
    fn push(&mut self, at: Option<Timestamp>, place: usize, what: &str, detail: String) {
        self.push_of("", at, place, what, detail);
    }

    fn push_of(
        &mut self,
        container: &str,
        at: Option<Timestamp>,
        step: usize,
        what: &str,
        detail: String,
    ) {
        let place = step + if container.is_empty() { 0 } else { self.place(container) };
        self.found.extend(at.map(|at| {
            let moment = PastEvent { at, container: container.into(), what: what.into(), detail };
            (place, moment)
        }));
    }

    /// The rank of a container: they start one after the other, and the pod is initialized before its first regular
    /// one.
    fn place(&self, container: &str) -> usize {
        let inits = self.pod.init_containers();
        let index = match inits.iter().position(|known| known.name == container) {
            Some(index) => index,
            None => {
                let mut regular = self.pod.containers().iter();
                let index = regular.position(|known| known.name == container);
                1 + inits.len() + index.unwrap_or_default()
            }
        };
        PLACES * (1 + index)
    }

    fn initialized(&self) -> usize {
        PLACES * (1 + self.pod.init_containers().len())
    }

    fn in_order(mut self) -> Vec<PastEvent> {
        self.found.sort_by_key(|(place, moment)| (moment.at.as_second(), *place, moment.at));
        self.found.into_iter().map(|(_, moment)| moment).collect()
    }
}

/// The known steps, oldest first.
pub fn timeline(
    pod: &Pod,
    status: Option<&PodStatus>,
    record: &PodHistoryRecord,
    events: &[EventReport],
) -> Vec<PastEvent> {
    let found = Vec::new();
    let mut steps = Steps { pod, found };
    let created = pod.metadata.creation_timestamp.as_ref();
    steps.push(created.map(|time| time.0), 0, "created", String::new());
    let seen = pod.annotation(keys::CONFIG_SEEN);
    let seen = seen.and_then(|seen| seen.parse().ok());
    let source = pod.annotation(keys::CONFIG_SOURCE);
    let source = source.map(|source| format!("from {source}"));
    steps.push(seen, 1, "queued", source.unwrap_or_default());
    let mut entries = record.entries().iter();
    if let Some(noted) = entries.find(|noted| noted.kind == DecisionKind::CreateSandbox) {
        let why = noted.why.to_string();
        steps.push(Some(noted.first()), 3, "sandbox creation started", why);
    }
    for (step, (reason, what)) in EVENTS.into_iter().enumerate() {
        for known in firsts(events, reason) {
            let detail = known.message.clone();
            steps.push_of(&known.container, Some(known.first), step, what, detail);
        }
    }
    if let Some(status) = status.or(pod.status.as_ref()) {
        of_status(status, events, &mut steps);
    }
    steps.in_order()
}

/// The oldest event with this reason of each container.
fn firsts<'a>(events: &'a [EventReport], reason: &str) -> Vec<&'a EventReport> {
    let mut firsts: Vec<&EventReport> = Vec::new();
    for event in events.iter().filter(|event| event.reason == reason) {
        match firsts.iter_mut().find(|known| known.container == event.container) {
            Some(known) if event.first < known.first => *known = event,
            Some(_) => {}
            None => firsts.push(event),
        }
    }
    firsts
}

fn of_status(status: &PodStatus, events: &[EventReport], steps: &mut Steps<'_>) {
    let accepted = status.start_time.as_ref().map(|time| time.0);
    steps.push(accepted, 2, "accepted", String::new());
    let since = |kind: &str| {
        let mut holds = status.conditions.iter().flatten();
        let holds = holds.find(|known| known.type_ == kind && known.status == "True")?;
        Some(holds.last_transition_time.as_ref()?.0)
    };
    let network = since("PodReadyToStartContainers");
    steps.push(network, 4, "sandbox and network ready", String::new());
    if !steps.pod.init_containers().is_empty() {
        let (at, place) = (since("Initialized"), steps.initialized());
        steps.push(at, place, "initialised", String::new());
    }
    steps.push(since("Ready"), usize::MAX, "ready", String::new());
    let lists = [&status.init_container_statuses, &status.container_statuses];
    for container in lists.into_iter().flatten().flatten() {
        of_container(container, events, steps);
    }
}

fn of_container(container: &ContainerStatus, events: &[EventReport], steps: &mut Steps<'_>) {
    let name = container.name.as_str();
    let of_it = |known: &EventReport| known.reason == event::STARTED && known.container == name;
    let reported = events.iter().any(of_it);
    let state = container.state.as_ref();
    let running = state.and_then(|state| state.running.as_ref());
    let started = running.and_then(|running| running.started_at.as_ref());
    let ended = terminated(state);
    let started = started.or_else(|| ended?.started_at.as_ref());
    let started = started.map(|time| time.0);
    match container.restart_count {
        0 if reported => {}
        0 => steps.push_of(name, started, STARTED, "started", String::new()),
        count => {
            let detail = format!("restart {count}");
            steps.push_of(name, started, RESTARTED, "started again", detail);
        }
    }
    let last = terminated(container.last_state.as_ref());
    for ended in last.into_iter().chain(ended) {
        let detail = match ended.reason.as_deref() {
            None | Some("") => format!("exit code {}", ended.exit_code),
            Some(reason) => format!("exit code {} ({reason})", ended.exit_code),
        };
        let at = ended.finished_at.as_ref().map(|time| time.0);
        steps.push_of(name, at, ENDED, "ended", detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::pod_history::HistoryEntry;
    use serde_json::{Value, json};

    fn t(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_000_000_000 + millis).unwrap()
    }

    fn pod(annotations: Value) -> Pod {
        let meta =
            json!({"name": "web", "namespace": "shop", "uid": "u", "annotations": annotations});
        serde_json::from_value(
            json!({"metadata": meta, "spec": {"containers": [{"name": "main"}]}}),
        )
        .unwrap()
    }

    fn happened(reason: &str, container: &str, first: i64, count: u32) -> EventReport {
        EventReport {
            kind: "Normal".into(),
            reason: reason.into(),
            container: container.into(),
            message: format!("{reason} it"),
            count,
            first: t(first),
            last: t(first + 60_000),
        }
    }

    fn steps_of(
        pod: &Pod,
        status: Value,
        record: &PodHistoryRecord,
        events: &[EventReport],
    ) -> Vec<(i64, String)> {
        let status: PodStatus = serde_json::from_value(status).unwrap();
        let moments = timeline(pod, Some(&status), record, events).into_iter();
        let line = |m: PastEvent| {
            let parts = [m.container, m.what, m.detail];
            let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            (m.at.as_millisecond() - 1_000_000_000, parts.join("|"))
        };
        moments.map(line).collect()
    }

    fn condition(kind: &str, status: &str, at: i64) -> Value {
        json!({"type": kind, "status": status, "lastTransitionTime": t(at).to_string()})
    }

    #[test]
    fn a_start_is_shown_step_by_step() {
        let pod = pod(json!({keys::CONFIG_SEEN: t(100).to_string(), keys::CONFIG_SOURCE: "file"}));
        let mut record = PodHistoryRecord::default();
        record.push(
            HistoryEntry::about_pod(DecisionKind::CreateSandbox, "it has none".into()),
            t(300),
        );
        let events = [
            happened(event::PULLING, "main", 350, 1),
            happened(event::PULLED, "main", 1500, 1),
            happened(event::CREATED, "main", 1600, 1),
            happened(event::STARTED, "main", 1700, 1),
        ];
        let status = json!({
            "startTime": t(0).to_string(),
            "conditions": [
                condition("Ready", "True", 1000), condition("PodReadyToStartContainers", "True", 0),
                condition("Initialized", "True", 0), condition("ContainersReady", "True", 1000),
            ],
            "containerStatuses": [{
                "name": "main", "ready": true, "started": true, "restartCount": 0, "image": "", "imageID": "",
                "state": {"running": {"startedAt": t(1000).to_string()}},
            }],
        });
        let expected = [
            (100, "queued|from file"),
            (0, "accepted"),
            (300, "sandbox creation started|it has none"),
            (0, "sandbox and network ready"),
            (350, "main|image pull started|Pulling it"),
            (1500, "main|image present|Pulled it"),
            (1600, "main|created|Created it"),
            (1700, "main|started|Started it"),
            (1000, "ready"),
        ];
        let expected: Vec<_> = expected.map(|(at, what)| (at, what.to_string())).into();
        assert_eq!(steps_of(&pod, status, &record, &events), expected);
    }

    #[test]
    fn restarts_are_shown_by_their_last_end_and_start() {
        let events = [
            happened(event::STARTED, "main", 90_000, 1),
            happened(event::STARTED, "main", 1000, 3),
            happened(event::STARTED, "other", 2000, 1),
            happened(event::BACK_OFF, "main", 3000, 5),
        ];
        let ended = json!({"exitCode": 2, "reason": "Error", "finishedAt": t(80_000).to_string()});
        let status = json!({
            "conditions": [condition("Ready", "False", 80_000), condition("Initialized", "True", 0)],
            "containerStatuses": [{
                "name": "main", "ready": false, "restartCount": 3, "image": "", "imageID": "",
                "state": {"running": {"startedAt": t(90_000).to_string()}},
                "lastState": {"terminated": ended},
            }],
        });
        let expected = [
            (1000, "main|started|Started it"),
            (2000, "other|started|Started it"),
            (80_000, "main|ended|exit code 2 (Error)"),
            (90_000, "main|started again|restart 3"),
        ];
        let expected: Vec<_> = expected.map(|(at, what)| (at, what.to_string())).into();
        assert_eq!(
            steps_of(&pod(json!({})), status, &PodHistoryRecord::default(), &events),
            expected
        );
    }

    #[test]
    fn unknown_steps_are_left_out() {
        let status = json!({"containerStatuses": [
            {"name": "main", "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": {"waiting": {}}},
            {"name": "done", "ready": false, "restartCount": 0, "image": "", "imageID": "",
             "state": {"terminated": {"exitCode": 0, "startedAt": t(5000).to_string(), "finishedAt": t(7000).to_string()}}},
        ]});
        let pod = pod(json!({keys::CONFIG_SEEN: "no time"}));
        let expected = [(5000, "done|started"), (7000, "done|ended|exit code 0")];
        let expected: Vec<_> = expected.map(|(at, what)| (at, what.to_string())).into();
        assert_eq!(steps_of(&pod, status, &PodHistoryRecord::default(), &[]), expected);
        assert!(timeline(&pod, None, &PodHistoryRecord::default(), &[]).is_empty());
    }
}
