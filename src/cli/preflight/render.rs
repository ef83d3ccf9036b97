//! The text of a preflight. Pure.

use crate::app::{Finding, Level, Outcome, PodForecast, PreflightReport, Verdict};
use crate::cli::table::plain;
use crate::cli::term::Paint;

/// The summary, a line per pod, a line per finding, and the way back.
pub(super) fn text(report: &PreflightReport, paint: Paint) -> String {
    let summary = plain(&report.summary);
    let mut out = match report.verdict {
        Verdict::Safe => paint.bold(&summary),
        Verdict::NotSafe => paint.red(&summary),
        Verdict::NotKnown => paint.yellow(&summary),
    };
    out.push('\n');
    let blocks = [
        report.pods.iter().map(|pod| pod_line(pod, paint)).collect(),
        report.findings.iter().map(|finding| finding_line(finding, paint)).collect(),
        report
            .way_back
            .iter()
            .map(|line| format!("way back: {}\n", plain(line)))
            .collect::<String>(),
    ];
    for block in blocks.into_iter().filter(|block: &String| !block.is_empty()) {
        out.push('\n');
        out += &block;
    }
    out
}

fn pod_line(pod: &PodForecast, paint: Paint) -> String {
    let outcome = format!("{:<20}", pod.outcome.as_str());
    let outcome = match pod.outcome {
        Outcome::Restarted | Outcome::Stopped | Outcome::Refused | Outcome::CannotStartAgain => {
            paint.red(&outcome)
        }
        Outcome::Unknown => paint.yellow(&outcome),
        Outcome::Ending | Outcome::Starts | Outcome::Kept | Outcome::Ended => outcome,
    };
    let mut line = format!("{outcome}{}/{}", plain(&pod.namespace), plain(&pod.name));
    for (index, reason) in pod.reasons.iter().enumerate() {
        line += if index == 0 { ": " } else { "; " };
        line += &plain(reason);
    }
    line + "\n"
}

fn finding_line(finding: &Finding, paint: Paint) -> String {
    let level = match finding.level {
        Level::Error => paint.red("error      "),
        Level::Unknown => paint.yellow("not known  "),
        Level::Warning => paint.yellow("warning    "),
        Level::Ok => "ok         ".to_owned(),
    };
    format!("{level}{:<14}{}\n", finding.subject, plain(&finding.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_comes_first_and_nothing_is_a_command_to_a_terminal() {
        let pod = |outcome, reasons: &[&str]| PodForecast {
            namespace: "n".to_owned(),
            name: "web\u{1b}[2J".to_owned(),
            uid: "u".to_owned(),
            source: "api".to_owned(),
            outcome,
            reasons: reasons.iter().map(|&reason| reason.to_owned()).collect(),
        };
        let report = PreflightReport {
            verdict: Verdict::NotSafe,
            summary: "not safe: x".to_owned(),
            pods: vec![pod(Outcome::Restarted, &["a", "b"]), pod(Outcome::Kept, &[])],
            findings: vec![Finding::unknown("runtime", "m")],
            way_back: vec!["w".to_owned()],
        };
        let text = text(&report, Paint(false));
        assert!(!text.contains('\u{1b}'), "{text}");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "not safe: x");
        assert!(
            lines[2].starts_with("restarted           n/web") && lines[2].ends_with(": a; b"),
            "{text}"
        );
        assert!(lines[3].starts_with("kept                n/web"), "{text}");
        assert_eq!(lines[5], "not known  runtime       m");
        assert_eq!(lines[7], "way back: w");
    }
}
