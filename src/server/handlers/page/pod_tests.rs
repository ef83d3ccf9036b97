use super::*;
use crate::server::explain::{ConditionView, EventReport, LastEnd, PodRow, Upcoming, Wait};
use crate::state::pod_history::DecisionKind;

const HOSTILE: &str = "</td><script>alert('x')</script>\u{202e}\x1b[2J\"";
const HARMLESS: &str = "&lt;/td&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; [2J&quot;";

fn t(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + seconds).unwrap()
}

fn ms(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_767_225_600_000 + millis).unwrap()
}

fn moment(at: Timestamp, what: &str) -> PastEvent {
    PastEvent { at, container: "main".into(), what: what.into(), detail: String::new() }
}

/// One with something in every field, all of which is that text where text is free.
fn everything(text: &str) -> Explanation {
    let text = || text.to_owned();
    Explanation {
        pod: PodRow {
            namespace: text(),
            name: text(),
            uid: text(),
            source: text(),
            status: text(),
            ip: text(),
            containers: 1,
            ..PodRow::default()
        },
        now: t(0),
        summary: text(),
        doing: Some(crate::server::explain::Doing { step: text(), since: t(-1) }),
        waits: vec![Wait { container: text(), what: text(), until: Some(t(9)) }],
        next: vec![Upcoming { at: t(9), what: text() }],
        timeline: vec![PastEvent { at: t(-9), container: text(), what: text(), detail: text() }],
        containers: vec![ExplainedContainer {
            name: text(),
            kind: text(),
            image: text(),
            state: text(),
            reason: text(),
            message: text(),
            last: Some(LastEnd { reason: text(), message: text(), exit_code: 2, at: Some(t(-3)) }),
            ..ExplainedContainer::default()
        }],
        conditions: vec![ConditionView {
            kind: text(),
            reason: text(),
            message: text(),
            since: Some(t(-3)),
        }],
        probes: vec![ProbeReport {
            container: text(),
            kind: text(),
            probe_result: text(),
            last_result: Some(text()),
            last_at: Some(t(-2)),
            in_a_row: 3,
            message: text(),
            next: Some(t(8)),
        }],
        pod_history: vec![HistoryReport {
            kind: DecisionKind::StartContainer,
            container: text(),
            why: text(),
            until: Some(t(7)),
            count: 4,
            first: t(-90),
            last: t(-18),
        }],
        events: vec![EventReport {
            kind: text(),
            reason: text(),
            container: text(),
            message: text(),
            count: 3,
            first: t(-60),
            last: t(-17),
        }],
    }
}

#[test]
fn whatever_was_written_by_others_is_text() {
    let page = content(&everything(HOSTILE));
    assert_eq!(page.as_str().matches(HARMLESS).count(), 36, "{page:?}");
    for mark in ["<script", "\u{202e}", "\x1b", "alert('"] {
        assert!(!page.as_str().contains(mark), "{mark:?}");
    }
    let page = unknown(HOSTILE, HOSTILE);
    assert_eq!(page.as_str().matches(HARMLESS).count(), 2);
}

#[test]
fn a_message_of_any_size_is_cut() {
    let page = content(&everything(&"<".repeat(64 * 1024)));
    assert!(page.as_str().len() < 40 * 4 * (MAX_TEXT + 1), "{}", page.as_str().len());
}

#[test]
fn a_section_without_rows_is_not_there() {
    let page = content(&Explanation::default());
    assert!(!page.as_str().contains("<h2>"), "{page:?}");
    let page = content(&everything("x"));
    for title in [
        "Waits for",
        "Next",
        "Timeline",
        "Containers",
        "Probes",
        "False conditions",
        "History, newest first",
        "Events, newest first",
    ] {
        let heading = format!("<h2>{title}</h2>");
        assert_eq!(page.as_str().matches(&heading).count(), 1, "{title}");
    }
}

#[test]
fn each_step_of_a_timeline_shows_the_time_since_the_one_before() {
    let rows = [
        (t(0), t(3), "+3s"),
        (t(0), ms(3400), "+3s"),
        (ms(500), ms(740), "+240ms"),
        (ms(500), ms(3740), "+3.2s"),
        (ms(500), ms(500), "+0ms"),
        (ms(700), t(0), "+0s"),
        (t(0), t(150), "+2m30s"),
    ];
    for (from, to, expected) in rows {
        assert_eq!(took(from, to), expected, "{from} {to}");
    }
    let steps = [
        moment(t(0), "queued"),
        moment(ms(1500), "created"),
        moment(t(1), "started"),
        moment(t(2), "ready"),
    ];
    let shown = timeline(&steps, t(60));
    let after: Vec<_> = shown
        .as_str()
        .split("data-column=\"After\">")
        .skip(1)
        .map(|cell| cell.split('<').next().unwrap())
        .collect();
    assert_eq!(after, ["", "+1s", "+0s", "+1s"]);
}

#[test]
fn containers_are_described_and_linked_to_their_logs() {
    let mut explanation = everything("main");
    explanation.containers[0] = ExplainedContainer {
        name: "main".into(),
        state: "running".into(),
        started: true,
        since: Some(t(-60)),
        ..ExplainedContainer::default()
    };
    let page = containers(&explanation);
    assert!(page.as_str().contains("<b class=\"underway\">running, not ready</b>, since <time"));
    let link = "<a href=\"../../containerLogs/main/main/main?tailLines=500\">log</a>";
    assert!(page.as_str().contains(link), "{page:?}");
    explanation.containers[0].state = "waiting".into();
    assert!(!containers(&explanation).as_str().contains("href"));
    explanation.containers[0].exit_code = Some(2);
    explanation.containers[0].reason = "Error".into();
    let ended = "ended with 2 (<bdi>Error</bdi>), since <time";
    assert!(containers(&explanation).as_str().contains(ended));
}
