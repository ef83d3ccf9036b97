//! Named health checks, and the metrics of their results.

use crate::base::metrics::metric_set;
use crate::server::http::params::{RequestParams, RouteError};
use crate::server::http::query::BadQuery;
use crate::server::http::response::{Body, text};
use hyper::{Response, StatusCode};
use std::sync::Arc;

/// A check; returns the reason of a failure. Must not block.
type HealthCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What a verbose response also says. Must not block.
type Notes = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// The checks of one port, in the order of the response.
#[derive(Clone, Default)]
pub struct HealthChecks {
    checks: Vec<(&'static str, HealthCheck)>,
    metrics: Option<CheckMetrics>,
    notes: Option<Notes>,
}

/// Parameters of `/healthz`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthQuery {
    /// `verbose`, with any value: list the checks even if all pass.
    pub verbose: bool,
    /// `exclude=<name>`, repeatable: checks to skip.
    pub exclude: Vec<String>,
}

impl HealthQuery {
    pub(in crate::server) fn parse(params: &RequestParams) -> Result<Self, BadQuery> {
        let mut exclude = params.query_parameters("exclude")?;
        exclude.retain(|name| !name.is_empty());
        Ok(Self { verbose: params.query_parameter("verbose")?.is_some(), exclude })
    }
}

/// The results of the checks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HealthCheckResults {
    /// The response, without the reasons of failures.
    text: String,
    /// The failures with reasons, for the log.
    failures: Vec<String>,
}

impl HealthChecks {
    /// `/healthz`.
    pub(in crate::server) fn serve(&self, query: &HealthQuery) -> Response<Body> {
        let results = self.all(query);
        if results.failures.is_empty() {
            return text(StatusCode::OK, results.text);
        }
        tracing::warn!(failures = ?results.failures, "Healthz check failed");
        text(StatusCode::INTERNAL_SERVER_ERROR, results.text)
    }

    /// `/healthz/<name>`.
    pub(in crate::server) fn serve_check(&self, name: &str) -> Response<Body> {
        match self.one(name) {
            Some(Ok(())) => text(StatusCode::OK, "ok".into()),
            Some(Err(why)) => {
                let body = format!("internal server error: {why}\n");
                text(StatusCode::INTERNAL_SERVER_ERROR, body)
            }
            None => RouteError::NotFound.response(),
        }
    }

    /// Without checks; [`HealthChecks::with`] adds them.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only the check `ping`, which every port has and which always passes.
    pub fn ping() -> Self {
        Self::new().with("ping", || Ok(()))
    }

    /// Adds a check, which must not block. Its error is logged, and returned to a client that requests this check by
    /// name.
    #[must_use]
    pub fn with(
        mut self,
        name: &'static str,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.checks.push((name, Arc::new(check)));
        self
    }

    /// Adds what a verbose response also says. It fails no check.
    #[must_use]
    pub fn noting(self, notes: impl Fn() -> Vec<String> + Send + Sync + 'static) -> Self {
        let notes: Option<Notes> = Some(Arc::new(notes));
        Self { notes, ..self }
    }

    /// Adds metrics of the results.
    #[must_use]
    pub fn counted(self, metrics: CheckMetrics) -> Self {
        let metrics = Some(metrics);
        Self { metrics, ..self }
    }

    fn run_check(&self, name: &'static str, check: &HealthCheck) -> Result<(), String> {
        let found = check();
        if let Some(metrics) = &self.metrics {
            metrics.checked(name, found.is_ok());
        }
        found
    }

    /// Runs one check; `None` if there is no check of this name.
    pub fn one(&self, name: &str) -> Option<Result<(), String>> {
        let (name, check) = self.checks.iter().find(|(known, _)| *known == name)?;
        Some(self.run_check(name, check))
    }

    /// Runs all checks except the excluded ones.
    fn all(&self, query: &HealthQuery) -> HealthCheckResults {
        let mut lines = String::new();
        let mut failures = Vec::new();
        for (name, check) in &self.checks {
            if query.exclude.iter().any(|excluded| excluded == name) {
                lines += &format!("[+]{name} excluded: ok\n");
                continue;
            }
            match self.run_check(name, check) {
                Ok(()) => lines += &format!("[+]{name} ok\n"),
                Err(why) => {
                    lines += &format!("[-]{name} failed: reason withheld\n");
                    failures.push(format!("{name}: {why}"));
                }
            }
        }
        let unknown: Vec<String> = query
            .exclude
            .iter()
            .filter(|excluded| !self.checks.iter().any(|(name, _)| name == excluded))
            .map(|excluded| format!("{excluded:?}"))
            .collect();
        if !unknown.is_empty() {
            let names = unknown.join(",");
            lines +=
                &format!("warn: some health checks cannot be excluded: no matches for {names}\n");
        }
        if let Some(notes) = self.notes.as_ref().filter(|_| query.verbose) {
            lines.extend(notes().iter().map(|note| format!("warn: {note}\n")));
        }
        let text = match (failures.is_empty(), query.verbose) {
            (false, _) => format!("{lines}healthz check failed\n"),
            (true, true) => format!("{lines}healthz check passed\n"),
            (true, false) => "ok".to_owned(),
        };
        HealthCheckResults { text, failures }
    }
}

metric_set! {
    /// Handles to the metrics of health checks. Clones share them.
    pub struct CheckMetrics {
        result: Gauge["name", "type"] = "kubernetes_healthcheck",
            "This metric records the result of a single healthcheck.";
        results: Counter["name", "type", "status"] = "kubernetes_healthchecks_total",
            "This metric records the results of all healthcheck.";
    }
}

impl CheckMetrics {
    /// Records the result of a check.
    pub(in crate::server) fn checked(&self, name: &'static str, ok: bool) {
        self.result.with([name, "healthz"]).set(ok.into());
        self.results.with([name, "healthz", if ok { "success" } else { "error" }]).inc();
    }
}
