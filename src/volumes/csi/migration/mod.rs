//! Translates volumes of former in-tree plugins to those of their CSI drivers (upstream's `csi-translation-lib`). Pure.
//!
//! From then on everything about such a volume is the driver's: its unique name, its directories, its attachment.

mod topology;
#[cfg(test)]
mod tests;

use super::spec::{CsiVolumeSpec, SpecError};
use crate::volumes::Unsupported;
use anyhow::{Context as _, anyhow, bail};
use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, AzureDiskVolumeSource, CSIPersistentVolumeSource,
    GCEPersistentDiskVolumeSource, PersistentVolume, PersistentVolumeSpec, SecretReference, Volume,
};
use std::collections::{BTreeMap, BTreeSet};
use topology::Topology;

const AWS_EBS: &str = "ebs.csi.aws.com";
const GCE_PD: &str = "pd.csi.storage.gke.io";
const AZURE_DISK: &str = "disk.csi.azure.com";
const AZURE_FILE: &str = "file.csi.azure.com";
const CINDER: &str = "cinder.csi.openstack.org";
const VSPHERE: &str = "csi.vsphere.vmware.com";
const PORTWORX: &str = "pxd.portworx.com";

/// Stands for the project and the zone of a GCE disk, which only the driver knows.
const UNSPECIFIED: &str = "UNSPECIFIED";
/// Annotation with the resource group of an Azure file share.
const RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";
/// The namespace of an Azure file share's secret, if the pod has none.
const DEFAULT_NAMESPACE: &str = "default";
const READ_WRITE_ONCE: &str = "ReadWriteOnce";
const READ_WRITE_MANY: &str = "ReadWriteMany";
const READ_ONLY_MANY: &str = "ReadOnlyMany";

/// Translates a PersistentVolume of a former in-tree plugin; `None` if it is none.
///
/// # Errors
/// The volume cannot be translated; upstream's texts.
pub fn persistent_volume(volume: &PersistentVolume) -> anyhow::Result<Option<PersistentVolume>> {
    translate(volume).context("failed to translate in-tree pv to CSI")
}

/// The CSI volume that a pod of this namespace defines inline by a former in-tree plugin; `None` if it is none. It has
/// a PersistentVolume made up for it, and is attached and staged as any other.
///
/// # Errors
/// The volume cannot be translated, or a field is invalid.
pub fn inline_volume(volume: &Volume, namespace: &str) -> anyhow::Result<Option<CsiVolumeSpec>> {
    let translated = inline(volume, namespace).context("failed to translate in-tree pv to CSI")?;
    let Some(translated) = translated else {
        return Ok(None);
    };
    Ok(Some(spec(&translated)?))
}

/// What calls need to know of a PersistentVolume, translated if it is of a former in-tree plugin; `None` if it is no CSI
/// volume.
///
/// # Errors
/// It cannot be translated, or a field is invalid.
pub fn spec_of(volume: &PersistentVolume) -> anyhow::Result<Option<CsiVolumeSpec>> {
    match persistent_volume(volume)? {
        Some(translated) => Ok(Some(spec(&translated)?)),
        None => Ok(CsiVolumeSpec::from_persistent_volume(volume)?),
    }
}

/// What calls need to know of a translated volume.
///
/// # Errors
/// A field is invalid.
fn spec(translated: &PersistentVolume) -> Result<CsiVolumeSpec, SpecError> {
    let spec = CsiVolumeSpec::from_persistent_volume(translated)?;
    let spec = spec.ok_or_else(|| Unsupported("a volume without a source".to_owned()))?;
    Ok(CsiVolumeSpec { is_migrated: true, ..spec })
}

fn translate(volume: &PersistentVolume) -> anyhow::Result<Option<PersistentVolume>> {
    let Some(spec) = &volume.spec else {
        return Ok(None);
    };
    let metadata = &volume.metadata;
    let label = |key: &str| metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let mut new = spec.clone();
    let mut topology = None;
    let csi = if let Some(disk) = new.aws_elastic_block_store.take() {
        topology = Some(Topology::Zone("topology.ebs.csi.aws.com/zone"));
        aws_ebs(disk)?
    } else if let Some(disk) = new.gce_persistent_disk.take() {
        topology = Some(Topology::Zone("topology.gke.io/zone"));
        let zones = label(topology::BETA_ZONE).filter(|zones| !zones.is_empty());
        let zones = zones.or_else(|| label(topology::ZONE));
        let handle = gce_handle(zones.map_or("", String::as_str), &disk.pd_name)?;
        new.access_modes = new.access_modes.map(|modes| vec![gce_access_mode(&modes)]);
        gce_pd(disk, handle)
    } else if let Some(disk) = new.azure_disk.take() {
        azure_disk(disk)
    } else if let Some(share) = new.azure_file.take() {
        let annotations = metadata.annotations.as_ref();
        let group = annotations.and_then(|all| all.get(RESOURCE_GROUP));
        let of_claim = || new.claim_ref.as_ref()?.namespace.clone();
        let namespace = share.secret_namespace.or_else(of_claim);
        let namespace = namespace
            .filter(|namespace| !namespace.is_empty())
            .context("could not find a secret namespace in PersistentVolumeSource or ClaimRef")?;
        azure_file(&AzureShare {
            group: group.map_or("", String::as_str),
            secret: &share.secret_name,
            namespace: &namespace,
            share: &share.share_name,
            volume: metadata.name.as_deref().unwrap_or_default(),
            read_only: share.read_only,
        })
    } else if let Some(disk) = new.cinder.take() {
        topology = Some(Topology::Zone("topology.cinder.csi.openstack.org/zone"));
        CSIPersistentVolumeSource {
            read_only: disk.read_only,
            ..source(CINDER, disk.volume_id, disk.fs_type)
        }
    } else if let Some(disk) = new.vsphere_volume.take() {
        topology = Some(Topology::ZoneAndRegion(
            "topology.csi.vmware.com/zone",
            "topology.csi.vmware.com/region",
        ));
        vsphere(disk.volume_path, disk.fs_type, disk.storage_policy_name)
    } else if let Some(disk) = new.portworx_volume.take() {
        source(PORTWORX, disk.volume_id, disk.fs_type)
    } else {
        return Ok(None);
    };
    if let Some(topology) = topology {
        topology.translate(metadata.labels.as_ref(), &mut new.node_affinity);
    }
    new.csi = Some(csi);
    Ok(Some(PersistentVolume { metadata: metadata.clone(), spec: Some(new), status: None }))
}

fn inline(volume: &Volume, namespace: &str) -> anyhow::Result<Option<PersistentVolume>> {
    let mut mode = READ_WRITE_ONCE;
    let (csi, name) = if let Some(disk) = volume.aws_elastic_block_store.clone() {
        let csi = aws_ebs(disk)?;
        let name = csi.volume_handle.clone();
        (csi, name)
    } else if let Some(disk) = volume.gce_persistent_disk.clone() {
        if disk.read_only == Some(true) {
            mode = READ_ONLY_MANY;
        }
        let name = disk.pd_name.clone();
        let handle = gce_handle("", &name)?;
        (gce_pd(disk, handle), name)
    } else if let Some(disk) = volume.azure_disk.clone() {
        let name = disk.disk_name.clone();
        (azure_disk(disk), name)
    } else if let Some(share) = &volume.azure_file {
        mode = READ_WRITE_MANY;
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let csi = azure_file(&AzureShare {
            group: "",
            secret: &share.secret_name,
            namespace: namespace.unwrap_or(DEFAULT_NAMESPACE),
            share: &share.share_name,
            volume: &volume.name,
            read_only: share.read_only,
        });
        // The handle is unique, and is the whole name.
        let name = csi.volume_handle.clone();
        return Ok(Some(made_up(name, csi, mode)));
    } else if let Some(disk) = volume.cinder.clone() {
        let name = disk.volume_id.clone();
        let csi = source(CINDER, disk.volume_id, disk.fs_type);
        (CSIPersistentVolumeSource { read_only: disk.read_only, ..csi }, name)
    } else if let Some(disk) = volume.vsphere_volume.clone() {
        let name = disk.volume_path.clone();
        let csi = vsphere(disk.volume_path, disk.fs_type, disk.storage_policy_name);
        (csi, name)
    } else if let Some(disk) = volume.portworx_volume.clone() {
        if disk.read_only == Some(true) {
            mode = READ_ONLY_MANY;
        }
        let name = disk.volume_id.clone();
        (source(PORTWORX, disk.volume_id, disk.fs_type), name)
    } else {
        return Ok(None);
    };
    let name = format!("{}-{name}", csi.driver);
    Ok(Some(made_up(name, csi, mode)))
}

/// The PersistentVolume of an inline volume.
fn made_up(name: String, csi: CSIPersistentVolumeSource, mode: &str) -> PersistentVolume {
    let mut volume = PersistentVolume::default();
    // Directories have this name; the path of a vSphere disk has slashes.
    volume.metadata.name = Some(name.replace('/', "~"));
    volume.spec = Some(PersistentVolumeSpec {
        access_modes: Some(vec![mode.to_owned()]),
        csi: Some(csi),
        ..PersistentVolumeSpec::default()
    });
    volume
}

fn source(driver: &str, handle: String, fs_type: Option<String>) -> CSIPersistentVolumeSource {
    CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle: handle,
        fs_type,
        ..CSIPersistentVolumeSource::default()
    }
}

fn attributes<const N: usize>(of: [(&str, String); N]) -> Option<BTreeMap<String, String>> {
    let pairs = of.into_iter().map(|(key, value)| (key.to_owned(), value));
    Some(pairs.collect())
}

fn aws_ebs(disk: AWSElasticBlockStoreVolumeSource) -> anyhow::Result<CSIPersistentVolumeSource> {
    let partition = disk.partition.unwrap_or_default();
    Ok(CSIPersistentVolumeSource {
        read_only: disk.read_only,
        volume_attributes: attributes([("partition", partition.to_string())]),
        ..source(AWS_EBS, aws_volume_id(&disk.volume_id)?, disk.fs_type)
    })
}

/// The ID of an EBS volume: `vol-1` of `aws://zone/vol-1`; an ID without a scheme is taken as it is.
fn aws_volume_id(id: &str) -> anyhow::Result<String> {
    let Some(rest) = id.strip_prefix("aws://") else {
        return Ok(id.to_owned());
    };
    let path = rest.split_once('/').map_or("", |(_zone, path)| path);
    let volume = path.trim_matches('/');
    if !volume.starts_with("vol-") || volume.contains('/') {
        bail!("invalid format for AWS volume ({id})");
    }
    Ok(volume.to_owned())
}

fn gce_pd(disk: GCEPersistentDiskVolumeSource, handle: String) -> CSIPersistentVolumeSource {
    let partition = disk.partition.filter(|partition| *partition != 0);
    let partition = partition.map(|partition| partition.to_string());
    CSIPersistentVolumeSource {
        read_only: disk.read_only,
        volume_attributes: attributes([("partition", partition.unwrap_or_default())]),
        ..source(GCE_PD, handle, disk.fs_type)
    }
}

/// The handle of a GCE disk; `zones` are those of the PersistentVolume's label. A disk in several zones is a regional one.
fn gce_handle(zones: &str, disk: &str) -> anyhow::Result<String> {
    let zones: Vec<_> = zones.split(topology::ZONE_DELIMITER).collect();
    let place = match zones.as_slice() {
        [""] | [] => format!("zones/{UNSPECIFIED}"),
        [zone] => format!("zones/{zone}"),
        zones => {
            let region = gce_region(zones).context("failed to get region from zones")?;
            format!("regions/{region}")
        }
    };
    Ok(format!("projects/{UNSPECIFIED}/{place}/disks/{disk}"))
}

fn gce_region(zones: &[&str]) -> anyhow::Result<String> {
    let mut regions = BTreeSet::new();
    for zone in zones {
        let parts: Vec<_> = zone.split('-').collect();
        let [locale, region, _zone] = parts.as_slice() else {
            bail!(
                "zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {zone}"
            );
        };
        regions.insert(format!("{locale}-{region}"));
    }
    match (regions.len(), regions.pop_first()) {
        (1, Some(region)) => Ok(region),
        _ => Err(anyhow!("multiple or no regions gotten from zones")),
    }
}

/// The access mode of a GCE disk: the in-tree plugin attached it for one node whatever its modes, unless it was only read.
fn gce_access_mode(modes: &[String]) -> String {
    let is_read = modes.iter().any(|mode| mode == READ_ONLY_MANY);
    let is_written = modes.iter().any(|mode| mode != READ_ONLY_MANY);
    let mode = match (is_read, is_written) {
        (true, false) => READ_ONLY_MANY,
        _ => READ_WRITE_ONCE,
    };
    mode.to_owned()
}

fn azure_disk(disk: AzureDiskVolumeSource) -> CSIPersistentVolumeSource {
    let kind = disk.kind.unwrap_or_else(|| "Managed".to_owned());
    let optional = [("cachingmode", disk.caching_mode), ("fstype", disk.fs_type.clone())];
    let optional = optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let kind = [("kind".to_owned(), kind)].into_iter();
    CSIPersistentVolumeSource {
        read_only: disk.read_only,
        volume_attributes: Some(kind.chain(optional).collect()),
        ..source(AZURE_DISK, disk.disk_uri, disk.fs_type)
    }
}

struct AzureShare<'a> {
    group: &'a str,
    secret: &'a str,
    /// Of the secret.
    namespace: &'a str,
    share: &'a str,
    /// Name of the PersistentVolume, or of the inline volume.
    volume: &'a str,
    read_only: Option<bool>,
}

fn azure_file(of: &AzureShare<'_>) -> CSIPersistentVolumeSource {
    let account = azure_account(of.secret);
    let (group, share, volume, namespace) = (of.group, of.share, of.volume, of.namespace);
    let handle = format!("{group}#{account}#{share}#{volume}#{namespace}");
    CSIPersistentVolumeSource {
        read_only: of.read_only,
        volume_attributes: attributes([("sharename", share.to_owned())]),
        node_stage_secret_ref: Some(SecretReference {
            name: Some(of.secret.to_owned()),
            namespace: Some(namespace.to_owned()),
        }),
        ..source(AZURE_FILE, handle, None)
    }
}

/// The storage account that the name of a secret has, `azure-storage-account-<account>-secret`; another name is taken as
/// the account.
fn azure_account(secret: &str) -> &str {
    let (prefix, suffix) = ("azure-storage-account-", "-secret");
    let tail = secret.split_once(prefix).map(|(_, tail)| tail);
    let account = tail.and_then(|tail| tail.rsplit_once(suffix));
    let account = account.map(|(account, _)| account);
    account.filter(|account| !account.is_empty()).unwrap_or(secret)
}

fn vsphere(
    path: String,
    fs_type: Option<String>,
    policy: Option<String>,
) -> CSIPersistentVolumeSource {
    let policy = policy.filter(|policy| !policy.is_empty());
    CSIPersistentVolumeSource {
        volume_attributes: policy.and_then(|policy| attributes([("storagepolicyname", policy)])),
        ..source(VSPHERE, path, fs_type)
    }
}
