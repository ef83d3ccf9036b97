//! Private keys of pods, and the proof of possession for a request. Never logged.

use crate::apiserver::pem;
use crate::base::named_enum;
use aws_lc_rs::signature::Ed25519KeyPair;
use bytes::Bytes;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, RsaKeySize};
use rustls::pki_types::PrivatePkcs8KeyDer;

named_enum! {
    /// `keyType` of a projection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum KeyType {
        Rsa3072 = "RSA3072",
        Rsa4096 = "RSA4096",
        EcdsaP256 = "ECDSAP256",
        EcdsaP384 = "ECDSAP384",
        EcdsaP521 = "ECDSAP521",
        Ed25519 = "ED25519",
    }
}

pub(super) struct KeyAndRequest {
    /// The private key, as PKCS#8 in PEM. Secret.
    pub(super) key: Bytes,
    /// A PKCS#10 request that has only the public key, as DER.
    pub(super) request: Vec<u8>,
}

/// Generates a key. Call it from `spawn_blocking`: an RSA key may take a second.
pub(super) fn generate(key_type: KeyType) -> anyhow::Result<KeyAndRequest> {
    let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size);
    let key = match key_type {
        KeyType::Rsa3072 => rsa(RsaKeySize::_3072),
        KeyType::Rsa4096 => rsa(RsaKeySize::_4096),
        KeyType::EcdsaP256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
        KeyType::EcdsaP384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
        KeyType::EcdsaP521 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512),
        KeyType::Ed25519 => {
            // Version 1 of PKCS#8, because OpenSSL before version 3 does not read version 2.
            let key = Ed25519KeyPair::generate()?.to_pkcs8v1()?;
            let der = PrivatePkcs8KeyDer::from(key.as_ref());
            KeyPair::from_pkcs8_der_and_sign_algo(&der, &rcgen::PKCS_ED25519)
        }
    }?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key)?;
    Ok(KeyAndRequest { key: private(key.serialized_der()), request: request.der().to_vec() })
}

fn private(der: &[u8]) -> Bytes {
    let mut text = String::new();
    pem::add_block("PRIVATE KEY", der, &mut text);
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    fn openssl(args: &[&str]) -> String {
        let output = Command::new("openssl").args(args).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert!(output.status.success(), "{args:?}: {text}");
        text
    }

    #[test]
    fn every_type_of_key_is_one_that_others_read_and_its_request_proves_it() {
        if Command::new("openssl").arg("version").output().is_err() {
            assert!(std::env::var_os("CI").is_none(), "no openssl");
            eprintln!("SKIPPED, no openssl here");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        for (name, kind, signature) in [
            ("RSA3072", "(3072 bit", "sha256WithRSAEncryption"),
            ("RSA4096", "(4096 bit", "sha256WithRSAEncryption"),
            ("ECDSAP256", "(256 bit)", "ecdsa-with-SHA256"),
            ("ECDSAP384", "(384 bit)", "ecdsa-with-SHA384"),
            ("ECDSAP521", "(521 bit)", "ecdsa-with-SHA512"),
            ("ED25519", "ED25519", "ED25519"),
        ] {
            let made = generate(KeyType::parse(name).unwrap()).unwrap();
            let other = generate(KeyType::parse("ED25519").unwrap()).unwrap();
            assert_ne!(made.key, other.key);
            fs::write(at("key"), &made.key).unwrap();
            fs::write(at("request"), &made.request).unwrap();
            let key = openssl(&["pkey", "-in", &at("key"), "-text", "-noout"]);
            assert!(key.contains(kind), "{name}: {key}");
            let request = ["req", "-inform", "DER", "-in", &at("request"), "-noout"];
            let text = openssl(&[&request[..], &["-verify", "-text"]].concat());
            assert!(text.contains("verify OK"), "{name}: {text}");
            let algorithm = format!("Signature Algorithm: {signature}");
            assert!(text.contains(&algorithm), "{name}: {text}");
            assert!(text.contains("Subject: \n") || text.contains("Subject:\n"), "{text}");
            // The request is for this key.
            let public = openssl(&[&request[..], &["-pubkey"]].concat());
            assert_eq!(openssl(&["pkey", "-in", &at("key"), "-pubout"]), public);
        }
        assert_eq!(KeyType::parse("RSA2048"), None);
    }
}
