//! `kubelet config check`: what a start with this configuration on this node would meet.

use super::host_facts;
use crate::app::{Finding, Level, manager_findings, node_findings};
use crate::base::{error_chain, spawn_blocking};
use crate::cli::table::plain;
use crate::cli::term::Paint;
use crate::config::{Flags, Problems, load};
use serde::Serialize;

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct CheckReport {
    findings: Vec<Finding>,
    errors: usize,
    warnings: usize,
}

impl CheckReport {
    fn new(findings: Vec<Finding>) -> Self {
        let count = |level| findings.iter().filter(|one| one.level == level).count();
        let (errors, warnings) = (count(Level::Error), count(Level::Warning));
        Self { findings, errors, warnings }
    }

    /// Whether there is an error; if strict, also whether there is a warning.
    pub(super) fn has_failed(&self, strict: bool) -> bool {
        self.errors > 0 || strict && self.warnings > 0
    }

    /// A line per finding, then their numbers.
    pub(super) fn text(&self, paint: Paint) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let level = match finding.level {
                Level::Error | Level::Unknown => paint.red("error    "),
                Level::Warning => paint.yellow("warning  "),
                Level::Ok => "ok       ".to_owned(),
            };
            let message = plain(&finding.message);
            text += &format!("{level}{:<14}{message}\n", finding.subject);
        }
        let (errors, warnings) = (self.errors, self.warnings);
        text + &format!("{}, {}\n", counted(errors, "error"), counted(warnings, "warning"))
    }
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Checks the settings, and the node if they are valid.
///
/// # Errors
/// The machine cannot be read.
pub(super) async fn check(flags: &Flags) -> anyhow::Result<CheckReport> {
    let (own, facts) = (flags.clone(), spawn_blocking(host_facts).await??);
    let config = match spawn_blocking(move || load(&own, &facts)).await? {
        Ok(config) => config,
        Err(error) => {
            let mut findings = invalid(&error);
            let message = "not checked, because the configuration is invalid";
            findings.push(Finding::warning("node", message));
            return Ok(CheckReport::new(findings));
        }
    };
    let warnings = config.all_warnings().into_iter();
    let mut findings: Vec<_> =
        warnings.map(|warning| Finding::warning("configuration", warning)).collect();
    if findings.is_empty() {
        findings.push(Finding::ok("configuration", "is valid"));
    }
    findings.extend(manager_findings(&config).await?);
    findings.extend(node_findings(&config).await?);
    Ok(CheckReport::new(findings))
}

/// A finding for each problem.
fn invalid(error: &anyhow::Error) -> Vec<Finding> {
    match error.downcast_ref::<Problems>() {
        Some(Problems(problems)) => problems
            .iter()
            .map(|problem| Finding::error("configuration", problem.to_string()))
            .collect(),
        None => vec![Finding::error("configuration", error_chain(error.as_ref()))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_fail_only_a_strict_check() {
        let report = |findings| CheckReport::new(findings);
        let warning = || Finding::warning("configuration", "w");
        for (findings, lenient, strict) in [
            (vec![], false, false),
            (vec![Finding::ok("runtime", "o")], false, false),
            (vec![warning()], false, true),
            (vec![warning(), Finding::error("runtime", "e")], true, true),
        ] {
            let report = report(findings);
            assert_eq!(report.has_failed(false), lenient);
            assert_eq!(report.has_failed(true), strict);
        }
        let text = report(vec![warning(), Finding::error("runtime", "a\nb")]).text(Paint(false));
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("warning  configuration w"));
        assert!(lines.next().unwrap().starts_with("error    runtime       a"));
        assert_eq!(lines.next(), Some("1 error, 1 warning"));
    }

    #[tokio::test]
    async fn every_mistake_in_the_configuration_is_found_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.yaml");
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                    maxPods: -1\nsyncFrequency: fast\nmaxPodz: 1\n";
        std::fs::write(&path, text).unwrap();
        let mut flags = Flags::default();
        (flags.config, flags.strict) = (Some(path), true);
        let report = check(&flags).await.unwrap();
        let text = report.text(Paint(false));
        assert!(report.has_failed(false), "{text}");
        for place in ["c.yaml:3:10", "c.yaml:4:16", "c.yaml:5:1"] {
            assert!(text.contains(place), "{place}: {text}");
        }
        flags.config = Some(directory.path().join("none"));
        let report = check(&flags).await.unwrap();
        assert_eq!((report.errors, report.warnings), (1, 1));
    }
}
