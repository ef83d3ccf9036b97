mod containers;
mod pod;
mod refusals;
mod sandboxing;
mod sources;

use super::*;
use crate::model::validation::{
    FieldError, LocalConfigMapsAndSecrets, set_pod_defaults, unsupported_fields,
    validate_static_pod_references,
};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// A pod with one good container, changed by a JSON merge patch over its spec.
fn pod(patch: &Value) -> Pod {
    let mut spec = json!({"containers": [{"name": "c", "image": "i:1"}]});
    merge(&mut spec, patch);
    let mut pod = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec
    }))
    .unwrap();
    set_pod_defaults(&mut pod);
    pod
}

fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}

/// A patch that adds fields to the one container.
fn container(fields: &Value) -> Value {
    let mut container = json!({"name": "c", "image": "i:1"});
    merge(&mut container, fields);
    json!({"containers": [container]})
}

fn lines(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn errors(patch: &Value) -> Vec<String> {
    lines(&validate_pod(&pod(patch)))
}

/// Each case: a patch and the start of the only error it makes; "" for none.
fn check(cases: &[(Value, &str)]) {
    for (patch, expected) in cases {
        let errors = errors(patch);
        if expected.is_empty() {
            assert!(errors.is_empty(), "{patch}\n{errors:#?}")
        } else {
            assert!(
                errors.len() == 1 && errors[0].starts_with(expected),
                "{patch}\nwanted {expected}\n{errors:#?}"
            )
        }
    }
}
