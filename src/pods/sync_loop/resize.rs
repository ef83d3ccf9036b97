//! Pods that ask for other amounts of CPU and memory than they were allocated.
//!
//! Until a resize is accepted, all of the kubelet goes by the pod with the amounts that it was allocated; what the pod
//! asks for is kept here. A resize that finds no room is tried again whenever something may have become free.

use super::{
    SyncLoop,
    admission::{Refusal, fits_critical, fits_with},
    waiting::WAITS_FOR_ROOM,
};
use crate::{
    model::{Pod, PodExt, PodUid, Quantity, reasons::event},
    pods::{pod_sync::syncer::UpdateKind, pod_workers::UpdateOptions},
    resources::{
        QosClass,
        allocation::{
            Allocations, InProgress, Pending, PendingReason, PodAmounts, ResizeConditions,
            ResizeMetrics, event_message,
        },
        pod_qos,
        requests::{self, CPU, MEMORY},
    },
    state::events::ObjectRef,
};
use k8s_openapi::api::core::v1::Container;
use std::{cmp::Reverse, collections::HashMap, sync::Arc};
use tokio::time::Instant;

/// What was changed before resizes are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    PodUpdated,
    PodsChanged,
    PodResized,
    PodTerminated,
    NodeChanged,
}

impl Trigger {
    /// As in metrics.
    fn as_str(self) -> &'static str {
        match self {
            Self::PodUpdated => "pod_updated",
            Self::PodsChanged => "pods_removed",
            Self::PodResized => "pod_resized",
            Self::PodTerminated => "pod_terminated",
            Self::NodeChanged => "periodic_retry",
        }
    }
}

/// What this node does not resize.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResizeRules {
    /// The CPU manager has the static policy.
    pub static_cpus: bool,
    /// The memory manager has the static policy.
    pub static_memory: bool,
    /// Burstable containers may swap by their memory requests.
    pub limited_swap: bool,
}

/// Pods that ask for other amounts than they were allocated.
pub struct Resizes {
    wanted: HashMap<PodUid, Wanted>,
    rules: ResizeRules,
    metrics: ResizeMetrics,
}

struct Wanted {
    pod: Arc<Pod>,
    since: Instant,
}

/// Why a resize is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refused {
    reason: PendingReason,
    message: String,
    /// Of an infeasible one, for metrics.
    detail: &'static str,
}

impl Resizes {
    /// No resizes yet.
    pub fn new(rules: ResizeRules, metrics: ResizeMetrics) -> Self {
        Self {
            wanted: HashMap::new(),
            rules,
            metrics,
        }
    }

    /// Some pod waits for a resize.
    pub(super) fn is_some_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Those that may be accepted, in the order in which they are tried: first what needs no more than before, then
    /// by priority, by class, and by how long they wait.
    fn in_order(&self, allocated: impl Fn(&PodUid) -> Option<Arc<Pod>>) -> Vec<Arc<Pod>> {
        let mut wanted: Vec<_> = self.wanted.iter().collect();
        wanted.sort_by_key(|(uid, wanted)| {
            let grows = allocated(uid).is_none_or(|before| needs_more(&before, &wanted.pod));
            let priority = wanted.pod.spec().and_then(|spec| spec.priority);
            let guaranteed = matches!(pod_qos(&wanted.pod), Ok(QosClass::Guaranteed));
            let priority = Reverse(priority.unwrap_or_default());
            (grows, priority, !guaranteed, wanted.since)
        });
        wanted.into_iter().map(|(_, one)| one.pod.clone()).collect()
    }
}

/// Whether a pod asks for more of something that is requested.
fn needs_more(before: &Pod, now: &Pod) -> bool {
    let total = |pod| requests::of_pod::<Quantity>(pod).unwrap_or_default();
    let (before, now) = (total(before), total(now));
    let amount = |of: &requests::Resources, name| of.request(name).unwrap_or_default();
    amount(&now, CPU).milli_value() > amount(&before, CPU).milli_value()
        || amount(&now, MEMORY).value() > amount(&before, MEMORY).value()
}

/// What cannot be resized on this node. Answers to upstream's `podResizesAdmitHandler`.
fn infeasible(before: &Pod, pod: &Pod, rules: ResizeRules) -> Option<Refused> {
    let refused = |message: String, detail| Refused {
        reason: PendingReason::Infeasible,
        message,
        detail,
    };
    let containers = || pod.init_containers().iter().chain(pod.containers());
    let changes = |resource: &'static str| {
        containers().filter(move |now| {
            let before = before.container(&now.name);
            before.is_some_and(|before| request(before, resource) != request(now, resource))
        })
    };
    let class = pod_qos(pod);
    if rules.limited_swap
        && matches!(class, Ok(QosClass::Burstable))
        && !pod.is_critical()
        && changes(MEMORY).any(|container| !restarts_for_memory(container))
    {
        let message = "In-place resize of containers with swap is not supported.";
        return Some(refused(message.to_owned(), "swap_limitation"));
    }
    if !matches!(class, Ok(QosClass::Guaranteed)) {
        return None;
    }
    let alongside = |manager: &str, policy: &str| {
        format!(
            "Resize is infeasible for Guaranteed Pods alongside {manager} Manager policy \"{policy}\""
        )
    };
    if rules.static_cpus && changes(CPU).next().is_some() {
        let detail = "guaranteed_pod_cpu_manager_static_policy";
        return Some(refused(alongside("CPU", "static"), detail));
    }
    if rules.static_memory && changes(MEMORY).next().is_some() {
        let detail = "guaranteed_pod_memory_manager_static_policy";
        return Some(refused(alongside("Memory", "Static"), detail));
    }
    None
}

fn request(container: &Container, resource: &str) -> Option<Quantity> {
    let amounts = requests::of_container::<Quantity>(container).ok()?;
    amounts.request(resource)
}

fn restarts_for_memory(container: &Container) -> bool {
    let mut policies = container.resize_policy.iter().flatten();
    policies
        .any(|policy| policy.resource_name == MEMORY && policy.restart_policy == "RestartContainer")
}

impl SyncLoop {
    /// The pod as this kubelet goes by it: with the amounts that it was allocated. What it asks for is noted.
    pub(super) fn with_allocation(&mut self, pod: Arc<Pod>) -> Arc<Pod> {
        if pod.is_static() {
            return pod;
        }
        let (uid, allocations) = (pod.uid(), self.allocations().clone());
        let known = self.manager.reader().get(&uid);
        if known.is_none() {
            let reported = pod
                .status
                .as_ref()
                .and_then(|status| status.conditions.as_deref());
            let reported = ResizeConditions::reported(reported.unwrap_or_default());
            allocations.change_conditions(&uid, |conditions| *conditions = reported);
        }
        let allocated = allocations.apply(&pod);
        let before = self.resizes.wanted.remove(&uid);
        let earlier = before.as_ref().map(|wanted| &wanted.pod).or(known.as_ref());
        if let Some(earlier) = earlier {
            let (earlier, now) = (PodAmounts::of(earlier), PodAmounts::of(&pod));
            self.resizes.metrics.requested(&earlier, &now);
        }
        if Arc::ptr_eq(&allocated, &pod) {
            allocations.change_conditions(&uid, |conditions| conditions.pending = None);
        } else {
            let since = before.map_or_else(Instant::now, |wanted| wanted.since);
            self.resizes.wanted.insert(uid, Wanted { pod, since });
        }
        allocated
    }

    /// Tries to accept the resizes that wait.
    pub(super) fn retry_resizes(&mut self, trigger: Trigger) {
        if self.resizes.wanted.is_empty() || self.sources.all_ready().is_none() {
            return;
        }
        let manager = self.manager.reader();
        let mut accepted = true;
        let mut trigger = trigger;
        // What shrinks may make room for another.
        while std::mem::take(&mut accepted) {
            for wanted in self.resizes.in_order(|uid| manager.get(uid)) {
                let uid = wanted.uid();
                let Some(before) = manager.get(&uid) else {
                    self.resizes.wanted.remove(&uid);
                    continue;
                };
                if self.is_ending(&before) || !self.workers.knows(&uid) {
                    continue;
                }
                match self.decide_resize(&before, &wanted) {
                    None => {}
                    Some(Ok(())) => {
                        self.accept_resize(&before, wanted, trigger);
                        accepted = true;
                    }
                    Some(Err(refused)) => self.refuse_resize(&before, &wanted, refused),
                }
            }
            trigger = Trigger::PodResized;
        }
    }

    /// `None` while the node is not known.
    fn decide_resize(&self, before: &Pod, wanted: &Pod) -> Option<Result<(), Refused>> {
        let object = self.admission.node.borrow().clone()?;
        if let Some(refused) = infeasible(before, wanted, self.resizes.rules) {
            return Some(Err(refused));
        }
        let others = self.admitted_but(&wanted.uid());
        let allocated = self.devices().allocated_beside(&wanted.uid());
        let allocated = allocated.unwrap_or_default();
        let fits = if wanted.is_critical() {
            let fits = fits_critical(wanted, &object, &others, &allocated);
            fits.map_err(|refusal| self.make_room(wanted, refusal))
        } else {
            fits_with(wanted, &object, &others, &allocated).map_err(|why| why.message)
        };
        Some(fits.map_err(|message| Refused {
            reason: PendingReason::Deferred,
            message,
            detail: "",
        }))
    }

    /// Stops the pods that make room for a critical one; what it waits for.
    fn make_room(&self, pod: &Pod, refusal: Refusal) -> String {
        match refusal {
            Refusal::Preempts { victims, resource } => {
                self.preempt(pod, victims, &resource);
                WAITS_FOR_ROOM.to_owned()
            }
            Refusal::NotYet { why, .. } => why,
            Refusal::Rejected(rejection) => rejection.message,
        }
    }

    fn accept_resize(&mut self, before: &Pod, pod: Arc<Pod>, trigger: Trigger) {
        let uid = pod.uid();
        self.resizes.wanted.remove(&uid);
        let generation = pod.metadata.generation;
        let allocations = self.allocations();
        allocations.resize(before, &pod);
        let was_deferred = allocations.change_conditions(&uid, |conditions| {
            conditions.in_progress = Some(InProgress {
                error: None,
                generation,
            });
            let pending = conditions.pending.take();
            pending.is_some_and(|pending| pending.reason == PendingReason::Deferred)
        });
        if was_deferred {
            self.resizes.metrics.accepted_late(trigger.as_str());
        }
        let text = event_message("Pod resize started", &pod, generation, "");
        let events = &self.pod_sync.events;
        events.normal(&ObjectRef::pod(&pod), event::RESIZE_STARTED, text);
        self.manager.set(pod.clone());
        self.publish(&pod);
        let update = UpdateOptions::sync(UpdateKind::Update, pod);
        self.workers.update_known_pod(update);
    }

    fn refuse_resize(&mut self, before: &Arc<Pod>, pod: &Arc<Pod>, refused: Refused) {
        let (uid, generation) = (pod.uid(), pod.metadata.generation);
        let pending = Pending {
            reason: refused.reason,
            message: refused.message,
            generation,
        };
        let is_new = |old: &Pending| (old.reason, old.generation) != (pending.reason, generation);
        let (is_new, changed) = self.allocations().change_conditions(&uid, |conditions| {
            let old = conditions.pending.replace(pending.clone());
            let is_new = old.as_ref().is_none_or(is_new);
            (is_new, old.as_ref() != Some(&pending))
        });
        if is_new {
            let what = format!("Pod resize {}", pending.reason.as_str());
            let text = event_message(&what, pod, generation, &pending.message);
            let reason = match pending.reason {
                PendingReason::Deferred => event::RESIZE_DEFERRED,
                PendingReason::Infeasible => event::RESIZE_INFEASIBLE,
            };
            let events = &self.pod_sync.events;
            events.warning(&ObjectRef::pod(pod), reason, text);
        }
        if pending.reason == PendingReason::Infeasible {
            self.resizes.metrics.infeasible(refused.detail);
            self.resizes.wanted.remove(&uid);
        }
        if changed {
            self.publish(before);
        }
    }

    fn allocations(&self) -> &Allocations {
        self.pod_sync.runtime.allocations()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(resources: &Value, more: &Value) -> Pod {
        let mut container = json!({"name": "c", "resources": resources});
        if let (Some(container), Some(more)) = (container.as_object_mut(), more.as_object()) {
            container.extend(more.clone());
        }
        serde_json::from_value(json!({"spec": {"containers": [container]}})).unwrap()
    }

    fn amounts(cpu: &str, memory: &str, memory_limit: &str) -> Value {
        json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory_limit}})
    }

    #[test]
    fn what_cannot_be_resized_here_is_infeasible() {
        let none = ResizeRules::default();
        let cpus = ResizeRules {
            static_cpus: true,
            ..none
        };
        let memory = ResizeRules {
            static_memory: true,
            ..none
        };
        let swap = ResizeRules {
            limited_swap: true,
            ..none
        };
        let restarts = json!({"resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]});
        let guaranteed = amounts("1", "1Gi", "1Gi");
        let burstable = amounts("1", "1Gi", "2Gi");
        let no = json!({});
        for (case, rules, before, now, more, wanted) in [
            (
                "anything",
                none,
                &guaranteed,
                amounts("2", "2Gi", "2Gi"),
                &no,
                "",
            ),
            (
                "CPUs",
                cpus,
                &guaranteed,
                amounts("2", "1Gi", "1Gi"),
                &no,
                "guaranteed_pod_cpu_manager_static_policy",
            ),
            (
                "memory beside CPUs",
                cpus,
                &guaranteed,
                amounts("1", "2Gi", "2Gi"),
                &no,
                "",
            ),
            (
                "CPUs of a burstable pod",
                cpus,
                &burstable,
                amounts("2", "1Gi", "2Gi"),
                &no,
                "",
            ),
            (
                "memory",
                memory,
                &guaranteed,
                amounts("1", "2Gi", "2Gi"),
                &no,
                "guaranteed_pod_memory_manager_static_policy",
            ),
            (
                "CPUs beside memory",
                memory,
                &guaranteed,
                amounts("2", "1Gi", "1Gi"),
                &no,
                "",
            ),
            (
                "what may swap",
                swap,
                &burstable,
                amounts("1", "2Gi", "3Gi"),
                &no,
                "swap_limitation",
            ),
            (
                "its limit alone",
                swap,
                &burstable,
                amounts("1", "1Gi", "3Gi"),
                &no,
                "",
            ),
            (
                "what restarts",
                swap,
                &burstable,
                amounts("1", "2Gi", "3Gi"),
                &restarts,
                "",
            ),
            (
                "a guaranteed pod does not swap",
                swap,
                &guaranteed,
                amounts("1", "2Gi", "2Gi"),
                &no,
                "",
            ),
        ] {
            let refused = infeasible(&pod(before, more), &pod(&now, more), rules);
            let detail = refused.as_ref().map_or("", |refused| refused.detail);
            assert_eq!(detail, wanted, "{case}");
        }
        let refused = infeasible(
            &pod(&guaranteed, &no),
            &pod(&amounts("2", "1Gi", "1Gi"), &no),
            cpus,
        );
        assert_eq!(
            refused.unwrap().message,
            "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""
        );
    }

    #[test]
    fn only_more_requests_need_room() {
        let before = pod(&amounts("1", "1Gi", "1Gi"), &json!({}));
        for (now, more) in [
            (amounts("1", "1Gi", "2Gi"), false),
            (amounts("500m", "1Gi", "1Gi"), false),
            (amounts("1001m", "1Gi", "1Gi"), true),
            (amounts("500m", "1025Mi", "2Gi"), true),
        ] {
            assert_eq!(needs_more(&before, &pod(&now, &json!({}))), more, "{now}");
        }
    }
}
