//! What the rules cost that are evaluated for every pod, again and again: `cargo bench --bench pure`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use jiff::Timestamp;
use kubelet::base::clock;
use kubelet::cri::{ListChange, ListFingerprint, v1};
use kubelet::model::validation::{LocalConfigMapsAndSecrets, decode_pod};
use kubelet::model::{
    ContainerState, ContainerStatus, Pod, PodExt, PodSource, PodStatus, SandboxStatus,
    container_hash, keys,
};
use kubelet::pods::pod_config::{ManifestOrigin, SourcePods, static_pod};
use kubelet::pods::status::generate::StatusInputs;
use kubelet::pods::status::generate_api_pod_status;
use kubelet::resources::allocation::ResizeConditions;
use kubelet::runtime::kuberuntime::actions::{PodActionInputs, RecordedFacts, compute_pod_actions};
use kubelet::runtime::kuberuntime::{RestartAllStage, labels};
use kubelet::state::pod_cache::{self, ListEntry, PodRef};
use kubelet::state::probe_results::ContainerProbeResults;
use prost::Message;

const MANY: usize = 1000;

const MANIFEST: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
  labels: {app: web, tier: front}
spec:
  terminationGracePeriodSeconds: 10
  volumes:
  - name: data
    hostPath: {path: /srv/web}
  initContainers:
  - name: migrate
    image: registry.example/shop/migrate:1
  containers:
  - name: web
    image: registry.example/shop/web:1.4.2
    args: ["--listen", ":8080", "--pod", "$(POD_NAME)"]
    env:
    - {name: MODE, value: production}
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    ports: [{containerPort: 8080}]
    resources:
      requests: {cpu: 100m, memory: 64Mi}
      limits: {memory: 128Mi}
    readinessProbe: {httpGet: {path: /ready, port: 8080}}
    volumeMounts: [{name: data, mountPath: /data}]
  - name: log
    image: registry.example/shop/log:7
"#;

fn origin(location: &str) -> ManifestOrigin<'_> {
    ManifestOrigin {
        node_name: "node1",
        source: PodSource::File,
        location,
        config_maps_and_secrets: LocalConfigMapsAndSecrets::None,
    }
}

fn read(location: &str, manifest: &str, now: Timestamp) -> Pod {
    let decoded = decode_pod(manifest.as_bytes()).unwrap();
    static_pod(decoded.value, origin(location), now).unwrap()
}

fn pods(n: usize) -> Vec<Arc<Pod>> {
    let now = clock::timestamp();
    let one = |i: usize| {
        let manifest =
            MANIFEST.replace("name: web\n  namespace", &format!("name: p{i}\n  namespace"));
        Arc::new(read(&format!("/manifests/p{i}.yaml"), &manifest, now))
    };
    (0..n).map(one).collect()
}

/// What the runtime has of a pod that is as it should be.
fn running(pod: &Pod) -> PodStatus {
    let sandbox = SandboxStatus {
        id: format!("sandbox-{}", pod.uid()).as_str().into(),
        ready: true,
        created_at: 1_700_000_000_000_000_000,
        has_network_status: true,
        ips: vec!["10.0.0.7".into()],
        source: Some(PodSource::File),
        manifest_digest: pod.annotation(keys::MANIFEST_DIGEST).map(Arc::from),
        ..SandboxStatus::default()
    };
    let all = pod.init_containers().iter().chain(pod.containers());
    let containers = all.enumerate().map(|(i, container)| {
        let init = i < pod.init_containers().len();
        ContainerStatus {
            id: format!("{}-{}", container.name, pod.uid()).as_str().into(),
            name: container.name.as_str().into(),
            sandbox: sandbox.id.clone(),
            state: if init { ContainerState::Exited } else { ContainerState::Running },
            created_at: 1_700_000_001_000_000_000 + i as i64,
            started_at: 1_700_000_002_000_000_000,
            finished_at: if init { 1_700_000_003_000_000_000 } else { 0 },
            image: container.image.as_deref().unwrap_or_default().into(),
            image_ref: "sha256:0123456789abcdef".into(),
            hash: container_hash(container).into(),
            ..ContainerStatus::default()
        }
    });
    let mut status = PodStatus {
        uid: pod.uid(),
        name: pod.name().into(),
        namespace: pod.namespace().into(),
        containers: containers.collect(),
        sandboxes: vec![sandbox],
    };
    status.sort();
    status
}

fn manifests(c: &mut Criterion) {
    let now = clock::timestamp();
    c.bench_function("decode, default, validate and identify a manifest", |b| {
        b.iter(|| read("/manifests/web.yaml", black_box(MANIFEST), now));
    });
    let pods = pods(MANY);
    c.bench_function("merge: 1,000 new pods", |b| {
        b.iter_batched(
            || (SourcePods::new(PodSource::File), pods.clone()),
            |(mut known, list)| (known.merge(list, now), known),
            BatchSize::LargeInput,
        );
    });
    let mut known = SourcePods::new(PodSource::File);
    known.merge(pods.clone(), now);
    c.bench_function("merge: 1,000 pods, none changed", |b| {
        b.iter_batched(
            || pods.clone(),
            |list| assert!(known.merge(list, now).updates.is_empty()),
            BatchSize::LargeInput,
        );
    });
}

fn pod_history(c: &mut Criterion) {
    let pod = read("/manifests/web.yaml", MANIFEST, clock::timestamp());
    let (status, nothing, facts) = (running(&pod), PodStatus::default(), RecordedFacts::default());
    for (name, status) in [
        ("compute_pod_actions: nothing runs", &nothing),
        ("compute_pod_actions: all is well", &status),
    ] {
        let inputs = PodActionInputs {
            pod: &pod,
            status,
            probe_results: &|_| ContainerProbeResults::default(),
            facts: &facts,
        };
        c.bench_function(name, |b| b.iter(|| compute_pod_actions(black_box(&inputs))));
    }
    let resize = ResizeConditions::default();
    c.bench_function("generate_api_pod_status", |b| {
        b.iter(|| {
            let inputs = StatusInputs {
                pod: black_box(&pod),
                runtime: &status,
                runtime_name: "containerd",
                qos_class: "BestEffort",
                probe_results: &|_| ContainerProbeResults::default(),
                start_failure: &|_| None,
                back_off: &|_| None,
                old: None,
                api_status: None,
                needs_new_sandbox: false,
                restart_all: RestartAllStage::None,
                pod_is_terminal: false,
                host_ips: &[],
                pod_failure: None,
                resize: &resize,
                actuated_pod: None,
                device_health: &|_| None,
                recursive_read_only_mounts: false,
                now: clock::timestamp(),
            };
            generate_api_pod_status(&inputs).unwrap()
        });
    });
}

/// The reply to ListContainers, its maps in an order of their own each time it is made.
fn reply(pods: &[Arc<Pod>]) -> Bytes {
    let containers = pods.iter().flat_map(|pod| {
        let status = running(pod);
        status.containers.into_iter().map(|c| {
            let spec = pod.container(&c.name).unwrap();
            v1::Container {
                id: c.id.to_string(),
                pod_sandbox_id: c.sandbox.to_string(),
                metadata: Some(v1::ContainerMetadata { name: c.name.to_string(), attempt: 0 }),
                state: v1::ContainerState::ContainerRunning.into(),
                created_at: c.created_at,
                labels: labels::container_labels(pod, spec),
                annotations: labels::container_annotations(pod, spec, 0),
                ..v1::Container::default()
            }
        })
    });
    let containers = containers.collect();
    v1::ListContainersResponse { containers }.encode_to_vec().into()
}

fn decode(reply: Bytes) -> Result<Vec<v1::Container>, prost::DecodeError> {
    v1::ListContainersResponse::decode(reply).map(|reply| reply.containers)
}

fn lists(c: &mut Criterion) {
    let pods = pods(MANY);
    let (one, other) = (reply(&pods), reply(&pods));
    c.bench_function("relist: 3,000 containers, none changed", |b| {
        let mut fingerprint = ListFingerprint::new();
        fingerprint.compare(one.clone(), decode).unwrap();
        b.iter(|| {
            let seen = fingerprint.compare(black_box(other.clone()), decode).unwrap();
            assert_eq!(seen, ListChange::Unchanged);
        });
    });
    c.bench_function("relist: 3,000 containers, decoded", |b| {
        b.iter(|| {
            let mut fingerprint = ListFingerprint::new();
            fingerprint.compare(black_box(other.clone()), decode).unwrap()
        });
    });
    runtime_status(c, &pods);
}

fn runtime_status(c: &mut Criterion, pods: &[Arc<Pod>]) {
    let (mut sandboxes, mut containers) = (Vec::new(), Vec::new());
    for pod in pods {
        let (pod_ref, status) = (PodRef::of(pod), running(pod));
        let listed = |status| ListEntry { pod_ref: pod_ref.clone(), status };
        sandboxes.extend(status.sandboxes.into_iter().map(listed));
        let pod_ref = &pod_ref;
        containers.extend(
            status
                .containers
                .into_iter()
                .map(|status| ListEntry { pod_ref: pod_ref.clone(), status }),
        );
    }
    c.bench_function("pod cache: a first list of 1,000 pods", |b| {
        b.iter_batched(
            || (pod_cache::pod_cache(), sandboxes.clone(), containers.clone()),
            |((writer, cache), sandboxes, containers)| {
                writer.apply_list(writer.next_seq(), sandboxes, containers);
                (writer, cache)
            },
            BatchSize::LargeInput,
        );
    });
    let (writer, _cache) = pod_cache::pod_cache();
    let known: HashMap<_, _> = pods.iter().map(|pod| (pod.uid(), running(pod))).collect();
    for status in known.values() {
        let pod_ref = PodRef::of_status(status);
        for sandbox in &status.sandboxes {
            let item = pod_cache::ItemId::Sandbox(sandbox.id.clone());
            let read = pod_cache::InspectedItem::Sandbox(sandbox.clone());
            writer.apply(&pod_ref, &item, writer.next_seq(), read);
        }
        for container in &status.containers {
            let item = pod_cache::ItemId::Container(container.id.clone());
            let read = pod_cache::InspectedItem::Container(container.clone());
            writer.apply(&pod_ref, &item, writer.next_seq(), read);
        }
    }
    c.bench_function("pod cache: a list of 1,000 known pods", |b| {
        b.iter_batched(
            || (sandboxes.clone(), containers.clone()),
            |(sandboxes, containers)| writer.apply_list(writer.next_seq(), sandboxes, containers),
            BatchSize::LargeInput,
        );
    });
}

criterion_group!(benches, manifests, pod_history, lists);
criterion_main!(benches);
