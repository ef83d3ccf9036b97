//! What a pod may ask of its sandbox and of the kernel: profiles, parameters, ids, signals, files.

use super::*;

fn own(context: Value) -> Value {
    container(&json!({"securityContext": context}))
}

#[test]
fn profiles_are_checked_with_upstreams_texts() {
    let seccomp = |profile: Value| own(json!({"seccompProfile": profile}));
    let app_armor = |profile: Value| own(json!({"appArmorProfile": profile}));
    let path = "spec.containers[0].securityContext";
    check(&[
        (seccomp(json!({"type": "Localhost", "localhostProfile": "a/b.json"})), ""),
        (
            seccomp(json!({"type": ""})),
            &format!(
                "{path}.seccompProfile.type: Required value: type is required when seccompProfile is set"
            ),
        ),
        (
            seccomp(json!({"type": "Custom"})),
            &format!(
                "{path}.seccompProfile.type: Unsupported value: \"Custom\": supported values: \"Localhost\", \"RuntimeDefault\", \"Unconfined\""
            ),
        ),
        (
            seccomp(json!({"type": "Localhost"})),
            &format!(
                "{path}.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost"
            ),
        ),
        (
            seccomp(json!({"type": "Localhost", "localhostProfile": "/a"})),
            &format!(
                "{path}.seccompProfile.localhostProfile: Invalid value: \"/a\": must be a relative path"
            ),
        ),
        (
            seccomp(json!({"type": "Localhost", "localhostProfile": "a/../../b"})),
            &format!(
                "{path}.seccompProfile.localhostProfile: Invalid value: \"a/../../b\": must not contain '..'"
            ),
        ),
        (
            seccomp(json!({"type": "Unconfined", "localhostProfile": "a"})),
            &format!(
                "{path}.seccompProfile.localhostProfile: Invalid value: \"a\": can only be set when seccomp type is Localhost"
            ),
        ),
        (app_armor(json!({"type": "Localhost", "localhostProfile": "a"})), ""),
        (
            app_armor(json!({"type": "Localhost", "localhostProfile": ""})),
            &format!(
                "{path}.appArmorProfile.localhostProfile: Required value: must be set when AppArmor type is Localhost"
            ),
        ),
        (
            app_armor(json!({"type": "Localhost", "localhostProfile": " a"})),
            &format!(
                "{path}.appArmorProfile.localhostProfile: Invalid value: \" a\": must not be padded with whitespace"
            ),
        ),
        (
            app_armor(json!({"type": "Localhost", "localhostProfile": "a".repeat(4096)})),
            &format!(
                "{path}.appArmorProfile.localhostProfile: Too long: may not be more than 4095 bytes"
            ),
        ),
        (
            app_armor(json!({"type": ""})),
            &format!(
                "{path}.appArmorProfile.type: Required value: type is required when appArmorProfile is set"
            ),
        ),
    ]);
}

#[test]
fn the_former_apparmor_annotation_must_agree_with_the_fields() {
    let validated = |profile: Value, annotation: &str, at_pod: bool| {
        let patch = if at_pod {
            json!({"securityContext": {"appArmorProfile": profile}})
        } else {
            own(json!({"appArmorProfile": profile}))
        };
        let mut pod = pod(&patch);
        let key = "container.apparmor.security.beta.kubernetes.io/c".to_string();
        pod.metadata.annotations = Some([(key, annotation.to_string())].into());
        lines(&validate_pod(&pod)).join("; ")
    };
    let path = "spec.containers[0].securityContext.appArmorProfile";
    let local = json!({"type": "Localhost", "localhostProfile": "mine"});
    for at_pod in [false, true] {
        assert_eq!(validated(json!({"type": "RuntimeDefault"}), "runtime/default", at_pod), "");
        assert_eq!(validated(json!({"type": "Unconfined"}), "unconfined", at_pod), "");
        assert_eq!(validated(local.clone(), "localhost/mine", at_pod), "");
        assert_eq!(
            validated(json!({"type": "Unconfined"}), "runtime/default", at_pod),
            format!("{path}.type: Forbidden: apparmor type in annotation and field must match")
        );
        assert_eq!(
            validated(local.clone(), "localhost/other", at_pod),
            format!(
                "{path}.localhostProfile: Forbidden: apparmor profile in annotation and field must match"
            )
        );
    }
}

#[test]
fn kernel_parameters_are_checked_by_name_and_by_namespace() {
    let with = |more: Value, names: &[&str]| {
        let sysctls: Vec<Value> =
            names.iter().map(|name| json!({"name": name, "value": "1"})).collect();
        let mut spec = json!({"securityContext": {"sysctls": sysctls}});
        merge(&mut spec, &more);
        spec
    };
    let path = "spec.securityContext.sysctls[0].name";
    let none = json!({});
    check(&[
        (with(none.clone(), &["net.ipv4.conf.eth0/1.x", "kernel/sem"]), ""),
        (with(none.clone(), &[""]), &format!("{path}: Required value")),
        (
            with(none.clone(), &["a..b"]),
            &format!(
                "{path}: Invalid value: \"a..b\": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
            ),
        ),
        (
            with(none, &["net.a", "net/a"]),
            "spec.securityContext.sysctls[1].name: Duplicate value: \"net/a\"",
        ),
        (
            with(json!({"hostNetwork": true}), &["net/core/somaxconn"]),
            &format!(
                "{path}: Invalid value: \"net/core/somaxconn\": may not be specified when 'hostNetwork' is true"
            ),
        ),
        (with(json!({"hostNetwork": true}), &["kernel.sem"]), ""),
        (
            with(json!({"hostIPC": true}), &["kernel.shm_rmid_forced"]),
            &format!(
                "{path}: Invalid value: \"kernel.shm_rmid_forced\": may not be specified when 'hostIPC' is true"
            ),
        ),
        (
            with(json!({"hostIPC": true}), &["fs.mqueue.msg_max"]),
            &format!(
                "{path}: Invalid value: \"fs.mqueue.msg_max\": may not be specified when 'hostIPC' is true"
            ),
        ),
    ]);
}

#[test]
fn a_pod_with_ids_of_its_own_shares_nothing_of_the_node() {
    check(&[
        (json!({"hostUsers": false}), ""),
        (
            json!({"hostUsers": false, "hostNetwork": true}),
            "spec.hostNetwork: Forbidden: when `hostUsers` is false",
        ),
        (
            json!({"hostUsers": false, "hostIPC": true}),
            "spec.hostIPC: Forbidden: when `hostUsers` is false",
        ),
        (
            own(json!({"procMount": "Unmasked"})),
            "spec.containers[0].securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`",
        ),
    ]);
    let mut unmasked = own(json!({"procMount": "Unmasked"}));
    merge(&mut unmasked, &json!({"hostUsers": false}));
    assert_eq!(errors(&unmasked), [""; 0]);
}

#[test]
fn stop_signals_are_those_of_the_pods_operating_system() {
    let signal = |name: &str, os: Value| {
        let mut spec = container(&json!({"lifecycle": {"stopSignal": name}}));
        merge(&mut spec, &os);
        spec
    };
    let linux = || json!({"os": {"name": "linux"}});
    let windows = || json!({"os": {"name": "windows"}});
    let path = "spec.containers[0].lifecycle.stopSignal";
    check(&[
        (signal("SIGUSR1", linux()), ""),
        (signal("SIGRTMIN+3", linux()), ""),
        (
            signal("SIGUSR1", json!({})),
            &format!("{path}: Forbidden: may not be set for containers with empty `spec.os.name`"),
        ),
        (
            signal("USR1", linux()),
            &format!(
                "{path}: Unsupported value: \"USR1\": supported values: \"SIGABRT\", \"SIGALRM\""
            ),
        ),
        (
            signal("SIGUSR1", windows()),
            &format!(
                "{path}: Unsupported value: \"SIGUSR1\": supported values: \"SIGKILL\", \"SIGTERM\""
            ),
        ),
    ]);
}

#[test]
fn variables_from_files_name_a_key_of_a_file_in_an_empty_dir() {
    let from = |file: Value| {
        let variable = json!({"name": "A", "valueFrom": {"fileKeyRef": file}});
        let mut spec = container(&json!({"env": [variable]}));
        let volumes = json!({"volumes": [
            {"name": "v", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/x"}},
        ]});
        merge(&mut spec, &volumes);
        spec
    };
    let path = "spec.containers[0].env[0].valueFrom.fileKeyRef";
    check(&[
        (from(json!({"key": "K", "path": "a/b", "volumeName": "v"})), ""),
        (
            from(json!({"key": "", "path": "a", "volumeName": "v"})),
            &format!("{path}.key: Required value"),
        ),
        (
            from(json!({"key": "a=b", "path": "a", "volumeName": "v"})),
            &format!("{path}.key: Invalid value: \"a=b\""),
        ),
        (
            from(json!({"key": "K", "path": "", "volumeName": "v"})),
            &format!("{path}.path: Required value"),
        ),
        (
            from(json!({"key": "K", "path": "../a", "volumeName": "v"})),
            &format!("{path}.path: Invalid value: \"../a\": must not contain '..'"),
        ),
        (
            from(json!({"key": "K", "path": "a", "volumeName": "w"})),
            &format!("{path}.volumeName: Not found: \"w\""),
        ),
        (
            from(json!({"key": "K", "path": "a", "volumeName": "h"})),
            &format!(
                "{path}.volumeName: Invalid value: \"h\": referenced volume must be of type emptyDir"
            ),
        ),
    ]);
    let pod = pod(&from(json!({"key": "K", "path": "a", "volumeName": "v"})));
    let spec = pod.spec.unwrap();
    let from = spec.containers[0].env.as_ref().unwrap()[0].value_from.as_ref();
    assert_eq!(from.unwrap().file_key_ref.as_ref().unwrap().optional, Some(false));
}

#[test]
fn images_that_are_volumes_have_a_reference_and_a_pull_policy() {
    let volume = |source: Value| json!({"volumes": [{"name": "v", "image": source}]});
    check(&[
        (volume(json!({"reference": "data:1"})), ""),
        (volume(json!({})), "spec.volumes[0].image.reference: Required value"),
        (
            volume(json!({"reference": "data:1", "pullPolicy": "Sometimes"})),
            "spec.volumes[0].image.pullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
    ]);
    let policy = |reference: &str| {
        let pod = pod(&volume(json!({"reference": reference})));
        let image = pod.spec.unwrap().volumes.unwrap().remove(0).image.unwrap();
        image.pull_policy.unwrap()
    };
    assert_eq!(policy("data"), "Always");
    assert_eq!(policy("data:latest"), "Always");
    assert_eq!(policy("data:1"), "IfNotPresent");
}
