//! The kinds of volumes.
//!
//! A kind is one file (or folder) and one row of `KINDS`. It plans a pod's volume as a `Kind`, which is set up by attempts,
//! and the volume of a claim as a `NodePath`, which is recorded on disk, so that a pod keeps its volume while the API
//! server is away. What a kind mounts or creates in the directories of its plugins is torn down without it: mounts are
//! read from the kernel.

pub mod plan;
mod programs;
mod bind;
mod disk;
mod git_repo;
mod claim;
pub mod content;
mod csi;
pub(super) mod empty_dir;
pub(super) mod host_path;
pub(super) mod local;
pub(super) mod releases;
pub(super) mod flex;
mod scsi;
mod iscsi;
mod fc;
mod nfs;

use super::pod_volumes::{PlannedKind, SetUp};
use super::{VolumeError, VolumeManagerInner, VolumePlugin};
use crate::model::PodUid;
use claim::{ClaimAttempt, NodePath, PersistentSource};
use futures::future::BoxFuture;
use plan::Planning;
use std::sync::Arc;

/// All kinds. The runtime mounts image volumes, so they are none.
pub(super) const KINDS: &[KindRow] = &[
    empty_dir::KIND,
    host_path::KIND,
    claim::KIND,
    csi::KIND,
    local::KIND,
    nfs::KIND,
    iscsi::KIND,
    fc::KIND,
    flex::KIND,
    git_repo::KIND,
    content::KIND,
];

/// One kind of volumes. Rows leave out what the kind has not: `..KindRow::NONE`.
pub(super) struct KindRow {
    /// The plugins below whose directories it creates volumes for a pod: their mounts and files are removed with the pod, and
    /// they are the plugins that records may name.
    plugins: &'static [VolumePlugin],
    /// Plans a pod's volume; `None` if it is of another kind.
    plan: fn(&Planning<'_>) -> anyhow::Result<PlannedKind>,
    /// Finds the volume of a claim; `None` if it is of another kind.
    resolve: fn(&PersistentSource<'_>) -> Result<Option<NodePath>, VolumeError>,
    /// The key in [`NodePath::of_kind`] of this kind's volumes of claims.
    key: &'static str,
    /// Sets up such a volume of a claim.
    set_up_claim: fn(ClaimAttempt) -> SetUp,
    /// Ends what has to end before the directories of a pod are torn down.
    pub(super) tear_down:
        fn(Arc<VolumeManagerInner>, PodUid) -> BoxFuture<'static, Result<(), VolumeError>>,
    /// Releases what no pod uses any more, after a pod was torn down.
    pub(super) release: fn(Arc<VolumeManagerInner>) -> BoxFuture<'static, ()>,
}

impl KindRow {
    /// Does nothing. Volumes of claims without a kind's key are paths of the node.
    const NONE: Self = Self {
        plugins: &[],
        plan: |_| Ok(None),
        resolve: |_| Ok(None),
        key: "",
        set_up_claim: host_path::set_up_claim,
        tear_down: |_, _| Box::pin(async { Ok(()) }),
        release: |_| Box::pin(async {}),
    };

    /// The kind of a claim's volume.
    fn of(at: &NodePath) -> &'static Self {
        let mut kinds = KINDS.iter();
        let kind = kinds.find(|kind| at.of_kind.contains_key(kind.key));
        kind.unwrap_or(&Self::NONE)
    }
}

/// The plugins of all kinds.
pub(super) fn plugins() -> impl Iterator<Item = VolumePlugin> {
    KINDS.iter().flat_map(|kind| kind.plugins).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_on_disk_name_these_plugins() {
        let mut names: Vec<_> = plugins().map(|plugin| plugin.0).collect();
        names.sort_unstable();
        let expected = [
            "configmap",
            "downward-api",
            "empty-dir",
            "fc",
            "iscsi",
            "local-volume",
            "nfs",
            "projected",
            "secret",
        ];
        assert_eq!(names, expected.map(|name| format!("kubernetes.io/{name}")));
    }
}
