//! `/container` and `/containers`: pods that clients post.

use super::{
    pods::pod_list,
    response::{Body, bad_request, text},
};
use crate::{
    model::PodExt,
    pods::pod_config::{PostError, PostedPods},
};
use bytes::Bytes;
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use tokio::task::spawn_blocking;

/// Whether posted pods are added to earlier ones or replace them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostMode {
    /// Earlier pods are kept, except those of the same names.
    Add,
    /// Earlier pods are removed.
    Replace,
}

/// Stores the pods of a body on disk, and responds with their final form: with the node's suffix in the name, and the UID.
/// The response does not say whether they run; `/pods` does.
pub(super) async fn store_pods(store: PostedPods, how: PostMode, body: Bytes) -> Response<Body> {
    let now = Timestamp::now();
    let kept = spawn_blocking(move || match how {
        PostMode::Add => store.add(&body, now),
        PostMode::Replace => store.replace(&body, now),
    });
    match kept.await {
        Ok(Ok(taken)) => {
            let names: Vec<_> = taken
                .iter()
                .map(|pod| pod.full_name().to_string())
                .collect();
            tracing::info!(pods = names.join(","), how = ?how, "Received posted pods");
            pod_list(taken.into_iter().map(|pod| (pod, None)).collect())
        }
        Ok(Err(PostError::Storage(error))) => {
            tracing::warn!(err = %error, "Storing posted pods failed");
            let body = format!("500 the pods cannot be kept: {error}\n");
            text(StatusCode::INTERNAL_SERVER_ERROR, body)
        }
        Ok(Err(error)) => bad_request(&error.to_string()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("500 {error}\n")),
    }
}
