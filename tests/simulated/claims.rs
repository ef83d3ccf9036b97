//! Pods that mount claims, and kubelets that start while the API server is away.

use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustix::fs::{CWD, FileType, Mode as FileMode, makedev, mknodat};
use serde_json::{Value, json};

use crate::api_source::{bound, ids, joined, path, wait_runs};
use crate::node::WAIT_LIMIT;
use crate::pods::{exec_probe, with};
use crate::support::api_server::{FakeApiServer, Mode};
use crate::support::fake_runtime::{FakeRuntime, Pull, Rpc};

/// An image that is pulled with the pod's secret only.
const PRIVATE: &str = "registry.test/private:1";

/// The claim `data`, bound to a local volume with these fields more.
fn put_claim(api: &FakeApiServer, at: &Path, metadata: Value, spec: Value) {
    let metadata = with(json!({"name": "pv1"}), metadata);
    let local = json!({"claimRef": {"uid": "c1"}, "local": {"path": at}});
    api.put(
        "/api/v1/persistentvolumes/pv1",
        json!({"metadata": metadata, "spec": with(local, spec)}),
    );
    api.put(
        "/api/v1/namespaces/default/persistentvolumeclaims/data",
        json!({"metadata": {"name": "data", "namespace": "default", "uid": "c1"},
            "spec": {"volumeName": "pv1"}, "status": {"phase": "Bound"}}),
    );
}

fn put_pull_secret(api: &FakeApiServer) {
    let login = json!({"auths": {"registry.test": {"username": "u", "password": "p"}}});
    api.put(
        "/api/v1/namespaces/default/secrets/pull",
        json!({
            "metadata": {"name": "pull", "namespace": "default", "uid": "s1"},
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": BASE64_STANDARD.encode(login.to_string())},
        }),
    );
}

#[tokio::test]
async fn a_pod_with_a_claim_and_a_private_image_is_probed_and_restarted_when_the_api_server_is_away()
 {
    for mode in [Mode::Away, Mode::Silent] {
        let (mut node, api) = joined().await;
        let labels = json!({"name": "node1", "uid": "uid-of-node1", "labels": {"zone": "a"}});
        api.put("/api/v1/nodes/node1", json!({"metadata": labels}));
        let disk = node.path("disk");
        std::fs::create_dir(&disk).unwrap();
        let expression = json!({"key": "zone", "operator": "In", "values": ["a"]});
        let terms = json!([{"matchExpressions": [expression]}]);
        let affinity = json!({"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}});
        put_claim(&api, &disk, json!({}), affinity);
        put_pull_secret(&api);
        node.fake.on_pull(
            PRIVATE,
            Pull { credentials: Some(("u".into(), "p".into())), ..Pull::default() },
        );
        let mut web = bound("web");
        let spec = &mut web["spec"];
        spec["imagePullSecrets"] = json!([{"name": "pull"}]);
        spec["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
        spec["containers"][0] = with(
            spec["containers"][0].take(),
            json!({
                "image": PRIVATE,
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "readinessProbe": exec_probe("is-ready"),
            }),
        );
        api.put(&path("web"), web);
        node.start().await;
        wait_runs(&node, "web").await;
        let before = ids(&node.fake, "web");
        node.stop().await;
        api.answer(mode);
        node.fake.clear_calls();
        node.start().await;
        let probed = |fake: &FakeRuntime| fake.count(Rpc::ExecSync) > 0;
        node.fake.wait_until("it is probed", WAIT_LIMIT, probed).await;
        assert_eq!(ids(&node.fake, "web"), before, "{mode:?}");
        assert!(node.fake.exit("web/main", 1));
        let replaced = |fake: &FakeRuntime| {
            let pod = fake.pod("web").unwrap();
            let mut new = pod.containers.iter().filter(|c| !before.contains(&c.id));
            new.any(|container| {
                let mounts = &container.config.mounts;
                let mounted = mounts.iter().any(|m| m.host_path == disk.to_string_lossy());
                container.is_running() && mounted
            })
        };
        node.fake.wait_until("it was started again", WAIT_LIMIT, replaced).await;
        assert_eq!(node.fake.count(Rpc::PullImage), 0, "{mode:?}");
    }
}

#[tokio::test]
async fn a_claim_may_be_a_device_and_bring_a_group_with_it() {
    let (mut node, api) = joined().await;
    let disk = node.path("disk");
    // It is not opened: containers get it from the runtime.
    let mode = FileMode::from_raw_mode(0o600);
    if let Err(error) = mknodat(CWD, &disk, FileType::BlockDevice, mode, makedev(7, 0)) {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{error}");
        println!("SKIPPED: a device cannot be made: {error}");
        return;
    }
    let group = json!({"annotations": {"pv.beta.kubernetes.io/gid": "1234"}});
    put_claim(&api, &disk, group, json!({"volumeMode": "Block"}));
    let mut web = bound("web");
    let spec = &mut web["spec"];
    spec["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    spec["containers"][0]["volumeDevices"] = json!([{"name": "v", "devicePath": "/dev/xvda"}]);
    api.put(&path("web"), web);
    node.start().await;
    let config = wait_runs(&node, "web").await.containers.remove(0).config;
    let devices = config.devices.iter();
    let devices: Vec<_> = devices
        .map(|device| (&*device.container_path, &*device.host_path, &*device.permissions))
        .collect();
    assert_eq!(devices, [("/dev/xvda", &*disk.to_string_lossy(), "mrw")]);
    let security = config.linux.unwrap().security_context.unwrap();
    assert_eq!(security.supplemental_groups, [1234]);
}
