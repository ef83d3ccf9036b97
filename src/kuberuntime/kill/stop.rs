//! Carries out stops: hook, turn, StopContainer, and a look that it really ended.

use super::{
    super::{KubeGenericRuntimeManager, actions::ContainerKill, labels::OrphanRecord},
    begun::Scope,
    plan::{self, ContainerStop},
};
use crate::{
    base::chain,
    events::ObjectRef,
    lifecycle::{HookError, HookTarget},
    model::{ContainerId, GraceDeadline, Pod, PodExt, PodStatus, SandboxStatus, reasons::event},
    pod_cache::{ItemId, Owner},
};
use anyhow::Context as _;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{ContainerPort, LifecycleHandler};
use std::{collections::HashMap, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

/// How long the runtime may go on showing a container as running after it said that it stopped it.
const SETTLE: Duration = Duration::from_secs(10);

/// Why one container of a pod that stays is stopped.
#[derive(Clone, Debug)]
pub(in crate::kuberuntime) enum Why {
    /// The plan says so.
    Plan(ContainerKill),
    /// Its postStart hook failed.
    FailedPostStartHook,
    /// All containers of the pod are restarted: no hook, and no more grace than the least there is.
    RestartAll,
}

impl Why {
    fn message(&self, name: &str) -> String {
        match self {
            Self::Plan(kill) => kill.to_string(),
            Self::FailedPostStartHook => event::FAILED_POST_START_HOOK.into(),
            Self::RestartAll => format!("Stopping container {name}, all containers are restarted"),
        }
    }
}

/// Everything one stop needs.
struct Target<'a> {
    owner: &'a Owner,
    object: ObjectRef,
    ports: &'a [ContainerPort],
    stop: ContainerStop,
    message: String,
    pod_ip: Option<String>,
}

impl KubeGenericRuntimeManager {
    /// Stops one container of a pod that stays.
    pub(in crate::kuberuntime) async fn kill_one(
        &self,
        pod: &Pod,
        status: &PodStatus,
        name: &str,
        id: &ContainerId,
        why: Why,
    ) -> anyhow::Result<()> {
        let container = pod.container(name);
        let (reason, grace) = match &why {
            Why::Plan(kill) => (Some(kill.reason), None),
            Why::FailedPostStartHook => (None, None),
            Why::RestartAll => (None, Some(0)),
        };
        let seconds = plan::container_grace_seconds(pod, container, reason, grace);
        let (uid, scope) = (pod.uid(), Scope::Container(id.clone()));
        let grace = GraceDeadline {
            deadline: plan::deadline_after(seconds, Instant::now()),
            grace_seconds: seconds,
        };
        let (_keep, grace) = watch::channel(self.stops.begin(&uid, scope.clone(), grace));
        let running = status
            .container(id)
            .is_none_or(|c| c.state == crate::model::ContainerState::Running);
        let pre_stop = container
            .filter(|_| running)
            .and_then(|c| c.lifecycle.as_ref()?.pre_stop.clone());
        let stop = ContainerStop {
            id: id.clone(),
            name: name.into(),
            waits_for: Vec::new(),
            pre_stop,
        };
        let target = Target {
            owner: &Owner::of(pod),
            object: ObjectRef::container(pod, name),
            ports: container
                .and_then(|c| c.ports.as_deref())
                .unwrap_or_default(),
            stop,
            message: why.message(name),
            pod_ip: self.address(Some(pod), status),
        };
        self.stop_container(&target, grace, &HashMap::new())
            .await
            .with_context(|| format!("cannot stop container {name}"))?;
        self.stops.over(&uid, &scope);
        Ok(())
    }

    /// Stops every container of a pod, then its sandboxes. Without a pod object (an orphan) hooks come
    /// from the annotations that its containers were created with. Sandboxes are stopped only after
    /// every container was seen to have exited.
    pub async fn kill_pod(
        &self,
        pod: Option<&Pod>,
        status: &PodStatus,
        grace: watch::Receiver<GraceDeadline>,
    ) -> anyhow::Result<()> {
        let owner = Owner::of_status(status);
        let records = match pod {
            Some(_) => HashMap::new(),
            None => self.orphan_records(status).await,
        };
        let stops = plan::stop_pod(pod, status, &|id| records.get(id).cloned());
        let latches: HashMap<ContainerId, watch::Sender<bool>> = stops
            .iter()
            .map(|s| (s.id.clone(), watch::Sender::new(false)))
            .collect();
        let running = stops.into_iter().map(|stop| {
            let target = Target {
                object: object_of(pod, status, &stop.name),
                owner: &owner,
                ports: ports_of(pod, &records, &stop),
                message: format!("Stopping container {}", stop.name),
                pod_ip: self.address(pod, status),
                stop,
            };
            let (grace, latches) = (grace.clone(), &latches);
            async move {
                let result = self.stop_container(&target, grace, latches).await;
                // Also when it failed: whoever waits has its own deadline, and an error to report.
                if let Some(latch) = latches.get(&target.stop.id) {
                    latch.send_replace(true);
                }
                result.with_context(|| format!("cannot stop container {}", target.stop.name))
            }
        });
        let failures: Vec<_> = join_all(running)
            .await
            .into_iter()
            .filter_map(Result::err)
            .collect();
        if let Some(first) = failures.into_iter().next() {
            return Err(first);
        }
        self.stop_sandboxes(&owner, status).await
    }

    async fn stop_sandboxes(&self, owner: &Owner, status: &PodStatus) -> anyhow::Result<()> {
        if status.containers.is_empty() && status.sandboxes.is_empty() {
            return Ok(());
        }
        let settled = timeout(SETTLE, self.cache.settled(&owner.uid)).await;
        let picture = settled.unwrap_or_else(|_| self.cache.latest(&owner.uid));
        let running: Vec<_> = picture.maybe_running().map(|c| &*c.name).collect();
        anyhow::ensure!(
            running.is_empty(),
            "containers still run after they were stopped: {}",
            running.join(", ")
        );
        // A dead sandbox is stopped as well, for its network may be left; but once is enough.
        let stopped = self.journal.read(&owner.uid, |record| {
            let terminal = record.terminal.as_ref();
            terminal.map_or_else(Vec::new, |terminal| terminal.stopped_sandboxes.clone())
        });
        let left = |s: &&SandboxStatus| s.ready || !stopped.iter().any(|id| id == s.id.as_str());
        let stops = picture
            .sandboxes
            .iter()
            .filter(left)
            .map(|s| self.stop_sandbox(owner, &s.id));
        join_all(stops)
            .await
            .into_iter()
            .collect::<Result<(), _>>()?;
        self.journal.update(&owner.uid, |record| {
            if let Some(terminal) = &mut record.terminal {
                let ids = picture.sandboxes.iter().map(|s| s.id.to_string());
                terminal.stopped_sandboxes = ids.collect();
            }
        });
        Ok(())
    }

    async fn stop_container(
        &self,
        target: &Target<'_>,
        grace: watch::Receiver<GraceDeadline>,
        latches: &HashMap<ContainerId, watch::Sender<bool>>,
    ) -> anyhow::Result<()> {
        self.events
            .normal(&target.object, event::KILLING, target.message.clone());
        if let Some(handler) = &target.stop.pre_stop {
            self.run_pre_stop(target, handler, grace.clone()).await;
        }
        wait_for_others(&target.stop, grace.clone(), latches).await;
        let id = target.stop.id.as_str();
        let stopped = self.stop_while_grace_shrinks(id, grace).await;
        let item = ItemId::Container(target.stop.id.clone());
        self.cache.touch(target.owner, item, None);
        match stopped {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn run_pre_stop(
        &self,
        target: &Target<'_>,
        handler: &LifecycleHandler,
        mut grace: watch::Receiver<GraceDeadline>,
    ) {
        let (uid, id) = (&target.owner.uid, &target.stop.id);
        if self.stops.hook_ran(uid, id) {
            return;
        }
        let budget = plan::pre_stop_budget(grace.borrow().deadline, Instant::now());
        let Some(budget) = budget else { return };
        let hook_target = HookTarget {
            pod: &target.object,
            container: &target.stop.name,
            container_id: &target.stop.id,
            pod_ip: target.pod_ip.as_deref(),
            ports: target.ports,
        };
        let result = tokio::select! {
            result = self.hooks.run_pre_stop(handler, &hook_target, budget) => result,
            () = deadline_over(&mut grace) => Err(HookError::DeadlineExceeded(budget)),
        };
        if !matches!(result, Err(HookError::Unreachable(_))) {
            self.stops.note_hook(uid, id);
        }
        if let Err(error) = result {
            tracing::warn!(
                pod = %target.owner.name,
                container = target.stop.name,
                err = %error,
                "PreStop hook failed"
            );
            self.events.warning(
                &target.object,
                event::FAILED_PRE_STOP_HOOK,
                "PreStopHook failed",
            );
        }
    }

    /// StopContainer, asked again with less whenever the grace shrinks meanwhile.
    async fn stop_while_grace_shrinks(
        &self,
        id: &str,
        mut grace: watch::Receiver<GraceDeadline>,
    ) -> Result<(), crate::cri::CriError> {
        loop {
            let deadline = grace.borrow_and_update().deadline;
            let seconds = plan::stop_timeout(deadline, Instant::now());
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

    async fn orphan_records(&self, status: &PodStatus) -> HashMap<ContainerId, OrphanRecord> {
        let mut records = HashMap::new();
        for container in status.maybe_running() {
            match self.runtime.container_status(container.id.as_str()).await {
                Ok(reply) => {
                    let (record, unreadable) = OrphanRecord::read(&reply.annotations);
                    for error in unreadable {
                        tracing::warn!(container = %container.id, err = %error, "Orphaned container");
                    }
                    records.insert(container.id.clone(), record);
                }
                Err(error) => tracing::warn!(
                    container = %container.id,
                    err = %chain(&error),
                    "Cannot read an orphaned container; it is stopped without its hook"
                ),
            }
        }
        records
    }
}

/// A sidecar waits until those before it in the stopping order have exited, at most until the end of
/// the grace.
async fn wait_for_others(
    stop: &ContainerStop,
    mut grace: watch::Receiver<GraceDeadline>,
    latches: &HashMap<ContainerId, watch::Sender<bool>>,
) {
    let others = stop
        .waits_for
        .iter()
        .filter_map(|id| latches.get(id))
        .map(|latch| {
            let mut latch = latch.subscribe();
            async move {
                let _ = latch.wait_for(|done| *done).await;
            }
        });
    tokio::select! {
        _ = join_all(others) => {}
        () = deadline_over(&mut grace) => {}
    }
}

/// Ends when the grace does, however it shrinks.
async fn deadline_over(grace: &mut watch::Receiver<GraceDeadline>) {
    loop {
        let deadline = grace.borrow_and_update().deadline;
        tokio::select! {
            () = tokio::time::sleep_until(deadline) => return,
            Ok(()) = grace.changed() => {}
        }
    }
}

fn ports_of<'a>(
    pod: Option<&'a Pod>,
    records: &'a HashMap<ContainerId, OrphanRecord>,
    stop: &ContainerStop,
) -> &'a [ContainerPort] {
    match pod.and_then(|pod| pod.container(&stop.name)) {
        Some(container) => container.ports.as_deref().unwrap_or_default(),
        None => records
            .get(&stop.id)
            .map(|record| record.ports.as_slice())
            .unwrap_or_default(),
    }
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
