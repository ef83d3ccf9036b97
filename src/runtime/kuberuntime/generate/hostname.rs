//! The host name and domain of a pod.

use crate::model::{Pod, PodExt};
use anyhow::{bail, ensure};

/// The kernel's limit is 64 bytes with the terminating NUL.
const MAX_HOSTNAME: usize = 63;
/// Longest name with `setHostnameAsFQDN`.
const MAX_FQDN: usize = 64;

/// Host name and domain of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodHostname {
    /// First label.
    pub name: String,
    /// `<subdomain>.<namespace>.svc.<cluster domain>`; empty without a subdomain.
    pub domain: String,
}

/// Name and domain of a pod (upstream's `GeneratePodHostNameAndDomain`): `hostnameOverride` alone,
/// or `hostname` or else the pod's name; each cut to 63 characters.
pub fn pod_hostname(pod: &Pod, cluster_domain: &str) -> anyhow::Result<PodHostname> {
    let spec = pod.spec();
    if let Some(name) = spec.and_then(|s| s.hostname_override.as_deref()) {
        return Ok(PodHostname { name: shorten(pod, name.to_string())?, domain: String::new() });
    }
    let given = |value: Option<&String>, field: &str| match value {
        None => Ok(None),
        Some(value) if value.is_empty() => Ok(None),
        Some(value) if is_dns_label(value) => Ok(Some(value.clone())),
        Some(value) => bail!("pod {field} {value:?} is not a valid DNS label"),
    };
    let name = given(spec.and_then(|s| s.hostname.as_ref()), "Hostname")?
        .unwrap_or_else(|| pod.name().to_string());
    let subdomain = given(spec.and_then(|s| s.subdomain.as_ref()), "Subdomain")?;
    Ok(PodHostname {
        name: shorten(pod, name)?,
        domain: subdomain.map_or_else(String::new, |subdomain| {
            format!("{subdomain}.{}.svc.{cluster_domain}", pod.namespace())
        }),
    })
}

/// The host name in the sandbox's UTS namespace: the name, or the FQDN with `setHostnameAsFQDN`.
pub fn kernel_hostname(pod: &Pod, hostname: &PodHostname) -> anyhow::Result<String> {
    let as_fqdn = pod.spec().and_then(|spec| spec.set_hostname_as_fqdn);
    if as_fqdn != Some(true) || hostname.domain.is_empty() {
        return Ok(hostname.name.clone());
    }
    let fqdn = format!("{}.{}", hostname.name, hostname.domain);
    let len = fqdn.len();
    ensure!(
        len <= MAX_FQDN,
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long (64 characters is the max, {len} characters requested)"
    );
    Ok(fqdn)
}

fn shorten(pod: &Pod, hostname: String) -> anyhow::Result<String> {
    if hostname.len() <= MAX_HOSTNAME {
        return Ok(hostname);
    }
    let end = hostname.floor_char_boundary(MAX_HOSTNAME);
    let short = hostname.get(..end).unwrap_or_default().trim_end_matches(['-', '.']);
    ensure!(!short.is_empty(), "hostname for pod {:?} was invalid: {hostname:?}", pod.name());
    Ok(short.to_string())
}

fn is_dns_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty()
        && text.len() <= MAX_HOSTNAME
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}
