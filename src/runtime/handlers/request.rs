//! An httpGet action as a request. Pure.

use super::url::{Url, request_target};
use super::{HandlerTarget, host_or_pod, resolve_port};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use k8s_openapi::api::core::v1::{HTTPGetAction, HTTPHeader};

/// `User-Agent` of probes.
pub(super) const PROBE_AGENT: &str = "kube-probe/1.36";
/// `User-Agent` of hooks.
pub(super) const HOOK_AGENT: &str = "kube-lifecycle/1.36";

/// A GET request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GetRequest {
    pub(super) url: Url,
    /// All headers except `Host`.
    pub(super) headers: HeaderMap,
    /// The `Host` header in the spec; `None` for the authority of the URL.
    pub(super) host: Option<HeaderValue>,
}

/// The request for an action.
///
/// # Errors
/// The action is invalid, or needs the address of a pod that has none yet.
pub(super) fn of_action(
    action: &HTTPGetAction,
    target: &HandlerTarget<'_>,
    agent: &'static str,
) -> Result<GetRequest, String> {
    let https = match action.scheme.as_deref() {
        None | Some("") => false,
        Some(scheme) if scheme.eq_ignore_ascii_case("http") => false,
        Some(scheme) if scheme.eq_ignore_ascii_case("https") => true,
        Some(other) => return Err(format!("unsupported protocol scheme {other:?}")),
    };
    let url = Url {
        https,
        host: host_or_pod(action.host.as_deref(), target)?.to_owned(),
        port: Some(resolve_port(&action.port, target.ports)?),
        target: request_target(action.path.as_deref().unwrap_or_default()),
    };
    let (headers, host) = headers(action.http_headers.as_deref().unwrap_or_default(), agent)?;
    Ok(GetRequest { url, headers, host })
}

fn headers(
    spec_headers: &[HTTPHeader],
    agent: &'static str,
) -> Result<(HeaderMap, Option<HeaderValue>), String> {
    let mut headers = HeaderMap::new();
    for HTTPHeader { name, value } in spec_headers {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("invalid header field name {name:?}"))?;
        let value = HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| format!("invalid header field value for {:?}", name.as_str()))?;
        headers.append(name, value);
    }
    for (name, value) in [(header::USER_AGENT, agent), (header::ACCEPT, "*/*")] {
        match headers.get(&name) {
            None => {
                headers.insert(name, HeaderValue::from_static(value));
            }
            Some(empty) if empty.is_empty() => {
                headers.remove(name);
            }
            Some(_) => {}
        }
    }
    let host = headers.remove(header::HOST).filter(|host| !host.is_empty());
    // These headers frame the message and are set by the client.
    for name in
        [header::CONNECTION, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::TRAILER]
    {
        headers.remove(name);
    }
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    Ok((headers, host))
}

impl GetRequest {
    /// The request for a redirect. A `Host` header of the spec is kept only if the redirect has no host.
    pub(super) fn redirected(&self, location: &str) -> Result<GetRequest, String> {
        let relative = !location.starts_with("//") && !location.contains("://");
        Ok(GetRequest {
            url: self.url.join(location)?,
            headers: self.headers.clone(),
            host: self.host.clone().filter(|_| relative),
        })
    }

    /// The same request in plain text, without credentials.
    pub(super) fn in_plain_text(mut self) -> GetRequest {
        self.url.https = false;
        self.headers.remove(header::AUTHORIZATION);
        self
    }
}
