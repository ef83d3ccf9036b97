//! Volumes of pods of an API server.

use super::*;
use crate::apiserver::claim::ApiPersistentVolumeClaims;
use crate::apiserver::pod_certificate::PodCertificates;
use crate::apiserver::tests::stored::{Mode, Stored};
use crate::apiserver::token::Tokens;
use crate::apiserver::trust_bundle::TrustBundles;
use crate::base::clock;
use rustix::fs::{
    IFlags, Mode as FileMode, OFlags, fstat, ioctl_getflags, ioctl_setflags, mkdirat, open, openat,
};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Cluster {
    pub(super) server: Stored,
    pub(super) manager: VolumeManager,
    pub(super) node: Node,
}

/// A node of a cluster that issues tokens `token-1`, `token-2`, … which live so many seconds.
pub(super) async fn cluster(lifetime: i64) -> Cluster {
    let node = node();
    let mounter = node.mounter.clone();
    with_mounter(lifetime, node, mounter).await
}

/// The same with a mounter of its own.
pub(super) async fn with_mounter(lifetime: i64, node: Node, mounter: impl Mounter) -> Cluster {
    let server = Stored::start().await;
    let issued = AtomicUsize::new(0);
    server.on_post(move |_, request| {
        let number = issued.fetch_add(1, Ordering::SeqCst) + 1;
        let mut reply = request.clone();
        let expires = clock::timestamp() + jiff::SignedDuration::from_secs(lifetime);
        reply["spec"]["expirationSeconds"] = lifetime.into();
        reply["status"] = json!({
            "token": format!("token-{number}"),
            "expirationTimestamp": expires.to_string(),
        });
        (201, reply)
    });
    let api = Some(server.client().await);
    let of_csi = api.clone();
    let objects = ConfigMapSecretReader::new(None, api.clone());
    let labelled = json!({"metadata": {"name": "node1", "uid": "n1", "labels": {"zone": "a"}}});
    let labelled: k8s_openapi::api::core::v1::Node = serde_json::from_value(labelled).unwrap();
    let object = tokio::sync::watch::Sender::new(Some(Arc::new(labelled)));
    let cluster = super::super::ClusterSources {
        tokens: Tokens::new(api.clone(), objects.pods_to_sync()),
        bundles: TrustBundles::new(api.clone(), objects.pods_to_sync()),
        certificates: PodCertificates::new(
            server.client().await,
            objects.pods_to_sync(),
            object.subscribe(),
        )
        .0
        .without_jitter(),
        claims: ApiPersistentVolumeClaims::new(api, objects.pods_to_sync()),
        node: object.subscribe(),
        csi: CsiSources { api: of_csi, ..super::csi_sources() },
    };
    let root = KubeletRoot::create(&node.base.join("kubelet")).unwrap();
    let facts = NodeFacts {
        allocatable_memory_bytes: 1 << 30,
        volume_plugin_dir: node.base.join("flex"),
        ..NodeFacts::default()
    };
    Cluster {
        manager: VolumeManager::new(root, Arc::new(facts), objects, cluster, None, mounter),
        server,
        node,
    }
}

/// What a kubelet has that starts on the node of a cluster.
pub(super) async fn restarted(cluster: &Cluster) -> VolumeManager {
    let objects = ConfigMapSecretReader::new(None, Some(cluster.server.client().await));
    let node = tokio::sync::watch::Sender::new(None).subscribe();
    let api = cluster.server.client().await;
    let (certificates, _) = PodCertificates::new(api, objects.pods_to_sync(), node);
    let of = super::super::ClusterSources { certificates, ..Default::default() };
    let root = cluster.manager.root().clone();
    let mounter = cluster.node.mounter.clone();
    VolumeManager::new(root, cluster.manager.shared.node.clone(), objects, of, None, mounter)
}

/// The pod with the volume that the API server adds to pods.
fn api_pod() -> Pod {
    let mut pod = pod(json!([{"name": "kube-api-access", "projected": {
        "defaultMode": 0o644,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ],
    }}]));
    pod.metadata.annotations =
        serde_json::from_value(json!({"kubernetes.io/config.source": "api"})).unwrap();
    pod.spec.as_mut().unwrap().service_account_name = Some("robot".into());
    pod
}

impl Cluster {
    fn authority(&self, text: &str) {
        let map = json!({"data": {"ca.crt": text}});
        self.server.put("configmaps", "ns", "kube-root-ca.crt", map);
    }

    pub(super) async fn prepare(&self, pod: &Pod) -> Result<PreparedVolumes, VolumeError> {
        let prepared = self.manager.prepare(pod, &never()).await;
        prepared.map_err(|error| *error.first)
    }

    async fn changed(&self) -> HashSet<PodUid> {
        let changed = tokio::time::timeout(TIMEOUT, self.manager.changed());
        changed.await.unwrap()
    }
}

fn file(prepared: &PreparedVolumes, name: &str) -> PathBuf {
    prepared.paths["kube-api-access"].host_path.join(name)
}

fn read(prepared: &PreparedVolumes, name: &str) -> String {
    fs::read_to_string(file(prepared, name)).unwrap()
}

#[tokio::test]
async fn the_volume_of_the_api_servers_access_has_token_authority_and_namespace() {
    let cluster = cluster(3607).await;
    cluster.authority("ca");
    let pod = api_pod();
    let prepared = cluster.prepare(&pod).await.unwrap();
    assert_eq!(prepared.update_errors.len(), 0);
    assert_eq!(read(&prepared, "token"), "token-1");
    assert_eq!(read(&prepared, "ca.crt"), "ca");
    assert_eq!(read(&prepared, "namespace"), "ns");
    assert_eq!(mode_of(&file(&prepared, "token")), 0o644);
    let posts = cluster.server.posts();
    assert_eq!(posts.len(), 1);
    assert_eq!(posts[0].0, "/api/v1/namespaces/ns/serviceaccounts/robot/token");
    assert_eq!(
        posts[0].1["spec"],
        json!({"audiences": [], "expirationSeconds": 3607,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1"}})
    );
    // The authority changes, the token is not requested again.
    cluster.authority("renewed");
    assert_eq!(cluster.changed().await, HashSet::from(["u1".into()]));
    let prepared = cluster.prepare(&pod).await.unwrap();
    assert_eq!(read(&prepared, "ca.crt"), "renewed");
    assert_eq!(read(&prepared, "token"), "token-1");
    assert_eq!(cluster.server.posts().len(), 1);
    // Another pod has another token, and nothing is kept of one that is gone.
    let mut other = api_pod();
    other.metadata.uid = Some("u2".into());
    assert_eq!(read(&cluster.prepare(&other).await.unwrap(), "token"), "token-2");
    for pod in [&pod, &other] {
        cluster.manager.teardown(&pod.uid()).await.unwrap();
    }
    cluster.no_watches().await;
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[tokio::test]
async fn a_token_is_its_users_or_its_groups_alone() {
    let cluster = cluster(3607).await;
    cluster.authority("ca");
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    for (uid, context, mode) in [
        ("a", json!({"runAsUser": user}), 0o600),
        ("b", json!({"fsGroup": group}), 0o640),
        ("c", json!({"runAsUser": user, "fsGroup": group}), 0o640),
        ("d", json!({}), 0o644),
    ] {
        let mut pod = api_pod();
        pod.metadata.uid = Some(uid.into());
        pod.spec.as_mut().unwrap().security_context = serde_json::from_value(context).unwrap();
        let prepared = cluster.prepare(&pod).await.unwrap();
        assert_eq!(mode_of(&file(&prepared, "token")), mode, "{uid}");
        assert_eq!(fs::metadata(file(&prepared, "token")).unwrap().uid(), user);
    }
    // Containers of two users.
    let mut pod = api_pod();
    pod.metadata.uid = Some("e".into());
    let spec = pod.spec.as_mut().unwrap();
    let mut second = spec.containers[0].clone();
    spec.containers[0].security_context = serde_json::from_value(json!({"runAsUser": 1})).unwrap();
    second.security_context = serde_json::from_value(json!({"runAsUser": 2})).unwrap();
    spec.containers.push(second);
    let prepared = cluster.prepare(&pod).await.unwrap();
    assert_eq!(mode_of(&file(&prepared, "token")), 0o644);
}

#[tokio::test]
async fn a_token_is_renewed_in_time_and_the_old_one_stays_while_that_fails() {
    let cluster = cluster(3).await;
    cluster.authority("ca");
    let pod = api_pod();
    let prepared = cluster.prepare(&pod).await.unwrap();
    assert_eq!(read(&prepared, "token"), "token-1");
    let started_at = clock::instant();
    assert_eq!(cluster.changed().await, HashSet::from(["u1".into()]));
    assert!(clock::since(started_at) < Duration::from_secs(3), "{started_at:?}");
    let prepared = cluster.prepare(&pod).await.unwrap();
    assert_eq!(read(&prepared, "token"), "token-2");
    cluster.server.set(Mode::Refusing(500));
    let prepared = cluster.prepare(&pod).await.unwrap();
    assert_eq!(prepared.update_errors.len(), 0, "it is good for a while");
    // It expires.
    cluster.changed().await;
    let prepared = cluster.prepare(&pod).await.unwrap();
    assert!(
        error_chain(&prepared.update_errors[0])
            .contains(r#"token "robot"/"ns" expired and refresh failed: "#),
        "{}",
        error_chain(&prepared.update_errors[0])
    );
    assert_eq!(read(&prepared, "token"), "token-2");
    cluster.server.set(Mode::Serving);
    cluster.changed().await;
    let prepared = cluster.prepare(&pod).await.unwrap();
    assert_eq!(read(&prepared, "token"), "token-3");
}

#[tokio::test]
async fn a_pod_whose_token_is_refused_has_no_volume_and_is_marked_when_it_is_issued() {
    let cluster = cluster(3607).await;
    cluster.authority("ca");
    cluster.server.set(Mode::Refusing(403));
    let pod = api_pod();
    let error = error_chain(&cluster.prepare(&pod).await.unwrap_err());
    assert_eq!(
        error,
        "MountVolume.SetUp failed for volume \"kube-api-access\" : [failed to fetch token: the API server \
         returned 403 Forbidden: scripted Refused, failed to sync configmap cache: the API server returned \
         403 Forbidden: scripted Refused]"
    );
    cluster.server.set(Mode::Serving);
    let started_at = clock::instant();
    while cluster.prepare(&pod).await.is_err() {
        assert!(clock::since(started_at) < TIMEOUT);
        cluster.changed().await;
    }
}

/// A pod that mounts the claim `data`.
pub(super) fn pod_with_claim(read_only: bool) -> Pod {
    let claim = json!({"claimName": "data", "readOnly": read_only});
    let mut pod = pod(json!([{"name": "v", "persistentVolumeClaim": claim}]));
    pod.metadata.annotations =
        serde_json::from_value(json!({"kubernetes.io/config.source": "api"})).unwrap();
    pod
}

impl Cluster {
    pub(super) fn claim(&self, phase: &str) {
        let claim = json!({"metadata": {"uid": "c1"}, "spec": {"volumeName": "pv1"}, "status": {"phase": phase}});
        self.server.put("persistentvolumeclaims", "ns", "data", claim);
    }

    pub(super) fn volume(&self, mut spec: serde_json::Value) {
        spec["claimRef"] = json!({"uid": "c1"});
        let volume = json!({"spec": spec});
        self.server.put("persistentvolumes", "", "pv1", volume);
    }
}

#[tokio::test]
async fn a_pod_waits_for_its_claim_and_then_has_the_path_of_its_volume() {
    let cluster = cluster(3607).await;
    let pod = pod_with_claim(false);
    cluster.claim("Pending");
    let error = cluster.prepare(&pod).await.unwrap_err();
    assert_eq!(
        error_chain(&error),
        "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], \
         failed to process volumes=[v]: error processing PVC ns/data: PVC is not bound"
    );
    let at = tempfile::tempdir().unwrap();
    let expression = json!({"key": "zone", "operator": "In", "values": ["a"]});
    cluster.volume(json!({
        "local": {"path": at.path()},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
    }));
    cluster.claim("Bound");
    assert!(cluster.changed().await.contains(&pod.uid()));
    let prepared = cluster.prepare(&pod).await.unwrap();
    let expected = |managed, read_only| VolumePath {
        host_path: at.path().into(),
        persistent_volume: Some("pv1".into()),
        check: HostPathCheck::Directory,
        managed,
        read_only,
        plugin: Some("kubernetes.io/local-volume"),
        measured: true,
        is_device: false,
        group: None,
        project: None,
    };
    assert_eq!(prepared.paths["v"], expected(true, false));
    let claim = ClaimRef { namespace: "ns".into(), name: "data".into() };
    let claims = cluster.manager.claims();
    let measured: Vec<_> = claims.iter().map(|(claim, volume)| (claim, &volume.path)).collect();
    assert_eq!(measured, [(&claim, &at.path().to_owned())]);
    // An API server that is away takes nothing from a pod that has its volumes.
    cluster.server.set(Mode::Refusing(503));
    let prepared = cluster.prepare(&pod).await.unwrap();
    assert_eq!(prepared.paths["v"], expected(true, false));
    // What is in it is not the kubelet's.
    std::fs::write(at.path().join("kept"), "").unwrap();
    cluster.manager.teardown(&pod.uid()).await.unwrap();
    cluster.manager.remove_pod_dir(&pod.uid()).await.unwrap();
    assert!(at.path().join("kept").exists());
}

fn pod_of_group(uid: &str, group: u32, policy: &str) -> Pod {
    let mut pod = pod_with_claim(false);
    pod.metadata.uid = Some(uid.into());
    let context = json!({"fsGroup": group, "fsGroupChangePolicy": policy});
    let spec = pod.spec.as_mut().unwrap();
    spec.security_context = serde_json::from_value(context).unwrap();
    pod
}

#[tokio::test]
async fn the_first_pod_of_a_local_volume_gives_it_to_its_group_once() {
    let cluster = cluster(3607).await;
    let (at, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (directory, secret) = (at.path().join("d"), outside.path().join("secret"));
    let (file, link) = (directory.join("file"), directory.join("link"));
    fs::create_dir(&directory).unwrap();
    fs::write(&file, "").unwrap();
    fs::write(&secret, "").unwrap();
    for (path, mode) in [(at.path(), 0o700), (&directory, 0o755), (&file, 0o600), (&secret, 0o600)]
    {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    symlink(&secret, &link).unwrap();
    let fifo = directory.join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let shown = |path: &Path| {
        let found = path.symlink_metadata().unwrap();
        (found.gid(), found.mode() & 0o7777)
    };
    cluster.claim("Bound");
    cluster.volume(json!({"local": {"path": at.path()}}));
    let first = pod_of_group("first", 4321, "Always");
    cluster.prepare(&first).await.unwrap();
    assert_eq!(shown(at.path()), (4321, 0o2770));
    assert_eq!(shown(&directory), (4321, 0o2775));
    assert_eq!(shown(&file), (4321, 0o660));
    assert_eq!(shown(&fifo), (4321, 0o660));
    assert_eq!(shown(&link).0, 4321);
    assert_eq!(shown(&secret), (0, 0o600), "what a link leads to stays");
    // What the pod does with its files stays, also over a restart of the kubelet and beside another pod.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    cluster.manager.shared.pods.lock().clear();
    let second = pod_of_group("second", 77, "Always");
    cluster.prepare(&second).await.unwrap();
    assert_eq!(shown(&file), (4321, 0o600));
    cluster.prepare(&first).await.unwrap();
    assert_eq!(shown(&file), (4321, 0o600));
    for pod in [&first, &second] {
        cluster.manager.teardown(&pod.uid()).await.unwrap();
        cluster.manager.remove_pod_dir(&pod.uid()).await.unwrap();
    }
    // A directory that fits stands for what is in it, where that is wanted.
    let third = pod_of_group("third", 4321, "OnRootMismatch");
    cluster.prepare(&third).await.unwrap();
    assert_eq!(shown(&file), (4321, 0o600));
    cluster.manager.teardown(&third.uid()).await.unwrap();
    let fourth = pod_of_group("fourth", 77, "OnRootMismatch");
    cluster.prepare(&fourth).await.unwrap();
    assert_eq!(shown(&file), (77, 0o660));
}

#[tokio::test]
async fn directories_nested_at_any_depth_get_the_group() {
    let cluster = cluster(3607).await;
    let at = tempfile::tempdir().unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut innermost = open(at.path(), flags, FileMode::empty()).unwrap();
    for _ in 0..1000 {
        mkdirat(&innermost, "d", FileMode::RWXU).unwrap();
        innermost = openat(&innermost, "d", flags, FileMode::empty()).unwrap();
    }
    cluster.claim("Bound");
    cluster.volume(json!({"local": {"path": at.path()}}));
    let pod = pod_of_group("first", 4321, "Always");
    cluster.prepare(&pod).await.unwrap();
    assert_eq!(fstat(&innermost).unwrap().st_gid, 4321);
}

#[tokio::test]
async fn a_file_whose_group_cannot_be_changed_keeps_no_pod_from_starting() {
    let cluster = cluster(3607).await;
    let at = tempfile::tempdir().unwrap();
    let names = ["a", "b", "c"];
    for name in names {
        fs::write(at.path().join(name), "").unwrap();
    }
    let fixed = fs::File::open(at.path().join("b")).unwrap();
    let flags = ioctl_getflags(&fixed).and_then(|flags| {
        ioctl_setflags(&fixed, flags | IFlags::IMMUTABLE)?;
        Ok(flags)
    });
    let Ok(flags) = flags else {
        eprintln!("SKIPPED: the file system has no immutable files");
        return;
    };
    cluster.claim("Bound");
    cluster.volume(json!({"local": {"path": at.path()}}));
    let pod = pod_of_group("first", 4321, "OnRootMismatch");
    let prepared = cluster.manager.prepare(&pod, &never()).await;
    ioctl_setflags(&fixed, flags).unwrap();
    prepared.unwrap();
    let group = |name: &str| fs::metadata(at.path().join(name)).unwrap().gid();
    assert_eq!(names.map(group), [4321, 0, 4321]);
    assert_eq!(fs::metadata(at.path()).unwrap().gid(), 4321);
}

#[tokio::test]
async fn an_ephemeral_volume_has_the_claim_that_its_pod_owns() {
    let cluster = cluster(3607).await;
    cluster.volume(json!({"hostPath": {"path": "/"}}));
    let template = json!({"volumeClaimTemplate": {"spec": {}}});
    let mut pod = pod(json!([{"name": "v", "ephemeral": template}]));
    pod.metadata.annotations =
        serde_json::from_value(json!({"kubernetes.io/config.source": "api"})).unwrap();
    let owned_by = |uid: &str| {
        let owner =
            json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true});
        let claim = json!({
            "metadata": {"uid": "c1", "ownerReferences": [owner]},
            "spec": {"volumeName": "pv1"},
            "status": {"phase": "Bound"},
        });
        let server = &cluster.server;
        server.put("persistentvolumeclaims", "ns", "p-v", claim);
    };
    owned_by("another");
    let error = error_chain(&cluster.prepare(&pod).await.unwrap_err());
    let why = "PVC ns/p-v was not created for pod ns/p (pod is not owner)";
    assert!(error.contains(why), "{error}");
    owned_by("u1");
    assert!(cluster.changed().await.contains(&pod.uid()));
    let prepared = cluster.prepare(&pod).await.unwrap();
    assert_eq!(prepared.paths["v"].host_path, Path::new("/"));
}

#[tokio::test]
async fn a_claim_may_be_read_only_and_one_that_the_node_cannot_serve_says_why() {
    let cluster = cluster(3607).await;
    cluster.claim("Bound");
    cluster.volume(json!({"hostPath": {"path": "/"}}));
    let pod = pod_with_claim(true);
    let prepared = cluster.prepare(&pod).await.unwrap();
    let path = &prepared.paths["v"];
    assert!(path.read_only && !path.managed, "{path:?}");
    cluster.manager.teardown(&pod.uid()).await.unwrap();
    cluster.volume(json!({"rbd": {"monitors": ["m"], "image": "i"}}));
    let error = cluster.prepare(&pod).await.unwrap_err();
    assert_eq!(
        error_chain(&error),
        "MountVolume.SetUp failed for volume \"pv1\" : \
         spec.rbd of PersistentVolume \"pv1\" is not supported by this kubelet"
    );
    cluster.manager.teardown(&pod.uid()).await.unwrap();
    cluster.volume(json!({"local": {"path": "/nowhere/at/all"}}));
    let error = error_chain(&cluster.prepare(&pod).await.unwrap_err());
    assert_eq!(
        error,
        "MountVolume.NewMounter initialization failed for volume \"pv1\" : path \"/nowhere/at/all\" does not exist"
    );
}

const ONE: &str = "-----BEGIN CERTIFICATE-----\nAQEB\n-----END CERTIFICATE-----\n";
const TWO: &str = "-----BEGIN CERTIFICATE-----\nAgIC\n-----END CERTIFICATE-----\n";

impl Cluster {
    fn bundle(&self, name: &str, text: &str) {
        let bundle = json!({
            "metadata": {"labels": {"env": "live"}},
            "spec": {"signerName": "x", "trustBundle": text},
        });
        self.server.put("clustertrustbundles", "", name, bundle);
    }

    async fn no_watches(&self) {
        let started_at = clock::instant();
        while self.server.watches() > 0 {
            assert!(clock::since(started_at) < TIMEOUT);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn pod_with_bundle(uid: &str, mut source: serde_json::Value) -> Pod {
    source["path"] = "roots.pem".into();
    let sources = json!([{"clusterTrustBundle": source}]);
    let mut pod = pod(json!([{"name": "kube-api-access", "projected": {
        "defaultMode": 0o444, "sources": sources,
    }}]));
    pod.metadata.annotations =
        serde_json::from_value(json!({"kubernetes.io/config.source": "api"})).unwrap();
    pod.metadata.uid = Some(uid.into());
    pod
}

#[tokio::test]
async fn trust_bundles_are_watched_for_as_long_as_a_pod_mounts_one() {
    let cluster = cluster(3607).await;
    cluster.bundle("x:one", ONE);
    let named = pod_with_bundle("a", json!({"name": "x:one"}));
    let labels = json!({"matchLabels": {"env": "live"}});
    let signed = pod_with_bundle("b", json!({"signerName": "x", "labelSelector": labels}));
    for pod in [&named, &signed] {
        let prepared = cluster.prepare(pod).await.unwrap();
        assert_eq!(read(&prepared, "roots.pem"), ONE);
        assert_eq!(mode_of(&file(&prepared, "roots.pem")), 0o444);
    }
    assert_eq!(cluster.server.lists(), 1);
    cluster.bundle("x:two", TWO);
    assert!(cluster.changed().await.contains(&signed.uid()));
    let prepared = cluster.prepare(&signed).await.unwrap();
    assert_eq!(read(&prepared, "roots.pem"), format!("{ONE}{TWO}"));
    let prepared = cluster.prepare(&named).await.unwrap();
    assert_eq!(read(&prepared, "roots.pem"), ONE);
    // One that is gone takes nothing from the pod that shows it.
    cluster.server.delete("clustertrustbundles", "", "x:one");
    cluster.changed().await;
    let prepared = cluster.prepare(&named).await.unwrap();
    assert!(error_chain(&prepared.update_errors[0]).ends_with(r#""x:one" not found"#));
    assert_eq!(read(&prepared, "roots.pem"), ONE);
    let prepared = cluster.prepare(&signed).await.unwrap();
    assert_eq!(read(&prepared, "roots.pem"), TWO);
    for pod in [&named, &signed] {
        cluster.manager.teardown(&pod.uid()).await.unwrap();
    }
    cluster.no_watches().await;
}

#[tokio::test]
async fn a_pod_waits_for_its_trust_bundle_and_an_optional_one_is_empty_without() {
    let cluster = cluster(3607).await;
    cluster.server.set(Mode::Refusing(404));
    let optional = pod_with_bundle("o", json!({"name": "x:one", "optional": true}));
    let error = error_chain(&cluster.prepare(&optional).await.unwrap_err());
    assert_eq!(
        error,
        "MountVolume.SetUp failed for volume \"kube-api-access\" : ClusterTrustBundle informer has not yet synced: \
         the API server does not serve clustertrustbundles of certificates.k8s.io/v1beta1"
    );
    cluster.server.set(Mode::Serving);
    assert!(cluster.changed().await.contains(&optional.uid()));
    let prepared = cluster.prepare(&optional).await.unwrap();
    assert_eq!(read(&prepared, "roots.pem"), "");
    let needed = pod_with_bundle("n", json!({"name": "x:one"}));
    let error = error_chain(&cluster.prepare(&needed).await.unwrap_err());
    assert!(error.ends_with(r#""x:one" not found"#), "{error}");
    cluster.bundle("x:one", ONE);
    let changed = cluster.changed().await;
    assert_eq!(changed, HashSet::from([optional.uid(), needed.uid()]));
    for pod in [&optional, &needed] {
        let prepared = cluster.prepare(pod).await.unwrap();
        assert_eq!(read(&prepared, "roots.pem"), ONE);
    }
}
