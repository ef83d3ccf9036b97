//! Which resizes this node can never carry out, and which need more free resources. Pure.

use crate::model::{Pod, PodExt, Quantity};
use crate::resources::allocation::PendingReason;
use crate::resources::cm::resource_config::NodeAmounts;
use crate::resources::requests::{self, CPU, MEMORY};
use crate::resources::{QosClass, may_swap, pod_qos};
use k8s_openapi::api::core::v1::Container;

/// What this node does not resize.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResizeRules {
    /// The CPU manager has the static policy.
    pub static_cpus: bool,
    /// The memory manager has the static policy.
    pub static_memory: bool,
    /// Burstable containers may swap by their memory requests.
    pub limited_swap: bool,
    /// Node capacity minus the reserved resources; eviction thresholds are not subtracted.
    pub allocatable: NodeAmounts,
}

/// Why a resize is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResizeRejection {
    pub(super) reason: PendingReason,
    pub(super) message: String,
    /// Of an infeasible one, for metrics.
    pub(super) detail: &'static str,
}

/// Whether a pod requests more of some resource.
pub(super) fn needs_more(before: &Pod, now: &Pod) -> bool {
    let total = |pod| requests::of_pod::<Quantity>(pod).unwrap_or_default();
    let (before, now) = (total(before), total(now));
    let amount = |of: &requests::Resources, name| of.request(name).unwrap_or_default();
    amount(&now, CPU).milli_value() > amount(&before, CPU).milli_value()
        || amount(&now, MEMORY).value() > amount(&before, MEMORY).value()
}

/// What cannot be resized on this node. Upstream: `podResizesAdmitHandler`.
pub(super) fn infeasible(before: &Pod, pod: &Pod, rules: &ResizeRules) -> Option<ResizeRejection> {
    let rejection = |message: String, detail| ResizeRejection {
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
    let swaps = |pod: &Pod, name: &str| {
        let requests = pod.container(name).map(requests::of_container::<Quantity>);
        requests.is_some_and(|requests| {
            requests.and_then(|requests| may_swap(pod, &requests)).unwrap_or(false)
        })
    };
    let resizes_swapping = |container: &Container| {
        !restarts_for_memory(container)
            && (swaps(before, &container.name) || swaps(pod, &container.name))
    };
    if rules.limited_swap && changes(MEMORY).any(resizes_swapping) {
        let message = "In-place resize of containers with swap is not supported.";
        return Some(rejection(message.to_owned(), "swap_limitation"));
    }
    let guaranteed = matches!(class, Ok(QosClass::Guaranteed));
    let alongside = |manager: &str, policy: &str| {
        format!(
            "Resize is infeasible for Guaranteed Pods alongside {manager} Manager policy \"{policy}\""
        )
    };
    if guaranteed && rules.static_cpus && changes(CPU).next().is_some() {
        let detail = "guaranteed_pod_cpu_manager_static_policy";
        return Some(rejection(alongside("CPU", "static"), detail));
    }
    if guaranteed && rules.static_memory && changes(MEMORY).next().is_some() {
        let detail = "guaranteed_pod_memory_manager_static_policy";
        return Some(rejection(alongside("Memory", "Static"), detail));
    }
    let requests = requests::of_pod_and_overhead::<Quantity>(pod).unwrap_or_default();
    let requested = |name| requests.request(name).unwrap_or_default();
    let allocatable = &rules.allocatable;
    let amounts = [
        (MEMORY, requested(MEMORY).value(), allocatable.memory),
        (CPU, requested(CPU).milli_value(), allocatable.milli_cpu),
    ];
    let too_much = amounts.into_iter().find_map(|(name, requested, capacity)| {
        let capacity = capacity.filter(|capacity| requested > *capacity)?;
        Some(format!(
            "Node didn't have enough capacity: {name}, requested: {requested}, capacity: {capacity}"
        ))
    });
    too_much.map(|message| rejection(message, "insufficient_node_allocatable"))
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
        let cpus = ResizeRules { static_cpus: true, ..none.clone() };
        let memory = ResizeRules { static_memory: true, ..none.clone() };
        let swap = ResizeRules { limited_swap: true, ..none.clone() };
        let restarts = json!({"resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]});
        let guaranteed = amounts("1", "1Gi", "1Gi");
        let burstable = amounts("1", "1Gi", "2Gi");
        let no = json!({});
        for (case, rules, before, now, more, wanted) in [
            ("anything", &none, &guaranteed, amounts("2", "2Gi", "2Gi"), &no, ""),
            (
                "CPUs",
                &cpus,
                &guaranteed,
                amounts("2", "1Gi", "1Gi"),
                &no,
                "guaranteed_pod_cpu_manager_static_policy",
            ),
            ("memory beside CPUs", &cpus, &guaranteed, amounts("1", "2Gi", "2Gi"), &no, ""),
            ("CPUs of a burstable pod", &cpus, &burstable, amounts("2", "1Gi", "2Gi"), &no, ""),
            (
                "memory",
                &memory,
                &guaranteed,
                amounts("1", "2Gi", "2Gi"),
                &no,
                "guaranteed_pod_memory_manager_static_policy",
            ),
            ("CPUs beside memory", &memory, &guaranteed, amounts("2", "1Gi", "1Gi"), &no, ""),
            (
                "what may swap",
                &swap,
                &burstable,
                amounts("1", "2Gi", "3Gi"),
                &no,
                "swap_limitation",
            ),
            (
                "what may not swap, before or after",
                &swap,
                &json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}),
                json!({"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}),
                &no,
                "",
            ),
            (
                "what may swap from now on",
                &swap,
                &json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}),
                json!({"requests": {"cpu": "1", "memory": "500Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}}),
                &no,
                "swap_limitation",
            ),
            ("its limit alone", &swap, &burstable, amounts("1", "1Gi", "3Gi"), &no, ""),
            ("what restarts", &swap, &burstable, amounts("1", "2Gi", "3Gi"), &restarts, ""),
            (
                "a guaranteed pod does not swap",
                &swap,
                &guaranteed,
                amounts("1", "2Gi", "2Gi"),
                &no,
                "",
            ),
        ] {
            let rejection = infeasible(&pod(before, more), &pod(&now, more), rules);
            let detail = rejection.as_ref().map_or("", |rejection| rejection.detail);
            assert_eq!(detail, wanted, "{case}");
        }
        let rejection =
            infeasible(&pod(&guaranteed, &no), &pod(&amounts("2", "1Gi", "1Gi"), &no), &cpus);
        assert_eq!(
            rejection.unwrap().message,
            "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""
        );
    }

    #[test]
    fn a_resize_beyond_what_the_node_has_for_pods_is_infeasible() {
        let rules = ResizeRules {
            allocatable: NodeAmounts { milli_cpu: Some(4000), memory: Some(4 << 30), pids: None },
            ..ResizeRules::default()
        };
        let no = json!({});
        let before = pod(&amounts("1", "1Gi", "2Gi"), &no);
        for (now, wanted) in [
            (amounts("4", "4Gi", "8Gi"), None),
            (amounts("4001m", "1Gi", "1Gi"), Some("cpu, requested: 4001, capacity: 4000")),
            (
                amounts("1", "4097Mi", "5Gi"),
                Some("memory, requested: 4296015872, capacity: 4294967296"),
            ),
            (
                amounts("5", "5Gi", "5Gi"),
                Some("memory, requested: 5368709120, capacity: 4294967296"),
            ),
        ] {
            let rejection = infeasible(&before, &pod(&now, &no), &rules);
            let wanted = wanted.map(|text| ResizeRejection {
                reason: PendingReason::Infeasible,
                message: format!("Node didn't have enough capacity: {text}"),
                detail: "insufficient_node_allocatable",
            });
            assert_eq!(rejection, wanted, "{now}");
        }
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
