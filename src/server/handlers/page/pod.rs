//! The page of one pod. Pure.

use super::ABOVE;
use super::overview::{restarts, status};
use crate::server::explain::times::span;
use crate::server::explain::{
    ExplainedContainer, Explanation, HistoryReport, PastEvent, ProbeReport,
};
use crate::server::handlers::html::{Html, MAX_TEXT, section};
use jiff::Timestamp;

/// The content of the page.
pub(super) fn content(explanation: &Explanation) -> Html {
    let tables = [
        waits(explanation),
        next(explanation),
        timeline(&explanation.timeline, explanation.now),
        containers(explanation),
        probes(explanation),
        conditions(explanation),
        pod_history(explanation),
        events(explanation),
    ];
    tables.iter().fold(head(explanation), |page, table| page.with(table))
}

/// The content of the page of an unknown pod.
pub(super) fn unknown(namespace: &str, name: &str) -> Html {
    let out = Html::new().markup("<h1>No such pod</h1><p>No pod ");
    let out = out.inline(namespace).markup("/").inline(name);
    let out = out.markup(" is known on this node. <a href=\"");
    out.markup(ABOVE).markup("\">All pods</a></p>")
}

fn long(text: &str) -> Html {
    Html::new().text(text, MAX_TEXT)
}

fn of_pod(container: &str) -> Html {
    match container {
        "" => Html::new().markup("the pod"),
        name => long(name),
    }
}

fn time(at: Option<Timestamp>, now: Timestamp) -> Html {
    at.map_or_else(Html::new, |at| Html::new().time(at, now))
}

fn head(explanation: &Explanation) -> Html {
    let pod = &explanation.pod;
    let out = Html::new().markup("<h1><span class=\"quiet\"><bdi>");
    let out = out.text(&pod.namespace, MAX_TEXT).markup("</bdi>/</span>");
    let out = out.inline(&pod.name).markup("</h1><p class=\"sum\">");
    let mut out = out.text(&explanation.summary, MAX_TEXT).markup("</p><dl>");
    let ready = format!("{}/{}", pod.ready, pod.containers);
    let age = pod.since.map(|since| span(since, explanation.now));
    let facts = [
        ("Status", status(pod)),
        ("Ready", long(&ready)),
        ("Restarts", restarts(pod, explanation.now)),
        ("Age", long(age.as_deref().unwrap_or_default())),
        ("IP", long(&pod.ip)),
        ("Source", long(&pod.source)),
        ("UID", long(&pod.uid)),
    ];
    for (name, fact) in facts.iter().filter(|(_, fact)| !fact.is_empty()) {
        out = out.markup("<div><dt>").markup(name).markup("</dt><dd>");
        out = out.with(fact).markup("</dd></div>");
    }
    out.markup("</dl>")
}

fn waits(explanation: &Explanation) -> Html {
    let mut rows = Vec::new();
    if let Some(doing) = &explanation.doing {
        let since = Html::new().markup("since ").time(doing.since, explanation.now);
        rows.push(vec![Html::new().markup("in progress"), long(&doing.step), since]);
    }
    for wait in &explanation.waits {
        let until = match wait.until {
            Some(until) => Html::new().markup("until ").time(until, explanation.now),
            None => Html::new(),
        };
        rows.push(vec![of_pod(&wait.container), long(&wait.what), until]);
    }
    section("Waits for", &["Who", "What", "When"], &rows)
}

fn next(explanation: &Explanation) -> Html {
    let row = |next: &crate::server::explain::Upcoming| {
        vec![Html::new().time(next.at, explanation.now), long(&next.what)]
    };
    let rows: Vec<_> = explanation.next.iter().map(row).collect();
    section("Next", &["When", "What"], &rows)
}

fn timeline(moments: &[PastEvent], now: Timestamp) -> Html {
    let mut rows = Vec::new();
    let mut before: Option<Timestamp> = None;
    for moment in moments {
        let after = before.map(|before| took(before, moment.at));
        rows.push(vec![
            Html::new().time(moment.at, now),
            long(after.as_deref().unwrap_or_default()),
            of_pod(&moment.container),
            long(&moment.what),
            long(&moment.detail),
        ]);
        before = before.max(Some(moment.at));
    }
    let columns = ["When", "After", "Who", "What", "Detail"];
    section("Timeline", &columns, &rows)
}

/// Formats the duration of a step. Most times in a status are whole seconds, so a difference with one of these is in
/// whole seconds too.
fn took(from: Timestamp, to: Timestamp) -> String {
    let millis = to.as_millisecond() - from.as_millisecond();
    let exact = |at: Timestamp| at.subsec_nanosecond() != 0;
    if millis >= 10_000 || !(exact(from) && exact(to)) {
        format!("+{}", span(from, to))
    } else if millis >= 1000 {
        format!("+{}.{}s", millis / 1000, millis % 1000 / 100)
    } else {
        format!("+{}ms", millis.max(0))
    }
}

fn containers(explanation: &Explanation) -> Html {
    let row = |container: &ExplainedContainer| {
        let last = container.last.as_ref().map_or_else(Html::new, |last| {
            let out = ended(last.exit_code, &last.reason).markup(" ");
            let out = out.with(&time(last.at, explanation.now)).markup(" ");
            out.text(&last.message, MAX_TEXT)
        });
        vec![
            long(&container.name),
            long(&container.kind),
            state(container, explanation.now),
            Html::new().number(container.restarts.into()),
            last,
            long(&container.image),
            log(explanation, container),
        ]
    };
    let rows: Vec<_> = explanation.containers.iter().map(row).collect();
    let columns = ["Container", "Kind", "State", "Restarts", "Last state", "Image", "Output"];
    section("Containers", &columns, &rows)
}

fn log(explanation: &Explanation, container: &ExplainedContainer) -> Html {
    if matches!(container.state.as_str(), "unknown" | "waiting") && container.last.is_none() {
        return Html::new();
    }
    let out = Html::new().markup("<a href=\"").markup(ABOVE).markup("containerLogs/");
    let out = out.segment(&explanation.pod.namespace).markup("/").segment(&explanation.pod.name);
    let out = out.markup("/").segment(&container.name);
    out.markup("?tailLines=500\">log</a>")
}

fn ended(code: i32, reason: &str) -> Html {
    let out = Html::new().markup("ended with ").number(code.into());
    match reason {
        "" => out,
        reason => out.markup(" (").inline(reason).markup(")"),
    }
}

fn state(container: &ExplainedContainer, now: Timestamp) -> Html {
    let out = match (container.state.as_str(), container.exit_code) {
        ("running", _) => Html::new().markup(match (container.ready, container.started) {
            (true, _) => "<b class=\"well\">running, ready</b>",
            (false, true) => "<b class=\"underway\">running, not ready</b>",
            (false, false) => "<b class=\"underway\">running, not started</b>",
        }),
        (_, Some(code)) => ended(code, &container.reason),
        (state, None) => match container.reason.as_str() {
            "" => long(state),
            reason => long(state).markup(" (").inline(reason).markup(")"),
        },
    };
    let out = match container.since {
        Some(since) => out.markup(", since ").time(since, now),
        None => out,
    };
    match container.message.as_str() {
        "" => out,
        message => out.markup(": ").inline(message),
    }
}

fn probes(explanation: &Explanation) -> Html {
    let row = |probe: &ProbeReport| {
        let probe_result = match probe.probe_result.as_str() {
            "success" => Html::new().markup("<b class=\"well\">success</b>"),
            "failure" => Html::new().markup("<b class=\"wrong\">failure</b>"),
            other => long(other),
        };
        let last = match (&probe.last_result, probe.last_at) {
            (Some(result), Some(at)) => {
                let last = long(result).markup(", ").time(at, explanation.now);
                match probe.in_a_row {
                    0 | 1 => last,
                    count => last.markup(", ").number(count.into()).markup(" in a row"),
                }
            }
            _ => Html::new().markup("has not run yet"),
        };
        vec![
            long(&probe.container),
            long(&probe.kind),
            probe_result,
            last,
            time(probe.next, explanation.now),
            long(&probe.message),
        ]
    };
    let rows: Vec<_> = explanation.probes.iter().map(row).collect();
    let columns = ["Container", "Probe", "Result", "Last", "Next", "Output"];
    section("Probes", &columns, &rows)
}

fn conditions(explanation: &Explanation) -> Html {
    let row = |condition: &crate::server::explain::ConditionView| {
        vec![
            long(&condition.kind),
            long(&condition.reason),
            time(condition.since, explanation.now),
            long(&condition.message),
        ]
    };
    let rows: Vec<_> = explanation.conditions.iter().map(row).collect();
    let columns = ["Condition", "Reason", "Since", "Message"];
    section("False conditions", &columns, &rows)
}

fn pod_history(explanation: &Explanation) -> Html {
    let row = |history_entry: &HistoryReport| {
        let what = long(&history_entry.kind.to_string());
        let until = history_entry.until.filter(|until| *until > explanation.now);
        vec![
            Html::new().time(history_entry.last, explanation.now),
            of_pod(&history_entry.container),
            what,
            long(&history_entry.why),
            Html::new().number(history_entry.count.into()),
            time(until, explanation.now),
        ]
    };
    let rows: Vec<_> = explanation.pod_history.iter().rev().map(row).collect();
    let columns = ["When", "Who", "Decision", "Why", "Times", "Until"];
    section("History, newest first", &columns, &rows)
}

fn events(explanation: &Explanation) -> Html {
    let row = |event: &crate::server::explain::EventReport| {
        let kind = match event.kind.as_str() {
            "Warning" => Html::new().markup("<b class=\"wrong\">Warning</b>"),
            kind => long(kind),
        };
        vec![
            Html::new().time(event.last, explanation.now),
            of_pod(&event.container),
            kind,
            long(&event.reason),
            Html::new().number(event.count.into()),
            long(&event.message),
        ]
    };
    let rows: Vec<_> = explanation.events.iter().rev().map(row).collect();
    let columns = ["When", "Who", "Type", "Reason", "Times", "Message"];
    section("Events, newest first", &columns, &rows)
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
