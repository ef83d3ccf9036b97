//! Authorities and certificates for tests.

use crate::base::clock;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType, SignatureAlgorithm,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// A certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key.
pub struct Issued {
    pub der: CertificateDer<'static>,
    pub pem: String,
    pub key_pem: String,
    key: Vec<u8>,
}

impl Issued {
    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.key.clone()).expect("a key")
    }
}

impl Authority {
    pub fn new(name: &str) -> Self {
        Self::with_keys(name, &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    /// Its key and those of its certificates are of this kind.
    pub fn with_keys(name: &str, kind: &'static SignatureAlgorithm) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate_for(kind).expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        Self { issuer }
    }

    pub fn pem(&self) -> String {
        self.issuer.as_ref().pem()
    }

    pub fn der(&self) -> CertificateDer<'static> {
        self.issuer.as_ref().der().clone()
    }

    /// For a server on 127.0.0.1 that also has this name.
    pub fn server(&self, name: &str) -> Issued {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        params.subject_alt_names.push(SanType::IpAddress(loopback));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(params)
    }

    /// For a client with this name and these groups.
    pub fn client(&self, name: &str, groups: &[&str]) -> Issued {
        self.issue(client(name, groups))
    }

    /// For a client and a server of this name, without expiry.
    pub fn endless(&self, name: &str) -> Issued {
        let mut params = client(name, &[]);
        params.subject_alt_names = vec![SanType::DnsName(name.try_into().expect("a name"))];
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        params.not_after = rcgen::date_time_ymd(9999, 12, 31);
        self.issue(params)
    }

    /// For a node as a client and a server of this name on 127.0.0.1.
    pub fn node(&self, common_name: &str, name: &str) -> Issued {
        let mut params = client(common_name, &["system:nodes"]);
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let name = SanType::DnsName(name.try_into().expect("a name"));
        params.subject_alt_names = vec![name, SanType::IpAddress(loopback)];
        self.issue(params)
    }

    /// Signs the certificate signing request of a node, DER; the certificate began and ends so many seconds from now.
    pub fn sign(&self, request: &[u8], common_name: &str, begun: i64, ends: i64) -> String {
        let mut params = client(common_name, &["system:nodes"]);
        params.subject_alt_names = names(request);
        let at = |seconds: i64| {
            let offset = Duration::from_secs(seconds.unsigned_abs());
            let now = clock::system_time();
            if seconds < 0 { now - offset } else { now + offset }
        };
        params.not_before = at(begun).into();
        params.not_after = at(ends).into();
        let key = Point::of(request);
        params.signed_by(&key, &self.issuer).expect("a certificate").pem()
    }

    /// The same, expired an hour ago.
    pub fn expired_client(&self, name: &str) -> Issued {
        let mut params = client(name, &[]);
        let now = clock::system_time();
        params.not_before = (now - Duration::from_secs(7200)).into();
        params.not_after = (now - Duration::from_secs(3600)).into();
        self.issue(params)
    }

    /// The same whose validity begins in an hour.
    pub fn later_client(&self, name: &str) -> Issued {
        let mut params = client(name, &[]);
        let now = clock::system_time();
        params.not_before = (now + Duration::from_secs(3600)).into();
        params.not_after = (now + Duration::from_secs(7200)).into();
        self.issue(params)
    }

    fn issue(&self, params: CertificateParams) -> Issued {
        let kind = self.issuer.key().algorithm();
        let key = KeyPair::generate_for(kind).expect("a key");
        let made = params.signed_by(&key, &self.issuer).expect("a certificate");
        Issued {
            der: made.der().clone(),
            pem: made.pem(),
            key_pem: key.serialize_pem(),
            key: key.serialize_der(),
        }
    }
}

/// The public key of a request.
struct Point(Vec<u8>);

impl Point {
    fn of(request: &[u8]) -> Self {
        // A bit string of 66 bytes, none of whose bits are unused: an uncompressed point of P-256.
        let head = [0x03, 0x42, 0x00, 0x04];
        let at = request.windows(4).position(|bytes| bytes == head);
        let at = at.expect("a P-256 key") + 3;
        Self(request[at..at + 65].to_vec())
    }
}

impl rcgen::PublicKeyData for Point {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

/// The alternative names of a request, all short.
fn names(request: &[u8]) -> Vec<SanType> {
    let id = [0x06, 0x03, 0x55, 0x1d, 0x11];
    let Some(at) = request.windows(5).position(|bytes| bytes == id) else {
        return Vec::new();
    };
    // Heads of an octet string and of a sequence.
    let mut rest = &request[at + 5..];
    let length = usize::from(rest[3]);
    rest = &rest[4..4 + length];
    let mut names = Vec::new();
    while let [tag, length, after @ ..] = rest {
        let (value, after) = after.split_at(usize::from(*length));
        names.push(match (tag, <[u8; 4]>::try_from(value)) {
            (0x87, Ok(address)) => SanType::IpAddress(address.into()),
            _ => {
                let name = std::str::from_utf8(value).expect("a name");
                SanType::DnsName(name.try_into().expect("a name"))
            }
        });
        rest = after;
    }
    names
}

fn client(name: &str, groups: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for group in groups {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}
