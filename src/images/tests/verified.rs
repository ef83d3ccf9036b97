//! Images that are here and not everybody's.

use super::*;
use crate::images::records::VerificationPolicy;

const PRESENT: &str = "already present on machine and can be accessed by the pod";

fn verifying(dir: &tempfile::TempDir, policy: VerificationPolicy) -> World {
    let records = PullRecords::open(dir.path(), policy).unwrap();
    world_of(&PullConfig::default(), Keyring::default(), records)
}

#[tokio::test]
async fn an_image_that_was_there_is_everybodys_or_is_pulled_as_the_policy_says() {
    let table = [
        (VerificationPolicy::NeverVerifyPreloadedImages, 0),
        (VerificationPolicy::NeverVerify, 0),
        (VerificationPolicy::AlwaysVerify, 1),
        (VerificationPolicy::NeverVerifyAllowlistedImages(vec!["other.io/*".into()]), 1),
        (VerificationPolicy::NeverVerifyAllowlistedImages(vec!["r.io/*".into()]), 0),
    ];
    for (policy, pulls) in table {
        let dir = tempfile::tempdir().unwrap();
        let world = verifying(&dir, policy.clone());
        world.present("sha256:here");
        world.pulls("sha256:here");
        for _ in 0..2 {
            // A pull opens the image to all pods of the node.
            let got = world.ensure("r.io/x:1", IfNotPresent).await.unwrap();
            assert_eq!(got, "sha256:here");
        }
        assert_eq!(world.runtime.script.calls("PullImage"), pulls, "{policy:?}");
        let last = world.events().pop().unwrap().2;
        assert_eq!(last, format!("Container image \"r.io/x:1\" {PRESENT}"));
    }
}

#[tokio::test]
async fn a_pull_is_recorded_under_the_id_that_the_runtime_finds_the_image_by() {
    let dir = tempfile::tempdir().unwrap();
    let world = verifying(&dir, VerificationPolicy::AlwaysVerify);
    world.present("sha256:here");
    // CRI-O answers with the digest of the manifest.
    world.pulls("r.io/x@sha256:manifest");
    for _ in 0..2 {
        world.ensure("r.io/x:1", IfNotPresent).await.unwrap();
    }
    assert_eq!(world.runtime.script.calls("PullImage"), 1);
}

#[tokio::test]
async fn an_image_that_may_not_be_used_looks_absent_to_a_pod_that_never_pulls() {
    let dir = tempfile::tempdir().unwrap();
    let world = verifying(&dir, VerificationPolicy::AlwaysVerify);
    world.present("sha256:here");
    world.pulls("sha256:here");
    let error = world.ensure("x", Never).await.unwrap_err();
    assert_eq!(error.reason, reasons::ERR_IMAGE_NEVER_PULL);
    world.ensure("x", IfNotPresent).await.unwrap();
    assert_eq!(world.ensure("x", Never).await.unwrap(), "sha256:here");
}

#[tokio::test]
async fn a_pull_that_cannot_be_noted_does_not_begin() {
    let dir = tempfile::tempdir().unwrap();
    let world = verifying(&dir, VerificationPolicy::default());
    world.absent();
    world.pulls("sha256:1");
    let pulling = dir.path().join("image_manager/pulling");
    std::fs::remove_dir(&pulling).unwrap();
    let error = world.ensure("x", IfNotPresent).await.unwrap_err();
    assert_eq!(error.reason, reasons::ERR_IMAGE_PULL);
    let expected = "failed to record image pull intent for container image \"x\": ";
    assert!(error.message.starts_with(expected), "{error}");
    assert_eq!(world.runtime.script.calls("PullImage"), 0);
}

#[tokio::test]
async fn intents_of_pulls_go_once_their_outcome_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let world = verifying(&dir, VerificationPolicy::default());
    world.absent();
    let pulling = dir.path().join("image_manager/pulling");
    let notes = || std::fs::read_dir(&pulling).unwrap().count();
    world.pull_fails(Code::Unknown, "denied");
    world.ensure("failed", IfNotPresent).await.unwrap_err();
    assert_eq!(notes(), 0);
    let (begun, release) = slow_pulls(&world);
    let manager = world.manager.clone();
    let given_up =
        tokio::spawn(async move { ensure(&manager, &pod("p"), "given-up", IfNotPresent).await });
    until("it is pulled", || begun.load(Ordering::SeqCst) == 1).await;
    assert_eq!(notes(), 1);
    given_up.abort();
    given_up.await.unwrap_err();
    release.send_replace(true);
    world.ensure("pulled", IfNotPresent).await.unwrap();
    assert_eq!(notes(), 1, "the runtime may have finished the pull");
    world.ensure("given-up", IfNotPresent).await.unwrap();
    assert_eq!(notes(), 0);
    world.pull_fails(Code::DeadlineExceeded, "late");
    world.ensure("late", IfNotPresent).await.unwrap_err();
    assert_eq!(notes(), 1);
    let pulled = dir.path().join("image_manager/pulled");
    assert_eq!(std::fs::read_dir(pulled).unwrap().count(), 1);
}

#[tokio::test]
async fn an_image_is_recorded_although_its_pod_went_while_it_was_inspected() {
    let dir = tempfile::tempdir().unwrap();
    let world = verifying(&dir, VerificationPolicy::default());
    let files = |kind: &str| {
        let directory = dir.path().join("image_manager").join(kind);
        std::fs::read_dir(directory).unwrap().count()
    };
    world.pulls("sha256:1");
    let pulled = world.runtime.script.clone();
    world.runtime.script.on("ImageStatus", move |_| {
        let absent = Reply::message(&ImageStatusResponse::default());
        match pulled.calls("PullImage") {
            0 => absent,
            _ => Reply::After(Duration::from_millis(300), Box::new(absent)),
        }
    });
    let manager = world.manager.clone();
    let gone = tokio::spawn(async move { ensure(&manager, &pod("p"), "x", IfNotPresent).await });
    let inspected = || world.runtime.script.calls("ImageStatus");
    until("it is inspected", || inspected() == 2).await;
    gone.abort();
    until("it is recorded", || files("pulled") == 1).await;
    until("its pull has ended", || files("pulling") == 0).await;
}

#[tokio::test]
async fn an_image_whose_id_is_unknown_counts_as_pulled_by_the_kubelet() {
    let dir = tempfile::tempdir().unwrap();
    let world = verifying(&dir, VerificationPolicy::default());
    world.pulls("r.io/x@sha256:manifest");
    let pulled = world.runtime.script.clone();
    world.runtime.script.on("ImageStatus", move |_| match pulled.calls("PullImage") {
        0 => Reply::message(&ImageStatusResponse::default()),
        _ => Reply::Fail(Code::Unavailable, "not now"),
    });
    world.ensure("r.io/x:1", IfNotPresent).await.unwrap();
    world.present("sha256:here");
    world.ensure("r.io/x:1", IfNotPresent).await.unwrap();
    assert_eq!(world.runtime.script.calls("PullImage"), 2);
}

#[tokio::test]
async fn an_image_that_was_pulled_with_a_secret_is_not_for_pods_without_it() {
    use crate::apiserver::configmap_secret::{ObjectData, ObjectKey, ObjectKind};
    use crate::images::{PullSecret, PullSecrets};
    let dir = tempfile::tempdir().unwrap();
    let files = NodeFiles::of_node(dir.path(), dir.path(), None);
    let auth = |user: &str| {
        format!(r#"{{"auths": {{"r.io": {{"username": "{user}", "password": "p"}}}}}}"#)
    };
    std::fs::write(dir.path().join("config.json"), auth("node")).unwrap();
    let records = PullRecords::open(dir.path(), VerificationPolicy::AlwaysVerify).unwrap();
    let keyring = Keyring::new(files, CredentialPlugins::default());
    let world = world_of(&PullConfig::default(), keyring, records);
    world.present("sha256:here");
    world.runtime.script.on("PullImage", |request| {
        let auth = PullImageRequest::decode(request).unwrap().auth;
        if auth.is_some_and(|auth| auth.username == "pod") {
            let image_ref = "sha256:here".into();
            return Reply::message(&PullImageResponse { image_ref });
        }
        Reply::Fail(Code::Unknown, "denied")
    });
    let object: ObjectData =
        [(".dockerconfigjson".to_owned(), auth("pod").into())].into_iter().collect();
    let key =
        ObjectKey { kind: ObjectKind::Secret, namespace: "default".into(), name: "pull".into() };
    let secret = PullSecret::of(&key, &object).unwrap();
    let secrets = PullSecrets::from([secret]);
    let ensure = async |uid: &str, secrets: &PullSecrets| {
        let pod = pod(uid);
        let request = ImageRequest {
            pod: &pod,
            object: &ObjectRef::container(&pod, "web"),
            image: "r.io/x:1",
            policy: IfNotPresent,
            secrets,
            sandbox_config: None,
        };
        let ready = world.manager.ensure_image_exists(&request).await;
        ready.map(|image| image.reference)
    };
    for _ in 0..2 {
        assert_eq!(ensure("with", &secrets).await.unwrap(), "sha256:here");
    }
    assert_eq!(world.runtime.script.calls("PullImage"), 1);
    let error = ensure("without", &PullSecrets::default()).await.unwrap_err();
    assert!(error.message.contains("denied"), "{error:?}");
    assert_eq!(world.runtime.script.calls("PullImage"), 2);
}
