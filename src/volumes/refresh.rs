//! Updates the content volumes of a pod between its syncs: while its containers are being started, which may take hours
//! of pulling, or stopped, which may take hours of grace. A token would expire meanwhile.

use super::kinds::plan;
use super::pod_volumes::{PlannedVolume, VolumePod};
use super::{VolumeError, VolumeManager, VolumeManagerInner};
use crate::base::run_file_io;
use crate::model::{Pod, PodExt as _};
use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Interval of updates without a notice: files of the node and the values of the pod are not watched. As long as that of
/// the syncs of a pod by default.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);

impl VolumeManager {
    /// Updates the content volumes of a pod whenever they may be outdated. Sets up no volume. `newest` returns the newest
    /// version of the pod; `report` is called for each volume that could not be updated. Must not run concurrently with
    /// [`Self::teardown`] of the same pod; may be dropped at any time.
    pub async fn keep_current(
        &self,
        newest: impl Fn() -> Arc<Pod>,
        report: impl Fn(&VolumeError),
    ) -> Infallible {
        loop {
            let pod = newest();
            if !self.has_content(&pod) {
                return std::future::pending().await;
            }
            let volumes = self.shared.of_or_new(&pod.uid());
            // A timeout is no error: it is the interval.
            let _ = timeout(REFRESH_INTERVAL, volumes.outdated()).await;
            match self.refresh(&newest()).await {
                Ok(errors) => errors.iter().for_each(&report),
                Err(error) => report(&error),
            }
        }
    }

    fn has_content(&self, pod: &Pod) -> bool {
        let plan = self.plan(pod).unwrap_or_default();
        plan.iter().any(|planned| planned.kind.has_content())
    }

    /// Updates the content volumes that were set up, by this or by an earlier kubelet. Returns why some could not be
    /// updated.
    async fn refresh(&self, pod: &Pod) -> Result<Vec<VolumeError>, VolumeError> {
        let shared = &self.shared;
        let plan = self.plan(pod)?;
        // An earlier kubelet may have begun to stop the pod.
        shared.configmaps_and_secrets.register(pod);
        shared.cluster.register(&pod.uid(), plan::keys(&plan));
        let plan: Vec<_> = plan.into_iter().map(Arc::new).collect();
        let pod = self.pod_with_volumes(pod)?;
        pod.volumes.set_outdated(false);
        let content = content_volumes(shared.clone(), &pod, &plan).await;
        shared.work_on(&pod, &plan, &content).await?;
        Ok(pod.volumes.take_errors(&content))
    }
}

/// The content volumes of a plan that are set up, by this or by an earlier kubelet.
async fn content_volumes(
    manager: Arc<VolumeManagerInner>,
    pod: &VolumePod,
    plan: &[Arc<PlannedVolume>],
) -> Vec<Arc<PlannedVolume>> {
    let ready = pod.volumes.ready().into_iter();
    let ready: HashSet<_> = ready.map(|(volume, _)| volume.name.clone()).collect();
    let (directory, mut volumes) = (pod.directory.clone(), plan.to_vec());
    let find = move || {
        let mounter = manager.mounter.as_ref();
        volumes.retain(|planned| {
            let (name, kind) = (&planned.name, &planned.kind);
            let is_ready = || ready.contains(name) || kind.is_on_disk(&directory, name, mounter);
            kind.has_content() && is_ready()
        });
        volumes
    };
    run_file_io(find).await.unwrap_or_default()
}
