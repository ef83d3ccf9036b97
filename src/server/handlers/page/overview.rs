//! The page of the node's pods, one row per pod. Pure.

use crate::server::explain::times::span;
use crate::server::explain::{Explanation, Order, Overview, PodRow};
use crate::server::handlers::html::{
    Html, MAX_CELL_TEXT, MAX_TEXT, pod_link, table_head, table_row,
};
use jiff::Timestamp;

const COLUMNS: [&str; 8] =
    ["Name", "Namespace", "Ready", "Status", "Restarts", "Age", "IP", "Waits for"];

/// The HTML before the rows.
pub(super) fn head(overview: &Overview) -> Html {
    let node = Html::new().markup("<h1>").inline(&overview.node);
    let mut out = node.markup("</h1><p class=\"sum\">").with(&counts(&overview.pods));
    out = out.markup("</p>");
    for warning in &overview.warnings {
        out = out.markup("<p class=\"warning\">").text(warning, MAX_TEXT).markup("</p>");
    }
    if overview.pods.is_empty() { out } else { out.with(&table_head("Pods", &COLUMNS)) }
}

/// The HTML after the rows.
pub(super) fn tail(overview: &Overview) -> Html {
    if overview.pods.is_empty() { Html::new() } else { Html::new().markup("</tbody></table>") }
}

fn counts(pods: &[PodRow]) -> Html {
    let count = |order| {
        let of_it = pods.iter().filter(|pod| pod.order() == order);
        i64::try_from(of_it.count()).unwrap_or(i64::MAX)
    };
    let all = i64::try_from(pods.len()).unwrap_or(i64::MAX);
    let noun = if all == 1 { " pod" } else { " pods" };
    let mut out = match all {
        0 => return Html::new().markup("No pods."),
        all => Html::new().number(all).markup(noun),
    };
    let named = [
        (Order::Well, "<b class=\"well\">", " healthy</b>"),
        (Order::UnderWay, "<b class=\"underway\">", " starting or stopping</b>"),
        (Order::Wrong, "<b class=\"wrong\">", " failing</b>"),
    ];
    for (order, open, close) in named {
        if count(order) > 0 {
            out = out.markup(", ").markup(open).number(count(order)).markup(close);
        }
    }
    out
}

/// Whether the row shows an explanation of the pod.
pub(super) fn needs_explanation(pod: &PodRow) -> bool {
    pod.order() != Order::Well
}

pub(super) fn row(pod: &PodRow, why: Option<&Explanation>, now: Timestamp) -> Html {
    let ready = format!("{}/{}", pod.ready, pod.containers);
    let age = pod.since.map(|since| span(since, now));
    let cells = [
        pod_link("", &pod.namespace, &pod.name, &pod.uid),
        Html::new().text(&pod.namespace, MAX_CELL_TEXT),
        Html::new().text(&ready, MAX_CELL_TEXT),
        status(pod),
        restarts(pod, now),
        Html::new().text(age.as_deref().unwrap_or_default(), MAX_CELL_TEXT),
        Html::new().text(&pod.ip, MAX_CELL_TEXT),
        waits(pod, why, now),
    ];
    table_row(&COLUMNS, &cells)
}

/// The status as text, so that it is readable without its colour.
pub(super) fn status(pod: &PodRow) -> Html {
    let open = match pod.order() {
        Order::Well => "<b class=\"well\">",
        Order::UnderWay => "<b class=\"underway\">",
        Order::Wrong => "<b class=\"wrong\">",
    };
    Html::new().markup(open).text(&pod.status, MAX_CELL_TEXT).markup("</b>")
}

pub(super) fn restarts(pod: &PodRow, now: Timestamp) -> Html {
    let count = Html::new().number(pod.restarts);
    match pod.last_restart.filter(|_| pod.restarts > 0) {
        Some(last) => count.markup(" (").text(&span(last, now), MAX_CELL_TEXT).markup(" ago)"),
        None => count,
    }
}

/// What the pod waits for or does, and until when; else how a container last terminated.
fn waits(pod: &PodRow, why: Option<&Explanation>, now: Timestamp) -> Html {
    let wait = why.and_then(|why| why.waits.first());
    if let Some(wait) = wait {
        let out = match wait.container.as_str() {
            "" => Html::new(),
            name => Html::new().inline(name).markup(": "),
        };
        let out = out.markup("<bdi>").text(&wait.what, MAX_CELL_TEXT).markup("</bdi>");
        return match wait.until {
            Some(until) => out.markup(", until ").time(until, now),
            None => out,
        };
    }
    if let Some(doing) = why.and_then(|why| why.doing.as_ref()) {
        let out = Html::new().markup("<bdi>").text(&doing.step, MAX_CELL_TEXT);
        return out.markup("</bdi>, since ").time(doing.since, now);
    }
    match pod.last_reason.as_str() {
        "" => Html::new(),
        reason => Html::new().markup("last state: ").inline(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::explain::{Doing, Wait};

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + seconds).unwrap()
    }

    fn running() -> PodRow {
        PodRow {
            namespace: "shop".into(),
            name: "web-n1".into(),
            uid: "u1".into(),
            ready: 1,
            containers: 1,
            status: "Running".into(),
            since: Some(t(-300)),
            ip: "10.88.0.7".into(),
            ..PodRow::default()
        }
    }

    fn crashing() -> PodRow {
        PodRow {
            ready: 0,
            status: "CrashLoopBackOff".into(),
            restarts: 4,
            last_restart: Some(t(-17)),
            last_reason: "Error (2)".into(),
            ..running()
        }
    }

    fn cells(html: &Html) -> Vec<String> {
        let cells = html.as_str().split("data-column=\"").skip(1);
        let cell = |cell: &str| {
            let (_, text) = cell.split_once("\">").unwrap();
            text.split("</td>").next().unwrap().to_owned()
        };
        cells.map(cell).collect()
    }

    #[test]
    fn a_row_has_the_columns_of_the_command_line() {
        let shown = row(&running(), None, t(0));
        let cells = cells(&shown);
        let link = "<a href=\"pod/shop/web-n1?uid=u1\">web-n1</a></th><td ";
        assert_eq!(cells[0], link);
        let rest = ["shop", "1/1", "<b class=\"well\">Running</b>", "0", "5m", "10.88.0.7", ""];
        assert_eq!(cells[1..7], rest[..6]);
        assert!(cells[7].starts_with(rest[6]) && !needs_explanation(&running()));
    }

    #[test]
    fn a_pod_that_needs_attention_shows_what_it_waits_for() {
        assert!(needs_explanation(&crashing()));
        let mut why = Explanation::default();
        let last = |why: &Explanation| cells(&row(&crashing(), Some(why), t(0)))[7].clone();
        assert!(last(&why).starts_with("last state: <bdi>Error (2)</bdi>"));
        why.doing = Some(Doing { step: "pulls <b>".into(), since: t(-5) });
        assert!(last(&why).starts_with("<bdi>pulls &lt;b&gt;</bdi>, since <time"));
        why.waits = vec![Wait {
            container: "main".into(),
            what: "its restart back-off of 40s".into(),
            until: Some(t(23)),
        }];
        let expected = "<bdi>main</bdi>: <bdi>its restart back-off of 40s</bdi>, until \
            <time datetime=\"2026-01-01T00:00:23Z\">00:00:23 (in 23s)</time>";
        assert!(last(&why).starts_with(expected), "{}", last(&why));
        assert_eq!(cells(&row(&crashing(), None, t(0)))[4], "4 (17s ago)");
    }

    #[test]
    fn the_head_counts_and_warnings() {
        let mut overview = Overview {
            node: "n<1".into(),
            pods: vec![running(), running(), crashing()],
            warnings: vec!["the <network> is down".into()],
            ..Overview::default()
        };
        let shown = head(&overview);
        let counted = "<p class=\"sum\">3 pods, <b class=\"well\">2 healthy</b>, <b class=\"wrong\">1 failing</b></p>";
        assert!(shown.as_str().contains(counted), "{shown:?}");
        assert!(shown.as_str().contains("<h1><bdi>n&lt;1</bdi></h1>"));
        assert!(shown.as_str().contains("the &lt;network&gt; is down"));
        assert!(shown.as_str().ends_with("<tbody>"));
        overview.pods.clear();
        assert!(head(&overview).as_str().contains("No pods."));
        assert!(tail(&overview).is_empty());
    }
}
