//! From a manifest's bytes to static pods and remarks about them. Pure.

use super::static_pod::{Origin, static_pod};
use crate::model::{Pod, PodExt};
use crate::validation::{decode_pod, decode_pod_or_list, unsupported_warnings};
use jiff::Timestamp;
use std::sync::Arc;

/// Most remarks made about one manifest.
const MAX_REMARKS: usize = 30;

/// The pods of one manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Manifest {
    /// The pods, all of them good.
    pub(super) pods: Vec<Arc<Pod>>,
    /// What a person should know about a manifest that is good: unknown fields, and fields without
    /// their full effect.
    pub(super) remarks: Vec<String>,
}

/// Reads a file: exactly one pod.
///
/// # Errors
/// What is wrong with it, for people, with line and field.
pub(super) fn read_file(
    bytes: &[u8],
    origin: Origin<'_>,
    now: Timestamp,
) -> Result<Manifest, String> {
    let decoded = decode_pod(bytes).map_err(|error| error.to_string())?;
    let pod =
        static_pod(decoded.value, origin, now).map_err(|error| format!("invalid pod: {error}"))?;
    let mut manifest = Manifest::default();
    manifest.remark(unknown(&decoded.unknown_fields));
    manifest.remark(unsupported_warnings(&pod));
    manifest.pods.push(Arc::new(pod));
    Ok(manifest)
}

/// Reads what a URL served: a pod or a list. One bad pod spoils the list, so that a list is never
/// half applied.
///
/// # Errors
/// What is wrong with it, for people, with line and field.
pub(super) fn read_url(
    bytes: &[u8],
    origin: Origin<'_>,
    now: Timestamp,
) -> Result<Manifest, String> {
    let decoded = decode_pod_or_list(bytes).map_err(|error| error.to_string())?;
    let mut manifest = Manifest::default();
    manifest.remark(unknown(&decoded.unknown_fields));
    for pod in decoded.value {
        let name = pod.name().to_string();
        let pod = static_pod(pod, origin, now)
            .map_err(|error| format!("invalid pod {name:?}: {error}"))?;
        manifest.remark(unsupported_warnings(&pod));
        manifest.pods.push(Arc::new(pod));
    }
    Ok(manifest)
}

impl Manifest {
    fn remark(&mut self, remarks: Vec<String>) {
        let room = MAX_REMARKS.saturating_sub(self.remarks.len());
        self.remarks.extend(remarks.into_iter().take(room));
    }
}

fn unknown(fields: &[String]) -> Vec<String> {
    let remark = |field: &String| format!("unknown field {field} is ignored");
    fields.iter().map(remark).collect()
}
