//! The release of mounted devices that no pod uses any more: what fails is repeated, each device is released by one task at
//! most, however many pods end meanwhile, and a teardown does not wait for it long.

use super::local::RELEASE_TIMEOUT;
use crate::base::panics::PanicScope;
use crate::base::spawn;
use crate::volumes::VolumeManagerInner;
use futures::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long after a failure a device is released again, and at most; upstream's back-off.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(122);

/// How the devices of a kind are released.
pub(super) trait MountedDevices: Send + Sync + 'static {
    /// A device with a directory.
    type Device: Send + Sync + 'static;

    /// The kind, in logs.
    fn kind(&self) -> &'static str;

    /// The devices that have a directory.
    fn list(
        &self,
        manager: Arc<VolumeManagerInner>,
    ) -> BoxFuture<'static, io::Result<Vec<Self::Device>>>;

    /// The key of the device's lock, which is held while it is set up and released.
    fn lock_key(&self, manager: &VolumeManagerInner, device: &Self::Device) -> String;

    /// Releases a device unless something uses it.
    fn release<'a>(
        &'a self,
        manager: &'a Arc<VolumeManagerInner>,
        device: &'a Self::Device,
    ) -> BoxFuture<'a, anyhow::Result<()>>;
}

/// Releases the devices that no pod uses any more. If that takes long or fails, it continues in the background.
pub(super) async fn release(
    manager: Arc<VolumeManagerInner>,
    devices: &'static impl MountedDevices,
) {
    let release = spawn(PanicScope::Sync, release_all(manager, devices));
    let _ = timeout(RELEASE_TIMEOUT, release).await;
}

async fn release_all(manager: Arc<VolumeManagerInner>, devices: &'static impl MountedDevices) {
    // No device has this key.
    let key = format!("list of {}", devices.kind());
    if release_listed(&manager, devices).await || !manager.releases.begin(&key) {
        return;
    }
    let repeat = async move {
        let mut interval = RETRY_INTERVAL;
        loop {
            sleep(interval).await;
            interval = MAX_RETRY_INTERVAL.min(interval * 2);
            if release_listed(&manager, devices).await && manager.releases.end(&key) {
                return;
            }
        }
    };
    spawn(PanicScope::Sync, repeat);
}

/// Begins to release each device; false if they cannot be listed.
async fn release_listed(
    manager: &Arc<VolumeManagerInner>,
    devices: &'static impl MountedDevices,
) -> bool {
    match devices.list(manager.clone()).await {
        Ok(listed) => {
            let releases =
                listed.into_iter().map(|device| release_device(manager.clone(), devices, device));
            join_all(releases).await;
            true
        }
        Err(error) => {
            let kind = devices.kind();
            tracing::warn!(kind, err = %error, "Failed to list the devices of volumes");
            false
        }
    }
}

/// Releases a device, unless that is in progress. Who holds its lock may need it for long, so the lock is waited for in the
/// background, and a failure is retried there.
async fn release_device<D: MountedDevices>(
    manager: Arc<VolumeManagerInner>,
    devices: &'static D,
    device: D::Device,
) {
    let key = devices.lock_key(&manager, &device);
    if !manager.releases.begin(&key) {
        return;
    }
    let mut has_failed = false;
    if let Some(_lock) = manager.locks.try_lock(&key) {
        has_failed = !try_release(&manager, devices, &device).await;
        if !has_failed && manager.releases.end(&key) {
            return;
        }
    }
    let repeat = async move {
        let mut interval = RETRY_INTERVAL;
        loop {
            if has_failed {
                sleep(interval).await;
                interval = MAX_RETRY_INTERVAL.min(interval * 2);
            }
            let _lock = manager.locks.lock(&key).await;
            has_failed = !try_release(&manager, devices, &device).await;
            if !has_failed && manager.releases.end(&key) {
                return;
            }
        }
    };
    spawn(PanicScope::Sync, repeat);
}

/// Releases a device unless something uses it; false if that failed.
async fn try_release<D: MountedDevices>(
    manager: &Arc<VolumeManagerInner>,
    devices: &D,
    device: &D::Device,
) -> bool {
    let Err(error) = devices.release(manager, device).await else {
        return true;
    };
    let (kind, device) = (devices.kind(), devices.lock_key(manager, device));
    let why = format!("{error:#}");
    tracing::warn!(kind, device, err = why, "Failed to release the device of a volume");
    false
}

/// The devices that are being released, by the keys of their locks, and whether that has been asked for again.
#[derive(Default)]
pub(in crate::volumes) struct Releases(Mutex<BTreeMap<String, bool>>);

impl Releases {
    /// Asks for a release. Returns whether the caller has to carry it out; else it is repeated by the one who does, who may
    /// have found the device in use before.
    fn begin(&self, device: &str) -> bool {
        match self.0.lock().entry(device.to_owned()) {
            Entry::Vacant(new) => {
                new.insert(false);
                true
            }
            Entry::Occupied(mut in_progress) => {
                in_progress.insert(true);
                false
            }
        }
    }

    /// After a successful attempt: whether the release has ended. It has not if it was asked for meanwhile.
    fn end(&self, device: &str) -> bool {
        let mut releases = self.0.lock();
        if releases.get_mut(device).is_some_and(std::mem::take) {
            return false;
        }
        releases.remove(device);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_that_is_asked_for_during_another_is_not_lost() {
        let releases = Releases::default();
        assert!(releases.begin("a") && releases.begin("b"));
        assert!(!releases.begin("a") && !releases.begin("a"));
        assert!(!releases.end("a"));
        assert!(releases.end("a") && releases.end("b"));
        assert!(releases.begin("a"));
    }
}
