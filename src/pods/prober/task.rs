//! The loop of one probe: decide with [`super::state`], act, wait.

use super::{
    PodProbes, PodSignal, ProbeSlot, ProbeSnapshot, ProbeTaskState, ProbedContainer, ProberShared,
    metrics::ProbeSeries,
    spec,
    state::{InstanceState, ProbeAction, ProbeFacts, ProbeState, ProbedInstance},
};
use crate::{
    base::{
        panics::{PanicScope, catch_panic},
        wait_until,
    },
    model::{
        ContainerId, ContainerState, ContainerStatus, PodExt, ProbeKind, ProbeResult, reasons,
    },
    runtime::handlers::{HandlerTarget, ProbeOutcome, run_handler},
    state::events::ObjectRef,
};
use futures::future::{BoxFuture, pending};
use jiff::Timestamp;
use prometheus_client::metrics::gauge::Gauge;
use std::{ops::ControlFlow, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

/// Attempts per tick if the handler cannot be run (upstream's `maxProbeRetries`).
const ATTEMPTS: u32 = 3;
/// A run fails this long after its timeout, even if the runtime has not reported a timeout. Runtimes measure from the
/// start of the command, which on a busy node is seconds after the call.
const OVERRUN_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts the task of one probe.
pub(super) fn spawn(shared: &Arc<ProberShared>, probes: &Arc<PodProbes>, slot: &ProbeSlot) {
    if let Some(task) = ProbeTask::new(shared, probes, slot) {
        crate::base::spawn(PanicScope::Probe, task.run());
    }
}

pub(super) struct ProbeTask {
    shared: Arc<ProberShared>,
    probes: Arc<PodProbes>,
    container: Arc<str>,
    kind: ProbeKind,
    timeout: Duration,
    /// Whether another instance may follow one that exited.
    restarts: bool,
    signal: watch::Receiver<PodSignal>,
    state: ProbeState,
    overdue: Option<Overdue>,
    series: ProbeSeries,
}

type ProbeRun = BoxFuture<'static, ProbeOutcome>;

/// A run that exceeded its deadline and has been counted as failed. No other run starts before it ends.
struct Overdue {
    run: ProbeRun,
    gauge: Gauge,
}

impl Drop for Overdue {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

impl ProbeTask {
    pub(super) fn new(
        shared: &Arc<ProberShared>,
        probes: &Arc<PodProbes>,
        slot: &ProbeSlot,
    ) -> Option<Self> {
        let container = probes.pod.container(&slot.container)?;
        let probe = spec::probe(container, slot.kind)?;
        Some(Self {
            shared: shared.clone(),
            probes: probes.clone(),
            container: slot.container.clone(),
            kind: slot.kind,
            timeout: spec::timeout(probe),
            restarts: spec::restarts(&probes.pod, container),
            signal: probes.signal.subscribe(),
            state: ProbeState::new(spec::rules(probe, slot.kind), fastrand::f64()),
            overdue: None,
            series: ProbeSeries::new(&shared.metrics),
        })
    }

    /// Probes until the task ends. After a panic outside of the handler, the probe continues after one period.
    pub(super) async fn run(mut self) {
        loop {
            match catch_panic(PanicScope::Probe, self.step()).await {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => return self.end(),
                Err(_) => {
                    self.overdue = None;
                    sleep(self.state.period()).await;
                }
            }
        }
    }

    async fn step(&mut self) -> ControlFlow<()> {
        let signal = *self.signal.borrow_and_update();
        if stops(signal, self.kind) {
            return ControlFlow::Break(());
        }
        let facts = self.facts();
        let decision = self.state.decide(&facts, Instant::now());
        if let Some(old) = &decision.forget {
            self.overdue = None;
            self.forget(old);
        }
        if let Some((id, probe_result)) = decision.set {
            self.publish(&id, probe_result);
        }
        let due = match decision.next {
            ProbeAction::Until(at) => Some(at),
            ProbeAction::Run(_) | ProbeAction::Idle | ProbeAction::Exit => None,
        };
        self.update_snapshot(|seen| seen.due = due);
        match decision.next {
            ProbeAction::Exit => return ControlFlow::Break(()),
            ProbeAction::Run(id) if self.overdue.is_none() => self.probe(id).await,
            ProbeAction::Run(_) | ProbeAction::Idle => self.wait(None).await,
            ProbeAction::Until(at) => self.wait(Some(at)).await,
        }
        ControlFlow::Continue(())
    }

    /// Waits for a change, for a time, or for the end of an overdue run.
    async fn wait(&mut self, at: Option<Instant>) {
        let overdue = async {
            match &mut self.overdue {
                Some(overdue) => overdue.run.as_mut().await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = self.signal.changed() => {}
            () = wait_until(at) => {}
            _late = overdue => self.overdue = None,
        }
    }

    /// Runs the handler, with retries if it cannot be run, and reports the outcome.
    async fn probe(&mut self, id: ContainerId) {
        let mut started_at = Instant::now();
        let mut outcome = self.attempt(&id).await;
        for _ in 1..ATTEMPTS {
            match outcome {
                Some(ProbeOutcome::Unknown { .. }) if self.overdue.is_none() => {
                    started_at = Instant::now();
                    outcome = self.attempt(&id).await;
                }
                _ => break,
            }
        }
        if let Some(outcome) = outcome {
            self.report(&id, &outcome, started_at.elapsed());
        }
    }

    /// One run; `None` when the probe was stopped meanwhile.
    async fn attempt(&mut self, id: &ContainerId) -> Option<ProbeOutcome> {
        let mut run = self.start(id);
        let deadline = Instant::now() + self.timeout + OVERRUN_TIMEOUT;
        let kind = self.kind;
        let stopped = self.signal.wait_for(|signal| stops(*signal, kind));
        tokio::select! {
            biased;
            outcome = &mut run => return Some(outcome),
            _ = stopped => return None,
            () = sleep_until(deadline) => {}
        }
        let gauge = self.shared.metrics.overdue();
        gauge.inc();
        self.overdue = Some(Overdue { run, gauge });
        let lag = deadline.elapsed();
        Some(if lag > self.timeout / 4 {
            ProbeOutcome::Unknown {
                error: format!("kubelet was stalled for {lag:?}"),
            }
        } else {
            ProbeOutcome::Failure {
                output: format!(
                    "probe did not return within {:?}",
                    self.timeout + OVERRUN_TIMEOUT
                ),
            }
        })
    }

    fn start(&self, id: &ContainerId) -> ProbeRun {
        let exec = self.shared.deps.exec.clone();
        let (probes, name, id) = (self.probes.clone(), self.container.clone(), id.clone());
        let (kind, timeout, pod_ip) = (self.kind, self.timeout, self.view().pod_ip);
        Box::pin(async move {
            let container = probes.pod.container(&name);
            let handler = container.and_then(|container| {
                let handler = spec::handler(container, spec::probe(container, kind)?)?;
                Some((handler, container.ports.as_deref().unwrap_or_default()))
            });
            let Some((handler, ports)) = handler else {
                let error = "the probe has no handler".to_owned();
                return ProbeOutcome::Unknown { error };
            };
            let target = HandlerTarget {
                container_id: &id,
                pod_ip: pod_ip.as_deref(),
                ports,
            };
            let run = run_handler(&exec, &handler, &target, timeout);
            let run = catch_panic(PanicScope::Probe, run).await;
            run.unwrap_or_else(|panicked| ProbeOutcome::Unknown {
                error: panicked.to_string(),
            })
        })
    }

    fn report(&mut self, id: &ContainerId, outcome: &ProbeOutcome, took: Duration) {
        let facts = self.facts();
        if !facts.runs(id) {
            return;
        }
        let (result, output) = result_of(outcome);
        self.update_snapshot(|seen| seen.ran(result, output, Timestamp::now()));
        self.series
            .count(&self.probes, &self.container, self.kind, outcome, took);
        if let Some((reason, message)) = event(self.kind, outcome) {
            let object = ObjectRef::container(&self.probes.pod, &self.container);
            self.shared.deps.events.warning(&object, reason, message);
        }
        if let Some((id, probe_result)) = self.state.probed(&facts, id, outcome) {
            self.publish(&id, probe_result);
        }
    }

    fn publish(&self, id: &ContainerId, probe_result: ProbeResult) {
        let (uid, kind) = (&self.probes.uid, self.kind);
        if kind == ProbeKind::Startup {
            let started = (probe_result == ProbeResult::Success).then(|| id.clone());
            let opens = started.is_some();
            self.probes
                .set_task(&self.container, kind, ProbeTaskState::Running { started });
            if opens {
                self.probes.wake();
            }
        }
        if self.shared.deps.results.set(uid, id, kind, probe_result) {
            self.shared.deps.state_store.update(uid, |record| {
                record.set_probe_result(id, kind, probe_result)
            });
        }
    }

    fn update_snapshot(&self, change: impl FnOnce(&mut ProbeSnapshot)) {
        self.probes
            .with_slot(&self.container, self.kind, |slot| change(&mut slot.seen));
    }

    fn forget(&self, id: &ContainerId) {
        let (uid, kind) = (&self.probes.uid, self.kind);
        self.update_snapshot(|seen| *seen = ProbeSnapshot::default());
        self.shared.forget(uid, id, kind);
    }

    fn end(mut self) {
        let last = self.state.container().cloned();
        if let Some(id) = &last {
            self.forget(id);
        }
        self.series.remove(&self.probes, &self.container, self.kind);
        self.probes
            .set_task(&self.container, self.kind, ProbeTaskState::Ended { last });
        if self.kind == ProbeKind::Startup {
            // The other probes of the container may run now.
            self.probes.wake();
        }
    }

    fn view(&self) -> ProbedContainer {
        (self.shared.deps.view)(&self.probes.uid, &self.container)
    }

    fn facts(&self) -> ProbeFacts {
        let view = self.view();
        let seen = view.container.filter(|seen| !seen.id.as_str().is_empty());
        let container = seen.map(|seen| self.instance(&seen));
        let recorded_result = container
            .as_ref()
            .filter(|seen| !self.state.is_current(&seen.id))
            .and_then(|seen| self.shared.deps.results.get(&seen.id, self.kind));
        ProbeFacts {
            pod_terminal: view.pod_terminal,
            deleting: view.deleting,
            started: container
                .as_ref()
                .is_some_and(|seen| self.probes.started(&self.container, &seen.id)),
            recorded_result,
            was_started: view.was_started,
            container,
        }
    }

    fn instance(&self, seen: &ContainerStatus) -> ProbedInstance {
        let nanos_since = |then: Timestamp| {
            let since = then.as_nanosecond() - i128::from(seen.started_at);
            Duration::from_nanos(u64::try_from(since).unwrap_or(0))
        };
        let state = match seen.state {
            ContainerState::Running => InstanceState::Running(nanos_since(Timestamp::now())),
            ContainerState::Exited => InstanceState::Exited {
                restarts: self.restarts,
            },
            ContainerState::Created | ContainerState::Unknown => InstanceState::CreatedOrUnknown,
        };
        ProbedInstance {
            id: seen.id.clone(),
            state,
            predates_kubelet: seen.started_at > 0
                && nanos_since(self.shared.deps.started_at) > Duration::ZERO,
        }
    }
}

fn stops(signal: PodSignal, kind: ProbeKind) -> bool {
    match signal {
        PodSignal::Run => false,
        PodSignal::ReadinessOnly => kind != ProbeKind::Readiness,
        PodSignal::Removed => true,
    }
}

/// The probe result of an outcome, and its output.
fn result_of(outcome: &ProbeOutcome) -> (ProbeResult, &str) {
    match outcome {
        ProbeOutcome::Success { .. } => (ProbeResult::Success, ""),
        ProbeOutcome::Warning { output } => (ProbeResult::Success, output),
        ProbeOutcome::Failure { output } => (ProbeResult::Failure, output),
        ProbeOutcome::Unknown { error } => (ProbeResult::Unknown, error),
    }
}

/// The event of an outcome: its reason and text.
fn event(kind: ProbeKind, outcome: &ProbeOutcome) -> Option<(&'static str, String)> {
    match outcome {
        ProbeOutcome::Success { .. } => None,
        ProbeOutcome::Warning { output } => Some((
            reasons::event::PROBE_WARNING,
            format!("{kind} probe warning: {output}"),
        )),
        ProbeOutcome::Failure { output } => Some((
            reasons::event::UNHEALTHY,
            format!("{kind} probe failed: {output}"),
        )),
        ProbeOutcome::Unknown { error } => Some((
            reasons::event::UNHEALTHY,
            format!("{kind} probe errored and resulted in unknown state: {error}"),
        )),
    }
}
