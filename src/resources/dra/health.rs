//! Device health that DRA drivers report. Pure.

use super::health_proto::{self, HealthStatus};
use super::state::ClaimDevice;
use crate::base::clock::Instant;
use k8s_openapi::api::core::v1::ResourceHealth;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Timeout of a report without one.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum timeout of a report.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum number of devices per driver.
const MAX_DEVICES: usize = 100_000;
/// Maximum length of a driver's message, bytes (the API's limit).
const MAX_MESSAGE: usize = 1024;

/// A device by pool and name.
pub(super) type DeviceKey = (String, String);

#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceHealth {
    status: HealthStatus,
    message: String,
    timeout: Duration,
    until: Instant,
}

/// Latest reported health by driver and device.
#[derive(Debug, Default)]
pub(super) struct HealthInfoCache(HashMap<String, BTreeMap<DeviceKey, DeviceHealth>>);

impl HealthInfoCache {
    /// Records the report of a driver; returns the devices whose health changed.
    pub(super) fn report(
        &mut self,
        driver: &str,
        devices: Vec<health_proto::DeviceHealth>,
        now: Instant,
    ) -> Vec<DeviceKey> {
        let mut changed = self.expire(driver, now);
        let known = self.0.entry(driver.to_owned()).or_default();
        for device in devices {
            let health = of(&device, now);
            let id = device.device.unwrap_or_default();
            let key = (id.pool_name, id.device_name);
            if known.len() >= MAX_DEVICES && !known.contains_key(&key) {
                continue;
            }
            let before = known.insert(key.clone(), health.clone());
            let same = before.is_some_and(|before| {
                (before.status, &before.message) == (health.status, &health.message)
            });
            if !same {
                changed.push(key);
            }
        }
        changed
    }

    /// Removes expired reports; returns their devices.
    pub(super) fn expire(&mut self, driver: &str, now: Instant) -> Vec<DeviceKey> {
        let Some(known) = self.0.get_mut(driver) else {
            return Vec::new();
        };
        let expired = known.extract_if(.., |_, health| health.until <= now);
        expired.map(|(key, _)| key).collect()
    }

    /// When the next report of a driver expires.
    pub(super) fn next_expiry(&self, driver: &str) -> Option<Instant> {
        let known = self.0.get(driver)?;
        known.values().map(|health| health.until).min()
    }

    /// Removes all reports of a driver; returns their devices.
    pub(super) fn clear(&mut self, driver: &str) -> Vec<DeviceKey> {
        let known = self.0.remove(driver).unwrap_or_default();
        known.into_keys().collect()
    }

    /// The health of a claim's device, for container statuses.
    pub(super) fn of(&self, device: &ClaimDevice) -> ResourceHealth {
        let known = self.0.get(&device.driver);
        let key = (device.pool.clone(), device.device.clone());
        let health = known.and_then(|known| known.get(&key));
        let status = health.map_or(HealthStatus::Unknown, |health| health.status);
        let message = health.map(|health| health.message.clone());
        let id = device.cdi_ids.first().cloned();
        ResourceHealth {
            resource_id: id
                .unwrap_or_else(|| format!("{}/{}/{}", device.driver, device.pool, device.device)),
            health: Some(
                match status {
                    HealthStatus::Healthy => "Healthy",
                    HealthStatus::Unhealthy => "Unhealthy",
                    HealthStatus::Unknown => "Unknown",
                }
                .into(),
            ),
            message: message.filter(|message| !message.is_empty()),
        }
    }
}

fn of(device: &health_proto::DeviceHealth, now: Instant) -> DeviceHealth {
    let seconds = u64::try_from(device.health_check_timeout_seconds).unwrap_or_default();
    let timeout = match seconds {
        0 => DEFAULT_TIMEOUT,
        seconds => Duration::from_secs(seconds).min(MAX_TIMEOUT),
    };
    DeviceHealth {
        status: device.health(),
        message: shortened(&device.message),
        timeout,
        until: now + timeout,
    }
}

fn shortened(message: &str) -> String {
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(MAX_MESSAGE - 3);
    let (start, _) = message.split_at(end);
    format!("{start}...")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;
    use health_proto::DeviceIdentifier;

    fn report(
        device: &str,
        health: HealthStatus,
        message: &str,
        timeout: i64,
    ) -> health_proto::DeviceHealth {
        health_proto::DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: "pool".into(), device_name: device.into() }),
            health: health.into(),
            last_updated_time: 0,
            health_check_timeout_seconds: timeout,
            message: message.into(),
        }
    }

    fn shown(health: &HealthInfoCache, device: &str) -> (String, String, Option<String>) {
        let shown = health.of(&ClaimDevice {
            driver: "driver".into(),
            pool: "pool".into(),
            device: device.into(),
            share_id: None,
            cdi_ids: Vec::new(),
        });
        (shown.resource_id, shown.health.unwrap(), shown.message)
    }

    #[test]
    fn a_report_holds_for_its_time_and_only_changes_count() {
        let mut health = HealthInfoCache::default();
        let now = clock::instant();
        let key = |device: &str| ("pool".to_owned(), device.to_owned());
        assert_eq!(shown(&health, "a"), ("driver/pool/a".into(), "Unknown".into(), None));
        let both = |a| vec![report("a", a, "hot", 0), report("b", HealthStatus::Healthy, "", -1)];
        assert_eq!(health.report("driver", both(HealthStatus::Healthy), now), [key("a"), key("b")]);
        assert_eq!(health.report("driver", both(HealthStatus::Healthy), now), []);
        assert_eq!(health.report("driver", both(HealthStatus::Unhealthy), now), [key("a")]);
        assert_eq!(
            shown(&health, "a"),
            ("driver/pool/a".into(), "Unhealthy".into(), Some("hot".into()))
        );
        assert_eq!(health.next_expiry("driver"), Some(now + DEFAULT_TIMEOUT));
        // The driver goes on with one of them.
        let later = now + Duration::from_secs(29);
        let long = vec![report("b", HealthStatus::Healthy, "", 100)];
        assert_eq!(health.report("driver", long, later), []);
        assert_eq!(health.expire("driver", now + DEFAULT_TIMEOUT), [key("a")]);
        assert_eq!(shown(&health, "a").1, "Unknown");
        assert_eq!(shown(&health, "b").1, "Healthy");
        assert_eq!(health.clear("driver"), [key("b")]);
        assert_eq!(health.clear("driver"), []);
    }

    #[test]
    fn a_driver_that_reports_ever_more_devices_fills_no_memory() {
        let mut health = HealthInfoCache::default();
        let now = clock::instant();
        let names = |range: std::ops::Range<usize>| {
            let report = |n: usize| report(&n.to_string(), HealthStatus::Healthy, "", 0);
            range.map(report).collect::<Vec<_>>()
        };
        health.report("driver", names(0..MAX_DEVICES), now);
        assert_eq!(health.report("driver", names(MAX_DEVICES..MAX_DEVICES + 9), now), []);
        let known = vec![report("0", HealthStatus::Unhealthy, "", 0)];
        assert_eq!(health.report("driver", known, now).len(), 1);
        assert_eq!(health.clear("driver").len(), MAX_DEVICES);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = format!("{}ä{}", "x".repeat(1020), "y".repeat(100));
        let shown = shortened(&text);
        assert_eq!(shown, format!("{}...", "x".repeat(1020)));
        assert_eq!(shortened("short"), "short");
    }
}
