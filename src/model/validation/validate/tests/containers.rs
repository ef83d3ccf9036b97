//! Containers and what is in them.

use super::*;

#[test]
fn containers_are_checked() {
    check(&[
        (json!({"containers": []}), "spec.containers: Required value"),
        (json!({"containers": [{"image": "i"}]}), "spec.containers[0].name: Required value"),
        (json!({"containers": [{"name": "c"}]}), "spec.containers[0].image: Required value"),
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
            container(&json!({"restartPolicyRules": [rule("Restart", "In")]})),
            "spec.containers[0].restartPolicy: Required value",
        ),
        (
            json!({"ephemeralContainers": [{"name": "e", "image": "i"}]}),
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ),
    ]);
}

fn rule(action: &str, operator: &str) -> Value {
    json!({"action": action, "exitCodes": {"operator": operator, "values": [1, 2]}})
}

#[test]
fn restart_rules_have_an_action_and_exit_codes() {
    let with =
        |rules: Value| container(&json!({"restartPolicy": "Never", "restartPolicyRules": rules}));
    check(&[
        (with(json!([rule("Restart", "In"), rule("RestartAllContainers", "NotIn")])), ""),
        (
            with(json!([{"action": "Restart"}])),
            "spec.containers[0].restartPolicyRules[0].exitCodes: Required value: must be specified",
        ),
        (
            with(json!([rule("Restart", "In"), rule("Stop", "NotIn")])),
            "spec.containers[0].restartPolicyRules[1].action: Unsupported value: \"Stop\": supported values: \"Restart\", \"RestartAllContainers\"",
        ),
        (
            with(json!([rule("Restart", "Between")])),
            "spec.containers[0].restartPolicyRules[0].exitCodes.operator: Unsupported value: \"Between\"",
        ),
        (
            with(json!(vec![rule("Restart", "In"); 21])),
            "spec.containers[0].restartPolicyRules: Too many: 21",
        ),
        (
            with(
                json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": vec![1; 256]}}]),
            ),
            "spec.containers[0].restartPolicyRules[0].exitCodes.values: Too many: 256",
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
        (init(json!({"restartPolicy": "Always", "readinessProbe": probe})), ""),
        (init(json!({"restartPolicy": "Never"})), ""),
    ]);
}

#[test]
fn ports_are_checked() {
    let port = |port: Value| container(&json!({"ports": [port]}));
    let path = "spec.containers[0].ports[0]";
    check(&[
        (port(json!({"containerPort": 80, "name": "http"})), ""),
        (port(json!({"name": "x"})), &format!("{path}.containerPort: Required value")),
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
        (env(json!({"value": "x"})), &format!("{path}.name: Required value")),
        (env(json!({"name": "a=b"})), &format!("{path}.name: Invalid value: \"a=b\"")),
        (
            env(json!({"name": "A", "valueFrom": {}})),
            &format!("{path}.valueFrom: Invalid value: \"\": must specify one of"),
        ),
        (
            env(
                json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}, "secretKeyRef": {"name": "s", "key": "k"}}}),
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
        (field(""), &format!("{path}.valueFrom.fieldRef.fieldPath: Required value")),
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
        (liveness(json!({})), &format!("{path}: Required value: must specify a handler type")),
        (
            liveness(json!({"tcpSocket": {"port": 80}, "exec": {"command": ["a"]}})),
            &format!("{path}.tcpSocket: Forbidden: may not specify more than 1 handler type"),
        ),
        (liveness(json!({"exec": {}})), &format!("{path}.exec.command: Required value")),
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
        (liveness(json!({"grpc": {"port": 0}})), &format!("{path}.grpc.port: Invalid value: 0")),
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
        (resources(json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1000m"}})), ""),
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
