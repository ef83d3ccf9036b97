//! Volumes whose files come from objects or from the pod, and variables from objects.

use super::*;

fn with(volume: Value) -> Value {
    let mut volume = volume;
    volume["name"] = "v".into();
    json!({"volumes": [volume]})
}

#[test]
fn volumes_of_files_are_validated_by_the_apis_rules() {
    let mode = "must be a number between 0 and 0777 (octal), both inclusive";
    let config_map = |item: Value| with(json!({"configMap": {"name": "m", "items": [item]}}));
    let downward = |item: Value| with(json!({"downwardAPI": {"items": [item]}}));
    let name = json!({"fieldPath": "metadata.name"});
    let at = "spec.volumes[0]";
    for (patch, expected) in [
        (with(json!({"configMap": {}})), "configMap.name: Required value".to_string()),
        (with(json!({"secret": {}})), "secret.secretName: Required value".into()),
        (
            with(json!({"secret": {"secretName": "s", "defaultMode": 0o1000}})),
            format!("secret.defaultMode: Invalid value: 512: {mode}"),
        ),
        (
            with(json!({"projected": {"defaultMode": -1}})),
            format!("projected.defaultMode: Invalid value: -1: {mode}"),
        ),
        (
            config_map(json!({"key": "k", "path": "p", "mode": 0o1777})),
            format!("configMap.items[0].mode: Invalid value: 1023: {mode}"),
        ),
        (config_map(json!({"path": "p"})), "configMap.items[0].key: Required value".into()),
        (config_map(json!({"key": "k"})), "configMap.items[0].path: Required value".into()),
        (
            config_map(json!({"key": "k", "path": "/p"})),
            "configMap.items[0].path: Invalid value: \"/p\": must be a relative path".into(),
        ),
        (
            config_map(json!({"key": "k", "path": "a/../p"})),
            "configMap.items[0].path: Invalid value: \"a/../p\": must not contain '..'".into(),
        ),
        (
            config_map(json!({"key": "k", "path": "..p"})),
            "configMap.items[0].path: Invalid value: \"..p\": must not start with '..'".into(),
        ),
        (
            downward(json!({"path": "p"})),
            "downwardAPI.items[0]: Required value: one of fieldRef and resourceFieldRef is required".into(),
        ),
        (
            downward(json!({"fieldRef": name})),
            "downwardAPI.items[0].path: Required value".into(),
        ),
        (
            downward(json!({"path": "p", "fieldRef": {"fieldPath": "status.podIP"}})),
            "downwardAPI.items[0].fieldRef.fieldPath: Unsupported value: \"status.podIP\": supported values: \"metadata.annotations\", \"metadata.labels\", \"metadata.name\", \"metadata.namespace\", \"metadata.uid\"".into(),
        ),
        (
            downward(json!({"path": "p", "resourceFieldRef": {"resource": "limits.cpu"}})),
            "downwardAPI.items[0].resourceFieldRef.containerName: Required value".into(),
        ),
        (
            with(json!({"projected": {"sources": [
                {"configMap": {"name": "m", "items": [{"key": "k", "path": "p"}]}},
                {"downwardAPI": {"items": [{"path": "p", "fieldRef": name}]}},
            ]}})),
            "projected: Invalid value: \"p\": conflicting duplicate paths".into(),
        ),
        (
            with(json!({"projected": {"sources": [{"configMap": {"name": "m"}, "secret": {"name": "s"}}]}})),
            "projected.sources[0]: Forbidden: may not specify more than 1 volume type".into(),
        ),
        (
            with(json!({"projected": {"sources": [{"secret": {}}]}})),
            "projected.sources[0].secret.name: Required value".into(),
        ),
    ] {
        assert_eq!(errors(&patch), [format!("{at}.{expected}")]);
    }
    let both = json!({"path": "p", "fieldRef": name,
        "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}});
    assert_eq!(errors(&downward(both)).len(), 1);
    for good in [
        with(json!({"configMap": {"name": "m", "optional": true, "defaultMode": 0}})),
        with(json!({"projected": {}})),
        with(json!({"projected": {"sources": [{}]}})),
        downward(json!({"path": "a/b", "mode": 0o777,
            "fieldRef": {"fieldPath": "metadata.labels['a/b']"}})),
        downward(json!({"path": "a", "fieldRef": {"fieldPath": "metadata.annotations"}})),
        downward(json!({"path": "a", "resourceFieldRef":
            {"containerName": "c", "resource": "limits.hugepages-2Mi"}})),
    ] {
        assert_eq!(errors(&good), [""; 0], "{good}");
    }
}

#[test]
fn variables_from_objects_name_them() {
    let from = |from: Value| container(&json!({"env": [{"name": "A", "valueFrom": from}]}));
    let at = "spec.containers[0]";
    for (patch, expected) in [
        (
            from(json!({"secretKeyRef": {"key": "k"}})),
            "env[0].valueFrom.secretKeyRef.name: Required value",
        ),
        (
            from(json!({"configMapKeyRef": {"name": "m"}})),
            "env[0].valueFrom.configMapKeyRef.key: Required value",
        ),
        (
            container(&json!({"envFrom": [{"secretRef": {}}]})),
            "envFrom[0].secretRef.name: Required value",
        ),
    ] {
        assert_eq!(errors(&patch), [format!("{at}.{expected}")]);
    }
    let bad = errors(&from(json!({"configMapKeyRef": {"name": "m", "key": "a/b"}})));
    assert!(bad[0].starts_with(&format!(
        "{at}.env[0].valueFrom.configMapKeyRef.key: Invalid value: \"a/b\""
    )));
}
