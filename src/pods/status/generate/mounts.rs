//! The mounts in a container's status.

use super::none_if_empty;
use crate::runtime::kuberuntime::generate::mounts::recursive_read_only;
use k8s_openapi::api::core::v1::{Container, VolumeMountStatus};

/// The container's mounts as requested, and whether read-only ones are so with everything below them:
/// the one thing that depends on the runtime.
pub(super) fn of(container: &Container, supported: bool) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let statuses = mounts.iter().map(|mount| {
        let read_only = mount.read_only == Some(true);
        let recursive = match recursive_read_only(mount, supported) {
            Ok(true) => "Enabled",
            _ => "Disabled",
        };
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: read_only.then_some(true),
            recursive_read_only: read_only.then(|| recursive.to_string()),
            volume_status: None,
        }
    });
    none_if_empty(statuses.collect())
}
