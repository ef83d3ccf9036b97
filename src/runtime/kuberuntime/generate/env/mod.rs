//! The environment of a container. Pure.

pub mod env_file;
pub mod expansion;
pub mod configmap_secret;
mod services;

use crate::apiserver::configmap_secret::ConfigMapsAndSecrets;
use crate::model::{NodeFacts, Pod, PodExt, field_ref_value, pod_field};
use anyhow::{Context as _, bail};
use configmap_secret::{entry_value, key_reference, variables_from};
use env_file::value_of_key;
use expansion::expand;
use k8s_openapi::api::core::v1::{Container, EnvVar, FileKeySelector};
pub use services::variables_of_services;
use std::collections::{BTreeMap, HashMap};

/// Variables in the order of their first definition.
pub type Environment = Vec<(String, String)>;

/// Sources of values other than the pod's spec.
#[derive(Clone, Copy, Debug)]
pub struct EnvInputs<'a> {
    /// Addresses of the pod, primary first; of the node with host network.
    pub pod_ips: &'a [String],
    /// The node.
    pub node: &'a NodeFacts,
    /// Addresses of the node, primary first.
    pub host_ips: &'a [String],
    /// The files of [`wanted_files`], read.
    pub files: &'a EnvFiles,
    /// The ConfigMaps and Secrets of [`configmap_secret::wanted_configmaps_and_secrets`], looked up.
    pub configmaps_and_secrets: &'a ConfigMapsAndSecrets,
    /// Service environment variables ([`variables_of_services`]).
    pub services: &'a Environment,
}

/// A file of variables in a volume of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvFile {
    /// Where it is on the node, for messages.
    pub host_path: String,
    /// Its content; `Ok(None)` if it does not exist, else the text of the error.
    pub content: Result<Option<Vec<u8>>, String>,
}

/// Environment files by volume name and path. Files of unknown volumes are absent.
pub type EnvFiles = BTreeMap<(String, String), EnvFile>;

/// The files that a container's variables come from, as volume name and path in it.
pub fn wanted_files(container: &Container) -> impl Iterator<Item = (&str, &str)> {
    let variables = container.env.as_deref().unwrap_or_default().iter();
    variables
        .filter_map(|variable| variable.value_from.as_ref()?.file_key_ref.as_ref())
        .map(|file| (file.volume_name.as_str(), file.path.as_str()))
}

/// The container's variables (upstream's `makeEnvironmentVariables`): `envFrom` first, then `env`, whose entries may
/// refer to earlier variables and to service variables. The last definition of a name wins; service variables are added
/// where a name is not defined.
pub fn make_environment(
    pod: &Pod,
    container: &Container,
    inputs: &EnvInputs<'_>,
) -> anyhow::Result<Environment> {
    let mut variables = Variables::default();
    for source in container.env_from.iter().flatten() {
        for (name, value) in variables_from(pod, source, inputs.configmaps_and_secrets)? {
            variables.set(&name, value);
        }
    }
    for variable in container.env.iter().flatten() {
        if let Some(value) = value_of(pod, container, variable, &variables, inputs)? {
            variables.set(&variable.name, value);
        }
    }
    for (name, value) in inputs.services {
        if variables.get(name).is_none() {
            variables.set(name, value.clone());
        }
    }
    Ok(variables.list)
}

/// Variables in order, and the index of each.
#[derive(Default)]
struct Variables {
    list: Environment,
    index: HashMap<String, usize>,
}

impl Variables {
    fn set(&mut self, name: &str, value: String) {
        let known = self.index.get(name).and_then(|at| self.list.get_mut(*at));
        if let Some((_, known)) = known {
            *known = value;
            return;
        }
        self.index.insert(name.to_string(), self.list.len());
        self.list.push((name.to_string(), value));
    }

    fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.list.get(*self.index.get(name)?)?;
        Some(value.as_str())
    }
}

fn value_of(
    pod: &Pod,
    container: &Container,
    variable: &EnvVar,
    above: &Variables,
    inputs: &EnvInputs<'_>,
) -> anyhow::Result<Option<String>> {
    if let Some(value) = variable.value.as_deref().filter(|value| !value.is_empty()) {
        let of_service = |name: &str| {
            let mut all = inputs.services.iter().rev();
            all.find(|(known, _)| known == name).map(|(_, value)| value.as_str())
        };
        let known = |name: &str| above.get(name).or_else(|| of_service(name));
        return Ok(Some(expand(value, known)));
    }
    let Some(from) = &variable.value_from else {
        return Ok(Some(String::new()));
    };
    if let Some(field) = &from.field_ref {
        return field_value(pod, &field.field_path, inputs).map(Some);
    }
    if let Some(resource) = &from.resource_field_ref {
        return Ok(Some(field_ref_value(pod, Some(container), resource, inputs.node)?));
    }
    if let Some(wanted) = key_reference(from) {
        return entry_value(pod, &wanted, inputs.configmaps_and_secrets);
    }
    if let Some(file) = &from.file_key_ref {
        return file_value(file, inputs.files);
    }
    bail!("the source of environment variable {:?} is not supported by this kubelet", variable.name)
}

/// The value of a key in a file. If optional, the file or the key may be missing.
fn file_value(wanted: &FileKeySelector, files: &EnvFiles) -> anyhow::Result<Option<String>> {
    let place = (wanted.volume_name.clone(), wanted.path.clone());
    let Some(file) = files.get(&place) else {
        bail!("cannot find the volume {:?} referenced by FileKeyRef", place.0);
    };
    let optional = wanted.optional == Some(true);
    let content = match &file.content {
        Ok(Some(content)) => content,
        Ok(None) if optional => return Ok(None),
        Ok(None) => bail!(
            "couldn't parse env file: failed to open environment variable file: it does not exist"
        ),
        Err(error) => bail!("couldn't parse env file: {error}"),
    };
    let value = value_of_key(content, &wanted.key).context("couldn't parse env file")?;
    match (value.is_empty(), optional) {
        (false, _) => Ok(Some(value)),
        (true, true) => Ok(None),
        (true, false) => bail!(
            "environment variable key {:?} not found in file {:?}",
            wanted.key,
            file.host_path
        ),
    }
}

fn field_value(pod: &Pod, path: &str, inputs: &EnvInputs<'_>) -> anyhow::Result<String> {
    let spec = pod.spec();
    let or_empty = |text: Option<&String>| Ok(text.cloned().unwrap_or_default());
    match path {
        "spec.nodeName" => or_empty(spec.and_then(|s| s.node_name.as_ref())),
        "spec.serviceAccountName" => or_empty(spec.and_then(|s| s.service_account_name.as_ref())),
        "status.hostIP" | "status.hostIPs" if inputs.host_ips.is_empty() => {
            bail!("host IP unknown; known addresses: []")
        }
        "status.hostIP" => or_empty(inputs.host_ips.first()),
        "status.hostIPs" => Ok(inputs.host_ips.join(",")),
        "status.podIP" => or_empty(inputs.pod_ips.first()),
        "status.podIPs" => Ok(inputs.pod_ips.join(",")),
        // Only downward API volumes support all labels or annotations at once.
        "metadata.labels" | "metadata.annotations" => bail!("unsupported fieldPath: {path}"),
        _ => pod_field(pod, path).with_context(|| format!("unsupported fieldPath: {path}")),
    }
}

#[cfg(test)]
mod tests;
