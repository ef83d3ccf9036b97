//! Which pods are preempted for a critical one. Pure.
//!
//! As few guaranteed pods as possible, then as few burstable ones, then as few best-effort ones; within a class, those
//! that leave the least of the shortage. Upstream: `pkg/kubelet/preemption`.

use crate::model::{Pod, PodExt, Quantity};
use crate::resources::{QosClass, pod_qos, requests};
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// The missing amount of a resource: millicores of CPU, whole units of everything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    pub(super) resource: String,
    pub(super) amount: i64,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(res: {}, q: {}), ", self.resource, self.amount)
    }
}

/// The pods to preempt so that nothing is missing.
///
/// # Errors
/// Preempting every preemptable pod would not free enough; the text is upstream's.
pub(super) fn victims(
    pod: &Pod,
    others: &[Arc<Pod>],
    missing: &[Shortage],
) -> Result<Vec<Arc<Pod>>, String> {
    let preemptable = others.iter().filter(|other| is_preemptable(pod, other));
    let preemptable: Vec<_> = preemptable.cloned().collect();
    let left = without(missing, &preemptable);
    if !left.is_empty() {
        return Err(not_enough(&left));
    }
    let of = |class: QosClass| -> Vec<Arc<Pod>> {
        let of_class = preemptable.iter().filter(|pod| pod_qos(pod) == Ok(class));
        of_class.cloned().collect()
    };
    let (best_effort, burstable) = (of(QosClass::BestEffort), of(QosClass::Burstable));
    let after = [&best_effort[..], &burstable[..]].concat();
    let guaranteed =
        pods_to_preempt_by_distance(of(QosClass::Guaranteed), without(missing, &after))?;
    let after = [&best_effort[..], &guaranteed[..]].concat();
    let burstable = pods_to_preempt_by_distance(burstable, without(missing, &after))?;
    let after = [&burstable[..], &guaranteed[..]].concat();
    let best_effort = pods_to_preempt_by_distance(best_effort, without(missing, &after))?;
    Ok([best_effort, burstable, guaranteed].concat())
}

/// Whether `other` may be stopped for `pod`.
pub(super) fn is_preemptable(pod: &Pod, other: &Pod) -> bool {
    let priority = |pod: &Pod| pod.spec().and_then(|spec| spec.priority);
    let before = || priority(pod).zip(priority(other));
    pod.is_critical() && !other.is_critical() || before().is_some_and(|(one, other)| one > other)
}

/// Chooses pods until nothing is missing, each time the one that leaves the least of the shortage.
fn pods_to_preempt_by_distance(
    mut pods: Vec<Arc<Pod>>,
    mut missing: Vec<Shortage>,
) -> Result<Vec<Arc<Pod>>, String> {
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let by_distance = |(_, one): &(usize, &Arc<Pod>), (_, other): &(usize, &Arc<Pod>)| {
            let distances = distance(one, &missing).total_cmp(&distance(other, &missing));
            distances.then_with(|| by_size(one, other))
        };
        let best = pods.iter().enumerate().min_by(by_distance);
        let Some(best) = best.map(|(index, _)| index) else {
            return Err(not_enough(&missing));
        };
        let pod = pods.swap_remove(best);
        missing = without(&missing, std::slice::from_ref(&pod));
        chosen.push(pod);
    }
    Ok(chosen)
}

/// The part of the shortage that a pod leaves, squared and summed over the resources (upstream's `distance`).
fn distance(pod: &Pod, missing: &[Shortage]) -> f64 {
    let parts = missing.iter().map(|shortage| {
        let left = shortage.amount.saturating_sub(request(pod, &shortage.resource));
        (left.max(0) as f64 / shortage.amount as f64).powi(2)
    });
    parts.sum()
}

fn by_size(one: &Pod, other: &Pod) -> Ordering {
    let compare = |resource| request(one, resource).cmp(&request(other, resource));
    compare(requests::MEMORY).then_with(|| compare(requests::CPU))
}

/// The shortage that is left after these pods have ended.
fn without(missing: &[Shortage], pods: &[Arc<Pod>]) -> Vec<Shortage> {
    let left = missing.iter().map(|shortage| {
        let freed = pods.iter().map(|pod| request(pod, &shortage.resource));
        let freed = freed.fold(0_i64, i64::saturating_add);
        Shortage {
            resource: shortage.resource.clone(),
            amount: shortage.amount.saturating_sub(freed),
        }
    });
    left.filter(|shortage| shortage.amount > 0).collect()
}

/// A pod's request of a resource; of the resource `pods`, each pod uses one.
fn request(pod: &Pod, resource: &str) -> i64 {
    if resource == "pods" {
        return 1;
    }
    let Ok(resources) = requests::of_pod_and_overhead::<Quantity>(pod) else {
        return 0;
    };
    amount(resource, resources.request(resource).unwrap_or_default())
}

/// Millicores of CPU, and whole units of everything else.
pub(super) fn amount(resource: &str, quantity: Quantity) -> i64 {
    if resource == requests::CPU { quantity.milli_value() } else { quantity.value() }
}

fn not_enough(missing: &[Shortage]) -> String {
    let list: String = missing.iter().map(ToString::to_string).collect();
    format!(
        "preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [{list}]"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, priority: i32, requests: &str, limits: bool) -> Arc<Pod> {
        let mut resources = json!({});
        if let Some((cpu, memory)) = requests.split_once(' ') {
            let amounts = json!({"cpu": cpu, "memory": memory});
            resources["requests"] = amounts.clone();
            if limits {
                resources["limits"] = amounts;
            }
        }
        let pod = json!({
            "metadata": {"name": name, "annotations": {"kubernetes.io/config.source": "api"}},
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": resources}]},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn names(chosen: Result<Vec<Arc<Pod>>, String>) -> String {
        match chosen {
            Ok(pods) => pods.iter().map(|pod| pod.name()).collect::<Vec<_>>().join(" "),
            Err(error) => error,
        }
    }

    #[test]
    fn lesser_classes_go_first_and_as_few_pods_as_possible() {
        let critical = pod("critical", 2_000_000_000, "1 1Gi", true);
        let best_effort = pod("best-effort", 0, "", false);
        let burstable = pod("burstable", 0, "100m 100Mi", false);
        let large = pod("large-burstable", 0, "300m 300Mi", false);
        let guaranteed = pod("guaranteed", 0, "100m 100Mi", true);
        let large_guaranteed = pod("large-guaranteed", 0, "500m 500Mi", true);
        let other_critical = pod("other-critical", 2_000_000_000, "1 1Gi", true);
        let all =
            [&best_effort, &burstable, &large, &guaranteed, &large_guaranteed, &other_critical]
                .map(Arc::clone);
        let missing = |cpu: i64, memory: i64, pods: i64| {
            let all = [("cpu", cpu), ("memory", memory << 20), ("pods", pods)];
            let some = all.into_iter().filter(|(_, amount)| *amount > 0);
            some.map(|(resource, amount)| Shortage { resource: resource.into(), amount })
                .collect::<Vec<_>>()
        };
        for (case, others, missing, wanted) in [
            ("a place", &all[..], missing(0, 0, 1), "best-effort"),
            ("two places", &all[..], missing(0, 0, 2), "best-effort burstable"),
            ("little", &all[..], missing(100, 50, 0), "burstable"),
            ("more", &all[..], missing(200, 0, 0), "large-burstable"),
            ("all burstable pods", &all[..], missing(400, 0, 0), "large-burstable burstable"),
            (
                "a guaranteed one as well",
                &all[..],
                missing(500, 0, 0),
                "large-burstable burstable guaranteed",
            ),
            (
                "and the largest instead",
                &all[..],
                missing(850, 0, 0),
                "large-burstable burstable large-guaranteed",
            ),
        ] {
            assert_eq!(names(victims(&critical, others, &missing)), wanted, "{case}");
        }
        let error = names(victims(&critical, &all, &missing(2000, 0, 0)));
        let wanted = "preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 1000), ]";
        assert_eq!(error, wanted);
    }

    #[test]
    fn only_pods_of_lesser_priority_make_room() {
        let missing = [Shortage { resource: "cpu".into(), amount: 100 }];
        let others =
            [pod("low", 5, "100m 1Mi", false), pod("critical", 2_000_000_001, "100m 1Mi", false)];
        for (priority, wanted) in [(10, "low"), (5, ""), (4, ""), (2_000_000_000, "low")] {
            let chosen = names(victims(&pod("p", priority, "", false), &others, &missing));
            let chosen = if chosen.starts_with("preemption: ") { "" } else { chosen.as_str() };
            assert_eq!(chosen, wanted, "{priority}");
        }
    }
}
