//! Credentials that are renewed while the kubelet runs.

use super::*;
use crate::base::clock;
use pki::Issued;
use scripted::TOKEN;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::sleep;

/// Before a library would read a token file again by itself, which takes a minute.
const WAIT_LIMIT: Duration = Duration::from_secs(20);

async fn server() -> Scripted {
    Scripted::start(|_, _| Answer::Json(201, json!({"authenticated": true}))).await
}

/// A kubeconfig whose user and cluster have these fields.
pub(super) fn write_kubeconfig(directory: &Path, port: u16, user: serde_json::Value) -> PathBuf {
    let path = directory.join("kubeconfig");
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority": "cluster.crt",
        }}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    });
    fs::write(&path, text.to_string()).unwrap();
    path
}

/// Replaces files as certificates are renewed: by renames, the key first.
fn put(directory: &Path, issued: &Issued) {
    for (name, text) in [("client.key", &issued.key_pem), ("client.crt", &issued.pem)] {
        fs::write(directory.join("new"), text).unwrap();
        fs::rename(directory.join("new"), directory.join(name)).unwrap();
    }
}

/// Reviews until the result is the expected one.
async fn until(api: &ApiServer, mut good: impl FnMut(Result<(), ApiError>) -> bool) {
    let end = clock::instant() + WAIT_LIMIT;
    while !good(api.review_token("t").await.map(drop)) {
        assert!(clock::instant() < end, "it has not been read again");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_renewed_client_certificate_is_used_without_a_restart() {
    let (server, dir) = (server().await, tempfile::tempdir().unwrap());
    let [first, second] = ["n1", "n2"].map(|name| server.clients.client(name, &[]));
    fs::write(dir.path().join("cluster.crt"), server.authority()).unwrap();
    put(dir.path(), &first);
    let user = json!({"client-certificate": "client.crt", "client-key": "client.key"});
    let path = write_kubeconfig(dir.path(), server.port, user);
    let api = ApiServer::of_kubeconfig(&path).await.unwrap();
    api.review_token("t").await.unwrap();
    assert_eq!(server.certificate().unwrap(), first.der.to_vec());
    // A certificate without its key is unusable, so the earlier pair stays.
    fs::write(dir.path().join("client.crt"), &second.pem).unwrap();
    let end = clock::instant() + Duration::from_millis(1500);
    while clock::instant() < end {
        api.review_token("t").await.unwrap();
        assert_eq!(server.certificate().unwrap(), first.der.to_vec());
        sleep(Duration::from_millis(100)).await;
    }
    put(dir.path(), &second);
    until(&api, |result| {
        result.unwrap();
        server.certificate().unwrap() == second.der.to_vec()
    })
    .await;
}

#[tokio::test]
async fn a_renewed_token_counts_and_so_do_renewed_authorities() {
    let (server, dir) = (server().await, tempfile::tempdir().unwrap());
    fs::write(dir.path().join("cluster.crt"), server.authority()).unwrap();
    fs::write(dir.path().join("token"), "old").unwrap();
    let user = json!({"tokenFile": "token"});
    let path = write_kubeconfig(dir.path(), server.port, user);
    let api = ApiServer::of_kubeconfig(&path).await.unwrap();
    assert!(matches!(api.review_token("t").await, Err(ApiError::Status { .. })));
    fs::write(dir.path().join("token"), TOKEN).unwrap();
    until(&api, |result| result.is_ok()).await;
    let other = Authority::new("another one").pem();
    fs::write(dir.path().join("cluster.crt"), other).unwrap();
    until(&api, |result| matches!(result, Err(ApiError::Unreachable(_)))).await;
    fs::write(dir.path().join("cluster.crt"), server.authority()).unwrap();
    until(&api, |result| result.is_ok()).await;
}

#[tokio::test]
async fn a_changed_kubeconfig_is_read_with_the_files_that_it_refers_to_now() {
    let (first, second, dir) = (server().await, server().await, tempfile::tempdir().unwrap());
    let path = first.kubeconfig(dir.path());
    let api = ApiServer::of_kubeconfig(&path).await.unwrap();
    api.review_token("t").await.unwrap();
    fs::write(dir.path().join("token"), "old").unwrap();
    fs::write(dir.path().join("cluster.crt"), second.authority()).unwrap();
    write_kubeconfig(dir.path(), second.port, json!({"tokenFile": "token"}));
    until(&api, |result| matches!(result, Err(ApiError::Status { .. }))).await;
    fs::write(dir.path().join("token"), TOKEN).unwrap();
    until(&api, |result| result.is_ok()).await;
    assert!(!second.seen("tokenreviews").is_empty());
    assert!(format!("{api:?}").contains(&second.port.to_string()));
}
