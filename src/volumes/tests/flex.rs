//! flexVolumes, with a driver that is a shell script.

use super::cluster::{cluster, pod_with_claim};
use super::*;
use crate::base::spawn_blocking;
use serde_json::from_str;
use std::io::Write as _;
use std::process::{Command, Stdio};
use tokio::task::JoinHandle;

const NAME: &str = "acme/disk/v";

/// Records its calls, and answers with what the file `answer-CALL` has, or with success. Before, it runs the file `do-CALL`
/// in the directory that it is called for. It hangs while there is a file `hang-CALL`.
const SCRIPT: &str = r#"#!/bin/sh
base=$(dirname "$0")/../..
if [ -f "$base/do-$1" ]; then (cd "$2" && sh "$base/do-$1"); fi
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

fn was_called(base: &Path, call: &str) -> bool {
    fs::read_to_string(base.join("calls")).is_ok_and(|calls| calls.contains(call))
}

fn names(base: &Path) -> Vec<String> {
    calls(base).into_iter().map(|(call, _)| call).collect()
}

fn flex_pod(uid: &str) -> Pod {
    let mut pod = pod(json!([{"name": "v", "flexVolume": {"driver": "acme/disk", "fsType": "ext4",
        "options": {"share": "a"}}}]));
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
    let expected =
        [("init".to_owned(), json!({})), (format!("mount {}", target.display()), options)];
    assert_eq!(calls(base), expected);
    // The next kubelet finds what is to be undone on disk.
    let restarted = manager(base, &node.mounter);
    end(&restarted, "u1").await;
    assert_eq!(names(base), ["init".to_owned(), format!("unmount {}", target.display())]);
    assert!(!target.exists());
}

#[tokio::test]
async fn a_call_that_fails_is_an_event_and_a_driver_is_found_once_it_is_installed() {
    let node = node();
    let (base, pod) = (&node.base, flex_pod("u1"));
    let prefix = "MountVolume.SetUp failed for volume \"v\" : ";
    let error = error_chain(&node.prepare(&pod).await.unwrap_err());
    assert_eq!(error, format!("{prefix}flexVolume driver acme/disk is not installed"));
    install(base);
    without_attach(base);
    answer(base, "mount", json!({"status": "Failure", "message": "no disk"}));
    let error = error_chain(&node.prepare(&pod).await.unwrap_err());
    assert_eq!(error, format!("{prefix}mount command failed, status: Failure, reason: no disk"));
    assert!(!target(&node.manager, "u1", "v").exists());
    answer(base, "mount", json!({"status": "Not supported"}));
    let error = error_chain(&node.prepare(&pod).await.unwrap_err());
    assert_eq!(error, format!("{prefix}the driver neither mounts volumes nor attaches them"));
    fs::remove_file(base.join("answer-mount")).unwrap();
    // Another executable is initialised again.
    fs::remove_file(base.join("flex/acme~disk/disk")).unwrap();
    install(base);
    node.prepare(&pod).await.unwrap();
    answer(base, "unmount", json!({"status": "Failure", "message": "busy"}));
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
    let target = target(&node.manager, "u1", "v");
    let mount = format!("mount {}", target.display());
    let unmount = format!("unmount {}", target.display());
    let init = "init".to_owned();
    // Until it hangs, the call has done nothing at first, and has made a file in the directory then.
    for (make, expected) in [(":", vec![init, mount.clone()]), ("touch file", vec![mount, unmount])]
    {
        fs::write(base.join("do-mount"), make).unwrap();
        fs::write(base.join("do-unmount"), "rm file").unwrap();
        let manager = node.manager.clone();
        let prepare = tokio::spawn(async move { manager.prepare(&flex_pod("u1"), &never()).await });
        until("the call hangs", || was_called(&base, "mount ")).await;
        end(&node.manager, "u1").await;
        assert!(prepare.await.unwrap().is_err());
        assert_eq!(names(&base), expected, "{make}");
        assert!(!target.exists());
    }
}

#[tokio::test]
async fn init_of_a_driver_that_hangs_holds_up_no_teardown() {
    let node = node();
    let base = node.base.clone();
    install(&base);
    fs::write(base.join("hang-init"), "").unwrap();
    let manager = node.manager.clone();
    let prepare = tokio::spawn(async move { manager.prepare(&flex_pod("u1"), &never()).await });
    until("the call hangs", || was_called(&base, "init")).await;
    let manager = node.manager.clone();
    let ended = tokio::spawn(async move { end(&manager, "u1").await });
    until("the pod is torn down", || ended.is_finished()).await;
    ended.await.unwrap();
    prepare.abort();
}

#[tokio::test]
async fn a_volume_that_is_not_torn_down_keeps_no_other_volume() {
    let node = node();
    let base = &node.base;
    install(base);
    without_attach(base);
    let flex = |name: &str| json!({"name": name, "flexVolume": {"driver": "acme/disk"}});
    let nfs = |name: &str| json!({"name": name, "nfs": {"server": "s", "path": "/e"}});
    node.prepare(&pod(json!([nfs("n1"), nfs("n2"), flex("f1"), flex("f2")]))).await.unwrap();
    calls(base);
    std::mem::take(&mut node.mounter.0.lock().ran);
    node.mounter.0.lock().code = 16;
    fs::write(base.join("do-unmount"), "case $PWD in */f1) touch file;; esac").unwrap();
    let error = error_chain(&node.manager.teardown(&"u1".into()).await.unwrap_err());
    let ran = std::mem::take(&mut node.mounter.0.lock().ran);
    assert_eq!(ran.len(), 2, "{ran:?}");
    assert!(error.contains("unmount failed: exit status 16"), "{error}");
    let mut unmounted = names(base);
    unmounted.sort();
    let path = |name: &str| target(&node.manager, "u1", name);
    let expected = ["f1", "f2"].map(|name| format!("unmount {}", path(name).display()));
    assert_eq!(unmounted, expected);
    assert!(path("f1").exists() && !path("f2").exists());
    node.mounter.0.lock().code = 0;
    fs::write(base.join("do-unmount"), "rm file").unwrap();
    end(&node.manager, "u1").await;
}

#[tokio::test]
async fn the_change_of_a_volumes_group_ends_with_its_pod() {
    let node = node();
    let base = node.base.clone();
    install(&base);
    without_attach(&base);
    let target = target(&node.manager, "u1", "v");
    let mut count = 10_000;
    // A walk may be over before the pod ends.
    for _ in 0..6 {
        let make = format!("seq {count} | xargs touch; chmod 2755 .");
        fs::write(base.join("do-mount"), make).unwrap();
        let mut pod = flex_pod("u1");
        let context = json!({"fsGroup": 4321});
        pod.spec.as_mut().unwrap().security_context = serde_json::from_value(context).unwrap();
        let manager = node.manager.clone();
        let prepare = tokio::spawn(async move { manager.prepare(&pod, &never()).await.is_ok() });
        // A walk takes the bit away, until it has ended.
        let mut was_set = false;
        until("the walk has begun", || {
            let mode = fs::metadata(&target).map_or(0, |found| found.mode());
            was_set |= mode & 0o2000 != 0;
            was_set && mode & 0o2000 == 0 || prepare.is_finished()
        })
        .await;
        // Its files are left, and keep the directory.
        node.manager.teardown(&"u1".into()).await.unwrap_err();
        prepare.await.unwrap();
        let files = fs::read_dir(&target).unwrap().map(|file| file.unwrap());
        let changed = files.filter(|file| file.metadata().unwrap().gid() == 4321);
        let changed = changed.count();
        fs::remove_dir_all(&target).unwrap();
        end(&node.manager, "u1").await;
        if (1..count).contains(&changed) {
            return;
        }
        count *= 2;
    }
    panic!("no walk has ended before its last file");
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
    assert_eq!((&path.host_path, path.read_only, path.measured), (&target, true, true));
    let (call, options) = calls(base).pop().unwrap();
    assert_eq!(call, format!("mount {}", target.display()));
    assert_eq!(
        (&options["password"], &options["kubernetes.io/readwrite"]),
        (&json!("hush"), &json!("ro"))
    );
    assert_eq!(options["kubernetes.io/pvOrVolumeName"], "pv1");
    // Options may be secret.
    let markers = cluster.manager.root().pod(&"u1".into()).unwrap().plugins();
    let records = Command::new("grep").args(["-r", "acme/disk"]).arg(&markers).output().unwrap();
    let records = String::from_utf8(records.stdout).unwrap();
    assert!(records.contains("acme/disk") && !records.contains("hush"), "{records}");
    end(&cluster.manager, "u1").await;
}

/// A node of a cluster whose controller attaches volumes when the test says so.
struct Attaching {
    node: Node,
    manager: VolumeManager,
    in_use: VolumesInUse,
    object: watch::Sender<Option<Arc<k8s_openapi::api::core::v1::Node>>>,
    server: Stored,
}

async fn attaching() -> Attaching {
    let (node, server) = (node(), Stored::start().await);
    install(&node.base);
    let (in_use, object) = (VolumesInUse::default(), watch::Sender::new(None));
    let facts = node.manager.shared.node.clone();
    let manager = cluster_manager(&node, facts, &server, &in_use, &object).await;
    Attaching { node, manager, in_use, object, server }
}

impl Attaching {
    /// The manager of the next kubelet.
    async fn restarted(&self) -> VolumeManager {
        let facts = self.node.manager.shared.node.clone();
        cluster_manager(&self.node, facts, &self.server, &self.in_use, &self.object).await
    }

    fn is_in_use(&self) -> bool {
        let wanted = self.in_use.wanted().borrow().clone();
        wanted.unwrap().contains(NAME)
    }

    /// Prepares the pod; the volume is attached once it is in use.
    async fn prepare(&self, uid: &str) -> Result<PathBuf, String> {
        self.begin(uid, "/dev/x").await.await.unwrap()
    }

    /// Begins to prepare the pod; the volume is attached with this device.
    async fn begin(&self, uid: &str, device: &str) -> JoinHandle<Result<PathBuf, String>> {
        self.begin_pod(flex_pod(uid), device).await
    }

    async fn begin_pod(&self, pod: Pod, device: &str) -> JoinHandle<Result<PathBuf, String>> {
        let manager = self.manager.clone();
        let prepare = tokio::spawn(async move {
            let prepared = manager.prepare(&pod, &never()).await;
            let prepared = prepared.map_err(|error| error_chain(&error))?;
            Ok(prepared.paths["v"].host_path.clone())
        });
        until("the volume is in use", || self.is_in_use()).await;
        let attached = json!({"metadata": {"resourceVersion": "7"},
            "status": {"volumesAttached": [{"name": NAME, "devicePath": device}]}});
        self.object.send_replace(Some(Arc::new(serde_json::from_value(attached).unwrap())));
        self.in_use.confirm([NAME], "7");
        prepare
    }

    /// Tears the pod down, within a time in which no program that hangs ends.
    async fn end(&self, uid: &str) {
        let (manager, uid) = (self.manager.clone(), uid.to_owned());
        let ended = tokio::spawn(async move { end(&manager, &uid).await });
        until("the pod is torn down", || ended.is_finished()).await;
        ended.await.unwrap();
    }

    fn leave_to_the_kubelet(&self, calls: &[&str]) {
        for call in calls {
            answer(&self.node.base, call, json!({"status": "Not supported"}));
        }
    }

    async fn is_released(&self) {
        until("the device is released", || !self.is_in_use()).await;
        assert!(!self.device().exists());
    }

    /// The programs of the node since the last time.
    fn ran(&self) -> Vec<String> {
        std::mem::take(&mut self.node.mounter.0.lock().ran)
    }

    fn device(&self) -> PathBuf {
        self.manager.root().flex_device(&FlexDevice::new("acme/disk", "v"))
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
    let expected = ["waitforattach /dev/x".to_owned(), format!("mount {}", of_b.display())];
    assert_eq!(names(base), expected);
    end(&it.manager, "a").await;
    assert_eq!(names(base), [format!("unmount {}", of_a.display())]);
    assert!(it.is_in_use());
    end(&it.manager, "b").await;
    let expected = [format!("unmount {}", of_b.display()), format!("unmountdevice {shown}")];
    assert_eq!(names(base), expected);
    assert!(!it.is_in_use() && !device.exists());
}

#[tokio::test]
async fn what_a_driver_leaves_to_the_kubelet_is_done_by_programs_of_the_node() {
    let it = attaching().await;
    it.leave_to_the_kubelet(&["waitforattach", "mountdevice", "mount", "unmount", "unmountdevice"]);
    // What `blkid` prints has no form, so nothing may be formatted.
    let error = it.prepare("a").await.unwrap_err();
    assert!(error.starts_with("MountVolume.MountDevice failed for volume \"v\" : "), "{error}");
    let ran = it.ran();
    assert_eq!(ran, ["blkid -p -s TYPE -s PTTYPE -o export /dev/x"]);
    let device = it.device();
    it.node.mounter.add(&device, "ext4");
    let target = it.prepare("a").await.unwrap();
    assert_eq!(it.node.mounter.0.lock().bound.pop(), Some((device.clone(), target.clone())));
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
    let listed = spawn_blocking(move || csi.read_flex_devices());
    assert_eq!(listed.await.unwrap().unwrap().len(), 1);
    assert!(it.is_in_use());
    answer(&it.node.base, "unmountdevice", json!({"status": "Not supported"}));
    it.manager.release_leftovers();
    it.is_released().await;
}

#[tokio::test]
async fn a_device_that_is_not_mounted_is_released_without_a_call() {
    let it = attaching().await;
    let base = &it.node.base;
    it.prepare("a").await.unwrap();
    calls(base);
    it.end("a").await;
    it.is_released().await;
    let target = target(&it.manager, "a", "v");
    assert_eq!(names(base), [format!("unmount {}", target.display())]);
}

#[tokio::test]
async fn a_device_is_released_once_its_driver_is_installed_again() {
    let it = attaching().await;
    let base = &it.node.base;
    it.prepare("a").await.unwrap();
    it.node.mounter.add(&it.device(), "ext4");
    fs::remove_file(base.join("flex/acme~disk/disk")).unwrap();
    it.end("a").await;
    assert!(it.is_in_use() && it.device().exists());
    calls(base);
    install(base);
    it.is_released().await;
    let call = format!("unmountdevice {}", it.device().display());
    assert_eq!(names(base), ["init".to_owned(), call]);
}

#[tokio::test]
async fn a_device_that_is_locked_is_released_later() {
    let it = attaching().await;
    it.prepare("a").await.unwrap();
    let lock = it.manager.shared.locks.lock(&NAME.to_owned()).await;
    it.end("a").await;
    assert!(it.is_in_use() && it.device().exists());
    drop(lock);
    it.is_released().await;
}

#[tokio::test]
async fn devices_that_cannot_be_listed_stay_in_use_and_are_released_later() {
    let it = attaching().await;
    it.prepare("a").await.unwrap();
    let plugins = it.manager.root().path().join("plugins/kubernetes.io");
    let link = plugins.join("flexvolume/loop");
    symlink("loop", &link).unwrap();
    it.end("a").await;
    assert!(it.is_in_use() && it.device().exists());
    fs::remove_file(link).unwrap();
    it.is_released().await;
}

#[tokio::test]
async fn the_nodes_list_is_kept_while_devices_cannot_be_listed_at_the_start() {
    let it = attaching().await;
    let device = it.device();
    fs::create_dir_all(&device).unwrap();
    let link = device.parent().unwrap().join("../../../loop");
    symlink("loop", &link).unwrap();
    let manager = it.restarted().await;
    let wanted = || it.in_use.wanted().borrow().clone();
    let before = wanted();
    let known = json!({"status": {"volumesInUse": [NAME, "kubernetes.io/csi/d^h"]}});
    it.object.send_replace(Some(Arc::new(serde_json::from_value(known).unwrap())));
    until("the Node is known", || wanted() != before).await;
    assert!(it.is_in_use());
    assert_eq!(wanted().unwrap().len(), 1);
    manager.release_leftovers();
    assert!(device.exists());
    fs::remove_file(link).unwrap();
    it.is_released().await;
}

#[tokio::test]
async fn programs_that_check_and_mount_a_device_end_with_the_pod() {
    for (hanging, last) in [("blkid", "blkid "), ("fsck", "fsck "), ("mount", "mount ")] {
        let it = attaching().await;
        it.leave_to_the_kubelet(&["mountdevice"]);
        let mounter = &it.node.mounter;
        mounter.0.lock().format = "DEVNAME=/dev/x\nTYPE=ext4\n".into();
        mounter.0.lock().hanging_program = Some(hanging);
        let prepare = it.begin("a", "/dev/x").await;
        let hangs = || mounter.0.lock().ran.iter().any(|ran| ran.starts_with(last));
        until("the program hangs", hangs).await;
        it.end("a").await;
        assert!(prepare.await.unwrap().is_err());
        it.is_released().await;
        let ran = it.ran();
        assert!(ran.last().unwrap().starts_with(last), "{ran:?}");
    }
}

#[tokio::test]
async fn a_device_that_is_being_formatted_holds_up_no_teardown_and_is_not_mounted() {
    let it = attaching().await;
    it.leave_to_the_kubelet(&["mountdevice"]);
    let disk = it.node.base.join("disk");
    fs::write(&disk, [0; 4096]).unwrap();
    let mounter = &it.node.mounter;
    mounter.0.lock().format = EMPTY_DISK.into();
    mounter.0.lock().hanging_program = Some("mkfs.ext4");
    let prepare = it.begin("a", disk.to_str().unwrap()).await;
    let formats = || {
        let ran = &mounter.0.lock().ran;
        ran.last().is_some_and(|ran| ran.starts_with("mkfs.ext4 "))
    };
    until("the device is being formatted", formats).await;
    it.end("a").await;
    assert!(prepare.await.unwrap().is_err());
    assert!(it.is_in_use() && it.device().exists());
    mounter.0.lock().hanging_program = None;
    it.is_released().await;
    assert!(formats(), "{:?}", it.ran());
}

#[tokio::test]
async fn a_device_whose_path_hangs_holds_up_no_teardown() {
    let it = attaching().await;
    it.leave_to_the_kubelet(&["mount"]);
    let mounter = &it.node.mounter;
    mounter.add(&it.device(), "ext4");
    mounter.hang("v");
    let _release = hung::Release(mounter.clone());
    let prepare = it.begin("a", "/dev/x").await;
    until("its path hangs", || mounter.0.lock().waiting > 0).await;
    it.end("a").await;
    assert!(prepare.await.unwrap().is_err());
    assert!(mounter.0.lock().bound.is_empty());
}

#[tokio::test]
async fn a_bind_mount_that_cannot_be_made_read_only_is_unmounted() {
    let it = attaching().await;
    it.leave_to_the_kubelet(&["mount"]);
    let mounter = &it.node.mounter;
    mounter.add(&it.device(), "ext4");
    mounter.0.lock().code = 32;
    let mut pod = flex_pod("a");
    for volume in pod.spec.as_mut().unwrap().volumes.iter_mut().flatten() {
        volume.flex_volume.as_mut().unwrap().read_only = Some(true);
    }
    let error = it.begin_pod(pod, "/dev/x").await.await.unwrap().unwrap_err();
    assert!(error.contains("mount failed: exit status 32"), "{error}");
    let target = target(&it.manager, "a", "v");
    assert_eq!(mounter.0.lock().unmounted, std::slice::from_ref(&target));
    assert!(!target.exists());
    it.end("a").await;
}
