#[allow(unreachable_pub)]
pub(crate) mod pki;
mod connections;
mod identity;
mod proxies;
mod renewed;
mod requests;
mod secrets;
#[allow(unreachable_pub)]
pub(crate) mod scripted;
mod watches;
#[allow(unreachable_pub)]
pub(crate) mod stored;

use super::*;
use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use pki::Authority;
use scripted::{Answer, Scripted, kubeconfig};
use serde_json::json;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

async fn client(server: &Scripted) -> ApiServer {
    let dir = tempfile::tempdir().unwrap();
    ApiServer::of_kubeconfig(&server.kubeconfig(dir.path())).await.unwrap()
}

#[tokio::test]
async fn a_token_is_reviewed_by_the_server_of_the_kubeconfig() {
    let server = Scripted::start(|kind, spec| {
        assert_eq!(kind, "tokenreviews");
        let user = json!({"username": "who", "groups": ["g"]});
        Answer::Json(201, json!({"authenticated": spec["token"] == "good", "user": user}))
    })
    .await;
    let api = client(&server).await;
    let status = api.review_token("good").await.unwrap();
    assert_eq!(status.authenticated, Some(true));
    assert_eq!(status.user.unwrap().username.as_deref(), Some("who"));
    let status = api.review_token("bad").await.unwrap();
    assert_eq!(status.authenticated, Some(false));
    assert_eq!(server.seen("tokenreviews").len(), 2);
    assert!(format!("{api:?}").contains(&server.port.to_string()));
}

#[tokio::test]
async fn access_is_reviewed_by_the_server_of_the_kubeconfig() {
    let server = Scripted::start(|kind, spec| {
        assert_eq!(kind, "subjectaccessreviews");
        Answer::Json(201, json!({"allowed": spec["user"] == "who"}))
    })
    .await;
    let api = client(&server).await;
    for (user, expected) in [("who", true), ("other", false)] {
        let spec = SubjectAccessReviewSpec {
            user: Some(user.into()),
            ..SubjectAccessReviewSpec::default()
        };
        assert_eq!(api.review_access(&spec).await.unwrap().allowed, expected);
    }
}

#[tokio::test]
async fn transient_failures_are_retried_and_others_are_not() {
    for (status, tries) in [(500, 3), (429, 3), (403, 1), (404, 1)] {
        let requested = AtomicUsize::new(0);
        let server = Scripted::start(move |_, _| match requested.fetch_add(1, Ordering::SeqCst) {
            2 => Answer::Json(201, json!({"authenticated": true})),
            _ => Answer::Json(status, json!({"message": "not now"})),
        })
        .await;
        let api = client(&server).await;
        let answer = api.review_token("t").await;
        assert_eq!(server.seen("tokenreviews").len(), tries, "{status}");
        match tries {
            1 => {
                let text = answer.unwrap_err().to_string();
                assert!(text.contains(&status.to_string()), "{text}");
                assert!(text.ends_with(": not now"), "{text}");
            }
            _ => assert_eq!(answer.unwrap().authenticated, Some(true)),
        }
    }
}

#[tokio::test]
async fn an_invalid_response_is_an_error_without_the_token() {
    let server = Scripted::start(|_, _| Answer::Garbage).await;
    let error = client(&server).await.review_token("s3cret").await.unwrap_err();
    assert!(matches!(error, ApiError::Unreadable(_)), "{error:?}");
    let text = format!("{} {error:?}", crate::base::error_chain(&error));
    assert!(!text.contains("s3cret"), "{text}");
    assert_eq!(server.seen("tokenreviews").len(), 1);
}

#[tokio::test]
async fn a_silent_server_runs_into_the_deadline() {
    let server = Scripted::start(|_, _| Answer::Silence).await;
    let error = client(&server).await.review_token("t").await.unwrap_err();
    assert!(matches!(error, ApiError::Timeout(_)), "{error:?}");
}

#[tokio::test]
async fn a_server_that_is_not_there_or_another_one_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = nobody.local_addr().unwrap().port();
    drop(nobody);
    let path = kubeconfig(dir.path(), port, &Authority::new("cluster"));
    let api = ApiServer::of_kubeconfig(&path).await.unwrap();
    let error = api.review_token("t").await.unwrap_err();
    assert!(matches!(error, ApiError::Unreachable(_)), "{error:?}");

    let server = Scripted::start(|_, _| Answer::Json(201, json!({"authenticated": true}))).await;
    let path = kubeconfig(dir.path(), server.port, &Authority::new("somebody else"));
    let api = ApiServer::of_kubeconfig(&path).await.unwrap();
    let error = api.review_token("t").await.unwrap_err();
    assert!(matches!(error, ApiError::Unreachable(_)), "{error:?}");
    assert!(server.seen("tokenreviews").is_empty());
}

#[tokio::test]
async fn a_kubeconfig_that_is_of_no_use_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let good = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        contexts: [{name: c, context: {cluster: k, user: u}}]\n\
        users: [{name: u, user: {token: s3cret}}]\n";
    let cluster = |rest: &str| format!("{good}clusters: [{{name: k, cluster: {{{rest}}}}}]\n");
    let rows = [
        None,
        Some("{".to_owned()),
        Some("apiVersion: v1\nkind: Config\n".to_owned()),
        Some(good.to_owned()),
        Some(cluster("server: \"::\"")),
        Some(cluster("server: \"https://h\", certificate-authority: nowhere.crt")),
        Some(cluster("server: \"https://h\", certificate-authority-data: \"%\"")),
        Some(cluster("server: \"https://h\", proxy-url: \"ftp://u:s3cret@p\"")),
    ];
    for text in rows {
        if let Some(text) = &text {
            fs::write(&path, text).unwrap();
        }
        let error = ApiServer::of_kubeconfig(&path).await.unwrap_err();
        let shown = crate::base::error_chain(error.as_ref());
        assert!(shown.contains(path.to_str().unwrap()), "{text:?}: {shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    fs::write(dir.path().join("ca.crt"), Authority::new("cluster").pem()).unwrap();
    let whole = cluster("server: \"https://h\", certificate-authority: ca.crt");
    fs::write(&path, whole).unwrap();
    assert!(ApiServer::of_kubeconfig(&path).await.is_ok());
}
