//! Parses subject and validity of a certificate from untrusted DER, and PEM files of certificates and keys; does not
//! verify signatures.
//!
//! Upstream: `k8s.io/apiserver/pkg/authentication/request/x509` and Go's `crypto/x509/pkix`.

use super::tls_provider;
use anyhow::Context as _;
use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// Subject and validity of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The subject's common name; the last one if there are several, empty if there is none.
    pub common_name: String,
    /// The subject's organizations, in order.
    pub organizations: Vec<String>,
    /// The subject's Kubernetes UID attributes (OID 1.3.6.1.4.1.57683.2).
    pub uids: Vec<String>,
    /// Start of the validity.
    pub not_before: Timestamp,
    /// End of the validity.
    pub not_after: Timestamp,
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// Context-specific tag `[0]` of a certificate's version.
const VERSION: u8 = 0xa0;

/// OID 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// OID 2.5.4.10.
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
/// OID 1.3.6.1.4.1.57683.2.
const UID: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xc2, 0x53, 0x02];

/// Parses all certificates in a PEM file; other content is ignored.
///
/// # Errors
/// There is no certificate, or one cannot be decoded.
pub fn certificates(pem: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.context("a certificate cannot be decoded")?;
    anyhow::ensure!(!found.is_empty(), "there is no certificate");
    Ok(found)
}

/// Parses a certificate chain in PEM with its private key, which have to match. The facts are those of the first
/// certificate.
///
/// # Errors
/// One cannot be parsed, or they do not match.
pub fn key_pair(chain: &[u8], key: &[u8]) -> anyhow::Result<(CertifiedKey, CertificateFacts)> {
    let chain = certificates(chain)?;
    let facts = chain.first().and_then(|own| parse(own));
    let facts = facts.context("the certificate cannot be read")?;
    let key = PrivateKeyDer::from_pem_slice(key).context("there is no usable private key")?;
    let pair = CertifiedKey::from_der(chain, key, &tls_provider())
        .context("private key does not match certificate")?;
    Ok((pair, facts))
}

/// Parses a certificate; `None` if it is invalid.
pub fn parse(certificate: &[u8]) -> Option<CertificateFacts> {
    let (outer, _) = expect(certificate, SEQUENCE)?;
    let (mut rest, _) = expect(outer, SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        rest = element(rest)?.2;
    }
    // Skips serial number, signature algorithm and issuer.
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (validity, rest) = expect(rest, SEQUENCE)?;
    let (tag, text, after) = element(validity)?;
    let not_before = time(tag, text)?;
    let (tag, text, _) = element(after)?;
    let not_after = time(tag, text)?;
    let (subject, _) = expect(rest, SEQUENCE)?;
    let mut facts = CertificateFacts {
        common_name: String::new(),
        organizations: Vec::new(),
        uids: Vec::new(),
        not_before,
        not_after,
    };
    read_subject(subject, &mut facts)?;
    Some(facts)
}

fn read_subject(mut subject: &[u8], facts: &mut CertificateFacts) -> Option<()> {
    while !subject.is_empty() {
        let (mut set, rest) = expect(subject, SET)?;
        subject = rest;
        while !set.is_empty() {
            let (attribute, rest) = expect(set, SEQUENCE)?;
            set = rest;
            let (id, value) = expect(attribute, OBJECT_ID)?;
            let (tag, value, _) = element(value)?;
            match id {
                COMMON_NAME => facts.common_name = text(tag, value)?,
                ORGANIZATION => facts.organizations.push(text(tag, value)?),
                UID => facts.uids.push(text(tag, value)?),
                _ => {}
            }
        }
    }
    Some(())
}

/// Parses one element: its tag and content, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // Lengths of more than four bytes are rejected.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let add = |sum: usize, digit: &u8| sum << 8 | usize::from(*digit);
            (digits.iter().fold(0, add), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// The content of an element, which must have this tag, and the bytes after it.
fn expect(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = element(bytes)?;
    (found == tag).then_some((content, rest))
}

/// Decodes the string types that Go supports.
fn text(tag: u8, value: &[u8]) -> Option<String> {
    match tag {
        // UTF8String, NumericString, PrintableString, IA5String
        0x0c | 0x12 | 0x13 | 0x16 => String::from_utf8(value.to_vec()).ok(),
        // T61String; in practice it contains Latin-1.
        0x14 => Some(value.iter().map(|byte| char::from(*byte)).collect()),
        // BMPString
        0x1e => {
            let (pairs, odd) = value.as_chunks::<2>();
            let units: Vec<u16> = pairs.iter().map(|pair| u16::from_be_bytes(*pair)).collect();
            odd.is_empty().then(|| String::from_utf16(&units).ok())?
        }
        _ => None,
    }
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`; RFC 5280 allows no others.
fn time(tag: u8, text: &[u8]) -> Option<Timestamp> {
    let digits = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let (year, rest) = match tag {
        UTC_TIME if plain && digits.len() == 12 => {
            let (year, rest) = digits.split_at(2);
            let year: i16 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME if plain && digits.len() == 14 => {
            let (year, rest) = digits.split_at(4);
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let part = |at: usize| -> Option<i8> { rest.get(at..at + 2)?.parse().ok() };
    let (month, day) = (part(0)?, part(2)?);
    let (hour, minute, second) = (part(4)?, part(6)?, part(8)?);
    let at = civil::DateTime::new(year, month, day, hour, minute, second, 0).ok()?;
    // 9999-12-31 23:59:59, which means no expiry, exceeds the range of `Timestamp`.
    Some(TimeZone::UTC.to_timestamp(at).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, date_time_ymd};

    fn certificate(set: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        set(&mut params);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_holder_is_the_common_name_and_the_organizations() {
        let der = certificate(|params| {
            let name = &mut params.distinguished_name;
            name.push(DnType::OrganizationName, "system:masters");
            name.push(DnType::CountryName, "CH");
            name.push(DnType::CommonName, "Käthe");
            params.not_before = date_time_ymd(2024, 2, 29);
            params.not_after = date_time_ymd(2051, 1, 1);
        });
        let found = parse(&der).unwrap();
        assert_eq!(found.common_name, "Käthe");
        assert_eq!(found.organizations, ["system:masters"]);
        assert_eq!(found.not_before.to_string(), "2024-02-29T00:00:00Z");
        assert_eq!(found.not_after.to_string(), "2051-01-01T00:00:00Z");
    }

    #[test]
    fn every_kind_of_text_is_read() {
        let values = [
            DnValue::PrintableString("who".try_into().unwrap()),
            DnValue::Ia5String("who".try_into().unwrap()),
            DnValue::TeletexString("who".try_into().unwrap()),
            DnValue::BmpString("who".try_into().unwrap()),
            DnValue::Utf8String("who".into()),
        ];
        for value in values {
            let der = certificate(|params| {
                params.distinguished_name.push(DnType::CommonName, value.clone())
            });
            assert_eq!(parse(&der).unwrap().common_name, "who", "{value:?}");
        }
        let uid = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        let der = certificate(|params| params.distinguished_name.push(uid, "u-1"));
        assert_eq!(parse(&der).unwrap().uids, ["u-1"]);
    }

    #[test]
    fn a_certificate_without_a_subject_has_no_name() {
        let found = parse(&certificate(|_| {})).unwrap();
        assert_eq!(found.common_name, "");
        assert!(found.organizations.is_empty() && found.uids.is_empty());
    }

    #[test]
    fn times_of_both_forms_are_read_and_no_others() {
        let rows = [
            (UTC_TIME, "490101000000Z", Some("2049-01-01T00:00:00Z")),
            (UTC_TIME, "500101000000Z", Some("1950-01-01T00:00:00Z")),
            (GENERALIZED_TIME, "20500630235959Z", Some("2050-06-30T23:59:59Z")),
            // The end of a certificate without expiry (RFC 5280, 4.1.2.5).
            (GENERALIZED_TIME, "99991231235959Z", Some("9999-12-30T22:00:00.999999999Z")),
            (GENERALIZED_TIME, "20500631235959Z", None),
            (GENERALIZED_TIME, "20500630235959", None),
            (GENERALIZED_TIME, "20500630235959.1Z", None),
            (GENERALIZED_TIME, "+0500630235959Z", None),
            (UTC_TIME, "20500630235959Z", None),
            (UTC_TIME, "4901010000Z", None),
            (0x13, "490101000000Z", None),
        ];
        for (tag, written, expected) in rows {
            let read = time(tag, written.as_bytes()).map(|at| at.to_string());
            assert_eq!(read.as_deref(), expected, "{written}");
        }
    }

    #[test]
    fn a_certificate_that_is_cut_short_is_none() {
        let der = certificate(|params| {
            params.distinguished_name.push(DnType::CommonName, "who");
        });
        for end in 0..der.len() {
            assert_eq!(parse(&der[..end]), None);
        }
        for lengths in [&[0x30, 0x80][..], &[0x30, 0x85, 1, 1, 1, 1, 1], &[0x30, 0x84]] {
            assert_eq!(parse(lengths), None);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(at in 0usize..400, byte: u8, noise: Vec<u8>) {
            let mut der = certificate(|params| {
                params.distinguished_name.push(DnType::CommonName, "who");
            });
            let length = der.len();
            der[at % length] = byte;
            let _ = parse(&der);
            let _ = parse(&noise);
        }
    }
}
