//! iSCSI volumes, with programs that are a shell script.

use super::cluster::{Cluster, cluster, pod_with_claim, with_mounter};
use super::disk::Disk;
use super::*;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::io::Write as _;
use std::os::unix::fs::FileTypeExt as _;
use std::process::{Command, Stdio};

const IQN: &str = "iqn.2001-04.com.example:a";
const SCRIPT: &str = include_str!("iscsi_machine.sh");
const RECORD: &str = "-m discoverydb -t sendtargets -p 10.0.0.1:3260 -I";

/// Installs the programs.
pub(super) fn install(base: &Path) {
    let bin = base.join("bin");
    fs::create_dir_all(&bin).unwrap();
    // Another process writes it: a file that this one has open for writing cannot run while a child has a copy of the
    // descriptor.
    let mut writer = Command::new("sh")
        .args([
            "-c",
            r#"cd "$0" && cat > iscsiadm && chmod 755 iscsiadm &&
            for name in multipath blockdev blkid mkfs.ext4 fsck; do ln iscsiadm $name; done"#,
        ])
        .arg(bin)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = writer.stdin.take().unwrap();
    input.write_all(SCRIPT.as_bytes()).unwrap();
    drop(input);
    assert!(writer.wait().unwrap().success());
}

/// The calls since the last time.
pub(super) fn calls(base: &Path) -> Vec<String> {
    let path = base.join("calls");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(path);
    text.lines().map(str::to_owned).collect()
}

/// The calls of `iscsiadm` since the last time, without its name.
fn admin_calls(base: &Path) -> Vec<String> {
    let calls = calls(base).into_iter();
    let calls = calls.filter_map(|call| Some(call.strip_prefix("iscsiadm ")?.to_owned()));
    calls.collect()
}

fn iscsi_node() -> Node {
    let node = node();
    install(&node.base);
    node
}

fn iscsi_pod(uid: &str, lun: i32, more: Value) -> Pod {
    let mut source = json!({"targetPortal": "10.0.0.1", "iqn": IQN, "lun": lun});
    for (key, value) in more.as_object().unwrap() {
        source[key] = value.clone();
    }
    let mut pod = pod(json!([{"name": "v", "iscsi": source}]));
    pod.metadata.uid = Some(uid.into());
    pod
}

fn global(manager: &VolumeManager, lun: i32) -> PathBuf {
    let all = manager.root().path().join("plugins/kubernetes.io/iscsi/iface-default");
    all.join(format!("10.0.0.1:3260-{IQN}-lun-{lun}"))
}

fn target(manager: &VolumeManager, uid: &str, name: &str) -> PathBuf {
    let pods = manager.root().pods_dir().join(uid);
    pods.join("volumes/kubernetes.io~iscsi").join(name)
}

pub(super) async fn end(manager: &VolumeManager, uid: &str) {
    manager.teardown(&uid.into()).await.unwrap();
    manager.remove_pod_dir(&uid.into()).await.unwrap();
}

fn logout(iface: &str) -> [String; 2] {
    let node = format!("-m node -p 10.0.0.1:3260 -T {IQN}");
    [format!("{node} --logout -I {iface}"), format!("{node} -o delete -I {iface}")]
}

#[tokio::test]
async fn a_disk_is_attached_and_mounted_once_and_detached_after_the_last_pod() {
    let node = iscsi_node();
    let (base, manager) = (&node.base, &node.manager);
    let (global, of_a) = (global(manager, 0), target(manager, "a", "v"));
    let paths = node.prepare(&iscsi_pod("a", 0, json!({}))).await.unwrap();
    assert_eq!(paths["v"].host_path, of_a);
    assert!(paths["v"].managed && !paths["v"].read_only);
    let login = format!("iscsiadm -m node -p 10.0.0.1:3260 -T {IQN} -I default");
    let link = base.join(format!("dev/disk/by-path/ip-10.0.0.1:3260-iscsi-{IQN}-lun-0"));
    let device = link.display();
    let expected = [
        "iscsiadm -m iface -I default -o show".to_owned(),
        format!("iscsiadm {RECORD} default -o new"),
        format!("iscsiadm {RECORD} default --discover"),
        format!("{login} -o update -n node.session.scan -v manual"),
        format!("{login} --login"),
        format!("iscsiadm -m node -p 10.0.0.1:3260 -T {IQN} -o update -n node.startup -v manual"),
        format!("blkid -p -s TYPE -s PTTYPE -o export {device}"),
        format!("mkfs.ext4 -F -m0 {device}"),
    ];
    assert_eq!(calls(base), expected);
    let scanned = fs::read_to_string(base.join("sys/class/scsi_host/host4/scan"));
    assert_eq!(scanned.unwrap(), "0 0 0");
    let ran = std::mem::take(&mut node.mounter.0.lock().ran);
    assert_eq!(ran, [format!("mount -t ext4 -o defaults {device} {}", global.display())]);
    let bound = node.mounter.0.lock().bound.clone();
    assert_eq!(bound, [(global.clone(), of_a.clone())]);
    let file = fs::read_to_string(global.join("iscsi.json")).unwrap();
    assert!(file.starts_with(r#"{"VolName":"v","Portals":["10.0.0.1:3260"],"#), "{file}");
    let measured = manager.measurable(&"a".into());
    assert_eq!(measured[0].source, UsageSource::Filesystem);

    let read_only = iscsi_pod("b", 0, json!({"readOnly": true}));
    let paths = node.prepare(&read_only).await.unwrap();
    let of_b = target(manager, "b", "v");
    assert!(paths["v"].read_only && !paths["v"].managed);
    assert_eq!(calls(base), [""; 0]);
    let ran = std::mem::take(&mut node.mounter.0.lock().ran);
    let (from, to) = (global.display(), of_b.display());
    assert_eq!(ran, [format!("mount -o bind,remount,ro {from} {to}")]);
    end(manager, "a").await;
    assert_eq!(calls(base), [""; 0]);
    end(manager, "b").await;
    assert_eq!(admin_calls(base), logout("default"));
    let unmounted = node.mounter.0.lock().unmounted.clone();
    assert_eq!(unmounted, [of_a, of_b, global.clone()]);
    let deleted = |device: &str| {
        fs::read_to_string(base.join("sys/block").join(device).join("device/delete")).unwrap()
    };
    assert_eq!((&*deleted("sd40"), &*deleted("sd41")), ("1", ""));
    assert!(!global.parent().unwrap().exists());
    // What is formatted is only checked.
    node.prepare(&iscsi_pod("a", 0, json!({}))).await.unwrap();
    assert!(calls(base).last().unwrap().starts_with("fsck -a "));
    end(manager, "a").await;
}

#[tokio::test]
async fn a_kubelet_that_knows_nothing_detaches_what_an_earlier_one_left() {
    for is_of_pod in [true, false] {
        let node = iscsi_node();
        let base = &node.base;
        node.prepare(&iscsi_pod("a", 0, json!({}))).await.unwrap();
        let (global, of_a) = (global(&node.manager, 0), target(&node.manager, "a", "v"));
        calls(base);
        let restarted = manager(base, &node.mounter);
        if is_of_pod {
            // As long as something of a pod is mounted, the disk stays.
            restarted.release_leftovers();
            end(&restarted, "a").await;
        } else {
            // The kubelet was killed between unmounting for the pod and detaching.
            node.mounter.unmount(&of_a).unwrap();
            fs::remove_dir(&of_a).unwrap();
            restarted.release_leftovers();
        }
        until("the disk is detached", || !global.exists()).await;
        assert_eq!(admin_calls(base), logout("default"));
        assert!(node.mounter.0.lock().mounts.is_empty());
    }
}

#[tokio::test]
async fn after_a_reboot_a_disk_is_attached_again_and_what_nobody_wants_is_removed() {
    let node = iscsi_node();
    let base = &node.base;
    node.prepare(&iscsi_pod("a", 0, json!({}))).await.unwrap();
    node.prepare(&iscsi_pod("b", 1, json!({}))).await.unwrap();
    node.mounter.0.lock().mounts.clear();
    for gone in ["sessions", "sys", "dev"] {
        fs::remove_dir_all(base.join(gone)).unwrap();
    }
    calls(base);
    let restarted = manager(base, &node.mounter);
    let prepared = restarted.prepare(&iscsi_pod("a", 0, json!({})), &never()).await;
    assert_eq!(prepared.unwrap().paths["v"].host_path, target(&restarted, "a", "v"));
    let logged_in = |calls: &[String]| calls.iter().any(|call| call.ends_with("--login"));
    assert!(logged_in(&admin_calls(base)));
    end(&restarted, "b").await;
    // The other disk is one of the same target.
    assert_eq!(admin_calls(base), [""; 0]);
    assert!(!global(&restarted, 1).exists());
    end(&restarted, "a").await;
    assert_eq!(admin_calls(base), logout("default"));
}

#[tokio::test]
async fn a_target_is_logged_out_of_when_its_last_disk_is_unused() {
    let node = iscsi_node();
    let base = &node.base;
    for (uid, lun) in [("a", 0), ("b", 1)] {
        node.prepare(&iscsi_pod(uid, lun, json!({}))).await.unwrap();
    }
    let logins = admin_calls(base);
    let logins = logins.iter().filter(|call| call.ends_with("--login"));
    assert_eq!(logins.count(), 1);
    end(&node.manager, "b").await;
    assert_eq!(admin_calls(base), [""; 0]);
    assert!(!global(&node.manager, 1).exists() && global(&node.manager, 0).exists());
    end(&node.manager, "a").await;
    assert_eq!(admin_calls(base), logout("default"));
}

/// A cluster with a claim whose volume authenticates.
async fn authenticating() -> Cluster {
    let cluster = cluster(3607).await;
    install(&cluster.node.base);
    cluster.claim("Bound");
    cluster.volume(json!({"mountOptions": ["noatime"], "iscsi": {
        "targetPortal": "10.0.0.1:3260", "iqn": IQN, "lun": 0, "initiatorName": "iqn.2001-04.com.example:me",
        "chapAuthDiscovery": true, "chapAuthSession": true, "secretRef": {"name": "chap", "namespace": "storage"}}}));
    let keys = [
        "discovery.sendtargets.auth.username",
        "discovery.sendtargets.auth.password",
        "node.session.auth.password",
        "other",
    ];
    let data = keys.map(|key| (key.to_owned(), json!(STANDARD.encode(format!("hush-{key}")))));
    let data: serde_json::Map<_, _> = data.into_iter().collect();
    cluster.server.put("secrets", "storage", "chap", json!({"data": data}));
    cluster
}

#[tokio::test]
async fn a_claim_authenticates_with_its_own_initiator_and_no_secret_is_shown() {
    let cluster = authenticating().await;
    let (base, manager) = (&cluster.node.base, &cluster.manager);
    fs::write(base.join("fail"), "-n node.session.auth.password").unwrap();
    let error = error_chain(&cluster.prepare(&pod_with_claim(false)).await.unwrap_err());
    assert!(error.starts_with("MountVolume.WaitForAttach failed for volume \"pv1\" : failed to get any path for iscsi disk"), "{error}");
    assert!(
        error.contains("-n node.session.auth.password -v ***") && !error.contains("hush"),
        "{error}"
    );
    fs::remove_file(base.join("fail")).unwrap();
    calls(base);
    cluster.prepare(&pod_with_claim(false)).await.unwrap();
    let iface = "10.0.0.1:3260:pv1";
    let (record, node) =
        (format!("{RECORD} {iface}"), format!("-m node -p 10.0.0.1:3260 -T {IQN} -I {iface}"));
    let expected = [
        "-m iface -I default -o show".to_owned(),
        format!("-m iface -I {iface} -o new"),
        format!(
            "-m iface -I {iface} -o update -n iface.initiatorname -v iqn.2001-04.com.example:me"
        ),
        format!("-m iface -I {iface} -o update -n iface.mtu -v 0"),
        format!("-m iface -I {iface} -o update -n iface.transport_name -v tcp"),
        format!("{record} -o new"),
        format!("{record} -o update -n discovery.sendtargets.auth.authmethod -v CHAP"),
        format!(
            "{record} -o update -n discovery.sendtargets.auth.username -v hush-discovery.sendtargets.auth.username"
        ),
        format!(
            "{record} -o update -n discovery.sendtargets.auth.password -v hush-discovery.sendtargets.auth.password"
        ),
        format!("{record} --discover"),
        format!("{node} -o update -n node.session.scan -v manual"),
        format!("{node} -o update -n node.session.auth.authmethod -v CHAP"),
        format!(
            "{node} -o update -n node.session.auth.password -v hush-node.session.auth.password"
        ),
        format!("{node} --login"),
        format!("-m node -p 10.0.0.1:3260 -T {IQN} -o update -n node.startup -v manual"),
    ];
    assert_eq!(admin_calls(base), expected);
    let of_pod = target(manager, "u1", "pv1");
    let ran = std::mem::take(&mut cluster.node.mounter.0.lock().ran);
    assert!(ran[0].starts_with("mount -t ext4 -o noatime,defaults "), "{ran:?}");
    assert!(ran[1].starts_with("mount -o bind,remount,noatime "), "{ran:?}");
    let path = cluster.prepare(&pod_with_claim(false)).await.unwrap().paths["v"].clone();
    assert_eq!(
        (&path.host_path, path.plugin, path.managed),
        (&of_pod, Some("kubernetes.io/iscsi"), true)
    );
    let claims: Vec<_> = manager.claims().into_values().collect();
    assert_eq!(claims[0].source, UsageSource::Filesystem);
    let found = Command::new("grep").args(["-r", "hush"]).arg(manager.root().path()).output();
    assert_eq!(String::from_utf8(found.unwrap().stdout).unwrap(), "");
    end(manager, "u1").await;
    let [logout, delete] = logout(iface);
    assert_eq!(admin_calls(base), [logout, delete, format!("-m iface -I {iface} -o delete")]);
}

#[tokio::test]
async fn a_disk_with_several_portals_is_mounted_by_its_multipath_device() {
    let node = iscsi_node();
    let base = &node.base;
    fs::write(base.join("multipath"), "").unwrap();
    // One portal does not answer.
    fs::write(base.join("fail"), "-p 10.0.0.3:3260 -I default --discover").unwrap();
    let portals = json!({"portals": ["10.0.0.2:3260", "10.0.0.3"], "fsType": "ext4"});
    let pod = iscsi_pod("a", 0, portals);
    node.prepare(&pod).await.unwrap();
    let device = base.join("dev/dm-0");
    let ran = std::mem::take(&mut node.mounter.0.lock().ran);
    let expected = format!("mount -t ext4 -o defaults {} ", device.display());
    assert!(ran[0].starts_with(&expected), "{ran:?}");
    let tried = admin_calls(base);
    let tried = tried.iter().filter(|call| call.ends_with("--discover"));
    assert_eq!(tried.count(), 4);
    end(&node.manager, "a").await;
    let ended = calls(base);
    assert_eq!(ended[0], format!("multipath -f {}", device.display()));
    let logouts = ended.iter().filter(|call| call.contains("--logout"));
    assert_eq!(logouts.count(), 3);
    for device in ["sd40", "sd50"] {
        let deleted = fs::read_to_string(base.join("sys/block").join(device).join("device/delete"));
        assert_eq!(deleted.unwrap(), "1");
    }
}

#[tokio::test]
async fn a_login_that_hangs_holds_up_its_pod_alone_and_ends_with_it() {
    let node = iscsi_node();
    let base = node.base.clone();
    fs::write(base.join("hang"), "--login").unwrap();
    let manager = node.manager.clone();
    let pod = iscsi_pod("a", 0, json!({}));
    let prepare = tokio::spawn(async move { manager.prepare(&pod, &never()).await });
    while fs::read_to_string(base.join("hanging")).is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let reasons = node.manager.pending(&"a".into());
    assert_eq!(reasons[0].reason, format!("waits for the iSCSI target {IQN}"));
    node.prepare(&super::pod(json!([{"name": "v", "emptyDir": {}}]))).await.unwrap();
    calls(&base);
    end(&node.manager, "a").await;
    assert!(prepare.await.unwrap().is_err());
    // The login may have gone through.
    assert_eq!(admin_calls(&base), logout("default"));
    assert!(!global(&node.manager, 0).exists());
}

#[tokio::test]
async fn a_disk_that_cannot_be_detached_stays_in_use_until_it_can() {
    let node = iscsi_node();
    let base = &node.base;
    node.prepare(&iscsi_pod("a", 0, json!({}))).await.unwrap();
    fs::write(base.join("fail"), "--logout").unwrap();
    end(&node.manager, "a").await;
    let global = global(&node.manager, 0);
    assert!(global.join("iscsi.json").exists());
    fs::remove_file(base.join("fail")).unwrap();
    until("the disk is detached", || !global.exists()).await;
    let ended = admin_calls(base);
    assert!(ended.ends_with(&logout("default")), "{ended:?}");
}

#[tokio::test]
async fn a_disk_is_in_use_by_its_unique_name_and_attached_before_the_login() {
    let (node, server) = (iscsi_node(), Stored::start().await);
    let (in_use, object) = (VolumesInUse::default(), watch::Sender::new(None));
    let facts =
        Arc::new(NodeFacts { controller_attach: true, ..(*node.manager.shared.node).clone() });
    let start = async || cluster_manager(&node, facts.clone(), &server, &in_use, &object).await;
    let names = || {
        let wanted = in_use.wanted().borrow().clone().unwrap();
        wanted.iter().cloned().collect::<Vec<_>>()
    };
    let name = format!("kubernetes.io/iscsi/10.0.0.1:{IQN}:0");
    let manager = start().await;
    let of = manager.clone();
    let prepare =
        tokio::spawn(async move { of.prepare(&iscsi_pod("a", 0, json!({})), &never()).await });
    let only = std::slice::from_ref(&name);
    while names() != only {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(calls(&node.base), [""; 0]);
    let attached = json!({"metadata": {"resourceVersion": "7"}, "status": {"volumesAttached": [{"name": name, "devicePath": ""}]}});
    object.send_replace(Some(Arc::new(serde_json::from_value(attached).unwrap())));
    in_use.confirm([&*name], "7");
    prepare.await.unwrap().unwrap();
    assert_eq!(names(), only);
    // A directory does not say whether the portal was given its port.
    let restarted = start().await;
    let with_port = format!("kubernetes.io/iscsi/10.0.0.1:3260:{IQN}:0");
    assert_eq!(names(), [with_port, name.clone()]);
    restarted.prepare(&iscsi_pod("a", 0, json!({})), &never()).await.unwrap();
    assert_eq!(names(), only);
    end(&restarted, "a").await;
    assert_eq!(names(), [""; 0]);
}

/// Mounts on the kernel's table; programs that are in `bin` of its directory are run instead of the machine's.
#[derive(Clone)]
struct ScriptedMounter(PathBuf);

impl Mounter for ScriptedMounter {
    fn list(&self) -> io::Result<Vec<MountEntry>> {
        HostMounter.list()
    }

    fn symlink_metadata(&self, path: &Path) -> io::Result<fs::Metadata> {
        HostMounter.symlink_metadata(path)
    }

    fn is_mounted(&self, directory: &Path) -> io::Result<bool> {
        HostMounter.is_mounted(directory)
    }

    fn tmpfs(&self, target: &Path, size_bytes: u64, mode: u32) -> io::Result<()> {
        HostMounter.tmpfs(target, size_bytes, mode)
    }

    fn huge_pages(&self, target: &Path, page_bytes: u64) -> io::Result<()> {
        HostMounter.huge_pages(target, page_bytes)
    }

    fn bind(&self, source: &Path, target: &Path) -> io::Result<()> {
        HostMounter.bind(source, target)
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        HostMounter.unmount(target)
    }

    fn run(&self, program: Program) -> io::Result<ProgramEnd> {
        HostMounter.run(program)
    }

    fn execute(&self, program: Program) -> BoxFuture<'static, io::Result<ProgramEnd>> {
        let name = self.0.join("bin").join(&program.name);
        let name = name.to_str().unwrap().to_owned();
        HostMounter.execute(Program { name, ..program })
    }

    fn machine_root(&self) -> &Path {
        &self.0
    }
}

/// Unmounts what a test that failed has left below a directory.
struct Unmounted(PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let _ = super::super::mounter::unmount_beneath(&self.0, &HostMounter);
    }
}

#[tokio::test]
async fn a_disk_of_mode_block_is_mapped_for_each_pod_and_detached_after_the_last() {
    let Some(disk) = Disk::new() else { return };
    let node = iscsi_node();
    let base = node.base.clone();
    let _unmounted = Unmounted(base.clone());
    let mounter = ScriptedMounter(base.clone());
    let cluster = with_mounter(3607, node, mounter.clone()).await;
    cluster.claim("Bound");
    cluster.volume(
        json!({"volumeMode": "Block", "iscsi": {"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 0}}),
    );
    let claimant = |uid: &str| {
        let mut pod = pod_with_claim(false);
        pod.metadata.uid = Some(uid.into());
        let spec = pod.spec.as_mut().unwrap();
        spec.containers[0].volume_mounts = None;
        let devices = json!([{"name": "v", "devicePath": "/dev/x"}]);
        spec.containers[0].volume_devices = serde_json::from_value(devices).unwrap();
        pod
    };
    // The disk of the target is that of the machine.
    let names = base.join("dev/disk/by-path");
    let name = format!("ip-10.0.0.1:3260-iscsi-{IQN}-lun-0");
    fs::create_dir_all(&names).unwrap();
    symlink(&disk.device, names.join(&name)).unwrap();
    let all = global(&cluster.manager, 0);
    let plugin = all.parent().unwrap().parent().unwrap();
    let maps = plugin.join("volumeDevices/iface-default").join(all.file_name().unwrap());
    for uid in ["a", "b"] {
        let prepared = cluster.prepare(&claimant(uid)).await.unwrap();
        let path = &prepared.paths["v"];
        assert!(path.is_device && !path.managed, "{path:?}");
        let pods = cluster.manager.root().pods_dir().join(uid);
        assert_eq!(path.host_path, pods.join("volumeDevices/kubernetes.io~iscsi/pv1"));
        assert_eq!(fs::read_link(&path.host_path).unwrap(), Path::new(&disk.device));
        assert!(fs::metadata(maps.join(uid)).unwrap().file_type().is_block_device());
    }
    assert!(maps.join("iscsi.json").exists());
    calls(&base);
    end(&cluster.manager, "a").await;
    assert_eq!(calls(&base), [""; 0]);
    // The next kubelet finds what is to be undone on disk, and nothing is open any more.
    cluster.manager.shared.open_devices.lock().clear();
    let restarted = VolumeManager::new(
        cluster.manager.root().clone(),
        cluster.manager.shared.node.clone(),
        ConfigMapSecretReader::new(None, None),
        Default::default(),
        None,
        mounter,
    );
    end(&restarted, "b").await;
    assert_eq!(admin_calls(&base), logout("default"));
    assert!(!maps.parent().unwrap().exists());
    let left = HostMounter.list().unwrap();
    assert!(!left.iter().any(|mount| mount.is_beneath(&base)));
}
