use super::*;
use crate::validation::{FieldError, default_pod, static_pod_references, unsupported_fields};
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
    default_pod(&mut pod);
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
        match expected.is_empty() {
            true => assert!(errors.is_empty(), "{patch}\n{errors:#?}"),
            false => assert!(
                errors.len() == 1 && errors[0].starts_with(expected),
                "{patch}\nwanted {expected}\n{errors:#?}"
            ),
        }
    }
}

#[test]
fn a_good_pod_has_no_errors() {
    check(&[(json!({}), "")]);
}

#[test]
fn metadata_is_checked() {
    for (meta, expected) in [
        (json!({}), "metadata.name: Required value"),
        (
            json!({"name": "A"}),
            "metadata.name: Invalid value: \"A\": ",
        ),
        (json!({"name": "a.b-c"}), ""),
        (
            json!({"name": "a", "namespace": "a.b"}),
            "metadata.namespace: Invalid value: \"a.b\"",
        ),
        (
            json!({"name": "a", "uid": "../../x"}),
            "metadata.uid: Invalid value: \"../../x\"",
        ),
        (json!({"name": "a", "uid": "0f-1"}), ""),
        (
            json!({"name": "a", "labels": {"a b": "x"}}),
            "metadata.labels: Invalid value: \"a b\"",
        ),
        (
            json!({"name": "a", "labels": {"a": "x y"}}),
            "metadata.labels[a]: Invalid value: \"x y\"",
        ),
        (
            json!({"name": "a", "annotations": {"a/b/c": ""}}),
            "metadata.annotations: Invalid value",
        ),
        (
            json!({"name": "a", "annotations": {"A.b/c": "any thing"}}),
            "",
        ),
        (
            json!({"name": "a", "annotations": {"a": "x".repeat(262_145)}}),
            "metadata.annotations: Too long: may not be more than 262144 bytes",
        ),
    ] {
        let mut pod = pod(&json!({}));
        pod.metadata = serde_json::from_value(meta.clone()).unwrap();
        default_pod(&mut pod);
        let errors = lines(&validate_pod(&pod));
        match expected.is_empty() {
            true => assert!(errors.is_empty(), "{meta} {errors:?}"),
            false => assert!(
                errors.len() == 1 && errors[0].starts_with(expected),
                "{errors:?}"
            ),
        }
    }
    let nothing = Pod::default();
    let errors = lines(&validate_pod(&nothing));
    assert!(
        errors.contains(&"spec: Required value".to_string()),
        "{errors:?}"
    );
}

#[test]
fn containers_are_checked() {
    check(&[
        (json!({"containers": []}), "spec.containers: Required value"),
        (
            json!({"containers": [{"image": "i"}]}),
            "spec.containers[0].name: Required value",
        ),
        (
            json!({"containers": [{"name": "c"}]}),
            "spec.containers[0].image: Required value",
        ),
        (
            json!({"containers": [{"name": "c", "image": " i"}]}),
            "spec.containers[0].image: Invalid value: \" i\": must not have leading or trailing",
        ),
        (
            json!({"containers": [{"name": "A_b", "image": "i"}]}),
            "spec.containers[0].name: Invalid value: \"A_b\"",
        ),
        (
            json!({"initContainers": [{"name": "c", "image": "i"}]}),
            "spec.initContainers[0].name: Duplicate value: \"c\"",
        ),
        (
            container(&json!({"imagePullPolicy": "always"})),
            "spec.containers[0].imagePullPolicy: Unsupported value: \"always\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            container(&json!({"terminationMessagePolicy": "X"})),
            "spec.containers[0].terminationMessagePolicy: Unsupported value: \"X\"",
        ),
        (
            container(&json!({"restartPolicy": "X"})),
            "spec.containers[0].restartPolicy: Unsupported value: \"X\"",
        ),
        (
            container(&json!({"restartPolicyRules": [{"action": "Restart"}]})),
            "spec.containers[0].restartPolicy: Required value",
        ),
        (
            json!({"ephemeralContainers": [{"name": "e", "image": "i"}]}),
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ),
    ]);
}

#[test]
fn init_containers_have_probes_only_as_sidecars() {
    let probe = json!({"tcpSocket": {"port": 1}});
    let init = |extra: Value| {
        let mut container = json!({"name": "i", "image": "i"});
        merge(&mut container, &extra);
        json!({"initContainers": [container]})
    };
    check(&[
        (
            init(json!({"readinessProbe": probe})),
            "spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers",
        ),
        (
            init(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}})),
            "spec.initContainers[0].lifecycle: Forbidden",
        ),
        (
            init(json!({"restartPolicy": "OnFailure", "livenessProbe": probe})),
            "spec.initContainers[0].livenessProbe: Forbidden",
        ),
        (
            init(json!({"restartPolicy": "Always", "readinessProbe": probe})),
            "",
        ),
        (init(json!({"restartPolicy": "Never"})), ""),
    ]);
}

#[test]
fn ports_are_checked() {
    let port = |port: Value| container(&json!({"ports": [port]}));
    let path = "spec.containers[0].ports[0]";
    check(&[
        (port(json!({"containerPort": 80, "name": "http"})), ""),
        (
            port(json!({"name": "x"})),
            &format!("{path}.containerPort: Required value"),
        ),
        (
            port(json!({"containerPort": 65536})),
            &format!(
                "{path}.containerPort: Invalid value: 65536: must be between 1 and 65535, inclusive"
            ),
        ),
        (
            port(json!({"containerPort": 1, "hostPort": -1})),
            &format!("{path}.hostPort: Invalid value: -1"),
        ),
        (
            port(json!({"containerPort": 1, "protocol": "tcp"})),
            &format!(
                "{path}.protocol: Unsupported value: \"tcp\": supported values: \"SCTP\", \"TCP\", \"UDP\""
            ),
        ),
        (
            port(json!({"containerPort": 1, "name": "a-name-of-sixteen"})),
            &format!("{path}.name: Invalid value"),
        ),
        (
            port(json!({"containerPort": 1, "hostIP": "localhost"})),
            &format!("{path}.hostIP: Invalid value: \"localhost\""),
        ),
        (
            container(
                &json!({"ports": [{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]}),
            ),
            "spec.containers[0].ports[1].name: Duplicate value: \"a\"",
        ),
        (
            container(
                &json!({"ports": [{"containerPort": 1, "hostPort": 80}, {"containerPort": 2, "hostPort": 80}]}),
            ),
            "spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//80\"",
        ),
        (
            container(
                &json!({"ports": [{"containerPort": 1, "hostPort": 80}, {"containerPort": 2, "hostPort": 80, "protocol": "UDP"}]}),
            ),
            "",
        ),
        (
            json!({"hostNetwork": true, "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 1, "hostPort": 2}]}]}),
            &format!(
                "{path}.hostPort: Invalid value: 2: must match `containerPort` when `hostNetwork` is true"
            ),
        ),
        (
            json!({"hostNetwork": true, "containers": [
                {"name": "a", "image": "i", "ports": [{"containerPort": 80}]},
                {"name": "b", "image": "i", "ports": [{"containerPort": 80}]}]}),
            "spec.containers[1].ports[0].hostPort: Duplicate value",
        ),
    ]);
}

#[test]
fn environment_is_checked() {
    let env = |env: Value| container(&json!({"env": [env]}));
    let path = "spec.containers[0].env[0]";
    let field =
        |path: &str| env(json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}));
    check(&[
        (env(json!({"name": "a.b-c"})), ""),
        (
            env(json!({"value": "x"})),
            &format!("{path}.name: Required value"),
        ),
        (
            env(json!({"name": "a=b"})),
            &format!("{path}.name: Invalid value: \"a=b\""),
        ),
        (
            env(json!({"name": "A", "valueFrom": {}})),
            &format!("{path}.valueFrom: Invalid value: \"\": must specify one of"),
        ),
        (
            env(
                json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}, "secretKeyRef": {"key": "k"}}}),
            ),
            &format!("{path}.valueFrom: Invalid value: \"\": may not have more than one field"),
        ),
        (
            env(
                json!({"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
            ),
            &format!(
                "{path}.valueFrom: Invalid value: \"\": may not be specified when `value` is not empty"
            ),
        ),
        (field("status.podIP"), ""),
        (field("metadata.labels['a/b']"), ""),
        (field("metadata.annotations['A.b/C']"), ""),
        (
            field(""),
            &format!("{path}.valueFrom.fieldRef.fieldPath: Required value"),
        ),
        (
            field("metadata.labels['']"),
            &format!("{path}.valueFrom.fieldRef.fieldPath: Invalid value"),
        ),
        (
            field("spec.containers"),
            &format!("{path}.valueFrom.fieldRef.fieldPath: Unsupported value: \"spec.containers\""),
        ),
        (
            field("metadata.labels"),
            &format!("{path}.valueFrom.fieldRef.fieldPath: Unsupported value"),
        ),
        (
            env(
                json!({"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}}),
            ),
            "",
        ),
        (
            env(
                json!({"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1Mi"}}}),
            ),
            &format!("{path}.valueFrom.resourceFieldRef.divisor: Unsupported value: \"1Mi\""),
        ),
        (
            env(json!({"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "cpu"}}})),
            &format!("{path}.valueFrom.resourceFieldRef.resource: Unsupported value: \"cpu\""),
        ),
        (
            container(&json!({"envFrom": [{}]})),
            "spec.containers[0].envFrom[0]: Invalid value: \"\": must specify one of",
        ),
    ]);
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
        (
            volumes(json!({"name": "v.w"})),
            "spec.volumes[0].name: Invalid value: \"v.w\"",
        ),
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
        (
            mount(json!({"name": "w", "mountPath": "/m"})),
            &format!("{path}.name: Not found: \"w\""),
        ),
        (
            mount(json!({"mountPath": "/m"})),
            &format!("{path}.name: Required value"),
        ),
        (
            mount(json!({"name": "v"})),
            &format!("{path}.mountPath: Required value"),
        ),
        (
            mount(json!({"name": "v", "mountPath": "/a:/b"})),
            &format!("{path}.mountPath: Invalid value: \"/a:/b\": must not contain ':'"),
        ),
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
fn probes_and_hooks_are_checked() {
    let liveness = |probe: Value| container(&json!({"livenessProbe": probe}));
    let readiness = |probe: Value| container(&json!({"readinessProbe": probe}));
    let hook = |hook: Value| container(&json!({"lifecycle": {"preStop": hook}}));
    let path = "spec.containers[0].livenessProbe";
    let tcp = |extra: Value| {
        let mut probe = json!({"tcpSocket": {"port": 80}});
        merge(&mut probe, &extra);
        probe
    };
    check(&[
        (liveness(tcp(json!({}))), ""),
        (
            liveness(json!({})),
            &format!("{path}: Required value: must specify a handler type"),
        ),
        (
            liveness(json!({"tcpSocket": {"port": 80}, "exec": {"command": ["a"]}})),
            &format!("{path}.tcpSocket: Forbidden: may not specify more than 1 handler type"),
        ),
        (
            liveness(json!({"exec": {}})),
            &format!("{path}.exec.command: Required value"),
        ),
        (
            liveness(tcp(json!({"periodSeconds": -1}))),
            &format!("{path}.periodSeconds: Invalid value: -1: must be greater than or equal to 0"),
        ),
        (
            liveness(tcp(json!({"successThreshold": 2}))),
            &format!("{path}.successThreshold: Invalid value: 2: must be 1"),
        ),
        (readiness(tcp(json!({"successThreshold": 2}))), ""),
        (
            liveness(tcp(json!({"terminationGracePeriodSeconds": 0}))),
            &format!(
                "{path}.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0"
            ),
        ),
        (
            readiness(tcp(json!({"terminationGracePeriodSeconds": 1}))),
            "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 1: must not be set for readinessProbes",
        ),
        (
            liveness(json!({"tcpSocket": {"port": 0}})),
            &format!("{path}.tcpSocket.port: Invalid value: 0: must be between 1 and 65535"),
        ),
        (
            liveness(json!({"tcpSocket": {"port": "80"}})),
            &format!("{path}.tcpSocket.port: Invalid value: \"80\""),
        ),
        (
            liveness(json!({"grpc": {"port": 0}})),
            &format!("{path}.grpc.port: Invalid value: 0"),
        ),
        (
            liveness(json!({"httpGet": {"port": "web", "scheme": "http"}})),
            &format!("{path}.httpGet.scheme: Unsupported value: \"http\""),
        ),
        (
            liveness(
                json!({"httpGet": {"port": 80, "httpHeaders": [{"name": "a b", "value": "x"}]}}),
            ),
            &format!("{path}.httpGet.httpHeaders[0].name: Invalid value: \"a b\""),
        ),
        (
            liveness(
                json!({"httpGet": {"port": 80, "httpHeaders": [{"name": "a", "value": "x\r\ny"}]}}),
            ),
            &format!("{path}.httpGet.httpHeaders[0].value: Invalid value"),
        ),
        (hook(json!({"sleep": {"seconds": 30}})), ""),
        (
            hook(json!({"sleep": {"seconds": 31}})),
            "spec.containers[0].lifecycle.preStop.sleep.seconds: Invalid value: 31",
        ),
        (
            hook(json!({})),
            "spec.containers[0].lifecycle.preStop: Required value: must specify a handler type",
        ),
    ]);
}

#[test]
fn resources_are_checked() {
    let resources = |r: Value| container(&json!({"resources": r}));
    let path = "spec.containers[0].resources";
    check(&[
        (
            resources(
                json!({"limits": {"cpu": "1", "memory": "1e3"}, "requests": {"cpu": "500m"}}),
            ),
            "",
        ),
        (resources(json!({"requests": {"cpu": "500m"}})), ""),
        (
            resources(json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1001m"}})),
            &format!(
                "{path}.requests: Invalid value: \"1001m\": must be less than or equal to cpu limit of 1"
            ),
        ),
        (
            resources(json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1000m"}})),
            "",
        ),
        (
            resources(json!({"requests": {"cpu": "-1"}})),
            &format!(
                "{path}.requests[cpu]: Invalid value: \"-1\": must be greater than or equal to 0"
            ),
        ),
        (
            resources(json!({"requests": {"memory": "1GB"}})),
            &format!("{path}.requests[memory]: Invalid value: \"1GB\""),
        ),
        (
            resources(json!({"requests": {"storage": "1"}})),
            &format!(
                "{path}.requests[storage]: Invalid value: \"storage\": must be a standard resource"
            ),
        ),
        (
            resources(json!({"requests": {"example.com/gpu": "1"}})),
            &format!("{path}.limits: Required value"),
        ),
        (resources(json!({"limits": {"example.com/gpu": "1"}})), ""),
        (
            resources(json!({"claims": [{"name": "x"}]})),
            &format!("{path}.claims[0]: Not found: \"x\""),
        ),
    ]);
}

#[test]
fn security_contexts_are_checked() {
    let context = |c: Value| json!({"securityContext": c});
    let own = |c: Value| container(&json!({"securityContext": c}));
    let path = "spec.containers[0].securityContext";
    check(&[
        (
            context(json!({"runAsUser": 0, "supplementalGroups": [1]})),
            "",
        ),
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
        (
            context(json!({"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]})),
            "",
        ),
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
        (
            own(json!({"procMount": "x"})),
            &format!("{path}.procMount: Unsupported value: \"x\""),
        ),
        (
            own(json!({"procMount": "Unmasked"})),
            &format!("{path}.procMount: Invalid value: \"Unmasked\""),
        ),
    ]);
}

#[test]
fn the_pod_as_a_whole_is_checked() {
    let long: Vec<String> = (0..32)
        .map(|i| format!("{}{i:02}", "a".repeat(62)))
        .collect();
    let many: Vec<String> = (0..33).map(|i| format!("d{i}")).collect();
    check(&[
        (
            json!({"restartPolicy": "always"}),
            "spec.restartPolicy: Unsupported value: \"always\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        ),
        (
            json!({"terminationGracePeriodSeconds": -1}),
            "spec.terminationGracePeriodSeconds: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            json!({"activeDeadlineSeconds": 0}),
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
        ),
        (
            json!({"hostname": "a.b"}),
            "spec.hostname: Invalid value: \"a.b\"",
        ),
        (
            json!({"subdomain": "-"}),
            "spec.subdomain: Invalid value: \"-\"",
        ),
        (
            json!({"hostAliases": [{"ip": "1.2.3", "hostnames": ["a"]}]}),
            "spec.hostAliases[0].ip: Invalid value: \"1.2.3\": must be a valid IP address",
        ),
        (
            json!({"hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a b"]}]}),
            "spec.hostAliases[0].hostnames[0]: Invalid value: \"a b\"",
        ),
        (
            json!({"hostAliases": [{"ip": "::1", "hostnames": ["a"]}]}),
            "",
        ),
        (
            json!({"dnsPolicy": "X"}),
            "spec.dnsPolicy: Unsupported value: \"X\"",
        ),
        (
            json!({"dnsPolicy": "None"}),
            "spec.dnsConfig: Required value",
        ),
        (
            json!({"dnsPolicy": "None", "dnsConfig": {"searches": ["a"]}}),
            "spec.dnsConfig.nameservers: Required value",
        ),
        (
            json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"]}}),
            "",
        ),
        (
            json!({"dnsConfig": {"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]}}),
            "spec.dnsConfig.nameservers: Too many: 4: must have at most 3 items",
        ),
        (
            json!({"dnsConfig": {"searches": many}}),
            "spec.dnsConfig.searches: Too many: 33",
        ),
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
        (
            json!({"tolerations": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}),
            "",
        ),
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
        (
            json!({"schedulingGates": [{"name": "a"}]}),
            "spec.schedulingGates: Forbidden",
        ),
        (
            json!({"os": {"name": "plan9"}}),
            "spec.os.name: Unsupported value: \"plan9\"",
        ),
        (
            json!({"preemptionPolicy": "x"}),
            "spec.preemptionPolicy: Unsupported value",
        ),
        (
            json!({"runtimeClassName": "A"}),
            "spec.runtimeClassName: Invalid value: \"A\"",
        ),
        (
            json!({"priorityClassName": "A"}),
            "spec.priorityClassName: Invalid value: \"A\"",
        ),
        (
            json!({"nodeSelector": {"a b": "c"}}),
            "spec.nodeSelector: Invalid value: \"a b\"",
        ),
        (
            json!({"readinessGates": [{"conditionType": "a b"}]}),
            "spec.readinessGates[0].conditionType: Invalid value: \"a b\"",
        ),
    ]);
}

#[test]
fn static_pods_name_no_api_objects() {
    for (patch, expected) in [
        (
            json!({"serviceAccountName": "s"}),
            "spec.serviceAccountName: Forbidden: static pods may not reference serviceaccounts",
        ),
        (
            json!({"imagePullSecrets": [{"name": "s"}]}),
            "spec.imagePullSecrets[0]: Forbidden: static pods may not reference secrets",
        ),
        (
            json!({"resourceClaims": [{"name": "r"}]}),
            "spec.resourceClaims: Forbidden: static pods may not reference resourceclaims",
        ),
        (
            container(&json!({"envFrom": [{"configMapRef": {"name": "m"}}]})),
            "spec.containers[0].envFrom[0].configMapRef: Forbidden: static pods may not reference configmaps",
        ),
        (
            container(
                &json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"key": "k"}}}]}),
            ),
            "spec.containers[0].env[0].valueFrom.secretKeyRef: Forbidden: static pods may not reference secrets",
        ),
        (
            json!({"volumes": [{"name": "v", "configMap": {}}]}),
            "spec.volumes[0].configMap: Forbidden: static pods may not reference configmaps",
        ),
        (
            json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}),
            "spec.volumes[0].persistentVolumeClaim: Forbidden: static pods may not reference persistentvolumeclaims",
        ),
        (
            json!({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}),
            "spec.volumes[0].csi: Forbidden: static pods may not reference csidrivers",
        ),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"downwardAPI": {}}, {"clusterTrustBundle": {"path": "p"}}]}}]}),
            "spec.volumes[0].projected.sources[1].clusterTrustBundle: Forbidden: static pods may not reference clustertrustbundles",
        ),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "p"}}]}}]}),
            "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: static pods may not reference serviceaccounts",
        ),
    ] {
        assert_eq!(lines(&static_pod_references(&pod(&patch))), [expected]);
    }
    let old_name = lines(&static_pod_references(&pod(
        &json!({"serviceAccount": "s"}),
    )));
    assert!(old_name.iter().all(|line| line.contains("serviceaccounts")) && !old_name.is_empty());
    assert_eq!(static_pod_references(&pod(&json!({}))), []);
}

#[test]
fn what_is_not_built_yet_is_refused_by_name() {
    let not_yet = "Forbidden: not supported yet by this kubelet";
    let mount = |mount: Value| container(&json!({"volumeMounts": [mount]}));
    for (patch, path) in [
        (
            json!({"volumes": [{"name": "v", "projected": {}}]}),
            "spec.volumes[0].projected",
        ),
        (
            json!({"volumes": [{"name": "v", "downwardAPI": {}}]}),
            "spec.volumes[0].downwardAPI",
        ),
        (
            json!({"volumes": [{"name": "v", "image": {}}]}),
            "spec.volumes[0].image",
        ),
        (
            json!({"volumes": [{"name": "v", "nfs": {"path": "p", "server": "s"}}]}),
            "spec.volumes[0].nfs",
        ),
        (
            json!({"volumes": [{"name": "v", "emptyDir": {"medium": "HugePages-2Mi"}}]}),
            "spec.volumes[0].emptyDir.medium",
        ),
        (json!({"hostUsers": false}), "spec.hostUsers"),
        (json!({"setHostnameAsFQDN": true}), "spec.setHostnameAsFQDN"),
        (json!({"hostnameOverride": "h"}), "spec.hostnameOverride"),
        (json!({"runtimeClassName": "r"}), "spec.runtimeClassName"),
        (json!({"overhead": {"cpu": "1"}}), "spec.overhead"),
        (json!({"os": {"name": "windows"}}), "spec.os"),
        (
            json!({"readinessGates": [{"conditionType": "x"}]}),
            "spec.readinessGates",
        ),
        (
            json!({"resources": {"limits": {"cpu": "1"}}}),
            "spec.resources",
        ),
        (
            json!({"nodeSelector": {"disk": "ssd"}}),
            "spec.nodeSelector[disk]",
        ),
        (
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}}),
            "spec.affinity.nodeAffinity",
        ),
        (
            container(&json!({"restartPolicyRules": [{"action": "Restart"}]})),
            "spec.containers[0].restartPolicyRules",
        ),
        (
            container(&json!({"volumeDevices": [{"name": "d", "devicePath": "/d"}]})),
            "spec.containers[0].volumeDevices",
        ),
        (
            container(&json!({"lifecycle": {"stopSignal": "SIGINT"}})),
            "spec.containers[0].lifecycle.stopSignal",
        ),
        (
            container(
                &json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v"}}}]}),
            ),
            "spec.containers[0].env[0].valueFrom.fileKeyRef",
        ),
        (
            mount(json!({"name": "v", "mountPath": "/m", "subPath": "s"})),
            "spec.containers[0].volumeMounts[0].subPath",
        ),
        (
            mount(json!({"name": "v", "mountPath": "/m", "subPathExpr": "s"})),
            "spec.containers[0].volumeMounts[0].subPathExpr",
        ),
        (
            mount(json!({"name": "v", "mountPath": "/m", "recursiveReadOnly": "Enabled"})),
            "spec.containers[0].volumeMounts[0].recursiveReadOnly",
        ),
        (
            container(&json!({"resources": {"claims": [{"name": "r"}]}})),
            "spec.containers[0].resources.claims",
        ),
    ] {
        assert_eq!(
            lines(&unsupported_fields(&pod(&patch))),
            [format!("{path}: {not_yet}")]
        );
    }
    let extended = container(&json!({"resources": {"limits": {"example.com/gpu": "1"}}}));
    let refused = lines(&unsupported_fields(&pod(&extended)));
    assert_eq!(refused.len(), 2, "limit and defaulted request: {refused:?}");
    let plain = json!({"nodeSelector": {"kubernetes.io/os": "linux"}, "hostUsers": true,
        "os": {"name": "linux"}, "volumes": [{"name": "v", "hostPath": {"path": "/x"}}, {"name": "w"}]});
    assert_eq!(lines(&unsupported_fields(&pod(&plain))), [""; 0]);
}

#[test]
fn what_is_accepted_without_full_effect_is_named() {
    let mut patch = container(&json!({"resources": {"limits": {"ephemeral-storage": "1Gi"}}}));
    merge(
        &mut patch,
        &json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]}),
    );
    assert_eq!(
        unsupported_warnings(&pod(&patch)),
        [
            "limits.ephemeral-storage of container c is not enforced",
            "emptyDir.sizeLimit of volume v is not enforced"
        ]
    );
}
