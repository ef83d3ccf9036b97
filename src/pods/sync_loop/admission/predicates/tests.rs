use super::*;
use serde_json::{Value, json};

fn node(patch: Value) -> Node {
    let mut node = json!({
        "metadata": {"name": "node1", "labels": {"zone": "a", "cores": "8"}},
        "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "3"}},
    });
    merge(&mut node, patch);
    serde_json::from_value(node).unwrap()
}

fn merge(into: &mut Value, patch: Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, patch) => *into = patch,
    }
}

fn pod(spec: Value) -> Pod {
    let mut whole = json!({"containers": [{"name": "main"}]});
    merge(&mut whole, spec);
    serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": whole})).unwrap()
}

fn of_size(cpu: &str, memory: &str) -> Value {
    json!({"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]})
}

fn rejected(pod: &Pod, node: &Node, others: &[Arc<Pod>]) -> Option<(String, String)> {
    let rejection = admit(pod, node, others, &BTreeMap::new()).err()?;
    Some((rejection.reason.to_string(), rejection.message))
}

#[test]
fn what_others_have_is_not_given_twice() {
    let others = [Arc::new(pod(of_size("1500m", "512Mi")))];
    let rows = [
        (of_size("500m", "512Mi"), None),
        (
            of_size("501m", "1"),
            Some(("OutOfcpu", "cpu, requested: 501, used: 1500, capacity: 2000")),
        ),
        (
            of_size("1m", "513Mi"),
            Some((
                "OutOfmemory",
                "memory, requested: 537919488, used: 536870912, capacity: 1073741824",
            )),
        ),
        (json!({}), None),
    ];
    for (spec, expected) in rows {
        let expected = expected.map(|(reason, text): (&str, &str)| {
            (reason.to_owned(), format!("Node didn't have enough resource: {text}"))
        });
        assert_eq!(rejected(&pod(spec.clone()), &node(json!({})), &others), expected, "{spec}");
    }
}

#[test]
fn only_so_many_pods_fit_and_resources_of_the_cluster_are_not_counted() {
    let one = Arc::new(pod(json!({})));
    let three = [one.clone(), one.clone(), one.clone()];
    let (reason, text) = rejected(&one, &node(json!({})), &three).unwrap();
    assert_eq!(reason, "OutOfpods");
    assert!(text.ends_with("pods, requested: 1, used: 3, capacity: 3"), "{text}");
    let extended = |name: &str| {
        pod(json!({"containers": [{"name": "m", "resources": {"requests": {name: "1"}}}]}))
    };
    assert_eq!(rejected(&extended("example.com/gpu"), &node(json!({})), &[]), None);
    let with = node(json!({"status": {"allocatable": {"example.com/gpu": "0"}}}));
    let reason = rejected(&extended("example.com/gpu"), &with, &[]).unwrap().0;
    assert_eq!(reason, "OutOfexample.com/gpu");
    let allocated = [("example.com/gpu".to_owned(), 1)].into();
    let gpu = extended("example.com/gpu");
    assert_eq!(admit(&gpu, &with, &[], &allocated), Ok(()), "it has its device");
    let mapping =
        json!({"containerName": "m", "resourceName": "example.com/gpu", "requestName": "q"});
    let claim = json!({"extendedResourceClaimStatus": {
        "resourceClaimName": "claim", "requestMappings": [mapping]}});
    let mut claimed = gpu.clone();
    claimed.status = serde_json::from_value(claim).unwrap();
    assert_eq!(rejected(&claimed, &with, &[]), None, "a claim provides it");
    let reason = rejected(&extended("hugepages-2Mi"), &node(json!({})), &[]).unwrap().0;
    assert_eq!(reason, "OutOfhugepages-2Mi");
}

#[test]
fn selectors_and_required_affinity_have_to_match() {
    let term = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    let affinity = |terms: Value| {
        json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    };
    let field = |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
    for (spec, fits) in [
        (json!({"nodeSelector": {"zone": "a"}}), true),
        (json!({"nodeSelector": {"zone": "b"}}), false),
        (json!({"nodeSelector": {"other": "a"}}), false),
        (affinity(json!([term("zone", "In", &["a", "b"])])), true),
        (affinity(json!([term("zone", "NotIn", &["a"])])), false),
        (affinity(json!([term("other", "NotIn", &["a"])])), true),
        (affinity(json!([term("zone", "Exists", &[])])), true),
        (affinity(json!([term("zone", "DoesNotExist", &[])])), false),
        (affinity(json!([term("cores", "Gt", &["7"])])), true),
        (affinity(json!([term("cores", "Gt", &["8"])])), false),
        (affinity(json!([term("cores", "Lt", &["9"])])), true),
        (affinity(json!([term("zone", "Lt", &["9"])])), false),
        (affinity(json!([term("zone", "Sounds", &["like"])])), false),
        (affinity(json!([field("node1")])), true),
        (affinity(json!([field("node2")])), false),
        (affinity(json!([field("node2"), term("zone", "Exists", &[])])), true),
        (affinity(json!([{}])), false),
    ] {
        let found = rejected(&pod(spec.clone()), &node(json!({})), &[]);
        let expected = (!fits).then(|| {
            let text =
                "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
            ("NodeAffinity".to_owned(), text.to_owned())
        });
        assert_eq!(found, expected, "{spec}");
    }
}

#[test]
fn a_port_of_the_host_belongs_to_one_pod() {
    let on = |port: Value| pod(json!({"containers": [{"name": "m", "ports": [port]}]}));
    let taken =
        [Arc::new(on(json!({"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"})))];
    for (port, free) in [
        (json!({"containerPort": 80}), true),
        (json!({"containerPort": 1, "hostPort": 8081}), true),
        (json!({"containerPort": 1, "hostPort": 8080}), false),
        (json!({"containerPort": 1, "hostPort": 8080, "protocol": "UDP"}), true),
        (json!({"containerPort": 1, "hostPort": 8080, "hostIP": "10.0.0.2"}), true),
        (json!({"containerPort": 1, "hostPort": 8080, "hostIP": "10.0.0.1"}), false),
    ] {
        let reason = rejected(&on(port.clone()), &node(json!({})), &taken).map(|found| found.0);
        assert_eq!(reason.as_deref(), (!free).then_some("NodePorts"), "{port}");
    }
}

#[test]
fn only_taints_that_evict_matter_and_static_pods_tolerate_all() {
    let tainted = |effect: &str| {
        node(json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": effect}]}}))
    };
    let with = |toleration: Value| pod(json!({"tolerations": [toleration]}));
    for (pod, fits) in [
        (pod(json!({})), false),
        (with(json!({"operator": "Exists"})), true),
        (with(json!({"key": "k", "value": "v"})), true),
        (with(json!({"key": "k", "value": "w"})), false),
        (with(json!({"key": "k", "operator": "Exists", "effect": "NoExecute"})), true),
        (with(json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"})), false),
        (with(json!({"key": "other", "operator": "Exists"})), false),
    ] {
        let reason = rejected(&pod, &tainted("NoExecute"), &[]).map(|found| found.0);
        assert_eq!(reason.as_deref(), (!fits).then_some("TaintToleration"), "{pod:?}");
    }
    assert_eq!(rejected(&pod(json!({})), &tainted("NoSchedule"), &[]), None);
    let mut of_file = pod(json!({}));
    let annotations = [("kubernetes.io/config.source".to_owned(), "file".to_owned())];
    of_file.metadata.annotations = Some(annotations.into());
    assert_eq!(rejected(&of_file, &tainted("NoExecute"), &[]), None);
}
