//! A container to look at: values that come from elsewhere are left where they are. Pure.

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource};

/// The container with a placeholder for each variable whose value comes from a Secret, a ConfigMap or
/// a file, and what is to be said about variables that have no name yet. So nothing of a Secret is
/// ever read, and what refers to such a variable shows the placeholder, too.
pub fn masked(container: &Container) -> (Container, Vec<String>) {
    let mut masked = container.clone();
    for variable in masked.env.iter_mut().flatten() {
        if let Some(from) = variable.value_from.as_ref().and_then(placeholder) {
            *variable = EnvVar {
                name: std::mem::take(&mut variable.name),
                value: Some(from),
                value_from: None,
            };
        }
    }
    let sources = masked.env_from.take().unwrap_or_default();
    let remark = |source: k8s_openapi::api::core::v1::EnvFromSource| {
        let prefix = source.prefix.unwrap_or_default();
        let secret = source.secret_ref.map(|from| ("secret", from.name));
        let config = source.config_map_ref.map(|from| ("configMap", from.name));
        let (kind, name) = secret.or(config)?;
        Some(format!("variables {prefix}* come from {kind} {name}"))
    };
    let remarks = sources.into_iter().filter_map(remark).collect();
    (masked, remarks)
}

fn placeholder(from: &EnvVarSource) -> Option<String> {
    if let Some(from) = &from.secret_key_ref {
        return Some(format!("<{} of secret {}>", from.key, from.name));
    }
    if let Some(from) = &from.config_map_key_ref {
        return Some(format!("<{} of configMap {}>", from.key, from.name));
    }
    let from = from.file_key_ref.as_ref()?;
    Some(format!(
        "<{} of file {} in {}>",
        from.key, from.path, from.volume_name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_from_elsewhere_are_placeholders_and_others_stay() {
        let container: Container = serde_json::from_value(json!({
            "name": "c",
            "env": [
                {"name": "PLAIN", "value": "1"},
                {"name": "FIELD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "CONFIG", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
                {"name": "FILE", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}},
            ],
            "envFrom": [
                {"prefix": "DB_", "secretRef": {"name": "db"}},
                {"configMapRef": {"name": "all"}},
            ],
        }))
        .unwrap();
        let (shown, remarks) = masked(&container);
        let values: Vec<_> = shown
            .env
            .iter()
            .flatten()
            .map(|v| v.value.as_deref())
            .collect();
        let expected = [
            Some("1"),
            None,
            Some("<k of secret s>"),
            Some("<k of configMap m>"),
            Some("<k of file p in v>"),
        ];
        assert_eq!(values, expected);
        assert!(shown.env.unwrap()[1].value_from.is_some());
        assert!(shown.env_from.is_none());
        let expected = [
            "variables DB_* come from secret db",
            "variables * come from configMap all",
        ];
        assert_eq!(remarks, expected);
    }
}
