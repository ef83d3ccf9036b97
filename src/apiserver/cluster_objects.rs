//! Readers for the API objects that pods refer to.

use super::ApiServer;
use super::claim::ApiPersistentVolumeClaims;
use super::configmap_secret::ConfigMapSecretReader;
use super::csi_driver::CsiDriverLister;
use super::runtime_class::RuntimeClasses;
use super::service::Services;
use super::token::Tokens;
use super::trust_bundle::TrustBundles;
use super::volume_attachment::VolumeAttachments;
use crate::base::Tasks;
use std::path::PathBuf;

/// Readers for the API objects that pods refer to; cheap to clone. In standalone mode only local ConfigMaps and Secrets
/// are available.
#[derive(Clone)]
pub struct ClusterObjects {
    /// ConfigMaps and Secrets, those from local files included.
    pub configmaps_and_secrets: ConfigMapSecretReader,
    /// Services, for service environment variables.
    pub services: Services,
    /// RuntimeClasses, for the runtime handlers of pods.
    pub runtime_classes: RuntimeClasses,
    /// Service account tokens.
    pub tokens: Tokens,
    /// ClusterTrustBundles.
    pub bundles: TrustBundles,
    /// PersistentVolumeClaims.
    pub claims: ApiPersistentVolumeClaims,
    /// CSIDriver objects.
    pub csi_drivers: CsiDriverLister,
    /// VolumeAttachments.
    pub volume_attachments: VolumeAttachments,
    has_api_server: bool,
}

impl ClusterObjects {
    /// Builds the readers, without sending requests. `local` is the directory of local ConfigMaps and Secrets.
    pub fn new(local: Option<PathBuf>, api: Option<ApiServer>) -> Self {
        let configmaps_and_secrets = ConfigMapSecretReader::new(local, api.clone());
        let pods_to_sync = configmaps_and_secrets.pods_to_sync();
        Self {
            has_api_server: api.is_some(),
            services: Services::new(api.clone(), pods_to_sync.clone()),
            runtime_classes: RuntimeClasses::new(api.clone(), pods_to_sync.clone()),
            tokens: Tokens::new(api.clone(), pods_to_sync.clone()),
            bundles: TrustBundles::new(api.clone(), pods_to_sync.clone()),
            csi_drivers: CsiDriverLister::new(api.clone()),
            volume_attachments: VolumeAttachments::new(api.clone()),
            claims: ApiPersistentVolumeClaims::new(api, pods_to_sync),
            configmaps_and_secrets,
        }
    }

    /// Starts the tasks that watch Services, RuntimeClasses and, from the first use on, CSIDrivers; other objects are
    /// watched while a pod refers to them.
    /// `known_services` is the file with the Services that an earlier kubelet saw.
    pub fn start(&self, known_services: PathBuf, tasks: &mut Tasks) {
        if !self.has_api_server {
            return;
        }
        let services = self.services.clone();
        tasks.spawn("services", services.run(known_services, tasks.shutdown()));
        let classes = self.runtime_classes.clone();
        tasks.spawn("runtime_classes", classes.run(tasks.shutdown()));
        let drivers = self.csi_drivers.clone();
        tasks.spawn("csi_drivers", drivers.run(tasks.shutdown()));
    }
}
