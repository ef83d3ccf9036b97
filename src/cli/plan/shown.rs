//! Configurations of the runtime as JSON, in the form that `crictl` takes, and as lines. Pure.

use crate::{
    base::{go_quote, is_printable},
    cri::v1,
};
use serde::Serialize;
use serde_json::{Map, Value};

/// What is set of a message.
pub(super) fn json(message: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(message).unwrap_or_default();
    prune(&mut value);
    value
}

/// Messages that say something also when all their fields are 0.
const PROFILES: [&str; 3] = ["seccomp", "apparmor", "namespace_options"];

/// Drops what is not set; true when nothing is left.
fn prune(value: &mut Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !*set,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => {
            for item in items.iter_mut() {
                prune(item);
            }
            items.is_empty()
        }
        Value::Object(fields) => {
            // A number that is wrapped is set, also when it is 0.
            let wrapped = fields.len() == 1 && fields.get("value").is_some_and(Value::is_number);
            if !wrapped {
                fields.retain(|name, value| {
                    let given = value.is_object() && PROFILES.contains(&name.as_str());
                    !prune(value) || given
                });
            }
            fields.is_empty()
        }
    }
}

/// The lines of a value, with words for the numbers of enumerations.
pub(super) fn lines(value: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    match value {
        Value::Object(fields) => object(fields, 0, &mut lines),
        other => lines.push(scalar("", other)),
    }
    lines
}

fn object(fields: &Map<String, Value>, depth: usize, lines: &mut Vec<String>) {
    let indent = "  ".repeat(depth);
    for (name, value) in fields {
        match value {
            Value::Object(inner) if PROFILES.contains(&name.as_str()) => {
                let mut all = inner.clone();
                let kinds: &[&str] = match name.as_str() {
                    "namespace_options" => &["network", "pid", "ipc"],
                    _ => &["profile_type"],
                };
                for kind in kinds {
                    all.entry(*kind).or_insert(0.into());
                }
                lines.push(format!("{indent}{name}:"));
                object(&all, depth + 1, lines);
            }
            Value::Object(inner) if inner.len() == 1 && inner.contains_key("value") => {
                let inner = inner.get("value").unwrap_or(&Value::Null);
                lines.push(format!("{indent}{name}: {}", scalar(name, inner)));
            }
            Value::Object(inner) => {
                lines.push(format!("{indent}{name}:"));
                object(inner, depth + 1, lines);
            }
            Value::Array(items) => list(name, items, depth, lines),
            value => lines.push(format!("{indent}{name}: {}", scalar(name, value))),
        }
    }
}

fn list(name: &str, items: &[Value], depth: usize, lines: &mut Vec<String>) {
    let indent = "  ".repeat(depth);
    if items.iter().all(|item| !item.is_object()) {
        let items: Vec<_> = items.iter().map(|item| scalar(name, item)).collect();
        lines.push(format!("{indent}{name}: [{}]", items.join(", ")));
        return;
    }
    lines.push(format!("{indent}{name}:"));
    for item in items {
        let inline = match item {
            Value::Object(fields) if name == "envs" => {
                let text = |key| fields.get(key).and_then(Value::as_str).unwrap_or_default();
                format!("{}={}", text("key"), text("value"))
            }
            Value::Object(fields) => {
                let field =
                    |(name, value): (&String, &Value)| format!("{name}: {}", scalar(name, value));
                fields.iter().map(field).collect::<Vec<_>>().join(", ")
            }
            other => scalar(name, other),
        };
        lines.push(format!(
            "{indent}  - {}",
            crate::cli::table::one_line(&inline, 400)
        ));
    }
}

/// A value on one line.
fn scalar(name: &str, value: &Value) -> String {
    let number = value.as_i64().and_then(|number| i32::try_from(number).ok());
    match (word(name, number), value) {
        (Some(word), _) => word.to_string(),
        (None, Value::String(text)) => match text.chars().all(is_printable) {
            true => text.clone(),
            false => go_quote(text),
        },
        (None, value) => value.to_string(),
    }
}

/// What the number of an enumeration means.
fn word(name: &str, number: Option<i32>) -> Option<&'static str> {
    let number = number?;
    Some(match name {
        "network" | "pid" | "ipc" | "mode" => {
            v1::NamespaceMode::try_from(number).ok()?.as_str_name()
        }
        "propagation" => v1::MountPropagation::try_from(number).ok()?.as_str_name(),
        "protocol" => v1::Protocol::try_from(number).ok()?.as_str_name(),
        "profile_type" => v1::security_profile::ProfileType::try_from(number)
            .ok()?
            .as_str_name(),
        "supplemental_groups_policy" => v1::SupplementalGroupsPolicy::try_from(number)
            .ok()?
            .as_str_name(),
        "stop_signal" => v1::Signal::try_from(number).ok()?.as_str_name(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container() -> v1::ContainerConfig {
        v1::ContainerConfig {
            image: Some(v1::ImageSpec {
                image: "busybox".into(),
                ..v1::ImageSpec::default()
            }),
            command: vec!["sh".into(), "-c".into(), "a\nb".into()],
            envs: vec![v1::KeyValue {
                key: "A".into(),
                value: b"1".to_vec(),
            }],
            mounts: vec![v1::Mount {
                container_path: "/data".into(),
                host_path: "/srv".into(),
                readonly: true,
                propagation: v1::MountPropagation::PropagationHostToContainer.into(),
                ..v1::Mount::default()
            }],
            linux: Some(v1::LinuxContainerConfig {
                security_context: Some(v1::LinuxContainerSecurityContext {
                    run_as_user: Some(v1::Int64Value { value: 0 }),
                    seccomp: Some(v1::SecurityProfile::default()),
                    namespace_options: Some(v1::NamespaceOption {
                        pid: v1::NamespaceMode::Container.into(),
                        ..v1::NamespaceOption::default()
                    }),
                    ..v1::LinuxContainerSecurityContext::default()
                }),
                ..v1::LinuxContainerConfig::default()
            }),
            ..v1::ContainerConfig::default()
        }
    }

    #[test]
    fn json_has_what_is_set_under_the_names_that_crictl_knows() {
        let expected = serde_json::json!({
            "image": {"image": "busybox"},
            "command": ["sh", "-c", "a\nb"],
            "envs": [{"key": "A", "value": "1"}],
            "mounts": [{"container_path": "/data", "host_path": "/srv", "readonly": true, "propagation": 1}],
            "linux": {"security_context": {
                "run_as_user": {"value": 0},
                "seccomp": {},
                "namespace_options": {"pid": 1},
            }},
        });
        assert_eq!(json(&container()), expected);
    }

    #[test]
    fn lines_have_words_for_numbers() {
        let lines = lines(&json(&container()));
        let expected = [
            "command: [sh, -c, \"a\\nb\"]",
            "envs:",
            "  - A=1",
            "image:",
            "  image: busybox",
            "linux:",
            "  security_context:",
            "    namespace_options:",
            "      ipc: POD",
            "      network: POD",
            "      pid: CONTAINER",
            "    run_as_user: 0",
            "    seccomp:",
            "      profile_type: RuntimeDefault",
            "mounts:",
            "  - container_path: /data, host_path: /srv, propagation: PROPAGATION_HOST_TO_CONTAINER, \
             readonly: true",
        ];
        assert_eq!(lines, expected);
    }
}
