//! Typed requests: what is sent, and what a response means.

use super::scripted::{Received, Reply};
use super::*;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta};

fn config_map(name: &str) -> ConfigMap {
    let name = Some(name.to_owned());
    ConfigMap { metadata: ObjectMeta { name, ..ObjectMeta::default() }, ..ConfigMap::default() }
}

/// Returns what was sent, or an empty object.
fn echo(request: &Received) -> Reply {
    let empty = json!({"metadata": {"name": "stored"}});
    let body = Some(request.body.clone()).filter(|body| !body.is_null());
    Reply::Json(200, body.unwrap_or(empty))
}

#[tokio::test]
async fn each_request_has_its_method_path_and_body() {
    let server = Scripted::serve(|request| match request.path.as_str() {
        path if path.ends_with("/token") => {
            Reply::Json(201, json!({"spec": {"audiences": []}, "status": {"token": "t", "expirationTimestamp": "2030-01-01T00:00:00Z"}}))
        }
        _ => echo(request),
    })
    .await;
    let api = client(&server).await;
    let node: Node = api.get(ResourcePath::cluster("n1")).await.unwrap();
    assert_eq!(node.metadata.name.as_deref(), Some("stored"));
    let at = ResourcePath::namespaced("a b", "x/y%?#é");
    let _: Pod = api.get(at).await.unwrap();
    let made = config_map("made");
    assert_eq!(api.create(Some("default"), &made).await.unwrap(), made);
    let at = ResourcePath::namespaced("kube-node-lease", "n1");
    let _: Lease = api.update(at, &Lease::default()).await.unwrap();
    let patch = StrategicPatch(json!({"status": {"phase": "Running"}}));
    let at = ResourcePath::namespaced("default", "web");
    let _: Pod = api.patch(at, Some("status"), &patch).await.unwrap();
    let patch = StrategicPatch(json!({"data": null}));
    let _: ConfigMap = api.patch(at, None, &patch).await.unwrap();
    let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    api.delete::<Pod>(at, &options).await.unwrap();
    let request =
        TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
    let token = api.create_subresource::<ServiceAccount, _, TokenRequest>(at, "token", &request);
    assert_eq!(token.await.unwrap().status.unwrap().token.as_deref(), Some("t"));

    let received = server.received();
    let lines: Vec<_> = received.iter().map(Received::line).collect();
    assert_eq!(
        lines,
        [
            "GET /api/v1/nodes/n1",
            "GET /api/v1/namespaces/a%20b/pods/x%2Fy%25%3F%23%C3%A9",
            "POST /api/v1/namespaces/default/configmaps",
            "PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1",
            "PATCH /api/v1/namespaces/default/pods/web/status",
            "PATCH /api/v1/namespaces/default/configmaps/web",
            "DELETE /api/v1/namespaces/default/pods/web",
            "POST /api/v1/namespaces/default/serviceaccounts/web/token",
        ]
    );
    let kinds: Vec<_> = received.iter().map(|one| &*one.content_type).collect();
    let json = "application/json";
    let patch = "application/strategic-merge-patch+json";
    assert_eq!(kinds, ["", "", json, json, patch, patch, json, json]);
    assert_eq!(received[4].body, json!({"status": {"phase": "Running"}}));
    assert_eq!(received[5].body, json!({"data": null}));
    assert_eq!(received[6].body["gracePeriodSeconds"], 0);
    assert_eq!(received[2].body["kind"], "ConfigMap");
    assert!(received.iter().all(|one| one.version == http::Version::HTTP_2));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn an_error_status_keeps_its_reason_and_is_not_retried() {
    let server = Scripted::serve(|request| match request.path.rsplit('/').next() {
        Some("missing") => Reply::status(404, "NotFound"),
        Some("taken") => Reply::status(409, "AlreadyExists"),
        Some("changed") => Reply::status(409, "Conflict"),
        Some("busy") => Reply::status(429, "TooManyRequests"),
        Some("html") => Reply::Bytes(502, b"<html>".to_vec()),
        Some("garbage") => Reply::Bytes(200, b"{".to_vec()),
        _ => Reply::Json(200, json!({"spec": "not an object"})),
    })
    .await;
    let api = client(&server).await;
    let get = async |name| api.get::<Pod>(ResourcePath::namespaced("d", name)).await.unwrap_err();
    assert!(get("missing").await.is_not_found());
    assert!(get("taken").await.is_already_exists());
    assert!(get("changed").await.is_conflict());
    let busy = get("busy").await;
    assert!(busy.is_transient() && busy.to_string().contains("scripted TooManyRequests"));
    let ApiError::Status { status, reason, .. } = get("html").await else {
        panic!("another error");
    };
    assert_eq!((status.as_u16(), reason.as_str()), (502, ""));
    assert!(matches!(get("garbage").await, ApiError::Unreadable(_)));
    assert!(matches!(get("odd").await, ApiError::Unreadable(_)));
    assert_eq!(server.received().len(), 7);
}

#[tokio::test]
async fn a_response_that_breaks_off_is_no_object() {
    let server = Scripted::serve(|_| {
        let (pushed, reply) = Reply::stream();
        tokio::spawn(async move {
            pushed.bytes("{\"metadata\": {}").await;
            pushed.cut().await;
        });
        reply
    })
    .await;
    let api = client(&server).await;
    let got = api.get::<Pod>(ResourcePath::namespaced("d", "p")).await;
    assert!(matches!(got, Err(ApiError::Unreachable(_))), "{got:?}");
}

#[tokio::test]
async fn a_request_after_the_server_was_away_gets_a_new_connection() {
    let server = Scripted::serve(echo).await;
    let api = client(&server).await;
    let get = async || api.get::<Pod>(ResourcePath::namespaced("d", "p")).await;
    get().await.unwrap();
    server.set_away(true);
    assert!(matches!(get().await, Err(ApiError::Unreachable(_))));
    server.set_away(false);
    get().await.unwrap();
    assert_eq!(server.connections(), 2);
}
