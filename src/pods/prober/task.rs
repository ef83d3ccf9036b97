//! The loop of one probe: decide with [`super::state`], act, wait.

use super::metrics::ProbeSeries;
use super::state::{Attempt, InstanceState, ProbeAction, ProbeFacts, ProbeState, ProbedInstance};
use super::{
    AllowedProbes, PodProbes, PodSignal, ProbeSlot, ProbeSnapshot, ProbeTaskState, ProbedContainer,
    ProberShared, spec,
};
use crate::base::clock::{self, Instant};
use crate::base::metrics::Gauge;
use crate::base::panics::{PanicScope, catch_panic};
use crate::base::wait_until;
use crate::model::{
    ContainerId, ContainerState, ContainerStatus, PodExt, ProbeKind, ProbeResult, reasons,
};
use crate::runtime::handlers::{HandlerTarget, ProbeOutcome, run_handler};
use crate::state::events::ObjectRef;
use futures::future::{BoxFuture, pending};
use jiff::Timestamp;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

/// Runs per tick if the handler cannot be run (upstream's `maxProbeRetries`).
const MAX_RUNS: u32 = 3;
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
    /// How many syncs of the pod this probe knows of.
    syncs: u64,
    state: ProbeState,
    overdue: Option<Overdue>,
    series: ProbeSeries,
}

type ProbeRun = BoxFuture<'static, ProbeOutcome>;

/// A run that exceeded its deadline. No other run starts before it ends.
struct Overdue {
    run: ProbeRun,
    gauge: Gauge,
    /// It has been reported as a failure: by the tick that ran it, or, if it began early, by the first tick that it prevented.
    reported: bool,
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
        let signal = probes.signal.subscribe();
        let syncs = signal.borrow().syncs;
        Some(Self {
            shared: shared.clone(),
            probes: probes.clone(),
            container: slot.container.clone(),
            kind: slot.kind,
            timeout: spec::timeout(probe),
            restarts: spec::restarts(&probes.pod, container),
            signal,
            syncs,
            state: ProbeState::new(spec::rules(probe, slot.kind), fastrand::f64()),
            overdue: None,
            series: ProbeSeries::new(&shared.probe_metrics),
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
        let mut facts = self.facts();
        facts.synced = signal.syncs != self.syncs;
        self.syncs = signal.syncs;
        let decision = self.state.decide(&facts, clock::instant());
        if let Some(old) = &decision.forget {
            self.overdue = None;
            self.forget(old);
        }
        if let Some((id, probe_result)) = decision.set {
            self.publish(&id, probe_result);
        }
        let due = match decision.next {
            ProbeAction::Until(at) => Some(at),
            ProbeAction::Run(..) | ProbeAction::Idle | ProbeAction::Exit => None,
        };
        self.update_snapshot(|seen| seen.due = due);
        match decision.next {
            ProbeAction::Exit => return ControlFlow::Break(()),
            ProbeAction::Run(id, attempt) if self.overdue.is_none() => {
                self.probe(id, attempt).await;
            }
            ProbeAction::Run(id, _) => {
                self.report_overdue(&id);
                self.wait(None).await;
            }
            ProbeAction::Idle => self.wait(None).await,
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

    /// Runs the handler, with retries if it cannot be run, and reports the outcome. An early attempt is not retried: the next
    /// one follows soon.
    async fn probe(&mut self, id: ContainerId, attempt: Attempt) {
        let runs = match attempt {
            Attempt::Periodic => MAX_RUNS,
            Attempt::Early => 1,
        };
        let mut started_at = clock::instant();
        let mut outcome = self.run_once(&id, attempt).await;
        for _ in 1..runs {
            match outcome {
                Some(ProbeOutcome::Unknown { .. }) if self.overdue.is_none() => {
                    started_at = clock::instant();
                    outcome = self.run_once(&id, attempt).await;
                }
                _ => break,
            }
        }
        if let Some(outcome) = outcome {
            self.report(&id, attempt, &outcome, clock::since(started_at));
        }
    }

    /// One run; `None` when the probe was stopped meanwhile.
    async fn run_once(&mut self, id: &ContainerId, attempt: Attempt) -> Option<ProbeOutcome> {
        let mut run = self.start(id);
        let deadline = clock::instant() + self.timeout + OVERRUN_TIMEOUT;
        let kind = self.kind;
        let stopped = self.signal.wait_for(|signal| stops(*signal, kind));
        tokio::select! {
            biased;
            outcome = &mut run => return Some(outcome),
            _ = stopped => return None,
            () = sleep_until(deadline) => {}
        }
        let gauge = self.shared.metrics.overdue.clone();
        gauge.inc();
        self.overdue = Some(Overdue { run, gauge, reported: attempt == Attempt::Periodic });
        let lag = clock::since(deadline);
        Some(if lag > self.timeout / 4 {
            ProbeOutcome::Unknown { error: format!("kubelet was stalled for {lag:?}") }
        } else {
            self.did_not_return()
        })
    }

    fn did_not_return(&self) -> ProbeOutcome {
        let limit = self.timeout + OVERRUN_TIMEOUT;
        ProbeOutcome::Failure { output: format!("probe did not return within {limit:?}") }
    }

    /// A tick cannot run the probe because an earlier run has not returned. If that one began early, this tick fails in its
    /// place, once: otherwise a runtime that hangs would not be noticed.
    fn report_overdue(&mut self, id: &ContainerId) {
        let overdue = self.overdue.as_mut();
        let unreported = overdue.is_some_and(|run| !std::mem::replace(&mut run.reported, true));
        if unreported {
            let outcome = self.did_not_return();
            self.report(id, Attempt::Periodic, &outcome, Duration::ZERO);
        }
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
            let target = HandlerTarget { container_id: &id, pod_ip: pod_ip.as_deref(), ports };
            let run = run_handler(&exec, &handler, &target, timeout);
            let run = catch_panic(PanicScope::Probe, run).await;
            run.unwrap_or_else(|panicked| ProbeOutcome::Unknown { error: panicked.to_string() })
        })
    }

    fn report(
        &mut self,
        id: &ContainerId,
        attempt: Attempt,
        outcome: &ProbeOutcome,
        took: Duration,
    ) {
        let facts = self.facts();
        if !facts.runs(id) {
            return;
        }
        let (result, output) = result_of(outcome);
        if attempt == Attempt::Periodic || result == ProbeResult::Success {
            self.update_snapshot(|seen| seen.ran(result, output, clock::timestamp()));
            self.series.count(&self.probes, &self.container, self.kind, outcome, took);
            if let Some((reason, message)) = event(self.kind, outcome) {
                let object = ObjectRef::container(&self.probes.pod, &self.container);
                self.shared.deps.events.warning(&object, reason, message);
            }
        }
        let now = clock::instant();
        if let Some((id, probe_result)) = self.state.probed(&facts, id, attempt, outcome, now) {
            self.publish(&id, probe_result);
        }
    }

    fn publish(&self, id: &ContainerId, probe_result: ProbeResult) {
        let (uid, kind) = (&self.probes.uid, self.kind);
        if kind == ProbeKind::Startup {
            let started = (probe_result == ProbeResult::Success).then(|| id.clone());
            let opens = started.is_some();
            self.probes.set_task(&self.container, kind, ProbeTaskState::Running { started });
            if opens {
                self.probes.wake();
            }
        }
        if self.shared.deps.results.set(uid, id, kind, probe_result) {
            self.shared
                .deps
                .state_store
                .update(uid, |record| record.set_probe_result(id, kind, probe_result));
        }
    }

    fn update_snapshot(&self, change: impl FnOnce(&mut ProbeSnapshot)) {
        self.probes.with_slot(&self.container, self.kind, |slot| change(&mut slot.seen));
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
        self.probes.set_task(&self.container, self.kind, ProbeTaskState::Ended { last });
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
            synced: false,
            overdue: self.overdue.is_some(),
        }
    }

    fn instance(&self, seen: &ContainerStatus) -> ProbedInstance {
        let nanos_since = |then: Timestamp| {
            let since = then.as_nanosecond() - i128::from(seen.started_at);
            Duration::from_nanos(u64::try_from(since).unwrap_or(0))
        };
        let state = match seen.state {
            ContainerState::Running => InstanceState::Running(nanos_since(clock::timestamp())),
            ContainerState::Exited => InstanceState::Exited { restarts: self.restarts },
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
    match signal.allowed {
        AllowedProbes::All => false,
        AllowedProbes::Readiness => kind != ProbeKind::Readiness,
        AllowedProbes::None => true,
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
        ProbeOutcome::Warning { output } => {
            Some((reasons::event::PROBE_WARNING, format!("{kind} probe warning: {output}")))
        }
        ProbeOutcome::Failure { output } => {
            Some((reasons::event::UNHEALTHY, format!("{kind} probe failed: {output}")))
        }
        ProbeOutcome::Unknown { error } => Some((
            reasons::event::UNHEALTHY,
            format!("{kind} probe errored and resulted in unknown state: {error}"),
        )),
    }
}
