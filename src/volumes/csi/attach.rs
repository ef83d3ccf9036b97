//! The wait for a controller that attaches a volume: how long it takes, and whether it is in vain because the node has too
//! many volumes of the driver.
//!
//! A node may read a VolumeAttachment, but not watch it, so it is read from time to time while a pod waits.

use super::machine::VolumeFacts;
use super::manager::{CsiVolumes, CsiVolumesInner};
use super::volume::CsiVolume;
use crate::base::clock::{self, Instant};
use crate::state::node_object::has_reached;
use crate::volumes::disk_dirs::{self, DiskDir};
use crate::volumes::metrics::StorageOperation;
use crate::volumes::{FlexDevice, VolumeError};
use anyhow::anyhow;
use k8s_openapi::api::core::v1::Node;
use std::io;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often the VolumeAttachment is read.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// How many times in succession the node has to be over the limit until pods are rejected: a volume that is being
/// detached may make room.
const MAX_CHECKS: u32 = 2;

/// What is known of the wait.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AttachWait {
    since: Option<Instant>,
    check_at: Option<Instant>,
    over_limit: u32,
}

impl AttachWait {
    /// When to check next.
    pub(super) fn check_at(&self) -> Option<Instant> {
        self.check_at
    }

    /// Records whether a pod waits. Returns whether a check is due.
    fn waits(&mut self, waits: bool, now: Instant) -> bool {
        if !waits {
            *self = Self::default();
            return false;
        }
        self.since.get_or_insert(now);
        let check_at = *self.check_at.get_or_insert(now + CHECK_INTERVAL);
        check_at <= now
    }

    /// Records a check. Returns whether pods are to be rejected.
    fn checked(&mut self, is_over_limit: bool, now: Instant) -> bool {
        self.check_at = Some(now + CHECK_INTERVAL);
        self.over_limit = if is_over_limit { self.over_limit.saturating_add(1) } else { 0 };
        self.over_limit >= MAX_CHECKS
    }
}

impl CsiVolumesInner {
    /// Follows the wait of a volume, before its next step.
    pub(super) async fn follow_attach(
        &self,
        volume: &CsiVolume,
        facts: &VolumeFacts,
        wait: &mut AttachWait,
    ) {
        let waits = volume.state.lock().machine.waits_for_attach(facts);
        if facts.is_attached
            && let Some(since) = wait.since
        {
            let plugin = volume.plugin();
            let metrics = &self.sources.metrics;
            let (operation, is_migrated) = (StorageOperation::Attach, volume.is_migrated());
            metrics.operation(&plugin, operation, true, is_migrated, clock::since(since));
        }
        if !wait.waits(waits, clock::instant()) {
            return;
        }
        let is_over_limit = self.sources.is_over_limit(&volume.identity).await;
        if wait.checked(is_over_limit, clock::instant()) {
            volume.modify(|state| state.over_limit_at = Some(clock::instant()));
        }
    }
}

impl CsiVolumes {
    /// Reads from disk which attached volumes of flexVolume drivers are in use, and reports them. Blocking.
    ///
    /// # Errors
    /// They cannot be listed; those that were in use stay so.
    pub(in crate::volumes) fn read_flex_devices(&self) -> io::Result<Vec<FlexDevice>> {
        let (inner, devices) = (&self.0, &self.0.devices.flex);
        let list = || inner.root.flex_devices();
        devices.update(list, None, || inner.report_in_use())
    }

    /// Reads from disk which iSCSI and Fibre Channel disks are in use, and reports them. `named` is one that has a directory,
    /// with the unique name of its volume. Blocking.
    ///
    /// # Errors
    /// They cannot be listed; those that were in use stay so.
    pub(in crate::volumes) fn read_disks(
        &self,
        named: Option<(DiskDir, String)>,
    ) -> io::Result<Vec<DiskDir>> {
        let (inner, disks) = (&self.0, &self.0.devices.disks);
        let list = || disk_dirs::list_all(&inner.root);
        disks.update(list, named, || inner.report_in_use())
    }

    /// The same for all at the start of the kubelet; whether it succeeded.
    pub(super) fn recover_devices(&self) -> bool {
        let (flex, disks) = (self.read_flex_devices().map(drop), self.read_disks(None).map(drop));
        let errors = [flex, disks].into_iter().filter_map(Result::err);
        let failed = errors.map(|error| {
            tracing::warn!(err = %error, "Failed to list the devices in use");
        });
        failed.count() == 0
    }

    /// Waits until a volume in use is attached, without a limit. Returns the path of its device, which may be empty.
    ///
    /// # Errors
    /// There is no API server, or `ended` fires.
    pub(in crate::volumes) async fn wait_until_attached(
        &self,
        name: &str,
        ended: &CancellationToken,
    ) -> Result<String, VolumeError> {
        let sources = &self.0.sources;
        if sources.api.is_none() {
            let why = anyhow!("a volume cannot be attached without an API server");
            return Err(VolumeError::set_up(name, why));
        }
        let (mut confirmed, mut node) = (sources.in_use.confirmed(), sources.node.clone());
        loop {
            let version = confirmed.borrow_and_update().get(name).cloned();
            let known = node.borrow_and_update().clone();
            let found = version.zip(known);
            if let Some(device) = found.and_then(|(version, node)| attached(&node, name, &version))
            {
                return Ok(device);
            }
            // A watch whose sender is gone never changes again.
            tokio::select! {
                () = ended.cancelled() => return Err(VolumeError::Cancelled),
                Ok(()) = confirmed.changed() => {}
                Ok(()) = node.changed() => {}
                else => return Err(VolumeError::Cancelled),
            }
        }
    }
}

/// The device of a volume, if a Node that is not older than `version` has the volume among the attached ones.
pub(super) fn attached(node: &Node, name: &str, version: &str) -> Option<String> {
    let attached = node.status.as_ref()?.volumes_attached.as_ref()?;
    let found = attached.iter().find(|volume| volume.name == name);
    let found = found.filter(|_| has_reached(node, version))?;
    Some(found.device_path.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_are_rejected_only_if_the_node_stays_over_the_limit() {
        let (begun, mut wait) = (clock::instant(), AttachWait::default());
        let at = |checks: u32| begun + CHECK_INTERVAL * checks;
        assert!(!wait.waits(true, at(0)));
        assert!(!wait.waits(true, at(1) - Duration::from_secs(1)));
        for (check, is_over_limit, rejects) in [
            (1, true, false),
            (2, false, false),
            (3, true, false),
            (4, true, true),
            (5, true, true),
        ] {
            assert!(wait.waits(true, at(check)), "{check}");
            assert_eq!(wait.checked(is_over_limit, at(check)), rejects, "{check}");
            assert!(!wait.waits(true, at(check)), "{check}");
        }
        assert!(!wait.waits(false, at(9)));
        assert_eq!(wait, AttachWait::default());
    }

    #[test]
    fn a_volume_is_attached_if_a_node_that_is_not_older_than_the_confirmation_says_so() {
        let node = |version: &str, names: &[&str]| -> Node {
            let attached = names.iter().map(|name| json!({"name": name, "devicePath": ""}));
            serde_json::from_value(json!({
                "metadata": {"resourceVersion": version},
                "status": {"volumesAttached": attached.collect::<Vec<_>>()},
            }))
            .unwrap()
        };
        for (version, names, expected) in [
            ("9", &["a"][..], false),
            ("10", &["a"], true),
            ("11", &["b", "a"], true),
            ("11", &["b"], false),
            ("odd", &["a"], true),
        ] {
            let found = attached(&node(version, names), "a", "10").is_some();
            assert_eq!(found, expected, "{version} {names:?}");
        }
    }
}
