//! Records which volume a claim resolved to, beside the other markers of a pod's volumes, so that after a restart of
//! the kubelet the pod has its volumes while the API server is unavailable. Blocking.

use super::{PodDir, SetUpError, claim::ResolvedClaim, error::io_error, pod_dirs::create_dir};
use crate::host::files;
use std::{fs, path::PathBuf};

/// The volume that an earlier sync of the pod recorded; `None` if there is none or it cannot be read.
pub(super) fn read(pod: &PodDir, volume: &str) -> Option<ResolvedClaim> {
    let text = fs::read(path(pod, volume).ok()?).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Records the volume, unless it is recorded already.
pub(super) fn write(
    pod: &PodDir,
    volume: &str,
    resolved: &ResolvedClaim,
) -> Result<(), SetUpError> {
    let path = path(pod, volume)?;
    let text = serde_json::to_vec(resolved).map_err(|e| io_error("write", &path)(e.into()))?;
    if fs::read(&path).is_ok_and(|recorded| recorded == text) {
        return Ok(());
    }
    create_dir(&pod.empty_dir_markers(), 0o750)?;
    create_dir(&pod.claim_marker(volume)?, 0o750)?;
    files::write_in_place(&path, &text, 0o640).map_err(io_error("write", &path))
}

fn path(pod: &PodDir, volume: &str) -> Result<PathBuf, SetUpError> {
    Ok(pod.claim_marker(volume)?.join("ready"))
}
