//! Looks after the size of the logs of all running containers.

use super::plan::{RotationPolicy, Sighting, next_look};
use super::rotate::{RotationJob, rotate};
use crate::base::clock::{self, Instant};
use crate::base::panics::{PanicScope, catch_panic};
use crate::base::{error_chain, if_exists, spawn_blocking};
use crate::cri::RuntimeClient;
use crate::model::{ContainerId, ContainerState};
use crate::runtime::logs::LogPathFn;
use crate::state::pod_cache::{PodCache, PodRef};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

/// Longest pause between two tries to get back a log that is missing.
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// How soon a log is checked after it was rotated.
const GROWTH: Duration = Duration::from_secs(1);

/// Settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// When and how.
    pub policy: RotationPolicy,
    /// `containerLogMaxWorkers`: rotations at once.
    pub workers: u32,
    /// `containerLogMonitorInterval`: the longest time between two checks of a size.
    pub interval: Duration,
}

/// The task.
pub struct Rotation {
    runtime: RuntimeClient,
    cache: PodCache,
    path: LogPathFn,
    config: Config,
    workers: Arc<Semaphore>,
    started: Instant,
    logs: HashMap<ContainerId, RunningLog>,
    jobs: JoinSet<Done>,
}

/// The log of a running container.
struct RunningLog {
    path: PathBuf,
    seen: Option<Sighting>,
    due: Instant,
    /// A rotation job is running for this log.
    busy: bool,
    /// How often it was missing in a row.
    missing: u32,
}

struct Done {
    id: ContainerId,
    /// Where the runtime reports the log, if it was read from there.
    path: Option<PathBuf>,
    result: anyhow::Result<()>,
}

impl Rotation {
    /// A task that looks after the containers of `cache`, whose logs are where `path` says.
    pub fn new(runtime: RuntimeClient, cache: PodCache, path: LogPathFn, config: Config) -> Self {
        let workers = usize::try_from(config.workers).unwrap_or(1).max(1);
        Self {
            runtime,
            cache,
            path,
            config,
            workers: Arc::new(Semaphore::new(workers)),
            started: clock::instant(),
            logs: HashMap::new(),
            jobs: JoinSet::new(),
        }
    }

    /// Runs until shutdown. Rotations that have begun are brought to an end then.
    pub async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            _ = self.cache.wait_runtime_listed() => {}
        }
        let mut refresh = clock::instant();
        while !shutdown.is_cancelled() {
            if refresh <= clock::instant() {
                self.refresh();
                refresh = clock::instant() + self.config.interval;
            }
            self.check(&shutdown).await?;
            let idle = self.logs.values().filter(|log| !log.busy);
            let next = idle.map(|log| log.due).min().map_or(refresh, |due| due.min(refresh));
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = sleep_until(next) => {}
                Some(done) = self.jobs.join_next() => self.finished(done?),
            }
        }
        while self.jobs.join_next().await.is_some() {}
        Ok(())
    }

    /// Takes up the containers that run now and forgets the others, as the pod cache has them.
    fn refresh(&mut self) {
        let now = clock::instant();
        let mut known = std::mem::take(&mut self.logs);
        for pod in self.cache.pods() {
            let pod_ref = PodRef::of_status(&pod);
            let running = |c: &&crate::model::ContainerStatus| c.state == ContainerState::Running;
            for container in pod.containers.iter().filter(running) {
                let log = known.remove(&container.id).or_else(|| {
                    Some(RunningLog {
                        path: (self.path)(&pod_ref, container)?,
                        seen: None,
                        due: now,
                        busy: false,
                        missing: 0,
                    })
                });
                if let Some(log) = log {
                    self.logs.insert(container.id.clone(), log);
                }
            }
        }
    }

    /// Checks all logs that are due, in one blocking task.
    async fn check(&mut self, shutdown: &CancellationToken) -> anyhow::Result<()> {
        let now = clock::instant();
        let due = self.logs.iter().filter(|(_, log)| !log.busy && log.due <= now);
        let due: Vec<_> = due.map(|(id, log)| (id.clone(), log.path.clone())).collect();
        if due.is_empty() {
            return Ok(());
        }
        let sizes = spawn_blocking(move || {
            let size =
                |path: &PathBuf| if_exists(fs::metadata(path)).map(|found| found.map(|m| m.len()));
            due.into_iter().map(|(id, path)| (id, size(&path))).collect::<Vec<_>>()
        });
        for (id, size) in sizes.await? {
            self.check_size(id, size, shutdown);
        }
        Ok(())
    }

    fn check_size(
        &mut self,
        id: ContainerId,
        size: io::Result<Option<u64>>,
        shutdown: &CancellationToken,
    ) {
        let Some(log) = self.logs.get_mut(&id) else {
            return;
        };
        let Config { policy, interval, .. } = self.config;
        log.due = clock::instant() + interval;
        match size {
            Ok(Some(size)) if size < policy.max_size => {
                let seen = Sighting { size, at: clock::since(self.started) };
                log.due = clock::instant() + next_look(log.seen, seen, policy, interval);
                log.seen = Some(seen);
                log.missing = 0;
            }
            Ok(Some(_)) => {
                log.busy = true;
                log.missing = 0;
                let job = RotationJob {
                    runtime: self.runtime.clone(),
                    id: id.clone(),
                    log: log.path.clone(),
                    policy,
                    shutdown: shutdown.clone(),
                };
                let workers = self.workers.clone();
                self.jobs.spawn(catching_panic(id.clone(), async move {
                    let result = rotate(job, &workers).await;
                    Done { id, path: None, result }
                }));
            }
            Ok(None) => {
                log.busy = true;
                log.missing = log.missing.saturating_add(1);
                let recovered = recover(self.runtime.clone(), id.clone(), log.path.clone());
                self.jobs.spawn(catching_panic(id, recovered));
            }
            Err(error) => tracing::warn!(
                containerID = %id,
                log = %log.path.display(),
                err = %error,
                "Failed to stat container log"
            ),
        }
    }

    fn finished(&mut self, done: Done) {
        let Done { id, path, result } = done;
        // It may have ended meanwhile, and its log gone with it.
        let Some(log) = self.logs.get_mut(&id) else {
            return;
        };
        log.busy = false;
        log.path = path.unwrap_or_else(|| std::mem::take(&mut log.path));
        let pause = match log.missing {
            // A rotated log begins empty. One second shows how fast it grows.
            0 => {
                log.seen = Some(Sighting { size: 0, at: clock::since(self.started) });
                GROWTH.min(self.config.interval)
            }
            times => self.config.interval * 2_u32.saturating_pow(times.min(10) - 1),
        };
        log.due = clock::instant() + pause.min(MAX_PAUSE.max(self.config.interval));
        if let Err(error) = result {
            log.due = log.due.max(clock::instant() + self.config.interval);
            tracing::error!(
                containerID = %id,
                log = %log.path.display(),
                err = %error_chain(error.as_ref()),
                "Failed to rotate log for container"
            );
        }
    }
}

/// Work on one log; a panic in it is a failure of that log.
async fn catching_panic(id: ContainerId, work: impl Future<Output = Done>) -> Done {
    let done = catch_panic(PanicScope::LogRotation, work).await;
    done.unwrap_or_else(|panicked| Done { id, path: None, result: Err(panicked.into()) })
}

/// The log of a running container is not where it should be. Either it is elsewhere, or it was taken
/// away: by another program, or by a kubelet that died between renaming it and having it reopened.
async fn recover(runtime: RuntimeClient, id: ContainerId, expected: PathBuf) -> Done {
    let mut path = None;
    let reopened: anyhow::Result<()> = async {
        let status = runtime.container_status(id.as_str()).await?;
        let running = status.state() == crate::cri::v1::ContainerState::ContainerRunning;
        if !running || status.log_path.is_empty() {
            return Ok(());
        }
        let real = PathBuf::from(status.log_path);
        if real != expected {
            path = Some(real);
            return Ok(());
        }
        tracing::info!(containerID = %id, log = %expected.display(), "Container log does not exist, reopening it");
        Ok(runtime.reopen_container_log(id.as_str()).await?)
    }
    .await;
    let result = match reopened {
        // Gone from the runtime: the pod cache will say so.
        Err(error) if is_not_found(&error) => Ok(()),
        result => result,
    };
    Done { id, path, result }
}

fn is_not_found(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<crate::cri::CriError>();
    error.is_some_and(crate::cri::CriError::is_not_found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_rotation_that_panics_is_a_failure_of_that_log() {
        let done = catching_panic("c".into(), async { panic!("as scripted") }).await;
        assert_eq!(done.id.as_str(), "c");
        assert_eq!(done.result.unwrap_err().to_string(), "panicked: as scripted");
    }
}
