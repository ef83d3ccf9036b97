//! Variables that come from ConfigMaps and Secrets. Pure.

use crate::apiserver::configmap_secret::{ConfigMapsAndSecrets, ObjectData, ObjectKey, ObjectKind};
use crate::model::{Pod, PodExt};
use anyhow::bail;
use k8s_openapi::api::core::v1::{Container, EnvFromSource, EnvVarSource};
use std::collections::BTreeSet;

/// The config maps and secrets that the container's variables refer to.
pub fn wanted_configmaps_and_secrets(pod: &Pod, container: &Container) -> BTreeSet<ObjectKey> {
    let all = container.env_from.iter().flatten();
    let all = all.filter_map(|source| env_from(source).map(|(kind, name, _)| (kind, name)));
    let single = container.env.iter().flatten().filter_map(|variable| {
        let reference = key_reference(variable.value_from.as_ref()?)?;
        // `valueFrom` is ignored if `value` is set.
        let given = variable.value.as_ref().is_some_and(|v| !v.is_empty());
        (!given).then_some((reference.kind, reference.name))
    });
    all.chain(single).map(|(kind, name)| object_key(pod, kind, name)).collect()
}

/// All entries of a config map or secret as variables; none if an optional one does not exist.
pub(super) fn variables_from(
    pod: &Pod,
    source: &EnvFromSource,
    objects: &ConfigMapsAndSecrets,
) -> anyhow::Result<Vec<(String, String)>> {
    let Some((kind, name, optional)) = env_from(source) else {
        return Ok(Vec::new());
    };
    let key = object_key(pod, kind, name);
    let Some(object) = object(&key, optional, objects)? else {
        return Ok(Vec::new());
    };
    let prefix = source.prefix.as_deref().unwrap_or_default();
    let mut variables = Vec::new();
    for (entry, value) in object.entries() {
        if let Some(text) = text_of(&key, object, entry, value)? {
            variables.push((format!("{prefix}{entry}"), text.to_string()));
        }
    }
    Ok(variables)
}

/// Kind, name and `optional` of an `envFrom` reference.
fn env_from(source: &EnvFromSource) -> Option<(ObjectKind, &str, bool)> {
    if let Some(wanted) = &source.config_map_ref {
        let optional = wanted.optional == Some(true);
        return Some((ObjectKind::ConfigMap, &wanted.name, optional));
    }
    let wanted = source.secret_ref.as_ref()?;
    let optional = wanted.optional == Some(true);
    Some((ObjectKind::Secret, &wanted.name, optional))
}

/// A reference to one key.
pub(super) struct KeyReference<'a> {
    kind: ObjectKind,
    name: &'a str,
    key: &'a str,
    optional: bool,
}

/// The key that a variable refers to.
pub(super) fn key_reference(from: &EnvVarSource) -> Option<KeyReference<'_>> {
    if let Some(wanted) = &from.config_map_key_ref {
        return Some(KeyReference {
            kind: ObjectKind::ConfigMap,
            name: &wanted.name,
            key: &wanted.key,
            optional: wanted.optional == Some(true),
        });
    }
    let wanted = from.secret_key_ref.as_ref()?;
    Some(KeyReference {
        kind: ObjectKind::Secret,
        name: &wanted.name,
        key: &wanted.key,
        optional: wanted.optional == Some(true),
    })
}

pub(super) fn object_key(pod: &Pod, kind: ObjectKind, name: &str) -> ObjectKey {
    ObjectKey { kind, namespace: pod.namespace().to_string(), name: name.to_string() }
}

/// The config map or secret; `None` if an optional one does not exist.
fn object<'a>(
    key: &ObjectKey,
    optional: bool,
    objects: &'a ConfigMapsAndSecrets,
) -> anyhow::Result<Option<&'a ObjectData>> {
    match objects.get(key) {
        Some(Ok(object)) => Ok(Some(object)),
        Some(Err(error)) if optional && error.is_not_found() => Ok(None),
        Some(Err(error)) => Err(error.clone().into()),
        None => bail!("{} {:?} was not looked up", key.kind, key.name),
    }
}

/// A value as text; `None` for one of a ConfigMap that is in `binaryData` or is not UTF-8.
fn text_of<'a>(
    key: &ObjectKey,
    object: &ObjectData,
    entry: &str,
    value: &'a [u8],
) -> anyhow::Result<Option<&'a str>> {
    if object.is_binary(entry) {
        return Ok(None);
    }
    match (std::str::from_utf8(value), key.kind) {
        (Ok(text), _) => Ok(Some(text)),
        (Err(_), ObjectKind::ConfigMap) => Ok(None),
        (Err(_), ObjectKind::Secret) => {
            bail!("key {entry} in secret {:?} is not UTF-8 text and cannot be a variable", key.name)
        }
    }
}

/// The value of one key; `None` if an optional one does not exist.
pub(super) fn entry_value(
    pod: &Pod,
    wanted: &KeyReference<'_>,
    objects: &ConfigMapsAndSecrets,
) -> anyhow::Result<Option<String>> {
    let key = object_key(pod, wanted.kind, wanted.name);
    let Some(object) = object(&key, wanted.optional, objects)? else {
        return Ok(None);
    };
    let text = match object.get(wanted.key) {
        Some(value) => text_of(&key, object, wanted.key, value)?,
        None => None,
    };
    match text {
        Some(text) => Ok(Some(text.to_string())),
        None if wanted.optional => Ok(None),
        None => {
            let kind = match wanted.kind {
                ObjectKind::ConfigMap => "ConfigMap",
                ObjectKind::Secret => "Secret",
            };
            let (key, namespace, name) = (wanted.key, &key.namespace, &key.name);
            bail!("couldn't find key {key} in {kind} {namespace}/{name}")
        }
    }
}
