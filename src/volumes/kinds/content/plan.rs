//! The sources of a volume's files, from the pod's specification. Pure.

use super::mount_points::mount_points;
use super::{CONFIG_MAP, DOWNWARD_API, PROJECTED, Payload, SECRET};
use crate::apiserver::configmap_secret::{ObjectKey, ObjectKind};
use crate::apiserver::pod_certificate::PodCertificateKey;
use crate::apiserver::token::TokenKey;
use crate::apiserver::trust_bundle::BundleChoice;
use crate::model::{NodeFacts, Pod, PodExt, field_ref_value, pod_field};
use crate::volumes::error::aggregate;
use crate::volumes::kinds::plan::Planning;
use crate::volumes::pod_volumes::PlannedKind;
use crate::volumes::{Unsupported, VolumeGroup, VolumePlugin};
use anyhow::{Context as _, anyhow};
use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, Container, DownwardAPIVolumeFile, KeyToPath,
    PodCertificateProjection, ProjectedVolumeSource, ServiceAccountTokenProjection, Volume,
    VolumeProjection,
};
use std::sync::Arc;

/// The API's default mode.
const DEFAULT_MODE: i32 = 0o644;
/// Mode of tokens, keys and trust anchors whose file has an owner.
const OWNERS_ONLY: u32 = 0o600;

/// A content volume: configMap, secret, downwardAPI or projected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContentVolume {
    /// The volume plugin.
    pub(super) plugin: VolumePlugin,
    /// Size limit of its tmpfs in bytes; `None` for a volume on disk.
    pub(super) memory: Option<u64>,
    /// The pod's `fsGroup`.
    pub(super) group: VolumeGroup,
    /// The sources; the files of later ones replace those of earlier ones.
    pub(super) sources: Vec<VolumeFileSource>,
    /// Mount points of other volumes in it, as relative paths.
    pub(super) mount_points: Vec<String>,
}

/// One source of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VolumeFileSource {
    /// Files with fields of the pod.
    Pod(Payload),
    /// Entries of a configmap or secret.
    Object(ObjectSource),
    /// A token of the pod's service account.
    Token(TokenSource),
    /// A private key of the pod and its certificate.
    Certificate(CertificateSource),
    /// Trust anchors of ClusterTrustBundles.
    Bundle(BundleSource),
}

impl VolumeFileSource {
    /// What distinguishes this source from others that a volume may have.
    pub(super) fn identity(&self) -> String {
        match self {
            Self::Pod(payload) => {
                let paths: Vec<_> = payload.files().map(|(path, _)| path).collect();
                format!("pod {paths:?}")
            }
            Self::Object(object) => {
                let items = object.items.iter();
                let items: Vec<_> = items.map(|item| (&item.key, &item.path, item.mode)).collect();
                let (key, mode) = (&object.key, object.default_mode);
                format!(
                    "{:?} {}/{} {items:?} {mode:o} {}",
                    key.kind, key.namespace, key.name, object.optional
                )
            }
            Self::Token(token) => format!("token {:?} {:o}", token.path, token.mode),
            Self::Certificate(certificate) => {
                let paths =
                    [&certificate.bundle_path, &certificate.key_path, &certificate.chain_path];
                format!("certificate {paths:?} {:o}", certificate.mode)
            }
            Self::Bundle(bundle) => format!("bundle {:?} {:o}", bundle.path, bundle.mode),
        }
    }
}

/// Trust anchors of ClusterTrustBundles as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BundleSource {
    /// Which bundles.
    pub(super) choice: BundleChoice,
    /// A missing bundle is no error.
    pub(super) optional: bool,
    /// Path of the file.
    pub(super) path: String,
    /// Its permission bits.
    pub(super) mode: u32,
    /// Its owner, if all containers run as the same user.
    pub(super) owner: Option<u32>,
}

/// A token as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenSource {
    /// Which token.
    pub(super) key: TokenKey,
    /// Path of the file.
    pub(super) path: String,
    /// Its permission bits.
    pub(super) mode: u32,
    /// Its owner, if all containers run as the same user.
    pub(super) owner: Option<u32>,
}

/// A private key and its certificate as files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CertificateSource {
    /// Which certificate.
    pub(super) key: PodCertificateKey,
    /// Path of a file with both, the key first.
    pub(super) bundle_path: Option<String>,
    /// Path of the key's file.
    pub(super) key_path: Option<String>,
    /// Path of the file with the certificate chain.
    pub(super) chain_path: Option<String>,
    /// Their permission bits.
    pub(super) mode: u32,
    /// Their owner, if all containers run as the same user.
    pub(super) owner: Option<u32>,
}

/// Entries of a configmap or secret as files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectSource {
    /// Which object.
    pub(super) key: ObjectKey,
    /// The entries; empty for all.
    pub(super) items: Vec<FileItem>,
    /// Mode of files without a mode of their own.
    pub(super) default_mode: u32,
    /// A missing object or entry is no error.
    pub(super) optional: bool,
}

/// One entry of an object as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileItem {
    /// The entry.
    pub(super) key: String,
    /// Path of the file.
    pub(super) path: String,
    /// Its permission bits.
    pub(super) mode: Option<u32>,
}

/// Plans a content volume.
pub(super) fn plan(planning: &Planning<'_>) -> anyhow::Result<PlannedKind> {
    let (pod, volume) = (planning.pod, planning.volume);
    let projected = volume.projected.as_ref().and_then(|it| it.sources.as_ref());
    let mut projected = projected.into_iter().flatten();
    if !planning.certificates && projected.any(|source| source.pod_certificate.is_some()) {
        let what = "podCertificate without the feature gate PodCertificateRequest";
        return Ok(Some(Arc::new(Unsupported(what.into()))));
    }
    let sources = sources(pod, volume, planning.node).map_err(|errors| aggregate(&errors))?;
    let Some((plugin, sources)) = sources else {
        return Ok(None);
    };
    Ok(Some(Arc::new(ContentVolume {
        plugin,
        // Configmaps are the only content volumes that upstream keeps on disk.
        memory: match plugin {
            CONFIG_MAP => None,
            _ => Some(planning.memory_size(None)?),
        },
        group: planning.group()?,
        sources,
        mount_points: mount_points(pod, &volume.name)?,
    })))
}

/// The plugin and sources of a volume; `None` if it is not a content volume.
///
/// # Errors
/// A field reference is invalid.
fn sources(
    pod: &Pod,
    volume: &Volume,
    node: &NodeFacts,
) -> Result<Option<(VolumePlugin, Vec<VolumeFileSource>)>, Vec<anyhow::Error>> {
    if let Some(wanted) = &volume.config_map {
        let object = object_of(pod, wanted.default_mode);
        let (items, optional) = (&wanted.items, wanted.optional);
        let source = object(ObjectKind::ConfigMap, &wanted.name, items, optional);
        return Ok(Some((CONFIG_MAP, vec![source])));
    }
    if let Some(wanted) = &volume.secret {
        let object = object_of(pod, wanted.default_mode);
        let name = wanted.secret_name.as_deref().unwrap_or_default();
        let source = object(ObjectKind::Secret, name, &wanted.items, wanted.optional);
        return Ok(Some((SECRET, vec![source])));
    }
    if let Some(wanted) = &volume.downward_api {
        let items = wanted.items.as_deref().unwrap_or_default();
        let files = pod_files(pod, items, wanted.default_mode, node)?;
        return Ok(Some((DOWNWARD_API, vec![VolumeFileSource::Pod(files)])));
    }
    match &volume.projected {
        Some(wanted) => Ok(Some((PROJECTED, projected(pod, &volume.name, wanted, node)?))),
        None => Ok(None),
    }
}

fn projected(
    pod: &Pod,
    volume: &str,
    wanted: &ProjectedVolumeSource,
    node: &NodeFacts,
) -> Result<Vec<VolumeFileSource>, Vec<anyhow::Error>> {
    let (mut sources, mut errors) = (Vec::new(), Vec::new());
    let object = object_of(pod, wanted.default_mode);
    for (index, projection) in wanted.sources.iter().flatten().enumerate() {
        if let Some(source) = &projection.secret {
            let (items, optional) = (&source.items, source.optional);
            sources.push(object(ObjectKind::Secret, &source.name, items, optional));
        } else if let Some(source) = &projection.config_map {
            let (items, optional) = (&source.items, source.optional);
            sources.push(object(ObjectKind::ConfigMap, &source.name, items, optional));
        } else if let Some(source) = &projection.downward_api {
            let items = source.items.as_deref().unwrap_or_default();
            match pod_files(pod, items, wanted.default_mode, node) {
                Ok(files) => sources.push(VolumeFileSource::Pod(files)),
                Err(more) => errors.extend(more),
            }
        } else if let Some(source) = &projection.service_account_token {
            sources.push(VolumeFileSource::Token(token(pod, source, wanted.default_mode)));
        } else if let Some(source) = &projection.cluster_trust_bundle {
            match bundle(pod, source, wanted.default_mode) {
                Ok(source) => sources.push(VolumeFileSource::Bundle(source)),
                Err(error) => errors.push(error),
            }
        } else if let Some(source) = &projection.pod_certificate {
            let source = certificate(pod, (volume, index), source, wanted.default_mode);
            sources.push(VolumeFileSource::Certificate(source));
        } else if *projection != VolumeProjection::default() {
            errors.push(anyhow!(
                "an unknown source of a projected volume is not supported by this kubelet"
            ));
        }
    }
    if errors.is_empty() {
        sources.shrink_to_fit();
        Ok(sources)
    } else {
        Err(errors)
    }
}

fn certificate(
    pod: &Pod,
    (volume, source_index): (&str, usize),
    source: &PodCertificateProjection,
    default_mode: Option<i32>,
) -> CertificateSource {
    let (mode, owner) = mode_and_owner(pod, default_mode);
    let account = pod.spec().and_then(|spec| spec.service_account_name.clone());
    let path = |path: &Option<String>| path.clone().filter(|path| !path.is_empty());
    CertificateSource {
        key: PodCertificateKey {
            namespace: pod.namespace().to_owned(),
            pod_name: pod.name().to_owned(),
            pod_uid: pod.uid(),
            service_account: account.unwrap_or_default(),
            volume: volume.to_owned(),
            source_index,
            signer: source.signer_name.clone(),
            key_type: source.key_type.clone(),
            max_expiration_seconds: source.max_expiration_seconds,
            annotations: source.user_annotations.clone().unwrap_or_default(),
        },
        bundle_path: path(&source.credential_bundle_path),
        key_path: path(&source.key_path),
        chain_path: path(&source.certificate_chain_path),
        mode,
        owner,
    }
}

fn token(
    pod: &Pod,
    source: &ServiceAccountTokenProjection,
    default_mode: Option<i32>,
) -> TokenSource {
    let spec = pod.spec();
    let (mode, owner) = mode_and_owner(pod, default_mode);
    let audience = source.audience.clone();
    let account = spec.and_then(|spec| spec.service_account_name.clone());
    TokenSource {
        key: TokenKey {
            namespace: pod.namespace().to_owned(),
            service_account: account.unwrap_or_default(),
            audience: audience.filter(|audience| !audience.is_empty()),
            expiration_seconds: source.expiration_seconds,
            pod_name: pod.name().to_owned(),
            pod_uid: pod.uid(),
        },
        path: source.path.clone(),
        mode,
        owner,
    }
}

fn bundle(
    pod: &Pod,
    source: &ClusterTrustBundleProjection,
    default_mode: Option<i32>,
) -> anyhow::Result<BundleSource> {
    let (mode, owner) = mode_and_owner(pod, default_mode);
    Ok(BundleSource {
        choice: BundleChoice::of(source)?,
        optional: source.optional == Some(true),
        path: source.path.clone(),
        mode,
        owner,
    })
}

fn mode_and_owner(pod: &Pod, default_mode: Option<i32>) -> (u32, Option<u32>) {
    let context = pod.spec().and_then(|spec| spec.security_context.as_ref());
    let group = context.and_then(|context| context.fs_group);
    let owner = common_user(pod);
    // The group gets read permission when the mode is set for `fsGroup`.
    let mode = if owner.is_some() || group.is_some() {
        OWNERS_ONLY
    } else {
        bits(default_mode.unwrap_or(DEFAULT_MODE))
    };
    (mode, owner)
}

/// The user that all containers run as; `None` if there is no such user (upstream's `FsUserFrom`).
fn common_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec()?;
    let of_pod = spec.security_context.as_ref().and_then(|c| c.run_as_user);
    let mut containers = pod.init_containers().iter().chain(pod.containers());
    let user = |container: &Container| {
        let own = container.security_context.as_ref();
        own.and_then(|context| context.run_as_user).or(of_pod)
    };
    let first = user(containers.next()?)?;
    let same = containers.all(|container| user(container) == Some(first));
    same.then(|| u32::try_from(first).ok()).flatten()
}

/// Makes sources of configmaps and secrets in the pod's namespace.
fn object_of(
    pod: &Pod,
    default_mode: Option<i32>,
) -> impl Fn(ObjectKind, &str, &Option<Vec<KeyToPath>>, Option<bool>) -> VolumeFileSource {
    move |kind, name, items, optional| {
        let item = |item: &KeyToPath| FileItem {
            key: item.key.clone(),
            path: item.path.clone(),
            mode: item.mode.map(bits),
        };
        VolumeFileSource::Object(ObjectSource {
            key: ObjectKey { kind, namespace: pod.namespace().to_owned(), name: name.to_owned() },
            items: items.iter().flatten().map(item).collect(),
            default_mode: bits(default_mode.unwrap_or(DEFAULT_MODE)),
            optional: optional == Some(true),
        })
    }
}

/// The files of a downwardAPI source (upstream's `CollectData`).
fn pod_files(
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    default_mode: Option<i32>,
    node: &NodeFacts,
) -> Result<Payload, Vec<anyhow::Error>> {
    let mut payload = Payload::default();
    let mut errors = Vec::new();
    for item in items {
        let mode = bits(item.mode.or(default_mode).unwrap_or(DEFAULT_MODE));
        let added = text_of(pod, item, node)
            .and_then(|text| Ok(payload.insert(&item.path, text.into(), mode)?));
        errors.extend(added.err());
    }
    if errors.is_empty() { Ok(payload) } else { Err(errors) }
}

fn text_of(pod: &Pod, item: &DownwardAPIVolumeFile, node: &NodeFacts) -> anyhow::Result<String> {
    if let Some(field) = &item.field_ref {
        let path = &field.field_path;
        return pod_field(pod, path).with_context(|| format!("unsupported fieldPath: {path}"));
    }
    match &item.resource_field_ref {
        Some(wanted) => Ok(field_ref_value(pod, None, wanted, node)?),
        None => Ok(String::new()),
    }
}

fn bits(mode: i32) -> u32 {
    mode.cast_unsigned() & 0o777
}
