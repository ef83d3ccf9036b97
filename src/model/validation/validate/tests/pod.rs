//! The pod around its containers.

use super::*;

#[test]
fn a_good_pod_has_no_errors() {
    check(&[(json!({}), "")]);
}

#[test]
fn metadata_is_checked() {
    for (meta, expected) in [
        (json!({}), "metadata.name: Required value"),
        (json!({"name": "A"}), "metadata.name: Invalid value: \"A\": "),
        (json!({"name": "a.b-c"}), ""),
        (json!({"name": "a", "namespace": "a.b"}), "metadata.namespace: Invalid value: \"a.b\""),
        (json!({"name": "a", "uid": "../../x"}), "metadata.uid: Invalid value: \"../../x\""),
        (json!({"name": "a", "uid": "0f-1"}), ""),
        (json!({"name": "a", "labels": {"a b": "x"}}), "metadata.labels: Invalid value: \"a b\""),
        (
            json!({"name": "a", "labels": {"a": "x y"}}),
            "metadata.labels[a]: Invalid value: \"x y\"",
        ),
        (json!({"name": "a", "annotations": {"a/b/c": ""}}), "metadata.annotations: Invalid value"),
        (json!({"name": "a", "annotations": {"A.b/c": "any thing"}}), ""),
        (
            json!({"name": "a", "annotations": {"a": "x".repeat(262_145)}}),
            "metadata.annotations: Too long: may not be more than 262144 bytes",
        ),
        (
            json!({"name": "a", "annotations": {"container.apparmor.security.beta.kubernetes.io/c": "localhost/mine"}}),
            "",
        ),
        (
            json!({"name": "a", "annotations": {"container.apparmor.security.beta.kubernetes.io/c": "localhost/"}}),
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: Invalid value: \"localhost/\": invalid AppArmor",
        ),
        (
            json!({"name": "a", "annotations": {"container.apparmor.security.beta.kubernetes.io/c": "strict"}}),
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: Invalid value: \"strict\": invalid AppArmor",
        ),
        (
            json!({"name": "a", "annotations": {"container.apparmor.security.beta.kubernetes.io/other": "unconfined"}}),
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/other]: Invalid value: \"other\": container not found",
        ),
    ] {
        let mut pod = pod(&json!({}));
        pod.metadata = serde_json::from_value(meta.clone()).unwrap();
        set_pod_defaults(&mut pod);
        let errors = lines(&validate_pod(&pod));
        if expected.is_empty() {
            assert!(errors.is_empty(), "{meta} {errors:?}")
        } else {
            assert!(errors.len() == 1 && errors[0].starts_with(expected), "{errors:?}")
        }
    }
    let nothing = Pod::default();
    let errors = lines(&validate_pod(&nothing));
    assert!(errors.contains(&"spec: Required value".to_string()), "{errors:?}");
}

#[test]
fn volumes_and_mounts_are_checked() {
    let volumes = |volume: Value| json!({"volumes": [volume]});
    let mount = |mount: Value| {
        let mut patch = container(&json!({"volumeMounts": [mount]}));
        merge(&mut patch, &json!({"volumes": [{"name": "v"}]}));
        patch
    };
    let path = "spec.containers[0].volumeMounts[0]";
    check(&[
        (volumes(json!({"name": "v"})), ""),
        (volumes(json!({})), "spec.volumes[0].name: Required value"),
        (volumes(json!({"name": "v.w"})), "spec.volumes[0].name: Invalid value: \"v.w\""),
        (
            json!({"volumes": [{"name": "v"}, {"name": "v"}]}),
            "spec.volumes[1].name: Duplicate value: \"v\"",
        ),
        (
            volumes(json!({"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}})),
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
        ),
        (
            volumes(json!({"name": "v", "hostPath": {}})),
            "spec.volumes[0].hostPath.path: Required value",
        ),
        (
            volumes(json!({"name": "v", "hostPath": {"path": "/a/../b"}})),
            "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
        ),
        (
            volumes(json!({"name": "v", "hostPath": {"path": "a"}})),
            "spec.volumes[0].hostPath.path: Invalid value: \"a\": must be an absolute path",
        ),
        (
            volumes(json!({"name": "v", "hostPath": {"path": "/a", "type": "directory"}})),
            "spec.volumes[0].hostPath.type: Unsupported value: \"directory\"",
        ),
        (
            volumes(json!({"name": "v", "emptyDir": {"medium": "Disk"}})),
            "spec.volumes[0].emptyDir.medium: Unsupported value: \"Disk\"",
        ),
        (
            volumes(json!({"name": "v", "emptyDir": {"sizeLimit": "-1"}})),
            "spec.volumes[0].emptyDir.sizeLimit: Invalid value: \"-1\"",
        ),
        (mount(json!({"name": "v", "mountPath": "/m"})), ""),
        (mount(json!({"name": "w", "mountPath": "/m"})), &format!("{path}.name: Not found: \"w\"")),
        (mount(json!({"mountPath": "/m"})), &format!("{path}.name: Required value")),
        (mount(json!({"name": "v"})), &format!("{path}.mountPath: Required value")),
        (mount(json!({"name": "v", "mountPath": "/a:/b"})), ""),
        (
            mount(json!({"name": "v", "mountPath": "/m", "subPath": "/x"})),
            &format!("{path}.subPath: Invalid value: \"/x\": must be a relative path"),
        ),
        (
            mount(json!({"name": "v", "mountPath": "/m", "subPath": "a/../b"})),
            &format!("{path}.subPath: Invalid value: \"a/../b\": must not contain '..'"),
        ),
        (
            mount(json!({"name": "v", "mountPath": "/m", "subPath": "a", "subPathExpr": "b"})),
            &format!(
                "{path}.subPathExpr: Invalid value: \"b\": subPathExpr and subPath are mutually exclusive"
            ),
        ),
        (
            mount(json!({"name": "v", "mountPath": "/m", "mountPropagation": "Bidirectional"})),
            &format!("{path}.mountPropagation: Forbidden: Bidirectional mount propagation"),
        ),
        (
            mount(json!({"name": "v", "mountPath": "/m", "mountPropagation": "rshared"})),
            &format!("{path}.mountPropagation: Unsupported value: \"rshared\""),
        ),
        (
            mount(json!({"name": "v", "mountPath": "/m", "recursiveReadOnly": "IfPossible"})),
            &format!("{path}.recursiveReadOnly: Forbidden"),
        ),
    ]);
    let mut twice = container(&json!({"volumeMounts": [
        {"name": "v", "mountPath": "/m"}, {"name": "v", "mountPath": "/m"}]}));
    merge(&mut twice, &json!({"volumes": [{"name": "v"}]}));
    assert_eq!(
        errors(&twice),
        ["spec.containers[0].volumeMounts[1].mountPath: Duplicate value: \"/m\""]
    );
}

#[test]
fn a_pod_of_linux_has_no_options_of_windows() {
    let linux = |mut patch: Value| {
        merge(&mut patch, &json!({"os": {"name": "linux"}}));
        patch
    };
    let options = json!({"securityContext": {"windowsOptions": {}}});
    check(&[
        (
            linux(options.clone()),
            "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
        ),
        (
            linux(container(&options)),
            "spec.containers[0].securityContext.windowsOptions: Forbidden: windows options cannot be set",
        ),
    ]);
}

#[test]
fn security_contexts_are_checked() {
    let context = |c: Value| json!({"securityContext": c});
    let own = |c: Value| container(&json!({"securityContext": c}));
    let path = "spec.containers[0].securityContext";
    check(&[
        (context(json!({"runAsUser": 0, "supplementalGroups": [1]})), ""),
        (
            context(json!({"runAsUser": -1})),
            "spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
        ),
        (
            context(json!({"supplementalGroups": [1, -2]})),
            "spec.securityContext.supplementalGroups[1]: Invalid value: -2",
        ),
        (
            context(json!({"fsGroupChangePolicy": "X"})),
            "spec.securityContext.fsGroupChangePolicy: Unsupported value: \"X\"",
        ),
        (context(json!({"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]})), ""),
        (
            context(json!({"sysctls": [{"name": "Net", "value": "1"}]})),
            "spec.securityContext.sysctls[0].name: Invalid value: \"Net\"",
        ),
        (
            context(
                json!({"sysctls": [{"name": "net.a", "value": "1"}, {"name": "net/a", "value": "1"}]}),
            ),
            "spec.securityContext.sysctls[1].name: Duplicate value: \"net/a\"",
        ),
        (
            json!({"hostNetwork": true, "securityContext": {"sysctls": [{"name": "net.a", "value": "1"}]}}),
            "spec.securityContext.sysctls[0].name: Invalid value: \"net.a\": may not be specified when 'hostNetwork' is true",
        ),
        (
            json!({"hostPID": true, "shareProcessNamespace": true}),
            "spec.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID",
        ),
        (
            json!({"hostPID": true, "hostUsers": false}),
            "spec.hostPID: Forbidden: when `hostUsers` is false",
        ),
        (
            own(json!({"seccompProfile": {"type": "Localhost"}})),
            &format!("{path}.seccompProfile.localhostProfile: Required value"),
        ),
        (
            own(json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "../x"}})),
            &format!("{path}.seccompProfile.localhostProfile: Invalid value: \"../x\""),
        ),
        (
            own(json!({"appArmorProfile": {"type": "RuntimeDefault", "localhostProfile": "x"}})),
            &format!("{path}.appArmorProfile.localhostProfile: Invalid value: \"x\""),
        ),
        (
            own(json!({"privileged": true, "allowPrivilegeEscalation": false})),
            &format!("{path}: Invalid value: privileged"),
        ),
        (
            own(
                json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["CAP_SYS_ADMIN"]}}),
            ),
            &format!("{path}: Invalid value: CAP_SYS_ADMIN"),
        ),
        (own(json!({"procMount": "x"})), &format!("{path}.procMount: Unsupported value: \"x\"")),
        (
            own(json!({"procMount": "Unmasked"})),
            &format!("{path}.procMount: Invalid value: \"Unmasked\""),
        ),
    ]);
}

#[test]
fn the_pod_as_a_whole_is_checked() {
    let long: Vec<String> = (0..32).map(|i| format!("{}{i:02}", "a".repeat(62))).collect();
    let many: Vec<String> = (0..33).map(|i| format!("d{i}")).collect();
    check(&[
        (
            json!({"restartPolicy": "always"}),
            "spec.restartPolicy: Unsupported value: \"always\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        ),
        (
            // Read as one second.
            json!({"terminationGracePeriodSeconds": -1}),
            "",
        ),
        (
            json!({"activeDeadlineSeconds": 0}),
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
        ),
        (json!({"hostname": "a.b"}), "spec.hostname: Invalid value: \"a.b\""),
        (json!({"subdomain": "-"}), "spec.subdomain: Invalid value: \"-\""),
        (json!({"hostnameOverride": "a_b"}), "spec.hostnameOverride: Invalid value: \"a_b\""),
        (json!({"hostnameOverride": ""}), "spec.hostnameOverride: Invalid value: \"\""),
        (
            json!({"hostnameOverride": "a".repeat(65)}),
            "spec.hostnameOverride: Too long: may not be more than 64",
        ),
        (
            json!({"hostnameOverride": "h", "hostNetwork": true}),
            "spec.hostnameOverride: Forbidden: may not be specified when hostNetwork is true",
        ),
        (
            json!({"hostnameOverride": "h", "setHostnameAsFQDN": true}),
            "spec.hostnameOverride: Forbidden: may not be specified when setHostnameAsFQDN is true",
        ),
        (
            json!({"hostAliases": [{"ip": "1.2.3", "hostnames": ["a"]}]}),
            "spec.hostAliases[0].ip: Invalid value: \"1.2.3\": must be a valid IP address",
        ),
        (
            json!({"hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a b"]}]}),
            "spec.hostAliases[0].hostnames[0]: Invalid value: \"a b\"",
        ),
        (json!({"hostAliases": [{"ip": "::1", "hostnames": ["a"]}]}), ""),
        (json!({"dnsPolicy": "X"}), "spec.dnsPolicy: Unsupported value: \"X\""),
        (json!({"dnsPolicy": "None"}), "spec.dnsConfig: Required value"),
        (
            json!({"dnsPolicy": "None", "dnsConfig": {"searches": ["a"]}}),
            "spec.dnsConfig.nameservers: Required value",
        ),
        (json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"]}}), ""),
        (
            json!({"dnsConfig": {"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]}}),
            "spec.dnsConfig.nameservers: Too many: 4: must have at most 3 items",
        ),
        (json!({"dnsConfig": {"searches": many}}), "spec.dnsConfig.searches: Too many: 33"),
        (
            json!({"dnsConfig": {"searches": long}}),
            "spec.dnsConfig.searches: Too long: may not be more than 2048 bytes",
        ),
        (
            json!({"dnsConfig": {"options": [{"value": "1"}]}}),
            "spec.dnsConfig.options[0].name: Required value",
        ),
        (
            json!({"tolerations": [{"effect": "NoExecute"}]}),
            "spec.tolerations[0].operator: Invalid value: \"\": operator must be Exists when `key` is empty",
        ),
        (json!({"tolerations": [{"operator": "Exists"}]}), ""),
        (json!({"tolerations": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}), ""),
        (
            json!({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}),
            "spec.tolerations[0].value: Invalid value: \"b\"",
        ),
        (
            json!({"tolerations": [{"key": "a", "operator": "In"}]}),
            "spec.tolerations[0].operator: Unsupported value: \"In\"",
        ),
        (
            json!({"tolerations": [{"key": "a", "effect": "Never"}]}),
            "spec.tolerations[0].effect: Unsupported value: \"Never\"",
        ),
        (
            json!({"tolerations": [{"key": "a", "tolerationSeconds": 1}]}),
            "spec.tolerations[0].effect: Invalid value",
        ),
        (json!({"schedulingGates": [{"name": "a"}]}), "spec.schedulingGates: Forbidden"),
        (json!({"os": {"name": "plan9"}}), "spec.os.name: Unsupported value: \"plan9\""),
        (json!({"preemptionPolicy": "x"}), "spec.preemptionPolicy: Unsupported value"),
        (json!({"runtimeClassName": "A"}), "spec.runtimeClassName: Invalid value: \"A\""),
        (json!({"priorityClassName": "A"}), "spec.priorityClassName: Invalid value: \"A\""),
        (json!({"nodeSelector": {"a b": "c"}}), "spec.nodeSelector: Invalid value: \"a b\""),
        (
            json!({"readinessGates": [{"conditionType": "a b"}]}),
            "spec.readinessGates[0].conditionType: Invalid value: \"a b\"",
        ),
    ]);
}

#[test]
fn the_containers_fit_into_the_resources_of_their_pod() {
    let pod = |own: Value, container: Value| json!({"resources": own, "containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File", "resources": container}]});
    for (own, container, expected) in [
        (
            json!({"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "1"}}),
            json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}),
            "",
        ),
        (
            json!({"requests": {"memory": "24Mi"}}),
            json!({"requests": {"memory": "32Mi"}}),
            "spec.resources.requests[memory]: Invalid value: \"24Mi\": must be greater than or equal to aggregate container requests of 32Mi",
        ),
        (
            json!({"limits": {"cpu": "1"}}),
            json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1100m"}}),
            "spec.resources.containers[0][cpu].limits: Invalid value: \"1100m\": must be less than or equal to pod limits of 1",
        ),
        (
            json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
            json!({}),
            "spec.resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ),
        (
            json!({"limits": {"ephemeral-storage": "1Gi"}}),
            json!({}),
            "spec.resources.limits[ephemeral-storage]: Unsupported value: \"ephemeral-storage\": supported values: \"cpu\", \"hugepages-\", \"memory\"",
        ),
        (
            json!({"claims": [{"name": "x"}]}),
            json!({}),
            "spec.resources.claims: Forbidden: claims may not be set for Resources at pod-level",
        ),
    ] {
        check(&[(pod(own, container), expected)]);
    }
    let pages = |amount: &str| json!({"limits": {"cpu": "1", "hugepages-2Mi": amount}});
    let errors = errors(&pod(pages("4Mi"), pages("6Mi")));
    let expected = "spec.resources.limits[hugepages-2Mi]: Invalid value: \"4Mi\": must be greater than or equal to aggregate container limits of 6Mi";
    assert!(errors.iter().any(|error| error == expected), "{errors:#?}");
}
