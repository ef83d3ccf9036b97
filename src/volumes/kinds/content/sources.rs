//! Builds the files of a volume from its sources. Pure.

use super::Payload;
use super::plan::{BundleSource, CertificateSource, ObjectSource, TokenSource, VolumeFileSource};
use crate::apiserver::configmap_secret::{ConfigMapsAndSecrets, ObjectData, ObjectKey, ObjectKind};
use crate::apiserver::pod_certificate::FoundCertificates;
use crate::apiserver::token::FoundTokens;
use crate::apiserver::trust_bundle::FoundBundles;
use crate::volumes::cluster::VolumeInputs;
use crate::volumes::error::aggregate;
use anyhow::{Context as _, bail};
use std::collections::BTreeSet;

/// The configmaps and secrets that sources need.
pub(super) fn object_keys(sources: &[VolumeFileSource]) -> BTreeSet<ObjectKey> {
    let key = |source: &VolumeFileSource| match source {
        VolumeFileSource::Object(object) => Some(object.key.clone()),
        _ => None,
    };
    sources.iter().filter_map(key).collect()
}

/// Whether the files depend on anything that may change besides configmaps and secrets.
pub(super) fn may_change(sources: &[VolumeFileSource]) -> bool {
    let is_constant = |source: &VolumeFileSource| {
        matches!(source, VolumeFileSource::Pod(_) | VolumeFileSource::Object(_))
    };
    !sources.iter().all(is_constant)
}

/// Whether the configmaps and secrets of the sources all exist and are immutable, and nothing else in them may change.
pub(super) fn is_fixed(sources: &[VolumeFileSource], found: &ConfigMapsAndSecrets) -> bool {
    let keys = object_keys(sources);
    let fixed = |key| matches!(found.get(key), Some(Ok(object)) if object.is_immutable());
    !keys.is_empty() && keys.iter().all(fixed) && !may_change(sources)
}

/// All files of the volume.
///
/// # Errors
/// Every missing configmap or secret, and every invalid path.
pub(super) fn payload(
    sources: &[VolumeFileSource],
    inputs: &VolumeInputs,
) -> anyhow::Result<Payload> {
    let mut payload = Payload::default();
    let mut errors = Vec::new();
    for source in sources {
        let added = match source {
            VolumeFileSource::Pod(files) => {
                payload.extend(files.clone());
                Ok(())
            }
            VolumeFileSource::Object(source) => {
                let files = object_files(source, &inputs.configmaps_and_secrets);
                files.map(|files| payload.extend(files))
            }
            VolumeFileSource::Token(source) => add_token(source, &inputs.tokens, &mut payload),
            VolumeFileSource::Certificate(source) => {
                add_certificate(source, &inputs.certificates, &mut payload)
            }
            VolumeFileSource::Bundle(source) => {
                add_bundle(source, inputs.bundles.as_ref(), &mut payload)
            }
        };
        errors.extend(added.err());
    }
    if errors.is_empty() {
        errors.extend(payload.check().err().map(Into::into));
    }
    if errors.is_empty() { Ok(payload) } else { Err(aggregate(&errors)) }
}

fn add_token(
    source: &TokenSource,
    tokens: &FoundTokens,
    payload: &mut Payload,
) -> anyhow::Result<()> {
    let token = tokens.get(&source.key);
    let token = token.context("the token was not looked up")?.clone()?;
    payload.insert_owned(&source.path, token.0, source.mode, source.owner)?;
    Ok(())
}

fn add_certificate(
    source: &CertificateSource,
    certificates: &FoundCertificates,
    payload: &mut Payload,
) -> anyhow::Result<()> {
    let found = certificates.get(&source.key);
    let found = found.context("the certificate was not looked up")?.clone()?;
    let bundle = [found.key.as_ref(), found.chain.as_ref()].concat();
    for (path, content) in [
        (&source.bundle_path, bundle.into()),
        (&source.key_path, found.key),
        (&source.chain_path, found.chain),
    ] {
        if let Some(path) = path {
            payload.insert_owned(path, content, source.mode, source.owner)?;
        }
    }
    Ok(())
}

fn add_bundle(
    source: &BundleSource,
    bundles: Option<&FoundBundles>,
    payload: &mut Payload,
) -> anyhow::Result<()> {
    let bundles = bundles.context("the ClusterTrustBundles were not looked up")?;
    let bundles = bundles.clone()?;
    let anchors = bundles.trust_anchors(&source.choice, source.optional)?;
    payload.insert_owned(&source.path, anchors, source.mode, source.owner)?;
    Ok(())
}

/// The files of a configmap or secret (upstream's `MakePayload`).
fn object_files(source: &ObjectSource, found: &ConfigMapsAndSecrets) -> anyhow::Result<Payload> {
    let none = ObjectData::default();
    let object = match found.get(&source.key) {
        Some(Ok(object)) => object.as_ref(),
        Some(Err(error)) if source.optional && error.is_not_found() => &none,
        Some(Err(error)) => return Err(error.clone().into()),
        None => bail!("{} {:?} was not looked up", source.key.kind, source.key.name),
    };
    let mut payload = Payload::default();
    if source.items.is_empty() {
        for (key, value) in object.entries() {
            payload.insert(key, value.clone(), source.default_mode)?;
        }
    }
    for item in &source.items {
        let Some(value) = object.get(&item.key) else {
            if source.optional {
                continue;
            }
            match source.key.kind {
                ObjectKind::ConfigMap => {
                    bail!("configmap references non-existent config key: {}", item.key)
                }
                ObjectKind::Secret => {
                    bail!("references non-existent secret key: {}", item.key)
                }
            }
        };
        let mode = item.mode.unwrap_or(source.default_mode);
        payload.insert(&item.path, value.clone(), mode)?;
    }
    Ok(payload)
}
