//! `/container` and `/containers`: pods posted by clients.

use super::pods::pod_list;
use crate::base::{clock, spawn_blocking};
use crate::model::PodExt;
use crate::pods::pod_config::{PostError, PostedPods};
use crate::server::http::response::{Body, bad_request, text};
use bytes::Bytes;
use hyper::{Response, StatusCode};

/// Whether posted pods are added to the existing ones or replace them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostMode {
    /// Existing pods are kept, except those with the same names.
    Add,
    /// Existing pods are removed.
    Replace,
}

/// Stores the pods in a body on disk, and responds with their final form: with the node name suffix, and the UID. The
/// response does not show whether they run; `/pods` does.
pub(in crate::server) async fn store_pods(
    store: PostedPods,
    mode: PostMode,
    body: Bytes,
) -> Response<Body> {
    let now = clock::timestamp();
    let stored = spawn_blocking(move || match mode {
        PostMode::Add => store.add(&body, now),
        PostMode::Replace => store.replace(&body, now),
    });
    match stored.await {
        Ok(Ok(stored)) => {
            let names: Vec<_> = stored.iter().map(|pod| pod.full_name().to_string()).collect();
            tracing::info!(pods = names.join(","), mode = ?mode, "Received posted pods");
            pod_list(stored.into_iter().map(|pod| (pod, None)).collect())
        }
        Ok(Err(PostError::Storage(error))) => {
            tracing::warn!(err = %error, "Storing posted pods failed");
            let body = format!("500 failed to store the pods: {error}\n");
            text(StatusCode::INTERNAL_SERVER_ERROR, body)
        }
        Ok(Err(error)) => bad_request(&error.to_string()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("500 {error}\n")),
    }
}
