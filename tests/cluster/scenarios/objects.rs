//! What pods of a cluster refer to: config maps, secrets, tokens, services.

use std::time::Duration;

use crate::cluster::{Cluster, DEADLINE};
use crate::support::wait::{holds, wait_for};

/// Less than the period of syncs that happen without a change.
const SOON: Duration = Duration::from_secs(20);

const OBJECTS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {mode: first}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: fixed}
immutable: true
data: {mode: first}
---
apiVersion: v1
kind: Service
metadata: {name: back-end}
spec: {ports: [{port: 80}]}
";

/// It waits for a secret that comes later.
const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sh, -c, 'echo $MODE $PASSWORD $BACK_END_SERVICE_PORT; exec sleep 1000']
    env:
    - {name: MODE, valueFrom: {configMapKeyRef: {name: settings, key: mode}}}
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: later, key: password}}}
    volumeMounts:
    - {name: settings, mountPath: /settings}
    - {name: later, mountPath: /later}
    - {name: fixed, mountPath: /fixed}
    - {name: optional, mountPath: /optional}
  volumes:
  - {name: settings, configMap: {name: settings}}
  - {name: later, secret: {secretName: later}}
  - {name: fixed, configMap: {name: fixed}}
  - {name: optional, configMap: {name: much-later, optional: true}}
";

pub async fn objects_and_tokens_reach_a_pod_and_their_changes_too() {
    let cluster = Cluster::start();
    cluster.create(OBJECTS);
    cluster.create(POD);
    wait_for("an event says what is missing", DEADLINE, || async {
        let events = cluster.kubectl(&["events", "--for", "pod/reader"]);
        holds(events.contains("secret \"later\" not found"), events)
    })
    .await;
    let literal = "--from-literal=password=open";
    cluster.kubectl(&["create", "secret", "generic", "later", literal]);
    cluster.wait("condition=Ready", "pod/reader");
    assert_eq!(cluster.kubectl(&["logs", "reader"]), "first open 80\n");
    let read = |path: &str| cluster.kubectl(&["exec", "reader", "--", "cat", path]);
    assert_eq!(read("/settings/mode"), "first");
    assert_eq!(read("/later/password"), "open");
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    assert_eq!(read(&format!("{account}/namespace")), "default");
    assert_eq!(read(&format!("{account}/token")).split('.').count(), 3);
    assert_eq!(read("/fixed/mode"), "first");
    // An immutable one is another object afterwards; the pod keeps what it started with.
    cluster.kubectl(&["delete", "configmap", "fixed"]);
    let second = "--from-literal=mode=second";
    for name in ["fixed", "much-later"] {
        cluster.kubectl(&["create", "configmap", name, second]);
    }
    let changed = r#"{"data": {"mode": "second"}}"#;
    cluster.kubectl(&["patch", "configmap", "settings", "-p", changed]);
    let changed = r#"{"stringData": {"password": "shut"}}"#;
    cluster.kubectl(&["patch", "secret", "later", "-p", changed]);
    for (path, expected) in
        [("/settings/mode", "second"), ("/later/password", "shut"), ("/optional/mode", "second")]
    {
        // Sooner than any periodic sync.
        wait_for(&format!("{path} follows"), SOON, || async {
            let args = ["exec", "reader", "--", "cat", path];
            let content = cluster.try_kubectl(&args)?;
            holds(content == expected, content)
        })
        .await;
    }
    assert_eq!(read("/fixed/mode"), "first");
    // Variables of a container do not change.
    assert_eq!(cluster.kubectl(&["logs", "reader"]), "first open 80\n");
}

/// The least that the API server gives. A token is renewed at four fifths of its life.
const TOKEN_SECONDS: u64 = 600;

fn with_token() -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: holder}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sleep, '10000']
    volumeMounts: [{{name: token, mountPath: /token}}]
  volumes:
  - name: token
    projected: {{sources: [{{serviceAccountToken: {{path: token, expirationSeconds: {TOKEN_SECONDS}}}}}]}}
"
    )
}

pub async fn a_token_is_renewed_while_its_pod_runs() {
    let cluster = Cluster::start();
    cluster.create(&with_token());
    cluster.wait("condition=Ready", "pod/holder");
    let read = || cluster.try_kubectl(&["exec", "holder", "--", "cat", "/token/token"]);
    let first = read().unwrap();
    let life = Duration::from_secs(TOKEN_SECONDS);
    wait_for("another token before the first one expires", life, || async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        holds(read()? != first, "the first token")
    })
    .await;
    let pod = cluster.get(&["pod/holder"]);
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
}

/// Its volume is a directory of the node, which it only reads.
const CLAIM: &str = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  storageClassName: by-hand
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sh, -c, 'test -e /data/passwd && ! touch /data/made && echo read; exec sleep 1000']
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data, readOnly: true}}
";

/// A user who may write to a directory of root's only because its group is the pod's.
const OWNED: &str = "
apiVersion: v1
kind: PersistentVolume
metadata: {name: owned}
spec:
  storageClassName: owned
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Mi}
  local: {path: DIRECTORY}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node1]}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: own}
spec:
  storageClassName: owned
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: owner}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 3000}
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sh, -c, 'touch /data/made && stat -c %g /data/made; exec sleep 1000']
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: own}}
";

/// A local volume for claims with the class `by-hand`.
pub(super) const VOLUME: &str = "
apiVersion: v1
kind: PersistentVolume
metadata: {name: here}
spec:
  storageClassName: by-hand
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Mi}
  local: {path: /etc}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node1]}]
";

pub async fn a_pod_waits_for_its_claim_and_reads_the_volume_that_it_is_bound_to() {
    let cluster = Cluster::start();
    cluster.create(CLAIM);
    wait_for("an event says what is missing", DEADLINE, || async {
        let events = cluster.kubectl(&["events", "--for", "pod/user"]);
        holds(events.contains("PVC is not bound"), events)
    })
    .await;
    cluster.create(VOLUME);
    cluster.wait("condition=Ready", "pod/user");
    wait_for("it read its volume", DEADLINE, || async {
        let logs = cluster.kubectl(&["logs", "user"]);
        holds(logs.contains("read"), logs)
    })
    .await;
    cluster.kubectl(&["delete", "pod", "user"]);
    cluster.kubectl(&["delete", "pvc", "data"]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    cluster.create(&OWNED.replace("DIRECTORY", path));
    cluster.wait("condition=Ready", "pod/owner");
    wait_for("it wrote to its volume", DEADLINE, || async {
        let logs = cluster.kubectl(&["logs", "owner"]);
        holds(logs.contains("3000"), logs)
    })
    .await;
    assert!(directory.path().join("made").exists());
    cluster.kubectl(&["delete", "pod", "owner"]);
    cluster.kubectl(&["delete", "pvc", "own"]);
}
