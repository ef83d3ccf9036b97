//! Whose credentials are used, and how often.

use super::pki::Issued;
use super::renewed::write_kubeconfig;
use super::scripted::{Reply, TOKEN};
use super::*;
use crate::base::clock;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Node;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::time::{sleep, timeout};

async fn server() -> Scripted {
    Scripted::serve(|_| Reply::Json(200, json!({"metadata": {"name": "n1"}}))).await
}

async fn get(api: &ApiServer) -> Result<Node, ApiError> {
    api.get(ResourcePath::cluster("n1")).await
}

fn identity(kubeconfig: &Path, certificate: Option<&Path>, is_awaited: bool) -> ClientIdentity {
    ClientIdentity {
        kubeconfig: kubeconfig.to_owned(),
        certificate: certificate.map(Path::to_owned),
        is_awaited,
        proxies: None,
    }
}

#[tokio::test]
async fn requests_keep_to_the_rate_and_the_lease_does_not_wait() {
    let server = server().await;
    let api = client(&server).await.limited(20, 3);
    let lease = api.unlimited();
    let started_at = clock::instant();
    let tasks: Vec<_> = (0..13)
        .map(|_| {
            let api = api.clone();
            tokio::spawn(async move { get(&api).await.map(drop) })
        })
        .collect();
    sleep(Duration::from_millis(50)).await;
    let waited = clock::instant();
    get(&lease).await.unwrap();
    assert!(clock::since(waited) < Duration::from_millis(300));
    assert!(server.received().len() < 13);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    // Three at once, and ten in 50 ms each.
    let took = clock::since(started_at);
    assert!(took >= Duration::from_millis(450), "{took:?}");
}

#[tokio::test]
async fn a_credential_plugin_brings_the_token() {
    let (server, dir) = (server().await, tempfile::tempdir().unwrap());
    fs::write(dir.path().join("cluster.crt"), server.authority()).unwrap();
    let plugin = dir.path().join("plugin");
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": TOKEN},
    });
    fs::write(&plugin, format!("#!/bin/sh\nsleep 0.2\necho '{credential}'\n")).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": plugin,
        "interactiveMode": "Never",
    });
    let path = write_kubeconfig(dir.path(), server.port, json!({ "exec": exec }));
    let api = ApiServer::of_kubeconfig(&path).await.unwrap();
    sleep(Duration::from_millis(1100)).await;
    let getting = tokio::spawn(async move { get(&api).await });
    // The only thread of this test is free meanwhile.
    sleep(Duration::from_millis(50)).await;
    assert!(!getting.is_finished());
    getting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_start_does_not_wait_for_a_credential_plugin_and_one_that_fails_runs_again() {
    let (server, dir) = (server().await, tempfile::tempdir().unwrap());
    fs::write(dir.path().join("cluster.crt"), server.authority()).unwrap();
    let (plugin, works) = (dir.path().join("plugin"), dir.path().join("works"));
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": TOKEN},
    });
    let script =
        format!("#!/bin/sh\n[ -e {} ] || exit 1\nsleep 2\necho '{credential}'\n", works.display());
    fs::write(&plugin, script).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": plugin,
        "interactiveMode": "Never",
    });
    let path = write_kubeconfig(dir.path(), server.port, json!({ "exec": exec }));
    let api = ApiServer::of_kubeconfig(&path).await.unwrap();
    assert!(format!("{api:?}").contains(&server.port.to_string()));
    let getting = tokio::spawn(async move { get(&api).await });
    sleep(Duration::from_millis(1500)).await;
    assert!(!getting.is_finished());
    fs::write(&works, "").unwrap();
    getting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_renewed_certificate_replaces_the_embedded_one_while_it_is_valid() {
    let (server, dir) = (server().await, tempfile::tempdir().unwrap());
    fs::write(dir.path().join("cluster.crt"), server.authority()).unwrap();
    let [embedded, renewed] = ["n1", "n2"].map(|name| server.clients.client(name, &[]));
    let user = json!({
        "client-certificate-data": STANDARD.encode(&embedded.pem),
        "client-key-data": STANDARD.encode(&embedded.key_pem),
    });
    let path = write_kubeconfig(dir.path(), server.port, user);
    assert!(kubeconfig_is_valid(&path, clock::system_time()));
    let current = dir.path().join("current.pem");
    let expired = server.clients.expired_client("n3");
    fs::write(&current, format!("{}{}", expired.pem, expired.key_pem)).unwrap();
    let api = ApiServer::open(identity(&path, Some(&current), false)).await.unwrap();
    get(&api).await.unwrap();
    assert_eq!(server.certificate().unwrap(), embedded.der.to_vec());
    fs::write(&current, format!("{}{}", renewed.pem, renewed.key_pem)).unwrap();
    let end = clock::instant() + Duration::from_secs(20);
    while server.certificate().unwrap() != renewed.der.to_vec() {
        assert!(clock::instant() < end, "it is not used");
        get(&api).await.unwrap();
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn certificate_and_key_may_be_in_one_file() {
    let (server, dir) = (server().await, tempfile::tempdir().unwrap());
    fs::write(dir.path().join("cluster.crt"), server.authority()).unwrap();
    let issued = server.clients.client("n1", &[]);
    fs::write(dir.path().join("own.pem"), format!("{}{}", issued.pem, issued.key_pem)).unwrap();
    let user = json!({"client-certificate": "own.pem", "client-key": "own.pem"});
    let path = write_kubeconfig(dir.path(), server.port, user);
    assert!(kubeconfig_is_valid(&path, clock::system_time()));
    get(&ApiServer::of_kubeconfig(&path).await.unwrap()).await.unwrap();
    assert_eq!(server.certificate().unwrap(), issued.der.to_vec());
}

#[tokio::test]
async fn a_kubeconfig_may_come_later_if_it_is_awaited() {
    let (server, dir) = (server().await, tempfile::tempdir().unwrap());
    let path = dir.path().join("kubeconfig");
    assert!(ApiServer::open(identity(&path, None, false)).await.is_err());
    let api = ApiServer::open(identity(&path, None, true)).await.unwrap();
    assert!(!kubeconfig_is_valid(&path, clock::system_time()));
    let own = api.clone();
    let getting = tokio::spawn(async move { get(&own).await });
    sleep(Duration::from_millis(300)).await;
    assert!(!getting.is_finished());
    server.kubeconfig(dir.path());
    getting.await.unwrap().unwrap();
    // What was usable stays in use.
    fs::write(&path, "{").unwrap();
    sleep(Duration::from_millis(1100)).await;
    get(&api).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_identity_fails_after_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let api = ApiServer::open(identity(&path, None, true)).await.unwrap();
    let started_at = clock::instant();
    let error = get(&api).await.unwrap_err();
    assert!(matches!(error, ApiError::Unreachable(_)), "{error:?}");
    let took = clock::since(started_at);
    assert!(took <= Duration::from_secs(10) && took >= Duration::from_secs(9), "{took:?}");
}

#[test]
fn a_kubeconfig_without_a_valid_certificate_is_not_valid() {
    let dir = tempfile::tempdir().unwrap();
    let clients = Authority::new("clients");
    let (good, expired) = (clients.client("n", &[]), clients.expired_client("n"));
    let user = |pem: &str| {
        let (certificate, key) = (STANDARD.encode(pem), STANDARD.encode(&good.key_pem));
        json!({"client-certificate-data": certificate, "client-key-data": key})
    };
    let both = format!("{}{}", good.pem, expired.pem);
    let rows = [
        (user(&good.pem), true),
        (user(&expired.pem), false),
        (user(&both), false),
        (user("garbage"), false),
        (json!({"token": "t"}), false),
        (json!({"client-certificate": "missing.pem", "client-key": "missing.pem"}), false),
    ];
    for (user, expected) in rows {
        let path = write_kubeconfig(dir.path(), 1, user.clone());
        assert_eq!(kubeconfig_is_valid(&path, clock::system_time()), expected, "{user}");
    }
}

#[tokio::test]
async fn a_kubeconfig_that_hangs_holds_up_no_request() {
    let (server, dir) = (server().await, tempfile::tempdir().unwrap());
    let path = server.kubeconfig(dir.path());
    let api = ApiServer::of_kubeconfig(&path).await.unwrap();
    get(&api).await.unwrap();
    // The kubeconfig changes, and reading it hangs.
    let fifo = dir.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    sleep(Duration::from_millis(1100)).await;
    let started_at = clock::instant();
    fs::rename(&fifo, &path).unwrap();
    let got = timeout(Duration::from_secs(5), get(&api)).await;
    let took = clock::since(started_at);
    // So that the thread that reads it ends.
    drop(fs::OpenOptions::new().read(true).write(true).open(&path));
    got.expect("the earlier credentials are used").unwrap();
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test]
async fn a_credential_plugin_that_hangs_is_not_started_for_each_request() {
    let (server, dir) = (server().await, tempfile::tempdir().unwrap());
    fs::write(dir.path().join("cluster.crt"), server.authority()).unwrap();
    let (plugin, runs) = (dir.path().join("plugin"), dir.path().join("runs"));
    let soon = clock::timestamp() + Duration::from_secs(30);
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": TOKEN, "expirationTimestamp": soon},
    });
    let hangs = dir.path().join("hangs");
    let script = format!(
        "#!/bin/sh\necho >> {}\n[ -e {} ] && sleep 3\necho '{credential}'\n",
        runs.display(),
        hangs.display()
    );
    fs::write(&plugin, script).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": plugin,
        "interactiveMode": "Never",
    });
    let path = write_kubeconfig(dir.path(), server.port, json!({ "exec": exec }));
    let api = ApiServer::of_kubeconfig(&path).await.unwrap();
    // Its token is about to expire, so it runs again for each request.
    get(&api).await.unwrap();
    fs::write(&hangs, "").unwrap();
    let started = || fs::read_to_string(&runs).unwrap().len();
    let before = started();
    // Their callers give up; the plugin goes on.
    for _ in 0..10 {
        let given_up = timeout(Duration::from_millis(100), get(&api)).await;
        assert!(given_up.is_err());
    }
    let hanging = started() - before;
    assert!((1..=4).contains(&hanging), "{hanging}");
    fs::remove_file(&hangs).unwrap();
    let end = clock::instant() + Duration::from_secs(20);
    while get(&api).await.is_err() {
        assert!(clock::instant() < end);
    }
}

/// A credential plugin that brings this status, and leaves a line in `runs` for each run.
fn plugin_in(dir: &Path, status: &serde_json::Value) {
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    });
    fs::write(dir.join("credential"), credential.to_string()).unwrap();
    let (runs, credential) = (dir.join("runs"), dir.join("credential"));
    let script = format!("#!/bin/sh\necho >> {}\ncat {}\n", runs.display(), credential.display());
    let plugin = dir.join("plugin");
    if !plugin.exists() {
        fs::write(&plugin, script).unwrap();
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// A client with the credentials of that plugin.
async fn client_of_plugin(dir: &Path, server: &Scripted) -> ApiServer {
    fs::write(dir.join("cluster.crt"), server.authority()).unwrap();
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": dir.join("plugin"),
        "interactiveMode": "Never",
    });
    let path = write_kubeconfig(dir, server.port, json!({ "exec": exec }));
    ApiServer::of_kubeconfig(&path).await.unwrap()
}

#[tokio::test]
async fn credentials_of_a_plugin_without_an_end_are_fetched_again_when_they_are_refused() {
    let is_refused = Arc::new(AtomicBool::new(false));
    let refused = is_refused.clone();
    let server = Scripted::serve(move |_| {
        if refused.load(Ordering::SeqCst) {
            Reply::status(401, "Unauthorized")
        } else {
            Reply::Json(200, json!({"metadata": {"name": "a"}}))
        }
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    plugin_in(dir.path(), &json!({"token": TOKEN}));
    let api = client_of_plugin(dir.path(), &server).await;
    let runs = || fs::read_to_string(dir.path().join("runs")).map_or(0, |runs| runs.len());
    get(&api).await.unwrap();
    let before = runs();
    sleep(Duration::from_millis(1100)).await;
    get(&api).await.unwrap();
    assert_eq!(runs(), before, "it runs only when it has to");
    is_refused.store(true, Ordering::SeqCst);
    // While they are refused, it runs once in ten seconds.
    let (started_at, mut first) = (clock::instant(), None);
    while clock::since(started_at) < Duration::from_secs(14) {
        assert!(get(&api).await.unwrap_err().is_unauthorized());
        if runs() > before {
            first = first.or_else(|| Some(clock::since(started_at)));
        }
        sleep(Duration::from_millis(200)).await;
    }
    assert!(first.is_some_and(|first| first < Duration::from_secs(13)), "{first:?}");
    // The library runs it twice: for a certificate, and for a token.
    assert!(runs() - before <= 4, "{before} {}", runs());
}

#[tokio::test]
async fn a_certificate_of_a_plugin_is_replaced_before_its_end() {
    let (server, dir) = (server().await, tempfile::tempdir().unwrap());
    let status = |issued: &Issued| json!({"clientCertificateData": issued.pem, "clientKeyData": issued.key_pem});
    let old = server.clients.expired_client("n1");
    plugin_in(dir.path(), &status(&old));
    let api = client_of_plugin(dir.path(), &server).await;
    let started_at = clock::instant();
    let new = server.clients.client("n1", &[]);
    while get(&api).await.is_err() {
        // Only a program that runs again can bring the new one.
        if clock::since(started_at) > Duration::from_secs(2) {
            plugin_in(dir.path(), &status(&new));
        }
        assert!(clock::since(started_at) < Duration::from_secs(40));
        sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(server.certificate().unwrap(), new.der.to_vec());
}

#[test]
fn a_client_that_verifies_nothing_needs_no_certificates_of_the_machine() {
    for (is_insecure, expected) in [(false, None), (true, Some(Vec::new()))] {
        let mut config = kube::Config::new("https://h".parse().unwrap());
        config.accept_invalid_certs = is_insecure;
        kubeconfig::without_unused_roots(&mut config);
        assert_eq!(config.root_cert, expected, "{is_insecure}");
    }
}
