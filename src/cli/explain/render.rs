//! Formats an explanation as text. Pure.

use crate::cli::table::{one_line, plain, table};
use crate::cli::term::Paint;
use crate::server::explain::times::{clock, span};
use crate::server::explain::{
    ExplainedContainer, Explanation, HistoryReport, LastEnd, ProbeReport,
};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Maximum length of a message, in characters.
const MESSAGE: usize = 160;

struct Page<'a> {
    explanation: &'a Explanation,
    paint: Paint,
    zone: &'a TimeZone,
    out: String,
}

pub(super) fn text(explanation: &Explanation, paint: Paint, zone: &TimeZone) -> String {
    let out = String::new();
    let mut page = Page { explanation, paint, zone, out };
    page.head();
    page.now();
    page.next();
    page.containers();
    page.probes();
    page.conditions();
    page.pod_history();
    page.events();
    page.out
}

impl Page<'_> {
    fn at(&self, at: Timestamp) -> String {
        clock(at, self.explanation.now, self.zone)
    }

    fn ago(&self, at: Timestamp) -> String {
        format!("{} ago", span(at, self.explanation.now))
    }

    fn line(&mut self, text: &str) {
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn section(&mut self, title: &str, rows: Vec<Vec<String>>) {
        if rows.is_empty() {
            return;
        }
        let title = self.paint.bold(title);
        self.line("");
        self.line(&title);
        for line in table(&rows) {
            self.line(&format!("  {line}"));
        }
    }

    fn head(&mut self) {
        let pod = &self.explanation.pod;
        let name = format!("{}/{}", pod.namespace, pod.name);
        let title = self.paint.bold(&name);
        let mut facts = vec![format!("UID {}", pod.uid)];
        if !pod.source.is_empty() {
            facts.push(format!("from {}", pod.source));
        }
        if !pod.ip.is_empty() {
            facts.push(format!("IP {}", pod.ip));
        }
        if let Some(since) = pod.since {
            facts.push(format!("age {}", span(since, self.explanation.now)));
        }
        facts.push(format!("ready {}/{}", pod.ready, pod.containers));
        facts.push(format!("restarts {}", pod.restarts));
        let summary = one_line(&self.explanation.summary, 400);
        let well = pod.ready == pod.containers || pod.phase == "Succeeded";
        let summary = if well { summary } else { self.paint.yellow(&summary) };
        self.line(&title);
        self.line(&format!("  {summary}"));
        self.line(&format!("  {}", plain(&facts.join(", "))));
    }

    fn now(&mut self) {
        let mut rows = Vec::new();
        if let Some(doing) = &self.explanation.doing {
            let since = format!("since {}", self.at(doing.since));
            rows.push(vec![one_line(&doing.step, MESSAGE), since]);
        }
        self.section("In progress", rows);
        let wait = |wait: &crate::server::explain::Wait| {
            let until = wait.until.map(|until| format!("until {}", self.at(until)));
            vec![of_pod(&wait.container), one_line(&wait.what, MESSAGE), until.unwrap_or_default()]
        };
        let rows = self.explanation.waits.iter().map(wait).collect();
        self.section("Waits for", rows);
    }

    fn next(&mut self) {
        let row =
            |next: &crate::server::explain::Upcoming| vec![self.at(next.at), next.what.clone()];
        let rows = self.explanation.next.iter().map(row).collect();
        self.section("Next", rows);
    }

    fn containers(&mut self) {
        let mut rows = Vec::new();
        for container in &self.explanation.containers {
            rows.push(vec![
                container.name.clone(),
                container.kind.clone(),
                self.state(container),
                format!("restarts {}", container.restarts),
                container.image.clone(),
            ]);
        }
        self.section("Containers", rows);
        let containers = self.explanation.containers.iter();
        let ends = containers.filter_map(|container| Some((container, container.last.as_ref()?)));
        let end = |(container, end): (&ExplainedContainer, &LastEnd)| {
            vec![
                container.name.clone(),
                ended(end.exit_code, &end.reason),
                end.at.map(|at| self.at(at)).unwrap_or_default(),
                one_line(&end.message, MESSAGE),
            ]
        };
        let rows = ends.map(end).collect();
        self.section("Last state", rows);
    }

    fn state(&self, container: &ExplainedContainer) -> String {
        let since = container.since.map(|since| self.ago(since));
        match (container.state.as_str(), container.exit_code) {
            ("running", _) => {
                let ready = match (container.ready, container.started) {
                    (true, _) => "ready",
                    (false, true) => "not ready",
                    (false, false) => "not started",
                };
                let since = since.map(|since| format!(", since {since}"));
                format!("running, {ready}{}", since.unwrap_or_default())
            }
            (_, Some(code)) => {
                let since = since.map(|since| format!(", {since}"));
                format!("{}{}", ended(code, &container.reason), since.unwrap_or_default())
            }
            (state, None) => match container.reason.as_str() {
                "" => state.to_string(),
                reason => format!("{state} ({reason})"),
            },
        }
    }

    fn probes(&mut self) {
        let row = |probe: &ProbeReport| {
            let last = match (&probe.last_result, probe.last_at) {
                (Some(result), Some(at)) if probe.in_a_row > 1 => {
                    format!("{result} {} times in a row, {}", probe.in_a_row, self.ago(at))
                }
                (Some(result), Some(at)) => format!("{result}, {}", self.ago(at)),
                _ => "has not run yet".into(),
            };
            let next = probe.next.map(|next| format!("next {}", self.at(next)));
            vec![
                probe.container.clone(),
                probe.kind.to_lowercase(),
                format!("result {}", probe.probe_result),
                last,
                next.unwrap_or_default(),
                one_line(&probe.message, MESSAGE),
            ]
        };
        let rows = self.explanation.probes.iter().map(row).collect();
        self.section("Probes", rows);
    }

    fn conditions(&mut self) {
        let row = |condition: &crate::server::explain::ConditionView| {
            let since = condition.since.map(|since| self.ago(since));
            vec![
                condition.kind.clone(),
                condition.reason.clone(),
                since.unwrap_or_default(),
                one_line(&condition.message, MESSAGE),
            ]
        };
        let rows = self.explanation.conditions.iter().map(row).collect();
        self.section("False conditions", rows);
    }

    fn pod_history(&mut self) {
        let row = |history_entry: &HistoryReport| {
            let container = match history_entry.container.as_str() {
                "" => history_entry.kind.to_string(),
                name => format!("{} {name}", history_entry.kind),
            };
            let mut notes = Vec::new();
            if history_entry.count > 1 {
                let since = span(history_entry.first, self.explanation.now);
                notes.push(format!("{} times in {since}", history_entry.count));
            }
            if let Some(until) = history_entry.until.filter(|until| *until > self.explanation.now) {
                notes.push(format!("until {}", self.at(until)));
            }
            vec![
                self.at(history_entry.last),
                container,
                one_line(&history_entry.why, MESSAGE),
                notes.join(", "),
            ]
        };
        let rows = self.explanation.pod_history.iter().map(row).collect();
        self.section("History", rows);
    }

    fn events(&mut self) {
        let row = |event: &crate::server::explain::EventReport| {
            let count = match event.count {
                0 | 1 => String::new(),
                count => format!("x{count}"),
            };
            vec![
                self.ago(event.last),
                event.kind.clone(),
                event.reason.clone(),
                count,
                one_line(&event.message, MESSAGE),
            ]
        };
        let rows = self.explanation.events.iter().map(row).collect();
        self.section("Events", rows);
    }
}

fn of_pod(container: &str) -> String {
    match container {
        "" => "the pod".into(),
        name => name.into(),
    }
}

fn ended(code: i32, reason: &str) -> String {
    match reason {
        "" => format!("ended with {code}"),
        reason => format!("ended with {code} ({reason})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::explain::{EventReport, PodRow, Upcoming, Wait};
    use crate::state::pod_history::DecisionKind;

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + seconds).unwrap()
    }

    fn crashing() -> Explanation {
        Explanation {
            pod: PodRow {
                namespace: "shop".into(),
                name: "web-n1".into(),
                uid: "u".into(),
                source: "file".into(),
                containers: 1,
                restarts: 4,
                since: Some(t(-300)),
                ..PodRow::default()
            },
            now: t(0),
            summary: "CrashLoopBackOff: main waits for its restart back-off of 40s".into(),
            waits: vec![Wait {
                container: "main".into(),
                what: "its restart back-off of 40s".into(),
                until: Some(t(23)),
            }],
            next: vec![Upcoming { at: t(23), what: "main may be restarted".into() }],
            containers: vec![ExplainedContainer {
                name: "main".into(),
                kind: "container".into(),
                image: "busybox".into(),
                state: "waiting".into(),
                reason: "CrashLoopBackOff".into(),
                restarts: 4,
                last: Some(LastEnd {
                    reason: "Error".into(),
                    message: "no\nluck".into(),
                    exit_code: 2,
                    at: Some(t(-17)),
                }),
                ..ExplainedContainer::default()
            }],
            pod_history: vec![HistoryReport {
                kind: DecisionKind::StartContainer,
                container: "main".into(),
                why: "exited with code 2".into(),
                until: None,
                count: 4,
                first: t(-290),
                last: t(-18),
            }],
            events: vec![EventReport {
                kind: "Warning".into(),
                reason: "BackOff".into(),
                message: "Back-off restarting".into(),
                container: "main".into(),
                count: 3,
                first: t(-200),
                last: t(-17),
            }],
            ..Explanation::default()
        }
    }

    #[test]
    fn an_explanation_shows_waits_and_history() {
        let page = text(&crashing(), Paint(false), &TimeZone::UTC);
        let expected = "\
shop/web-n1
  CrashLoopBackOff: main waits for its restart back-off of 40s
  UID u, from file, age 5m, ready 0/1, restarts 4

Waits for
  main   its restart back-off of 40s   until 00:00:23 (in 23s)

Next
  00:00:23 (in 23s)   main may be restarted

Containers
  main   container   waiting (CrashLoopBackOff)   restarts 4   busybox

Last state
  main   ended with 2 (Error)   2025-12-31 23:59:43 (17s ago)   no luck

History
  2025-12-31 23:59:42 (18s ago)   start main   exited with code 2   4 times in 4m50s

Events
  17s ago   Warning   BackOff   x3   Back-off restarting
";
        assert_eq!(page, expected);
    }

    #[test]
    fn probes_and_running_containers_are_described() {
        let explanation = Explanation {
            now: t(0),
            containers: vec![ExplainedContainer {
                name: "main".into(),
                state: "running".into(),
                started: true,
                since: Some(t(-60)),
                ..ExplainedContainer::default()
            }],
            probes: vec![ProbeReport {
                container: "main".into(),
                kind: "Readiness".into(),
                probe_result: "failure".into(),
                last_result: Some("failure".into()),
                last_at: Some(t(-4)),
                in_a_row: 3,
                message: "statuscode: 500".into(),
                next: Some(t(6)),
            }],
            ..Explanation::default()
        };
        let page = text(&explanation, Paint(false), &TimeZone::UTC);
        assert!(page.contains("running, not ready, since 60s ago"), "{page}");
        let probe = "main   readiness   result failure   failure 3 times in a row, 4s ago   \
                     next 00:00:06 (in 6s)   statuscode: 500";
        assert!(page.contains(probe), "{page}");
    }

    #[test]
    fn foreign_text_has_no_terminal_commands_in_an_explanation() {
        let mut explanation = crashing();
        let hostile = || "x\x1b[2J\u{9b}2J".to_string();
        (explanation.pod.ip, explanation.pod.source, explanation.summary) =
            (hostile(), hostile(), hostile());
        for container in &mut explanation.containers {
            (container.image, container.reason) = (hostile(), hostile());
        }
        explanation.next[0].what = hostile();
        let page = text(&explanation, Paint(false), &TimeZone::UTC);
        assert!(!page.contains(['\x1b', '\u{9b}']), "{page:?}");
    }

    #[test]
    fn colours_are_there_only_where_they_are_wanted() {
        assert!(!text(&crashing(), Paint(false), &TimeZone::UTC).contains('\x1b'));
        assert!(
            text(&crashing(), Paint(true), &TimeZone::UTC).contains("\x1b[1mshop/web-n1\x1b[0m")
        );
    }
}
