//! Notices that PersistentVolumes have become larger while pods use them.
//!
//! A node may read a PersistentVolume, but not watch it, and nothing that it watches changes with one. So those that may
//! become larger are read as often as the Go kubelet syncs a pod: volumes that a pod may write to, of drivers that expand
//! volumes on the node. One request is in progress at a time, and a round ends with the first one that fails. Claims are
//! read only once their volume has become larger.

use crate::apiserver::{ApiServer, ResourcePath};
use crate::base::error_chain;
use crate::volumes::csi::manager::CsiVolumesInner;
use crate::volumes::csi::migration;
use crate::volumes::csi::volume::{CsiVolume, PublishRequest};
use k8s_openapi::api::core::v1::PersistentVolume;
use std::sync::Arc;
use tokio::time::sleep;

impl CsiVolumesInner {
    /// Reads PersistentVolumes from time to time.
    pub(in crate::volumes::csi) async fn reread_capacities(self: Arc<Self>) {
        let Some(api) = self.sources.api.clone() else {
            return;
        };
        loop {
            // Not all nodes at the same time; upstream's jitter.
            let factor = 1.0 + 0.5 * fastrand::f64();
            sleep(self.sources.resync_interval.mul_f64(factor)).await;
            let volumes: Vec<_> = self.volumes.lock().values().cloned().collect();
            for volume in volumes {
                let Some(request) = self.may_expand(&volume).await else {
                    continue;
                };
                if !self.reread_capacity(&api, &volume, &request).await {
                    break;
                }
            }
        }
    }

    /// A pod that the volume can be expanded for; `None` if there is none.
    async fn may_expand(&self, volume: &CsiVolume) -> Option<Arc<PublishRequest>> {
        let request = volume.writer()?;
        let client = self.sources.drivers.get(volume.identity.driver())?;
        let capabilities = client.capabilities().await.ok()?;
        capabilities.expand.then_some(request)
    }

    /// Reads the PersistentVolume, and has the volume expanded if it is larger now. False if the API server did not answer.
    async fn reread_capacity(
        &self,
        api: &ApiServer,
        volume: &CsiVolume,
        request: &PublishRequest,
    ) -> bool {
        let name = &request.spec.spec_name;
        let read = api.get::<PersistentVolume>(ResourcePath::cluster(name));
        let read = match read.await {
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(volume = name, err = %error_chain(&error), "Failed to read a PersistentVolume");
                return error.is_not_found();
            }
        };
        let now = migration::spec_of(&read).ok().flatten();
        let now = now.filter(|now| {
            let is_same = now.identity == request.spec.identity;
            is_same && now.claim == request.spec.claim
        });
        // One that was created again with this name is for the next pod.
        let Some(capacity) = now.and_then(|now| now.capacity) else {
            return true;
        };
        let known = {
            let mut state = volume.state.lock();
            state.set_capacity(&capacity).map(|()| state.sizes.is_behind())
        };
        match known {
            Ok(false) => {}
            Ok(true) => {
                volume.modify(|state| state.machine.request_expansion(&request.pod.uid, false))
            }
            Err(why) => self.resize_failed(request, &why),
        }
        true
    }
}

impl CsiVolume {
    /// A pod that uses the volume and may write to it, unless the driver has refused to expand it.
    fn writer(&self) -> Option<Arc<PublishRequest>> {
        let state = self.state.lock();
        let mut pods = state.pods.iter();
        let writer = pods.find_map(|(uid, pod)| {
            let request = pod.request.as_ref().filter(|_| state.machine.is_ready(uid))?;
            let can_grow = request.spec.claim.is_some() && state.sizes.volume.is_some();
            (can_grow && !request.read_only).then(|| request.clone())
        });
        writer.filter(|_| !state.sizes.is_refused)
    }
}
