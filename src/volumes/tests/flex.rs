//! flexVolumes, with a driver that is a shell script.

use super::{
    cluster::{cluster, pod_with_claim},
    *,
};
use crate::apiserver::tests::stored::Stored;
use serde_json::from_str;
use std::{
    io::Write as _,
    process::{Command, Stdio},
};
use tokio::sync::watch;

const NAME: &str = "acme/disk/v";

/// Records its calls, and answers with what the file `answer-CALL` has, or with success. It hangs while there is a file
/// `hang-CALL`.
const SCRIPT: &str = r#"#!/bin/sh
base=$(dirname "$0")/../..
printf '%s\n' "$*" >> "$base/calls"
[ -f "$base/hang-$1" ] && sleep 600
if [ -f "$base/answer-$1" ]; then cat "$base/answer-$1"; else echo '{"status": "Success"}'; fi
"#;

fn install(base: &Path) {
    let directory = base.join("flex/acme~disk");
    fs::create_dir_all(&directory).unwrap();
    // Another process writes it: a file that this one has open for writing cannot run while a child has a copy of the
    // descriptor.
    let mut writer = Command::new("sh")
        .args(["-c", r#"cat > "$0" && chmod 755 "$0""#])
        .arg(directory.join("disk"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = writer.stdin.take().unwrap();
    input.write_all(SCRIPT.as_bytes()).unwrap();
    drop(input);
    assert!(writer.wait().unwrap().success());
}

fn answer(base: &Path, call: &str, answer: Value) {
    fs::write(base.join(format!("answer-{call}")), answer.to_string()).unwrap();
}

fn without_attach(base: &Path) {
    let capabilities = json!({"attach": false, "supportsMetrics": true});
    let initialized = json!({"status": "Success", "capabilities": capabilities});
    answer(base, "init", initialized);
}

/// The calls since the last time: name, paths and options.
fn calls(base: &Path) -> Vec<(String, Value)> {
    let path = base.join("calls");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(path);
    let call = |line: &str| {
        let (call, options) = line.split_once(" {").unwrap_or((line, "}"));
        (call.to_owned(), from_str(&format!("{{{options}")).unwrap())
    };
    text.lines().map(call).collect()
}

fn names(base: &Path) -> Vec<String> {
    calls(base).into_iter().map(|(call, _)| call).collect()
}

fn flex_pod(uid: &str) -> Pod {
    let mut pod = pod(
        json!([{"name": "v", "flexVolume": {"driver": "acme/disk", "fsType": "ext4",
        "options": {"share": "a"}}}]),
    );
    pod.metadata.uid = Some(uid.into());
    pod
}

fn target(manager: &VolumeManager, uid: &str, name: &str) -> PathBuf {
    let pods = manager.root().pods_dir();
    pods.join(uid).join("volumes/acme~disk").join(name)
}

async fn end(manager: &VolumeManager, uid: &str) {
    manager.teardown(&uid.into()).await.unwrap();
    manager.remove_pod_dir(&uid.into()).await.unwrap();
}

#[tokio::test]
async fn a_driver_mounts_a_volume_for_its_pod_and_unmounts_it() {
    let node = node();
    let base = &node.base;
    install(base);
    without_attach(base);
    let paths = node.prepare(&flex_pod("u1")).await.unwrap();
    let target = target(&node.manager, "u1", "v");
    assert_eq!(paths["v"].host_path, target);
    assert!(paths["v"].managed && !paths["v"].read_only);
    let options = json!({
        "kubernetes.io/fsType": "ext4", "kubernetes.io/readwrite": "rw", "kubernetes.io/pvOrVolumeName": "v",
        "kubernetes.io/pod.name": "p", "kubernetes.io/pod.namespace": "ns", "kubernetes.io/pod.uid": "u1",
        "kubernetes.io/serviceAccount.name": "default", "share": "a",
    });
    let expected = [
        ("init".to_owned(), json!({})),
        (format!("mount {}", target.display()), options),
    ];
    assert_eq!(calls(base), expected);
    // The next kubelet finds what is to be undone on disk.
    let restarted = manager(base, &node.mounter);
    end(&restarted, "u1").await;
    assert_eq!(
        names(base),
        ["init".to_owned(), format!("unmount {}", target.display())]
    );
    assert!(!target.exists());
}

#[tokio::test]
async fn a_call_that_fails_is_an_event_and_a_driver_is_found_once_it_is_installed() {
    let node = node();
    let (base, pod) = (&node.base, flex_pod("u1"));
    let prefix = "MountVolume.SetUp failed for volume \"v\" : ";
    let error = error_chain(&node.prepare(&pod).await.unwrap_err());
    assert_eq!(
        error,
        format!("{prefix}flexVolume driver acme/disk is not installed")
    );
    install(base);
    without_attach(base);
    answer(
        base,
        "mount",
        json!({"status": "Failure", "message": "no disk"}),
    );
    let error = error_chain(&node.prepare(&pod).await.unwrap_err());
    assert_eq!(
        error,
        format!("{prefix}mount command failed, status: Failure, reason: no disk")
    );
    assert!(!target(&node.manager, "u1", "v").exists());
    answer(base, "mount", json!({"status": "Not supported"}));
    let error = error_chain(&node.prepare(&pod).await.unwrap_err());
    assert_eq!(
        error,
        format!("{prefix}the driver neither mounts volumes nor attaches them")
    );
    fs::remove_file(base.join("answer-mount")).unwrap();
    // Another executable is asked anew what it can do.
    fs::remove_file(base.join("flex/acme~disk/disk")).unwrap();
    install(base);
    node.prepare(&pod).await.unwrap();
    answer(
        base,
        "unmount",
        json!({"status": "Failure", "message": "busy"}),
    );
    let error = error_chain(&node.manager.teardown(&"u1".into()).await.unwrap_err());
    assert_eq!(
        error,
        "UnmountVolume.TearDown failed for volume \"v\" : unmount command failed, status: Failure, reason: busy"
    );
    fs::remove_file(base.join("answer-unmount")).unwrap();
    end(&node.manager, "u1").await;
}

#[tokio::test]
async fn a_call_ends_with_its_pod_and_is_undone() {
    let node = node();
    let base = node.base.clone();
    install(&base);
    without_attach(&base);
    fs::write(base.join("hang-mount"), "").unwrap();
    let manager = node.manager.clone();
    let prepare = tokio::spawn(async move { manager.prepare(&flex_pod("u1"), &never()).await });
    while !fs::read_to_string(base.join("calls")).is_ok_and(|calls| calls.contains("mount ")) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    end(&node.manager, "u1").await;
    assert!(prepare.await.unwrap().is_err());
    let unmount = names(&base)
        .into_iter()
        .filter(|call| call.starts_with("unmount "));
    assert!(unmount.count() <= 1);
    assert!(!target(&node.manager, "u1", "v").exists());
}

#[tokio::test]
async fn the_volume_of_a_claim_has_the_options_of_its_persistent_volume() {
    let cluster = cluster(3607).await;
    let base = &cluster.node.base;
    install(base);
    without_attach(base);
    cluster.claim("Bound");
    cluster.volume(json!({"flexVolume": {"driver": "acme/disk", "options": {"password": "hush"}}}));
    let prepared = cluster.prepare(&pod_with_claim(true)).await.unwrap();
    let target = target(&cluster.manager, "u1", "pv1");
    let path = &prepared.paths["v"];
    assert_eq!(
        (&path.host_path, path.read_only, path.measured),
        (&target, true, true)
    );
    let (call, options) = calls(base).pop().unwrap();
    assert_eq!(call, format!("mount {}", target.display()));
    assert_eq!(
        (&options["password"], &options["kubernetes.io/readwrite"]),
        (&json!("hush"), &json!("ro"))
    );
    assert_eq!(options["kubernetes.io/pvOrVolumeName"], "pv1");
    // Options may be secret.
    let markers = cluster.manager.root().pod(&"u1".into()).unwrap().plugins();
    let records = Command::new("grep")
        .args(["-r", "acme/disk"])
        .arg(&markers)
        .output()
        .unwrap();
    let records = String::from_utf8(records.stdout).unwrap();
    assert!(
        records.contains("acme/disk") && !records.contains("hush"),
        "{records}"
    );
    end(&cluster.manager, "u1").await;
}

/// A node of a cluster whose controller attaches volumes when the test says so.
struct Attaching {
    node: Node,
    manager: VolumeManager,
    in_use: VolumesInUse,
    object: watch::Sender<Option<Arc<k8s_openapi::api::core::v1::Node>>>,
    _server: Stored,
}

async fn attaching() -> Attaching {
    let (node, server) = (node(), Stored::start().await);
    install(&node.base);
    let (in_use, object) = (VolumesInUse::default(), watch::Sender::new(None));
    let cluster = super::super::ClusterSources {
        csi: CsiSources {
            api: Some(server.client().await),
            node: object.subscribe(),
            in_use: in_use.clone(),
            ..csi_sources()
        },
        ..Default::default()
    };
    let shared = &node.manager.shared;
    let manager = VolumeManager::new(
        shared.root.clone(),
        shared.node.clone(),
        ConfigMapSecretReader::new(None, None),
        cluster,
        None,
        node.mounter.clone(),
    );
    let csi = manager.csi().clone();
    tokio::task::spawn_blocking(move || csi.recover())
        .await
        .unwrap();
    Attaching {
        node,
        manager,
        in_use,
        object,
        _server: server,
    }
}

impl Attaching {
    fn is_in_use(&self) -> bool {
        let wanted = self.in_use.wanted().borrow().clone();
        wanted.unwrap().contains(NAME)
    }

    /// Prepares the pod; the volume is attached once it is in use.
    async fn prepare(&self, uid: &str) -> Result<PathBuf, String> {
        let (manager, pod) = (self.manager.clone(), flex_pod(uid));
        let prepare = tokio::spawn(async move { manager.prepare(&pod, &never()).await });
        while !self.is_in_use() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let attached = json!({"metadata": {"resourceVersion": "7"},
            "status": {"volumesAttached": [{"name": NAME, "devicePath": "/dev/x"}]}});
        self.object
            .send_replace(Some(Arc::new(serde_json::from_value(attached).unwrap())));
        self.in_use.confirm([NAME], "7");
        let prepared = prepare.await.unwrap();
        let prepared = prepared.map_err(|error| error_chain(&error))?;
        Ok(prepared.paths["v"].host_path.clone())
    }

    fn device(&self) -> PathBuf {
        self.manager
            .root()
            .flex_device(&FlexDevice::new("acme/disk", "v"))
    }
}

#[tokio::test]
async fn the_device_of_an_attached_volume_is_mounted_once_and_in_use_until_it_is_unmounted() {
    let it = attaching().await;
    let base = &it.node.base;
    assert!(!it.is_in_use());
    let of_a = it.prepare("a").await.unwrap();
    let device = it.device();
    assert!(device.ends_with("plugins/kubernetes.io/flexvolume/acme/disk/mounts/v"));
    let shown = device.display();
    let expected = [
        "init".to_owned(),
        "waitforattach /dev/x".to_owned(),
        format!("mountdevice {shown} /dev/x"),
        format!("mount {}", of_a.display()),
    ];
    assert_eq!(names(base), expected);
    it.node.mounter.add(&device, "ext4");
    let of_b = it.prepare("b").await.unwrap();
    let expected = [
        "waitforattach /dev/x".to_owned(),
        format!("mount {}", of_b.display()),
    ];
    assert_eq!(names(base), expected);
    end(&it.manager, "a").await;
    assert_eq!(names(base), [format!("unmount {}", of_a.display())]);
    assert!(it.is_in_use());
    end(&it.manager, "b").await;
    let expected = [
        format!("unmount {}", of_b.display()),
        format!("unmountdevice {shown}"),
    ];
    assert_eq!(names(base), expected);
    assert!(!it.is_in_use() && !device.exists());
}

#[tokio::test]
async fn what_a_driver_leaves_to_the_kubelet_is_done_by_programs_of_the_node() {
    let it = attaching().await;
    let base = &it.node.base;
    for call in [
        "waitforattach",
        "mountdevice",
        "mount",
        "unmount",
        "unmountdevice",
    ] {
        answer(base, call, json!({"status": "Not supported"}));
    }
    // What `blkid` prints has no form, so nothing may be formatted.
    let error = it.prepare("a").await.unwrap_err();
    assert!(
        error.starts_with("MountVolume.MountDevice failed for volume \"v\" : "),
        "{error}"
    );
    let ran = std::mem::take(&mut it.node.mounter.0.lock().ran);
    assert_eq!(ran, ["blkid -p -s TYPE -s PTTYPE -o export /dev/x"]);
    let device = it.device();
    it.node.mounter.add(&device, "ext4");
    let target = it.prepare("a").await.unwrap();
    assert_eq!(
        it.node.mounter.0.lock().bound.pop(),
        Some((device.clone(), target.clone()))
    );
    end(&it.manager, "a").await;
    let unmounted = it.node.mounter.0.lock().unmounted.clone();
    assert_eq!(unmounted, [target, device.clone()]);
    assert!(!it.is_in_use() && !device.exists());
}

#[tokio::test]
async fn a_device_that_an_earlier_kubelet_left_is_in_use_until_it_is_unmounted() {
    let it = attaching().await;
    let device = it.device();
    fs::create_dir_all(&device).unwrap();
    it.node.mounter.add(&device, "ext4");
    let csi = it.manager.csi().clone();
    tokio::task::spawn_blocking(move || csi.read_flex_devices())
        .await
        .unwrap();
    assert!(it.is_in_use());
    answer(
        &it.node.base,
        "unmountdevice",
        json!({"status": "Not supported"}),
    );
    it.manager.release_leftovers();
    while it.is_in_use() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!device.exists());
}
