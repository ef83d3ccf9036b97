//! The log of a container by the names that users know, for the HTTP API.

use super::{LogOptions, LogStream, Logs, Unavailable, container_for_logs};
use crate::model::{ContainerId, ContainerState, PodUid};
use crate::runtime::logs::LogPathFn;
use crate::state::pod_cache::{PodCache, PodRef};
use k8s_openapi::api::core::v1::PodStatus;
use std::io;

/// Why a container's log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// There is none (yet); the user's to know.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The instance that has it is gone from the runtime.
    #[error("unable to retrieve container logs for {0}")]
    Gone(ContainerId),
    /// The file cannot be read.
    #[error("the log file cannot be read")]
    File(#[from] io::Error),
}

/// Reads the logs of containers; cheap to clone.
#[derive(Clone)]
pub struct ContainerLogs {
    logs: Logs,
    cache: PodCache,
    path: LogPathFn,
}

impl ContainerLogs {
    /// A reader of the logs of what `cache` shows, which lie where `path` says.
    pub fn new(cache: PodCache, path: LogPathFn) -> Self {
        Self { logs: Logs::new(), cache, path }
    }

    /// The log of a container of a pod, whose status as it is shown is `status`; with `previous` that of
    /// the instance before the current one. Following ends with the instance.
    pub async fn read(
        &self,
        pod: (&PodUid, &str),
        status: &PodStatus,
        container: &str,
        previous: bool,
        options: LogOptions,
    ) -> Result<LogStream, LogError> {
        let (uid, name) = pod;
        let id = container_for_logs(name, status, container, previous)?;
        let runtime_status = self.cache.latest(uid);
        let path = runtime_status
            .container(&id)
            .and_then(|instance| (self.path)(&PodRef::of_status(&runtime_status), instance));
        let Some(path) = path else {
            return Err(LogError::Gone(id));
        };
        let (cache, uid) = (self.cache.clone(), uid.clone());
        let ended = async move {
            let over = |runtime_status: &crate::model::PodStatus| {
                let state = runtime_status.container(&id).map(|instance| instance.state);
                state.is_none_or(|state| state == ContainerState::Exited)
            };
            cache.wait_for(&uid, over).await;
        };
        Ok(self.logs.open(path, options, ended).await?)
    }
}
