//! What the driver was asked for. No values of secrets and contexts are kept.

use super::proto::VolumeCapability;
use super::proto::volume_capability::AccessType;
use super::proto::volume_capability::access_mode::Mode;
use crate::base::clock;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::Code;

/// Within which an expected call arrives.
const LIMIT: Duration = Duration::from_secs(60);

/// A call.
#[derive(Clone, Debug, Default)]
pub(crate) struct JournalEntry {
    /// `NodeStageVolume` and the like.
    pub(crate) method: &'static str,
    pub(super) began: Timestamp,
    pub(crate) volume: String,
    pub(crate) staging_path: String,
    /// Of publish, unpublish, stats and expand.
    pub(crate) target_path: String,
    /// Keys, sorted.
    pub(crate) secrets: Vec<String>,
    pub(crate) volume_context: Vec<String>,
    pub(crate) publish_context: Vec<String>,
    /// The entries of pod info in the volume context, which are not confidential.
    pub(crate) pod_info: BTreeMap<String, String>,
    pub(crate) readonly: bool,
    pub(crate) access_mode: Option<Mode>,
    pub(crate) is_block: bool,
    pub(crate) fs_type: String,
    pub(crate) mount_flags: Vec<String>,
    pub(crate) mount_group: String,
    /// `None` while the call is in progress.
    pub(crate) code: Option<Code>,
}

impl JournalEntry {
    pub(super) fn new(method: &'static str, volume: &str) -> Self {
        Self { method, began: clock::timestamp(), volume: volume.into(), ..Self::default() }
    }

    pub(super) fn paths(self, staging_path: &str, target_path: &str) -> Self {
        Self { staging_path: staging_path.into(), target_path: target_path.into(), ..self }
    }

    pub(super) fn secrets(self, secrets: &BTreeMap<String, String>) -> Self {
        Self { secrets: keys(secrets), ..self }
    }

    pub(super) fn contexts(
        self,
        volume: &BTreeMap<String, String>,
        publish: &BTreeMap<String, String>,
    ) -> Self {
        let is_pod_info = |key: &str| {
            let name = key.strip_prefix("csi.storage.k8s.io/").unwrap_or_default();
            name.starts_with("pod.") || name == "ephemeral" || name == "serviceAccount.name"
        };
        let pod_info = volume.iter().filter(|(key, _)| is_pod_info(key));
        Self {
            volume_context: keys(volume),
            publish_context: keys(publish),
            pod_info: pod_info.map(|(k, v)| (k.clone(), v.clone())).collect(),
            ..self
        }
    }

    pub(super) fn capability(mut self, capability: Option<&VolumeCapability>) -> Self {
        let Some(capability) = capability else {
            return self;
        };
        self.access_mode = capability.access_mode.as_ref().map(|mode| mode.mode());
        match &capability.access_type {
            Some(AccessType::Block(_)) => self.is_block = true,
            Some(AccessType::Mount(mount)) => {
                self.fs_type = mount.fs_type.clone();
                self.mount_flags = mount.mount_flags.clone();
                self.mount_group = mount.volume_mount_group.clone();
            }
            None => {}
        }
        self
    }
}

fn keys(map: &BTreeMap<String, String>) -> Vec<String> {
    map.keys().cloned().collect()
}

/// All calls in order, and what violated the specification.
#[derive(Clone, Default)]
pub(crate) struct Journal {
    entries: watch::Sender<Vec<JournalEntry>>,
    violations: Arc<Mutex<Vec<String>>>,
    /// A line for each call that has ended, with the microseconds of its start and its end, and for each violation.
    file: Option<Arc<File>>,
}

impl Journal {
    /// Begins the lines of a kept journal that are no calls.
    pub(crate) const VIOLATION: &str = "violation: ";

    /// A journal that is written to a file as well, behind what is there.
    pub(super) fn kept_in(path: &Path) -> Self {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = File::options().create(true).append(true).open(path);
        Self { file: Some(Arc::new(file.unwrap())), ..Self::default() }
    }

    fn write(&self, line: &str) {
        if let Some(mut file) = self.file.as_deref() {
            file.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
    }

    pub(super) fn begin(&self, entry: JournalEntry) -> usize {
        let mut number = 0;
        self.entries.send_modify(|entries| {
            number = entries.len();
            entries.push(entry);
        });
        number
    }

    pub(super) fn end(&self, number: usize, code: Code) {
        self.entries.send_modify(|entries| {
            let entry = &mut entries[number];
            entry.code = Some(code);
            let JournalEntry { method, began, volume, staging_path, target_path, .. } = entry;
            let (began, ended) = (began.as_microsecond(), clock::timestamp().as_microsecond());
            self.write(&format!(
                "{method} {volume} {staging_path} {target_path} {began} {ended} {code:?}"
            ));
        });
    }

    pub(super) fn violation(&self, text: String) {
        self.write(&format!("{}{text}", Self::VIOLATION));
        self.violations.lock().unwrap().push(text);
    }

    /// All calls.
    pub(crate) fn entries(&self) -> Vec<JournalEntry> {
        self.entries.borrow().clone()
    }

    /// The calls of a method.
    pub(crate) fn of(&self, method: &str) -> Vec<JournalEntry> {
        let mut entries = self.entries();
        entries.retain(|entry| entry.method == method);
        entries
    }

    /// The calls that concern volumes: `NodeStageVolume vol-1`.
    pub(crate) fn calls(&self) -> Vec<String> {
        let entries = self.entries();
        let of_volumes = entries.iter().filter(|entry| !entry.volume.is_empty());
        let call = |entry: &JournalEntry| format!("{} {}", entry.method, entry.volume);
        of_volumes.map(call).collect()
    }

    /// Calls that the specification forbids.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap().clone()
    }

    /// Waits until a method has been called this many times.
    pub(crate) async fn called(&self, method: &str, times: usize) {
        let arrived = async {
            while self.of(method).len() < times {
                sleep(Duration::from_millis(2)).await;
            }
        };
        let arrived = timeout(LIMIT, arrived).await;
        arrived.unwrap_or_else(|_| panic!("{times} calls of {method}: {:?}", self.calls()));
    }
}
