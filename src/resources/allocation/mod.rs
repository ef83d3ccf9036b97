//! Allocated and actuated CPU and memory of pods, for in-place resize.
//!
//! The spec of a pod may change its CPU and memory while the pod runs. The *allocated* amounts are those that were
//! admitted; [`Allocations::apply`] puts them into the spec for the rest of the kubelet. The *actuated* amounts are
//! those with which containers were last created or updated.
//!
//! * Owns: both, and their checkpoints in the kubelet's directory, which the Go kubelet reads and writes as well.
//! * Woken by: admission, accepted resizes, and containers that were started or updated.
//! * Publishes: pods with their allocated amounts; the resize conditions of a pod.
//! * Must never change allocated amounts on its own.
//! * Upstream: `pkg/kubelet/allocation` and the resize conditions of `status.Manager`.

mod amounts;
mod checkpoint;
mod conditions;
mod messages;
mod metrics;
#[cfg(test)]
mod tests;

use amounts::with_amounts;
pub use amounts::{ComputeAmounts, PodResourceInfo, same_amounts, with_higher_requests};
pub use conditions::{PendingReason, PendingResize, ResizeConditions, ResizeInProgress};
pub use messages::event_message;
pub use metrics::ResizeMetrics;

use super::checkpoint_file::{CheckpointFile, CheckpointWriter};
use crate::base::{error_chain, spawn_blocking};
use crate::model::{Pod, PodExt, PodUid};
use k8s_openapi::api::core::v1::Container;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The file of allocated amounts.
pub const ALLOCATED_FILE: &str = "allocated_pods_state";
/// The file of actuated amounts.
pub const ACTUATED_FILE: &str = "actuated_pods_state";

/// Delay of a write after a change: a checkpoint has all pods and is synced to disk, and while pods start one after
/// another, a write for each would take a fifth of the kubelet's CPU time. Changes that are not written when the kubelet
/// is killed are lost, except accepted resizes, which are written before they are carried out: a pod without an entry is
/// then assumed to be allocated the amounts in its spec.
const WRITE_DELAY: Duration = Duration::from_secs(1);
/// Delay after a failed write.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

type AmountsByPod = HashMap<PodUid, Arc<PodResourceInfo>>;

/// The allocations of all pods; cheap to clone. The default is kept in memory only.
#[derive(Clone, Default)]
pub struct Allocations(Arc<AllocationInner>);

#[derive(Default)]
struct AllocationInner {
    /// The checkpoints of allocated and of actuated amounts.
    files: Option<[CheckpointFile; 2]>,
    state: Mutex<AllocationState>,
    changed: Notify,
    completed: Notify,
}

#[derive(Default)]
struct AllocationState {
    allocated: AmountsByPod,
    actuated: AmountsByPod,
    conditions: HashMap<PodUid, ResizeConditions>,
    allocated_changes: Changes,
    actuated_changes: Changes,
    /// The number of the change of allocated amounts by the last accepted resize.
    resized: Option<u64>,
}

/// Counts the changes of a map that has a checkpoint.
#[derive(Clone, Copy, Default)]
struct Changes {
    number: u64,
    /// The number of changes that the checkpoint contains; `None` if this process has not written it.
    saved: Option<u64>,
}

/// Numbers of pods with resizes.
struct ResizeCounts {
    deferred: usize,
    infeasible: usize,
    in_progress: usize,
}

impl Allocations {
    /// Reads the checkpoints of an earlier kubelet, which may be the Go kubelet. Blocking.
    ///
    /// # Errors
    /// A checkpoint cannot be used; texts as upstream's. Without it, a deferred resize would be treated as accepted.
    pub fn read(directory: &Path) -> anyhow::Result<Self> {
        let files = [ALLOCATED_FILE, ACTUATED_FILE];
        let files = files.map(|name| CheckpointFile::new(directory.join(name)));
        let allocated = read(&files[0])?;
        let mut actuated = read(&files[1])?;
        for (uid, amounts) in &mut actuated {
            *amounts = deduplicated(&allocated, uid, std::mem::take(amounts));
        }
        let state = AllocationState { allocated, actuated, ..AllocationState::default() };
        Ok(Self(Arc::new(AllocationInner {
            files: Some(files),
            state: Mutex::new(state),
            ..AllocationInner::default()
        })))
    }

    /// The pod with its allocated amounts; the same object if its spec has them.
    pub fn apply(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let allocated = self.0.state.lock().allocated.get(&pod.uid()).cloned();
        let changed = allocated.and_then(|allocated| with_amounts(pod, &allocated));
        changed.map_or_else(|| pod.clone(), Arc::new)
    }

    /// Whether the allocated amounts of a pod are known.
    pub fn is_allocated(&self, uid: &PodUid) -> bool {
        self.0.state.lock().allocated.contains_key(uid)
    }

    /// Records the amounts in the pod's spec as allocated, after its admission.
    pub fn allocate(&self, pod: &Pod) {
        let amounts = PodResourceInfo::of(pod);
        let mut state = self.0.state.lock();
        let known = state.allocated.get(&pod.uid());
        if known.is_some_and(|known| **known == amounts) {
            return;
        }
        state.allocated.insert(pod.uid(), Arc::new(amounts));
        state.allocated_changes.number += 1;
        drop(state);
        self.0.changed.notify_one();
    }

    /// Allocates the amounts in the spec of `pod`. Containers without actuated amounts are assumed to have those of
    /// `before`.
    pub fn resize(&self, before: &Pod, pod: &Pod) {
        let uid = pod.uid();
        let mut state = self.0.state.lock();
        let actuated = Arc::make_mut(state.actuated.entry(uid.clone()).or_default());
        actuated.fill_missing_from(PodResourceInfo::of(before));
        state.allocated.insert(uid, Arc::new(PodResourceInfo::of(pod)));
        state.allocated_changes.number += 1;
        state.actuated_changes.number += 1;
        state.resized = Some(state.allocated_changes.number);
        drop(state);
        self.0.changed.notify_one();
    }

    /// The amounts that the running containers of a pod have, as far as this or an earlier kubelet recorded them: the
    /// actuated ones, or else the allocated ones.
    pub fn used(&self, uid: &PodUid) -> Option<Arc<PodResourceInfo>> {
        let state = self.0.state.lock();
        let used = state.actuated.get(uid).or(state.allocated.get(uid));
        used.cloned()
    }

    /// The actuated amounts of a pod.
    pub fn actuated(&self, uid: &PodUid) -> Option<Arc<PodResourceInfo>> {
        self.0.state.lock().actuated.get(uid).cloned()
    }

    /// The pod with the amounts that its running containers have; `None` if those are the allocated ones.
    pub fn actuated_pod(&self, pod: &Pod, is_running: impl Fn(&str) -> bool) -> Option<Pod> {
        let state = self.0.state.lock();
        let actuated = state.actuated.get(&pod.uid())?;
        let allocated = state.allocated.get(&pod.uid());
        if allocated.is_some_and(|allocated| Arc::ptr_eq(allocated, actuated)) {
            return None;
        }
        let mut amounts = PodResourceInfo::clone(actuated);
        drop(state);
        amounts.containers.retain(|name, _| is_running(name));
        amounts.fill_missing_from(PodResourceInfo::of(pod));
        with_amounts(pod, &amounts)
    }

    /// Records the amounts that a container of the pod was created or updated with. Returns whether it had others.
    pub fn set_actuated(&self, pod: &Pod, container: &Container) -> bool {
        let (name, amounts) = (&container.name, amounts::of_container(container));
        let mut had_others = false;
        self.change_actuated(&pod.uid(), |actuated| {
            let had_some = actuated.containers.contains_key(name);
            let changed = actuated.set(name, amounts);
            had_others = had_some && changed;
            changed
        });
        had_others
    }

    /// Adds the pod-level resources of the spec to records that have none: a kubelet that does not resize them does not
    /// record them. Only those that were in force under the kubelet before; otherwise they are a resize.
    pub fn adopt_pod_level(&self, pod: &Pod, reported: &ResizeConditions) {
        if reported.pending.is_some() || !amounts::is_spec_observed(pod) {
            return;
        }
        let (uid, level) = (pod.uid(), pod.spec().and_then(|spec| spec.resources.clone()));
        let mut state = self.0.state.lock();
        let state = &mut *state;
        let adopt = |records: &mut AmountsByPod, changes: &mut Changes| {
            let record = records.get_mut(&uid).filter(|record| record.pod.is_none());
            let changed =
                record.is_some_and(|record| Arc::make_mut(record).set_pod_level(level.clone()));
            changes.number += u64::from(changed);
            changed
        };
        let mut changed = adopt(&mut state.allocated, &mut state.allocated_changes);
        // Else the resize in progress may be the one that adds them.
        if reported.in_progress.is_none() {
            changed |= adopt(&mut state.actuated, &mut state.actuated_changes);
        }
        if changed {
            self.0.changed.notify_one();
        }
    }

    /// Records that the pod's cgroup was set to its pod-level resources.
    pub fn set_actuated_pod_level(&self, pod: &Pod) {
        let level = pod.spec().and_then(|spec| spec.resources.clone());
        if level.is_some() {
            self.change_actuated(&pod.uid(), |actuated| actuated.set_pod_level(level));
        }
    }

    fn change_actuated(&self, uid: &PodUid, change: impl FnOnce(&mut PodResourceInfo) -> bool) {
        let mut state = self.0.state.lock();
        let known = state.actuated.get(uid);
        let mut actuated =
            known.map_or_else(PodResourceInfo::default, |known| PodResourceInfo::clone(known));
        if !change(&mut actuated) {
            return;
        }
        let actuated = deduplicated(&state.allocated, uid, Arc::new(actuated));
        state.actuated.insert(uid.clone(), actuated);
        state.actuated_changes.number += 1;
        drop(state);
        self.0.changed.notify_one();
    }

    /// The resize conditions of a pod.
    pub fn conditions(&self, uid: &PodUid) -> ResizeConditions {
        let state = self.0.state.lock();
        state.conditions.get(uid).cloned().unwrap_or_default()
    }

    /// Changes the resize conditions of a pod.
    pub fn change_conditions<T>(
        &self,
        uid: &PodUid,
        change: impl FnOnce(&mut ResizeConditions) -> T,
    ) -> T {
        let mut state = self.0.state.lock();
        let conditions = state.conditions.entry(uid.clone()).or_default();
        let done = change(conditions);
        if *conditions == ResizeConditions::default() {
            state.conditions.remove(uid);
        }
        done
    }

    /// Records that a resize was completed: pending resizes of other pods may fit now.
    pub fn set_completed(&self) {
        self.0.completed.notify_one();
    }

    /// Waits until a resize was completed. Cancel safe, for one waiter.
    pub async fn completed(&self) {
        self.0.completed.notified().await;
    }

    /// Numbers of pods with resizes, by their state.
    fn count(&self) -> ResizeCounts {
        let state = self.0.state.lock();
        let pending = |reason| {
            let with = state.conditions.values();
            let with = with.filter_map(|conditions| conditions.pending.as_ref());
            with.filter(|pending| pending.reason == reason).count()
        };
        let in_progress = state.conditions.values();
        let in_progress = in_progress.filter(|conditions| conditions.in_progress.is_some());
        ResizeCounts {
            deferred: pending(PendingReason::Deferred),
            infeasible: pending(PendingReason::Infeasible),
            in_progress: in_progress.count(),
        }
    }

    /// Removes a pod that is gone.
    pub fn remove(&self, uid: &PodUid) {
        let mut state = self.0.state.lock();
        state.conditions.remove(uid);
        let allocated = state.allocated.remove(uid).is_some();
        let actuated = state.actuated.remove(uid).is_some();
        state.allocated_changes.number += u64::from(allocated);
        state.actuated_changes.number += u64::from(actuated);
        drop(state);
        if allocated || actuated {
            self.0.changed.notify_one();
        }
    }

    /// Removes the pods for which `keep` returns false, such as pods of an earlier kubelet.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        let state = self.0.state.lock();
        let known = state.allocated.keys().chain(state.actuated.keys());
        let gone: Vec<_> = known.filter(|uid| !keep(uid)).cloned().collect();
        drop(state);
        for uid in gone {
            self.remove(&uid);
        }
    }

    /// Writes the checkpoints after changes.
    ///
    /// # Errors
    /// Never fails.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let work = async {
            loop {
                self.0.changed.notified().await;
                tokio::time::sleep(WRITE_DELAY).await;
                while !self.flush().await {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        };
        shutdown.run_until_cancelled(work).await;
        Ok(())
    }

    /// Writes the checkpoints if an accepted resize is not in them. Call it before a resize is carried out: the next
    /// kubelet would otherwise decide about it again, and the containers could keep amounts that it does not count. A
    /// failed write is logged and delays nothing: on a full disk, containers have to be started as well.
    pub async fn save_resizes(&self) {
        let is_saved = {
            let state = self.0.state.lock();
            state.resized <= state.allocated_changes.saved
        };
        if !is_saved {
            self.flush().await;
        }
    }

    /// Writes the checkpoints that changed; false if a write failed, which is logged. Allocated amounts are written only
    /// when the actuated ones are: a later kubelet that knew the new amounts of a resize, but not the old ones, would
    /// take it as carried out.
    pub async fn flush(&self) -> bool {
        let Some([allocated, actuated]) = &self.0.files else {
            return true;
        };
        let mut allocated = allocated.writer().await;
        let mut actuated = actuated.writer().await;
        let inner = self.0.clone();
        let write = move || inner.save(&mut allocated, &mut actuated);
        spawn_blocking(write).await.unwrap_or_else(|err| {
            tracing::error!(%err, "Failed to save pod resource information checkpoint");
            false
        })
    }
}

impl AllocationInner {
    /// Writes the checkpoints whose map changed; false on an error, which is logged. Takes the amounts of both at one time,
    /// and itself, so that an older state never replaces a newer one. Blocking.
    fn save(&self, allocated: &mut CheckpointWriter, actuated: &mut CheckpointWriter) -> bool {
        let state = self.state.lock();
        let changed_allocated = state.allocated_changes.unsaved();
        let changed_allocated = changed_allocated.map(|number| (number, state.allocated.clone()));
        let changed_actuated = state.actuated_changes.unsaved();
        let changed_actuated =
            changed_actuated.map(|number| (number, state.actuated_with_pod_limits()));
        drop(state);
        if let Some((number, amounts)) = changed_actuated {
            if !write_checkpoint(actuated, &amounts) {
                return false;
            }
            self.state.lock().actuated_changes.saved = Some(number);
        }
        if let Some((number, amounts)) = changed_allocated {
            if !write_checkpoint(allocated, &amounts) {
                return false;
            }
            self.state.lock().allocated_changes.saved = Some(number);
        }
        true
    }
}

impl Changes {
    /// The number of changes, if the checkpoint does not contain all of them.
    fn unsaved(self) -> Option<u64> {
        (self.saved != Some(self.number)).then_some(self.number)
    }
}

impl AllocationState {
    /// The actuated amounts as upstream writes them: the limits of containers with those of their pod.
    fn actuated_with_pod_limits(&self) -> AmountsByPod {
        let actuated = self.actuated.iter().map(|(uid, actuated)| {
            let actuated = match actuated.pod {
                Some(_) => Arc::new(PodResourceInfo::clone(actuated).with_pod_limits()),
                None => actuated.clone(),
            };
            (uid.clone(), actuated)
        });
        actuated.collect()
    }
}

/// The actuated amounts of a pod: the same object as the allocated ones if they are equal, as they are for most pods.
fn deduplicated(
    allocated: &AmountsByPod,
    uid: &PodUid,
    actuated: Arc<PodResourceInfo>,
) -> Arc<PodResourceInfo> {
    let allocated = allocated.get(uid);
    let same = allocated.filter(|allocated| **allocated == actuated);
    same.cloned().unwrap_or(actuated)
}

/// False on an error, which is logged. Blocking.
fn write_checkpoint(file: &mut CheckpointWriter, amounts: &AmountsByPod) -> bool {
    let encoded = checkpoint::encode(amounts).map_err(|error| error_chain(&error));
    let written = encoded.and_then(|bytes| file.write(bytes));
    if let Err(err) = &written {
        tracing::error!(
            err,
            file = %file.path().display(),
            "Failed to save pod resource information checkpoint"
        );
    }
    written.is_ok()
}

fn read(file: &CheckpointFile) -> anyhow::Result<AmountsByPod> {
    let path = file.path();
    let known = file.read(checkpoint::decode);
    let known = known.map_err(|error| {
        anyhow::anyhow!(
            "could not restore state from checkpoint: {error}, please drain this node and delete pod resource information checkpoint file {path:?} before restarting Kubelet"
        )
    })?;
    Ok(known.unwrap_or_default())
}
