//! CSIDriver objects: how the volumes of each driver are attached and mounted.
//!
//! * Owns: one watch of all CSIDriver objects, from the first use on, reduced to the fields that volumes need.
//! * Woken by: the watch.
//! * Publishes: the objects, whenever one changes.
//! * Must never treat a failed request, or an object that cannot be decoded, as a missing object: a missing one means
//!   that volumes are attached.
//! * Upstream: the `CSIDriverLister` of `pkg/volume/csi`.

use super::{ApiError, ApiItem, ApiServer, Selection, WatchEvent};
use crate::base::error_chain;
use k8s_openapi::api::storage::v1::CSIDriver;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long a lookup waits for the first list.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum of `nodeAllocatableUpdatePeriodSeconds`.
const MIN_UPDATE_PERIOD: Duration = Duration::from_secs(10);

/// When the ownership of a volume's files is changed to the pod's `fsGroup`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsGroupPolicy {
    /// If the volume has a file system type and is mounted by one node for writing.
    #[default]
    ReadWriteOnceWithFsType,
    /// Always.
    File,
    /// Never.
    None,
}

/// A service account token that a driver receives with each publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverTokenRequest {
    /// The audience; empty for the API server.
    pub audience: String,
    /// The lifetime; `None` for the default.
    pub expiration_seconds: Option<i64>,
}

/// A CSIDriver object, reduced to the fields that volumes need. The default is what holds without an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiDriver {
    /// Whether volumes are attached before they are mounted.
    pub attach_required: bool,
    /// Whether the volume context has facts about the pod.
    pub pod_info_on_mount: bool,
    /// When the ownership of files is changed.
    pub fs_group_policy: FsGroupPolicy,
    /// The tokens that the driver receives.
    pub token_requests: Vec<DriverTokenRequest>,
    /// Whether volumes are published again from time to time.
    pub requires_republish: bool,
    /// Whether volumes of claims are supported.
    pub is_persistent: bool,
    /// Whether inline volumes are supported.
    pub is_ephemeral: bool,
    /// How often the maximum number of volumes is read from the driver; `None` for once per registration.
    pub node_allocatable_update_period: Option<Duration>,
    /// Whether volumes are mounted with an SELinux context.
    pub se_linux_mount: bool,
    /// Whether tokens are sent as secrets instead of in the volume context.
    pub service_account_token_in_secrets: bool,
}

impl Default for CsiDriver {
    fn default() -> Self {
        Self {
            attach_required: true,
            pod_info_on_mount: false,
            fs_group_policy: FsGroupPolicy::default(),
            token_requests: Vec::new(),
            requires_republish: false,
            is_persistent: true,
            is_ephemeral: false,
            node_allocatable_update_period: None,
            se_linux_mount: false,
            service_account_token_in_secrets: false,
        }
    }
}

impl From<CSIDriver> for CsiDriver {
    fn from(driver: CSIDriver) -> Self {
        let spec = driver.spec;
        let modes = spec.volume_lifecycle_modes.unwrap_or_default();
        let has_mode = |mode: &str| modes.iter().any(|given| given == mode);
        let requests = spec.token_requests.unwrap_or_default().into_iter();
        let period = spec.node_allocatable_update_period_seconds;
        let period = period.and_then(|seconds| u64::try_from(seconds).ok());
        let period = period.filter(|seconds| *seconds > 0).map(Duration::from_secs);
        Self {
            attach_required: spec.attach_required.unwrap_or(true),
            pod_info_on_mount: spec.pod_info_on_mount.unwrap_or_default(),
            fs_group_policy: match spec.fs_group_policy.as_deref() {
                Some("File") => FsGroupPolicy::File,
                Some("None") => FsGroupPolicy::None,
                _ => FsGroupPolicy::ReadWriteOnceWithFsType,
            },
            token_requests: requests
                .map(|request| DriverTokenRequest {
                    audience: request.audience,
                    expiration_seconds: request.expiration_seconds,
                })
                .collect(),
            requires_republish: spec.requires_republish.unwrap_or_default(),
            is_persistent: modes.is_empty() || has_mode("Persistent"),
            is_ephemeral: has_mode("Ephemeral"),
            node_allocatable_update_period: period.map(|it| it.max(MIN_UPDATE_PERIOD)),
            se_linux_mount: spec.se_linux_mount.unwrap_or_default(),
            service_account_token_in_secrets: spec
                .service_account_token_in_secrets
                .unwrap_or_default(),
        }
    }
}

/// Why it is unknown what the CSIDriver object of a driver says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsiDriverError {
    /// There is no API server.
    #[error("failed to get a kubernetes client")]
    Standalone,
    /// The objects have not been listed yet.
    #[error("the CSIDriver objects have not yet been read: {0}")]
    Unsynced(String),
    /// The object has never been decoded.
    #[error("failed to decode CSIDriver {name}: {why}")]
    Unreadable {
        /// The driver's name.
        name: String,
        /// The error.
        why: String,
    },
}

/// All CSIDriver objects by name, each with the error if it has never been decoded.
pub type ListedCsiDrivers = Arc<BTreeMap<String, Result<Arc<CsiDriver>, String>>>;

/// The CSIDriver objects of the cluster. Cheap to clone; the default is without an API server.
#[derive(Clone, Default)]
pub struct CsiDriverLister(Arc<CsiDriverCache>);

#[derive(Default)]
struct CsiDriverCache {
    api: Option<ApiServer>,
    is_used: watch::Sender<bool>,
    /// `None` until they have been listed.
    drivers: watch::Sender<Option<ListedCsiDrivers>>,
    /// Why they have not been listed.
    failure: Mutex<Option<String>>,
}

impl CsiDriverLister {
    /// Reads from this API server; with `None` every lookup fails.
    pub fn new(api: Option<ApiServer>) -> Self {
        Self(Arc::new(CsiDriverCache { api, ..CsiDriverCache::default() }))
    }

    /// Watches the objects from the first use until shutdown.
    ///
    /// # Errors
    /// Never fails.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let cache = &self.0;
        let follow = async {
            let mut is_used = cache.is_used.subscribe();
            let started = is_used.wait_for(|is_used| *is_used).await.is_ok();
            match &cache.api {
                Some(api) if started => cache.follow(api).await,
                _ => std::future::pending().await,
            }
        };
        shutdown.run_until_cancelled(follow).await;
        Ok(())
    }

    /// Starts the watch, before the first lookup.
    pub fn start(&self) {
        self.0.is_used.send_if_modified(|is_used| !std::mem::replace(is_used, true));
    }

    /// The object of a driver; `None` if it does not exist. Starts the watch, and waits a bounded time for the first
    /// list.
    ///
    /// # Errors
    /// It is unknown what the object says, or whether it exists.
    pub async fn get(&self, driver: &str) -> Result<Option<Arc<CsiDriver>>, CsiDriverError> {
        self.start();
        if self.0.api.is_some() {
            let mut drivers = self.0.drivers.subscribe();
            let listed = drivers.wait_for(Option::is_some);
            let _ = timeout(TIMEOUT, listed).await.is_ok();
        }
        self.get_now(driver)
    }

    /// Like [`Self::get`], without waiting for the first list or starting the watch.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn get_now(&self, driver: &str) -> Result<Option<Arc<CsiDriver>>, CsiDriverError> {
        if self.0.api.is_none() {
            return Err(CsiDriverError::Standalone);
        }
        let drivers = self.0.drivers.borrow().clone();
        let Some(drivers) = drivers else {
            let why = self.0.failure.lock().clone();
            let why = why.unwrap_or_else(|| "the API server has not responded yet".to_owned());
            return Err(CsiDriverError::Unsynced(why));
        };
        let found = drivers.get(driver).cloned().transpose();
        found.map_err(|why| CsiDriverError::Unreadable { name: driver.to_owned(), why })
    }

    /// Notifies of the objects; `None` until they have been listed.
    pub fn changes(&self) -> watch::Receiver<Option<ListedCsiDrivers>> {
        self.0.drivers.subscribe()
    }
}

impl CsiDriverCache {
    /// Publishes all objects and their changes, forever.
    async fn follow(&self, api: &ApiServer) {
        let mut watch = api.list_watch::<CSIDriver>(Selection::default());
        let mut known = BTreeMap::new();
        loop {
            let event = watch.next().await;
            if let WatchEvent::Failed(error) = &event {
                let why = reason(error);
                let last = self.failure.lock().replace(why.clone());
                if last.as_ref() != Some(&why) && !api.is_reported(error) {
                    tracing::warn!(err = why, "Failed to watch CSIDriver objects");
                }
                continue;
            }
            *self.failure.lock() = None;
            apply(&mut known, event);
            self.drivers.send_if_modified(|listed| {
                let changed = listed.as_deref() != Some(&known);
                if changed {
                    *listed = Some(Arc::new(known.clone()));
                }
                changed
            });
        }
    }
}

type KnownCsiDrivers = BTreeMap<String, Result<Arc<CsiDriver>, String>>;

fn apply(known: &mut KnownCsiDrivers, event: WatchEvent<CSIDriver>) {
    match event {
        WatchEvent::Listed(items) => {
            let names: BTreeSet<String> = items.iter().map(name).collect();
            known.retain(|name, _| names.contains(name));
            for item in items {
                put(known, item);
            }
        }
        WatchEvent::Applied(item) => put(known, item),
        WatchEvent::Deleted(item) => drop(known.remove(&name(&item))),
        WatchEvent::Failed(_) => {}
    }
}

/// Adds or replaces an object. One that cannot be decoded keeps its last state, because it still exists.
fn put(known: &mut KnownCsiDrivers, item: ApiItem<CSIDriver>) {
    let name = name(&item);
    match item {
        Ok(driver) => drop(known.insert(name, Ok(Arc::new((*driver).into())))),
        Err(unreadable) => {
            tracing::warn!(driverName = name, err = unreadable.why, "Failed to decode CSIDriver");
            let last = known.entry(name).or_insert_with(|| Err(String::new()));
            if let Err(why) = last {
                *why = unreadable.why;
            }
        }
    }
}

fn name(item: &ApiItem<CSIDriver>) -> String {
    let metadata = match item {
        Ok(driver) => &driver.metadata,
        Err(unreadable) => &unreadable.metadata,
    };
    metadata.name.clone().unwrap_or_default()
}

fn reason(error: &ApiError) -> String {
    if error.is_not_served() {
        "the API server does not serve csidrivers of storage.k8s.io/v1".into()
    } else {
        error_chain(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::Unreadable;
    use crate::apiserver::tests::stored::{Mode, Stored};
    use serde_json::{Value, json};

    fn item(name: &str, spec: Value) -> ApiItem<CSIDriver> {
        let object = json!({"metadata": {"name": name}, "spec": spec});
        Ok(Box::new(serde_json::from_value(object).unwrap()))
    }

    fn reduced(spec: Value) -> CsiDriver {
        (*item("d", spec).unwrap()).into()
    }

    #[test]
    fn absent_fields_mean_what_holds_without_an_object() {
        assert_eq!(reduced(json!({})), CsiDriver::default());
        let spec = json!({"attachRequired": null, "fsGroupPolicy": "Other",
            "volumeLifecycleModes": [], "nodeAllocatableUpdatePeriodSeconds": 0});
        assert_eq!(reduced(spec), CsiDriver::default());
    }

    #[test]
    fn every_field_is_read() {
        let spec = json!({
            "attachRequired": false, "podInfoOnMount": true, "fsGroupPolicy": "File",
            "tokenRequests": [{"audience": "vault", "expirationSeconds": 600}, {"audience": ""}],
            "requiresRepublish": true, "volumeLifecycleModes": ["Ephemeral"],
            "nodeAllocatableUpdatePeriodSeconds": 30, "seLinuxMount": true,
            "serviceAccountTokenInSecrets": true,
        });
        let request = |audience: &str, expiration_seconds| DriverTokenRequest {
            audience: audience.into(),
            expiration_seconds,
        };
        let expected = CsiDriver {
            attach_required: false,
            pod_info_on_mount: true,
            fs_group_policy: FsGroupPolicy::File,
            token_requests: vec![request("vault", Some(600)), request("", None)],
            requires_republish: true,
            is_persistent: false,
            is_ephemeral: true,
            node_allocatable_update_period: Some(Duration::from_secs(30)),
            se_linux_mount: true,
            service_account_token_in_secrets: true,
        };
        assert_eq!(reduced(spec), expected);
        let period = |seconds: i64| {
            let spec = json!({"nodeAllocatableUpdatePeriodSeconds": seconds});
            reduced(spec).node_allocatable_update_period
        };
        assert_eq!(period(1), Some(MIN_UPDATE_PERIOD));
        assert_eq!(period(-1), None);
        assert_eq!(reduced(json!({"fsGroupPolicy": "None"})).fs_group_policy, FsGroupPolicy::None);
    }

    #[test]
    fn an_object_that_cannot_be_decoded_keeps_its_last_state_and_is_never_a_missing_one() {
        let unreadable = |name: &str| {
            let metadata = serde_json::from_value(json!({"name": name})).unwrap();
            let why = "invalid".to_owned();
            Err(Unreadable { metadata, why })
        };
        let mut known = BTreeMap::new();
        let listed = vec![item("a", json!({"attachRequired": false})), unreadable("b")];
        apply(&mut known, WatchEvent::Listed(listed));
        apply(&mut known, WatchEvent::Applied(unreadable("a")));
        assert!(!known["a"].as_ref().unwrap().attach_required);
        assert_eq!(known["b"], Err("invalid".to_owned()));
        apply(&mut known, WatchEvent::Applied(item("b", json!({}))));
        assert!(known["b"].is_ok());
        apply(&mut known, WatchEvent::Listed(vec![unreadable("a")]));
        assert_eq!(known.keys().collect::<Vec<_>>(), ["a"]);
        apply(&mut known, WatchEvent::Deleted(unreadable("a")));
        assert!(known.is_empty());
    }

    #[tokio::test]
    async fn objects_are_watched_from_the_first_use_on_and_are_unknown_until_they_are_listed() {
        let server = Stored::start().await;
        server.set(Mode::Refusing(503));
        let lister = CsiDriverLister::new(Some(server.client().await));
        let task = tokio::spawn(lister.clone().run(CancellationToken::new()));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(server.requests(), 0);
        let unknown = lister.get("d").await;
        assert!(matches!(unknown, Err(CsiDriverError::Unsynced(_))), "{unknown:?}");
        server.set(Mode::Serving);
        let mut changes = lister.changes();
        let wait = Duration::from_secs(20);
        let listed = timeout(wait, changes.wait_for(Option::is_some)).await;
        assert!(listed.unwrap().is_ok());
        assert_eq!(lister.get("d").await, Ok(None));
        server.put("csidrivers", "", "d", json!({"spec": {"podInfoOnMount": true}}));
        timeout(wait, changes.changed()).await.unwrap().unwrap();
        let found = lister.get("d").await.unwrap().unwrap();
        assert!(found.pod_info_on_mount && found.attach_required);
        server.delete("csidrivers", "", "d");
        timeout(wait, changes.changed()).await.unwrap().unwrap();
        assert_eq!(lister.get_now("d"), Ok(None));
        task.abort();
        let standalone = CsiDriverLister::default().get("d").await;
        assert_eq!(standalone, Err(CsiDriverError::Standalone));
    }
}
