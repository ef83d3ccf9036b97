//! Updates the content volumes of a pod between its syncs: while its containers are being started, which may take hours
//! of pulling, or stopped, which may take hours of grace. A token would expire meanwhile.

use super::{
    VolumeError, VolumeManager, VolumeManagerInner, content, plan::PlannedVolume, set_up::VolumePod,
};
use crate::{
    base::run_file_io,
    model::{Pod, PodExt as _},
};
use std::{collections::HashSet, convert::Infallible, sync::Arc, time::Duration};
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
        plan.iter().any(|planned| planned.content().is_some())
    }

    /// Updates the content volumes that were set up, by this or by an earlier kubelet. Returns why some could not be
    /// updated.
    async fn refresh(&self, pod: &Pod) -> Result<Vec<VolumeError>, VolumeError> {
        let shared = &self.shared;
        let plan = self.plan(pod)?;
        // An earlier kubelet may have begun to stop the pod.
        shared.configmaps_and_secrets.register(pod);
        shared.cluster.register(&pod.uid(), &plan);
        let plan: Vec<_> = plan.into_iter().map(Arc::new).collect();
        let pod = self.pod_with_volumes(pod)?;
        pod.volumes.set_outdated(false);
        let content = shared.content_volumes(&pod, &plan).await;
        shared.work_on(&pod, &plan, &content).await?;
        Ok(pod.volumes.take_errors(&content))
    }
}

impl VolumeManagerInner {
    /// The content volumes of a plan that are set up.
    async fn content_volumes(
        self: &Arc<Self>,
        pod: &VolumePod,
        plan: &[Arc<PlannedVolume>],
    ) -> Vec<Arc<PlannedVolume>> {
        let ready = pod.volumes.ready();
        let ready: HashSet<_> = ready
            .iter()
            .map(|(volume, _)| volume.name.clone())
            .collect();
        let mut found = Vec::new();
        for planned in plan.iter().filter(|planned| planned.content().is_some()) {
            if ready.contains(&planned.name) || self.is_on_disk(pod, planned).await {
                found.push(planned.clone());
            }
        }
        found
    }

    /// Whether a content volume was set up by an earlier kubelet.
    async fn is_on_disk(self: &Arc<Self>, pod: &VolumePod, planned: &Arc<PlannedVolume>) -> bool {
        let (shared, directory) = (self.clone(), pod.directory.clone());
        let planned = planned.clone();
        let find = move || {
            let content = planned.content()?;
            content::find_existing(&directory, &planned.name, content, shared.mounter.as_ref())
        };
        run_file_io(find).await.is_ok_and(|found| found.is_some())
    }
}
