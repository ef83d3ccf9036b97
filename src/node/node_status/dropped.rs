//! Detects parts of a status that the API server drops although it accepts the patch. Pure.

use crate::base::clock::Instant;
use serde_json::{Map, Value};
use std::time::Duration;

/// The part of a patch that was missing from the response: fields that the API server does not know, or that another
/// component resets at once.
#[derive(Clone, Debug)]
pub struct DroppedFields {
    parts: PatchParts,
    at: Instant,
}

/// A patch without timestamps, because the timestamps of dropped conditions differ each time.
#[derive(Clone, Debug, PartialEq)]
struct PatchParts {
    conditions: Option<Value>,
    rest: Value,
}

impl PatchParts {
    fn of(mut difference: Value) -> Self {
        let status = difference.get_mut("status").and_then(Value::as_object_mut);
        let conditions = status.and_then(|status| status.remove("conditions"));
        if difference.get("status").is_some_and(|it| it.as_object().is_some_and(Map::is_empty)) {
            difference.as_object_mut().map(|it| it.remove("status"));
        }
        Self { conditions: conditions.map(without_times), rest: without_times(difference) }
    }
}

impl DroppedFields {
    /// Records a difference that remained after a patch.
    pub fn new(difference: Value, at: Instant) -> Self {
        let parts = PatchParts::of(difference);
        Self { parts, at }
    }

    /// Whether to send a difference now. Dropped fields are not sent again until the next report; dropped conditions,
    /// which controllers act on, are sent again after `period`.
    pub fn permits(&self, difference: &Value, period: Duration, now: Instant) -> bool {
        let parts = PatchParts::of(difference.clone());
        let is_due = parts.conditions != self.parts.conditions || now >= self.at + period;
        parts.rest != self.parts.rest || (parts.conditions.is_some() && is_due)
    }
}

fn without_times(patch: Value) -> Value {
    match patch {
        Value::Object(members) => {
            let is_time = |name: &str| name == "lastTransitionTime" || name == "lastHeartbeatTime";
            let kept = members.into_iter().filter(|(name, _)| !is_time(name));
            kept.map(|(name, value)| (name, without_times(value))).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.into_iter().map(without_times).collect(),
        scalar => scalar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;
    use serde_json::json;

    #[test]
    fn fields_wait_for_the_next_report_and_conditions_for_no_longer_than_a_period() {
        let period = Duration::from_secs(10);
        let started_at = clock::instant();
        let ready = |status: &str, time: &str| json!([{"type": "Ready", "status": status, "lastHeartbeatTime": time}]);
        let (features, images) = (json!({"a": true}), json!([]));
        let dropped = json!({"status": {"features": features}});
        let altered = json!({"status": {"conditions": ready("True", "1")}});
        let both = json!({"status": {"features": features, "conditions": ready("True", "1")}});
        for (fields, difference, at_once, later) in [
            (&dropped, dropped.clone(), false, false),
            (&dropped, json!({"status": {"features": features, "images": images}}), true, true),
            (&dropped, both.clone(), true, true),
            (&dropped, altered.clone(), true, true),
            (&altered, json!({"status": {"conditions": ready("True", "2")}}), false, true),
            (&altered, json!({"status": {"conditions": ready("False", "2")}}), true, true),
            (&both, both.clone(), false, true),
            (&both, dropped.clone(), false, false),
        ] {
            let fields = DroppedFields::new(fields.clone(), started_at);
            let permits = |at| fields.permits(&difference, period, at);
            assert_eq!(permits(started_at), at_once, "{fields:?} {difference}");
            assert_eq!(permits(started_at + period), later, "{fields:?} {difference}");
        }
    }
}
