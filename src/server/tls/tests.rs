//! Certificates in files: read, generated, and replaced while they are in use.

use super::*;
use crate::apiserver::tests::pki::{Authority, Issued};
use crate::base::clock;
use rustls::NamedGroup;
use rustls::pki_types::CertificateDer;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

const TIMEOUT: Duration = Duration::from_secs(60);

fn own(directory: &Path) -> TlsSettings {
    TlsSettings {
        certificate: ServingCertificate::SelfSigned { directory: directory.to_owned() },
        options: TlsOptions::default(),
    }
}

fn shown(pair: &CertificateKeyPair) -> CertificateDer<'static> {
    pair.certificate().unwrap().clone()
}

fn write(directory: &Path, issued: &Issued) -> [PathBuf; 2] {
    let [certificate, key] = self_signed::files(directory);
    fs::write(&certificate, &issued.pem).unwrap();
    fs::write(&key, &issued.key_pem).unwrap();
    [certificate, key]
}

fn names(name: &str, address: &str) -> CertificateNames {
    CertificateNames::of(name, &[address.parse().unwrap()])
}

#[test]
fn a_certificate_is_generated_once_and_only_its_owner_can_read_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("a/pki");
    let names = names("node-1", "10.0.0.7");
    let first = self_signed::read_or_create(&pki, &names).unwrap();
    let [certificate, key] = self_signed::files(&pki);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&certificate), mode(&key)), (0o644, 0o600));
    let again = self_signed::read_or_create(&pki, &names).unwrap();
    assert_eq!(shown(&first), shown(&again));
    let facts = first.facts();
    assert!(facts.common_name.starts_with("node-1@"), "{facts:?}");
    let left = SystemTime::from(facts.not_after).duration_since(clock::system_time()).unwrap();
    assert!(left > Duration::from_secs(360 * 24 * 3600), "{left:?}");
    assert!(!self_signed::expires_soon(&first));
}

#[test]
fn an_unusable_certificate_is_generated_again() {
    let dir = tempfile::tempdir().unwrap();
    let names = names("node-1", "127.0.0.1");
    let replaced = |what: &str| {
        let before = CertificateKeyPair::read(
            &self_signed::files(dir.path())[0],
            &self_signed::files(dir.path())[1],
        );
        let before = before.ok().map(|pair| shown(&pair));
        let made = self_signed::read_or_create(dir.path(), &names).unwrap();
        assert_ne!(Some(shown(&made)), before, "{what}");
    };
    let kept = || {
        let [certificate, key] = self_signed::files(dir.path());
        let before = shown(&CertificateKeyPair::read(&certificate, &key).unwrap());
        let read = self_signed::read_or_create(dir.path(), &names).unwrap();
        assert_eq!(shown(&read), before);
    };
    replaced("nothing is there");
    let [certificate, key] = self_signed::files(dir.path());
    fs::write(&certificate, "junk").unwrap();
    replaced("it cannot be read");
    fs::remove_file(&key).unwrap();
    replaced("its key is gone");
    let authority = Authority::new("other");
    let other = authority.server("node-1");
    fs::write(&certificate, &other.pem).unwrap();
    replaced("its key is another's");
    self_signed::read_or_create(&dir.path().join("2"), &self::names("node-2", "127.0.0.1"))
        .unwrap();
    for file in self_signed::files(dir.path()) {
        let made = dir.path().join("2").join(file.file_name().unwrap());
        fs::copy(made, file).unwrap();
    }
    replaced("it is for another name");
    write(dir.path(), &authority.expired_client("node-1@1700000000"));
    replaced("it has expired");
    kept();
    // A certificate of another issuer was put there on purpose.
    for issued in [other, authority.server("node-2"), authority.expired_client("node-1")] {
        write(dir.path(), &issued);
        kept();
    }
}

#[test]
fn a_pair_that_is_half_replaced_is_left_alone_while_the_kubelet_runs() {
    let dir = tempfile::tempdir().unwrap();
    let names = names("node-1", "127.0.0.1");
    self_signed::read_or_create(dir.path(), &names).unwrap();
    let [certificate, _] = self_signed::files(dir.path());
    let other = Authority::new("other").server("node-1");
    fs::write(&certificate, &other.pem).unwrap();
    assert!(self_signed::reload(dir.path(), &names).is_err());
    assert_eq!(fs::read_to_string(&certificate).unwrap(), other.pem);
    write(dir.path(), &other);
    assert_eq!(shown(&self_signed::reload(dir.path(), &names).unwrap()), other.der);
    // A self-signed certificate is replaced before it expires.
    let old = Authority::new("other").expired_client("node-1@1700000000");
    write(dir.path(), &old);
    let pair = self_signed::reload(dir.path(), &names).unwrap();
    assert!(shown(&pair) != old.der && !self_signed::expires_soon(&pair));
}

#[test]
fn a_node_whose_name_is_invalid_in_certificates_gets_one_for_its_address() {
    let dir = tempfile::tempdir().unwrap();
    let names = CertificateNames::of("knoten ä", &["::1".parse().unwrap()]);
    let made = self_signed::read_or_create(dir.path(), &names).unwrap();
    assert_eq!(shown(&made), shown(&self_signed::read_or_create(dir.path(), &names).unwrap()));
}

#[test]
fn files_that_are_given_must_be_good_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let [certificate, key] = write(dir.path(), &Authority::new("a").server("n"));
    let settings = TlsSettings {
        certificate: ServingCertificate::Files {
            certificate: certificate.clone(),
            key: key.clone(),
        },
        options: TlsOptions::default(),
    };
    assert!(Tls::open(&settings, ("n", &[]), None).is_ok());
    let fails = |path: &Path| {
        let error = Tls::open(&settings, ("n", &[]), None).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains(path.to_str().unwrap()), "{text}");
    };
    let good = fs::read(&key).unwrap();
    fs::write(&key, "junk").unwrap();
    fails(&key);
    fs::write(&key, &Authority::new("b").server("n").key_pem).unwrap();
    fails(&key);
    fs::write(&key, good).unwrap();
    fs::write(&certificate, "").unwrap();
    fails(&certificate);
    fs::remove_file(&certificate).unwrap();
    fails(&certificate);
    let blocked = dir.path().join("file");
    fs::write(&blocked, "").unwrap();
    let error = Tls::open(&own(&blocked), ("n", &[]), None).unwrap_err();
    assert!(format!("{error:#}").contains("--cert-dir"), "{error:#}");
}

/// Whether a handshake on memory gets a certificate, and the group of its key exchange.
async fn handshake(tls: &Tls, authority: &Authority) -> std::io::Result<NamedGroup> {
    let (client, server) = tokio::io::duplex(64 * 1024);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.der()).unwrap();
    let provider = crate::base::tls_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let acceptor = tokio_rustls::TlsAcceptor::from(tls.config().await);
    let name = "n".try_into().unwrap();
    let (served, connected) =
        tokio::join!(acceptor.accept(server), connector.connect(name, client));
    served?;
    connected.map(|stream| {
        let group = stream.get_ref().1.negotiated_key_exchange_group();
        group.expect("a handshake that has ended").name()
    })
}

#[tokio::test]
async fn keys_may_be_of_any_kind_that_go_has_and_their_exchange_resists_quantum_computers() {
    for kind in [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ECDSA_P521_SHA512,
        &rcgen::PKCS_ED25519,
        &rcgen::PKCS_RSA_SHA256,
    ] {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::with_keys("a", kind);
        let [certificate, key] = write(dir.path(), &authority.server("n"));
        let settings = TlsSettings {
            certificate: ServingCertificate::Files { certificate, key },
            options: TlsOptions::default(),
        };
        let tls = Tls::open(&settings, ("n", &[]), None).unwrap();
        let group = handshake(&tls, &authority).await.expect("a handshake");
        assert_eq!(group, NamedGroup::X25519MLKEM768, "{kind:?}");
    }
}

#[tokio::test]
async fn without_an_issued_certificate_handshakes_are_refused_until_there_is_one() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new("a"));
    let settings = TlsSettings {
        certificate: ServingCertificate::Issued { directory: dir.path().join("pki") },
        options: TlsOptions::default(),
    };
    let tls = Tls::open(&settings, ("n", &[]), None).unwrap();
    assert!(handshake(&tls, &authority).await.is_err());
    let issued = authority.server("n");
    fs::create_dir(dir.path().join("pki")).unwrap();
    let path = dir.path().join("pki/kubelet-server-current.pem");
    fs::write(&path, "junk").unwrap();
    assert!(handshake(&tls, &authority).await.is_err());
    fs::write(&path, format!("{}{}", issued.pem, issued.key_pem)).unwrap();
    let end = clock::instant() + TIMEOUT;
    while handshake(&tls, &authority).await.is_err() {
        assert!(clock::instant() < end, "it is not used");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(fs::read_dir(dir.path().join("pki")).unwrap().count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_issued_certificate_is_used_until_another_one_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let settings = TlsSettings {
        certificate: ServingCertificate::Issued { directory: dir.path().to_owned() },
        options: TlsOptions::default(),
    };
    let path = dir.path().join("kubelet-server-current.pem");
    let [first, second] = ["a", "b"].map(Authority::new);
    let issue = |authority: &Authority| {
        let issued = authority.server("n");
        fs::write(&path, format!("{}{}", issued.pem, issued.key_pem)).unwrap();
    };
    issue(&first);
    let tls = Tls::open(&settings, ("n", &[]), None).unwrap();
    handshake(&tls, &first).await.unwrap();
    let damages: [fn(&Path); 2] =
        [|path| fs::write(path, "junk").unwrap(), |path| fs::remove_file(path).unwrap()];
    for damage in damages {
        damage(&path);
        // The next handshake checks the file.
        tokio::time::advance(Duration::from_secs(2)).await;
        handshake(&tls, &first).await.unwrap();
    }
    issue(&second);
    tokio::time::advance(Duration::from_secs(2)).await;
    handshake(&tls, &second).await.unwrap();
}

/// Polls until the value is made of the current files.
async fn wait<T: Send + Sync + 'static>(
    reloaded: &Arc<Reloaded<T>>,
    fact: impl Fn(&T) -> bool,
) -> Arc<T> {
    let looking = async {
        loop {
            let value = reloaded.current().await;
            if fact(&value) {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, looking).await.expect("it is not read again")
}

#[tokio::test]
async fn changed_files_are_read_again_and_broken_ones_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("number");
    fs::write(&path, "1").unwrap();
    let (own, reads) = (path.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = reads.clone();
    let read = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(fs::read_to_string(&own)?.trim().parse::<u32>()?)
    };
    let number = Reloaded::open("a number", vec![path.clone()], read, |_| false).unwrap();
    let number = Arc::new(number);
    for _ in 0..100 {
        assert_eq!(*number.current().await, 1);
    }
    assert_eq!(reads.load(Ordering::SeqCst), 1);
    fs::write(&path, "2").unwrap();
    wait(&number, |number| *number == 2).await;
    // An unreadable file is read again until it is valid.
    fs::write(&path, "x").unwrap();
    let before = reads.load(Ordering::SeqCst);
    wait(&number, |_| reads.load(Ordering::SeqCst) > before).await;
    assert_eq!(*number.current().await, 2);
    fs::remove_file(&path).unwrap();
    let before = reads.load(Ordering::SeqCst);
    wait(&number, |_| reads.load(Ordering::SeqCst) > before).await;
    assert_eq!(*number.current().await, 2);
    // As mounted secrets change: a link is swapped.
    let aside = dir.path().join("aside");
    fs::write(&aside, "3").unwrap();
    std::os::unix::fs::symlink(&aside, &path).unwrap();
    wait(&number, |number| *number == 3).await;
}

#[tokio::test]
async fn an_expiring_certificate_is_replaced_though_no_file_has_changed() {
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = reads.clone();
    let read = move || Ok(counted.fetch_add(1, Ordering::SeqCst));
    let count = Reloaded::open("a count", Vec::new(), read, |count| *count == 0).unwrap();
    let count = Arc::new(count);
    wait(&count, |count| *count == 1).await;
}
