//! The API server's defaulting of pods.
//!
//! Only fields that the node uses or shows. Works on any pod, including invalid ones; it never fails and is
//! idempotent.

use crate::model::requests::{self, CPU, HUGEPAGES_PREFIX, MEMORY};
use crate::model::{Amount, canonical, positive_grace};
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EmptyDirVolumeSource, EnvVar, HTTPGetAction, LifecycleHandler,
    ObjectFieldSelector, Pod, PodSecurityContext, PodSpec, Probe, ResourceFieldSelector,
    ResourceRequirements, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// Applies the API's defaults, including the namespace `default`.
pub fn set_pod_defaults(pod: &mut Pod) {
    let namespace = pod.metadata.namespace.get_or_insert_default();
    if namespace.is_empty() {
        *namespace = "default".into();
    }
    default_spec(pod.spec.get_or_insert_default());
}

fn default_spec(spec: &mut PodSpec) {
    fill(&mut spec.restart_policy, "Always");
    fill(&mut spec.dns_policy, "ClusterFirst");
    fill(&mut spec.scheduler_name, "default-scheduler");
    let grace = spec.termination_grace_period_seconds.get_or_insert(30);
    *grace = positive_grace(*grace);
    spec.enable_service_links.get_or_insert(true);
    spec.security_context.get_or_insert_with(PodSecurityContext::default);
    // `serviceAccount` is the deprecated name of `serviceAccountName`.
    if is_unset(spec.service_account_name.as_ref()) {
        spec.service_account_name = spec.service_account.clone().filter(|name| !name.is_empty());
    }
    let host_network = spec.host_network == Some(true);
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        default_container(container, host_network);
    }
    default_pod_resources(spec);
    for volume in spec.volumes.iter_mut().flatten() {
        default_volume(volume);
    }
}

/// Defaults of pod-level resources: huge pages from the containers' limits; requests from the containers' requests,
/// else from the pod's limits. Nothing for a pod without pod-level resources.
fn default_pod_resources(spec: &mut PodSpec) {
    let containers = requests::of_containers::<Amount>(spec);
    let Some(resources) = &mut spec.resources else {
        return;
    };
    let own = [&mut resources.limits, &mut resources.requests];
    let amounts = own.into_iter().flatten().flat_map(BTreeMap::values_mut);
    amounts.for_each(round);
    let is_given =
        |list: &Option<BTreeMap<_, _>>| list.as_ref().is_some_and(|list| !list.is_empty());
    // Invalid amounts are reported by the validation.
    let Ok(containers) = containers else {
        return;
    };
    if !is_given(&resources.limits) && !is_given(&resources.requests) {
        return;
    }
    for (name, limit) in containers.limits {
        let requested = resources.requests.as_ref();
        let is_requested = requested.is_some_and(|requests| requests.contains_key(&name));
        if name.starts_with(HUGEPAGES_PREFIX) && !is_requested {
            let limits = resources.limits.get_or_insert_default();
            limits.entry(name).or_insert_with(|| limit.to_api());
        }
    }
    let Some(limits) = resources.limits.clone().filter(|limits| !limits.is_empty()) else {
        return;
    };
    let is_divisible = |name: &str| [CPU, MEMORY].contains(&name);
    let of_containers = containers.requests.into_iter();
    let of_containers = of_containers.filter(|(name, _)| is_divisible(name));
    let of_containers = of_containers.map(|(name, amount)| (name, amount.to_api()));
    let of_pod = limits.into_iter();
    let of_pod =
        of_pod.filter(|(name, _)| is_divisible(name) || name.starts_with(HUGEPAGES_PREFIX));
    let requests = resources.requests.get_or_insert_default();
    for (name, amount) in of_containers.chain(of_pod) {
        requests.entry(name).or_insert(amount);
    }
}

fn default_container(container: &mut Container, host_network: bool) {
    default_pull_policy(&mut container.image_pull_policy, container.image.as_deref());
    fill(&mut container.termination_message_path, "/dev/termination-log");
    fill(&mut container.termination_message_policy, "File");
    let resources = container.resources.get_or_insert_default();
    [&mut resources.limits, &mut resources.requests]
        .into_iter()
        .flatten()
        .for_each(|amounts| amounts.values_mut().for_each(round));
    default_resources(resources);
    for port in container.ports.iter_mut().flatten() {
        default_port(port, host_network);
    }
    for variable in container.env.iter_mut().flatten() {
        default_variable(variable);
    }
    let probes = [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ];
    probes.into_iter().flatten().for_each(default_probe);
    if let Some(lifecycle) = &mut container.lifecycle {
        let hooks = [&mut lifecycle.post_start, &mut lifecycle.pre_stop];
        hooks.into_iter().flatten().for_each(default_handler);
    }
}

fn default_pull_policy(policy: &mut Option<String>, image: Option<&str>) {
    fill(
        policy,
        if defaults_to_always(image.unwrap_or_default()) { "Always" } else { "IfNotPresent" },
    );
}

/// Rounds up to thousandths and canonicalizes the text.
fn round(quantity: &mut Quantity) {
    if let Ok(amount) = Amount::parse(&quantity.0) {
        *quantity = amount.round_up_to_milli().to_api();
    }
}

/// Limits are the default of requests.
fn default_resources(resources: &mut ResourceRequirements) {
    let Some(limits) = &resources.limits else {
        return;
    };
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        if !requests.contains_key(name) {
            requests.insert(name.clone(), limit.clone());
        }
    }
}

fn default_port(port: &mut ContainerPort, host_network: bool) {
    fill(&mut port.protocol, "TCP");
    if host_network && port.host_port.unwrap_or_default() == 0 {
        port.host_port = Some(port.container_port);
    }
}

fn default_variable(variable: &mut EnvVar) {
    if let Some(from) = &mut variable.value_from {
        if let Some(ObjectFieldSelector { api_version, .. }) = &mut from.field_ref {
            fill(api_version, "v1");
        }
        if let Some(file) = &mut from.file_key_ref {
            file.optional.get_or_insert(false);
        }
        if let Some(resource) = &mut from.resource_field_ref {
            default_divisor(resource);
        }
    }
}

fn default_probe(probe: &mut Probe) {
    fill_number(&mut probe.timeout_seconds, 1);
    fill_number(&mut probe.period_seconds, 10);
    fill_number(&mut probe.success_threshold, 1);
    fill_number(&mut probe.failure_threshold, 3);
    if let Some(http) = &mut probe.http_get {
        default_http(http);
    }
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn default_handler(handler: &mut LifecycleHandler) {
    if let Some(http) = &mut handler.http_get {
        default_http(http);
    }
}

fn default_http(http: &mut HTTPGetAction) {
    fill(&mut http.path, "/");
    fill(&mut http.scheme, "HTTP");
}

fn default_volume(volume: &mut Volume) {
    if super::validate::volume_sources(volume).is_empty() {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
    let empty_dir = volume.empty_dir.as_mut();
    if let Some(limit) = empty_dir.and_then(|dir| dir.size_limit.as_mut()) {
        *limit = canonical(limit);
    }
    if let Some(host_path) = &mut volume.host_path {
        host_path.type_.get_or_insert_default();
    }
    if let Some(image) = &mut volume.image {
        default_pull_policy(&mut image.pull_policy, image.reference.as_deref());
    }
    for mode in [
        volume.config_map.as_mut().map(|v| &mut v.default_mode),
        volume.secret.as_mut().map(|v| &mut v.default_mode),
        volume.downward_api.as_mut().map(|v| &mut v.default_mode),
        volume.projected.as_mut().map(|v| &mut v.default_mode),
    ]
    .into_iter()
    .flatten()
    {
        mode.get_or_insert(0o644);
    }
    let projections = volume.projected.iter_mut().flat_map(|p| p.sources.iter_mut().flatten());
    let projected = projections.filter_map(|source| source.downward_api.as_mut()?.items.as_mut());
    let own = volume.downward_api.iter_mut().filter_map(|source| source.items.as_mut());
    for item in own.chain(projected).flatten() {
        if let Some(field) = &mut item.field_ref {
            fill(&mut field.api_version, "v1");
        }
        if let Some(resource) = &mut item.resource_field_ref {
            default_divisor(resource);
        }
    }
}

fn default_divisor(resource: &mut ResourceFieldSelector) {
    let divisor = resource.divisor.get_or_insert_default();
    if divisor.0.is_empty() {
        divisor.0 = "0".into();
    }
    *divisor = canonical(divisor);
}

/// Whether the default of `imagePullPolicy` is `Always`: the tag is `latest`, or there is neither tag nor digest.
fn defaults_to_always(image: &str) -> bool {
    let (tagged, digest) = image.split_once('@').unwrap_or((image, ""));
    let name = tagged.rsplit('/').next().unwrap_or(tagged);
    match name.split_once(':') {
        Some((_, tag)) => tag == "latest",
        None => digest.is_empty(),
    }
}

fn is_unset(field: Option<&String>) -> bool {
    field.is_none_or(String::is_empty)
}

fn fill(field: &mut Option<String>, value: &str) {
    if is_unset(field.as_ref()) {
        *field = Some(value.into());
    }
}

fn fill_number(field: &mut Option<i32>, value: i32) {
    if field.unwrap_or_default() == 0 {
        *field = Some(value);
    }
}

#[cfg(test)]
mod tests;
