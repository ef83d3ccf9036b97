//! `/checkpoint`: the state of a running container, written to an archive by the runtime.

use crate::base::{clock, error_chain, spawn_blocking};
use crate::server::http::params::RequestParams;
use crate::server::http::query::BadQuery;
use crate::server::http::response::{Body, json_object, text};
use crate::server::streaming::{ContainerName, StreamTable};
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::json;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The parameter `timeout`, in seconds.
pub(in crate::server) fn timeout(params: &RequestParams) -> Result<Option<u64>, BadQuery> {
    let seconds = params.query_usize("timeout")?;
    Ok(seconds.map(|seconds| u64::try_from(seconds).unwrap_or(u64::MAX)))
}

/// Writes checkpoints of containers.
#[derive(Clone)]
pub struct Checkpoints {
    /// `<root>/checkpoints`. Created with the first archive.
    pub directory: Arc<PathBuf>,
}

impl Checkpoints {
    /// Checkpoints a container; the response has the path of the archive, in upstream's format.
    pub(in crate::server) async fn make(
        &self,
        streams: &StreamTable,
        name: &ContainerName,
        limit: Option<Duration>,
    ) -> Response<Body> {
        let id = match streams.running(name).await {
            Ok(id) => id,
            Err(refused) => return *refused,
        };
        let (pod, container) = (&name.pod, &name.container);
        let file = file_name(&pod.name, &pod.namespace, container, clock::timestamp());
        let path = self.directory.join(file);
        let directory = self.directory.clone();
        let created = spawn_blocking(move || private_directory(&directory));
        let created = created.await.map_err(io::Error::other).and_then(|created| created);
        let failed = |why: String| {
            let (namespace, pod) = (&pod.namespace, &pod.name);
            let body = format!("checkpointing of {namespace}/{pod}/{container} failed ({why})\n");
            text(StatusCode::INTERNAL_SERVER_ERROR, body)
        };
        if let Err(error) = created {
            return failed(format!("cannot make {}: {error}", self.directory.display()));
        }
        let location = path.display().to_string();
        let runtime = streams.runtime();
        match runtime.checkpoint_container(id.as_str(), &location, limit).await {
            Ok(()) => {
                tracing::info!(path = location, "Checkpointed container");
                json_object(&json!({"items": [location]}))
            }
            Err(error) => failed(error_chain(&error).to_string()),
        }
    }
}

/// Creates the directory with access for root only, because an archive contains the memory of processes.
fn private_directory(path: &std::path::Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(path)
}

/// Upstream's name: `checkpoint-<pod>_<namespace>-<container>-<time>.tar`.
fn file_name(pod: &str, namespace: &str, container: &str, now: Timestamp) -> String {
    let time = now.strftime("%Y-%m-%dT%H:%M:%SZ");
    format!("checkpoint-{pod}_{namespace}-{container}-{time}.tar")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_named_as_upstreams() {
        let name = file_name("web-n1", "shop", "main", Timestamp::UNIX_EPOCH);
        assert_eq!(name, "checkpoint-web-n1_shop-main-1970-01-01T00:00:00Z.tar");
    }
}
