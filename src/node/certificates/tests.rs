//! Bootstrap, rotation and serving certificates against a scripted API server.

use super::request::CLIENT as CLIENT_SIGNER;
use super::*;
use crate::apiserver::tests::pki::Authority;
use crate::apiserver::tests::scripted::{Received, Reply, Scripted};
use crate::apiserver::{ApiServer, ClientIdentity};
use crate::base::clock;
use crate::base::metrics::Metrics;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::sleep;

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// A certificate that began and ends so many seconds from now.
    Issued(i64, i64),
    /// The same for a key of somebody else.
    Foreign,
    /// For another node.
    Renamed,
    Garbage,
    Denied,
    Failed,
    Deleted,
    Pending,
}

/// A cluster that signs; each request has the next fate, and the last one is repeated.
struct Cluster {
    server: Scripted,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl Cluster {
    async fn start(fates: &[Fate]) -> Self {
        let (fates, authority) = (fates.to_vec(), Authority::new("nodes"));
        let requests: Arc<Mutex<Vec<Value>>> = Arc::default();
        let kept = requests.clone();
        let server = Scripted::serve(move |received| {
            let mut requests = kept.lock();
            let respond = |at: usize, requests: &[Value]| {
                let fate = fates.get(at).or(fates.last()).expect("a fate");
                decided(&requests[at], *fate, &authority)
            };
            match received.line().as_str() {
                "POST /apis/certificates.k8s.io/v1/certificatesigningrequests" => {
                    create(received, &mut requests)
                }
                "GET /apis/certificates.k8s.io/v1/certificatesigningrequests" => {
                    if received.parameter("watch").is_some() {
                        return Reply::Silence;
                    }
                    let selector = received.parameter("fieldSelector").expect("a selector");
                    let name = selector.strip_prefix("metadata.name=").expect("a name");
                    let at = requests.iter().position(|one| one["metadata"]["name"] == name);
                    let item = respond(at.expect("a request"), &requests);
                    let items: Vec<_> = item.into_iter().collect();
                    Reply::Json(200, json!({"metadata": {"resourceVersion": "1"}, "items": items}))
                }
                line => {
                    let name = line.rsplit('/').next().unwrap_or_default();
                    let found = requests.iter().find(|one| one["metadata"]["name"] == name);
                    found.map_or_else(
                        || Reply::status(404, "NotFound"),
                        |one| Reply::Json(200, one.clone()),
                    )
                }
            }
        })
        .await;
        Self { server, requests }
    }

    fn requests(&self) -> Vec<Value> {
        self.requests.lock().clone()
    }

    fn bootstrap(&self, directory: &Path) -> Bootstrap {
        fs::create_dir_all(directory.join("bootstrap")).unwrap();
        Bootstrap {
            bootstrap_kubeconfig: self.server.kubeconfig(&directory.join("bootstrap")),
            kubeconfig: directory.join("kubelet.conf"),
            store: FileStore::new(&directory.join("pki"), CLIENT),
            rotates: true,
            node_name: "n1".to_owned(),
        }
    }
}

fn create(received: &Received, requests: &mut Vec<Value>) -> Reply {
    let mut object = received.body.clone();
    let name = object["metadata"]["name"].as_str().map(str::to_owned);
    let name = name.unwrap_or_else(|| format!("csr-{}", requests.len()));
    if requests.iter().any(|one| one["metadata"]["name"] == name.as_str()) {
        return Reply::status(409, "AlreadyExists");
    }
    object["metadata"]["name"] = json!(name);
    object["metadata"]["uid"] = json!(format!("uid-{}", requests.len()));
    requests.push(object.clone());
    Reply::Json(201, object)
}

fn decided(request: &Value, fate: Fate, authority: &Authority) -> Option<Value> {
    let condition = |kind: &str| json!([{"type": kind, "status": "True", "reason": "Scripted"}]);
    let issued = |pem: String| json!({"conditions": condition("Approved"), "certificate": STANDARD.encode(pem)});
    let mut object = request.clone();
    object["status"] = match fate {
        Fate::Issued(begun, ends) => {
            let der = CertificateSigningRequestDer::from_pem_slice(&pem(request));
            let der = der.expect("a request");
            issued(authority.sign(&der, "system:node:n1", begun, ends))
        }
        Fate::Foreign => issued(authority.client("system:node:n1", &["system:nodes"]).pem),
        Fate::Renamed => {
            let der = CertificateSigningRequestDer::from_pem_slice(&pem(request));
            issued(authority.sign(&der.expect("a request"), "system:node:n2", -60, 3600))
        }
        Fate::Garbage => issued("<html>".to_owned()),
        Fate::Denied => json!({"conditions": condition("Denied")}),
        Fate::Failed => json!({"conditions": condition("Failed")}),
        Fate::Pending => json!({}),
        Fate::Deleted => return None,
    };
    Some(object)
}

/// The request itself.
fn pem(request: &Value) -> Vec<u8> {
    let text = request["spec"]["request"].as_str().unwrap();
    STANDARD.decode(text).unwrap()
}

async fn until(what: &str, mut good: impl FnMut() -> bool) {
    let end = clock::instant() + Duration::from_secs(20);
    while !good() {
        assert!(clock::instant() < end, "{what}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_bootstrap_stores_its_certificate_and_writes_a_kubeconfig() {
    let cluster = Cluster::start(&[Fate::Issued(-60, 3600)]).await;
    let dir = tempfile::tempdir().unwrap();
    let bootstrap = cluster.bootstrap(dir.path());
    bootstrap.until_done().await;
    let requests = cluster.requests();
    assert_eq!(requests.len(), 1);
    let spec = &requests[0]["spec"];
    assert_eq!(spec["signerName"], CLIENT_SIGNER.name);
    assert_eq!(spec["usages"], json!(["digital signature", "client auth"]));
    assert!(requests[0]["metadata"]["name"].as_str().unwrap().starts_with("node-csr-"));
    let current = dir.path().join("pki/kubelet-client-current.pem");
    let target = fs::read_link(&current).unwrap();
    assert!(target.to_str().unwrap().contains("pki/kubelet-client-20"), "{target:?}");
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!bootstrap.key_path().exists());
    let text = fs::read_to_string(&bootstrap.kubeconfig).unwrap();
    assert!(text.contains(current.to_str().unwrap()), "{text}");
    assert!(!text.contains("node-token"), "{text}");
    // Another start finds it valid, and nothing is requested.
    bootstrap.until_done().await;
    assert_eq!(cluster.requests().len(), 1);
}

#[tokio::test]
async fn a_client_waits_for_the_identity_of_a_bootstrap_and_uses_it() {
    let cluster = Cluster::start(&[Fate::Issued(-60, 3600)]).await;
    let dir = tempfile::tempdir().unwrap();
    let bootstrap = cluster.bootstrap(dir.path());
    let api = ApiServer::open(ClientIdentity {
        kubeconfig: bootstrap.kubeconfig.clone(),
        certificate: None,
        is_awaited: true,
        proxies: None,
    })
    .await
    .unwrap();
    let getting = tokio::spawn(async move {
        use crate::apiserver::ResourcePath;
        let got = api.get::<k8s_openapi::api::core::v1::Node>(ResourcePath::cluster("n1"));
        got.await.unwrap_err()
    });
    sleep(Duration::from_millis(300)).await;
    assert!(!getting.is_finished());
    bootstrap.until_done().await;
    // The certificate is of an authority that this server does not know, so the handshake is refused.
    let error = getting.await.unwrap();
    let text = crate::base::error_chain(&error);
    assert!(text.contains("alert"), "{text}");
}

#[tokio::test]
async fn a_denied_failed_or_deleted_request_is_made_again_with_another_key() {
    for fate in [
        Fate::Denied,
        Fate::Failed,
        Fate::Deleted,
        Fate::Garbage,
        Fate::Foreign,
        Fate::Issued(-60, -30),
    ] {
        let cluster = Cluster::start(&[fate, Fate::Issued(-60, 3600)]).await;
        let dir = tempfile::tempdir().unwrap();
        let bootstrap = cluster.bootstrap(dir.path());
        let own = bootstrap.clone();
        let running = tokio::spawn(async move { own.until_done().await });
        until("the first request", || cluster.requests().len() == 1).await;
        // It is rejected once its key is gone.
        until("a rejection", || !bootstrap.key_path().exists()).await;
        assert!(!bootstrap.kubeconfig.exists(), "{fate:?}");
        assert!(!dir.path().join("pki/kubelet-client-current.pem").exists(), "{fate:?}");
        running.abort();
        bootstrap.until_done().await;
        let names: Vec<_> =
            cluster.requests().iter().map(|one| one["metadata"]["name"].clone()).collect();
        assert_eq!(names.len(), 2, "{fate:?}");
        assert_ne!(names[0], names[1], "{fate:?}");
    }
}

#[tokio::test]
async fn a_kubelet_that_starts_again_finds_its_pending_request() {
    let cluster = Cluster::start(&[Fate::Pending]).await;
    let dir = tempfile::tempdir().unwrap();
    let bootstrap = cluster.bootstrap(dir.path());
    for _ in 0..2 {
        let own = bootstrap.clone();
        let watches = || {
            let received = cluster.server.received();
            received.iter().filter(|one| one.parameter("watch").is_some()).count()
        };
        let before = watches();
        let running = tokio::spawn(async move { own.until_done().await });
        until("a watch", || watches() > before).await;
        running.abort();
    }
    assert_eq!(cluster.requests().len(), 1);
    let pem = fs::read_to_string(bootstrap.key_path()).unwrap();
    assert!(pem.contains("PRIVATE KEY"), "{pem}");
}

#[tokio::test]
async fn a_certificate_that_cannot_be_written_is_written_later() {
    let cluster = Cluster::start(&[Fate::Issued(-60, 3600)]).await;
    let dir = tempfile::tempdir().unwrap();
    let bootstrap = cluster.bootstrap(dir.path());
    // A directory in the place of the link cannot be replaced, also not by root.
    let current = dir.path().join("pki/kubelet-client-current.pem");
    fs::create_dir_all(current.join("full")).unwrap();
    let own = bootstrap.clone();
    let running = tokio::spawn(async move { own.until_done().await });
    until("a certificate", || {
        let mut entries = fs::read_dir(dir.path().join("pki")).unwrap().flatten();
        entries.any(|one| one.file_name().to_str().unwrap().starts_with("kubelet-client-20"))
    })
    .await;
    fs::remove_dir_all(&current).unwrap();
    running.await.unwrap();
    assert!(current.exists() && bootstrap.kubeconfig.exists());
    assert_eq!(cluster.requests().len(), 1);
}

fn manager(api: ApiServer, dir: &Path, metrics: &Metrics) -> CertificateManager {
    let (store, metrics) =
        (FileStore::new(dir, CLIENT), CertificateMetrics::new(Purpose::Client, metrics));
    CertificateManager::new(Purpose::Client, api, store, || Some(Template::client("n1")), metrics)
}

#[tokio::test]
async fn a_client_certificate_is_requested_at_once_and_renewed_before_its_end() {
    // The second is due at once: it has lived for 95 % of its life.
    let fates = [Fate::Issued(-9500, 500), Fate::Issued(-60, 36_000)];
    let cluster = Cluster::start(&fates).await;
    let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
    let api = ApiServer::of_kubeconfig(&cluster.server.kubeconfig(dir.path())).await.unwrap();
    let manager = manager(api, dir.path(), &metrics);
    let running = tokio::spawn(manager.run());
    let store = FileStore::new(dir.path(), CLIENT);
    until("two requests", || cluster.requests().len() == 2).await;
    until("the second certificate", || {
        let end = store.current().map(|current| SystemTime::from(current.facts.not_after));
        end.is_some_and(|end| end > clock::system_time() + Duration::from_secs(30_000))
    })
    .await;
    sleep(Duration::from_millis(200)).await;
    let requests = cluster.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0]["metadata"]["generateName"], "csr-");
    let text = metrics.text();
    assert!(
        text.contains("kubelet_certificate_manager_client_expiration_renew_errors 0"),
        "{text}"
    );
    let ttl = "kubelet_certificate_manager_client_ttl_seconds 3";
    until("its end", || metrics.text().contains(ttl)).await;
    running.abort();
}

#[tokio::test]
async fn the_certificate_of_the_kubeconfig_is_stored_and_replaced_at_once() {
    let cluster = Cluster::start(&[Fate::Denied, Fate::Issued(-60, 36_000)]).await;
    let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
    let own = cluster.server.clients.node("system:node:n1", "n1");
    let path = cluster.server.kubeconfig(dir.path());
    let mut kubeconfig: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    kubeconfig["users"][0]["user"] = json!({
        "client-certificate-data": STANDARD.encode(&own.pem),
        "client-key-data": STANDARD.encode(&own.key_pem),
    });
    fs::write(&path, kubeconfig.to_string()).unwrap();
    let api = ApiServer::of_kubeconfig(&path).await.unwrap();
    let manager = manager(api, dir.path(), &metrics).with_initial_certificate(path);
    let running = tokio::spawn(manager.run());
    until("a request", || cluster.requests().len() == 1).await;
    let current = FileStore::new(dir.path(), CLIENT).current_path();
    let text = fs::read_to_string(&current).unwrap();
    assert_eq!(text, format!("{}{}", own.pem, own.key_pem));
    assert_eq!(cluster.server.certificate().unwrap(), own.der.to_vec());
    until("a failure", || metrics.text().contains("client_expiration_renew_errors 1")).await;
    running.abort();
}

#[tokio::test]
async fn a_signer_that_changes_names_is_not_asked_without_a_delay() {
    let cluster = Cluster::start(&[Fate::Renamed]).await;
    let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
    let kubeconfig = cluster.server.kubeconfig(dir.path());
    let api = ApiServer::of_kubeconfig(&kubeconfig).await.unwrap();
    let manager = manager(api, dir.path(), &metrics);
    let running = tokio::spawn(manager.run());
    until("a request", || cluster.requests().len() == 1).await;
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(cluster.requests().len(), 1);
    running.abort();
}

#[tokio::test]
async fn an_expired_kubeconfig_needs_no_bootstrap_while_the_renewed_certificate_is_valid() {
    let cluster = Cluster::start(&[Fate::Issued(-60, 3600)]).await;
    let dir = tempfile::tempdir().unwrap();
    let bootstrap = cluster.bootstrap(dir.path());
    bootstrap.until_done().await;
    fs::write(&bootstrap.kubeconfig, "{}").unwrap();
    bootstrap.until_done().await;
    assert_eq!(cluster.requests().len(), 1);
    let strict = Bootstrap { rotates: false, ..bootstrap };
    strict.until_done().await;
    assert_eq!(cluster.requests().len(), 2);
}

#[tokio::test]
async fn a_failed_renewal_is_counted_and_leaves_the_certificate() {
    let cluster = Cluster::start(&[Fate::Issued(-9500, 500), Fate::Denied]).await;
    let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
    let api = ApiServer::of_kubeconfig(&cluster.server.kubeconfig(dir.path())).await.unwrap();
    let manager = manager(api, dir.path(), &metrics);
    let running = tokio::spawn(manager.run());
    until("a failure", || {
        let text = metrics.text();
        text.contains("kubelet_certificate_manager_client_expiration_renew_errors 1")
    })
    .await;
    assert!(FileStore::new(dir.path(), CLIENT).current().is_some());
    running.abort();
}

#[tokio::test]
async fn a_serving_certificate_has_the_nodes_names_and_follows_its_addresses() {
    let cluster = Cluster::start(&[Fate::Issued(-60, 36_000)]).await;
    let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
    let api = ApiServer::of_kubeconfig(&cluster.server.kubeconfig(dir.path())).await.unwrap();
    let addresses: Arc<Mutex<Vec<std::net::IpAddr>>> = Arc::default();
    let now = addresses.clone();
    let manager = CertificateManager::new(
        Purpose::Serving,
        api,
        FileStore::new(dir.path(), SERVER),
        move || Template::serving("n1", ["n1".to_owned()], now.lock().clone()),
        CertificateMetrics::new(Purpose::Serving, &metrics),
    );
    addresses.lock().push([10, 0, 0, 1].into());
    let running = tokio::spawn(manager.run());
    until("a request", || cluster.requests().len() == 1).await;
    assert_eq!(cluster.requests()[0]["spec"]["signerName"], "kubernetes.io/kubelet-serving");
    assert_eq!(
        cluster.requests()[0]["spec"]["usages"],
        json!(["digital signature", "server auth"])
    );
    let store = FileStore::new(dir.path(), SERVER);
    until("a certificate", || store.current().is_some()).await;
    let template =
        |address: [u8; 4]| Template::serving("n1", ["n1".to_owned()], [address.into()]).unwrap();
    assert!(store.current().unwrap().satisfies(&template([10, 0, 0, 1])));
    *addresses.lock() = vec![[10, 0, 0, 2].into()];
    until("another request", || cluster.requests().len() == 2).await;
    until("another certificate", || store.current().unwrap().satisfies(&template([10, 0, 0, 2])))
        .await;
    // It is counted once it is on disk.
    let rotated = "kubelet_certificate_manager_server_rotation_seconds_count 1";
    until("a rotation", || metrics.text().contains(rotated)).await;
    running.abort();
}
