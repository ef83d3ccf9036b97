//! Authorities and certificates for tests.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::{
    net::{IpAddr, Ipv4Addr},
    time::{Duration, SystemTime},
};

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
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
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
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ServerAuth);
        params.not_after = rcgen::date_time_ymd(9999, 12, 31);
        self.issue(params)
    }

    /// The same, expired an hour ago.
    pub fn expired_client(&self, name: &str) -> Issued {
        let mut params = client(name, &[]);
        let now = SystemTime::now();
        params.not_before = (now - Duration::from_secs(7200)).into();
        params.not_after = (now - Duration::from_secs(3600)).into();
        self.issue(params)
    }

    fn issue(&self, params: CertificateParams) -> Issued {
        let key = KeyPair::generate().expect("a key");
        let made = params.signed_by(&key, &self.issuer).expect("a certificate");
        Issued {
            der: made.der().clone(),
            pem: made.pem(),
            key_pem: key.serialize_pem(),
            key: key.serialize_der(),
        }
    }
}

fn client(name: &str, groups: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for group in groups {
        params
            .distinguished_name
            .push(DnType::OrganizationName, *group);
    }
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}
