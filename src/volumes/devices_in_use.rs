//! Which devices are in use that the kubelet mounts without a CSI driver: those that have a directory.

use super::disk_dirs::{DiskDir, DiskPlugin};
use super::paths::FlexDevice;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// The devices in use.
#[derive(Default)]
pub(super) struct DevicesInUse {
    /// The attached volumes of flexVolume drivers.
    pub(super) flex: KnownDevices<FlexDevice>,
    /// The iSCSI and Fibre Channel disks.
    pub(super) disks: KnownDevices<DiskDir>,
}

impl DevicesInUse {
    /// The unique names of their volumes, as far as they are known.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let names = self.flex.names().into_iter().chain(self.disks.names());
        names.flatten().collect()
    }

    /// Whether all of them are known: else each volume in the Node's list that [may be one](Self::may_have) is kept.
    pub(super) fn are_known(&self) -> bool {
        self.flex.names().is_some() && self.disks.names().is_some()
    }

    /// Whether this may be the unique name of a device that is not known yet.
    pub(super) fn may_have(&self, unique_name: &str) -> bool {
        self.flex.may_have(unique_name) || self.disks.may_have(unique_name)
    }
}

/// A device with a directory.
pub(super) trait Device: Clone + Ord {
    /// The unique names that its volume may have.
    fn names(&self) -> Vec<String>;
    /// Whether this may be the unique name of the volume of such a device.
    fn may_be(unique_name: &str) -> bool;
}

impl Device for FlexDevice {
    fn names(&self) -> Vec<String> {
        vec![self.unique_name()]
    }

    fn may_be(unique_name: &str) -> bool {
        // The names of upstream's plugins are no driver's.
        !unique_name.starts_with("kubernetes.io/")
    }
}

impl Device for DiskDir {
    fn names(&self) -> Vec<String> {
        self.unique_names()
    }

    fn may_be(unique_name: &str) -> bool {
        DiskPlugin::ALL.iter().any(|plugin| plugin.has(unique_name))
    }
}

/// The devices of one sort that are in use.
pub(super) struct KnownDevices<D> {
    /// Held while devices are listed, stored and reported, so that an older list never replaces a newer one. Only threads
    /// that may block wait for it.
    listing: Mutex<()>,
    /// With the unique names of their volumes; `None` until they have been listed.
    devices: Mutex<Option<BTreeMap<D, Vec<String>>>>,
}

impl<D> Default for KnownDevices<D> {
    fn default() -> Self {
        Self { listing: Mutex::default(), devices: Mutex::default() }
    }
}

impl<D: Device> KnownDevices<D> {
    /// Lists the devices, and reports them with `report`. `named` is a device with the unique name of its volume. Blocking.
    ///
    /// # Errors
    /// They cannot be listed: the earlier ones stay in use.
    pub(super) fn update(
        &self,
        list: impl FnOnce() -> io::Result<Vec<D>>,
        named: Option<(D, String)>,
        report: impl FnOnce(),
    ) -> io::Result<Vec<D>> {
        let _listing = self.listing.lock();
        let listed = list()?;
        {
            let mut devices = self.devices.lock();
            let mut earlier = devices.take().unwrap_or_default();
            earlier.extend(named.map(|(device, name)| (device, vec![name])));
            let with_names = listed.iter().map(|device| {
                let names = earlier.remove(device);
                let names = names.unwrap_or_else(|| device.names());
                (device.clone(), names)
            });
            *devices = Some(with_names.collect());
        }
        report();
        Ok(listed)
    }

    /// The unique names of their volumes; `None` if they are not known yet.
    fn names(&self) -> Option<BTreeSet<String>> {
        let devices = self.devices.lock();
        let names = devices.as_ref()?.values().flatten();
        Some(names.cloned().collect())
    }

    fn may_have(&self, unique_name: &str) -> bool {
        self.devices.lock().is_none() && D::may_be(unique_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    fn devices(names: &[&str]) -> Vec<FlexDevice> {
        let devices = names.iter().map(|name| FlexDevice::new("acme/disk", name));
        devices.collect()
    }

    fn names(names: &[&str]) -> Option<BTreeSet<String>> {
        let names = names.iter().map(|name| format!("acme/disk/{name}"));
        Some(names.collect())
    }

    #[test]
    fn an_older_list_of_devices_never_replaces_a_newer_one() {
        let known = KnownDevices::default();
        let (finished, has_finished) = mpsc::channel();
        thread::scope(|scope| {
            let listed = known.update(
                || {
                    scope.spawn(|| {
                        let listed = known.update(|| Ok(devices(&["a", "b"])), None, || ());
                        assert_eq!(listed.unwrap().len(), 2);
                        finished.send(()).unwrap();
                    });
                    // If the other thread does not wait, it finishes here, and this older list replaces its list.
                    let _ = has_finished.recv_timeout(Duration::from_millis(300));
                    Ok(devices(&["a"]))
                },
                None,
                || assert_eq!(known.names(), names(&["a"])),
            );
            assert_eq!(listed.unwrap().len(), 1);
        });
        assert_eq!(known.names(), names(&["a", "b"]));
    }

    #[test]
    fn devices_that_cannot_be_listed_stay_in_use() {
        let known = DevicesInUse::default();
        let fail = || {
            let list = || Err(io::Error::other("broken"));
            known.flex.update(list, None, || panic!("reported"))
        };
        assert!(fail().is_err());
        assert!(!known.are_known() && known.may_have("acme/disk/a"));
        assert!(!known.may_have("kubernetes.io/csi/driver^handle"));
        let list = || Ok(devices(&["a"]));
        known.flex.update(list, None, || ()).unwrap();
        assert!(fail().is_err());
        assert_eq!(known.flex.names(), names(&["a"]));
        assert!(!known.may_have("acme/disk/a") && known.may_have("kubernetes.io/fc/[500a]:1"));
        assert!(!known.are_known());
        known.disks.update(|| Ok(Vec::new()), None, || ()).unwrap();
        assert!(known.are_known() && !known.may_have("kubernetes.io/fc/[500a]:1"));
    }

    #[test]
    fn the_name_of_a_disks_volume_is_kept_as_long_as_the_disk_is_listed() {
        let known = KnownDevices::default();
        let disk = DiskDir {
            plugin: DiskPlugin::Fc,
            is_block: false,
            iface: None,
            name: "500a-lun-1".to_owned(),
        };
        let update = |named, listed: bool| {
            let listed = listed.then(|| disk.clone());
            let list = || Ok(listed.into_iter().collect());
            known.update(list, named, || ()).unwrap();
            Vec::from_iter(known.names().unwrap())
        };
        let guessed = ["kubernetes.io/fc/[500a]:1"];
        assert_eq!(update(None, true), guessed);
        assert_eq!(update(Some((disk.clone(), "given".to_owned())), true), ["given"]);
        assert_eq!(update(None, true), ["given"]);
        assert_eq!(update(None, false), [""; 0]);
        assert_eq!(update(None, true), guessed);
    }
}
