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

/// What becomes of pods that were posted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// They stay, except those of the same names.
    Add,
    /// They are removed.
    Replace,
}

/// Stores the pods of a body and responds with them as they will be known: with their names on this node and
/// their UIDs. They are stored then; `/pods` shows whether they run.
pub(super) async fn take(store: PostedPods, how: Post, body: Bytes) -> Response<Body> {
    let now = Timestamp::now();
    let kept = spawn_blocking(move || match how {
        Post::Add => store.add(&body, now),
        Post::Replace => store.replace(&body, now),
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
