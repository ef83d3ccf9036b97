//! Mounts that are dead or used elsewhere, and PersistentVolumes that are edited.

use super::driver::Behaviour;
use super::world::{LIMIT, VOLUME, World};
use crate::base::clock;
use crate::host::mount;
use crate::model::PodUid;
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::Code;

fn object() -> Value {
    json!({"attachRequired": false})
}

/// Mounts a file system whose server is this process, and which is dead once the file is dropped.
fn mount_fuse(path: &Path) -> File {
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    rustix::mount::mount("dead", path, "fuse", MountFlags::empty(), Some(&*options)).unwrap();
    device
}

async fn until(what: &str, fact: impl Fn() -> bool) {
    let all = async {
        while !fact() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(LIMIT, all).await.is_ok(), "{what}");
}

/// Whether there is FUSE; it has to be there in CI.
fn has_fuse() -> bool {
    let is_there = Path::new("/dev/fuse").exists();
    if !is_there {
        assert!(std::env::var_os("CI").is_none(), "no FUSE");
        eprintln!("SKIPPED, there is no FUSE");
    }
    is_there
}

#[tokio::test]
async fn a_dead_mount_is_replaced_with_the_staged_one() {
    let Some(world) = World::with_mounts(object()).await else {
        return;
    };
    if !has_fuse() {
        return;
    }
    let data = world.driver.volumes.data(VOLUME);
    let server = mount_fuse(&data);
    let path = world.publish("a").await.unwrap();
    let other = world.publish("b").await.unwrap();
    let (a, b) = (PodUid::from("a"), PodUid::from("b"));
    drop(server);
    rustix::mount::unmount(&data, UnmountFlags::DETACH).unwrap();
    fs::write(data.join("file"), "new").unwrap();
    assert!(fs::read_dir(&path).is_err(), "it is dead");
    let find = async |uid: &PodUid| world.csi.dead_mounts(uid).await.pop();
    let dead = find(&a).await.expect("a dead mount");
    assert_eq!((&*dead.volume, &*dead.spec_name), ("data", "pv1"));
    world.csi.remount(&a, &dead);
    // The other pod still has the dead stage.
    until("it waits for the other pod", || {
        let waits = world.csi.waits_for(&a, "data").unwrap_or_default();
        waits.contains("which is dead or has another SELinux label, and which pod b uses")
    })
    .await;
    let dead = find(&b).await.expect("a dead mount");
    world.csi.remount(&b, &dead);
    world.publish("a").await.unwrap();
    world.publish("b").await.unwrap();
    for path in [&path, &other] {
        let text = fs::read_to_string(path.join("file")).unwrap();
        assert_eq!(text, "new");
    }
    assert_eq!(find(&a).await, None);
    assert_eq!(world.driver.journal.of("NodeUnstageVolume").len(), 1);
    for pod in ["a", "b"] {
        world.unpublish(pod).await.unwrap();
    }
    world.idle().await;
}

#[tokio::test]
async fn a_volume_whose_mount_is_dead_is_undone_and_recovered() {
    let Some(mut world) = World::with_mounts(object()).await else {
        return;
    };
    if !has_fuse() {
        return;
    }
    let data = world.driver.volumes.data(VOLUME);
    let server = mount_fuse(&data);
    let path = world.publish("a").await.unwrap();
    drop(server);
    world.restart().await;
    let identity = world.request("a", |_| ()).spec.identity.clone();
    let earlier = world.csi.published_earlier(&"a".into(), &identity);
    assert_eq!(earlier.as_ref(), Some(&path), "it is still mounted");
    world.csi.pods_are_known(|_| true);
    world.unpublish("a").await.unwrap();
    rustix::mount::unmount(&data, UnmountFlags::DETACH).unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_volume_is_not_unstaged_while_it_is_mounted_for_an_unknown_pod() {
    let Some(world) = World::with_mounts(object()).await else {
        return;
    };
    world.publish("a").await.unwrap();
    let stage = mount::list().unwrap().into_iter();
    let stage = stage.map(|mount| mount.mount_point);
    let mut stage = stage.filter(|path| path.starts_with(world.root().join("plugins")));
    let stage = stage.next().expect("the staged mount");
    let unknown = world.root().join("pods/x/volumes/kubernetes.io~csi/pv1/mount");
    fs::create_dir_all(&unknown).unwrap();
    mount::bind(&stage, &unknown).unwrap();
    world.unpublish("a").await.unwrap();
    let explained = || {
        let volume = world.csi.0.volumes.lock().values().next().cloned();
        let volume = volume.expect("the volume");
        let state = volume.state.lock();
        let now = clock::instant();
        state.machine.waits_for(None, now).unwrap_or_default()
    };
    until("it is refused", || explained().contains("is still mounted by other references")).await;
    assert!(explained().contains("pods/x/volumes"), "{}", explained());
    assert_eq!(world.driver.journal.of("NodeUnstageVolume").len(), 0);
    mount::unmount(&unknown).unwrap();
    fs::remove_dir_all(world.root().join("pods/x")).unwrap();
    world.idle().await;
}

#[tokio::test]
async fn an_edited_persistent_volume_is_for_the_next_pod() {
    let mut world = World::start().await;
    world.publish("a").await.unwrap();
    let edit = |volume: &mut Value| {
        volume["spec"]["csi"]["volumeAttributes"] = json!({"tier": "fast"});
        volume["spec"]["csi"]["nodePublishSecretRef"] = json!({"namespace": "vault", "name": "x"});
    };
    world.server.put("secrets", "vault", "x", json!({"data": {"key": "c2VjcmV0"}}));
    world.publish_changed("b", edit).await.unwrap();
    let contexts = |method: &str| {
        let entries = world.driver.journal.of(method).into_iter();
        entries.map(|entry| entry.volume_context).collect::<Vec<_>>()
    };
    assert_eq!(contexts("NodeStageVolume"), [<[String; 0]>::default()]);
    let published = contexts("NodePublishVolume");
    assert_eq!(published, [vec![], vec!["tier".to_owned()]]);
    for pod in ["a", "b"] {
        world.unpublish(pod).await.unwrap();
    }
    world.idle().await;
    // Another volume under the name: the running pod keeps what it has.
    world.publish("a").await.unwrap();
    world.restart().await;
    let replaced = world.request("a", |volume| {
        volume["spec"]["csi"]["volumeHandle"] = json!("vol-b");
    });
    let handle = world.csi.replaced_handle(&"a".into(), &replaced.spec);
    assert_eq!(handle.as_deref(), Some(VOLUME));
    let other = world.csi.replaced_handle(&"b".into(), &replaced.spec);
    assert_eq!(other, None);
    world.csi.pods_are_known(|_| true);
    world.unpublish("a").await.unwrap();
    world.idle().await;
}

#[tokio::test]
async fn a_volume_is_staged_again_for_a_pod_with_another_selinux_label() {
    let object = json!({"attachRequired": false, "seLinuxMount": true});
    let world = World::with(object, super::driver::Mounts::None).await;
    let request = |pod: &str, label: &str| {
        let mut request = world.request(pod, |volume| {
            volume["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
            volume["spec"]["mountOptions"] = json!(["noatime"]);
        });
        let labels = &mut request.pod.file_labels;
        labels.insert("data".to_owned(), format!("u:r:t:{label}"));
        request
    };
    let publish = async |pod: &str, label: &str| {
        let publish = world.csi.begin_publish(request(pod, label));
        timeout(LIMIT, publish.finish()).await.unwrap().unwrap();
    };
    let flags = || {
        use crate::volumes::csi::proto::volume_capability::AccessType;
        let volume = world.driver.volumes.get(VOLUME).unwrap();
        let staged = volume.staged.map(|(_, capability)| capability);
        let published = volume.published.into_values();
        let all = staged.into_iter().chain(published.map(|(capability, _)| capability));
        let flags = all.map(|capability| match capability.access_type {
            Some(AccessType::Mount(mount)) => mount.mount_flags.join(","),
            _ => String::new(),
        });
        flags.collect::<Vec<_>>()
    };
    publish("a", "s0:c1").await;
    let first = "noatime,context=\"u:r:t:s0:c1\"";
    assert_eq!(flags(), [first, first]);
    assert!(world.csi.mounts_with_label(&"a".into(), "data"));
    let waiting = world.csi.begin_publish(request("b", "s0:c2"));
    world.unpublish("a").await.unwrap();
    timeout(LIMIT, waiting.finish()).await.unwrap().unwrap();
    let second = "noatime,context=\"u:r:t:s0:c2\"";
    assert_eq!(flags(), [second, second]);
    assert_eq!(world.driver.journal.of("NodeUnstageVolume").len(), 1);
    world.unpublish("b").await.unwrap();
    world.idle().await;
}

/// Another kubelet has undone the volume, and it was deleted since.
#[tokio::test]
async fn a_volume_that_its_driver_does_not_know_is_undone_when_nothing_of_it_is_mounted() {
    let Some(world) = World::with_mounts(object()).await else {
        return;
    };
    let path = world.publish("a").await.unwrap();
    for method in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
        let unknown = Behaviour::fail(Code::NotFound);
        world.driver.script.always(method, unknown);
    }
    let error = world.unpublish("a").await.unwrap_err();
    let why = crate::base::error_chain(&error);
    assert!(why.contains("NotFound"), "{why}");
    let volume = world.driver.volumes.get(VOLUME).unwrap();
    let (staged, _) = volume.staged.unwrap();
    for mounted in [&path, Path::new(&staged)] {
        rustix::mount::unmount(mounted, UnmountFlags::DETACH).unwrap();
    }
    world.driver.volumes.change(VOLUME, |volume| {
        volume.staged = None;
        volume.published.clear();
    });
    world.unpublish("a").await.unwrap();
    world.idle().await;
    assert_eq!(world.in_use(), Some(Vec::new()));
    assert!(!path.exists());
}
