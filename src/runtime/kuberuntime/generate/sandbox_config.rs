//! The configuration of a sandbox. Pure.

use super::dns::{self, DnsInputs, DnsWarning, ResolvConf};
use super::hostname::{kernel_hostname, pod_hostname};
use super::security_context;
use super::settings::GenerateSettings;
use super::user_namespaces::ranges::IdRange;
use crate::cri::v1;
use crate::model::validation::sysctl::dotted;
use crate::model::{Pod, PodExt};
use crate::resources;
use crate::runtime::kuberuntime::{labels, log_paths};
use crate::state::pod_cache::PodRef;
use k8s_openapi::api::core::v1::Container;
use std::collections::{HashMap, HashSet};

/// The inputs of a sandbox's configuration besides the pod and the node.
#[derive(Clone, Copy, Debug)]
pub struct SandboxInputs<'a> {
    /// Attempt number.
    pub attempt: u32,
    /// The node's resolver configuration; `None` if pods do not inherit one.
    pub host_resolv: Option<&'a ResolvConf>,
    /// The pod's cgroup; empty to leave it to the runtime.
    pub cgroup_parent: &'a str,
    /// The host ids of the pod's user namespace; `None` without one.
    pub user_namespace: Option<IdRange>,
}

/// The configuration for RunPodSandbox (upstream's `generatePodSandboxConfig`), and DNS warnings. The log directory has
/// to exist before the sandbox is created.
pub fn generate_pod_sandbox_config(
    pod: &Pod,
    settings: &GenerateSettings,
    inputs: &SandboxInputs<'_>,
) -> anyhow::Result<(v1::PodSandboxConfig, Vec<DnsWarning>)> {
    let (dns_config, warnings) = dns::pod_dns(
        pod,
        &DnsInputs {
            cluster_dns: &settings.cluster_dns,
            cluster_domain: &settings.cluster_domain,
            host: inputs.host_resolv,
            host_ips: &settings.host_ips.get(),
        },
    );
    let hostname = if pod.host_network() {
        String::new()
    } else {
        kernel_hostname(pod, &pod_hostname(pod, &settings.cluster_domain)?)?
    };
    let log_directory = log_paths::pod_logs_dir(&settings.pod_logs_dir, &PodRef::of(pod))?;
    let config = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: pod.name().to_string(),
            uid: pod.uid().to_string(),
            namespace: pod.namespace().to_string(),
            attempt: inputs.attempt,
        }),
        hostname,
        log_directory: log_directory.to_string_lossy().into_owned(),
        dns_config: Some(dns_config),
        port_mappings: pod.containers().iter().flat_map(port_mappings).collect(),
        labels: labels::sandbox_labels(pod),
        annotations: labels::sandbox_annotations(pod),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: inputs.cgroup_parent.to_string(),
            security_context: Some(security_context::sandbox_security_context(
                pod,
                inputs.user_namespace,
            )),
            sysctls: sysctls(pod),
            overhead: resources::sandbox_overhead(pod, &settings.enforcement)?,
            resources: Some(resources::sandbox_resources(pod, &settings.enforcement)?),
        }),
        windows: None,
    };
    Ok((config, warnings))
}

/// The port mappings of a container, without duplicates of a name or of an unnamed combination. Ports of init containers
/// and sidecars are not mapped, as upstream.
fn port_mappings(container: &Container) -> Vec<v1::PortMapping> {
    let mut seen = HashSet::new();
    let ports = container.ports.as_deref().unwrap_or_default();
    ports
        .iter()
        .filter_map(|port| {
            let host_ip = port.host_ip.clone().unwrap_or_default();
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let host_port = port.host_port.unwrap_or(0);
            let key = match port.name.as_deref() {
                None | Some("") => {
                    format!("{protocol}-{host_ip}:{}:{host_port}", port.container_port)
                }
                Some(name) => name.to_string(),
            };
            seen.insert(key).then(|| v1::PortMapping {
                protocol: match protocol {
                    "UDP" => v1::Protocol::Udp.into(),
                    "SCTP" => v1::Protocol::Sctp.into(),
                    _ => v1::Protocol::Tcp.into(),
                },
                container_port: port.container_port,
                host_port,
                host_ip,
            })
        })
        .collect()
}

/// The pod's sysctls with dotted names; runtimes do not accept slashes.
fn sysctls(pod: &Pod) -> HashMap<String, String> {
    let context = pod.spec().and_then(|spec| spec.security_context.as_ref());
    let list = context.and_then(|context| context.sysctls.as_deref());
    list.unwrap_or_default()
        .iter()
        .map(|sysctl| (dotted(&sysctl.name).into_owned(), sysctl.value.clone()))
        .collect()
}
