//! Content of the node's certificates, outcome of a request, and time of a renewal. Pure.

use crate::base::named_enum;
use crate::base::x509::CertificateFacts;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::NodeAddress;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

named_enum! {
    /// The use of a certificate, with its name in logs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Purpose {
        /// Authenticates the kubelet to the API server.
        Client = "client",
        /// Serves the kubelet's HTTPS port.
        Serving = "serving",
    }
}

/// The requested content of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// `system:node:` and the node's name.
    pub common_name: String,
    /// DNS names of a serving certificate.
    pub dns_names: BTreeSet<String>,
    /// IP addresses of a serving certificate.
    pub addresses: BTreeSet<IpAddr>,
}

/// The group of all nodes.
pub(super) const ORGANIZATION: &str = "system:nodes";

impl Template {
    /// For a client certificate.
    pub fn client(node_name: &str) -> Self {
        Self {
            common_name: format!("system:node:{node_name}"),
            dns_names: BTreeSet::new(),
            addresses: BTreeSet::new(),
        }
    }

    /// For a serving certificate. `None` without an IP address: the signer rejects a request without one.
    pub fn serving(
        node_name: &str,
        dns_names: impl IntoIterator<Item = String>,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Option<Self> {
        let template = Self {
            dns_names: dns_names.into_iter().collect(),
            addresses: addresses.into_iter().collect(),
            ..Self::client(node_name)
        };
        (!template.addresses.is_empty()).then_some(template)
    }

    /// For a serving certificate with the addresses of the Node object; upstream's `addressesToHostnamesAndIPs`.
    pub fn of_node(node_name: &str, known: &[NodeAddress]) -> Option<Self> {
        let (mut names, mut addresses) = (Vec::new(), Vec::new());
        for NodeAddress { address, type_ } in known.iter().filter(|one| !one.address.is_empty()) {
            match (type_.as_str(), address.parse::<IpAddr>()) {
                ("Hostname" | "InternalIP" | "ExternalIP", Ok(ip)) => addresses.push(ip),
                ("Hostname", Err(_)) | ("InternalDNS" | "ExternalDNS", _) => {
                    names.push(address.clone());
                }
                _ => {}
            }
        }
        Self::serving(node_name, names, addresses)
    }

    /// Whether a certificate has all of this content; it may have more.
    pub(super) fn is_satisfied_by(
        &self,
        certificate: &CertificateDer<'_>,
        facts: &CertificateFacts,
    ) -> bool {
        let Ok(parsed) = ParsedCertificate::try_from(certificate) else {
            return false;
        };
        let is_named = |name: Result<ServerName<'_>, _>| {
            name.is_ok_and(|name| verify_server_name(&parsed, &name).is_ok())
        };
        facts.common_name == self.common_name
            && facts.organizations.iter().any(|one| one == ORGANIZATION)
            && self.dns_names.iter().all(|name| is_named(ServerName::try_from(name.as_str())))
            && self.addresses.iter().all(|address| {
                is_named(Ok::<_, rustls::pki_types::InvalidDnsNameError>(ServerName::from(
                    *address,
                )))
            })
    }
}

/// The state of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestProgress {
    Pending,
    /// Issued: the certificate and its chain, PEM.
    Issued(Vec<u8>),
    /// Denied or failed, with the reason.
    Rejected(String),
}

/// Reads the state of the request, if it has this UID.
pub(super) fn progress(request: &CertificateSigningRequest, uid: Option<&str>) -> RequestProgress {
    if request.metadata.uid.as_deref() != uid {
        return RequestProgress::Rejected("the request was replaced by another one".to_owned());
    }
    let Some(status) = &request.status else {
        return RequestProgress::Pending;
    };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let rejected = [("Denied", "denied"), ("Failed", "failed")];
    for condition in conditions {
        if let Some((_, how)) = rejected.iter().find(|(kind, _)| condition.type_ == *kind) {
            let reason = condition.reason.as_deref().unwrap_or_default();
            let message = condition.message.as_deref().unwrap_or_default();
            return RequestProgress::Rejected(format!(
                "the request was {how}, reason: {reason:?}, message: {message:?}"
            ));
        }
    }
    let is_approved = conditions.iter().any(|one| one.type_ == "Approved");
    match &status.certificate {
        Some(certificate) if is_approved && !certificate.0.is_empty() => {
            RequestProgress::Issued(certificate.0.clone())
        }
        _ => RequestProgress::Pending,
    }
}

/// Time of the renewal: after 70 to 90 % of the lifetime, selected by `random` (0 to 1), so that nodes created together
/// do not renew together.
pub(super) fn renewal(facts: &CertificateFacts, random: f64) -> SystemTime {
    let (from, until) = (SystemTime::from(facts.not_before), SystemTime::from(facts.not_after));
    let life = until.duration_since(from).unwrap_or_default();
    from + life.mul_f64(0.7 + 0.2 * random.clamp(0.0, 1.0))
}

/// The delay after this number of consecutive failures. Longer after a rejection, because rejected requests stay in the
/// cluster for an hour.
pub(super) fn delay(failures: u32, is_rejected: bool) -> Duration {
    let (first_seconds, max_seconds) = if is_rejected { (30, 300) } else { (2, 32) };
    let doubled = 1u64 << failures.saturating_sub(1).min(8);
    Duration::from_secs((first_seconds * doubled).min(max_seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::tests::pki::Authority;
    use crate::base::x509;
    use serde_json::{Value, json};

    #[test]
    fn a_serving_certificate_has_the_names_and_addresses_of_the_node_object() {
        let of = |addresses: &[(&str, &str)]| {
            let addresses = addresses.iter().map(|(kind, address)| NodeAddress {
                type_: (*kind).into(),
                address: (*address).into(),
            });
            let template = Template::of_node("n1", &addresses.collect::<Vec<_>>())?;
            let addresses = template.addresses.iter().map(IpAddr::to_string);
            Some(template.dns_names.into_iter().chain(addresses).collect::<Vec<_>>().join(" "))
        };
        let all = [
            ("InternalIP", "10.0.0.1"),
            ("ExternalIP", "2001:db8::1"),
            ("InternalIP", "10.0.0.1"),
            ("Hostname", "n1"),
            ("InternalDNS", "n1.internal"),
            ("ExternalDNS", "n1.example.com"),
            ("InternalIP", "none"),
            ("Hostname", ""),
            ("Other", "x"),
        ];
        let expected = "n1 n1.example.com n1.internal 10.0.0.1 2001:db8::1";
        assert_eq!(of(&all).as_deref(), Some(expected));
        let named_by_address = [("Hostname", "10.0.0.2")];
        assert_eq!(of(&named_by_address).as_deref(), Some("10.0.0.2"));
        assert_eq!(of(&[("Hostname", "n1")]), None, "the signer wants an address");
    }

    #[test]
    fn a_request_is_pending_issued_or_rejected() {
        let of = |status: Value| {
            let request = json!({
                "metadata": {"uid": "u"},
                "spec": {"request": "", "signerName": "s"},
                "status": status,
            });
            progress(&serde_json::from_value(request).unwrap(), Some("u"))
        };
        let condition =
            |kind: &str| json!({"type": kind, "status": "True", "reason": "R", "message": "m"});
        assert_eq!(of(json!({})), RequestProgress::Pending);
        assert_eq!(of(json!({"conditions": [condition("Approved")]})), RequestProgress::Pending);
        assert_eq!(of(json!({"certificate": "YQ=="})), RequestProgress::Pending);
        assert_eq!(
            of(json!({"conditions": [condition("Approved")], "certificate": "YQ=="})),
            RequestProgress::Issued(b"a".to_vec())
        );
        assert_eq!(
            of(json!({"conditions": [condition("Approved")], "certificate": ""})),
            RequestProgress::Pending
        );
        for kind in ["Denied", "Failed"] {
            let status = json!({"conditions": [condition("Approved"), condition(kind)], "certificate": "YQ=="});
            let RequestProgress::Rejected(why) = of(status) else {
                panic!("{kind}");
            };
            assert!(why.contains("\"R\"") && why.contains(&kind.to_lowercase()), "{why}");
        }
        let request = json!({"metadata": {"uid": "v"}, "spec": {"request": "", "signerName": "s"}});
        let request = serde_json::from_value(request).unwrap();
        assert!(matches!(progress(&request, Some("u")), RequestProgress::Rejected(_)));
    }

    #[test]
    fn a_certificate_is_renewed_between_70_and_90_percent_of_its_life() {
        let mut facts = x509::parse(&Authority::new("a").client("n", &[]).der).unwrap();
        let second = |second| jiff::Timestamp::from_second(second).unwrap();
        (facts.not_before, facts.not_after) = (second(1000), second(2000));
        for (random, expected) in [(0.0, 1700), (0.5, 1800), (1.0, 1900), (7.0, 1900)] {
            let at = renewal(&facts, random).duration_since(SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(at.as_secs_f64().round() as u64, expected, "{random}");
        }
        (facts.not_before, facts.not_after) = (second(2000), second(1000));
        assert_eq!(renewal(&facts, 0.5), SystemTime::from(second(2000)));
    }

    #[test]
    fn delays_double_and_rejected_requests_have_longer_ones() {
        let of = |is_rejected| {
            [0, 1, 2, 3, 5, 6, 100].map(|failures| delay(failures, is_rejected).as_secs())
        };
        assert_eq!(of(false), [2, 2, 4, 8, 32, 32, 32]);
        assert_eq!(of(true), [30, 30, 60, 120, 300, 300, 300]);
    }

    #[test]
    fn a_certificate_satisfies_a_template_whose_names_it_has() {
        let own = Authority::new("a").node("system:node:n1", "n1");
        let facts = x509::parse(&own.der).unwrap();
        let is_satisfied = |node: &str, names: &[&str], addresses: &[&str]| {
            let template = Template {
                dns_names: names.iter().map(|name| (*name).to_owned()).collect(),
                addresses: addresses.iter().map(|one| one.parse().unwrap()).collect(),
                ..Template::client(node)
            };
            template.is_satisfied_by(&own.der, &facts)
        };
        assert!(is_satisfied("n1", &[], &[]));
        assert!(is_satisfied("n1", &["n1"], &["127.0.0.1"]));
        assert!(!is_satisfied("n2", &[], &[]));
        assert!(!is_satisfied("n1", &["n1", "other"], &[]));
        assert!(!is_satisfied("n1", &[], &["127.0.0.1", "10.0.0.1"]));
        assert!(!is_satisfied("n1", &["no name"], &[]));
        assert_eq!(Template::serving("n1", ["n1".to_owned()], []), None);
    }
}
