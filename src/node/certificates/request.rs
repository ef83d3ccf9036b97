//! Sends one CertificateSigningRequest and waits for its certificate.

use super::plan::{ORGANIZATION, RequestProgress, Template, progress};
use crate::apiserver::{ApiError, ApiServer, ResourcePath, Selection, WatchEvent};
use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _, SanType};
use sha2::{Digest as _, Sha512_256};
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::timeout;

/// A signer, with the key usages that it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signer {
    pub(super) name: &'static str,
    /// Key usages for an ECDSA key.
    pub(super) usages: [&'static str; 2],
}

pub(super) const CLIENT: Signer = Signer {
    name: "kubernetes.io/kube-apiserver-client-kubelet",
    usages: ["digital signature", "client auth"],
};
pub(super) const SERVING: Signer =
    Signer { name: "kubernetes.io/kubelet-serving", usages: ["digital signature", "server auth"] };

/// Why no certificate was issued.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The request was denied, or it failed; retrying the same request is useless.
    Rejected(String),
    /// A temporary error.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for RequestError {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// Requests a certificate and waits until it is issued. Continues with an existing request of the same name.
pub(super) async fn request(
    api: &ApiServer,
    (signer, template): (Signer, &Template),
    key: &KeyPair,
    name: Option<String>,
    wait_timeout: Duration,
) -> Result<Vec<u8>, RequestError> {
    let object = object(signer, template, key, name.clone())?;
    let created = match (api.create(None, &object).await, name) {
        (Err(error), Some(name)) if error.is_already_exists() => {
            tracing::info!(
                csr = name,
                "Reusing the certificate signing request of an earlier start"
            );
            let found: Result<CertificateSigningRequest, ApiError> =
                api.get(ResourcePath::cluster(&name)).await;
            found.context("cannot retrieve certificate signing request")?
        }
        (created, _) => created.context("cannot create certificate signing request")?,
    };
    if created.spec.signer_name != signer.name {
        return Err(RequestError::Rejected("the request is for another signer".to_owned()));
    }
    let waiting = timeout(wait_timeout, wait(api, &created)).await;
    waiting.unwrap_or_else(|_| {
        let seconds = wait_timeout.as_secs();
        let error = anyhow::anyhow!("no certificate was issued within {seconds} s");
        Err(RequestError::Failed(error))
    })
}

async fn wait(
    api: &ApiServer,
    created: &CertificateSigningRequest,
) -> Result<Vec<u8>, RequestError> {
    let name = created.metadata.name.as_deref().unwrap_or_default();
    let uid = created.metadata.uid.as_deref();
    tracing::info!(csr = name, "Waiting for the certificate to be issued");
    let mut watch = api.list_watch::<CertificateSigningRequest>(Selection {
        namespace: None,
        field_selector: Some(format!("metadata.name={name}")),
    });
    let deleted = || RequestError::Rejected("the request was deleted".to_owned());
    loop {
        let request = match watch.next().await {
            WatchEvent::Listed(mut items) => items.pop().ok_or_else(deleted)?,
            WatchEvent::Applied(item) => item,
            WatchEvent::Deleted(_) => return Err(deleted()),
            WatchEvent::Failed(error) => {
                tracing::debug!(
                    csr = name,
                    err = crate::base::error_chain(&*error),
                    "Watching the certificate signing request failed"
                );
                continue;
            }
        };
        let Ok(request) = request else {
            continue;
        };
        match progress(&request, uid) {
            RequestProgress::Pending => {}
            RequestProgress::Issued(certificate) => return Ok(certificate),
            RequestProgress::Rejected(why) => return Err(RequestError::Rejected(why)),
        }
    }
}

fn object(
    signer: Signer,
    template: &Template,
    key: &KeyPair,
    name: Option<String>,
) -> anyhow::Result<CertificateSigningRequest> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, ORGANIZATION);
    params.distinguished_name.push(DnType::CommonName, template.common_name.as_str());
    for dns in &template.dns_names {
        let dns = dns.as_str().try_into();
        let dns = dns.context("a host name cannot be in a certificate")?;
        params.subject_alt_names.push(SanType::DnsName(dns));
    }
    for address in &template.addresses {
        params.subject_alt_names.push(SanType::IpAddress(IpAddr::clone(address)));
    }
    let pem = params.serialize_request(key)?.pem()?;
    let generate_name = name.is_none().then(|| "csr-".to_owned());
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta { name, generate_name, ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: signer.name.to_owned(),
            usages: Some(signer.usages.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

/// The name of a bootstrap request, derived from key and content, so that a restarted kubelet finds its pending
/// request. Upstream's `digestedName`.
pub(super) fn bootstrap_name(template: &Template, key: &KeyPair) -> String {
    let mut hash = Sha512_256::new();
    let spki = key.subject_public_key_info();
    let texts = [template.common_name.as_str(), ORGANIZATION];
    let parts = texts.into_iter().chain(CLIENT.usages).map(str::as_bytes);
    for part in [spki.as_slice()].into_iter().chain(parts) {
        hash.update(URL_SAFE_NO_PAD.encode(part));
        hash.update("|");
    }
    format!("node-csr-{}", URL_SAFE_NO_PAD.encode(hash.finalize()))
}
