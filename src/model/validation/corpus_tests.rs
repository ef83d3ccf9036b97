//! Manifests as they are met in the field, from bytes to a judged pod.

use super::*;
use crate::model::Pod;

/// As kubeadm writes it.
const CONTROL_PLANE: &str = r#"apiVersion: v1
kind: Pod
metadata:
  annotations:
    kubeadm.kubernetes.io/etcd.advertise-client-urls: https://192.0.2.1:2379
  creationTimestamp: null
  labels:
    component: etcd
    tier: control-plane
  name: etcd
  namespace: kube-system
spec:
  containers:
  - command:
    - etcd
    - --advertise-client-urls=https://192.0.2.1:2379
    - --listen-metrics-urls=http://127.0.0.1:2381
    image: registry.example/etcd:3.6.4-0
    imagePullPolicy: IfNotPresent
    livenessProbe:
      failureThreshold: 8
      httpGet:
        host: 127.0.0.1
        path: /livez
        port: probe-port
        scheme: HTTP
      initialDelaySeconds: 10
      periodSeconds: 10
      timeoutSeconds: 15
    name: etcd
    ports:
    - containerPort: 2381
      name: probe-port
      protocol: TCP
    readinessProbe:
      failureThreshold: 3
      httpGet: {host: 127.0.0.1, path: /readyz, port: probe-port, scheme: HTTP}
      periodSeconds: 1
      timeoutSeconds: 15
    resources:
      requests:
        cpu: 100m
        memory: 100Mi
    startupProbe:
      failureThreshold: 24
      httpGet: {host: 127.0.0.1, path: /readyz, port: probe-port, scheme: HTTP}
    volumeMounts:
    - mountPath: /var/lib/etcd
      name: etcd-data
    - mountPath: /etc/kubernetes/pki/etcd
      name: etcd-certs
  hostNetwork: true
  priority: 2000001000
  priorityClassName: system-node-critical
  securityContext:
    seccompProfile:
      type: RuntimeDefault
  volumes:
  - hostPath:
      path: /etc/kubernetes/pki/etcd
      type: DirectoryOrCreate
    name: etcd-certs
  - hostPath:
      path: /var/lib/etcd
      type: DirectoryOrCreate
    name: etcd-data
status: {}
"#;

/// Everything at once: sidecar, init container, hooks, downward API, sysctls, aliases, DNS.
const RICH: &str = r#"# a remark before
---
apiVersion: v1
kind: Pod
metadata:
  name: rich
  labels: {app: rich, "8": "yes"}
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 0x1E
  shareProcessNamespace: Yes
  hostAliases:
  - ip: "::1"
    hostnames: [a.example, b]
  dnsPolicy: None
  dnsConfig:
    nameservers: [192.0.2.53]
    searches: [svc.example., .]
    options: [{name: ndots, value: "2"}, {name: edns0}]
  securityContext:
    fsGroup: 0100
    sysctls: [{name: net.ipv4.ip_local_port_range, value: "1024 65535"}]
  initContainers:
  - name: sidecar
    image: i@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
    restartPolicy: Always
    startupProbe: {exec: {command: [test, -f, /tmp/x]}}
  - name: once
    image: host:5000/i
    args: ["", "~", 'null', "0644"]
  containers:
  - &main
    name: main
    image: i:1
    tty: off
    stdin: n
    env:
    - {name: EMPTY}
    - {name: QUOTED, value: "123"}
    - name: FOLDED
      value: >-
        one
        two
    - name: IP
      valueFrom: {fieldRef: {fieldPath: status.podIP}}
    - name: LABEL
      valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}
    - name: CPU
      valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}
    resources:
      limits: {cpu: .5, memory: 1.5Gi}
      requests: {cpu: 1e-1}
    lifecycle:
      postStart: {exec: {command: [sh, -c, "echo $(X) > /tmp/x"]}}
      preStop: {sleep: {seconds: 5}}
    livenessProbe: {grpc: {port: 9000}}
    volumeMounts: &mounts
    - {name: scratch, mountPath: /scratch}
    - {name: logs, mountPath: /logs, readOnly: true, mountPropagation: HostToContainer}
  - <<: *main
    name: second
    lifecycle: ~
    livenessProbe: null
    volumeMounts: *mounts
  volumes:
  - name: scratch
    emptyDir: {medium: Memory, sizeLimit: 64Mi}
  - name: logs
    hostPath: {path: /var/log}
---
"#;

fn validated(text: &str) -> Pod {
    let decoded = decode_pod(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(decoded.unknown_fields, [""; 0]);
    let mut pod = decoded.value;
    set_pod_defaults(&mut pod);
    assert_eq!(validate_pod(&pod), []);
    assert_eq!(validate_static_pod_references(&pod, LocalConfigMapsAndSecrets::None), []);
    assert_eq!(unsupported_fields(&pod), []);
    pod
}

#[test]
fn control_plane_manifests_are_good() {
    let pod = validated(CONTROL_PLANE);
    let spec = pod.spec.unwrap();
    assert_eq!(spec.containers[0].ports.as_ref().unwrap()[0].host_port, Some(2381));
    assert_eq!(spec.containers[0].startup_probe.as_ref().unwrap().period_seconds, Some(10));
}

#[test]
fn a_rich_manifest_is_good_and_decoded_in_full() {
    let pod = validated(RICH);
    let spec = pod.spec.unwrap();
    assert_eq!(spec.termination_grace_period_seconds, Some(30));
    assert_eq!(spec.share_process_namespace, Some(true));
    assert_eq!(spec.security_context.unwrap().fs_group, Some(0o100));
    let init = spec.init_containers.unwrap();
    assert_eq!(init[1].args.as_deref().unwrap(), ["", "~", "null", "0644"]);
    assert_eq!(init[1].image_pull_policy.as_deref(), Some("Always"));
    let [main, second] = &spec.containers[..] else {
        panic!("two containers");
    };
    assert_eq!(main.tty, Some(false));
    assert_eq!(main.stdin, Some(false));
    let env = main.env.as_ref().unwrap();
    assert_eq!(env[2].value.as_deref(), Some("one two"));
    assert_eq!(second.env.as_ref(), Some(env));
    assert_eq!(second.lifecycle, None);
    assert_eq!(second.liveness_probe, None);
    let requests = main.resources.as_ref().unwrap().requests.as_ref().unwrap();
    assert_eq!(requests["cpu"].0, "100m");
    assert_eq!(requests["memory"].0, "1536Mi");
}

#[test]
fn a_pod_read_back_from_its_json_is_the_same() {
    for text in [CONTROL_PLANE, RICH] {
        let pod = decode_pod(text.as_bytes()).unwrap().value;
        let json = serde_json::to_string_pretty(&pod).unwrap();
        assert_eq!(decode_pod(json.as_bytes()).unwrap().value, pod);
    }
}

#[test]
fn a_manifest_cut_anywhere_is_refused_or_a_pod_but_never_a_panic() {
    for text in [CONTROL_PLANE, RICH] {
        for cut in (0..text.len()).filter(|cut| text.is_char_boundary(*cut)) {
            let part = &text[..cut];
            if let Ok(decoded) = decode_pod(part.as_bytes()) {
                let mut pod = decoded.value;
                set_pod_defaults(&mut pod);
                validate_pod(&pod);
            }
        }
    }
}
