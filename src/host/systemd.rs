//! Creates, limits and removes slices of systemd. Blocking.

use super::system_bus::{BusError, BusObject, SystemBus, answer};
use futures::StreamExt as _;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use zbus::{Message, OwnedObjectPath, Variant};

const MANAGER: BusObject = BusObject {
    service: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};
/// Timeout of a systemd job.
const JOB_TIMEOUT: Duration = Duration::from_secs(30);
/// Job mode: replaces a pending job of the same unit.
const REPLACE: &str = "replace";

/// A property of a unit, with systemd's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitProperty(pub &'static str, pub PropertyValue);

/// The value of a property; comments are D-Bus signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyValue {
    /// `b`.
    Bool(bool),
    /// `t`.
    Number(u64),
    /// `ay`.
    Bytes(Vec<u8>),
    /// `s`.
    Text(String),
    /// `as`.
    Texts(Vec<String>),
}

impl From<&PropertyValue> for Variant<'static> {
    fn from(value: &PropertyValue) -> Self {
        match value.clone() {
            PropertyValue::Bool(value) => value.into(),
            PropertyValue::Number(value) => value.into(),
            PropertyValue::Bytes(value) => value.into(),
            PropertyValue::Text(value) => value.into(),
            PropertyValue::Texts(value) => value.into(),
        }
    }
}

/// The properties in the form of a D-Bus call.
fn variants(properties: &[UnitProperty]) -> Vec<(&'static str, Variant<'static>)> {
    let pairs = properties.iter();
    pairs.map(|UnitProperty(name, value)| (*name, value.into())).collect()
}

/// systemd's slices for the kubelet; cheap to clone. Methods block, and must not be called on an async worker thread.
#[derive(Clone, Debug)]
pub struct Slices(Arc<SystemdInner>);

#[derive(Debug)]
struct SystemdInner {
    bus: Arc<SystemBus>,
    runtime: Handle,
    version: OnceLock<u32>,
    /// The properties set last, by slice: systemd writes a file for each property, so unchanged ones are not sent
    /// again.
    given: Mutex<HashMap<String, Vec<UnitProperty>>>,
}

impl Slices {
    /// Slices of the systemd on this bus. Must be called within a tokio runtime.
    pub fn new(bus: Arc<SystemBus>) -> Self {
        Self(Arc::new(SystemdInner {
            bus,
            runtime: Handle::current(),
            version: OnceLock::new(),
            given: Mutex::default(),
        }))
    }

    /// The version of systemd; 0 if it cannot be parsed.
    ///
    /// # Errors
    /// systemd cannot be reached.
    pub fn version(&self) -> Result<u32, BusError> {
        if let Some(version) = self.0.version.get() {
            return Ok(*version);
        }
        let text = self.0.bus.property::<String>(MANAGER, "Version");
        let version = parse_version(&self.0.runtime.block_on(text)?);
        Ok(*self.0.version.get_or_init(|| version))
    }

    /// Creates a slice in a parent slice; an existing one is not changed.
    ///
    /// # Errors
    /// systemd cannot be reached, returns an error, or exceeds the timeout.
    pub fn create(&self, name: &str, parent: &str, v2: bool) -> Result<(), BusError> {
        self.0.given.lock().remove(name);
        let properties = variants(&of_new_slice(name, parent, v2));
        let none: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
        let body = (name, REPLACE, properties, none);
        match self.0.run_job(name, "StartTransientUnit", &body) {
            Err(error) if error.is("UnitExists") => Ok(()),
            Err(error) => {
                self.0.reset_failed(name);
                Err(error)
            }
            Ok(result) if result == "done" => Ok(()),
            Ok(result) => {
                self.0.reset_failed(name);
                Err(BusError::Refused {
                    name: "Job".to_owned(),
                    message: format!("error creating systemd unit `{name}`: got `{result}`"),
                })
            }
        }
    }

    /// Sets properties of a slice until the next boot; unchanged properties are not sent again.
    ///
    /// # Errors
    /// systemd cannot be reached, or returns an error.
    pub fn set(&self, name: &str, properties: Vec<UnitProperty>) -> Result<(), BusError> {
        if self.0.given.lock().get(name) == Some(&properties) {
            return Ok(());
        }
        let body = (name, true, variants(&properties));
        let set = self.0.bus.call(MANAGER, "SetUnitProperties", &body);
        self.0.runtime.block_on(set)?;
        self.0.given.lock().insert(name.to_owned(), properties);
        Ok(())
    }

    /// Stops a slice and all units in it; a missing slice is no error.
    ///
    /// # Errors
    /// systemd cannot be reached, or exceeds the timeout.
    pub fn stop(&self, name: &str) -> Result<(), BusError> {
        self.0.given.lock().remove(name);
        match self.0.run_job(name, "StopUnit", &(name, REPLACE)) {
            Ok(result) if result != "done" => {
                tracing::warn!(unit = name, result, "Failed to remove a systemd unit cleanly");
            }
            Err(error) if !matches!(error, BusError::Refused { .. }) => return Err(error),
            Ok(_) | Err(_) => {}
        }
        self.0.reset_failed(name);
        Ok(())
    }
}

impl SystemdInner {
    /// Calls a method that starts a job, and waits for the job's result.
    fn run_job<B: serde::Serialize + zbus::DynamicType>(
        &self,
        unit: &str,
        method: &'static str,
        body: &B,
    ) -> Result<String, BusError> {
        self.runtime.block_on(async {
            // systemd emits signals about jobs only to subscribers; one call per connection is enough.
            self.bus.call(MANAGER, "Subscribe", &()).await.map(drop).or_else(subscribed)?;
            // Subscribed before the call, because the job may end before the response is read.
            let ended = self.bus.signals(MANAGER, "JobRemoved").await?;
            let job: OwnedObjectPath = answer(&self.bus.call(MANAGER, method, body).await?)?;
            let results = ended.filter_map(|message| std::future::ready(result_of(&message, &job)));
            let mut results = std::pin::pin!(results);
            match tokio::time::timeout(JOB_TIMEOUT, results.next()).await {
                Ok(Some(result)) => Ok(result),
                Ok(None) => Err(BusError::Connection(zbus::Error::InvalidReply)),
                Err(_) => Err(BusError::Refused {
                    name: "Timeout".to_owned(),
                    message: format!("Timeout waiting for systemd to end a job of {unit}"),
                }),
            }
        })
    }

    /// Resets the failed state of a unit; systemd keeps a failed unit loaded until then.
    fn reset_failed(&self, name: &str) {
        let body = (name,);
        let reset = self.bus.call(MANAGER, "ResetFailedUnit", &body);
        // A unit that did not fail is no longer loaded, and the resulting error is ignored.
        let _ = self.runtime.block_on(reset);
    }
}

fn subscribed(error: BusError) -> Result<(), BusError> {
    if error.is("AlreadySubscribed") { Ok(()) } else { Err(error) }
}

/// The job's result, if the signal is about this job.
fn result_of(signal: &Message, job: &OwnedObjectPath) -> Option<String> {
    let (_, of, _, result): (u32, OwnedObjectPath, String, String) = answer(signal).ok()?;
    (of == *job).then_some(result)
}

/// The properties of a new slice: all accounting is on, and at shutdown it is not stopped before its containers.
fn of_new_slice(name: &str, parent: &str, v2: bool) -> Vec<UnitProperty> {
    let accounting = [
        "MemoryAccounting",
        "CPUAccounting",
        if v2 { "IOAccounting" } else { "BlockIOAccounting" },
        "TasksAccounting",
    ];
    let mut properties = vec![
        UnitProperty("Description", PropertyValue::Text(format!("Pods of the kubelet in {name}"))),
        UnitProperty("Wants", PropertyValue::Texts(vec![parent.to_owned()])),
    ];
    properties.extend(accounting.map(|name| UnitProperty(name, PropertyValue::Bool(true))));
    properties.push(UnitProperty("DefaultDependencies", PropertyValue::Bool(false)));
    properties
}

/// Parses the number of `v252.5-2` and the like.
fn parse_version(text: &str) -> u32 {
    let text = text.trim_start_matches(['"', 'v']);
    let digits = text.split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) mod fake;
