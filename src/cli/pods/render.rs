//! The table of pods. Pure.

use crate::cli::table::{one_line, table};
use crate::cli::term::Paint;
use crate::server::explain::times::span;
use crate::server::explain::{Order, Overview, PodRow};
use jiff::Timestamp;

/// Maximum length of the last reason, in characters.
const REASON: usize = 60;

#[derive(Clone, Copy)]
pub(super) struct RenderOptions {
    /// Additional columns.
    pub(super) wide: bool,
    pub(super) paint: Paint,
    /// The current time, for ages.
    pub(super) now: Timestamp,
}

/// The complete table.
pub(super) fn text(overview: &Overview, options: RenderOptions) -> String {
    let mut lines = warnings(&overview.warnings, options);
    if overview.pods.is_empty() {
        lines.push("No pods.".into())
    } else {
        lines.extend(rows(&overview.pods, options))
    }
    joined(&lines)
}

/// The table for redrawing a screen with that many columns and rows.
pub(super) fn screen(
    overview: &Overview,
    options: RenderOptions,
    (columns, rows): (usize, usize),
) -> String {
    let plain = RenderOptions { paint: Paint(false), ..options };
    // Escape sequences have no width, so widths are measured on the plain text.
    let whole = text(overview, options);
    let plain = text(overview, plain);
    let room = rows.saturating_sub(1).max(2);
    let all = plain.lines().count();
    let shown = if all > room { room - 1 } else { all };
    let mut out = String::from("\x1b[H");
    for (painted, plain) in whole.lines().zip(plain.lines()).take(shown) {
        if plain.chars().count() > columns {
            out.extend(plain.chars().take(columns))
        } else {
            out.push_str(painted)
        }
        out.push_str("\x1b[K\r\n");
    }
    if shown < all {
        out += &format!("… and {} more\x1b[K\r\n", all - shown);
    }
    out + "\x1b[J"
}

/// The rows of pods that changed or were removed.
pub(super) fn changed_lines(old: &Overview, new: &Overview, options: RenderOptions) -> String {
    let fresh = new.warnings.iter();
    let fresh: Vec<String> =
        fresh.filter(|warning| !old.warnings.contains(warning)).cloned().collect();
    let mut lines = warnings(&fresh, options);
    let changed = new.pods.iter().filter(|pod| !old.pods.contains(pod));
    let mut changed: Vec<PodRow> = changed.cloned().collect();
    let gone = |pod: &&PodRow| !new.pods.iter().any(|known| known.uid == pod.uid);
    changed.extend(old.pods.iter().filter(gone).map(|pod| PodRow {
        status: "Removed".into(),
        ready: 0,
        ..pod.clone()
    }));
    if !changed.is_empty() {
        lines.extend(rows(&changed, options).into_iter().skip(1));
    }
    joined(&lines)
}

fn joined(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}

fn warnings(warnings: &[String], options: RenderOptions) -> Vec<String> {
    let warning = |text: &String| options.paint.yellow(&format!("! {}", one_line(text, 200)));
    warnings.iter().map(warning).collect()
}

/// The header, and a row for each pod.
fn rows(pods: &[PodRow], options: RenderOptions) -> Vec<String> {
    let mut header =
        vec!["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "LAST REASON"];
    if options.wide {
        header.extend(["SOURCE", "UID"]);
    }
    let header = header.into_iter().map(Into::into).collect();
    let cells = std::iter::once(header).chain(pods.iter().map(|pod| cells(pod, options)));
    let lines = table(&cells.collect::<Vec<_>>());
    let mut lines = lines.into_iter();
    let first = lines.next().map(|header| options.paint.bold(&header));
    let rest = lines.zip(pods).map(|(line, pod)| paint(line, pod, options));
    first.into_iter().chain(rest).collect()
}

fn paint(line: String, pod: &PodRow, options: RenderOptions) -> String {
    match pod.order() {
        Order::Well => line,
        Order::UnderWay => options.paint.yellow(&line),
        Order::Wrong => options.paint.red(&line),
    }
}

fn cells(pod: &PodRow, options: RenderOptions) -> Vec<String> {
    let given = |text: &str| match text {
        "" => "<none>".to_string(),
        text => one_line(text, REASON),
    };
    let restarts = match pod.last_restart.filter(|_| pod.restarts > 0) {
        Some(last) => format!("{} ({} ago)", pod.restarts, span(last, options.now)),
        None => pod.restarts.to_string(),
    };
    let age = pod.since.map(|since| span(since, options.now));
    let mut cells = vec![
        pod.namespace.clone(),
        pod.name.clone(),
        format!("{}/{}", pod.ready, pod.containers),
        one_line(&pod.status, REASON),
        restarts,
        age.unwrap_or_else(|| "<unknown>".into()),
        given(&pod.ip),
        given(&pod.last_reason),
    ];
    if options.wide {
        cells.extend([given(&pod.source), given(&pod.uid)]);
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn options() -> RenderOptions {
        RenderOptions { wide: false, paint: Paint(false), now: t(0) }
    }

    fn pod(name: &str, status: &str) -> PodRow {
        PodRow {
            namespace: "shop".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            source: "file".into(),
            ready: usize::from(status == "Running"),
            containers: 1,
            status: status.into(),
            phase: "Running".into(),
            since: Some(t(-300)),
            ..PodRow::default()
        }
    }

    fn overview(pods: Vec<PodRow>) -> Overview {
        Overview { pods, ..Overview::default() }
    }

    fn crashing() -> PodRow {
        PodRow {
            restarts: 4,
            last_restart: Some(t(-17)),
            ip: "10.88.0.7".into(),
            last_reason: "Error (2)".into(),
            ..pod("web-n1", "CrashLoopBackOff")
        }
    }

    #[test]
    fn each_pod_has_a_line() {
        let overview = overview(vec![pod("dns-n1", "Running"), crashing()]);
        assert_eq!(
            text(&overview, options()),
            "NAMESPACE   NAME     READY   STATUS             RESTARTS      AGE   IP          LAST REASON\n\
             shop        dns-n1   1/1     Running            0             5m    <none>      <none>\n\
             shop        web-n1   0/1     CrashLoopBackOff   4 (17s ago)   5m    10.88.0.7   Error (2)\n"
        );
        let wide = RenderOptions { wide: true, ..options() };
        let wide = text(&overview, wide);
        assert!(wide.lines().next().unwrap().ends_with("LAST REASON   SOURCE   UID"));
        assert!(wide.ends_with("Error (2)     file     uid-web-n1\n"), "{wide}");
    }

    #[test]
    fn an_empty_table_and_warnings_are_printed() {
        let mut overview = overview(vec![]);
        overview.warnings = vec!["waiting for\nthe runtime".into()];
        assert_eq!(text(&overview, options()), "! waiting for the runtime\nNo pods.\n");
    }

    #[test]
    fn colours_mark_pods_that_need_attention() {
        let options = RenderOptions { paint: Paint(true), ..options() };
        let pods = vec![pod("a", "Running"), pod("b", "ContainerCreating"), crashing()];
        let lines = text(&overview(pods), options);
        let starts: Vec<_> = lines.lines().map(|line| line.get(..4).unwrap()).collect();
        assert_eq!(starts, ["\x1b[1m", "shop", "\x1b[33", "\x1b[31"]);
    }

    #[test]
    fn only_what_changed_is_appended() {
        let old = overview(vec![pod("a", "Running"), pod("b", "Running")]);
        let mut new = overview(vec![pod("a", "Running"), crashing()]);
        new.warnings = vec!["the network is down".into()];
        let lines = changed_lines(&old, &new, options());
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines[0], "! the network is down");
        assert!(lines[1].contains("web-n1") && lines[1].contains("CrashLoopBackOff"));
        assert!(lines[2].contains(" b ") && lines[2].contains("Removed"));
        assert_eq!(lines.len(), 3);
        assert_eq!(changed_lines(&new, &new, options()), "");
    }

    #[test]
    fn a_screen_is_filled_and_never_scrolled() {
        let pods: Vec<_> = (0..9).map(|i| pod(&format!("p{i}"), "Running")).collect();
        let drawn = screen(&overview(pods.clone()), options(), (20, 6));
        assert_eq!(drawn.matches("\r\n").count(), 5);
        assert!(drawn.contains("… and 6 more") && drawn.ends_with("\x1b[J"));
        let longest = drawn.split("\x1b[K\r\n").map(|line| line.chars().count());
        assert!(longest.max().unwrap() <= 20 + "\x1b[H".len());
        let drawn = screen(&overview(pods), options(), (200, 40));
        assert_eq!(drawn.matches("\r\n").count(), 10);
    }
}
