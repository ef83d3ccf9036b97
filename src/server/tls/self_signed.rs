//! The self-signed serving certificate, for a node without `tlsCertFile` and `serverTLSBootstrap`.
//!
//! Upstream: `GenerateSelfSignedCertKey` in `k8s.io/client-go/util/cert`, whose certificate has the node's name but not
//! its addresses.

use super::key_pair::CertificateKeyPair;
use crate::base::{atomic_file, clock, error_chain};
use anyhow::Context as _;
use jiff::Timestamp;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::ParsedCertificate;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Validity of a new certificate: a year.
const VALIDITY: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The certificate is replaced when its remaining validity is less than this: 30 days.
const MIN_REMAINING_VALIDITY: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The names in the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CertificateNames {
    node: String,
    server_names: Vec<ServerName<'static>>,
}

impl CertificateNames {
    /// The node's name, if it is valid in a certificate, and its addresses.
    pub(super) fn of(node: &str, addresses: &[IpAddr]) -> Self {
        let name = ServerName::try_from(node.to_owned()).ok();
        let addresses = addresses.iter().map(|address| ServerName::from(*address));
        Self { node: node.to_owned(), server_names: name.into_iter().chain(addresses).collect() }
    }
}

/// The paths of the certificate and of the private key.
pub(super) fn files(directory: &Path) -> [PathBuf; 2] {
    [directory.join("kubelet.crt"), directory.join("kubelet.key")]
}

/// Whether a kubelet generated it and it expires soon, so that it has to be replaced.
pub(super) fn expires_soon(pair: &CertificateKeyPair) -> bool {
    is_generated_by_kubelet(&pair.facts().common_name)
        && !is_valid_and_not_expiring(pair, clock::system_time())
}

/// Whether a kubelet generated it: its subject is `<name>@<time>`.
fn is_generated_by_kubelet(common_name: &str) -> bool {
    let time = common_name.rsplit_once('@').map(|(_, second)| second);
    time.is_some_and(|second| !second.is_empty() && second.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether it is valid now and does not expire soon.
fn is_valid_and_not_expiring(pair: &CertificateKeyPair, now: SystemTime) -> bool {
    let facts = pair.facts();
    let (from, until) = (SystemTime::from(facts.not_before), SystemTime::from(facts.not_after));
    from <= now && now + MIN_REMAINING_VALIDITY < until
}

/// Why the existing certificate has to be replaced, if it has to. A certificate that no kubelet generated was
/// installed deliberately and is kept.
fn replacement_reason(
    pair: &CertificateKeyPair,
    names: &CertificateNames,
    now: SystemTime,
) -> Option<String> {
    let facts = pair.facts();
    if !is_generated_by_kubelet(&facts.common_name) {
        return None;
    }
    if !is_valid_and_not_expiring(pair, now) {
        let (from, until) = (facts.not_before, facts.not_after);
        return Some(format!("it is not valid for long enough: valid from {from} to {until}"));
    }
    let parsed = pair.certificate().map(ParsedCertificate::try_from);
    let Some(Ok(parsed)) = parsed else {
        return Some("it cannot be read".into());
    };
    let mut names = names.server_names.iter();
    let other = names.find(|name| verify_server_name(&parsed, name).is_err())?;
    Some(format!("it is not for {}", other.to_str()))
}

/// Reads the pair in the directory if it is valid, else generates and writes a new one. Called at start; blocking.
///
/// # Errors
/// A new certificate cannot be generated or written.
pub(super) fn read_or_create(
    directory: &Path,
    names: &CertificateNames,
) -> anyhow::Result<CertificateKeyPair> {
    let [certificate, key] = files(directory);
    let why = match CertificateKeyPair::read(&certificate, &key) {
        Ok(pair) => match replacement_reason(&pair, names, clock::system_time()) {
            None => return Ok(pair),
            Some(why) => why,
        },
        Err(_) if !certificate.exists() && !key.exists() => "there is none".into(),
        Err(error) => error_chain(error.as_ref()),
    };
    generate(&why, directory, names)
}

/// Reads the pair again after a change or before it expires. An unreadable file is not replaced, because another
/// program may be writing it. Blocking.
///
/// # Errors
/// The pair cannot be read, or a new one cannot be generated or written.
pub(super) fn reload(
    directory: &Path,
    names: &CertificateNames,
) -> anyhow::Result<CertificateKeyPair> {
    let [certificate, key] = files(directory);
    let pair = CertificateKeyPair::read(&certificate, &key)?;
    if expires_soon(&pair) { generate("it expires soon", directory, names) } else { Ok(pair) }
}

fn generate(
    reason: &str,
    directory: &Path,
    names: &CertificateNames,
) -> anyhow::Result<CertificateKeyPair> {
    let [certificate, key] = files(directory);
    tracing::info!(
        path = %certificate.display(),
        reason,
        "Generating a self-signed serving certificate"
    );
    let write = || {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        create(names, (&certificate, &key))
    };
    write().with_context(|| {
        let directory = directory.display();
        format!("failed to generate a self-signed serving certificate in {directory} (--cert-dir)")
    })
}

fn create(
    names: &CertificateNames,
    (certificate, key): (&Path, &Path),
) -> anyhow::Result<CertificateKeyPair> {
    let now = clock::system_time();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let common_name = format!("{}@{}", names.node, Timestamp::try_from(now)?.as_second());
    params.distinguished_name.push(DnType::CommonName, common_name);
    for name in &names.server_names {
        params.subject_alt_names.push(match name {
            ServerName::IpAddress(address) => SanType::IpAddress(IpAddr::from(*address)),
            name => SanType::DnsName(name.to_str().into_owned().try_into()?),
        });
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // Tolerates clients whose clocks are slow.
    params.not_before = (now - DAY).into();
    params.not_after = (now + VALIDITY).into();
    let key_pair = KeyPair::generate()?;
    let issued = params.self_signed(&key_pair)?;
    let (pem, key_pem) = (issued.pem(), key_pair.serialize_pem());
    let pair = CertificateKeyPair::parse(pem.as_bytes(), key_pem.as_bytes())?;
    // A kubelet killed between the two writes leaves a certificate and a key that do not match, which the next one
    // rejects.
    atomic_file::write(key, key_pem.as_bytes())?;
    atomic_file::write(certificate, pem.as_bytes())?;
    fs::set_permissions(certificate, fs::Permissions::from_mode(0o644))?;
    Ok(pair)
}
