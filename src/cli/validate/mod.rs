//! `kubelet validate`: validates manifests as the running kubelet does.
//!
//! The rules are those of the file and URL sources ([`crate::pods::pod_config`]). Added here are positions in
//! the file, and errors after the first one.

mod blank;
mod validate_file;
mod render;

use validate_file::{ValidatedFile, Validator};

use super::args::{Output, Validate};
use super::term::{Term, json, print};
use crate::base::{clock, spawn_blocking};
use crate::config::{HostFacts, load};
use crate::host::HostMachine;
use crate::model::validation::{LocalConfigMapsAndSecrets, MAX_MANIFEST_BYTES};
use crate::model::{Pod, PodSource};
use crate::pods::pod_config::{ReadError, SourcePods, dedup_by_name, manifests_at, read_manifest};
use serde::Serialize;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct ValidationReport {
    /// What a start with these flags would warn about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    configuration: Vec<String>,
    files: Vec<FileReport>,
    errors: usize,
    warnings: usize,
}

#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct FileReport {
    /// The path as given, or as found in a directory; `-` for standard input.
    file: String,
    /// What a kubelet does with the file.
    outcome: String,
    pods: Vec<ManifestPodName>,
    problems: Vec<ManifestProblem>,
}

#[derive(Debug, PartialEq, Serialize)]
struct ManifestPodName {
    namespace: String,
    name: String,
    uid: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    Error,
    Warning,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct ManifestProblem {
    severity: Severity,
    /// Counted from 1, as the column; `None` if the position is not known.
    line: Option<u64>,
    column: Option<u64>,
    /// Empty for the whole file.
    field: String,
    message: String,
}

impl ManifestProblem {
    /// The message with the field, unless it contains the field itself.
    fn text(&self) -> String {
        if self.field.is_empty() || self.message.contains(&format!("{:?}", self.field)) {
            self.message.clone()
        } else {
            format!("{}: {}", self.field, self.message)
        }
    }

    fn whole(severity: Severity, message: String) -> Self {
        Self { severity, line: None, column: None, field: String::new(), message }
    }
}

pub(super) async fn run(args: Validate) -> anyhow::Result<ExitCode> {
    let output = args.output;
    let report = spawn_blocking(move || report(&args)).await??;
    let failed = report.errors > 0;
    print(&match output {
        Output::Json => json(&report, true)?,
        Output::Text | Output::Wide => render::text(&report, Term::of_stdout().paint),
    })?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Blocking.
fn report(args: &Validate) -> anyhow::Result<ValidationReport> {
    let facts = HostFacts { hostname: HostMachine::read()?.hostname };
    let config = load(&args.flags, &facts)?;
    let configuration = config.all_warnings();
    let validator = Validator {
        node_name: config.node_name,
        source: if args.url { PodSource::Http } else { PodSource::File },
        config_maps_and_secrets: LocalConfigMapsAndSecrets::new(
            args.flags.local_objects_dir.is_some(),
        ),
        now: clock::timestamp(),
    };
    let mut files = Vec::new();
    for path in &args.files {
        if path.is_dir() {
            files.extend(directory(path, &validator))
        } else {
            files.push(file(path, &validator).report)
        }
    }
    let mut report = ValidationReport { configuration, files, ..ValidationReport::default() };
    report.count();
    Ok(report)
}

impl ValidationReport {
    fn count(&mut self) {
        let count = |severity| {
            let problems = self.files.iter().flat_map(|file| &file.problems);
            problems.filter(|found| found.severity == severity).count()
        };
        (self.errors, self.warnings) = (count(Severity::Error), count(Severity::Warning));
        self.warnings += self.configuration.len();
    }
}

/// Validates the file at a path that is not a directory.
fn file(path: &Path, validator: &Validator) -> ValidatedFile {
    let shown = path.to_string_lossy();
    match read(path) {
        Ok(bytes) => validator.validate(&shown, &bytes),
        Err(error) => nothing_read(&shown, Severity::Error, error.to_string()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ReadError> {
    match path.to_str() {
        Some("-") => stdin().map_err(ReadError::Io),
        _ => read_manifest(path),
    }
}

fn nothing_read(file: &str, severity: Severity, message: String) -> ValidatedFile {
    ValidatedFile {
        report: FileReport {
            file: file.into(),
            outcome: "not started".into(),
            problems: vec![ManifestProblem::whole(severity, message)],
            ..FileReport::default()
        },
        pods: Vec::new(),
    }
}

fn stdin() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = MAX_MANIFEST_BYTES as u64 + 1;
    io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Validates the files that a kubelet with this `staticPodPath` would read, also against each other.
fn directory(path: &Path, validator: &Validator) -> Vec<FileReport> {
    let paths = match manifests_at(path) {
        Ok(paths) => paths,
        Err(error) => {
            let message = format!("cannot be listed: {error}");
            let shown = path.to_string_lossy();
            return vec![nothing_read(&shown, Severity::Error, message).report];
        }
    };
    let read = |path: &Path| match read_manifest(path) {
        Ok(bytes) => validator.validate(&path.to_string_lossy(), &bytes),
        Err(error) => {
            let severity = match error {
                ReadError::NotAFile(_) => Severity::Warning,
                ReadError::Io(_) => Severity::Error,
            };
            nothing_read(&path.to_string_lossy(), severity, error.to_string())
        }
    };
    let mut validated: Vec<ValidatedFile> = paths.iter().map(|path| read(path)).collect();
    let pods = paths.iter().zip(&validated);
    let pods = pods.flat_map(|(path, file)| file.pods.iter().map(|pod| (path.as_path(), pod)));
    let (kept, duplicates) = dedup_by_name(pods);
    let left_out = SourcePods::new(validator.source).merge(kept, validator.now).duplicates;
    let duplicates = duplicates.iter().map(|duplicate| (&duplicate.pod, duplicate.to_string()));
    let twins = left_out.iter().map(|pod| {
        let message = "another file has a pod with the same UID; this one is ignored";
        (pod, message.to_string())
    });
    let found: Vec<(Arc<Pod>, String)> =
        duplicates.chain(twins).map(|(pod, message)| (pod.clone(), message)).collect();
    for (pod, message) in found {
        let owner =
            |file: &&mut ValidatedFile| file.pods.iter().any(|known| Arc::ptr_eq(known, &pod));
        if let Some(file) = validated.iter_mut().find(owner) {
            file.report.outcome = "not started".into();
            let problem = ManifestProblem::whole(Severity::Error, message);
            file.report.problems.push(problem);
        }
    }
    validated.into_iter().map(|file| file.report).collect()
}

#[cfg(test)]
mod tests;
