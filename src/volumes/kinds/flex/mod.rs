//! flexVolumes, of pods and of claims: programs of the node mount them.
//!
//! A driver is called with a timeout and ends with the pod that it works for. What is to be undone is found on disk: the
//! directories of a pod's volumes, and the directories of devices.

mod device;
mod drivers;
mod protocol;

pub(in crate::volumes) use drivers::FlexDrivers;

use super::bind::{bind, ended_or, is_mounted, prepare, remount, set_group, unbind};
use super::claim::{ClaimAttempt, NodePath, PersistentSource};
use super::local::bind_args;
use super::plan::Planning;
use super::{KindRow, releases};
use crate::apiserver::ResourcePath;
use crate::apiserver::claim::ClaimError;
use crate::base::{error_chain, if_exists, run_file_io, spawn_blocking};
use crate::model::{PodExt as _, PodUid};
use crate::volumes::error::{cannot, io_error};
use crate::volumes::mounter::unmount_beneath;
use crate::volumes::ownership::ChangePolicy;
use crate::volumes::pod_volumes::{Attempt, Kind, PlannedKind, ReadyVolume, SetUp};
use crate::volumes::{
    HostPathCheck, Unsupported, VolumeError, VolumeGroup, VolumeManagerInner, VolumePath, component,
};
use anyhow::{Context as _, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use device::{FlexDevices, remove_directory};
use drivers::FlexDriver;
use k8s_openapi::api::core::v1::Secret;
use protocol::{CallError, DriverName};
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The plugin in metrics: the names of drivers would be labels without a limit.
const PLUGIN: &str = "kubernetes.io/flexvolume";
const KEY: &str = "flexVolume";

pub(super) const KIND: KindRow = KindRow {
    plan,
    resolve,
    key: KEY,
    set_up_claim: |claim| Box::pin(set_up_claim(claim)),
    tear_down: |manager, uid| Box::pin(tear_down(manager, uid)),
    release: |manager| Box::pin(releases::release(manager, &FlexDevices)),
    ..KindRow::NONE
};

/// A volume of a driver.
#[derive(Clone, PartialEq, Eq)]
struct FlexSpec {
    driver: DriverName,
    /// Name of the PersistentVolume, or of the pod's volume.
    name: String,
    fs_type: String,
    read_only: bool,
    /// They may be secret.
    options: BTreeMap<String, String>,
    /// Namespace and name of its secret.
    secret: Option<(String, String)>,
    owner: (VolumeGroup, ChangePolicy),
}

impl std::fmt::Debug for FlexSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("FlexSpec");
        shown.field("driver", &self.driver).field("name", &self.name);
        shown.finish_non_exhaustive()
    }
}

fn driver_name(name: &str) -> Result<DriverName, Unsupported> {
    let shown: String = name.chars().take(64).collect();
    DriverName::parse(name).ok_or_else(|| Unsupported(format!("flexVolume driver {shown:?}")))
}

fn plan(planning: &Planning<'_>) -> anyhow::Result<PlannedKind> {
    let Some(source) = &planning.volume.flex_volume else {
        return Ok(None);
    };
    let driver = match driver_name(&source.driver) {
        Ok(driver) => driver,
        Err(unsupported) => return Ok(Some(Arc::new(unsupported))),
    };
    let secret = source.secret_ref.as_ref();
    Ok(Some(Arc::new(FlexSpec {
        driver,
        name: planning.volume.name.clone(),
        fs_type: source.fs_type.clone().unwrap_or_default(),
        read_only: source.read_only.unwrap_or_default(),
        options: source.options.clone().unwrap_or_default(),
        secret: secret.map(|one| (planning.pod.namespace().to_owned(), one.name.clone())),
        owner: planning.owner()?,
    })))
}

impl Kind for FlexSpec {
    fn waits_for(&self) -> Cow<'static, str> {
        format!("flexVolume driver {}", self.driver.as_str()).into()
    }

    fn metric_plugin(&self, _path: Option<&VolumePath>) -> Option<&'static str> {
        Some(PLUGIN)
    }

    fn set_up(self: Arc<Self>, attempt: Attempt) -> SetUp {
        Box::pin(async move { Ok(set_up(&attempt, &self).await?.into()) })
    }
}

fn resolve(source: &PersistentSource<'_>) -> Result<Option<NodePath>, VolumeError> {
    let Some(flex) = &source.spec.flex_volume else {
        return Ok(None);
    };
    if source.is_device {
        return source.unsupported("spec.volumeMode \"Block\" beside spec.flexVolume");
    }
    if !source.options.is_empty() {
        return Err(VolumeError::MountOptions(source.name.to_owned()));
    }
    let driver = driver_name(&flex.driver);
    let driver = driver.map_err(|error| VolumeError::set_up(source.name, error.into()))?;
    // The options stay out of the record, because they may be secret.
    Ok(Some(source.path_of_kind(KEY, json!({"driver": driver.as_str()}))))
}

/// Sets up the volume of a claim. While the API server has returned no PersistentVolume, the pod keeps what is mounted.
async fn set_up_claim(mut claim: ClaimAttempt) -> Result<ReadyVolume, VolumeError> {
    let (of_pod, attempt) = (&claim.claim, &claim.attempt);
    let name = claim.resolved.volume.clone();
    let found = attempt.inputs.claims.get(&of_pod.key);
    let path = match found
        .and_then(|found| found.as_ref().ok())
        .and_then(|volume| volume.spec.as_ref()?.flex_volume.clone())
    {
        Some(source) => {
            let secret = source.secret_ref.and_then(|secret| {
                let namespace = secret.namespace.filter(|namespace| !namespace.is_empty());
                let namespace = namespace.unwrap_or_else(|| of_pod.key.namespace.clone());
                Some((namespace, secret.name?))
            });
            let driver = driver_name(&source.driver);
            let spec = FlexSpec {
                driver: driver.map_err(|error| claim.fail(error.into()))?,
                name,
                fs_type: source.fs_type.unwrap_or_default(),
                read_only: of_pod.read_only,
                options: source.options.unwrap_or_default(),
                secret,
                owner: of_pod.owner,
            };
            set_up(attempt, &spec).await?
        }
        None => {
            let recorded: BTreeMap<String, String> =
                claim.resolved.at.of_kind(KEY).map_err(|error| claim.fail(error))?;
            let driver = recorded.get("driver").map_or("", String::as_str);
            let driver = driver_name(driver).map_err(|error| claim.fail(error.into()))?;
            let target = target(attempt, &driver, &name)?;
            let (mounter, at) = (attempt.manager.mounter.clone(), target.clone());
            let is_mounted = run_file_io(move || is_mounted(mounter.as_ref(), &at)).await?;
            if !is_mounted.map_err(|error| claim.fail(error))? {
                let why = "the API server has not returned the PersistentVolume yet";
                return Err(VolumeError::Claim {
                    volume: attempt.name.clone(),
                    key: of_pod.key.clone(),
                    source: Box::new(ClaimError::Unsynced(why.to_owned())),
                });
            }
            VolumePath::of(target)
        }
    };
    claim.resolved.at.managed = path.managed;
    claim.resolved.at.measured = path.measured;
    let host_path = path.host_path;
    let mut ready = run_file_io(move || claim.finish(host_path, HostPathCheck::None)).await??;
    ready.path.plugin = Some(PLUGIN);
    Ok(ready)
}

/// The directory of the volume.
fn target(attempt: &Attempt, driver: &DriverName, name: &str) -> Result<PathBuf, VolumeError> {
    let volumes = attempt.pod.directory.volumes();
    Ok(volumes.join(driver.directory()).join(component(name)?))
}

async fn set_up(attempt: &Attempt, spec: &FlexSpec) -> Result<VolumePath, VolumeError> {
    let fail = |error: anyhow::Error| VolumeError::set_up(&spec.name, error);
    let (pod, manager) = (&attempt.pod, &attempt.manager);
    let target = target(attempt, &spec.driver, &spec.name)?;
    // `init` is for all pods, so it does not end with this one.
    let driver = manager.flex.get(&spec.driver).await;
    let driver = driver.map_err(|why| fail(anyhow!(why)))?.ok_or_else(|| {
        let driver = spec.driver.as_str();
        fail(anyhow!("flexVolume driver {driver} is not installed"))
    })?;
    // The teardown waits for the programs, which end at once then.
    let _running = pod.volumes.program_guard()?;
    if !prepare(attempt, &spec.name, &target).await?
        && let Err(error) = mount(attempt, spec, &driver, &target).await
    {
        // If the driver has mounted something, it stays for the next attempt, or for the end of the pod.
        let _ = run_file_io(move || remove_directory(&target)).await?;
        return Err(error);
    }
    if spec.owner.0.0.is_some() && !spec.read_only && driver.capabilities.fs_group {
        set_group(attempt, &spec.name, spec.owner, &target).await?;
    }
    Ok(VolumePath {
        managed: !spec.read_only && driver.capabilities.selinux_relabel,
        read_only: spec.read_only,
        measured: driver.capabilities.supports_metrics,
        ..VolumePath::of(target)
    })
}

async fn mount(
    attempt: &Attempt,
    spec: &FlexSpec,
    driver: &FlexDriver,
    target: &Path,
) -> Result<(), VolumeError> {
    let fail = |error: anyhow::Error| VolumeError::set_up(&spec.name, error);
    let (manager, ended) = (&attempt.manager, &attempt.pod.volumes.ended);
    let options = |more: BTreeMap<String, String>| {
        protocol::options(&spec.fs_type, spec.read_only, &spec.name, more, &spec.options)
    };
    let secrets = ended.run_until_cancelled(secrets(attempt, spec)).await;
    let secrets = secrets.ok_or(VolumeError::Cancelled)?;
    let secrets = secrets.map_err(|why| fail(anyhow!(why)))?;
    let device = if driver.capabilities.attach {
        let options = options(BTreeMap::new());
        Some(device::set_up(attempt, spec, driver, &options).await?)
    } else {
        None
    };
    let all = options(pod_facts(attempt, spec).into_iter().chain(secrets.clone()).collect());
    let args = [&*target.to_string_lossy(), &all];
    match manager.flex.call(driver, "mount", &args, ended).await {
        Ok(_) => Ok(()),
        Err(CallError::Failed(why)) => {
            let hidden = secrets.values().filter(|value| !value.is_empty());
            let why = hidden.fold(why, |why, value| why.replace(value.as_str(), "***"));
            Err(ended_or(ended, fail(anyhow!(why))))
        }
        Err(CallError::NotSupported) => {
            let device = device.ok_or_else(|| {
                fail(anyhow!("the driver neither mounts volumes nor attaches them"))
            })?;
            bind(attempt, &device, target).await?.map_err(fail)?;
            if !spec.read_only {
                return Ok(());
            }
            let [device, at] = [&device, target].map(Path::to_string_lossy);
            let args = bind_args(&device, &[], true, &at).unwrap_or_default();
            let Err(why) = remount(attempt, &args).await else {
                return Ok(());
            };
            unbind(attempt, target).await?;
            Err(ended_or(ended, fail(anyhow!(why))))
        }
    }
}

/// The facts about the pod for `mount`.
fn pod_facts(attempt: &Attempt, spec: &FlexSpec) -> BTreeMap<String, String> {
    let pod = &attempt.pod.mounting;
    let pairs = [
        ("pod.name", pod.name.clone()),
        ("pod.namespace", pod.namespace.clone()),
        ("pod.uid", pod.uid.to_string()),
        ("serviceAccount.name", pod.service_account.clone()),
    ];
    let group = spec.owner.0.0;
    let group = group.map(|group| ("mounterArgs.FsGroup", group.to_string()));
    let pairs = pairs.into_iter().chain(group);
    pairs.map(|(key, value)| (format!("kubernetes.io/{key}"), value)).collect()
}

/// The secret of a volume, as `mount` is given it. It is read for each attempt, and nothing of it is kept.
///
/// # Errors
/// It cannot be read. The text has no value.
async fn secrets(attempt: &Attempt, spec: &FlexSpec) -> Result<BTreeMap<String, String>, String> {
    let Some((namespace, name)) = &spec.secret else {
        return Ok(BTreeMap::new());
    };
    let api = attempt.manager.cluster.csi.api.as_ref();
    let api = api.ok_or("failed to get a kubernetes client")?;
    let secret = api.get::<Secret>(ResourcePath::namespaced(namespace, name)).await;
    let secret = secret.map_err(|error| error_chain(&error))?;
    let driver = spec.driver.as_str();
    if secret.type_.as_deref() != Some(driver) {
        return Err(format!("Cannot get secret of type {driver}"));
    }
    let data = secret.data.unwrap_or_default().into_iter();
    let encoded =
        data.map(|(key, value)| (format!("kubernetes.io/secret/{key}"), STANDARD.encode(value.0)));
    Ok(encoded.collect())
}

/// Unmounts the pod's volumes, their sub-paths first.
async fn tear_down(manager: Arc<VolumeManagerInner>, uid: PodUid) -> Result<(), VolumeError> {
    let pod = manager.root.pod(&uid)?;
    let volumes = pod.volumes();
    let found = {
        let volumes = volumes.clone();
        run_file_io(move || volumes_in(&volumes)).await??
    };
    if found.is_empty() {
        return Ok(());
    }
    let (mounter, sub_paths) = (manager.mounter.clone(), pod.sub_paths());
    spawn_blocking(move || unmount_beneath(&sub_paths, mounter.as_ref())).await??;
    let mut torn_down = Ok(());
    for (driver, name) in found {
        let target = volumes.join(driver.directory()).join(&name);
        let unmounted = unmount(&manager, &driver, &target).await;
        // A driver that fails keeps no other volume.
        torn_down =
            torn_down.and(unmounted.map_err(|error| VolumeError::TearDown {
                volume: name,
                why: format!("{error:#}"),
            }));
    }
    torn_down
}

/// The volumes that have a directory of a driver, by the names of directories alone.
fn volumes_in(volumes: &Path) -> Result<Vec<(DriverName, String)>, VolumeError> {
    let list = |directory: &Path| -> Result<Vec<String>, VolumeError> {
        let entries = if_exists(fs::read_dir(directory)).map_err(io_error("list", directory))?;
        let mut names = Vec::new();
        for entry in entries.into_iter().flatten() {
            let entry = entry.map_err(io_error("list", directory))?;
            names.extend(entry.file_name().into_string());
        }
        Ok(names)
    };
    let mut found = Vec::new();
    for plugin in list(volumes)? {
        let Some(driver) = DriverName::of_directory(&plugin) else {
            continue;
        };
        let names = list(&volumes.join(&plugin))?.into_iter();
        found.extend(names.map(|name| (driver.clone(), name)));
    }
    Ok(found)
}

async fn unmount(
    manager: &Arc<VolumeManagerInner>,
    driver: &DriverName,
    target: &Path,
) -> anyhow::Result<()> {
    let installed = manager.flex.get(driver).await.map_err(anyhow::Error::msg)?;
    let is_installed = installed.is_some();
    let is_left = match installed {
        Some(installed) => {
            let (args, never) = ([&*target.to_string_lossy()], CancellationToken::new());
            match manager.flex.call(&installed, "unmount", &args, &never).await {
                Ok(_) => false,
                Err(CallError::NotSupported) => true,
                Err(CallError::Failed(why)) => return Err(anyhow!(why)),
            }
        }
        None => false,
    };
    let (mounter, target) = (manager.mounter.clone(), target.to_owned());
    let remove = move || {
        if is_left {
            mounter.unmount(&target).with_context(cannot("unmount", &target))?;
        }
        if !is_installed && is_mounted(mounter.as_ref(), &target)? {
            return Err(anyhow!("its driver is not installed"));
        }
        remove_directory(&target)
    };
    spawn_blocking(remove).await?
}
