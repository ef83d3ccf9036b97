//! The environment of a container. Pure.

use super::expansion::expand;
use crate::model::{Pod, PodExt, Quantity, QuantityError};
use crate::resources::{BadAmount, NodeFacts, requests};
use k8s_openapi::api::core::v1::{Container, EnvVar, ResourceFieldSelector};

/// Variables in the order of their first definition.
pub type Environment = Vec<(String, String)>;

/// What values may come from besides the pod's spec.
#[derive(Clone, Copy, Debug)]
pub struct EnvInputs<'a> {
    /// Addresses of the pod, primary first; of the node with host network.
    pub pod_ips: &'a [String],
    /// The node.
    pub node: &'a NodeFacts,
}

/// Why a variable has no value; the text equals upstream's where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// A ConfigMap or Secret is wanted and there is no API server to ask.
    #[error("couldn't get {kind} {namespace}/{name}, no kubeClient defined")]
    NoApi {
        /// `configMap` or `secret`.
        kind: &'static str,
        /// Namespace of the pod.
        namespace: String,
        /// Name of the object.
        name: String,
    },
    /// A field that the downward API does not have.
    #[error("unsupported fieldPath: {0}")]
    FieldPath(String),
    /// The node's address is wanted and not known.
    #[error("host IP unknown; known addresses: []")]
    NoHostIp,
    /// A resource that the downward API does not have.
    #[error("unsupported container resource : {0}")]
    Resource(String),
    /// `containerName` names nobody.
    #[error("container {0} not found")]
    Container(String),
    /// `divisor` is not a quantity.
    #[error("divisor of resourceFieldRef for {0}")]
    Divisor(String, #[source] QuantityError),
    /// A resource amount of the pod cannot be read.
    #[error(transparent)]
    Amount(#[from] BadAmount),
    /// A source this kubelet does not know.
    #[error("the source of environment variable {0:?} is not supported by this kubelet")]
    Source(String),
}

/// The container's variables (upstream's `makeEnvironmentVariables`): every value may refer to the
/// variables above it, and the last definition of a name wins.
pub fn make_environment(
    pod: &Pod,
    container: &Container,
    inputs: &EnvInputs<'_>,
) -> Result<Environment, EnvError> {
    refuse_env_from(pod, container)?;
    let mut environment = Environment::new();
    for variable in container.env.as_deref().unwrap_or_default() {
        let value = value_of(pod, container, variable, &environment, inputs)?;
        let Some(value) = value else {
            continue;
        };
        match environment
            .iter_mut()
            .find(|(name, _)| *name == variable.name)
        {
            Some((_, known)) => *known = value,
            None => environment.push((variable.name.clone(), value)),
        }
    }
    Ok(environment)
}

/// `envFrom` needs an API server.
fn refuse_env_from(pod: &Pod, container: &Container) -> Result<(), EnvError> {
    for source in container.env_from.as_deref().unwrap_or_default() {
        if let Some(wanted) = &source.config_map_ref {
            return Err(no_api(pod, "configMap", &wanted.name));
        }
        if let Some(wanted) = &source.secret_ref {
            return Err(no_api(pod, "secret", &wanted.name));
        }
    }
    Ok(())
}

fn no_api(pod: &Pod, kind: &'static str, name: &str) -> EnvError {
    EnvError::NoApi {
        kind,
        namespace: pod.namespace().to_string(),
        name: name.to_string(),
    }
}

fn value_of(
    pod: &Pod,
    container: &Container,
    variable: &EnvVar,
    above: &Environment,
    inputs: &EnvInputs<'_>,
) -> Result<Option<String>, EnvError> {
    if let Some(value) = variable.value.as_deref().filter(|value| !value.is_empty()) {
        let lookup = |name: &str| {
            let found = above.iter().find(|(known, _)| known == name)?;
            Some(found.1.as_str())
        };
        return Ok(Some(expand(value, lookup)));
    }
    let Some(from) = &variable.value_from else {
        return Ok(Some(String::new()));
    };
    if let Some(field) = &from.field_ref {
        return field_value(pod, &field.field_path, inputs).map(Some);
    }
    if let Some(resource) = &from.resource_field_ref {
        return resource_value(pod, container, resource, inputs.node).map(Some);
    }
    if let Some(wanted) = &from.config_map_key_ref {
        return Err(no_api(pod, "configMap", &wanted.name));
    }
    if let Some(wanted) = &from.secret_key_ref {
        return Err(no_api(pod, "secret", &wanted.name));
    }
    Err(EnvError::Source(variable.name.clone()))
}

/// A field of the pod by its path.
fn field_value(pod: &Pod, path: &str, inputs: &EnvInputs<'_>) -> Result<String, EnvError> {
    let spec = pod.spec();
    let own = |text: Option<&String>| Ok(text.cloned().unwrap_or_default());
    match path {
        "metadata.name" => Ok(pod.name().to_string()),
        "metadata.namespace" => Ok(pod.namespace().to_string()),
        "metadata.uid" => Ok(pod.uid().to_string()),
        "spec.nodeName" => own(spec.and_then(|s| s.node_name.as_ref())),
        "spec.serviceAccountName" => own(spec.and_then(|s| s.service_account_name.as_ref())),
        "status.hostIP" => match inputs.node.host_ips.first() {
            Some(ip) => Ok(ip.clone()),
            None => Err(EnvError::NoHostIp),
        },
        "status.hostIPs" => match inputs.node.host_ips.as_slice() {
            [] => Err(EnvError::NoHostIp),
            ips => Ok(ips.join(",")),
        },
        "status.podIP" => own(inputs.pod_ips.first()),
        "status.podIPs" => Ok(inputs.pod_ips.join(",")),
        _ => {
            let (map, key) =
                subscript(path).ok_or_else(|| EnvError::FieldPath(path.to_string()))?;
            let values = match map {
                "metadata.labels" => pod.metadata.labels.as_ref(),
                "metadata.annotations" => pod.metadata.annotations.as_ref(),
                _ => return Err(EnvError::FieldPath(path.to_string())),
            };
            own(values.and_then(|values| values.get(key)))
        }
    }
}

/// Splits `metadata.labels['key']`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

fn resource_value(
    pod: &Pod,
    container: &Container,
    wanted: &ResourceFieldSelector,
    node: &NodeFacts,
) -> Result<String, EnvError> {
    let target = match wanted.container_name.as_deref() {
        None | Some("") => container,
        Some(name) => pod
            .container(name)
            .ok_or_else(|| EnvError::Container(name.to_string()))?,
    };
    let divisor = match &wanted.divisor {
        Some(divisor) => Quantity::from_api(divisor)
            .map_err(|e| EnvError::Divisor(wanted.resource.clone(), e))?,
        None => Quantity::ZERO,
    };
    let divisor = match divisor.is_zero() {
        true => Quantity::from_units(1),
        false => divisor,
    };
    let own = requests::of_container(target)?;
    let unknown = || EnvError::Resource(wanted.resource.clone());
    let (list, name) = wanted.resource.split_once('.').ok_or_else(unknown)?;
    let countable = matches!(
        name,
        requests::CPU | requests::MEMORY | requests::EPHEMERAL_STORAGE
    ) || name.starts_with(requests::HUGEPAGES_PREFIX);
    let amount = match list {
        "requests" if countable => own.request(name).unwrap_or_default(),
        "limits" if countable => match own.limit(name) {
            Some(limit) if !limit.is_zero() => limit,
            _ => ceiling(pod, name, node)?,
        },
        _ => return Err(unknown()),
    };
    let count = match name {
        requests::CPU => amount.milli_quotient(divisor),
        _ => amount.unit_quotient(divisor),
    };
    Ok(count.to_string())
}

/// What bounds a container that has no limit of its own: the pod's limit, else the node.
fn ceiling(pod: &Pod, resource: &str, node: &NodeFacts) -> Result<Quantity, EnvError> {
    if let Some(limit) = requests::of_pod_level(pod)?.limit(resource) {
        return Ok(limit);
    }
    Ok(match resource {
        requests::CPU => Quantity::from_milli(node.allocatable_milli_cpu),
        requests::MEMORY => Quantity::from_units(node.allocatable_memory_bytes),
        requests::EPHEMERAL_STORAGE => {
            Quantity::from_units(node.allocatable_ephemeral_storage_bytes)
        }
        _ => Quantity::ZERO,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kuberuntime::fixtures::{node, pod, pod_with};
    use serde_json::{Value, json};

    fn made(pod: &Pod) -> Result<Environment, EnvError> {
        let inputs = EnvInputs {
            pod_ips: &["10.1.0.5".into(), "fd00::5".into()],
            node: &node(),
        };
        make_environment(pod, &pod.containers()[0], &inputs)
    }

    fn env(list: Value) -> Result<Environment, EnvError> {
        let mut pod = pod_with(json!({
            "env": list,
            "resources": {"limits": {"cpu": "1500m"}, "requests": {"memory": "100Mi"}},
        }));
        pod.metadata.labels = Some([("app".into(), "web".into())].into());
        pod.metadata.annotations = Some([("a/b.c".into(), "note".into())].into());
        let spec = pod.spec.as_mut().unwrap();
        spec.node_name = Some("node-1".into());
        spec.service_account_name = Some("default".into());
        made(&pod)
    }

    fn pairs(environment: &Environment) -> Vec<(&str, &str)> {
        environment
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect()
    }

    #[test]
    fn values_refer_to_what_is_above_and_the_last_definition_wins() {
        let made = env(json!([
            {"name": "A", "value": "1"},
            {"name": "EARLY", "value": "$(LATE)"},
            {"name": "B", "value": "$(A)-$$(A)-$(NONE)"},
            {"name": "LATE", "value": "x"},
            {"name": "A", "value": "$(A)2"},
            {"name": "E"},
            {"name": "C", "value": "$(A)"},
        ]))
        .unwrap();
        assert_eq!(
            pairs(&made),
            [
                ("A", "12"),
                ("EARLY", "$(LATE)"),
                ("B", "1-$(A)-$(NONE)"),
                ("LATE", "x"),
                ("E", ""),
                ("C", "12"),
            ]
        );
    }

    #[test]
    fn fields_of_the_pod_are_found_by_path() {
        for (path, value) in [
            ("metadata.name", "web"),
            ("metadata.namespace", "shop"),
            ("metadata.uid", "u-1"),
            ("metadata.labels['app']", "web"),
            ("metadata.labels['none']", ""),
            ("metadata.annotations['a/b.c']", "note"),
            ("spec.nodeName", "node-1"),
            ("spec.serviceAccountName", "default"),
            ("status.hostIP", "192.0.2.1"),
            ("status.hostIPs", "192.0.2.1,2001:db8::1"),
            ("status.podIP", "10.1.0.5"),
            ("status.podIPs", "10.1.0.5,fd00::5"),
        ] {
            let made = env(json!([{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]));
            assert_eq!(made.unwrap()[0].1, value, "{path}");
        }
        for path in [
            "spec.containers",
            "metadata.labels",
            "metadata.labels['x",
            "status.phase['x']",
            "",
        ] {
            let made = env(json!([{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]));
            assert_eq!(
                made.unwrap_err().to_string(),
                format!("unsupported fieldPath: {path}")
            );
        }
    }

    #[test]
    fn amounts_are_divided_and_default_to_the_node() {
        let value = |resource: &str, divisor: Value| {
            let from = json!({"resourceFieldRef": {"resource": resource, "divisor": divisor}});
            env(json!([{"name": "X", "valueFrom": from}])).map(|made| made[0].1.clone())
        };
        let null = Value::Null;
        for (resource, divisor, expected) in [
            ("limits.cpu", null.clone(), "2"),
            ("limits.cpu", json!("1m"), "1500"),
            ("limits.cpu", json!("0"), "2"),
            ("requests.memory", null.clone(), "104857600"),
            ("requests.memory", json!("1Mi"), "100"),
            ("requests.cpu", null.clone(), "0"),
            ("limits.memory", json!("1Gi"), "4"),
            ("limits.ephemeral-storage", json!("1Gi"), "10"),
            ("limits.hugepages-2Mi", null.clone(), "0"),
        ] {
            assert_eq!(value(resource, divisor).unwrap(), expected, "{resource}");
        }
        for resource in ["limits.gpu", "cpu", "usage.cpu", ""] {
            assert_eq!(
                value(resource, null.clone()).unwrap_err().to_string(),
                format!("unsupported container resource : {resource}")
            );
        }
        assert!(matches!(
            value("limits.cpu", json!("x")),
            Err(EnvError::Divisor(..))
        ));
        let elsewhere =
            json!({"resourceFieldRef": {"resource": "limits.cpu", "containerName": "zz"}});
        assert_eq!(
            env(json!([{"name": "X", "valueFrom": elsewhere}]))
                .unwrap_err()
                .to_string(),
            "container zz not found"
        );
    }

    #[test]
    fn a_limit_at_pod_level_comes_before_the_node() {
        let from = json!({"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}});
        let pod = pod(json!({
            "resources": {"limits": {"memory": "64Mi"}},
            "containers": [{"name": "c", "env": [{"name": "X", "valueFrom": from}]}],
        }));
        assert_eq!(made(&pod).unwrap()[0].1, "64");
    }

    #[test]
    fn what_needs_an_api_server_is_refused_as_upstream_does_without_one() {
        for (from, text) in [
            (
                json!({"configMapKeyRef": {"name": "m", "key": "k"}}),
                "couldn't get configMap shop/m, no kubeClient defined",
            ),
            (
                json!({"secretKeyRef": {"name": "s", "key": "k"}}),
                "couldn't get secret shop/s, no kubeClient defined",
            ),
        ] {
            let error = env(json!([{"name": "X", "valueFrom": from}])).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
        let pod = pod_with(json!({"envFrom": [{"secretRef": {"name": "s"}}]}));
        assert!(matches!(
            made(&pod),
            Err(EnvError::NoApi { kind: "secret", .. })
        ));
    }
}
