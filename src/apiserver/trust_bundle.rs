//! ClusterTrustBundles for projected volumes.
//!
//! * Owns: one watch of all bundles, while a pod on the node mounts one.
//! * Woken by: its callers and by the watch.
//! * Publishes: the set of pods that mount bundles, when bundles change.
//! * Must never treat a failed request as a missing bundle.
//! * Upstream: `pkg/kubelet/clustertrustbundle`.

use super::subscriptions::{NoValue, Publisher, Subscriptions};
use super::{ApiError, ApiItem, ApiServer, Selection, WatchEvent, pem};
use crate::base::{DirtySet, error_chain};
use crate::model::PodUid;
use bytes::Bytes;
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::ClusterTrustBundleProjection;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Why trust anchors are not available; upstream's texts where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustBundleError {
    /// There is no API server.
    #[error("ClusterTrustBundle projection is not supported in static kubelet mode")]
    Standalone,
    /// The bundles have not been listed yet.
    #[error("ClusterTrustBundle informer has not yet synced: {0}")]
    Unsynced(String),
    /// No bundle has this name.
    #[error(
        "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {0:?} not found"
    )]
    NotFound(String),
    /// No bundle of the signer matches the label selector.
    #[error("combination of signerName and labelSelector matched zero ClusterTrustBundles")]
    NoMatch,
    /// The label selector is invalid.
    #[error("while parsing label selector: {0}")]
    Selector(String),
    /// The source has neither a name nor a signer name.
    #[error("ClusterTrustBundle projection requires either name or signerName to be set")]
    NoSource,
}

/// Selects bundles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleChoice {
    /// The bundle with this name.
    Name(String),
    /// All bundles of one signer that match a label selector.
    Signer {
        /// The signer name.
        signer: String,
        /// The label selector; `None` matches no bundle.
        selector: Option<Selector>,
    },
}

impl BundleChoice {
    /// The selection of a projected volume source.
    ///
    /// # Errors
    /// It selects nothing, or its label selector has an unknown operator.
    pub fn of(source: &ClusterTrustBundleProjection) -> Result<Self, TrustBundleError> {
        if let Some(name) = &source.name {
            return Ok(Self::Name(name.clone()));
        }
        let signer = source.signer_name.clone();
        let signer = signer.ok_or(TrustBundleError::NoSource)?;
        let parse = |selector: LabelSelector| {
            Selector::try_from(selector)
                .map_err(|error| TrustBundleError::Selector(error.to_string()))
        };
        let selector = source.label_selector.clone().map(parse).transpose()?;
        Ok(Self::Signer { signer, selector })
    }
}

/// A bundle, reduced to the fields that volumes need.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bundle {
    signer: String,
    labels: BTreeMap<String, String>,
    certificates: BTreeSet<Bytes>,
}

impl From<ClusterTrustBundle> for Bundle {
    fn from(bundle: ClusterTrustBundle) -> Self {
        let blocks = CertificateDer::pem_slice_iter(bundle.spec.trust_bundle.as_bytes());
        // Malformed blocks are skipped, as upstream does.
        let certificates = blocks.flatten().map(|der| Bytes::copy_from_slice(&der));
        Self {
            signer: bundle.spec.signer_name.unwrap_or_default(),
            labels: bundle.metadata.labels.unwrap_or_default(),
            certificates: certificates.collect(),
        }
    }
}

/// All bundles of the cluster, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundles(BTreeMap<String, Arc<Bundle>>);

impl Bundles {
    /// The trust anchors of the selected bundles as PEM, without duplicates and in byte order. Empty if nothing is
    /// found and the source is optional.
    ///
    /// # Errors
    /// No bundle was found.
    pub fn trust_anchors(
        &self,
        choice: &BundleChoice,
        optional: bool,
    ) -> Result<Bytes, TrustBundleError> {
        let (chosen, missing): (Vec<&Bundle>, _) = match choice {
            BundleChoice::Name(name) => {
                let found = self.0.get(name).map(AsRef::as_ref);
                let missing = TrustBundleError::NotFound(name.clone());
                (found.into_iter().collect(), missing)
            }
            BundleChoice::Signer { signer, selector } => {
                let is_chosen = |bundle: &&Bundle| {
                    let selector = selector.as_ref();
                    bundle.signer == *signer
                        && selector.is_some_and(|it| it.matches(&bundle.labels))
                };
                let all = self.0.values().map(AsRef::as_ref);
                (all.filter(is_chosen).collect(), TrustBundleError::NoMatch)
            }
        };
        if chosen.is_empty() && !optional {
            return Err(missing);
        }
        let certificates = chosen.into_iter().flat_map(|bundle| &bundle.certificates);
        let certificates: BTreeSet<&Bytes> = certificates.collect();
        let mut text = String::new();
        for certificate in certificates {
            pem::add_block("CERTIFICATE", certificate, &mut text);
        }
        Ok(text.into())
    }

    fn apply(&mut self, event: WatchEvent<ClusterTrustBundle>) {
        match event {
            WatchEvent::Listed(items) => {
                let names: BTreeSet<String> = items.iter().map(name).collect();
                self.0.retain(|name, _| names.contains(name));
                for item in items {
                    self.put(item);
                }
            }
            WatchEvent::Applied(item) => self.put(item),
            WatchEvent::Deleted(item) => drop(self.0.remove(&name(&item))),
            WatchEvent::Failed(_) => {}
        }
    }

    /// Adds or replaces a bundle. One that cannot be decoded keeps its last state, because it still exists.
    fn put(&mut self, item: ApiItem<ClusterTrustBundle>) {
        let name = name(&item);
        if let Ok(bundle) = item {
            self.0.insert(name, Arc::new((*bundle).into()));
        }
    }
}

fn name(item: &ApiItem<ClusterTrustBundle>) -> String {
    let metadata = match item {
        Ok(bundle) => &bundle.metadata,
        Err(unreadable) => &unreadable.metadata,
    };
    metadata.name.clone().unwrap_or_default()
}

/// The known bundles, or why there are none.
pub type FoundBundles = Result<Arc<Bundles>, TrustBundleError>;

/// The bundles that pods mount. Cheap to clone.
#[derive(Clone, Default)]
pub struct TrustBundles(
    /// A single value with all bundles.
    Subscriptions<ApiServer, (), FoundBundles>,
);

impl From<NoValue> for TrustBundleError {
    fn from(none: NoValue) -> Self {
        none.why().map_or(Self::Standalone, Self::Unsynced)
    }
}

impl TrustBundles {
    /// Reads from this API server; with `None` every request fails. Pods that mount bundles are marked in `changed`
    /// when bundles change.
    pub fn new(api: Option<ApiServer>, changed: Arc<DirtySet<PodUid>>) -> Self {
        Self(Subscriptions::new(api, changed))
    }

    /// Sets whether a pod mounts bundles.
    pub fn register(&self, uid: &PodUid, mounts: bool) {
        let keys = mounts.then_some(()).into_iter().collect();
        let follow = |api, (), publisher| async move { follow(&api, &publisher).await };
        self.0.register(uid, keys, follow);
    }

    /// Removes a pod.
    pub fn forget(&self, uid: &PodUid) {
        self.0.forget(uid);
    }

    /// Returns the bundles. Waits a bounded time for the first list; only for registered pods.
    pub async fn get(&self) -> FoundBundles {
        let found = self.0.results(BTreeSet::from([()])).await.remove(&());
        found.unwrap_or_else(|| Err(NoValue::NotRegistered.into()))
    }
}

/// Publishes all bundles and their changes, forever.
async fn follow(api: &ApiServer, publisher: &Publisher<FoundBundles>) {
    let mut watch = api.list_watch::<ClusterTrustBundle>(Selection::default());
    let mut bundles = Bundles::default();
    loop {
        match watch.next().await {
            WatchEvent::Failed(error) => {
                let why = reason(&error);
                if publisher.failed(why.clone()) && !api.is_reported(&error) {
                    tracing::warn!(err = why, "Failed to watch ClusterTrustBundles");
                }
            }
            event => {
                bundles.apply(event);
                publisher.publish(Ok(Arc::new(bundles.clone())));
            }
        }
    }
}

fn reason(error: &ApiError) -> String {
    if error.is_not_served() {
        "the API server does not serve clustertrustbundles of certificates.k8s.io/v1beta1".into()
    } else {
        error_chain(error)
    }
}

#[cfg(test)]
mod tests;
