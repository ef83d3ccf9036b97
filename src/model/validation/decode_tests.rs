use super::*;

fn pod(body: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n{body}")
}

fn decoded(text: &str) -> k8s_openapi::api::core::v1::Pod {
    decode_pod(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}")).value
}

fn json(text: &str) -> String {
    serde_json::to_value(decoded(text)).unwrap().to_string()
}

fn refusal(text: &str) -> String {
    decode_pod(text.as_bytes()).err().unwrap_or_else(|| panic!("accepted:\n{text}")).to_string()
}

#[test]
fn scalars_are_read_as_kubernetes_reads_them() {
    for (body, expected) in [
        ("spec: {hostNetwork: yes}", "\"hostNetwork\":true"),
        ("spec: {hostNetwork: on}", "\"hostNetwork\":true"),
        ("spec: {hostNetwork: Off}", "\"hostNetwork\":false"),
        ("spec: {hostNetwork: No}", "\"hostNetwork\":false"),
        ("spec: {volumes: [{name: v, secret: {defaultMode: 0644}}]}", "\"defaultMode\":420"),
        ("spec: {volumes: [{name: v, secret: {defaultMode: 0o644}}]}", "\"defaultMode\":420"),
        ("spec: {activeDeadlineSeconds: 1e3}", "\"activeDeadlineSeconds\":1000"),
        ("spec: {activeDeadlineSeconds: 60.0}", "\"activeDeadlineSeconds\":60"),
        ("spec: {priority: 0x10}", "\"priority\":16"),
        (
            "spec: {containers: [{name: c, resources: {limits: {cpu: 1, memory: 1e3}}}]}",
            "{\"cpu\":\"1\",\"memory\":\"1000\"}",
        ),
        (
            "spec: {containers: [{name: c, resources: {limits: {cpu: 0.1, memory: 1Gi}}}]}",
            "{\"cpu\":\"0.1\",\"memory\":\"1Gi\"}",
        ),
        ("spec: {containers: [{name: c, livenessProbe: {tcpSocket: {port: 80}}}]}", "\"port\":80"),
        (
            "spec: {containers: [{name: c, livenessProbe: {tcpSocket: {port: http}}}]}",
            "\"port\":\"http\"",
        ),
        (
            "spec: {containers: [{name: c, livenessProbe: {tcpSocket: {port: \"80\"}}}]}",
            "\"port\":\"80\"",
        ),
        ("spec: {nodeSelector: {a: , b: ~, c: null}}", "{\"a\":\"\",\"b\":\"\",\"c\":\"\"}"),
        ("spec: {nodeSelector: {1: x, on: y2}}", "{\"1\":\"x\",\"true\":\"y2\"}"),
        ("spec: {containers: [{name: c, args: [\"123\", 'yes']}]}", "[\"123\",\"yes\"]"),
        ("spec: {containers: [{name: c, env: [{name: A, value: 2024-01-01}]}]}", "2024-01-01"),
        ("spec: {containers: [{name: c, args: [a, ~, ]}]}", "[\"a\",\"\"]"),
        ("spec: {containers: [{name: c, env: [~]}]}", "[{\"name\":\"\"}]"),
        (
            "spec: {containers: [{name: c, livenessProbe: {tcpSocket: {port: 80.0}}}]}",
            "\"port\":80",
        ),
        (
            "spec: {containers: [{name: c, env: [{name: A, value: !!binary aGk=}]}]}",
            "\"value\":\"hi\"",
        ),
        ("spec:\n  volumes:\n  - name: v\n    emptyDir:\n", "[{\"name\":\"v\"}]"),
        ("spec:\n  volumes:\n  - name: v\n    emptyDir: {}\n", "\"emptyDir\":{}"),
        (
            "spec:\n  containers:\n  - name: c\n    command:\n    - sh\n    - -c\n    - |\n      echo a\n      echo b\n",
            "echo a\\necho b\\n",
        ),
    ] {
        let json = json(&pod(body));
        assert!(json.contains(expected), "{body}\n{json}");
    }
}

#[test]
fn anchors_and_merge_keys_work() {
    let text = pod(
        "spec:\n  containers:\n  - &base\n    name: one\n    image: i\n  - <<: *base\n    name: two\n",
    );
    let pod = decoded(&text);
    let containers = pod.spec.unwrap().containers;
    assert_eq!(containers[1].name, "two");
    assert_eq!(containers[1].image.as_deref(), Some("i"));
}

#[test]
fn wrong_values_name_line_and_field() {
    for (text, expected) in [
        (
            pod("spec:\n  containers:\n  - name: c\n    env:\n    - name: A\n      value: 123\n"),
            "line 10, column 14: spec.containers[0].env[0].value: expected a string, found a number",
        ),
        (
            pod("spec:\n  containers:\n  - name: c\n    env:\n    - name: A\n      value: yes\n"),
            "line 10, column 14: spec.containers[0].env[0].value: expected a string",
        ),
        (
            pod("spec:\n  hostNetwork: \"true\"\n"),
            "spec.hostNetwork: expected a boolean, found string",
        ),
        (pod("spec:\n  hostNetwork: 1\n"), "spec.hostNetwork: expected a boolean, found integer"),
        (
            pod("spec:\n  containers:\n  - ports:\n    - containerPort: \"80\"\n"),
            "spec.containers[0].ports[0].containerPort: expected i32, found string",
        ),
        (pod("spec:\n  priority: 1.5\n"), "spec.priority: expected i32, found floating"),
        (pod("spec:\n  priority: 99999999999\n"), "spec.priority: "),
        (
            pod("spec:\n  containers:\n    name: c\n"),
            "line 7, column 5: spec.containers: expected sequence",
        ),
        (pod("spec:\n  containers: c\n"), "line 6, column 15: spec.containers: expected sequence"),
        (
            pod("spec:\n  volumes:\n  - name: v\n    hostPath:\n      path: [a]\n"),
            "line 9, column 13: spec.volumes[0].hostPath.path: expected string",
        ),
        (
            pod("spec:\n  volumes:\n  - name: v\n    hostPath: /x\n"),
            "line 8, column 15: spec.volumes[0].hostPath: expected mapping",
        ),
        (pod("spec:\n  a: 1\n  a: 2\n"), "line 7, column 3: spec: duplicate key \"a\""),
        (pod("  name: b\n"), "line 5, column 3: metadata: duplicate key \"name\""),
        (pod("spec:\n\tcontainers: []\n"), "line 6"),
        (pod("spec: {containers: [}\n"), "line 5"),
        (pod("spec: \"unfinished\n"), "line "),
        (pod("spec: *nowhere\n"), "line 5"),
        (
            pod("spec:\n  containers:\n  - name: c\n    resources: {limits: {cpu: [1]}}\n"),
            "spec.containers[0].resources.limits.cpu: expected Quantity, found sequence",
        ),
        (
            pod("spec:\n  nodeSelector: {? [a] : b}\n"),
            "line 6, column 20: spec.nodeSelector: a key that is not a string",
        ),
        (
            pod("x: &x\n  hostNetwork: 1\nspec: *x\n"),
            "line 7, column 7: spec.hostNetwork: expected a boolean",
        ),
    ] {
        let error = refusal(&text);
        assert!(error.contains(expected), "{text}\n{error}");
    }
}

#[test]
fn only_a_v1_pod_is_a_pod() {
    for (text, expected) in [
        ("", "no object in the manifest"),
        ("# nothing\n", "no object in the manifest"),
        ("---\n", "no object in the manifest"),
        ("{}", "no object in the manifest"),
        ("null", "no object in the manifest"),
        ("[]", "line 1, column 1: expected mapping"),
        ("hello", "line 1, column 1: expected mapping"),
        ("kind: Pod\n", "apiVersion: Required value"),
        ("apiVersion: v1\n", "kind: Required value"),
        (
            "apiVersion: apps/v1\nkind: Deployment\n",
            "line 2, column 7: kind: a static pod must be a Pod (v1), and this is a Deployment (apps/v1)",
        ),
        (
            "kind: StatefulSet\n",
            "line 1, column 7: kind: a static pod must be a Pod (v1), and this is a StatefulSet",
        ),
        (
            "apiVersion: v1\nkind: PodTemplate\ntemplate: {spec: {containers: 1}}\n",
            "kind: a static pod must be a Pod (v1), and this is a PodTemplate (v1)",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n",
            "kind: a static pod must be a Pod (v1), and this is a ConfigMap (v1)",
        ),
        (
            "apiVersion: v1\nkind: List\nitems: []\n",
            "kind: a static pod must be a Pod (v1), and this is a List (v1): each pod needs a file of its own",
        ),
        (
            "apiVersion: v1\nkind: PodList\nitems: []\n",
            "kind: a static pod must be a Pod (v1), and this is a PodList (v1): each pod needs a file of its own",
        ),
        (
            "apiVersion: v1\nkind: \"a\\nb\"\n",
            "kind: a static pod must be a Pod (v1), and this is a \"a\\nb\" (v1)",
        ),
        (
            "apiVersion: v1beta1\nkind: Pod\n",
            "apiVersion: Unsupported value: \"v1beta1\": supported values: \"v1\"",
        ),
        ("kind: Pod\napiVersion: v1\nspec: []\n", "spec: expected mapping"),
        ("apiVersion: 1\nkind: Pod\n", "apiVersion: expected a string"),
    ] {
        let error = refusal(text);
        assert!(error.contains(expected), "{text:?}\n{error}");
    }
}

#[test]
fn a_second_document_is_an_error_and_an_empty_one_is_not() {
    let error = refusal(&format!("{}---\nkind: Pod\n", pod("")));
    assert!(error.starts_with("line "), "{error}");
    assert!(error.contains("more than one document"), "{error}");
    for text in [
        format!("---\n{}", pod("")),
        format!("{}---\n", pod("")),
        format!("{}---\n# a remark\n", pod("")),
        format!("{}...\n", pod("")),
        format!("# a remark\n---\n{}", pod("")),
    ] {
        assert_eq!(decoded(&text).metadata.name.as_deref(), Some("a"), "{text}");
    }
}

#[test]
fn byte_order_marks_carriage_returns_and_json_are_fine() {
    for text in [
        format!("\u{feff}{}", pod("spec: {}\n")),
        pod("spec:\n  hostname: x\n").replace('\n', "\r\n"),
        "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Pod\",\n\t\"metadata\": {\n\t\t\"name\": \"a\"\n\t}\n}\n"
            .into(),
        "{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\",\"creationTimestamp\":null},\"status\":{}}"
            .into(),
    ] {
        assert_eq!(decoded(&text).metadata.name.as_deref(), Some("a"), "{text}");
    }
    let text = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","annotations":{"x":"\ud83d\ude00\u003c\/"}}}"#;
    assert_eq!(decoded(text).metadata.annotations.unwrap()["x"], "\u{1f600}</");
}

#[test]
fn unknown_fields_are_listed_with_their_path() {
    let text = pod(
        "extra: 1\nspec:\n  containers:\n  - name: c\n    imagePullPolice: Always\n  hostnetwork: true\n",
    );
    let decoded = decode_pod(text.as_bytes()).unwrap();
    assert_eq!(
        decoded.unknown_fields,
        ["extra", "spec.containers[0].imagePullPolice", "spec.hostnetwork"]
    );
    let text = pod(
        "  labels: {a: b}\n  managedFields: [{fieldsV1: {\"f:spec\": {}}}]\nspec:\n  volumes:\n  - name: v\n    emptyDirr:\n    secret:\n  - {name: w, nosuch: {a: 1}}\n",
    );
    let decoded = decode_pod(text.as_bytes()).unwrap();
    assert_eq!(decoded.unknown_fields, ["spec.volumes[0].emptyDirr", "spec.volumes[1].nosuch"]);
    let list = "apiVersion: v1\nkind: PodList\nspec: {}\nmetadata: {continue: a, name: b}\nitems:\n- x: 1\n  kind:\n";
    let decoded = decode_pod_or_list(list.as_bytes()).unwrap();
    assert_eq!(decoded.unknown_fields, ["spec", "metadata.name", "items[0].x"]);
}

#[test]
fn a_list_of_pods_is_read_from_a_url() {
    let text = "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: b}\n";
    let pods = decode_pod_or_list(text.as_bytes()).unwrap().value;
    let names: Vec<_> = pods.iter().filter_map(|p| p.metadata.name.as_deref()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(decode_pod_or_list(pod("").as_bytes()).unwrap().value.len(), 1);
    let error = decode_pod_or_list(b"apiVersion: v1\nkind: PodList\nitems:\n- kind: PodList\n")
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "line 4, column 9: items[0].kind: an item of the list must be a Pod (v1), and this is a PodList"
    );
    assert!(decode_pod_or_list(b"apiVersion: v1\nkind: PodList\n").unwrap().value.is_empty());
}

#[test]
fn values_that_may_be_secret_stay_out_of_errors() {
    for body in [
        "spec:\n  containers:\n  - env:\n    - name: P\n      value: 31337\n",
        "spec:\n  containers:\n  - env: hunter31337\n",
        "spec:\n  containers:\n  - env: [hunter31337]\n",
        "spec:\n  priority: hunter31337\n",
        "spec:\n  containers:\n  - ports: [{containerPort: \"31337\"}]\n",
        "  creationTimestamp: 31337-hunter\n",
        "  creationTimestamp: \"31337\"\n",
        "  generation: 31337313373133731337\n",
        "spec:\n  priority: 31337313373\n",
        "spec:\n  containers:\n  - livenessProbe: {tcpSocket: {port: 31337313373}}\n",
        "spec:\n  containers:\n  - env: [{name: P, value: !!int hunter31337}]\n",
        "spec:\n  containers:\n  - env: [{name: P, value: !!binary hunter31337}]\n",
        "spec:\n  containers:\n  - env: [{name: P, value: 31337e9999}]\n",
        "spec:\n  containers:\n  - env: [{name: P, value: *hunter31337}]\n",
        "spec:\n  containers:\n  - env: [{name: P, value: \"hunter31337]\n",
        "spec:\n  containers:\n  - env: [{name: P, value: @hunter31337}]\n",
        "spec:\n  containers:\n  - env: [{name: P, value: \"\\hunter31337\"}]\n",
        "spec:\n  containers: {<<: hunter31337}\n",
    ] {
        let error = refusal(&pod(body));
        assert!(!error.contains("hunter"), "{error}");
        assert!(!error.contains("31337"), "{error}");
    }
}

#[test]
fn bombs_are_refused_quickly() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let previous = format!("*a{},", level - 1).repeat(10);
        bomb.push_str(&format!("a{level}: &a{level} [{previous}]\n"));
    }
    bomb.push_str(&pod(""));
    assert!(refusal(&bomb).contains("line "), "{}", refusal(&bomb));

    let text = "x".repeat(1 << 20);
    let wide = pod(&format!(
        "spec:\n  containers:\n  - name: c\n    args:\n    - &x {text}\n{}",
        "    - *x\n".repeat(1000)
    ));
    let error = refusal(&wide);
    assert!(error.contains("too much"), "{error}");

    let deep = pod(&format!("x: {}{}\n", "[".repeat(100_000), "]".repeat(100_000)));
    refusal(&deep);
    let deep = pod(&format!("x: {}\n", "{a: ".repeat(5_000)));
    refusal(&deep);
    let nodes = pod(&format!("x: [{}]\n", "1,".repeat(2_000_000)));
    refusal(&nodes);
    let cycle = pod("spec: &s\n  affinity: *s\n");
    refusal(&cycle);
}

#[test]
fn size_and_encoding_are_checked_first() {
    let huge = format!("{}#{}", pod(""), "x".repeat(MAX_MANIFEST_BYTES));
    assert_eq!(refusal(&huge), "larger than 10 MiB");
    let mut bytes = pod("").into_bytes();
    bytes.extend(b"x: \xff\n");
    assert_eq!(decode_pod(&bytes).unwrap_err().to_string(), "line 5: not UTF-8 text");
}

#[test]
fn ten_thousand_containers_are_read() {
    let container = "  - name: c\n    image: registry.example/app:1\n    ports: [{containerPort: 80}]\n    env:\n    - name: A\n      value: b\n";
    let text = pod(&format!("spec:\n  containers:\n{}", container.repeat(10_000)));
    assert_eq!(decoded(&text).spec.unwrap().containers.len(), 10_000);
}

proptest::proptest! {
    #[test]
    fn no_input_makes_the_decoder_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        let _ = decode_pod(&bytes);
    }

    #[test]
    fn no_damaged_manifest_makes_the_decoder_panic(cut in 0_usize..400, byte in proptest::prelude::any::<u8>(), at in 0_usize..400) {
        let text = pod("spec:\n  containers:\n  - &c {name: c, image: i, env: [{name: A, value: \"1\"}]}\n  - <<: *c\n    name: d\n  volumes:\n  - name: v\n    hostPath: {path: /x}\n");
        let mut bytes = text.into_bytes();
        bytes.truncate(cut);
        if let Some(slot) = bytes.get_mut(at) {
            *slot = byte;
        }
        let _ = decode_pod_or_list(&bytes);
    }
}
