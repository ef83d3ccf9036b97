//! Certificate files: certificate and key in one file, and a symbolic link to the current one. Blocking.
//!
//! Upstream: `FileStore` of `k8s.io/client-go/util/certificate`.

use super::plan::Template;
use crate::base::x509::{self, CertificateFacts};
use crate::base::{atomic_file, clock, if_exists};
use anyhow::Context as _;
use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use std::ffi::OsString;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

/// Name prefix of client certificate files.
pub const CLIENT: &str = "kubelet-client";
/// Name prefix of serving certificate files.
pub const SERVER: &str = "kubelet-server";

/// The files of one kind of certificate.
#[derive(Clone, Debug)]
pub struct FileStore {
    directory: PathBuf,
    name: &'static str,
}

/// A usable certificate.
#[derive(Clone, Debug)]
pub(super) struct StoredCertificate {
    certificate: CertificateDer<'static>,
    pub(super) facts: CertificateFacts,
}

impl StoredCertificate {
    fn has_begun(&self, now: SystemTime) -> bool {
        SystemTime::from(self.facts.not_before) <= now
    }

    pub(super) fn is_expired(&self, now: SystemTime) -> bool {
        SystemTime::from(self.facts.not_after) <= now
    }

    pub(super) fn satisfies(&self, template: &Template) -> bool {
        template.is_satisfied_by(&self.certificate, &self.facts)
    }
}

impl FileStore {
    /// Files in `--cert-dir` with this prefix.
    pub fn new(directory: &Path, name: &'static str) -> Self {
        let directory = directory.to_owned();
        Self { directory, name }
    }

    /// Path of the symbolic link to the current certificate.
    pub fn current_path(&self) -> PathBuf {
        self.directory.join(format!("{}-current.pem", self.name))
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Reads the current certificate; `None` if there is no usable one.
    pub(super) fn current(&self) -> Option<StoredCertificate> {
        let path = self.current_path();
        let pem = if_exists(fs::read(&path)).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), err = %error, "Reading the current certificate failed");
            None
        })?;
        match parse_pair(&pem, &pem) {
            Ok(current) => Some(current),
            Err(error) => {
                tracing::warn!(path = %path.display(), err = format!("{error:#}"), "The current certificate is unusable");
                None
            }
        }
    }

    /// Stores a certificate and its key, and makes it the current one.
    ///
    /// # Errors
    /// They cannot be parsed, do not match, or cannot be written. The current certificate is kept.
    pub(super) fn update(
        &self,
        certificate: &[u8],
        key: &[u8],
    ) -> anyhow::Result<StoredCertificate> {
        let current = parse_pair(certificate, key).context("the issued certificate is unusable")?;
        anyhow::ensure!(
            !current.is_expired(clock::system_time()),
            "the issued certificate expired at {}",
            current.facts.not_after
        );
        create_directory(&self.directory)?;
        let time = clock::local_time().strftime("%Y-%m-%d-%H-%M-%S");
        let path = self.directory.join(format!("{}-{time}.pem", self.name));
        let separator: &[u8] = if certificate.ends_with(b"\n") { b"" } else { b"\n" };
        let pem = [certificate, separator, key].concat();
        atomic_file::write_durable(&path, &pem)
            .with_context(|| format!("cannot write {}", path.display()))?;
        self.link(&path)
            .with_context(|| format!("cannot replace {}", self.current_path().display()))?;
        Ok(current)
    }

    /// Points the link at a file that is already on disk. If the directory cannot be synced, the new link is in effect,
    /// but may be lost in a power cut.
    fn link(&self, path: &Path) -> io::Result<()> {
        let updated = self.directory.join(format!("{}-updated.pem", self.name));
        if_exists(fs::remove_file(&updated))?;
        symlink(path, &updated)?;
        fs::rename(&updated, self.current_path())?;
        if let Err(error) = atomic_file::sync_directory(&self.directory) {
            tracing::warn!(path = %self.directory.display(), err = %error, "Syncing the directory of certificates failed");
        }
        Ok(())
    }

    /// If the current certificate exists but is damaged, as after a power cut, makes the newest valid file the current
    /// one. An expired certificate is left in place, and a removed one is not restored, because removing it is how
    /// administrators force a new request.
    pub fn recover(&self) {
        let (path, now) = (self.current_path(), clock::system_time());
        if fs::symlink_metadata(&path).is_err() || self.current().is_some() {
            return;
        }
        let Some((newest, _)) = self.valid(now).max_by(|(_, one), (_, other)| one.cmp(other))
        else {
            return;
        };
        match self.link(&newest) {
            Ok(()) => {
                tracing::warn!(path = %path.display(), certificate = %newest.display(), "Replaced the unusable current certificate by the newest valid one");
            }
            Err(error) => {
                tracing::error!(path = %path.display(), err = %error, "Replacing the unusable current certificate failed");
            }
        }
    }

    /// All usable certificates, with the start of their validity and their file name.
    fn valid(&self, now: SystemTime) -> impl Iterator<Item = (PathBuf, (Timestamp, OsString))> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let prefix = format!("{}-", self.name);
        entries.filter_map(move |entry| {
            let name = entry.file_name();
            let is_own = name.to_str()?.strip_prefix(&prefix)?.ends_with(".pem");
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            let pem = (is_own && is_file).then(|| fs::read(entry.path()).ok())??;
            let found = parse_pair(&pem, &pem).ok()?;
            let since = (found.facts.not_before, name);
            (found.has_begun(now) && !found.is_expired(now)).then(|| (entry.path(), since))
        })
    }
}

pub(super) fn create_directory(path: &Path) -> anyhow::Result<()> {
    let mut builder = fs::DirBuilder::new();
    let created = builder.recursive(true).mode(0o755).create(path);
    created.with_context(|| format!("cannot create {} (--cert-dir)", path.display()))
}

/// Parses a certificate and its key, which have to match.
fn parse_pair(certificate: &[u8], key: &[u8]) -> anyhow::Result<StoredCertificate> {
    let (pair, facts) = x509::key_pair(certificate, key)?;
    let certificate = pair.cert.into_iter().next();
    Ok(StoredCertificate { certificate: certificate.context("there is no certificate")?, facts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::tests::pki::{Authority, Issued};

    fn pem(issued: &Issued) -> String {
        format!("{}{}", issued.pem, issued.key_pem)
    }

    #[test]
    fn a_current_certificate_that_cannot_be_used_is_replaced_by_the_newest_one_beside_it() {
        let authority = Authority::new("nodes");
        let [older, newer] = ["n1", "n1"].map(|name| authority.client(name, &[]));
        let expired = authority.expired_client("n1");
        let later = authority.later_client("n1");
        let damages: [fn(&FileStore, &Path); 5] = [
            |_, written| fs::write(written, "").unwrap(),
            |_, written| {
                let text = fs::read(written).unwrap();
                fs::write(written, &text[..text.len() / 2]).unwrap();
            },
            |_, written| fs::remove_file(written).unwrap(),
            |store, _| {
                fs::remove_file(store.current_path()).unwrap();
                fs::write(store.current_path(), "").unwrap();
            },
            |store, _| {
                fs::remove_file(store.current_path()).unwrap();
                symlink(&store.directory, store.current_path()).unwrap();
            },
        ];
        for (row, damage) in damages.into_iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            let store = FileStore::new(dir.path(), CLIENT);
            for (name, text) in [
                ("kubelet-client-2026-01-01-00-00-00.pem", pem(&older)),
                ("kubelet-client-2026-01-02-00-00-00.pem", pem(&newer)),
                ("kubelet-client-2026-01-03-00-00-00.pem", pem(&expired)),
                ("kubelet-client-2026-01-06-00-00-00.pem", pem(&later)),
                ("kubelet-client-2026-01-04-00-00-00.pem", newer.pem.clone()),
                ("kubelet-server-2026-01-05-00-00-00.pem", pem(&older)),
                ("kubelet-client.key.tmp", newer.key_pem.clone()),
            ] {
                fs::write(dir.path().join(name), text).unwrap();
            }
            let (certificate, key) = (older.pem.as_bytes(), older.key_pem.as_bytes());
            store.update(certificate, key).unwrap();
            let written = fs::read_link(store.current_path()).unwrap();
            store.recover();
            assert_eq!(fs::read_link(store.current_path()).unwrap(), written, "it is good");
            damage(&store, &written);
            assert!(store.current().is_none());
            store.recover();
            let current = store.current().unwrap();
            // The one that was written last, unless it was damaged.
            let expected =
                if written.exists() && fs::read(&written).unwrap() == pem(&older).as_bytes() {
                    older.der.clone()
                } else {
                    newer.der.clone()
                };
            assert_eq!(current.certificate, expected, "{row}");
        }
    }

    #[test]
    fn a_current_certificate_that_is_whole_stays_even_if_it_expired() {
        let authority = Authority::new("nodes");
        let valid = authority.client("n1", &[]);
        let expired = authority.expired_client("n1");
        for is_link in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let store = FileStore::new(dir.path(), CLIENT);
            let beside = dir.path().join("kubelet-client-2026-01-01-00-00-00.pem");
            fs::write(beside, pem(&valid)).unwrap();
            let own = dir.path().join("own.pem");
            if is_link {
                fs::write(&own, pem(&expired)).unwrap();
                symlink(&own, store.current_path()).unwrap();
            } else {
                fs::write(store.current_path(), pem(&expired)).unwrap();
            }
            store.recover();
            assert_eq!(store.current().unwrap().certificate, expired.der);
            let kind = fs::symlink_metadata(store.current_path()).unwrap();
            assert_eq!(kind.is_symlink(), is_link);
        }
    }

    #[test]
    fn without_a_good_one_beside_it_and_without_a_link_nothing_changes() {
        let authority = Authority::new("nodes");
        let dir = tempfile::tempdir().unwrap();
        let store = FileStore::new(&dir.path().join("pki"), CLIENT);
        store.recover();
        assert!(!store.directory.exists());
        create_directory(&store.directory).unwrap();
        let other = store.directory.join("kubelet-client-2026-01-01-00-00-00.pem");
        fs::write(&other, pem(&authority.client("n1", &[]))).unwrap();
        // Removed, so that the node gets another certificate.
        store.recover();
        assert!(store.current().is_none());
        fs::write(&other, pem(&authority.expired_client("n1"))).unwrap();
        symlink("missing.pem", store.current_path()).unwrap();
        store.recover();
        let target = fs::read_link(store.current_path()).unwrap();
        assert_eq!(target, Path::new("missing.pem"));
    }
}
