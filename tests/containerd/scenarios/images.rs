//! Pulls from a registry, and images that nobody needs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStateWaiting, Pod};

use crate::flavour::Flavour;
use crate::node::{Node, WAIT_LIMIT, container, manifest};
use crate::registry::{Door, PASSWORD, Registry, USER, credential_provider, docker_config};
use crate::support::wait::{holds, wait_for};

const BUSYBOX: &str = "localhost/busybox:dev";

fn sleeps(image: &str) -> String {
    format!("containers:\n- {{ name: c, image: \"{image}\", command: [sleep, \"1000\"] }}")
}

fn waiting(pod: &Pod) -> ContainerStateWaiting {
    let state = container(pod, "c").and_then(|status| status.state.clone());
    state.and_then(|state| state.waiting).unwrap_or_default()
}

fn reason(pod: &Pod) -> String {
    waiting(pod).reason.unwrap_or_default()
}

/// Files in a directory of the kubelet's root.
fn files(node: &Node, dir: &str) -> Vec<String> {
    let dir = node.root().join(dir);
    let entries = std::fs::read_dir(dir).unwrap();
    // One that goes meanwhile was none.
    let texts = entries.filter_map(|entry| std::fs::read_to_string(entry.unwrap().path()).ok());
    texts.collect()
}

pub async fn images_of_three_containers_are_pulled_at_the_same_time() {
    let node = Node::start().await;
    let registry = Registry::public(node.dir()).await;
    for name in ["one:1", "two:1", "three:1"] {
        registry.push(&node.runtime, BUSYBOX, name);
    }
    // Nobody gets through before all three pulls are under way.
    let door = Door::before(&registry, 3).await;
    let spec: String = ["one", "two", "three"]
        .iter()
        .map(|name| {
            let image = door.image(&format!("{name}:1"));
            format!("- {{ name: {name}, image: \"{image}\", command: [sleep, \"1000\"] }}\n")
        })
        .collect();
    node.put("web", &manifest("web", &format!("containers:\n{spec}")));
    node.ready("web").await;
    let order = node.runtime.containers_of("web-node1");
    let names: Vec<_> = order.iter().map(|container| container.name.as_str()).collect();
    assert_eq!(names, ["one", "two", "three"]);
    let known = node.runtime.crictl(&["images"]);
    assert!(known.contains(door.image("three").as_str()), "{known}");
    let events = node.kubelet.events().await;
    assert!(events.contains("Successfully pulled image"), "{events}");
    wait_for("all pulls are noted", WAIT_LIMIT, || async {
        let records = files(&node, "image_manager/pulled");
        // One image under three names.
        let open_to = "\"nodePodsAccessible\":true";
        let noted = records.len() == 1 && records[0].matches(open_to).count() == 3;
        let under_way = std::fs::read_dir(node.root().join("image_manager/pulling"));
        let under_way = under_way.unwrap().count();
        let fact = noted && under_way == 0;
        holds(fact, format!("{under_way} under way, noted: {records:?}"))
    })
    .await;
}

pub async fn a_private_image_is_pulled_once_the_login_is_right() {
    let node = Node::start().await;
    let registry = Registry::private(node.dir()).await;
    let image = registry.push(&node.runtime, BUSYBOX, "team/app:1");
    let config = node.root().join("config.json");
    std::fs::write(&config, docker_config(&registry.host(), USER, "wrong-password")).unwrap();
    node.put("web", &manifest("web", &sleeps(&image)));
    // That it failed may be shown for a moment only, if something makes the kubelet look again.
    let held = |pod: &Pod| reason(pod) == "ImagePullBackOff";
    let held = node.pod_when("web", "waits for the next try", held).await;
    let message = waiting(&held).message.unwrap_or_default();
    let (beginning, denial) = if Flavour::current().is_crio() {
        ("", "authentication required")
    } else {
        ("failed to pull", "401 Unauthorized")
    };
    let expected = format!("Back-off pulling image \"{image}\": ErrImagePull: {beginning}");
    assert!(message.starts_with(&expected), "{message}");
    assert!(message.contains(denial), "{message}");
    std::fs::write(&config, docker_config(&registry.host(), USER, PASSWORD)).unwrap();
    node.ready("web").await;
    let events = node.kubelet.events().await;
    for text in [
        format!("Pulling image \\\"{image}\\\""),
        format!("Failed to pull image \\\"{image}\\\""),
        "Error: ErrImagePull".to_owned(),
        format!("Back-off pulling image \\\"{image}\\\""),
        format!("Successfully pulled image \\\"{image}\\\" in "),
    ] {
        assert!(events.contains(&text), "{text} in {events}");
    }
    let log = node.kubelet.log();
    assert!(!log.contains("wrong-password") && !log.contains(PASSWORD));
}

pub async fn a_program_provides_the_login_for_all_images_of_a_registry() {
    let dir = Node::fresh_dir();
    let registry = Registry::private(dir.path()).await;
    let provider = credential_provider(dir.path(), &registry.host());
    let args = [
        format!("--image-credential-provider-config={}", provider.config.display()),
        format!("--image-credential-provider-bin-dir={}", provider.programs.display()),
    ];
    let node = Node::start_in(dir, "", &args).await;
    for name in ["one", "two"] {
        let image = registry.push(&node.runtime, BUSYBOX, &format!("team/{name}:1"));
        node.put(name, &manifest(name, &sleeps(&image)));
        node.ready(name).await;
    }
    let requested = std::fs::read_to_string(&provider.runs).unwrap();
    let question = format!(
        "{{\"kind\":\"CredentialProviderRequest\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\"image\":\"{}/team/one\"}}\n",
        registry.host()
    );
    assert_eq!(requested, question, "the answer serves the whole registry");
    assert!(!node.kubelet.log().contains(PASSWORD));
}

pub async fn an_image_that_was_there_is_not_everybodys_when_all_are_verified() {
    let node = Node::start_with("imagePullCredentialsVerificationPolicy: AlwaysVerify\n").await;
    let registry = Registry::public(node.dir()).await;
    let image = registry.push(&node.runtime, BUSYBOX, "app:1");
    node.runtime.tag(BUSYBOX, &image);
    let never = "imagePullPolicy: Never, command: [sleep, \"1000\"]";
    let spec = format!("containers:\n- {{ name: c, image: \"{image}\", {never} }}");
    node.put("never", &manifest("never", &spec));
    let refused = |pod: &Pod| reason(pod) == "ErrImageNeverPull";
    node.pod_when("never", "may not use it", refused).await;
    // Whoever may pull it opens it to the node.
    node.put("web", &manifest("web", &sleeps(&image)));
    node.ready("web").await;
    node.ready("never").await;
    let events = node.kubelet.events().await;
    let reported = format!(
        "Container image \\\"{image}\\\" already present on machine and can be accessed by the pod"
    );
    assert!(events.contains(&reported), "{events}");
}

/// A small file system for the runtime's files. It goes when the runtime is stopped.
fn mount_tmpfs(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=128m,mode=0700", "tmpfs"])
        .arg(dir)
        .status()
        .unwrap();
    assert!(mounted.success());
}

pub async fn unused_images_go_until_there_is_space_and_used_ones_stay() {
    let dir = Node::fresh_dir();
    mount_tmpfs(&dir.path().join("root"));
    let mut node = Node::start_in(dir, "imageGCHighThresholdPercent: 100\n", &[]).await;
    // Containerd keeps each twice, packed and unpacked; CRI-O only unpacked.
    let copies = if Flavour::current().is_crio() { 1 } else { 2 };
    for name in ["wanted", "first", "second", "third"] {
        node.runtime.import_filler(&format!("localhost/{name}:1"), (20 << 20) / copies);
    }
    node.put("runs", &manifest("runs", &sleeps(BUSYBOX)));
    node.ready("runs").await;
    let wanted = "containers:\n- { name: c, image: \"localhost/wanted:1\", command: [none] }";
    node.put("wanted", &manifest("wanted", wanted));
    let cannot_run = |pod: &Pod| !reason(pod).is_empty() && reason(pod) != "ContainerCreating";
    node.pod_when("wanted", "cannot run", cannot_run).await;
    let disk = node.dir().join("root");
    let used = || {
        let stat = rustix::fs::statvfs(&disk).unwrap();
        100 - stat.f_bavail * 100 / stat.f_blocks
    };
    let before = used();
    assert!(before > 60, "{before} % are used; the images were to fill more");
    let settings =
        "imageGCHighThresholdPercent: 60\nimageGCLowThresholdPercent: 45\nimageMinimumGCAge: 1ns\n";
    node.kubelet.reconfigure("imageGCHighThresholdPercent: 100\n", settings);
    node.kubelet.respawn();
    node.kubelet.wait_healthy(WAIT_LIMIT).await;
    // crictl asks for the file system first; CRI-O fails there while it removes an image.
    let here = || {
        let listed = node.runtime.try_crictl(&["images", "-o", "json"])?;
        let names = ["wanted", "first", "second", "third", "busybox", "pause"];
        let listed = |name: &&str| listed.contains(&format!("localhost/{name}:"));
        Ok::<Vec<_>, String>(names.into_iter().filter(listed).collect())
    };
    wait_for("images were removed", WAIT_LIMIT, || async {
        let left = here()?;
        holds(left.len() == 4, format!("{left:?}"))
    })
    .await;
    wait_for("there is space", WAIT_LIMIT, || async {
        holds(used() <= 45, format!("{} % are used", used()))
    })
    .await;
    // Long enough for another one to go, should it.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let left = here().unwrap();
    for name in ["wanted", "busybox", "pause"] {
        assert!(left.contains(&name), "{left:?}");
    }
    assert_eq!(left.len(), 4, "one unused image may stay: {left:?}");
    let events = node.kubelet.events().await;
    assert!(!events.contains("FreeDiskSpaceFailed"), "{events}");
    // The sandbox image is still there for a new pod.
    node.put("fresh", &manifest("fresh", &sleeps(BUSYBOX)));
    node.ready("fresh").await;
}
