//! Carries out stops: preStop hook, wait for other containers, StopContainer, and a check that the container has exited.

use super::super::RuntimeManagerDeps;
use super::super::actions::ContainerKill;
use super::super::labels::AnnotatedContainerInfo;
use super::super::sandbox_lookup::SandboxLookup;
use super::plan::{self, ContainerStop};
use super::running::RunningStop;
use super::stop_status::StopStatusReader;
use super::stop_tracker::{StopScope, StopTracker};
use crate::base::{clock, error_chain};
use crate::cri::{CriError, RuntimeClient, ignore_not_found, v1};
use crate::model::reasons::event;
use crate::model::{
    ContainerId, GraceDeadline, NodeFacts, Pod, PodExt, PodStatus, SandboxId, SandboxStatus,
};
use crate::runtime::handlers::{Hooks, hook_address};
use crate::state::events::{EventRecorder, ObjectRef};
use crate::state::pod_cache::{ItemId, PodCache, PodRef};
use crate::state::pod_state_store::PodStateStore;
use anyhow::Context as _;
use futures::future::{Either, join_all, select};
use k8s_openapi::api::core::v1::ContainerPort;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long the runtime may report a container as running after StopContainer succeeded.
const STOPPED_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a sync stops one container.
#[derive(Clone, Debug)]
pub(in crate::runtime::kuberuntime) enum StopCause {
    /// One of the computed actions.
    Actions(ContainerKill),
    FailedPostStartHook,
    /// All containers of the pod are restarted: without hooks, and with the minimum grace period.
    RestartAll,
}

impl StopCause {
    fn message(&self, name: &str) -> String {
        match self {
            Self::Actions(kill) => kill.to_string(),
            Self::FailedPostStartHook => event::FAILED_POST_START_HOOK.into(),
            Self::RestartAll => format!("Stopping container {name}, all containers are restarted"),
        }
    }
}

/// The container of a stop.
pub(super) struct StopTarget {
    pub(super) pod_ref: PodRef,
    pub(super) object: ObjectRef,
    pub(super) ports: Vec<ContainerPort>,
    pub(super) stop: ContainerStop,
    message: String,
    pub(super) pod_ip: Option<String>,
}

/// Stops containers, pods and sandboxes; cheap to clone.
#[derive(Clone)]
pub(in crate::runtime::kuberuntime) struct PodKiller {
    runtime: RuntimeClient,
    cache: PodCache,
    pub(super) events: EventRecorder,
    pub(super) hooks: Hooks,
    state_store: PodStateStore,
    node: Arc<NodeFacts>,
    /// The unfinished stops.
    pub(in crate::runtime::kuberuntime) stops: Arc<StopTracker>,
    pub(in crate::runtime::kuberuntime) reader: StopStatusReader,
}

impl PodKiller {
    pub(in crate::runtime::kuberuntime) fn new(
        deps: &RuntimeManagerDeps,
        hooks: Hooks,
        lookup: Arc<SandboxLookup>,
    ) -> Self {
        let (runtime, stores) = (&deps.runtime, &deps.stores);
        Self {
            reader: StopStatusReader {
                runtime: runtime.clone(),
                cache: stores.pod_cache.clone(),
                lookup,
            },
            stops: Arc::new(StopTracker::new(stores.state_store.clone())),
            runtime: runtime.clone(),
            cache: stores.pod_cache.clone(),
            events: stores.events.clone(),
            hooks,
            state_store: stores.state_store.clone(),
            node: deps.settings.node.clone(),
        }
    }

    /// Stops all containers and sandboxes of a pod that is still desired. A retry has the deadline of the first attempt.
    pub(in crate::runtime::kuberuntime) async fn kill_desired_pod(
        &self,
        pod: &Pod,
        status: &PodStatus,
    ) -> anyhow::Result<()> {
        let uid = pod.uid();
        let grace = GraceDeadline::starting(clock::instant(), pod.termination_grace_seconds());
        let (_sender, grace) = watch::channel(self.stops.begin(&uid, StopScope::Pod, grace));
        self.kill_pod(Some(pod), status, grace).await.context("cannot stop the pod")?;
        self.stops.end(&uid, &StopScope::Pod);
        Ok(())
    }

    /// Stops one container of a pod that is still desired.
    pub(in crate::runtime::kuberuntime) async fn kill_container(
        &self,
        pod: &Pod,
        status: &PodStatus,
        name: &str,
        id: &ContainerId,
        why: StopCause,
    ) -> anyhow::Result<()> {
        let container = pod.container(name);
        let (reason, grace) = match &why {
            StopCause::Actions(kill) => (Some(kill.reason), None),
            StopCause::FailedPostStartHook => (None, None),
            StopCause::RestartAll => (None, Some(0)),
        };
        let seconds = plan::container_grace_seconds(pod, container, reason, grace);
        let (uid, scope) = (pod.uid(), StopScope::Container(id.clone()));
        let grace = GraceDeadline {
            deadline: plan::deadline_after(seconds, clock::instant()),
            grace_seconds: seconds,
        };
        let grace = self.stops.begin(&uid, scope.clone(), grace);
        let running =
            status.container(id).is_none_or(|c| c.state == crate::model::ContainerState::Running);
        let pre_stop =
            container.filter(|_| running).and_then(|c| c.lifecycle.as_ref()?.pre_stop.clone());
        let stop =
            ContainerStop { id: id.clone(), name: name.into(), waits_for: Vec::new(), pre_stop };
        let target = StopTarget {
            pod_ref: PodRef::of(pod),
            object: ObjectRef::container(pod, name),
            ports: container.and_then(|c| c.ports.clone()).unwrap_or_default(),
            stop,
            message: why.message(name),
            pod_ip: hook_address(&self.node, Some(pod), status),
        };
        let (_sender, receiver) = watch::channel(grace);
        let stop = self.begin_stop(target, grace, Vec::new());
        stop.result(receiver).await.with_context(|| format!("cannot stop container {name}"))?;
        self.stops.end(&uid, &scope);
        Ok(())
    }

    /// Stops every container of a pod, then its sandboxes. The preStop hooks of an orphan (`pod` is `None`) are read from
    /// the annotations of its containers. Sandboxes are stopped only after the runtime reported that every container has
    /// exited.
    pub(in crate::runtime::kuberuntime) async fn kill_pod(
        &self,
        pod: Option<&Pod>,
        status: &PodStatus,
        grace: watch::Receiver<GraceDeadline>,
    ) -> anyhow::Result<()> {
        let pod_ref = PodRef::of_status(status);
        let annotations = match pod {
            Some(_) => HashMap::new(),
            None => self.orphan_annotations(status, &grace).await,
        };
        let mut stops = plan::container_stops(pod, status, &|id| annotations.get(id).cloned());
        // Containers that others wait for come first.
        stops.sort_by_key(|stop| stop.waits_for.len());
        let mut started: HashMap<ContainerId, RunningStop> = HashMap::new();
        let mut running = Vec::new();
        for stop in stops {
            let others = stop.waits_for.iter().filter_map(|id| started.get(id).cloned());
            let others = others.collect();
            let (id, name) = (stop.id.clone(), stop.name.clone());
            let target = StopTarget {
                object: object_of(pod, status, &stop.name),
                pod_ref: pod_ref.clone(),
                ports: ports_of(pod, &annotations, &stop),
                message: format!("Stopping container {}", stop.name),
                pod_ip: hook_address(&self.node, pod, status),
                stop,
            };
            let stop = self.begin_stop(target, *grace.borrow(), others);
            started.insert(id, stop.clone());
            let grace = grace.clone();
            running.push(async move {
                let result = stop.result(grace).await;
                result.with_context(|| format!("cannot stop container {name}"))
            });
        }
        join_all(running).await.into_iter().collect::<Result<(), _>>()?;
        self.stop_sandboxes(&pod_ref, status).await
    }

    async fn stop_sandboxes(&self, pod_ref: &PodRef, status: &PodStatus) -> anyhow::Result<()> {
        if status.containers.is_empty() && status.sandboxes.is_empty() {
            return Ok(());
        }
        let status = match timeout(STOPPED_TIMEOUT, self.cache.settled(&pod_ref.uid)).await {
            Ok(status) => status,
            Err(_) => {
                let listed = self.reader.list_pod(&pod_ref.uid).await;
                let listed =
                    listed.context("failed to check whether containers of the pod still run")?;
                Arc::new(self.reader.completed(&pod_ref.uid, Some(&listed)))
            }
        };
        let running: Vec<_> = status.maybe_running_containers().map(|c| &*c.name).collect();
        anyhow::ensure!(
            running.is_empty(),
            "containers still run after they were stopped: {}",
            running.join(", ")
        );
        // A dead sandbox is stopped as well, because its network may not be released yet, but only once per pod.
        let stopped = self.state_store.read(&pod_ref.uid, |record| {
            let terminal = record.terminal.as_ref();
            terminal.map_or_else(Vec::new, |terminal| terminal.stopped_sandboxes.clone())
        });
        let must_be_stopped =
            |s: &&SandboxStatus| s.ready || !stopped.iter().any(|id| id == s.id.as_str());
        let stops = status
            .sandboxes
            .iter()
            .filter(must_be_stopped)
            .map(|s| self.stop_sandbox(pod_ref, &s.id));
        join_all(stops).await.into_iter().collect::<Result<(), _>>()?;
        self.state_store.update(&pod_ref.uid, |record| {
            if let Some(terminal) = &mut record.terminal {
                let ids = status.sandboxes.iter().map(|s| s.id.to_string());
                terminal.stopped_sandboxes = ids.collect();
            }
        });
        Ok(())
    }

    /// Stops one sandbox. Succeeds if the runtime does not have it.
    pub(in crate::runtime::kuberuntime) async fn stop_sandbox(
        &self,
        pod_ref: &PodRef,
        id: &SandboxId,
    ) -> anyhow::Result<()> {
        let stopped = self.runtime.stop_pod_sandbox(id.as_str()).await;
        self.cache.touch(pod_ref, ItemId::Sandbox(id.clone()), None);
        ignore_not_found(stopped).context("cannot stop the sandbox")
    }

    /// Joins the stop of a container that is in progress, or begins one, which waits for `others`.
    fn begin_stop(
        &self,
        target: StopTarget,
        grace: GraceDeadline,
        others: Vec<RunningStop>,
    ) -> RunningStop {
        let id = target.stop.id.clone();
        let grace = self.stops.limit(&target.pod_ref.uid, &id, grace);
        let killer = self.clone();
        self.stops.running().join_or_begin(&id, grace, |grace| async move {
            killer.stop_with_hook(&target, grace, others).await
        })
    }

    /// The stop of one container (upstream's `killContainer`): event, preStop hook, wait for `others`, StopContainer.
    async fn stop_with_hook(
        &self,
        target: &StopTarget,
        grace: watch::Receiver<GraceDeadline>,
        others: Vec<RunningStop>,
    ) -> Result<(), CriError> {
        self.events.normal(&target.object, event::KILLING, target.message.clone());
        let unfinished = match self.pre_stop_hook(target, &grace) {
            Some(hook) => self.wait_for_hook(target, hook, grace.clone()).await,
            None => None,
        };
        wait_for_others(&others, grace.clone()).await;
        let id = target.stop.id.as_str();
        let stop = Box::pin(self.stop_while_grace_shrinks(id, grace));
        let stopped = match unfinished {
            None => stop.await,
            // The hook outlived the grace period; its command may run until the container is killed.
            Some(hook) => match select(stop, hook).await {
                Either::Left((stopped, _)) => stopped,
                Either::Right((_, stop)) => stop.await,
            },
        };
        let item = ItemId::Container(target.stop.id.clone());
        self.cache.touch(&target.pod_ref, item, None);
        ignore_not_found(stopped)
    }

    /// StopContainer, called again with a shorter timeout whenever the grace period gets shorter.
    async fn stop_while_grace_shrinks(
        &self,
        id: &str,
        mut grace: watch::Receiver<GraceDeadline>,
    ) -> Result<(), CriError> {
        loop {
            let deadline = grace.borrow_and_update().deadline;
            let seconds = plan::stop_timeout(deadline, clock::instant());
            let stop = self.runtime.stop_container(id, seconds);
            tokio::pin!(stop);
            loop {
                let shrunk = tokio::select! {
                    result = &mut stop => return result,
                    Ok(()) = grace.changed() => grace.borrow_and_update().deadline < deadline,
                    else => return stop.await,
                };
                if shrunk {
                    break;
                }
            }
        }
    }

    /// The annotations of an orphan's containers. Read with one list and a short timeout, because the grace period of an
    /// orphan is short.
    async fn orphan_annotations(
        &self,
        status: &PodStatus,
        grace: &watch::Receiver<GraceDeadline>,
    ) -> HashMap<ContainerId, AnnotatedContainerInfo> {
        if status.maybe_running_containers().next().is_none() {
            return HashMap::new();
        }
        let limit = plan::status_timeout(grace.borrow().left(clock::instant()));
        let list = self.reader.list_containers_of(&status.uid);
        let problem = match timeout(limit, list).await {
            Ok(Ok(containers)) => return containers.iter().map(annotated_info_of).collect(),
            Ok(Err(error)) => error_chain(&error),
            Err(_) => format!("list timed out after {} ms", limit.as_millis()),
        };
        tracing::warn!(
            pod = %status.log_name(),
            podUID = %status.uid,
            err = problem,
            "Failed to list the containers of an orphaned pod, stopping them without their hooks"
        );
        HashMap::new()
    }
}

fn annotated_info_of(container: &v1::Container) -> (ContainerId, AnnotatedContainerInfo) {
    let (info, unreadable) = AnnotatedContainerInfo::read(&container.annotations);
    for error in unreadable {
        tracing::warn!(containerID = container.id, err = %error, "Failed to read an annotation of an orphaned container");
    }
    (container.id.as_str().into(), info)
}

/// Waits until the containers before it in the stopping order have exited, until the deadline at most.
async fn wait_for_others(others: &[RunningStop], mut grace: watch::Receiver<GraceDeadline>) {
    tokio::select! {
        _ = join_all(others.iter().map(RunningStop::ended)) => {}
        () = deadline_over(&mut grace) => {}
    }
}

/// Waits for the deadline, which may move earlier meanwhile.
pub(super) async fn deadline_over(grace: &mut watch::Receiver<GraceDeadline>) {
    loop {
        let deadline = grace.borrow_and_update().deadline;
        tokio::select! {
            () = tokio::time::sleep_until(deadline) => return,
            Ok(()) = grace.changed() => {}
        }
    }
}

fn ports_of(
    pod: Option<&Pod>,
    annotations: &HashMap<ContainerId, AnnotatedContainerInfo>,
    stop: &ContainerStop,
) -> Vec<ContainerPort> {
    let ports = match pod.and_then(|pod| pod.container(&stop.name)) {
        Some(container) => container.ports.clone(),
        None => annotations.get(&stop.id).map(|info| info.ports.clone()),
    };
    ports.unwrap_or_default()
}

fn object_of(pod: Option<&Pod>, status: &PodStatus, name: &str) -> ObjectRef {
    match pod {
        Some(pod) => ObjectRef::container(pod, name),
        None => ObjectRef {
            kind: "Pod",
            namespace: status.namespace.to_string(),
            name: status.name.to_string(),
            uid: status.uid.clone(),
            field_path: format!("spec.containers{{{name}}}"),
        },
    }
}
