//! The ResourceClaims that pods on this node use. Pure.

use super::claims::base_request;
use super::error::DraError;
use super::proto;
use crate::model::PodUid;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Identifies a ResourceClaim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ResourceClaimKey {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// A device that a driver prepared; with the checkpoint's names of its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PreparedDevice {
    #[serde(rename = "PoolName")]
    pub(super) pool: String,
    #[serde(rename = "DeviceName")]
    pub(super) device: String,
    #[serde(rename = "ShareID")]
    pub(super) share_id: Option<String>,
    /// The requests that the device is for; empty for all requests.
    #[serde(rename = "RequestNames", default, deserialize_with = "null_as_empty")]
    pub(super) requests: Vec<String>,
    #[serde(rename = "CDIDeviceIDs", default, deserialize_with = "null_as_empty")]
    pub(super) cdi_ids: Vec<String>,
}

/// Go writes `null` for a nil list.
fn null_as_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl PreparedDevice {
    /// Whether the device is for this request.
    pub(super) fn is_for(&self, request: &str) -> bool {
        request.is_empty()
            || self.requests.is_empty()
            || self.requests.iter().any(|own| own == base_request(request))
    }
}

impl From<proto::Device> for PreparedDevice {
    fn from(device: proto::Device) -> Self {
        Self {
            pool: device.pool_name,
            device: device.device_name,
            share_id: device.share_id,
            requests: device.request_names,
            cdi_ids: device.cdi_device_ids,
        }
    }
}

/// A ResourceClaim in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClaimInfo {
    pub(super) uid: String,
    pub(super) pods: BTreeSet<PodUid>,
    /// Devices by driver; a driver that has not prepared any yet has an empty list.
    pub(super) drivers: BTreeMap<String, Vec<PreparedDevice>>,
    /// Whether all drivers have prepared it since the kubelet started.
    pub(super) is_prepared: bool,
}

impl ClaimInfo {
    /// Whether its devices are known. Those of a claim that was recovered after the checkpoint was lost are not.
    pub(super) fn has_known_devices(&self) -> bool {
        self.is_prepared || self.drivers.values().any(|devices| !devices.is_empty())
    }
}

/// A claim of a container, with its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ContainerClaim {
    pub name: String,
    pub namespace: String,
    pub devices: Vec<ClaimDevice>,
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ClaimDevice {
    pub driver: String,
    pub pool: String,
    /// Its name within the pool.
    pub device: String,
    /// ID of the share, for a shared device.
    pub share_id: Option<String>,
    /// CDI device IDs.
    pub cdi_ids: Vec<String>,
}

/// The claims in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClaimInfoCache(pub(super) BTreeMap<ResourceClaimKey, ClaimInfo>);

impl ClaimInfoCache {
    /// Checks that the cache has no earlier claim of this name.
    ///
    /// # Errors
    /// It has one, which pods still use.
    pub(super) fn check_uid(&self, key: &ResourceClaimKey, uid: &str) -> Result<(), DraError> {
        match self.0.get(key) {
            Some(info) if info.uid != uid => {
                Err(DraError::OldClaim { claim: key.name.clone(), uid: info.uid.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Adds a pod to the users of a claim that [`Self::check_uid`] accepted; returns whether the claim has to be
    /// prepared.
    pub(super) fn add_user(
        &mut self,
        pod: &PodUid,
        key: &ResourceClaimKey,
        uid: &str,
        drivers: &[String],
    ) -> bool {
        let info = self.0.entry(key.clone()).or_insert_with(|| ClaimInfo {
            uid: uid.to_owned(),
            drivers: drivers.iter().map(|d| (d.clone(), Vec::new())).collect(),
            ..ClaimInfo::default()
        });
        info.pods.insert(pod.clone());
        !info.is_prepared
    }

    /// Records the devices that a driver prepared for a claim.
    pub(super) fn set_devices(
        &mut self,
        key: &ResourceClaimKey,
        driver: &str,
        devices: Vec<PreparedDevice>,
    ) {
        if let Some(info) = self.0.get_mut(key) {
            info.drivers.insert(driver.to_owned(), devices);
        }
    }

    /// Records that all drivers have prepared these claims.
    pub(super) fn set_prepared(&mut self, keys: &[ResourceClaimKey]) {
        for key in keys {
            if let Some(info) = self.0.get_mut(key) {
                info.is_prepared = true;
            }
        }
    }

    /// The claims that a pod uses.
    pub(super) fn of_pod(&self, pod: &PodUid) -> Vec<ResourceClaimKey> {
        let own = self.0.iter().filter(|(_, info)| info.pods.contains(pod));
        own.map(|(key, _)| key.clone()).collect()
    }

    /// All pods that use claims.
    pub(super) fn pods(&self) -> BTreeSet<PodUid> {
        let infos = self.0.values();
        infos.flat_map(|info| info.pods.iter().cloned()).collect()
    }

    /// Pods that use this device.
    pub(super) fn users(&self, driver: &str, pool: &str, device: &str) -> BTreeSet<PodUid> {
        let uses = |info: &&ClaimInfo| {
            let mut devices = info.drivers.get(driver).into_iter().flatten();
            devices.any(|own| own.pool == pool && own.device == device)
        };
        let infos = self.0.values().filter(uses);
        infos.flat_map(|info| info.pods.iter().cloned()).collect()
    }

    /// Removes a pod from the users of a claim, unless it is the last one. Returns true for the last user: it stays
    /// recorded until the claim is unprepared.
    pub(super) fn release_user(&mut self, pod: &PodUid, key: &ResourceClaimKey) -> bool {
        match self.0.get_mut(key) {
            Some(info) if info.pods.contains(pod) => {
                if info.pods.len() == 1 {
                    // From now on the claim may be partly unprepared.
                    info.is_prepared = false;
                    return true;
                }
                info.pods.remove(pod);
                false
            }
            _ => false,
        }
    }

    /// Numbers of prepared claims, by driver and in total.
    pub(super) fn in_use(&self) -> (BTreeMap<&str, i64>, i64) {
        let mut by_driver = BTreeMap::new();
        let prepared = self.0.values().filter(|info| info.is_prepared);
        let mut all = 0;
        for info in prepared {
            all += 1;
            for driver in info.drivers.keys() {
                *by_driver.entry(driver.as_str()).or_insert(0) += 1;
            }
        }
        (by_driver, all)
    }

    /// The devices for one request of a claim; `None` for an unknown claim.
    pub(super) fn devices(
        &self,
        key: &ResourceClaimKey,
        request: &str,
    ) -> Option<Vec<ClaimDevice>> {
        let info = self.0.get(key)?;
        let all = info.drivers.iter().flat_map(|(driver, devices)| {
            let own = devices.iter().filter(|device| device.is_for(request));
            own.map(move |device| ClaimDevice {
                driver: driver.clone(),
                pool: device.pool.clone(),
                device: device.device.clone(),
                share_id: device.share_id.clone(),
                cdi_ids: device.cdi_ids.clone(),
            })
        });
        Some(all.collect())
    }
}
