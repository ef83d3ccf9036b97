//! The API objects that volumes need besides configmaps and secrets, and the lookup of all inputs of one volume.

use super::csi::inputs::CsiSources;
use crate::apiserver::claim::{ApiPersistentVolumeClaims, FoundClaims, PersistentVolumeClaimKey};
use crate::apiserver::configmap_secret::{
    ConfigMapsAndSecrets, ObjectKey, PodConfigMapSecretReader,
};
use crate::apiserver::pod_certificate::{FoundCertificates, PodCertificateKey, PodCertificates};
use crate::apiserver::token::{FoundTokens, TokenKey, Tokens};
use crate::apiserver::trust_bundle::{FoundBundles, TrustBundles};
use crate::model::PodUid;
use futures::future::OptionFuture;
use k8s_openapi::api::core::v1::Node;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::watch;

/// What volumes need from the API server besides configmaps and secrets.
pub struct ClusterSources {
    /// Tokens of service accounts (upstream's token manager).
    pub tokens: Tokens,
    /// ClusterTrustBundles.
    pub bundles: TrustBundles,
    /// Certificates of `podCertificate` sources.
    pub certificates: PodCertificates,
    /// The claims and their PersistentVolumes.
    pub claims: ApiPersistentVolumeClaims,
    /// The Node object, whose labels are matched with the node affinity of PersistentVolumes.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// What volumes of CSI drivers need.
    pub csi: CsiSources,
}

/// The keys of everything that volumes refer to.
#[derive(Default, PartialEq)]
pub(super) struct VolumeKeys {
    pub(super) configmaps_and_secrets: BTreeSet<ObjectKey>,
    pub(super) tokens: BTreeSet<TokenKey>,
    pub(super) certificates: BTreeSet<PodCertificateKey>,
    pub(super) claims: BTreeSet<PersistentVolumeClaimKey>,
    pub(super) has_bundles: bool,
}

/// What was looked up for a volume.
#[derive(Clone, Debug, Default)]
pub(super) struct VolumeInputs {
    pub(super) configmaps_and_secrets: ConfigMapsAndSecrets,
    pub(super) tokens: FoundTokens,
    pub(super) certificates: FoundCertificates,
    pub(super) claims: FoundClaims,
    /// `None` if no source needs bundles.
    pub(super) bundles: Option<FoundBundles>,
    /// The Node object.
    pub(super) node: Option<Arc<Node>>,
}

impl ClusterSources {
    /// Registers what a pod uses, replacing what it used before.
    pub(super) fn register(&self, uid: &PodUid, keys: VolumeKeys) {
        self.tokens.register(uid, keys.tokens);
        self.certificates.register(uid, keys.certificates);
        self.claims.register(uid, keys.claims);
        self.bundles.register(uid, keys.has_bundles);
    }

    pub(super) fn forget(&self, uid: &PodUid) {
        self.tokens.forget(uid);
        self.certificates.forget(uid);
        self.claims.forget(uid);
        self.bundles.forget(uid);
    }

    /// Looks up all inputs of a volume concurrently, except for immutable configmaps and secrets that it has already.
    pub(super) async fn inputs(
        &self,
        uid: &PodUid,
        configmaps_and_secrets: &PodConfigMapSecretReader,
        mut keys: VolumeKeys,
        immutable: Option<&ConfigMapsAndSecrets>,
    ) -> VolumeInputs {
        let is_known = |key: &ObjectKey| immutable.is_some_and(|known| known.contains_key(key));
        keys.configmaps_and_secrets.retain(|key| !is_known(key));
        let bundles = keys.has_bundles.then(|| self.bundles.get());
        let bundles = OptionFuture::from(bundles);
        let configmaps_and_secrets = configmaps_and_secrets.get(keys.configmaps_and_secrets);
        let tokens = self.tokens.get(keys.tokens);
        let certificates = self.certificates.get(keys.certificates);
        let claims = self.claims.get(uid, keys.claims);
        let (mut configmaps_and_secrets, tokens, certificates, claims, bundles) =
            tokio::join!(configmaps_and_secrets, tokens, certificates, claims, bundles);
        let immutable = immutable.into_iter().flatten();
        configmaps_and_secrets.extend(immutable.map(|(key, found)| (key.clone(), found.clone())));
        VolumeInputs {
            configmaps_and_secrets,
            tokens,
            certificates,
            claims,
            bundles,
            node: self.node.borrow().clone(),
        }
    }
}
