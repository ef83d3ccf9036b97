//! Validates `dnsPolicy` and `dnsConfig`.

use super::{Errors, Path, names};
use k8s_openapi::api::core::v1::{PodDNSConfig, PodSpec};
use std::net::IpAddr;

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
/// Maximum length of all search domains joined by spaces, in characters.
const MAX_SEARCH_CHARS: usize = 2048;

pub(super) fn validate(spec: &PodSpec, path: &Path<'_>, errors: &mut Errors) {
    let policy = spec.dns_policy.as_deref();
    let values = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    errors.one_of(&path.child("dnsPolicy"), policy, &values);
    let at = path.child("dnsConfig");
    let nameservers = spec.dns_config.iter().flat_map(|c| c.nameservers.iter().flatten());
    if policy == Some("None") && nameservers.count() == 0 {
        let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        match spec.dns_config {
            None => errors.required(&at, detail),
            Some(_) => errors.required(&at.child("nameservers"), detail),
        }
    }
    if let Some(config) = &spec.dns_config {
        validate_config(config, &at, errors);
    }
}

fn validate_config(config: &PodDNSConfig, path: &Path<'_>, errors: &mut Errors) {
    let nameservers = config.nameservers.as_deref().unwrap_or_default();
    let list = path.child("nameservers");
    if nameservers.len() > MAX_NAMESERVERS {
        errors.too_many(&list, nameservers.len(), MAX_NAMESERVERS);
    }
    for (index, server) in nameservers.iter().enumerate() {
        if server.parse::<IpAddr>().is_err() {
            errors.invalid(&list.index(index), server, "must be a valid IP address");
        }
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    let list = path.child("searches");
    if searches.len() > MAX_SEARCHES {
        errors.too_many(&list, searches.len(), MAX_SEARCHES);
    }
    let separators = searches.len().saturating_sub(1);
    let chars = searches.iter().map(|s| s.chars().count()).sum::<usize>() + separators;
    if chars > MAX_SEARCH_CHARS {
        errors.too_long(&list, MAX_SEARCH_CHARS);
    }
    for (index, search) in searches.iter().enumerate() {
        errors.check(&list.index(index), search, names::dns_search);
    }
    for (index, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().is_none_or(str::is_empty) {
            let list = path.child("options");
            errors.required(&list.index(index).child("name"), "");
        }
    }
}
