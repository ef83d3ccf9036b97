//! Manifests: decoding, defaults, validation, and the way to a static pod.

use crate::engine::{Target, fuzz, path};
use jiff::Timestamp;
use kubelet::model::Pod;
use kubelet::model::validation::{
    FieldError, LocalConfigMapsAndSecrets, decode_pod, decode_pod_or_list, set_pod_defaults,
    unsupported_fields, validate_pod, validate_static_pod_references,
};

const SEEDS: &[&str] = &[
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: a, image: b}\n",
    r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","labels":{"a":"b"}},
       "spec":{"containers":[{"name":"a","image":"b","ports":[{"containerPort":80}],
       "resources":{"limits":{"cpu":"100m","memory":"1Gi"}}}]}}"#,
    "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n  spec: {containers: []}\n- {kind: Pod}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: &n x, annotations: {a: *n}}\nspec: &s\n  hostNetwork: true\n",
    "# a comment\n---\napiVersion: v1\nkind: Pod\n---\n",
    "kind: Pod\nspec: {volumes: [{name: v, secret: {defaultMode: 0644}}]}\n",
];

const WORDS: &[&str] = &[
    "apiVersion: v1",
    "kind: Pod",
    "kind: PodList",
    "metadata:",
    "spec:",
    "status:",
    "items:",
    "containers:",
    "initContainers:",
    "volumes:",
    "volumeMounts:",
    "env:",
    "valueFrom:",
    "fieldRef: {fieldPath: metadata.name}",
    "resources:",
    "limits:",
    "requests:",
    "100m",
    "1Gi",
    "1e400",
    "-1",
    "0644",
    "0o17",
    "0x7fffffff",
    "9223372036854775808",
    "1.5",
    ".nan",
    "~",
    "null",
    "true",
    "\"\"",
    "livenessProbe:",
    "readinessProbe:",
    "httpGet: {port: http}",
    "exec: {command: [a]}",
    "securityContext:",
    "hostPath: {path: /a}",
    "emptyDir: {}",
    "restartPolicy: Always",
    "- ",
    "  ",
    "\n",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "&a ",
    "*a",
    "!!binary ",
    "!!str ",
    "|\n",
    ">-\n",
    "? ",
    "---\n",
    "...\n",
    "%YAML 1.2\n",
    "<<: ",
    "\"\\u0000\"",
    "\u{feff}",
    "annotations:",
    "labels:",
    "uid: ",
    "namespace: ",
    "name: ",
];

fn has_long_key(json: &[u8]) -> bool {
    fn in_value(value: &serde_json::Value) -> bool {
        match value {
            serde_json::Value::Object(fields) => {
                fields.iter().any(|(key, value)| format!("{key:?}").len() > 1000 || in_value(value))
            }
            serde_json::Value::Array(items) => items.iter().any(in_value),
            _ => false,
        }
    }
    in_value(&serde_json::from_slice(json).unwrap())
}

fn judge(mut pod: Pod) -> Vec<FieldError> {
    let as_written = pod.clone();
    set_pod_defaults(&mut pod);
    let mut again = pod.clone();
    set_pod_defaults(&mut again);
    assert!(again == pod, "defaults are set once");
    let json = serde_json::to_vec(&as_written).unwrap();
    let read = decode_pod(&json).map(|decoded| decoded.value);
    // A pod that can be held at all can be written and read again, unless a key is longer than YAML lets
    // one be on its line; no name that the API takes is.
    assert!(
        read.as_ref() == Ok(&as_written) || has_long_key(&json),
        "{read:?}\n{}",
        String::from_utf8_lossy(&json)
    );
    let mut errors = validate_pod(&pod);
    errors.extend(validate_static_pod_references(&pod, LocalConfigMapsAndSecrets::None));
    errors.extend(unsupported_fields(&pod));
    for error in &errors {
        assert!(!error.to_string().is_empty());
    }
    errors
}

fn run(input: &[u8]) -> u64 {
    let one = decode_pod(input);
    let many = decode_pod_or_list(input);
    if let (Ok(one), Ok(many)) = (&one, &many) {
        assert_eq!(many.value, std::slice::from_ref(&one.value));
    }
    match many {
        Err(error) => {
            assert!(one.is_err(), "a pod is a pod wherever it comes from");
            assert!(!error.to_string().is_empty());
            // What the input itself says is no new path.
            let plain = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase());
            let words: Vec<_> = error.message.split(' ').filter(plain).take(4).collect();
            path(&(error.field.matches('.').count().min(8), words))
        }
        Ok(decoded) => {
            let now = Timestamp::UNIX_EPOCH;
            let mut led = Vec::new();
            for pod in decoded.value {
                let origin = kubelet::pods::pod_config::ManifestOrigin {
                    node_name: "node1",
                    source: kubelet::model::PodSource::File,
                    location: "/manifests/a.yaml",
                    config_maps_and_secrets: LocalConfigMapsAndSecrets::None,
                };
                // Refusing it is fine; what is wrong with it is listed below.
                let _ = kubelet::pods::pod_config::static_pod(pod.clone(), origin, now);
                let plain = |path: String| path.split(['[', '"']).next().unwrap_or("").to_owned();
                led.extend(judge(pod).into_iter().map(|error| plain(error.path)));
            }
            path(&(decoded.unknown_fields.len().min(3), led))
        }
    }
}

#[test]
fn manifests() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let directories = ["examples/manifests", "tests/manifests"];
    let files =
        directories.iter().flat_map(|directory| std::fs::read_dir(root.join(directory)).unwrap());
    let files = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let mut seeds: Vec<Vec<u8>> = SEEDS.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    seeds.extend(files);
    fuzz(&Target { name: "manifests", seeds, words: WORDS, run: &run });
}
