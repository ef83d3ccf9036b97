//! A disk of the node as a volume.

#[path = "../../../src/volumes/tests/disk.rs"]
mod disk;

use crate::cluster::{Cluster, DEADLINE};
use crate::support::wait::{holds, wait_for};
use disk::Disk;

const VOLUME: &str = "
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  storageClassName: disks
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Mi}
  mountOptions: [noatime, errors=remount-ro]
  local: {path: DEVICE}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node1]}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec:
  storageClassName: disks
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Mi}}
";

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 3000}
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sh, -c, 'echo NAME >> /data/pods && cat /data/pods && grep \" /data \" /proc/mounts; exec sleep 1000']
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: disk}}
";

/// The one that `hostPath` has no options for.
const REFUSED: &str = "
apiVersion: v1
kind: PersistentVolume
metadata: {name: refused}
spec:
  storageClassName: refused
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Mi}
  mountOptions: [noatime]
  hostPath: {path: /etc}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: refused}
spec:
  storageClassName: refused
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Mi}}
";

/// A volume for a claim that is generated, and the pod for which it is.
const EPHEMERAL: &str = "
apiVersion: v1
kind: PersistentVolume
metadata: {name: generated}
spec:
  storageClassName: generated
  persistentVolumeReclaimPolicy: Retain
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Mi}
  hostPath: {path: /run/generated, type: DirectoryOrCreate}
---
apiVersion: v1
kind: Pod
metadata: {name: ephemeral}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:dev
    command: [sh, -c, 'echo kept >/data/file && sleep 1000']
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - name: data
    ephemeral:
      volumeClaimTemplate:
        spec:
          storageClassName: generated
          accessModes: [ReadWriteOnce]
          resources: {requests: {storage: 1Mi}}
";

async fn printed(cluster: &Cluster, pod: &str, expected: &str) {
    wait_for("it has its disk", DEADLINE, || async {
        let logs = cluster.kubectl(&["logs", pod]);
        let has_options = logs.contains("rw") && logs.contains("noatime");
        holds(logs.starts_with(expected) && has_options, logs)
    })
    .await;
}

pub async fn an_empty_disk_is_formatted_for_its_first_pod_and_unmounted_after_its_last_one() {
    let Some(disk) = Disk::new() else { return };
    let mut cluster = Cluster::start();
    let mounts = |cluster: &Cluster| {
        let mounts = cluster.inside(&["cat", "/proc/mounts"]);
        // The directory is seen at two places.
        let of_node = format!("{} /var/lib/kubelet/", disk.device);
        let of_disk = mounts.lines().filter(|line| line.starts_with(&of_node));
        of_disk.map(str::to_owned).collect::<Vec<_>>()
    };
    cluster.create(&VOLUME.replace("DEVICE", &disk.device));
    cluster.create(&POD.replace("NAME", "first"));
    cluster.wait("condition=Ready", "pod/first");
    printed(&cluster, "first", "first\n").await;
    cluster.create(&POD.replace("NAME", "second"));
    cluster.wait("condition=Ready", "pod/second");
    printed(&cluster, "second", "first\nsecond\n").await;
    let mounted = mounts(&cluster);
    assert_eq!(mounted.len(), 3, "{mounted:?}");
    let is_device =
        |line: &&String| line.contains("/plugins/kubernetes.io/local-volume/mounts/disk ext4");
    assert_eq!(mounted.iter().filter(is_device).count(), 1, "{mounted:?}");
    cluster.kubectl(&["delete", "pod", "first"]);
    assert_eq!(mounts(&cluster).len(), 2);
    cluster.restart_kubelet();
    cluster.kubectl(&["delete", "pod", "second"]);
    wait_for("the disk is unmounted", DEADLINE, || async {
        let mounted = mounts(&cluster);
        holds(mounted.is_empty(), format!("{mounted:?}"))
    })
    .await;
    // Its data stays.
    cluster.create(&POD.replace("NAME", "third"));
    cluster.wait("condition=Ready", "pod/third");
    printed(&cluster, "third", "first\nsecond\nthird\n").await;
    cluster.kubectl(&["delete", "pod", "third"]);
    cluster.create(REFUSED);
    let refused = POD.replace("NAME", "refused").replace("claimName: disk", "claimName: refused");
    cluster.create(&refused);
    wait_for("an event says why", DEADLINE, || async {
        let events = cluster.kubectl(&["events", "--for", "pod/refused"]);
        let why = "mount options are not supported for this volume type";
        holds(events.contains(why), events)
    })
    .await;
    cluster.kubectl(&["delete", "pod", "refused"]);
    cluster.kubectl(&["delete", "pvc", "disk", "refused"]);
}

pub async fn an_ephemeral_volume_lives_in_the_claim_that_is_generated_for_it() {
    let cluster = Cluster::start();
    // A claim of that name that another one made is not the pod's.
    let foreign = REFUSED.split("---").nth(1).unwrap();
    let foreign = foreign.replace("name: refused}", "name: ephemeral-data}");
    cluster.create(&foreign);
    cluster.create(EPHEMERAL);
    wait_for("an event says why", DEADLINE, || async {
        let events = cluster.kubectl(&["events", "--for", "pod/ephemeral"]);
        holds(events.contains("(pod is not owner)"), events)
    })
    .await;
    cluster.kubectl(&["delete", "pvc", "ephemeral-data"]);
    cluster.wait("condition=Ready", "pod/ephemeral");
    let volume = cluster.get(&["pvc", "ephemeral-data"])["spec"]["volumeName"].clone();
    assert_eq!(volume, "generated");
    let file = cluster.inside(&["cat", "/run/generated/file"]);
    assert_eq!(file, "kept\n");
    cluster.kubectl(&["delete", "pod", "ephemeral"]);
    wait_for("its claim is deleted with it", DEADLINE, || async {
        let claims = cluster.kubectl(&["get", "pvc", "-o", "name"]);
        holds(!claims.contains("ephemeral-data"), claims)
    })
    .await;
}
