//! A plan as text. Pure.

use super::{Call, Configured, Report, Step, shown};
use crate::cli::{
    table::{one_line, plain, table},
    term::Paint,
};
use crate::server::explain::times::clock;
use jiff::{Timestamp, tz::TimeZone};

/// The whole plan.
pub(super) fn text(report: &Report, paint: Paint, now: Timestamp, zone: &TimeZone) -> String {
    let mut out = Vec::new();
    let name = format!("{}/{}", report.namespace, report.name);
    out.push(paint.bold(&name));
    let place = plain(&report.location);
    out.push(format!("  UID {}, as if it were at {place}", report.uid));
    for remark in &report.remarks {
        out.push(format!(
            "  {}",
            paint.yellow(&format!("! {}", one_line(remark, 400)))
        ));
    }
    let until = |at: Option<Timestamp>| match at {
        Some(at) => format!("from {}", clock(at, now, zone)),
        None => String::new(),
    };
    if !report.runtime.is_empty() {
        let step = |step: &Step| {
            vec![
                step.what.clone(),
                step.action.to_string(),
                one_line(&step.why, 200),
                until(step.at),
            ]
        };
        let title = format!("What would be done now ({})", plain(&report.runtime));
        section(
            &mut out,
            paint,
            &title,
            report.now.iter().map(step).collect(),
        );
    }
    let call = |(index, call): (usize, &Call)| {
        let number = format!("{}.", index + 1);
        let when = call.when.clone();
        vec![
            number,
            call.call.to_string(),
            call.about.clone(),
            when,
            until(call.at),
        ]
    };
    let calls: Vec<_> = report.calls.iter().enumerate().map(call).collect();
    match calls.is_empty() {
        true => section(&mut out, paint, "Calls", vec![vec!["none".into()]]),
        false => section(&mut out, paint, "Calls", calls),
    }
    configuration(&mut out, paint, &report.sandbox);
    for container in &report.containers {
        configuration(&mut out, paint, container);
    }
    out.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}

fn section(out: &mut Vec<String>, paint: Paint, title: &str, rows: Vec<Vec<String>>) {
    out.push(String::new());
    out.push(paint.bold(title));
    out.extend(table(&rows).into_iter().map(|line| format!("  {line}")));
}

fn configuration(out: &mut Vec<String>, paint: Paint, of: &Configured) {
    let title = match of.name.is_empty() {
        true => format!("Configuration of the {}", of.kind),
        false => format!("Configuration of {} ({})", of.name, of.kind),
    };
    out.push(String::new());
    out.push(paint.bold(&title));
    for remark in &of.remarks {
        out.push(format!(
            "  {}",
            paint.yellow(&format!("! {}", one_line(remark, 400)))
        ));
    }
    if !of.error.is_empty() {
        let error = format!("there is none: {}", one_line(&of.error, 400));
        out.push(format!("  {}", paint.red(&error)));
        return;
    }
    out.extend(
        shown::lines(&of.config)
            .into_iter()
            .map(|line| format!("  {}", plain(&line))),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_plan_says_what_would_be_done_and_with_what() {
        let now = Timestamp::from_second(1_767_225_600).unwrap();
        let at = Timestamp::from_second(1_767_225_620).ok();
        let report = Report {
            namespace: "shop".into(),
            name: "web-n1".into(),
            uid: "u".into(),
            location: "/m/web.yaml".into(),
            runtime: "containerd v1 at unix:///c".into(),
            remarks: vec!["a remark".into()],
            now: vec![Step {
                what: "main".into(),
                action: "wait",
                why: "exited with code 1".into(),
                at,
            }],
            calls: vec![Call {
                call: "StartContainer",
                about: "main".into(),
                when: String::new(),
                at,
            }],
            sandbox: Configured {
                kind: "sandbox".into(),
                config: json!({"hostname": "web-n1"}),
                ..Configured::default()
            },
            containers: vec![Configured {
                name: "main".into(),
                kind: "container".into(),
                error: "no value".into(),
                ..Configured::default()
            }],
        };
        let expected = "\
shop/web-n1
  UID u, as if it were at /m/web.yaml
  ! a remark

What would be done now (containerd v1 at unix:///c)
  main   wait   exited with code 1   from 00:00:20 (in 20s)

Calls
  1.   StartContainer   main      from 00:00:20 (in 20s)

Configuration of the sandbox
  hostname: web-n1

Configuration of main (container)
  there is none: no value
";
        assert_eq!(text(&report, Paint(false), now, &TimeZone::UTC), expected);
        let hostile = Report {
            location: "/m/\x1b[2J".into(),
            runtime: "\x1b[2J".into(),
            calls: vec![Call {
                call: "PullImage",
                about: "x\x1b[2J".into(),
                when: String::new(),
                at: None,
            }],
            sandbox: Configured {
                kind: "sandbox".into(),
                config: json!({"labels": {"a\u{9b}2J": "b\u{9b}2J"}, "args": ["\x1b[2J"]}),
                ..Configured::default()
            },
            ..Report::default()
        };
        let told = text(&hostile, Paint(false), now, &TimeZone::UTC);
        assert!(!told.contains(['\x1b', '\u{9b}']), "{told:?}");
        let nothing = Report::default();
        assert!(text(&nothing, Paint(false), now, &TimeZone::UTC).contains("Calls\n  none\n"));
    }
}
