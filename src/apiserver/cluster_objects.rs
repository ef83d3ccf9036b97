//! The objects of the API server that pods refer to.

use super::{
    ApiServer, claim::ApiPersistentVolumeClaims, configmap_secret::Objects,
    runtime_class::RuntimeClasses, service::Services, token::Tokens, trust_bundle::TrustBundles,
};
use crate::base::Tasks;
use std::path::PathBuf;

/// Readers of such objects; cheap to clone. On a standalone node there are none but the local ConfigMaps and Secrets.
#[derive(Clone)]
pub struct ClusterObjects {
    /// ConfigMaps and Secrets, those of files included.
    pub objects: Objects,
    /// Services, for the variables of containers.
    pub services: Services,
    /// Runtime classes, for the handlers of pods.
    pub runtime_classes: RuntimeClasses,
    /// Tokens of service accounts.
    pub tokens: Tokens,
    /// Bundles of trust anchors.
    pub bundles: TrustBundles,
    /// Claims of volumes.
    pub claims: ApiPersistentVolumeClaims,
    in_cluster: bool,
}

impl ClusterObjects {
    /// The readers; nothing is read yet. `local` is the directory of local ConfigMaps and Secrets.
    pub fn new(local: Option<PathBuf>, api: Option<ApiServer>) -> Self {
        let objects = Objects::new(local, api.clone());
        Self {
            in_cluster: api.is_some(),
            services: Services::new(api.clone(), objects.changes()),
            runtime_classes: RuntimeClasses::new(api.clone(), objects.changes()),
            tokens: Tokens::new(api.clone(), objects.changes()),
            bundles: TrustBundles::new(api.clone(), objects.changes()),
            claims: ApiPersistentVolumeClaims::new(api, objects.changes()),
            objects,
        }
    }

    /// Starts the tasks that watch Services and RuntimeClasses; the others are watched while a pod refers to them.
    /// `known_services` is the file with the Services that an earlier kubelet saw.
    pub fn start(&self, known_services: PathBuf, tasks: &mut Tasks) {
        if !self.in_cluster {
            return;
        }
        let services = self.services.clone();
        tasks.spawn("services", services.run(known_services, tasks.shutdown()));
        let classes = self.runtime_classes.clone();
        tasks.spawn("runtime_classes", classes.run(tasks.shutdown()));
    }
}
