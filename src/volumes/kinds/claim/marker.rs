//! Records which volume a claim resolved to, beside the other markers of a pod's volumes, so that after a restart of
//! the kubelet the pod has its volumes while the API server is unavailable. Blocking.

use super::resolve::ResolvedClaim;
use crate::volumes::PodDir;
use crate::volumes::error::cannot;
use crate::volumes::paths::CLAIM_PREFIX;
use crate::volumes::pod_dirs::write_marker;
use anyhow::Context as _;
use std::fs;

/// The volume that an earlier sync of the pod recorded; `None` if there is none or it cannot be read.
pub(super) fn read(pod: &PodDir, volume: &str) -> Option<ResolvedClaim> {
    let marker = pod.claim_marker(volume).ok()?;
    let text = fs::read(marker.join("ready")).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Whether a volume that the pod has not torn down is at this path of the node.
pub(super) fn resolved_to(pod: &PodDir, path: &str) -> bool {
    let entries = fs::read_dir(pod.empty_dir_markers()).into_iter().flatten();
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut volumes = names.filter_map(|name| {
        let volume = name.to_str()?.strip_prefix(CLAIM_PREFIX)?;
        read(pod, volume)
    });
    volumes.any(|volume| volume.at.path == path)
}

/// Records the volume, unless it is recorded already.
pub(super) fn write(pod: &PodDir, volume: &str, resolved: &ResolvedClaim) -> anyhow::Result<()> {
    let marker = pod.claim_marker(volume)?;
    let text = serde_json::to_vec(resolved).with_context(cannot("write", &marker))?;
    write_marker(pod, &marker, &text, 0o640)
}
