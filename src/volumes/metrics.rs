//! The metrics of volumes, with upstream's names.
//!
//! Upstream: `pkg/volume/util/metrics.go`, `pkg/kubelet/volumemanager/metrics`.

use crate::base::metrics::metric_set;
use crate::base::named_enum;
use std::collections::BTreeMap;
use std::time::Duration;

/// Upstream's buckets of storage operations, in seconds.
pub(super) const BUCKETS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
/// The plugin of a hostPath, which has no directory.
pub(super) const HOST_PATH: &str = "kubernetes.io/host-path";
/// The plugin of a claim whose volume is not known yet.
pub(super) const NO_PLUGIN: &str = "N/A";

named_enum! {
    /// An operation on a volume.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum StorageOperation {
        /// The volume is mounted for a pod, and staged before if that is necessary.
        Mount = "volume_mount",
        /// It is unmounted for a pod.
        Unmount = "volume_unmount",
        /// The device of the volume is mapped for a pod, and staged before if that is necessary.
        Map = "map_volume",
        /// It is unmapped for a pod.
        Unmap = "unmap_volume",
        /// It is unstaged.
        UnmountDevice = "unmount_device",
        /// A block volume is unstaged.
        UnmapDevice = "unmap_device",
        /// A controller attaches it.
        Attach = "verify_controller_attached_volume",
        /// It is expanded.
        Resize = "volume_fs_resize",
        /// Its files are given to the `fsGroup`.
        ApplyAccessControl = "volume_apply_access_control",
    }
}

/// The label that says whether a volume was translated from that of a former in-tree plugin.
pub(super) fn migrated(is_migrated: bool) -> &'static str {
    if is_migrated { "true" } else { "false" }
}

metric_set! {
    /// The metric families of volumes; clones share them.
    pub struct VolumeMetrics {
        operations: Histogram(BUCKETS)["volume_plugin", "operation_name", "status", "migrated"] =
            "storage_operation_duration_seconds", "Storage operation duration";
        totals: Histogram(BUCKETS)["plugin_name", "operation_name"] =
            "volume_operation_total_seconds", "Storage operation end to end duration in seconds";
        reconstructed: Counter = "reconstruct_volume_operations_total",
            "The number of volumes that were attempted to be reconstructed from the operating system during kubelet startup. This includes both successful and failed reconstruction";
        reconstruction_errors: Counter = "reconstruct_volume_operations_errors_total",
            "The number of volumes that failed reconstruction from the operating system during kubelet startup";
        force_cleaned: Counter = "force_cleaned_failed_volume_operations_total",
            "The number of volumes that were force cleaned after their reconstruction failed during kubelet startup. This includes both successful and failed cleanups";
        force_clean_errors: Counter = "force_cleaned_failed_volume_operation_errors_total",
            "The number of volumes that failed force cleanup after their reconstruction failed during kubelet startup";
    }
}

impl VolumeMetrics {
    /// Records the end of an operation.
    pub(super) fn operation(
        &self,
        plugin: &str,
        operation: StorageOperation,
        is_success: bool,
        is_migrated: bool,
        took: Duration,
    ) {
        let status = if is_success { "success" } else { "fail-unknown" };
        let values = [plugin, operation.as_str(), status, migrated(is_migrated)];
        self.operations.with(values).observe(took.as_secs_f64());
    }

    /// Records that a volume is mounted for a pod, and how long that took since the pod first wanted it.
    pub(super) fn mounted(&self, plugin: &str, took: Duration) {
        self.totals.with([plugin, "overall_volume_mount"]).observe(took.as_secs_f64());
    }

    /// Records how many volumes of an earlier kubelet were found, and how many of them cannot be undone.
    pub(super) fn reconstructed(&self, found: usize, failed: usize) {
        self.reconstructed.inc_by(found as u64);
        self.reconstruction_errors.inc_by(failed as u64);
    }

    /// Records how many directories without a volume were to be removed, and how many of them could not.
    pub(super) fn force_cleaned(&self, found: usize, failed: usize) {
        self.force_cleaned.inc_by(found as u64);
        self.force_clean_errors.inc_by(failed as u64);
    }
}

/// The states in labels: volumes that pods want, and volumes that are mounted.
pub(super) const DESIRED: &str = "desired_state_of_world";
pub(super) const ACTUAL: &str = "actual_state_of_world";

/// The number of volumes, by plugin and state.
pub(super) type VolumeTotals = BTreeMap<(String, &'static str), u32>;
