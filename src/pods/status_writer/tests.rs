//! Tables of what is sent, every history of it, and the requests themselves.

mod driver;
mod merging;
mod properties;
mod restored;

use super::*;
use crate::model::{fixture, keys};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus, PodCondition,
    PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

fn pod(source: &str) -> Pod {
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a"}]});
    let mut pod =
        fixture::annotated(fixture::pod("default/web/u", spec), [(keys::CONFIG_SOURCE, source)]);
    pod.metadata.resource_version = Some("1".into());
    Pod { status: Some(phase("Pending")), ..pod }
}

fn phase(phase: &str) -> PodStatus {
    PodStatus { phase: Some(phase.into()), ..PodStatus::default() }
}

fn condition(kind: &str, status: &str) -> PodCondition {
    PodCondition { type_: kind.into(), status: status.into(), ..PodCondition::default() }
}

fn epoch() -> Time {
    Time(jiff::Timestamp::UNIX_EPOCH)
}

fn container(exit_code: Option<i32>) -> ContainerStatus {
    let state = match exit_code {
        Some(exit_code) => ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code,
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        },
        None => ContainerState {
            running: Some(ContainerStateRunning::default()),
            ..ContainerState::default()
        },
    };
    ContainerStatus { name: "a".into(), state: Some(state), ..ContainerStatus::default() }
}

/// What the API server does with a patch of a status.
fn apply(status: &mut Value, patch: &Value) {
    let (Value::Object(status), Value::Object(patch)) = (status, patch) else {
        panic!("a status and its patch are maps");
    };
    for (name, new) in patch {
        let key = match name.as_str() {
            "conditions" => "type",
            "podIPs" | "hostIPs" => "ip",
            _ => "",
        };
        match new {
            Value::Null => {
                status.remove(name);
            }
            Value::Array(items) if !key.is_empty() => {
                let list = status.entry(name).or_insert_with(|| json!([]));
                apply_list(list.as_array_mut().unwrap(), items, key);
            }
            Value::Object(map) if status.contains_key(name) => {
                assert_eq!(map["$patch"], "replace", "{name}");
                let mut map = map.clone();
                map.remove("$patch");
                status.insert(name.clone(), Value::Object(map));
            }
            new => {
                assert!(!new.to_string().contains("$patch"), "{name}: {new}");
                status.insert(name.clone(), new.clone());
            }
        }
    }
}

fn apply_list(list: &mut Vec<Value>, items: &[Value], key: &str) {
    for item in items {
        if item.as_object().unwrap().len() == 1 && item["$patch"] == "replace" {
            list.clear();
            continue;
        }
        let at = list.iter().position(|known| known[key] == item[key]);
        if item["$patch"] == "delete" {
            // Deleting what is not there is no error.
            at.map(|at| list.remove(at));
            continue;
        }
        let at = at.unwrap_or_else(|| {
            list.push(json!({}));
            list.len() - 1
        });
        apply(&mut list[at], item);
    }
}

fn patched(status: &PodStatus, patch: &Value) -> PodStatus {
    let mut value = serde_json::to_value(status).unwrap();
    apply(&mut value, patch);
    serde_json::from_value(value).unwrap()
}
