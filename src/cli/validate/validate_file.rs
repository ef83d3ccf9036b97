//! Finds all errors in a manifest, with positions. Pure.

use super::blank::blank;
use super::{FileReport, ManifestPodName, ManifestProblem, Severity};
use crate::base::document::{self, DocumentNode};
use crate::model::validation::{
    DecodeError, LocalConfigMapsAndSecrets, decode_pod_or_list, manifest_tree,
};
use crate::model::{Pod, PodExt, PodSource};
use crate::pods::pod_config::{InvalidManifest, Manifest, ManifestOrigin, decode_file, decode_url};
use jiff::Timestamp;
use std::sync::Arc;

/// Maximum number of invalid values that are removed to find further errors.
const MAX_BLANKS: usize = 50;

/// Validates files by the rules of a source.
pub(in crate::cli) struct Validator {
    pub(in crate::cli) node_name: String,
    pub(in crate::cli) source: PodSource,
    pub(in crate::cli) config_maps_and_secrets: LocalConfigMapsAndSecrets,
    pub(in crate::cli) now: Timestamp,
}

/// A validated file, and the pods that would run.
pub(in crate::cli) struct ValidatedFile {
    pub(in crate::cli) report: FileReport,
    pub(in crate::cli) pods: Vec<Arc<Pod>>,
}

/// A file being validated.
struct Case<'a> {
    validator: &'a Validator,
    file: &'a str,
    /// The document with positions, if it can be parsed.
    tree: Option<DocumentNode>,
    problems: Vec<ManifestProblem>,
    /// Paths of removed values.
    blanked: Vec<String>,
}

impl Validator {
    /// Validates the bytes of a file of this name.
    pub(super) fn validate(&self, file: &str, bytes: &[u8]) -> ValidatedFile {
        let mut case = Case {
            validator: self,
            file,
            tree: manifest_tree(bytes).ok(),
            problems: Vec::new(),
            blanked: Vec::new(),
        };
        // For the URL source an empty response is an empty list.
        let read = match (self.source, bytes.is_empty()) {
            (PodSource::Http, true) => Ok(Manifest::default()),
            (source, _) => case.read(bytes, source),
        };
        let outcome = match &read {
            Ok(manifest) => outcome(manifest),
            Err(bad) => case.bad_outcome(bad, bytes),
        };
        let pods = case.take(read, bytes);
        ValidatedFile {
            report: FileReport {
                file: file.into(),
                outcome,
                pods: pods.iter().map(|pod| name_of(pod)).collect(),
                problems: case.problems,
            },
            pods,
        }
    }
}

fn name_of(pod: &Pod) -> ManifestPodName {
    ManifestPodName {
        namespace: pod.namespace().into(),
        name: pod.name().into(),
        uid: pod.uid().to_string(),
    }
}

fn outcome(manifest: &Manifest) -> String {
    let name = |pod: &Arc<Pod>| format!("{}/{}", pod.namespace(), pod.name());
    let names: Vec<_> = manifest.pods.iter().map(name).collect();
    if names.is_empty() { "not started".into() } else { format!("runs as {}", names.join(", ")) }
}

impl Case<'_> {
    fn read(&self, bytes: &[u8], source: PodSource) -> Result<Manifest, InvalidManifest> {
        let origin = ManifestOrigin {
            node_name: &self.validator.node_name,
            source,
            location: self.file,
            config_maps_and_secrets: self.validator.config_maps_and_secrets,
        };
        match source {
            PodSource::Http => decode_url(bytes, origin, self.validator.now),
            _ => decode_file(bytes, origin, self.validator.now),
        }
    }

    /// Adds the problems of one decoding; returns the pods that would run.
    fn take(&mut self, read: Result<Manifest, InvalidManifest>, bytes: &[u8]) -> Vec<Arc<Pod>> {
        match read {
            Ok(manifest) => {
                self.unknown(bytes);
                manifest.pods
            }
            Err(InvalidManifest::Decode(error)) => {
                self.unreadable(&error);
                self.find_further(error);
                Vec::new()
            }
            Err(bad) => {
                self.unknown(bytes);
                self.fields(&bad);
                Vec::new()
            }
        }
    }

    /// Adds the problems, and returns what a kubelet does with the file.
    fn bad_outcome(&mut self, bad: &InvalidManifest, bytes: &[u8]) -> String {
        if self.validator.source == PodSource::Http {
            return "the whole response is refused; the previous pods are kept".into();
        }
        let is_list = matches!(bad, InvalidManifest::Decode(error) if error.field == "kind");
        if is_list && let Ok(list) = self.read(bytes, PodSource::Http) {
            let pods = list.pods.len();
            return format!(
                "the file is refused; served by a manifest URL it would be {pods} pods"
            );
        }
        "not started; a running earlier version is kept".into()
    }

    fn place(&self, field: &str) -> (Option<u64>, Option<u64>) {
        let tree = self.tree.as_ref();
        match tree.and_then(|tree| tree.origin_of(field)) {
            Some(document::DocumentOrigin::File { line, column, .. }) => (Some(line), Some(column)),
            _ => (None, None),
        }
    }

    fn push(&mut self, severity: Severity, field: &str, message: String) {
        let (line, column) = self.place(field);
        let problem = ManifestProblem { severity, line, column, field: field.into(), message };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Reports unknown fields. The kubelet ignores them; here they are errors, as with `kubectl apply
    /// --validate=strict`.
    fn unknown(&mut self, bytes: &[u8]) {
        let decoded = decode_pod_or_list(bytes).map(|decoded| decoded.unknown_fields);
        for field in decoded.unwrap_or_default() {
            let message = format!("unknown field {field:?}");
            self.push(Severity::Error, &field, message);
        }
    }

    fn fields(&mut self, bad: &InvalidManifest) {
        for error in bad.fields() {
            if !self.is_blanked(&error.path) {
                self.push(Severity::Error, &error.path, error.message);
            }
        }
    }

    fn unreadable(&mut self, error: &DecodeError) {
        let (line, column) = match error.line {
            Some(line) => (Some(line), error.column),
            None => self.place(&error.field),
        };
        self.problems.push(ManifestProblem {
            severity: Severity::Error,
            line,
            column,
            field: error.field.clone(),
            message: error.message.clone(),
        });
    }

    fn is_blanked(&self, field: &str) -> bool {
        self.blanked.iter().any(|blanked| {
            let rest = field.strip_prefix(blanked.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }

    /// Finds further errors: the decoder stops at the first invalid value, so that is removed and decoding is
    /// repeated. A list is validated pod by pod.
    fn find_further(&mut self, first: DecodeError) {
        let Some(mut tree) = self.tree.clone() else {
            return;
        };
        let is_list = tree.get("items").is_some();
        let source = if is_list { PodSource::Http } else { self.validator.source };
        let mut error = first;
        let mut validate_list = is_list && error.field == "kind";
        for _ in 0..MAX_BLANKS {
            if !std::mem::take(&mut validate_list) && !blank(&mut tree, &error.field) {
                return;
            }
            self.blanked.push(error.field.clone());
            let bytes = tree.to_json();
            match self.read(&bytes, source) {
                Ok(_) => return self.unknown(&bytes),
                Err(InvalidManifest::Decode(next)) => {
                    if !self.is_blanked(&next.field) {
                        self.push(Severity::Error, &next.field, next.message.clone());
                    }
                    error = next;
                }
                Err(bad) => {
                    self.unknown(&bytes);
                    return self.fields(&bad);
                }
            }
        }
    }
}
