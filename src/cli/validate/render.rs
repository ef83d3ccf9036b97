//! Formats a report as text, in the format of compilers. Pure.

use super::{FileReport, ManifestProblem, Severity, ValidationReport};
use crate::cli::table::one_line;
use crate::cli::term::Paint;

/// Maximum length of a message, in characters.
const MESSAGE: usize = 600;

/// A line for each problem and each file, and a summary.
pub(super) fn text(report: &ValidationReport, paint: Paint) -> String {
    let mut out = String::new();
    for warning in &report.configuration {
        let (warning, severity) = (one_line(warning, 2 * MESSAGE), paint.yellow("warning"));
        out += &format!("configuration: {severity}: {warning}\n");
    }
    for file in &report.files {
        for problem in &file.problems {
            out += &line(file, problem, paint);
            out.push('\n');
        }
        out += &format!("{}: {}\n", one_line(&file.file, MESSAGE), file.outcome);
    }
    let many = |count: usize, one: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {one}s"),
    };
    let whole = format!(
        "{}, {}, {}",
        many(report.files.len(), "file"),
        many(report.errors, "error"),
        many(report.warnings, "warning")
    );
    out += &match report.errors {
        0 => whole,
        _ => paint.red(&whole),
    };
    out.push('\n');
    out
}

fn line(file: &FileReport, problem: &ManifestProblem, paint: Paint) -> String {
    let mut place = one_line(&file.file, MESSAGE);
    for number in [problem.line, problem.column].into_iter().flatten() {
        place += &format!(":{number}");
    }
    let severity = match problem.severity {
        Severity::Error => paint.red("error"),
        Severity::Warning => paint.yellow("warning"),
    };
    let text = one_line(&problem.text(), 2 * MESSAGE);
    format!("{place}: {severity}: {text}")
}
