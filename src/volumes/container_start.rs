//! What is done with a pod's volumes before every start of a container: sub-paths are bind-mounted, and the types of paths
//! of the node are checked.

use super::kinds::host_path;
use super::pod_volumes::PodVolumes;
use super::{PodDir, SubPathRequest, VolumeError, VolumeManagerInner, VolumePath, sub_path};
use crate::model::PodUid;
use std::path::PathBuf;
use std::sync::Arc;

impl VolumeManagerInner {
    /// Bind-mounts the sub-paths of one volume for a container. If the future is dropped, this continues and keeps
    /// the volume reserved.
    pub(super) async fn bind_sub_paths(
        self: &Arc<Self>,
        uid: &PodUid,
        container: &str,
        requests: Vec<SubPathRequest>,
    ) -> Result<Vec<(usize, PathBuf)>, VolumeError> {
        let Some(first) = requests.first() else {
            return Ok(Vec::new());
        };
        let (volume, volume_path) = (first.volume.clone(), first.volume_path.clone());
        let (pod, volumes) = (self.root.pod(uid)?, self.of_or_new(uid));
        let guard = volumes.lock_for_binds(&volume, container).await;
        let sub_paths = requests.iter().map(|request| request.sub_path.clone());
        let (sub_paths, ended) = (sub_paths.collect::<Vec<_>>(), volumes.ended.clone());
        let (shared, container) = (self.clone(), container.to_owned());
        let bind = move || {
            let _guard = guard;
            let bind = |request| shared.bind_sub_path(&pod, &container, request, &volumes);
            requests.iter().map(bind).collect()
        };
        let threads = &self.threads;
        threads.run(volume_path, &sub_paths, &ended, bind).await?
    }

    /// Checks the type of a path of the node. If the future is dropped, this continues.
    pub(super) async fn check_host_path(
        &self,
        uid: &PodUid,
        volume: &str,
        VolumePath { host_path, check, .. }: VolumePath,
    ) -> Result<(), VolumeError> {
        let ended = self.of_or_new(uid).ended.clone();
        let path = host_path.clone();
        let check = move || host_path::check_path(&host_path, check);
        let checked = self.threads.run(path, &[], &ended, check).await?;
        checked.map_err(|error| VolumeError::set_up(volume, error))
    }

    fn bind_sub_path(
        &self,
        pod: &PodDir,
        container: &str,
        request: &SubPathRequest,
        volumes: &PodVolumes,
    ) -> Result<(usize, PathBuf), VolumeError> {
        let target = pod.sub_path(&request.spec_name, container, request.mount_index)?;
        match sub_path::set_up(request, &target, self.mounter.as_ref(), volumes) {
            Ok(Some(())) => Ok((request.mount_index, target)),
            Ok(None) => Err(VolumeError::Cancelled),
            Err(source) => Err(VolumeError::SubPath {
                volume: request.volume.clone(),
                container: container.to_string(),
                source,
            }),
        }
    }
}
