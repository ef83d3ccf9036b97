//! Making a pod's volumes and bringing them up to date. Blocking, but for the way to a thread.

use super::{
    KnownVolumes, PodDir, Prepared, SetUpError, SubPathRequest, VolumeError, VolumeManagerInner,
    VolumePath, VolumePaths, claim, claim_note,
    content::{self, ContentVolume, Digest, Inputs},
    detached::Permit,
    empty_dir, host_path, ownership,
    plan::{ClaimVolume, PlannedVolume, VolumeKind},
    pod_dirs, record, sub_path,
};
use crate::{
    apiserver::{claim::ClaimError, configmap_secret::Found},
    base::with_own_files,
    model::PodUid,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

impl VolumeManagerInner {
    /// Makes volumes, or brings those up to date that were made before.
    pub(super) async fn make(
        self: Arc<Self>,
        uid: PodUid,
        plan: Vec<PlannedVolume>,
        known: Option<KnownVolumes>,
        mut inputs: Inputs,
        permit: Permit,
    ) -> Result<Prepared, VolumeError> {
        if let Some(known) = &known {
            let fixed = known.fixed.iter();
            let fixed = fixed.map(|(key, it)| (key.clone(), it.clone()));
            inputs.objects.extend(fixed);
        }
        // What a host path leads to may hang.
        let is_foreign = plan.iter().any(is_of_node);
        let prepare = move || match known {
            Some(known) => self.refresh(uid, known, &inputs, &permit),
            None => self.prepare(uid, plan, &inputs, &permit),
        };
        if is_foreign {
            tokio::task::spawn_blocking(prepare).await?
        } else {
            with_own_files(prepare).await?
        }
    }

    fn prepare(
        &self,
        uid: PodUid,
        plan: Vec<PlannedVolume>,
        inputs: &Inputs,
        permit: &Permit,
    ) -> Result<Prepared, VolumeError> {
        let pod = self.root.pod(&uid)?;
        let creating = permit.begin().ok_or(VolumeError::Cancelled)?;
        pod_dirs::create(&pod)?;
        let records: Vec<_> = plan.iter().filter_map(PlannedVolume::record).collect();
        if !records.is_empty() {
            record::write(&pod, records)?;
        }
        drop(creating);
        let mut made = Made::default();
        for volume in &plan {
            // Between two volumes, what was left behind gives up. A path of the node is no reason for
            // the clean-up to wait: nothing of it is taken down.
            let creating = permit.begin().ok_or(VolumeError::Cancelled)?;
            let _making = (!is_of_node(volume)).then_some(creating);
            let path = self.set_up(&pod, volume, inputs, permit, &mut made);
            made.paths.insert(volume.name.clone(), path?);
        }
        let paths = Arc::new(made.paths);
        let known = KnownVolumes {
            plan: Arc::new(plan),
            paths: paths.clone(),
            shown: Arc::new(made.shown),
            fixed: Arc::new(immutable(&inputs.objects)),
        };
        let _making = permit.begin().ok_or(VolumeError::Cancelled)?;
        self.prepared.lock().insert(uid, known);
        let stale = made.stale;
        Ok(Prepared { paths, stale })
    }

    /// Brings volumes up to date whose objects changed.
    fn refresh(
        &self,
        uid: PodUid,
        known: KnownVolumes,
        inputs: &Inputs,
        permit: &Permit,
    ) -> Result<Prepared, VolumeError> {
        let _making = permit.begin().ok_or(VolumeError::Cancelled)?;
        let mut shown = known.shown.clone();
        let mut stale = Vec::new();
        for volume in known.plan.iter() {
            let (Some(content), Some(path)) = (volume.content(), known.paths.get(&volume.name))
            else {
                continue;
            };
            let mut keys = content::object_keys(&content.sources).into_iter();
            if !content::may_change(&content.sources)
                && keys.all(|key| known.fixed.contains_key(&key))
            {
                continue;
            }
            let before = shown.get(&volume.name).copied();
            match update(&path.host_path, content, inputs, before) {
                Ok(now) if Some(now) == before => {}
                Ok(now) => {
                    Arc::make_mut(&mut shown).insert(volume.name.clone(), now);
                }
                Err(error) => stale.push(of_volume(&volume.name, error)),
            }
        }
        let paths = known.paths.clone();
        let mut fixed = known.fixed.clone();
        let fixed_now = immutable(&inputs.objects);
        if fixed_now.len() > fixed.len() {
            fixed = Arc::new(fixed_now);
        }
        if !Arc::ptr_eq(&shown, &known.shown) || !Arc::ptr_eq(&fixed, &known.fixed) {
            let known = KnownVolumes {
                shown,
                fixed,
                ..known
            };
            self.prepared.lock().insert(uid, known);
        }
        Ok(Prepared { paths, stale })
    }

    fn set_up(
        &self,
        pod: &PodDir,
        volume: &PlannedVolume,
        inputs: &Inputs,
        permit: &Permit,
        made: &mut Made,
    ) -> Result<VolumePath, VolumeError> {
        let (name, mounter) = (&volume.name, self.mounter.as_ref());
        let fail = |source| of_volume(name, source);
        match &volume.kind {
            VolumeKind::EmptyDir { medium, group } => {
                let host_path = empty_dir::set_up(pod, name, *medium, *group, mounter);
                let host_path = host_path.map_err(fail)?;
                Ok(VolumePath {
                    host_path,
                    managed: true,
                    read_only: false,
                    measured: false,
                })
            }
            VolumeKind::HostPath { path, check } => {
                let host_path = host_path::set_up(path, *check).map_err(fail)?;
                Ok(VolumePath {
                    host_path,
                    managed: false,
                    read_only: false,
                    measured: false,
                })
            }
            VolumeKind::Claim(claim) => self.set_up_claim(pod, name, claim, inputs, permit),
            VolumeKind::Content(content) => {
                let host_path = self.set_up_content(pod, name, content, inputs, made);
                let host_path = host_path.map_err(fail)?;
                Ok(VolumePath {
                    host_path,
                    managed: true,
                    read_only: true,
                    measured: false,
                })
            }
        }
    }

    fn set_up_claim(
        &self,
        pod: &PodDir,
        name: &str,
        claim: &ClaimVolume,
        inputs: &Inputs,
        permit: &Permit,
    ) -> Result<VolumePath, VolumeError> {
        let found = match inputs.claims.get(&claim.key) {
            Some(Ok(volume)) => Ok(volume.as_ref()),
            Some(Err(error)) => Err(error.clone()),
            None => Err(ClaimError::Claim("it was not looked up".into())),
        };
        let noted = claim_note::read(pod, name);
        let resolved = claim::resolve(name, claim, found, inputs.node.as_deref(), noted)?;
        let (at, own_name) = (&resolved.at, &resolved.volume);
        let fail = |source| of_volume(own_name, source);
        let host_path = host_path::set_up(&at.path, at.check).map_err(fail)?;
        if at.owned {
            let owner = (claim.group, claim.change_policy);
            let shared = self.is_in_use(&host_path);
            ownership::set_up(pod, own_name, &host_path, owner, shared).map_err(fail)?;
        }
        let _making = permit.begin().ok_or(VolumeError::Cancelled)?;
        claim_note::write(pod, name, &resolved).map_err(fail)?;
        Ok(VolumePath {
            host_path,
            managed: at.managed,
            read_only: claim.read_only,
            measured: at.measured,
        })
    }

    /// Whether a pod has been given this path of the node.
    fn is_in_use(&self, path: &Path) -> bool {
        let prepared = self.prepared.lock();
        let mut paths = prepared.values().flat_map(|known| known.paths.values());
        paths.any(|given| given.host_path == path)
    }

    /// One whose objects are missing now, or immutable, stays as an earlier kubelet left it: a restart
    /// of the kubelet is no event for its pods.
    fn set_up_content(
        &self,
        pod: &PodDir,
        name: &str,
        volume: &ContentVolume,
        inputs: &Inputs,
        made: &mut Made,
    ) -> Result<PathBuf, SetUpError> {
        let mounter = self.mounter.as_ref();
        if content::is_fixed(&volume.sources, &inputs.objects)
            && let Some(path) = content::made_before(pod, name, volume, mounter)
        {
            return Ok(path);
        }
        let payload = match content::content_of(volume, inputs) {
            Ok(payload) => payload,
            Err(error) => {
                let Some(path) = content::made_before(pod, name, volume, mounter) else {
                    return Err(error);
                };
                made.stale.push(of_volume(name, error));
                return Ok(path);
            }
        };
        let path = content::set_up(pod, name, volume, &payload, mounter)?;
        made.shown.insert(name.into(), content::digest(&payload));
        Ok(path)
    }

    pub(super) fn bind_sub_path(
        &self,
        pod: &PodDir,
        container: &str,
        request: &SubPathRequest,
        permit: &Permit,
    ) -> Result<(usize, PathBuf), VolumeError> {
        let target = pod.sub_path(&request.volume, container, request.mount_index)?;
        match sub_path::set_up(request, &target, self.mounter.as_ref(), permit) {
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

/// Whether its data is the node's, wherever that is.
fn is_of_node(volume: &PlannedVolume) -> bool {
    matches!(
        volume.kind,
        VolumeKind::HostPath { .. } | VolumeKind::Claim(_)
    )
}

/// The objects that stay as they are.
fn immutable(found: &Found) -> Found {
    let fixed = found
        .iter()
        .filter(|(_, it)| it.as_ref().is_ok_and(|object| object.is_immutable()));
    fixed.map(|(key, it)| (key.clone(), it.clone())).collect()
}

/// What has been made of a pod's volumes.
#[derive(Default)]
struct Made {
    paths: VolumePaths,
    shown: BTreeMap<String, Digest>,
    stale: Vec<VolumeError>,
}

fn update(
    directory: &Path,
    volume: &ContentVolume,
    inputs: &Inputs,
    before: Option<Digest>,
) -> Result<Digest, SetUpError> {
    let payload = content::content_of(volume, inputs)?;
    let now = content::digest(&payload);
    if Some(now) != before {
        content::write(directory, volume, &payload)?;
    }
    Ok(now)
}

fn of_volume(name: &str, source: SetUpError) -> VolumeError {
    VolumeError::SetUp {
        volume: name.to_string(),
        source,
    }
}
