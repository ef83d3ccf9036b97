//! Admission under node pressure (upstream: the eviction manager's `Admit`). Pure.

use super::Rejection;
use crate::model::reasons::event;
use crate::model::{Pod, PodExt};
use crate::resources::{QosClass, pod_qos};
use crate::state::node_pressure::NodePressure;

const MEMORY_TAINT: &str = "node.kubernetes.io/memory-pressure";

/// Admits critical pods; if MemoryPressure is the only condition, also pods that are not BestEffort or tolerate its
/// taint.
pub(super) fn admit(pod: &Pod, pressure: NodePressure) -> Result<(), Rejection> {
    if pressure == NodePressure::default() || pod.is_critical() {
        return Ok(());
    }
    let only_memory = NodePressure { memory: true, ..NodePressure::default() };
    if pressure == only_memory {
        let best_effort = pod_qos(pod).is_ok_and(|qos| qos == QosClass::BestEffort);
        if !best_effort || tolerates_memory_pressure(pod) {
            return Ok(());
        }
    }
    let conditions = pressure.conditions().join(" ");
    let message = format!("The node had condition: [{conditions}]. ");
    Err(Rejection::new(event::EVICTED, message))
}

fn tolerates_memory_pressure(pod: &Pod) -> bool {
    let spec = pod.spec();
    let tolerations = spec.and_then(|spec| spec.tolerations.as_deref());
    tolerations.unwrap_or_default().iter().any(|toleration| {
        let key = toleration.key.as_deref().unwrap_or("");
        let effect = toleration.effect.as_deref().unwrap_or("");
        let exists = toleration.operator.as_deref() == Some("Exists");
        let value = toleration.value.as_deref().unwrap_or("");
        (effect.is_empty() || effect == "NoSchedule")
            && ((key == MEMORY_TAINT && (exists || value.is_empty())) || (key.is_empty() && exists))
    })
}
