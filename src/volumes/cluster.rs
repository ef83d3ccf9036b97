//! The API objects that volumes need besides configmaps and secrets, and the lookup of all inputs of one volume.

use super::{
    content::{VolumeFileSource, VolumeInputs},
    csi::inputs::CsiSources,
    plan::{PlannedVolume, VolumeKind},
};
use crate::{
    apiserver::{
        claim::{ApiPersistentVolumeClaims, PersistentVolumeClaimKey},
        configmap_secret::{ConfigMapsAndSecrets, ObjectKey, PodConfigMapSecretReader},
        pod_certificate::{PodCertificateKey, PodCertificates},
        token::{TokenKey, Tokens},
        trust_bundle::TrustBundles,
    },
    model::PodUid,
};
use k8s_openapi::api::core::v1::Node;
use std::{collections::BTreeSet, sync::Arc};
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
#[derive(Default)]
pub(super) struct VolumeKeys {
    configmaps_and_secrets: BTreeSet<ObjectKey>,
    tokens: BTreeSet<TokenKey>,
    certificates: BTreeSet<PodCertificateKey>,
    claims: BTreeSet<PersistentVolumeClaimKey>,
    has_bundles: bool,
}

impl VolumeKeys {
    pub(super) fn of(plan: &[PlannedVolume]) -> Self {
        let mut keys = Self::default();
        for volume in plan {
            match &volume.kind {
                VolumeKind::Claim(claim) => {
                    keys.claims.insert(claim.key.clone());
                }
                VolumeKind::Content(content) => {
                    content.sources.iter().for_each(|source| keys.add(source));
                }
                VolumeKind::EmptyDir { .. }
                | VolumeKind::HostPath { .. }
                | VolumeKind::Csi(_)
                | VolumeKind::Unsupported(_) => {}
            }
        }
        keys
    }

    fn add(&mut self, source: &VolumeFileSource) {
        match source {
            VolumeFileSource::Pod(_) => {}
            VolumeFileSource::Object(object) => {
                self.configmaps_and_secrets.insert(object.key.clone());
            }
            VolumeFileSource::Token(token) => {
                self.tokens.insert(token.key.clone());
            }
            VolumeFileSource::Certificate(certificate) => {
                self.certificates.insert(certificate.key.clone());
            }
            VolumeFileSource::Bundle(_) => self.has_bundles = true,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let Self {
            configmaps_and_secrets,
            tokens,
            certificates,
            claims,
            has_bundles,
        } = self;
        let no_tokens = tokens.is_empty() && certificates.is_empty();
        configmaps_and_secrets.is_empty() && no_tokens && claims.is_empty() && !has_bundles
    }
}

impl ClusterSources {
    /// Registers what a pod uses, replacing what it used before.
    pub(super) fn register(&self, uid: &PodUid, plan: &[PlannedVolume]) {
        let keys = VolumeKeys::of(plan);
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
        let bundles = async {
            if keys.has_bundles {
                Some(self.bundles.get().await)
            } else {
                None
            }
        };
        let configmaps_and_secrets = configmaps_and_secrets.get(keys.configmaps_and_secrets);
        let tokens = self.tokens.get(keys.tokens);
        let certificates = self.certificates.get(keys.certificates);
        let claims = self.claims.get(uid, keys.claims);
        let (mut configmaps_and_secrets, tokens, certificates, claims, bundles) = tokio::join!(
            configmaps_and_secrets,
            tokens,
            certificates,
            claims,
            bundles
        );
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
