//! DER encoding of the few ASN.1 structures in a certificate request. Pure.

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const SEQUENCE: u8 = 0x30;
/// Tag of the attributes of a certificate request (`[0]`).
const CONTEXT_0: u8 = 0xa0;

/// Object identifiers in DER: `1.2.840.10045.4.3.2` to `.4` (ECDSA with SHA-2), `1.3.101.112` (Ed25519),
/// `1.2.840.113549.1.1.11` (RSA with SHA-256).
const ECDSA_SHA256: [u8; 10] = [0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const ECDSA_SHA384: [u8; 10] = [0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3];
const ECDSA_SHA512: [u8; 10] = [0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4];
const ED25519: [u8; 5] = [0x06, 3, 0x2b, 0x65, 0x70];
const RSA_SHA256: [u8; 11] = [0x06, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11];
const NULL: [u8; 2] = [0x05, 0];

/// The signature algorithm of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignatureKind {
    EcdsaSha256,
    EcdsaSha384,
    EcdsaSha512,
    Ed25519,
    RsaSha256,
}

impl SignatureKind {
    fn identifier(self) -> Vec<u8> {
        match self {
            Self::EcdsaSha256 => value(SEQUENCE, &[&ECDSA_SHA256]),
            Self::EcdsaSha384 => value(SEQUENCE, &[&ECDSA_SHA384]),
            Self::EcdsaSha512 => value(SEQUENCE, &[&ECDSA_SHA512]),
            Self::Ed25519 => value(SEQUENCE, &[&ED25519]),
            Self::RsaSha256 => value(SEQUENCE, &[&RSA_SHA256, &NULL]),
        }
    }
}

/// The signed part of a PKCS#10 request that has only a public key (a SubjectPublicKeyInfo).
pub(super) fn request_info(public_key: &[u8]) -> Vec<u8> {
    let version = value(INTEGER, &[&[0]]);
    let (subject, attributes) = (value(SEQUENCE, &[]), value(CONTEXT_0, &[]));
    value(SEQUENCE, &[&version, &subject, public_key, &attributes])
}

/// A PKCS#10 CertificationRequest.
pub(super) fn request(info: &[u8], kind: SignatureKind, signature: &[u8]) -> Vec<u8> {
    // The leading zero is the number of unused bits in the last byte.
    let signature = value(BIT_STRING, &[&[0], signature]);
    value(SEQUENCE, &[info, &kind.identifier(), &signature])
}

/// An Ed25519 private key as PKCS#8 version 1, which all readers support.
pub(super) fn ed25519_key(seed: &[u8; 32]) -> Vec<u8> {
    let version = value(INTEGER, &[&[0]]);
    let algorithm = SignatureKind::Ed25519.identifier();
    let seed = value(OCTET_STRING, &[&value(OCTET_STRING, &[seed])]);
    value(SEQUENCE, &[&version, &algorithm, &seed])
}

/// Encodes a value with its tag and length.
fn value(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut text = vec![tag];
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => text.push(short),
        _ => {
            let bytes = length.to_be_bytes();
            let bytes: Vec<u8> = bytes.into_iter().skip_while(|byte| *byte == 0).collect();
            // The length has at most eight bytes.
            text.push(0x80 | u8::try_from(bytes.len()).unwrap_or_default());
            text.extend(bytes);
        }
    }
    for part in parts {
        text.extend_from_slice(part);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_as_short_as_they_can_be() {
        for (length, header) in [
            (0, &[4, 0][..]),
            (127, &[4, 127]),
            (128, &[4, 0x81, 128]),
            (255, &[4, 0x81, 255]),
            (256, &[4, 0x82, 1, 0]),
        ] {
            let content = vec![7; length];
            let text = value(OCTET_STRING, &[&content]);
            assert_eq!(text, [header, &content].concat(), "{length}");
        }
    }

    #[test]
    fn a_request_says_nothing_but_its_key() {
        let info = request_info(&[0x30, 1, 9]);
        assert_eq!(info, [0x30, 10, 2, 1, 0, 0x30, 0, 0x30, 1, 9, 0xa0, 0]);
        let text = request(&info, SignatureKind::Ed25519, &[1, 2]);
        let rest = [0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 3, 0, 1, 2];
        assert_eq!(text, [&[0x30, 24][..], &info, &rest].concat());
    }
}
