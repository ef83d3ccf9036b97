//! The drivers that are registered, or were a moment ago. Pure.

use super::facts::DriverFacts;
use super::objects::WantedDrivers;
use crate::base::clock::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// One registration of a driver; later ones are greater.
pub(super) type RegistrationId = u64;

/// The registrations of each driver.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    drivers: BTreeMap<String, DriverRegistration>,
    next_id: RegistrationId,
}

#[derive(Debug, Default)]
struct DriverRegistration {
    ids: BTreeSet<RegistrationId>,
    /// What the API server has of the driver; `None` until it is written.
    written: Option<DriverFacts>,
    /// When the driver is removed from the API server; `None` while it is registered.
    removal_due: Option<Instant>,
}

impl Registrations {
    /// Begins a registration, and cancels the driver's removal.
    pub(super) fn begin(&mut self, driver: &str) -> RegistrationId {
        let id = self.next_id;
        self.next_id += 1;
        let registration = self.drivers.entry(driver.to_owned()).or_default();
        registration.ids.insert(id);
        registration.removal_due = None;
        id
    }

    /// Ends a registration. After the last one the driver is removed after `grace`. Returns whether it was the last.
    pub(super) fn end(
        &mut self,
        driver: &str,
        id: RegistrationId,
        grace: Duration,
        now: Instant,
    ) -> bool {
        let Some(registration) = self.drivers.get_mut(driver) else {
            return false;
        };
        let was_last = registration.ids.remove(&id) && registration.ids.is_empty();
        if was_last {
            registration.removal_due = Some(now + grace);
        }
        was_last
    }

    /// Whether another registration of the driver began later.
    pub(super) fn is_superseded(&self, driver: &str, id: RegistrationId) -> bool {
        let registration = self.drivers.get(driver);
        let last = registration.and_then(|registration| registration.ids.last());
        last.is_some_and(|last| *last > id)
    }

    pub(super) fn is_registered(&self, driver: &str) -> bool {
        let registration = self.drivers.get(driver);
        registration.is_some_and(|registration| !registration.ids.is_empty())
    }

    /// Records what the API server has of a driver.
    pub(super) fn set_written(&mut self, driver: &str, facts: DriverFacts) {
        if let Some(registration) = self.drivers.get_mut(driver) {
            registration.written = Some(facts);
        }
    }

    pub(super) fn written(&self, driver: &str) -> Option<&DriverFacts> {
        self.drivers.get(driver)?.written.as_ref()
    }

    /// The drivers that the API server should have: those that it has, until they are removed.
    pub(super) fn wanted(&self) -> WantedDrivers {
        let written =
            |(name, it): (&String, &DriverRegistration)| Some((name.clone(), it.written.clone()?));
        self.drivers.iter().filter_map(written).collect()
    }

    /// The time of the next removal.
    pub(super) fn next_removal(&self) -> Option<Instant> {
        let due = self.drivers.values();
        due.filter_map(|registration| registration.removal_due).min()
    }

    /// The drivers to remove now.
    pub(super) fn due_removals(&self, now: Instant) -> Vec<String> {
        let is_due = |it: &DriverRegistration| it.removal_due.is_some_and(|due| due <= now);
        let due = self.drivers.iter().filter(|(_, registration)| is_due(registration));
        due.map(|(name, _)| name.clone()).collect()
    }

    /// Begins the removal of a driver from the API server: from now on the API server may not have it. False if the
    /// driver has registered meanwhile.
    pub(super) fn begin_removal(&mut self, driver: &str) -> bool {
        match self.drivers.get_mut(driver) {
            Some(registration) if registration.ids.is_empty() => {
                registration.written = None;
                true
            }
            _ => false,
        }
    }

    /// Forgets a driver after its removal; with `retry_at`, the removal failed. A driver that has registered meanwhile
    /// stays.
    pub(super) fn end_removal(&mut self, driver: &str, retry_at: Option<Instant>) {
        let Some(registration) = self.drivers.get_mut(driver) else {
            return;
        };
        if !registration.ids.is_empty() {
            return;
        }
        if retry_at.is_some() {
            registration.removal_due = retry_at;
        } else {
            self.drivers.remove(driver);
        }
    }
}
