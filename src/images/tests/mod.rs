use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prost::Message;
use tokio::task::JoinSet;
use tonic::Code;

mod accounts;
mod prefetch;
mod verified;

use super::credentials::{CredentialPlugins, Keyring, NodeFiles};
use super::records::PullRecords;
use super::{ImageError, ImageManager, ImageManagerParts, ImageRequest, PullConfig, PullPolicy};
use crate::cri::test_server::{Reply, TestRuntime, until};
use crate::cri::v1::{
    Image, ImageStatusRequest, ImageStatusResponse, PullImageRequest, PullImageResponse,
};
use crate::model::{Pod, PodUid, fixture, reasons};
use crate::state::events::{EventRecorder, EventType, ObjectRef};

impl Default for PullConfig {
    fn default() -> PullConfig {
        PullConfig { serialize: false, max_parallel: None, qps: Some(5), burst: 10 }
    }
}

struct World {
    runtime: TestRuntime,
    recorder: EventRecorder,
    manager: ImageManager,
}

fn world(config: &PullConfig) -> World {
    world_with(config, Keyring::default())
}

fn world_with(config: &PullConfig, keyring: Keyring) -> World {
    world_of(config, keyring, PullRecords::disabled())
}

fn world_of(config: &PullConfig, keyring: Keyring, records: PullRecords) -> World {
    let runtime = TestRuntime::started();
    let recorder = EventRecorder::new();
    let manager = ImageManager::new(ImageManagerParts {
        metrics: super::PullMetrics::register(&crate::base::metrics::Metrics::new()),
        images: runtime.images(),
        events: recorder.clone(),
        pulls: config.clone(),
        keyring,
        records,
    });
    World { runtime, recorder, manager }
}

fn pod(uid: &str) -> Pod {
    fixture::pod(&format!("default/web/{uid}"), None)
}

fn serial() -> PullConfig {
    PullConfig { serialize: true, ..PullConfig::default() }
}

impl World {
    fn present(&self, id: &'static str) {
        self.runtime.script.on("ImageStatus", move |_| {
            let image = Image { id: id.into(), size: 1234, ..Default::default() };
            Reply::message(&ImageStatusResponse { image: Some(image), ..Default::default() })
        });
    }

    fn absent(&self) {
        self.runtime.script.on("ImageStatus", |_| Reply::message(&ImageStatusResponse::default()));
    }

    fn pulls(&self, image_ref: &'static str) {
        self.runtime.script.on("PullImage", move |_| {
            Reply::message(&PullImageResponse { image_ref: image_ref.into() })
        });
    }

    fn pull_fails(&self, code: Code, text: &'static str) {
        self.runtime.script.on("PullImage", move |_| Reply::Fail(code, text));
    }

    async fn ensure(&self, image: &str, policy: PullPolicy) -> Result<String, ImageError> {
        ensure(&self.manager, &pod("uid-1"), image, policy).await
    }

    /// Type, reason and message of all events, oldest first.
    fn events(&self) -> Vec<(EventType, &'static str, String)> {
        let events = self.recorder.recent();
        events
            .into_iter()
            .map(|event| {
                let Cow::Borrowed(reason) = event.reason else {
                    panic!("{event:?}");
                };
                (event.kind, reason, event.message.clone())
            })
            .collect()
    }
}

async fn ensure(
    manager: &ImageManager,
    pod: &Pod,
    image: &str,
    policy: PullPolicy,
) -> Result<String, ImageError> {
    let object = ObjectRef::container(pod, "web");
    let request = ImageRequest {
        pod,
        object: &object,
        image,
        policy,
        secrets: &Default::default(),
        sandbox_config: None,
    };
    manager.ensure_image_exists(&request).await.map(|image| image.reference)
}

use EventType::{Normal, Warning};
use PullPolicy::{Always, IfNotPresent, Never};

#[tokio::test]
async fn a_name_that_cannot_be_parsed_is_invalid_and_never_reaches_the_runtime() {
    let world = world(&PullConfig::default());
    let text = "Failed to apply default image tag \"a:b:c\": couldn't parse image name \"a:b:c\": invalid reference format";
    for policy in [Always, IfNotPresent, Never] {
        let error = world.ensure("a:b:c", policy).await.unwrap_err();
        assert_eq!(error, ImageError::new(reasons::INVALID_IMAGE_NAME, text));
    }
    assert_eq!(world.events(), [(Warning, "InspectFailed", text.to_owned())]);
    assert_eq!(world.runtime.script.calls("ImageStatus"), 0);
}

#[tokio::test]
async fn an_image_that_cannot_be_inspected_is_an_inspect_error() {
    let world = world(&PullConfig::default());
    world.runtime.script.on("ImageStatus", |_| Reply::Fail(Code::Internal, "broken store"));
    let text = "Failed to inspect image \"x\": rpc error: code = Internal desc = broken store";
    for policy in [IfNotPresent, Never] {
        let error = world.ensure("x", policy).await.unwrap_err();
        assert_eq!(error, ImageError::new(reasons::IMAGE_INSPECT_ERROR, text));
    }
    assert_eq!(world.events(), [(Warning, "InspectFailed", text.to_owned())]);
    assert_eq!(world.runtime.script.calls("PullImage"), 0);
}

#[tokio::test]
async fn an_absent_image_with_policy_never_is_an_error() {
    let world = world(&PullConfig::default());
    world.absent();
    let text = "Container image \"x\" is not present with pull policy of Never";
    let error = world.ensure("x", Never).await.unwrap_err();
    assert_eq!(error, ImageError::new(reasons::ERR_IMAGE_NEVER_PULL, text));
    assert_eq!(world.events(), [(Warning, "ErrImageNeverPull", text.to_owned())]);
    assert_eq!(world.runtime.script.calls("PullImage"), 0);
}

#[tokio::test]
async fn a_present_image_is_used_as_it_is_unless_the_policy_is_always() {
    let world = world(&PullConfig::default());
    world.present("sha256:here");
    world.pulls("sha256:pulled");
    for policy in [IfNotPresent, Never] {
        assert_eq!(world.ensure("x", policy).await.unwrap(), "sha256:here");
    }
    let text = "Container image \"x\" already present on machine".to_owned();
    assert_eq!(world.events(), [(Normal, "Pulled", text)]);
    assert_eq!(world.runtime.script.calls("PullImage"), 0);
    assert_eq!(world.ensure("x", Always).await.unwrap(), "sha256:pulled");
    assert_eq!(world.runtime.script.calls("PullImage"), 1);
}

#[tokio::test]
async fn an_absent_image_is_pulled_with_its_default_tag_and_the_events_tell() {
    let world = world(&PullConfig::default());
    world.pulls("sha256:pulled");
    let pulls = world.runtime.script.clone();
    world.runtime.script.on("ImageStatus", move |request| {
        let spec = ImageStatusRequest::decode(request).unwrap().image.unwrap();
        assert_eq!(spec.image, "nginx:latest");
        let image = (pulls.calls("PullImage") > 0).then(|| Image {
            id: "sha256:pulled".into(),
            size: 77,
            ..Default::default()
        });
        Reply::message(&ImageStatusResponse { image, ..Default::default() })
    });
    assert_eq!(world.ensure("nginx", IfNotPresent).await.unwrap(), "sha256:pulled");
    let events = world.events();
    assert_eq!(events[0], (Normal, "Pulling", "Pulling image \"nginx\"".to_owned()));
    let (kind, reason, message) = &events[1];
    assert_eq!((*kind, *reason), (Normal, "Pulled"));
    assert!(message.starts_with("Successfully pulled image \"nginx\" in "), "{message}");
    assert!(message.ends_with(" including waiting). Image size: 77 bytes."), "{message}");
}

#[tokio::test]
async fn a_failed_pull_is_told_and_the_next_waits_until_a_known_instant() {
    let world = world(&PullConfig::default());
    world.absent();
    world.pull_fails(Code::NotFound, "no such manifest");
    let text = "rpc error: code = NotFound desc = no such manifest";
    let error = world.ensure("x", IfNotPresent).await.unwrap_err();
    assert_eq!((error.reason, &*error.message), (reasons::ERR_IMAGE_PULL, text));
    let again = error.retry_at.unwrap();
    let held = world.ensure("x", IfNotPresent).await.unwrap_err();
    assert_eq!(held.reason, reasons::IMAGE_PULL_BACK_OFF);
    assert_eq!(held.message, format!("Back-off pulling image \"x\": ErrImagePull: {text}"));
    // The first says when to ask how long the wait is; the second, when it is over.
    let wait = held.retry_at.unwrap().duration_since(again).as_secs_f64();
    assert!((7.9..8.1).contains(&wait), "{wait}");
    assert_eq!(
        world.events(),
        [
            (Normal, "Pulling", "Pulling image \"x\"".to_owned()),
            (Warning, "Failed", format!("Failed to pull image \"x\": {text}")),
            (Normal, "BackOff", "Back-off pulling image \"x\"".to_owned()),
        ]
    );
    assert_eq!(world.runtime.script.calls("PullImage"), 1);
    // Another pod is not held back, and a forgotten one starts over.
    let other = ensure(&world.manager, &pod("uid-2"), "x", IfNotPresent).await.unwrap_err();
    assert_eq!(other.reason, reasons::ERR_IMAGE_PULL);
    world.manager.forget_pod(&PodUid::from("uid-1"));
    let error = world.ensure("x", IfNotPresent).await.unwrap_err();
    assert_eq!(error.reason, reasons::ERR_IMAGE_PULL);
}

#[tokio::test]
async fn the_runtimes_own_names_of_failures_become_reasons() {
    let table = [
        (
            Code::Unknown,
            "RegistryUnavailable: eof",
            reasons::REGISTRY_UNAVAILABLE,
            "image pull failed for x because the registry is unavailable: eof",
        ),
        (
            Code::Unknown,
            "SignatureValidationFailed: bad",
            reasons::SIGNATURE_VALIDATION_FAILED,
            "image pull failed for x because the signature validation failed: bad",
        ),
        (Code::Unknown, "plain words", reasons::ERR_IMAGE_PULL, "plain words"),
    ];
    for (code, text, reason, message) in table {
        let world = world(&PullConfig::default());
        world.absent();
        world.pull_fails(code, text);
        let error = world.ensure("x", Always).await.unwrap_err();
        assert_eq!((error.reason, &*error.message), (reason, message));
        assert_eq!(world.events()[1].2, format!("Failed to pull image \"x\": {text}"));
        let held = world.ensure("x", Always).await.unwrap_err();
        assert_eq!(held.message, format!("Back-off pulling image \"x\": {reason}: {message}"));
    }
}

#[tokio::test]
async fn credentials_are_tried_in_order_until_one_works() {
    let dir = tempfile::tempdir().unwrap();
    let files = NodeFiles::of_node(dir.path(), dir.path(), None);
    let world =
        world_with(&PullConfig::default(), Keyring::new(files, CredentialPlugins::default()));
    world.absent();
    world.runtime.script.on("PullImage", |request| {
        let auth = PullImageRequest::decode(request).unwrap().auth.unwrap_or_default();
        match auth.username.as_str() {
            "good" => Reply::message(&PullImageResponse { image_ref: "sha256:1".into() }),
            "old" => Reply::Fail(Code::Unknown, "expired"),
            _ => Reply::Fail(Code::Unknown, "denied"),
        }
    });
    let logins = |first: &str, second: &str| {
        let text = format!(
            r#"{{"auths": {{"r.io/team": {{"username": "{first}"}}, "r.io": {{"username": "{second}"}}}}}}"#
        );
        std::fs::write(dir.path().join("config.json"), text).unwrap();
    };
    logins("bad", "good");
    assert_eq!(world.ensure("r.io/team/x", Always).await.unwrap(), "sha256:1");
    assert_eq!(world.runtime.script.calls("PullImage"), 2);
    logins("bad", "old");
    let error = world.ensure("r.io/team/x", Always).await.unwrap_err();
    assert_eq!(error.message, "[denied, expired]");
    logins("bad", "worse");
    let error = world.ensure("r.io/team/y", Always).await.unwrap_err();
    assert_eq!(error.message, "denied");
    // Without a login that fits, nothing is sent along.
    let error = world.ensure("other.io/x", Always).await.unwrap_err();
    assert_eq!(error.message, "denied");
    assert_eq!(world.runtime.script.calls("PullImage"), 7);
}

/// A runtime whose pulls wait for `release`; how many were under way at most.
fn slow_pulls(world: &World) -> (Arc<AtomicUsize>, tokio::sync::watch::Sender<bool>) {
    let (release, _) = tokio::sync::watch::channel(false);
    let begun = Arc::new(AtomicUsize::new(0));
    world.runtime.script.on("PullImage", {
        let (release, begun) = (release.clone(), begun.clone());
        move |_| {
            begun.fetch_add(1, Ordering::SeqCst);
            if *release.borrow() {
                Reply::message(&PullImageResponse { image_ref: "sha256:1".into() })
            } else {
                Reply::Hang
            }
        }
    });
    (begun, release)
}

#[tokio::test]
async fn pulls_are_serial_or_as_parallel_as_configured() {
    let parallel = |max| PullConfig { serialize: false, max_parallel: max, ..Default::default() };
    let table = [(serial(), 1), (parallel(Some(3)), 3), (parallel(None), 8)];
    for (config, expected) in table {
        let world = world(&config);
        world.absent();
        let (begun, _release) = slow_pulls(&world);
        let mut pods = JoinSet::new();
        for n in 0..12 {
            let manager = world.manager.clone();
            pods.spawn(async move {
                ensure(&manager, &pod("p"), &format!("image-{n}"), IfNotPresent).await
            });
        }
        until("the first pulls have begun", || begun.load(Ordering::SeqCst) == expected).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(begun.load(Ordering::SeqCst), expected);
    }
}

#[tokio::test]
async fn an_image_that_is_here_is_refreshed_without_waiting_behind_a_download() {
    let world = world(&serial());
    world.absent();
    let (begun, release) = slow_pulls(&world);
    let mut download = JoinSet::new();
    download.spawn({
        let manager = world.manager.clone();
        async move { ensure(&manager, &pod("p"), "huge", IfNotPresent).await }
    });
    until("the download has begun", || begun.load(Ordering::SeqCst) == 1).await;
    world.present("sha256:old");
    release.send_replace(true);
    let refreshed = world.ensure("small", Always);
    assert_eq!(
        tokio::time::timeout(Duration::from_secs(60), refreshed).await.unwrap().unwrap(),
        "sha256:1"
    );
}

#[tokio::test]
async fn pods_that_want_the_same_image_share_one_pull_which_ends_with_the_last_of_them() {
    let world = world(&PullConfig::default());
    world.absent();
    let (begun, _release) = slow_pulls(&world);
    let mut pods: Vec<_> = (0..5)
        .map(|n| {
            let manager = world.manager.clone();
            tokio::spawn(async move {
                ensure(&manager, &pod(&format!("p{n}")), "x", IfNotPresent).await
            })
        })
        .collect();
    let recorder = world.recorder.clone();
    until("all of them wait", || recorder.recent().len() == 5).await;
    assert_eq!(begun.load(Ordering::SeqCst).max(1), 1);
    until("the pull has begun", || begun.load(Ordering::SeqCst) == 1).await;
    let last = pods.pop().unwrap();
    for pod in &pods {
        pod.abort();
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.runtime.script.aborted("PullImage"), 0);
    last.abort();
    let script = world.runtime.script.clone();
    until("the pull is cancelled", || script.aborted("PullImage") == 1).await;
}

#[tokio::test]
async fn pods_of_other_namespaces_do_not_share_a_pull() {
    let world = world(&PullConfig::default());
    world.absent();
    let (begun, _release) = slow_pulls(&world);
    for namespace in ["lax", "strict", "lax"] {
        let manager = world.manager.clone();
        let mut pod = pod(&format!("p-{namespace}"));
        pod.metadata.namespace = Some(namespace.into());
        tokio::spawn(async move { ensure(&manager, &pod, "x", IfNotPresent).await });
    }
    until("each has its own", || begun.load(Ordering::SeqCst) == 2).await;
}

#[tokio::test]
async fn pods_that_look_for_the_same_image_at_once_ask_once_but_later_ones_ask_again() {
    let world = world(&PullConfig::default());
    world.runtime.script.on("ImageStatus", |_| {
        let image = Image { id: "sha256:1".into(), ..Default::default() };
        let reply =
            Reply::message(&ImageStatusResponse { image: Some(image), ..Default::default() });
        Reply::After(Duration::from_millis(100), Box::new(reply))
    });
    let mut pods = JoinSet::new();
    for n in 0..20 {
        let manager = world.manager.clone();
        pods.spawn(
            async move { ensure(&manager, &pod(&format!("p{n}")), "x", IfNotPresent).await },
        );
    }
    assert!(pods.join_all().await.iter().all(|found| found.as_deref() == Ok("sha256:1")));
    assert_eq!(world.runtime.script.calls("ImageStatus"), 1);
    world.ensure("x", Never).await.unwrap();
    assert_eq!(world.runtime.script.calls("ImageStatus"), 2);
}
