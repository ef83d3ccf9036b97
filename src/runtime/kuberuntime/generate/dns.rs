//! The resolver configuration of a pod. Pure.

use crate::cri::v1::DnsConfig;
use crate::model::{Pod, PodExt, reasons};
use k8s_openapi::api::core::v1::PodDNSConfigOption;
use std::net::IpAddr;

/// How much of the node's resolver configuration is read, bytes.
pub const MAX_RESOLV_CONF: usize = 10 << 20;

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
const MAX_DOMAIN_CHARS: usize = 253;
const CLUSTER_OPTIONS: &str = "ndots:5";

/// Event reason: a pod requests cluster DNS and none is configured.
const MISSING_CLUSTER_DNS: &str = "MissingClusterDNS";

/// A `resolv.conf`, as far as pods inherit it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// `nameserver` lines.
    pub nameservers: Vec<String>,
    /// The last `search` line.
    pub searches: Vec<String>,
    /// All `options` lines; the last value of an option counts.
    pub options: Vec<String>,
}

/// What a pod's DNS depends on besides the pod.
#[derive(Clone, Copy, Debug)]
pub struct DnsInputs<'a> {
    /// `clusterDNS`.
    pub cluster_dns: &'a [IpAddr],
    /// `clusterDomain`.
    pub cluster_domain: &'a str,
    /// The node's configuration; `None` when it is switched off by an empty `resolvConf`.
    pub host: Option<&'a ResolvConf>,
    /// The node's addresses: they choose the loopback address used without DNS servers.
    pub host_ips: &'a [String],
}

/// A Warning event that the caller should record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsWarning {
    /// Whether it is about the node rather than the pod.
    pub about_node: bool,
    /// Reason of the event.
    pub reason: &'static str,
    /// Text of the event.
    pub message: String,
}

/// Where a pod's configuration starts from.
enum DnsBase {
    Cluster,
    Host,
    Nothing,
}

/// Parses the node's file. Unparsable lines are skipped, so that they do not fail a pod start.
pub fn parse_resolv_conf(text: &[u8]) -> ResolvConf {
    let text = String::from_utf8_lossy(text);
    let mut conf = ResolvConf::default();
    for line in text.lines() {
        let mut fields = line.split_whitespace().map(String::from);
        match fields.next().as_deref() {
            Some("nameserver") => conf.nameservers.extend(fields.next()),
            Some("search") => {
                // One name with and without its last dot counts once, and the root not at all.
                conf.searches = fields
                    .filter(|domain| domain != ".")
                    .map(|domain| domain.strip_suffix('.').unwrap_or(&domain).to_string())
                    .collect();
            }
            Some("options") => fields.for_each(|option| set_option(&mut conf.options, option)),
            _ => {}
        }
    }
    conf
}

/// The DNS configuration of a pod and what to warn about (upstream's `GetPodDNS`).
pub fn pod_dns(pod: &Pod, inputs: &DnsInputs<'_>) -> (DnsConfig, Vec<DnsWarning>) {
    let mut warnings = Vec::new();
    let mut config = match base_of(pod) {
        DnsBase::Nothing => DnsConfig::default(),
        DnsBase::Host => host_config(inputs),
        DnsBase::Cluster if inputs.cluster_dns.is_empty() => {
            warnings.extend(missing_cluster_dns(pod));
            host_config(inputs)
        }
        DnsBase::Cluster => cluster_config(pod, inputs),
    };
    if let Some(dns_config) = pod.spec().and_then(|spec| spec.dns_config.as_ref()) {
        config.servers.extend(dns_config.nameservers.iter().flatten().cloned());
        config.searches.extend(dns_config.searches.iter().flatten().cloned());
        config.servers = without_duplicates(config.servers);
        config.searches = without_duplicates(config.searches);
        merge_options(&mut config.options, dns_config.options.as_deref().unwrap_or_default());
    }
    warnings.extend(limit_nameservers(&mut config.servers));
    warnings.extend(limit_searches(&mut config.searches));
    (config, warnings)
}

fn base_of(pod: &Pod) -> DnsBase {
    let policy = pod.spec().and_then(|spec| spec.dns_policy.as_deref());
    match policy {
        Some("None") => DnsBase::Nothing,
        Some("Default") => DnsBase::Host,
        Some("ClusterFirstWithHostNet") => DnsBase::Cluster,
        Some("ClusterFirst") | None if pod.host_network() => DnsBase::Host,
        _ => DnsBase::Cluster,
    }
}

fn host_config(inputs: &DnsInputs<'_>) -> DnsConfig {
    if let Some(host) = inputs.host {
        return DnsConfig {
            servers: host.nameservers.clone(),
            searches: host.searches.clone(),
            options: host.options.clone(),
        };
    }
    // Without nameservers a resolver queries localhost; write that explicitly.
    let loopback = |ip: &String| if ip.contains(':') { "::1" } else { "127.0.0.1" };
    let mut servers: Vec<String> = inputs.host_ips.iter().map(|ip| loopback(ip).into()).collect();
    if servers.is_empty() {
        servers.push("127.0.0.1".into());
    }
    DnsConfig { servers, searches: vec![".".into()], options: Vec::new() }
}

fn cluster_config(pod: &Pod, inputs: &DnsInputs<'_>) -> DnsConfig {
    let host_searches = inputs.host.map_or(&[][..], |host| &host.searches);
    let domain = inputs.cluster_domain;
    let mut searches = Vec::with_capacity(host_searches.len() + 3);
    if !domain.is_empty() {
        searches.push(format!("{}.svc.{domain}", pod.namespace()));
        searches.push(format!("svc.{domain}"));
        searches.push(domain.to_string());
    }
    searches.extend_from_slice(host_searches);
    DnsConfig {
        servers: inputs.cluster_dns.iter().map(IpAddr::to_string).collect(),
        searches: without_duplicates(searches),
        options: vec![CLUSTER_OPTIONS.into()],
    }
}

fn missing_cluster_dns(pod: &Pod) -> [DnsWarning; 2] {
    let text = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    let pod = format!("{}_{}({})", pod.name(), pod.namespace(), pod.uid());
    let warning =
        |about_node, message| DnsWarning { about_node, reason: MISSING_CLUSTER_DNS, message };
    [warning(true, text.to_string()), warning(false, format!("pod: {pod:?}. {text}"))]
}

fn without_duplicates(items: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    items.into_iter().filter(|item| seen.insert(item.clone())).collect()
}

/// The pod's options win over inherited ones of the same name; the order stays.
fn merge_options(options: &mut Vec<String>, pod_options: &[PodDNSConfigOption]) {
    for option in pod_options {
        let name = option.name.as_deref().unwrap_or_default();
        let text = match option.value.as_deref() {
            Some(value) if !value.is_empty() => format!("{name}:{value}"),
            _ => name.to_string(),
        };
        set_option(options, text);
    }
}

/// Replaces the option of this name, or adds one.
fn set_option(options: &mut Vec<String>, option: String) {
    let name_of = |option: &str| option.split(':').next().unwrap_or_default().to_string();
    let name = name_of(&option);
    match options.iter_mut().find(|known| name_of(known) == name) {
        Some(known) => *known = option,
        None => options.push(option),
    }
}

fn limit_nameservers(servers: &mut Vec<String>) -> Option<DnsWarning> {
    if servers.len() <= MAX_NAMESERVERS {
        return None;
    }
    servers.truncate(MAX_NAMESERVERS);
    Some(dns_config_forming(format!(
        "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
         nameserver line is: {}",
        servers.join(" ")
    )))
}

fn limit_searches(searches: &mut Vec<String>) -> Option<DnsWarning> {
    let before = searches.len();
    searches.truncate(MAX_SEARCHES);
    // glibc aborts on a search domain longer than a name can be.
    searches.retain(|domain| domain.len() <= MAX_DOMAIN_CHARS);
    let line = |searches: &[String]| searches.iter().map(|d| d.len() + 1).sum::<usize>();
    while line(searches) > MAX_SEARCH_CHARS + 1 {
        searches.pop();
    }
    (searches.len() < before).then(|| {
        dns_config_forming(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied \
             search line is: {}",
            searches.join(" ")
        ))
    })
}

fn dns_config_forming(message: String) -> DnsWarning {
    DnsWarning { about_node: false, reason: reasons::event::DNS_CONFIG_FORMING, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::kuberuntime::fixtures::pod;
    use serde_json::{Value, json};

    fn host() -> ResolvConf {
        parse_resolv_conf(
            b"# comment\nnameserver 1.1.1.1\nnameserver\nnameserver 2.2.2.2 junk\n\
              search old.example\nsearch corp.example. .\noptions a b\n  options ndots:2 rotate\nlookup x\n",
        )
    }

    fn dns(
        spec: Value,
        host: Option<&ResolvConf>,
        cluster: &[&str],
    ) -> (DnsConfig, Vec<DnsWarning>) {
        let cluster_dns: Vec<IpAddr> = cluster.iter().map(|ip| ip.parse().unwrap()).collect();
        let inputs = DnsInputs {
            cluster_dns: &cluster_dns,
            cluster_domain: "cluster.local",
            host,
            host_ips: &["192.0.2.1".into(), "2001:db8::1".into()],
        };
        pod_dns(&pod(spec), &inputs)
    }

    #[test]
    fn resolv_conf_keeps_all_servers_and_options_and_the_last_search() {
        let host = host();
        assert_eq!(host.nameservers, ["1.1.1.1", "2.2.2.2"]);
        assert_eq!(host.searches, ["corp.example"]);
        assert_eq!(host.options, ["a", "b", "ndots:2", "rotate"]);
        let again = parse_resolv_conf(b"options ndots:1 rotate\noptions ndots:3 ndots:5 edns0\n");
        assert_eq!(again.options, ["ndots:5", "rotate", "edns0"]);
        assert_eq!(parse_resolv_conf(b""), ResolvConf::default());
        assert_eq!(parse_resolv_conf(b"\xff\0\n;"), ResolvConf::default());
    }

    #[test]
    fn the_policy_decides_where_servers_come_from() {
        let cluster =
            ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example"];
        for (spec, servers, searches, options) in [
            (json!({}), &["10.0.0.10"][..], &cluster[..], &["ndots:5"][..]),
            (json!({"dnsPolicy": "ClusterFirst"}), &["10.0.0.10"], &cluster, &["ndots:5"]),
            (
                json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}),
                &["10.0.0.10"],
                &cluster,
                &["ndots:5"],
            ),
            (
                json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}),
                &["1.1.1.1", "2.2.2.2"],
                &["corp.example"],
                &["a", "b", "ndots:2", "rotate"],
            ),
            (
                json!({"dnsPolicy": "Default"}),
                &["1.1.1.1", "2.2.2.2"],
                &["corp.example"],
                &["a", "b", "ndots:2", "rotate"],
            ),
            (json!({"dnsPolicy": "None"}), &[], &[], &[]),
        ] {
            let (config, warnings) = dns(spec.clone(), Some(&host()), &["10.0.0.10"]);
            assert_eq!(config.servers, servers, "{spec}");
            assert_eq!(config.searches, searches, "{spec}");
            assert_eq!(config.options, options, "{spec}");
            assert!(warnings.is_empty());
        }
    }

    #[test]
    fn without_cluster_dns_the_node_servers_are_used_with_a_warning() {
        let (config, warnings) = dns(json!({}), Some(&host()), &[]);
        assert_eq!(config.servers, ["1.1.1.1", "2.2.2.2"]);
        assert_eq!(warnings.len(), 2);
        assert!(warnings[0].about_node);
        assert_eq!(warnings[1].reason, "MissingClusterDNS");
        assert_eq!(
            warnings[1].message,
            "pod: \"web_shop(u-1)\". kubelet does not have ClusterDNS IP configured and cannot \
             create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy."
        );
    }

    #[test]
    fn a_switched_off_resolver_means_the_local_one() {
        let (config, _) = dns(json!({"dnsPolicy": "Default"}), None, &[]);
        assert_eq!(config.servers, ["127.0.0.1", "::1"]);
        assert_eq!(config.searches, ["."]);
    }

    #[test]
    fn the_pods_own_settings_are_merged_without_duplicates() {
        let own = json!({"dnsPolicy": "Default", "dnsConfig": {
            "nameservers": ["2.2.2.2", "3.3.3.3"],
            "searches": ["corp.example", "mine.example"],
            "options": [{"name": "ndots", "value": "3"}, {"name": "edns0"}, {"name": "rotate"}],
        }});
        let (config, warnings) = dns(own, Some(&host()), &[]);
        assert_eq!(config.servers, ["1.1.1.1", "2.2.2.2", "3.3.3.3"]);
        assert_eq!(config.searches, ["corp.example", "mine.example"]);
        assert_eq!(config.options, ["a", "b", "ndots:3", "rotate", "edns0"]);
        assert!(warnings.is_empty());
    }

    #[test]
    fn limits_are_enforced_and_reported_as_upstream() {
        let own = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.0.0.1", "1.0.0.2", "1.0.0.3", "1.0.0.4"]}});
        let (config, warnings) = dns(own, None, &[]);
        assert_eq!(config.servers.len(), 3);
        assert_eq!(
            warnings[0].message,
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
             nameserver line is: 1.0.0.1 1.0.0.2 1.0.0.3"
        );
        let searched = |searches: Vec<String>| {
            dns(json!({"dnsPolicy": "None", "dnsConfig": {"searches": searches}}), None, &[])
        };
        let (config, warnings) = searched((0..40).map(|i| format!("d{i}")).collect());
        assert_eq!(config.searches.len(), 32);
        assert_eq!(warnings[0].reason, "DNSConfigForming");
        assert!(warnings[0].message.starts_with(
            "Search Line limits were exceeded, some search paths have been omitted, the applied \
             search line is: d0 d1"
        ));
        let (config, warnings) = searched(vec!["x".repeat(254), "ok".into()]);
        assert_eq!(config.searches, ["ok"]);
        assert_eq!(warnings.len(), 1);
        let long = |n: usize, last: usize| {
            let mut all: Vec<String> = (0..n).map(|i| format!("{i:0200}")).collect();
            all.push("y".repeat(last));
            searched(all)
        };
        // 10 * 201 + 38 = 2048.
        assert!(long(10, 38).1.is_empty());
        let (config, warnings) = long(10, 39);
        assert_eq!(config.searches.len(), 10);
        assert_eq!(warnings.len(), 1);
    }
}
