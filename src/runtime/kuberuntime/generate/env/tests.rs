use super::configmap_secret::{object_key, wanted_configmaps_and_secrets};
use super::*;
use crate::apiserver::configmap_secret::{ObjectData, ObjectError, ObjectKey, ObjectKind};
use crate::base::clock;
use crate::model::FieldRefError;
use crate::runtime::kuberuntime::fixtures::{node, pod, pod_with};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

fn made(pod: &Pod) -> anyhow::Result<Environment> {
    let wanted = wanted_configmaps_and_secrets(pod, &pod.containers()[0]);
    let nowhere = |key: ObjectKey| (key.clone(), Err(ObjectError::NoSource(key)));
    made_with(pod, wanted.into_iter().map(nowhere).collect())
}

fn made_with(pod: &Pod, objects: ConfigMapsAndSecrets) -> anyhow::Result<Environment> {
    made_beside(pod, objects, &Environment::new())
}

fn made_beside(
    pod: &Pod,
    objects: ConfigMapsAndSecrets,
    services: &Environment,
) -> anyhow::Result<Environment> {
    let file = |name: &str, content| {
        let place = ("shared".to_string(), name.to_string());
        let host_path = format!("/k/shared/{name}");
        (place, EnvFile { host_path, content })
    };
    let inputs = EnvInputs {
        pod_ips: &["10.1.0.5".into(), "fd00::5".into()],
        node: &node(),
        host_ips: &["192.0.2.1".into(), "2001:db8::1".into()],
        files: &EnvFiles::from([
            file("good", Ok(Some(b"A='1'\nEMPTY=''\n".to_vec()))),
            file("bad", Ok(Some(b"A='1'\nnonsense\n".to_vec()))),
            file("none", Ok(None)),
        ]),
        configmaps_and_secrets: &objects,
        services,
    };
    make_environment(pod, &pod.containers()[0], &inputs)
}

/// The node's objects: config map `m` and secret `s`; others are not found.
fn found(pod: &Pod) -> ConfigMapsAndSecrets {
    let entries = |entries: &[(&str, &[u8])]| -> ObjectData {
        let own =
            |(key, value): &(&str, &[u8])| (key.to_string(), bytes::Bytes::copy_from_slice(value));
        entries.iter().map(own).collect()
    };
    let look_up = |key: ObjectKey| {
        let object = match (key.kind, key.name.as_str()) {
            (ObjectKind::ConfigMap, "m") => {
                let object = json!({
                    "data": {"a": "1", "b.c": "2"},
                    "binaryData": {"bin": "/w==", "text": "aGVsbG8="},
                });
                let object: ConfigMap = serde_json::from_value(object).unwrap();
                Ok(object.into())
            }
            (ObjectKind::Secret, "s") => Ok(entries(&[("a", b"hush"), ("z", b"")])),
            (ObjectKind::Secret, "bin") => Ok(entries(&[("k", b"\xff")])),
            _ => Err(ObjectError::NotFound(key.clone())),
        };
        (key, object.map(std::sync::Arc::new))
    };
    let wanted = wanted_configmaps_and_secrets(pod, &pod.containers()[0]);
    wanted.into_iter().map(look_up).collect()
}

fn from_objects(container: Value) -> anyhow::Result<Environment> {
    let pod = pod_with(container);
    made_with(&pod, found(&pod))
}

fn env(list: Value) -> anyhow::Result<Environment> {
    let mut pod = pod_with(json!({
        "env": list,
        "resources": {"limits": {"cpu": "1500m"}, "requests": {"memory": "100Mi"}},
    }));
    pod.metadata.labels = Some([("app".into(), "web".into())].into());
    pod.metadata.annotations = Some([("a/b.c".into(), "note".into())].into());
    let spec = pod.spec.as_mut().unwrap();
    spec.node_name = Some("node-1".into());
    spec.service_account_name = Some("default".into());
    made(&pod)
}

fn pairs(environment: &Environment) -> Vec<(&str, &str)> {
    environment.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect()
}

#[test]
fn values_refer_to_what_is_above_and_the_last_definition_wins() {
    let made = env(json!([
        {"name": "A", "value": "1"},
        {"name": "EARLY", "value": "$(LATE)"},
        {"name": "B", "value": "$(A)-$$(A)-$(NONE)"},
        {"name": "LATE", "value": "x"},
        {"name": "A", "value": "$(A)2"},
        {"name": "E"},
        {"name": "C", "value": "$(A)"},
    ]))
    .unwrap();
    assert_eq!(
        pairs(&made),
        [
            ("A", "12"),
            ("EARLY", "$(LATE)"),
            ("B", "1-$(A)-$(NONE)"),
            ("LATE", "x"),
            ("E", ""),
            ("C", "12"),
        ]
    );
}

#[test]
fn fields_of_the_pod_are_found_by_path() {
    for (path, value) in [
        ("metadata.name", "web"),
        ("metadata.namespace", "shop"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['a/b.c']", "note"),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "default"),
        ("status.hostIP", "192.0.2.1"),
        ("status.hostIPs", "192.0.2.1,2001:db8::1"),
        ("status.podIP", "10.1.0.5"),
        ("status.podIPs", "10.1.0.5,fd00::5"),
    ] {
        let made = env(json!([{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]));
        assert_eq!(made.unwrap()[0].1, value, "{path}");
    }
    for path in
        ["spec.containers", "metadata.labels", "metadata.labels['x", "status.phase['x']", ""]
    {
        let made = env(json!([{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]));
        assert_eq!(made.unwrap_err().to_string(), format!("unsupported fieldPath: {path}"));
    }
}

#[test]
fn amounts_are_divided_and_default_to_the_node() {
    let value = |resource: &str, divisor: Value| {
        let from = json!({"resourceFieldRef": {"resource": resource, "divisor": divisor}});
        env(json!([{"name": "X", "valueFrom": from}])).map(|made| made[0].1.clone())
    };
    let null = Value::Null;
    for (resource, divisor, expected) in [
        ("limits.cpu", null.clone(), "2"),
        ("limits.cpu", json!("1m"), "1500"),
        ("limits.cpu", json!("0"), "2"),
        ("requests.memory", null.clone(), "104857600"),
        ("requests.memory", json!("1Mi"), "100"),
        ("requests.cpu", null.clone(), "0"),
        ("limits.memory", json!("1Gi"), "4"),
        ("limits.ephemeral-storage", json!("1Gi"), "10"),
        ("limits.hugepages-2Mi", null.clone(), "0"),
    ] {
        assert_eq!(value(resource, divisor).unwrap(), expected, "{resource}");
    }
    for resource in ["limits.gpu", "cpu", "usage.cpu", ""] {
        assert_eq!(
            value(resource, null.clone()).unwrap_err().to_string(),
            format!("unsupported container resource : {resource}")
        );
    }
    let error = value("limits.cpu", json!("x")).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(FieldRefError::Divisor(..))));
    let elsewhere = json!({"resourceFieldRef": {"resource": "limits.cpu", "containerName": "zz"}});
    assert_eq!(
        env(json!([{"name": "X", "valueFrom": elsewhere}])).unwrap_err().to_string(),
        "container zz not found"
    );
}

#[test]
fn a_limit_at_pod_level_comes_before_the_node() {
    let from = json!({"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}});
    let pod = pod(json!({
        "resources": {"limits": {"memory": "64Mi"}},
        "containers": [{"name": "c", "env": [{"name": "X", "valueFrom": from}]}],
    }));
    assert_eq!(made(&pod).unwrap()[0].1, "64");
}

#[test]
fn keys_of_files_are_variables() {
    let from = |volume: &str, path: &str, key: &str, optional: bool| {
        let file = json!({"volumeName": volume, "path": path, "key": key, "optional": optional});
        env(json!([
            {"name": "X", "valueFrom": {"fileKeyRef": file}},
            {"name": "Y", "value": "[$(X)]"},
        ]))
        .map(|made| format!("{:?}", pairs(&made)))
        .map_err(|error| crate::base::error_chain(error.as_ref()))
    };
    let set = Ok(r#"[("X", "1"), ("Y", "[1]")]"#.to_string());
    let unset = Ok(r#"[("Y", "[$(X)]")]"#.to_string());
    let error = |text: &str| Err(text.to_string());
    for (given, expected) in [
        (("shared", "good", "A", false), set.clone()),
        (("shared", "bad", "A", false), set),
        (("shared", "good", "B", true), unset.clone()),
        (("shared", "good", "EMPTY", true), unset.clone()),
        (("shared", "none", "A", true), unset),
        (
            ("shared", "good", "B", false),
            error(r#"environment variable key "B" not found in file "/k/shared/good""#),
        ),
        (
            ("shared", "none", "A", false),
            error(
                "couldn't parse env file: failed to open environment variable file: it does not exist",
            ),
        ),
        (
            ("shared", "bad", "B", true),
            error(
                "couldn't parse env file: invalid environment variable format at line 2: missing '='",
            ),
        ),
        (
            ("other", "good", "A", true),
            error(r#"cannot find the volume "other" referenced by FileKeyRef"#),
        ),
    ] {
        let (volume, path, key, optional) = given;
        assert_eq!(from(volume, path, key, optional), expected, "{given:?}");
    }
}

#[test]
fn what_needs_an_api_server_is_refused_as_upstream_does_without_one() {
    for (from, text) in [
        (
            json!({"configMapKeyRef": {"name": "m", "key": "k"}}),
            "couldn't get configMap shop/m, no kubeClient defined",
        ),
        (
            json!({"secretKeyRef": {"name": "s", "key": "k"}}),
            "couldn't get secret shop/s, no kubeClient defined",
        ),
    ] {
        let error = env(json!([{"name": "X", "valueFrom": from}])).unwrap_err();
        assert_eq!(error.to_string(), text);
    }
    let pod = pod_with(json!({"envFrom": [{"secretRef": {"name": "s"}}]}));
    let error = made(&pod).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(ObjectError::NoSource(_))));
}

#[test]
fn whole_objects_come_first_and_single_variables_may_refer_to_them() {
    let made = from_objects(json!({
        "envFrom": [
            {"configMapRef": {"name": "m"}},
            {"secretRef": {"name": "s"}, "prefix": "S_"},
            {"secretRef": {"name": "none", "optional": true}},
        ],
        "env": [
            {"name": "REF", "value": "$(a)/$(S_a)"},
            {"name": "a", "value": "own"},
            {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "b.c"}}},
            {"name": "PASS", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a"}}},
            {"name": "NO1", "valueFrom": {"secretKeyRef":
                {"name": "none", "key": "a", "optional": true}}},
            {"name": "NO2", "valueFrom": {"configMapKeyRef":
                {"name": "m", "key": "zz", "optional": true}}},
            {"name": "GIVEN", "value": "x", "valueFrom":
                {"secretKeyRef": {"name": "none", "key": "a"}}},
        ],
    }))
    .unwrap();
    assert_eq!(
        pairs(&made),
        [
            ("a", "own"),
            ("b.c", "2"),
            ("S_a", "hush"),
            ("S_z", ""),
            ("REF", "1/hush"),
            ("KEY", "2"),
            ("PASS", "hush"),
            ("GIVEN", "x"),
        ]
    );
}

#[test]
fn a_later_object_wins_over_an_earlier_one() {
    let made = from_objects(json!({"envFrom": [
        {"configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}}]}));
    assert_eq!(pairs(&made.unwrap())[0], ("a", "hush"));
}

#[test]
fn what_is_missing_is_named_in_upstreams_messages() {
    let single = |from: Value| json!({"env": [{"name": "X", "valueFrom": from}]});
    for (container, text) in [
        (
            single(json!({"secretKeyRef": {"name": "none", "key": "a"}})),
            "secret \"none\" not found",
        ),
        (
            single(json!({"configMapKeyRef": {"name": "none", "key": "a"}})),
            "configmap \"none\" not found",
        ),
        (
            single(json!({"configMapKeyRef": {"name": "m", "key": "zz"}})),
            "couldn't find key zz in ConfigMap shop/m",
        ),
        (
            single(json!({"secretKeyRef": {"name": "s", "key": "zz"}})),
            "couldn't find key zz in Secret shop/s",
        ),
        (
            single(json!({"configMapKeyRef": {"name": "m", "key": "bin"}})),
            "couldn't find key bin in ConfigMap shop/m",
        ),
        (
            single(json!({"configMapKeyRef": {"name": "m", "key": "text"}})),
            "couldn't find key text in ConfigMap shop/m",
        ),
        (json!({"envFrom": [{"configMapRef": {"name": "none"}}]}), "configmap \"none\" not found"),
        (
            json!({"envFrom": [{"secretRef": {"name": "bin"}}]}),
            "key k in secret \"bin\" is not UTF-8 text and cannot be a variable",
        ),
    ] {
        let error = from_objects(container).unwrap_err();
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn many_variables_do_not_take_long() {
    let many: ObjectData = (0..50_000).map(|n| (format!("k{n}"), bytes::Bytes::new())).collect();
    let pod = pod_with(json!({"envFrom": [{"configMapRef": {"name": "m"}}]}));
    let key = object_key(&pod, ObjectKind::ConfigMap, "m");
    let objects = [(key, Ok(std::sync::Arc::new(many)))].into();
    let begun = clock::instant();
    assert_eq!(made_with(&pod, objects).unwrap().len(), 50_000);
    assert!(clock::since(begun).as_secs() < 5, "{:?}", clock::since(begun));
}

#[test]
fn variables_of_services_may_be_referred_to_and_are_added_where_a_name_is_free() {
    let pod = pod_with(json!({"env": [
        {"name": "URL", "value": "http://$(WEB_SERVICE_HOST):$(WEB_SERVICE_PORT)"},
        {"name": "WEB_SERVICE_PORT", "value": "1"},
        {"name": "AFTER", "value": "$(WEB_SERVICE_PORT)"},
    ]}));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let services = vec![pair("WEB_SERVICE_HOST", "10.0.0.3"), pair("WEB_SERVICE_PORT", "80")];
    assert_eq!(
        made_beside(&pod, ConfigMapsAndSecrets::new(), &services).unwrap(),
        [
            pair("URL", "http://10.0.0.3:80"),
            pair("WEB_SERVICE_PORT", "1"),
            pair("AFTER", "1"),
            pair("WEB_SERVICE_HOST", "10.0.0.3"),
        ]
    );
}
