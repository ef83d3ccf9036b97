//! Certificates with their keys on disk: one file each, and a link to the current one. Blocking.
//!
//! Upstream: `FileStore` of `k8s.io/client-go/util/certificate`.

use super::plan::Template;
use crate::base::{
    atomic_file,
    x509::{self, Facts},
};
use anyhow::Context as _;
use jiff::Zoned;
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, symlink},
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The name of client certificates.
pub const CLIENT: &str = "kubelet-client";
/// The name of serving certificates.
pub const SERVER: &str = "kubelet-server";

/// The certificates of one kind.
#[derive(Clone, Debug)]
pub struct FileStore {
    directory: PathBuf,
    name: &'static str,
}

/// A certificate that can be used.
#[derive(Clone, Debug)]
pub(super) struct Current {
    certificate: CertificateDer<'static>,
    pub(super) facts: Facts,
}

impl Current {
    pub(super) fn is_expired(&self, now: SystemTime) -> bool {
        SystemTime::from(self.facts.not_after) <= now
    }

    pub(super) fn satisfies(&self, template: &Template) -> bool {
        template.is_satisfied_by(&self.certificate, &self.facts)
    }
}

impl FileStore {
    /// Those of `--cert-dir`.
    pub fn new(directory: &Path, name: &'static str) -> Self {
        let directory = directory.to_owned();
        Self { directory, name }
    }

    /// The link to the current one.
    pub fn current_path(&self) -> PathBuf {
        self.directory.join(format!("{}-current.pem", self.name))
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The current one; `None` when there is none that can be used.
    pub(super) fn current(&self) -> Option<Current> {
        let path = self.current_path();
        let pem = match fs::read(&path) {
            Ok(pem) => pem,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), err = %error, "Reading the current certificate failed");
                }
                return None;
            }
        };
        match pair(&pem, &pem) {
            Ok(current) => Some(current),
            Err(error) => {
                tracing::warn!(path = %path.display(), err = format!("{error:#}"), "The current certificate is unusable");
                None
            }
        }
    }

    /// Makes a certificate with its key the current one.
    ///
    /// # Errors
    /// They cannot be used, or not be written; then the current one stays.
    pub(super) fn update(&self, certificate: &[u8], key: &[u8]) -> anyhow::Result<Current> {
        let current = pair(certificate, key).context("the issued certificate is unusable")?;
        anyhow::ensure!(
            !current.is_expired(SystemTime::now()),
            "the issued certificate expired at {}",
            current.facts.not_after
        );
        create_directory(&self.directory)?;
        let time = Zoned::now().strftime("%Y-%m-%d-%H-%M-%S");
        let path = self.directory.join(format!("{}-{time}.pem", self.name));
        let separator: &[u8] = if certificate.ends_with(b"\n") {
            b""
        } else {
            b"\n"
        };
        let pem = [certificate, separator, key].concat();
        atomic_file::write(&path, &pem)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let updated = self.directory.join(format!("{}-updated.pem", self.name));
        let link = || {
            if let Err(error) = fs::remove_file(&updated)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
            symlink(&path, &updated)?;
            fs::rename(&updated, self.current_path())
        };
        link().with_context(|| format!("cannot replace {}", self.current_path().display()))?;
        Ok(current)
    }
}

pub(super) fn create_directory(path: &Path) -> anyhow::Result<()> {
    let mut builder = fs::DirBuilder::new();
    let created = builder.recursive(true).mode(0o755).create(path);
    created.with_context(|| format!("cannot create {} (--cert-dir)", path.display()))
}

/// A certificate and its key, which have to belong together.
fn pair(certificate: &[u8], key: &[u8]) -> anyhow::Result<Current> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.context("a certificate cannot be decoded")?;
    let first = chain.first().context("there is no certificate")?.clone();
    let facts = x509::facts(&first).context("the certificate cannot be read")?;
    let key = PrivateKeyDer::from_pem_slice(key).context("there is no private key")?;
    CertifiedKey::from_der(chain, key, &ring::default_provider())
        .context("certificate and key do not belong together")?;
    Ok(Current {
        certificate: first,
        facts,
    })
}
