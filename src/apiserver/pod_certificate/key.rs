//! Private keys of pods, and the proof of possession for a request. Never logged.

use super::der::{self, SignatureKind};
use crate::{apiserver::pem, base::named_enum};
use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use getrandom::SysRng;
use p521::{ecdsa::signature::SignatureEncoding as _, pkcs8::EncodePrivateKey as _};
use rcgen::{KeyPair, PublicKeyData as _, SigningKey as _};
use rsa::{pkcs8::EncodePublicKey as _, sha2::Sha256, signature::RandomizedSigner as _};
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

/// Generates a key. Call it from `spawn_blocking`: an RSA key takes seconds.
pub(super) fn generate(key_type: KeyType) -> anyhow::Result<KeyAndRequest> {
    match key_type {
        KeyType::Rsa3072 => rsa(3072),
        KeyType::Rsa4096 => rsa(4096),
        KeyType::EcdsaP256 => {
            let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
            of_ring(&key, SignatureKind::EcdsaSha256)
        }
        KeyType::EcdsaP384 => {
            let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384)?;
            of_ring(&key, SignatureKind::EcdsaSha384)
        }
        KeyType::EcdsaP521 => p521(),
        KeyType::Ed25519 => ed25519(),
    }
}

/// Not the encoding of ring: OpenSSL before version 3 does not read PKCS#8 version 2.
fn ed25519() -> anyhow::Result<KeyAndRequest> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| anyhow!("no randomness: {error}"))?;
    let der = PrivatePkcs8KeyDer::from(der::ed25519_key(&seed));
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&der, &rcgen::PKCS_ED25519)?;
    of_ring(&key, SignatureKind::Ed25519)
}

fn of_ring(key: &KeyPair, kind: SignatureKind) -> anyhow::Result<KeyAndRequest> {
    let info = der::request_info(&key.subject_public_key_info());
    let signature = key.sign(&info)?;
    Ok(KeyAndRequest {
        key: private(key.serialized_der()),
        request: der::request(&info, kind, &signature),
    })
}

fn rsa(bits: usize) -> anyhow::Result<KeyAndRequest> {
    let key = rsa::PrivateKey::new(&mut SysRng, bits).map_err(|e| anyhow!("RSA key: {e}"))?;
    let public = key.to_public_key().to_public_key_der();
    let public = public.map_err(|e| anyhow!("public key: {e}"))?;
    let private_key = key.to_pkcs8_der();
    let private_key = private_key.map_err(|e| anyhow!("private key: {e}"))?;
    let info = der::request_info(public.as_bytes());
    let signer = rsa::pkcs1v15::SigningKey::<Sha256>::new(key);
    let signature = signer.try_sign_with_rng(&mut SysRng, &info);
    let signature = signature.map_err(|e| anyhow!("signature: {e}"))?;
    Ok(KeyAndRequest {
        key: private(private_key.as_bytes()),
        request: der::request(&info, SignatureKind::RsaSha256, &signature.to_vec()),
    })
}

fn p521() -> anyhow::Result<KeyAndRequest> {
    use p521::{
        ecdsa::{DerSignature, SigningKey, signature::Signer as _},
        elliptic_curve::Generate as _,
    };
    let key = SigningKey::try_generate().map_err(|e| anyhow!("no randomness: {e}"))?;
    let public = key.verifying_key().to_public_key_der();
    let public = public.map_err(|e| anyhow!("public key: {e}"))?;
    let info = der::request_info(public.as_bytes());
    let signature: DerSignature = key.try_sign(&info).context("cannot sign")?;
    let private_key = key.to_pkcs8_der();
    let private_key = private_key.map_err(|e| anyhow!("private key: {e}"))?;
    Ok(KeyAndRequest {
        key: private(private_key.as_bytes()),
        request: der::request(&info, SignatureKind::EcdsaSha512, signature.as_bytes()),
    })
}

fn private(der: &[u8]) -> Bytes {
    let mut text = String::new();
    pem::add_block("PRIVATE KEY", der, &mut text);
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, process::Command};

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
