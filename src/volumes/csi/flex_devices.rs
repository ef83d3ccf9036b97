//! Which attached volumes of flexVolume drivers are in use: those whose device has a directory.

use crate::volumes::FlexDevice;
use parking_lot::Mutex;
use std::{collections::BTreeSet, io};

/// The attached volumes of flexVolume drivers that are in use.
#[derive(Default)]
pub(super) struct FlexDevices {
    /// Held while devices are listed, stored and reported, so that an older list never replaces a newer one. Only threads
    /// that may block wait for it.
    listing: Mutex<()>,
    /// Their unique names; `None` until they have been listed.
    names: Mutex<Option<BTreeSet<String>>>,
}

impl FlexDevices {
    /// Lists the devices, and reports them with `report`. Blocking.
    ///
    /// # Errors
    /// They cannot be listed: the earlier ones stay in use.
    pub(super) fn update(
        &self,
        list: impl FnOnce() -> io::Result<Vec<FlexDevice>>,
        report: impl FnOnce(),
    ) -> io::Result<Vec<FlexDevice>> {
        let _listing = self.listing.lock();
        let devices = list()?;
        let names = devices.iter().map(FlexDevice::unique_name);
        *self.names.lock() = Some(names.collect());
        report();
        Ok(devices)
    }

    /// Their unique names; `None` if they are not known yet: then each volume in the Node's list that [`may_be`] one is kept.
    pub(super) fn names(&self) -> Option<BTreeSet<String>> {
        self.names.lock().clone()
    }
}

/// Whether this may be the unique name of a volume of a flexVolume driver: those of upstream's plugins are no driver's.
pub(super) fn may_be(unique_name: &str) -> bool {
    !unique_name.starts_with("kubernetes.io/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread, time::Duration};

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
        let known = FlexDevices::default();
        let (finished, has_finished) = mpsc::channel();
        thread::scope(|scope| {
            let listed = known.update(
                || {
                    scope.spawn(|| {
                        let listed = known.update(|| Ok(devices(&["a", "b"])), || ());
                        assert_eq!(listed.unwrap().len(), 2);
                        finished.send(()).unwrap();
                    });
                    // If the other thread does not wait, it finishes here, and this older list replaces its list.
                    let _ = has_finished.recv_timeout(Duration::from_millis(300));
                    Ok(devices(&["a"]))
                },
                || assert_eq!(known.names(), names(&["a"])),
            );
            assert_eq!(listed.unwrap().len(), 1);
        });
        assert_eq!(known.names(), names(&["a", "b"]));
    }

    #[test]
    fn devices_that_cannot_be_listed_stay_in_use() {
        let known = FlexDevices::default();
        let fail = || known.update(|| Err(io::Error::other("broken")), || panic!("reported"));
        assert!(fail().is_err());
        assert_eq!(known.names(), None);
        known.update(|| Ok(devices(&["a"])), || ()).unwrap();
        assert!(fail().is_err());
        assert_eq!(known.names(), names(&["a"]));
        assert!(may_be("acme/disk/a") && !may_be("kubernetes.io/csi/driver^handle"));
    }
}
