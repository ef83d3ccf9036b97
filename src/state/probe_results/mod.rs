//! Results of liveness, readiness and startup probes.
//!
//! * Owns: the result of each probe on each container instance.
//! * Woken by: probe tasks, the only writers.
//! * Publishes: the results, and the set of pods whose results changed.
//! * Must never block a probe: a newer result replaces the older one.
//! * Upstream: `pkg/kubelet/prober/results`.

use crate::base::DirtySet;
use crate::model::{ContainerId, PodUid, ProbeKind, ProbeResult};
use crate::state::pod_state_store::PodRecord;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// The results of one container instance; `None` for a kind of probe that is not configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerProbeResults {
    /// Liveness.
    pub liveness: Option<ProbeResult>,
    /// Readiness.
    pub readiness: Option<ProbeResult>,
    /// Startup.
    pub startup: Option<ProbeResult>,
}

impl ContainerProbeResults {
    /// The result of one kind of probe.
    pub fn get(&self, kind: ProbeKind) -> Option<ProbeResult> {
        match kind {
            ProbeKind::Liveness => self.liveness,
            ProbeKind::Readiness => self.readiness,
            ProbeKind::Startup => self.startup,
        }
    }

    fn slot(&mut self, kind: ProbeKind) -> &mut Option<ProbeResult> {
        match kind {
            ProbeKind::Liveness => &mut self.liveness,
            ProbeKind::Readiness => &mut self.readiness,
            ProbeKind::Startup => &mut self.startup,
        }
    }
}

type Results = RwLock<HashMap<ContainerId, ContainerProbeResults>>;

/// The writing end, for the prober only.
#[derive(Debug)]
pub struct ProbeResultsWriter {
    results: Arc<Results>,
    changed: Arc<DirtySet<PodUid>>,
}

/// The reading end; cheap to clone.
#[derive(Clone, Debug)]
pub struct ProbeResults {
    results: Arc<Results>,
    changed: Arc<DirtySet<PodUid>>,
}

/// Builds an empty store.
pub fn probe_results() -> (ProbeResultsWriter, ProbeResults) {
    let results = Arc::new(Results::default());
    let changed = Arc::new(DirtySet::default());
    (
        ProbeResultsWriter { results: results.clone(), changed: changed.clone() },
        ProbeResults { results, changed },
    )
}

impl ProbeResultsWriter {
    /// Sets a result and returns whether it changed; a change marks the pod.
    pub fn set(
        &self,
        uid: &PodUid,
        container: &ContainerId,
        kind: ProbeKind,
        probe_result: ProbeResult,
    ) -> bool {
        let mut results = self.results.write();
        let slot = results.entry(container.clone()).or_default().slot(kind);
        let changed = *slot != Some(probe_result);
        *slot = Some(probe_result);
        drop(results);
        if changed {
            self.changed.mark(uid.clone());
        }
        changed
    }

    /// The current result of a probe.
    pub fn get(&self, container: &ContainerId, kind: ProbeKind) -> Option<ProbeResult> {
        self.results.read().get(container)?.get(kind)
    }

    /// Restores the results that an earlier kubelet stored; they hold until the probes run again. Returns the container
    /// instances with results.
    pub fn restore(&self, uid: &PodUid, record: &PodRecord) -> Vec<ContainerId> {
        let known = record.probe_results.keys();
        let containers: Vec<ContainerId> = known.map(|id| id.as_str().into()).collect();
        for (id, kind) in
            containers.iter().flat_map(|id| ProbeKind::ALL.iter().map(move |kind| (id, *kind)))
        {
            if let Some(probe_result) = record.probe_result(id, kind) {
                self.set(uid, id, kind, probe_result);
            }
        }
        containers
    }

    /// Removes the result of one kind of probe of a container instance.
    pub fn clear(&self, container: &ContainerId, kind: ProbeKind) {
        let mut results = self.results.write();
        if let Some(probe_results) = results.get_mut(container) {
            *probe_results.slot(kind) = None;
            if *probe_results == ContainerProbeResults::default() {
                results.remove(container);
            }
        }
    }
}

impl ProbeResults {
    /// The results of a container instance.
    pub fn get(&self, container: &ContainerId) -> ContainerProbeResults {
        self.results.read().get(container).copied().unwrap_or_default()
    }

    /// Waits for pods whose results changed and takes them. For the sync loop only.
    pub async fn changed(&self) -> std::collections::HashSet<PodUid> {
        self.changed.take().await
    }

    /// Number of container instances with results.
    pub fn count(&self) -> usize {
        self.results.read().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_changed_result_marks_the_pod() {
        let (writer, reader) = probe_results();
        let (uid, id) = (PodUid::from("u"), ContainerId::from("c"));
        assert!(writer.set(&uid, &id, ProbeKind::Liveness, ProbeResult::Success));
        assert_eq!(reader.changed().await.len(), 1);
        assert!(!writer.set(&uid, &id, ProbeKind::Liveness, ProbeResult::Success));
        assert!(reader.changed.take_now().is_empty());
        assert_eq!(reader.get(&id).liveness, Some(ProbeResult::Success));
    }

    #[test]
    fn a_container_without_results_leaves_no_entry() {
        let (writer, reader) = probe_results();
        let id = ContainerId::from("c");
        writer.set(&"u".into(), &id, ProbeKind::Startup, ProbeResult::Unknown);
        writer.clear(&id, ProbeKind::Startup);
        assert_eq!(reader.count(), 0);
    }
}
