use super::*;
use crate::base::clock;
use crate::images::credentials::{ImagePullSecret, ImagePullServiceAccount, LoginOwner};
use std::fs;
use std::path::PathBuf;

const POLICY: VerificationPolicy = VerificationPolicy::NeverVerifyPreloadedImages;

struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        PullRecords::open(dir.path(), POLICY).unwrap();
        World { dir }
    }

    fn open(&self) -> PullRecords {
        PullRecords::open(self.dir.path(), POLICY).unwrap()
    }

    fn path(&self, kind: &str, image: &str) -> PathBuf {
        let name = RecordFileName::of(image).to_string();
        self.dir.path().join("image_manager").join(kind).join(name)
    }

    fn put(&self, kind: &str, image: &str, text: &str) {
        fs::write(self.path(kind, image), text).unwrap();
    }

    fn text(&self, kind: &str, image: &str) -> String {
        fs::read_to_string(self.path(kind, image)).unwrap_or_default()
    }

    fn count(&self, kind: &str) -> usize {
        let dir = self.dir.path().join("image_manager").join(kind);
        fs::read_dir(dir).unwrap().count()
    }
}

async fn pull(records: &PullRecords, image: &str, image_ref: &str) {
    let intent = records.record_pull_intent(image).await.unwrap();
    intent.record_image_pulled(image_ref, None).await;
}

fn image(id: &str, tags: &[&str], digests: &[&str]) -> Image {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Image {
        id: id.into(),
        repo_tags: owned(tags),
        repo_digests: owned(digests),
        ..Image::default()
    }
}

#[tokio::test]
async fn files_have_upstreams_names_and_content() {
    let world = World::new();
    let records = world.open();
    let intent = records.record_pull_intent("repo.repo/test/test:v1").await.unwrap();
    // The digest of that very text.
    let file = "sha256-ee81caca15454863449fb55a1d942904d56d5ed9f9b20a7cb3453944ea2c7e11";
    let path = world.dir.path().join("image_manager/pulling").join(file);
    assert_eq!(
        fs::read_to_string(path).unwrap(),
        "{\"kind\":\"ImagePullIntent\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"image\":\"repo.repo/test/test:v1\"}\n"
    );
    intent.record_image_pulled("sha256:aa", None).await;
    assert_eq!(world.count("pulling"), 0);
    let text = world.text("pulled", "sha256:aa");
    let head = "{\"kind\":\"ImagePulledRecord\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"lastUpdatedTime\":\"";
    let tail = "Z\",\"imageRef\":\"sha256:aa\",\"credentialMapping\":{\"repo.repo/test/test\":{\"nodePodsAccessible\":true}}}\n";
    assert!(text.starts_with(head) && text.ends_with(tail), "{text}");
    assert_eq!(text.len(), head.len() + "2026-01-01T00:00:00".len() + tail.len());
}

#[tokio::test]
async fn an_image_belongs_to_those_who_pulled_it_by_that_name_also_after_a_restart() {
    let world = World::new();
    let mut records = world.open();
    assert!(!records.must_pull("r.io/a:1", "sha256:aa", Vec::new), "it was there before");
    pull(&records, "r.io/a:1", "sha256:aa").await;
    for _ in 0..2 {
        assert!(!records.must_pull("r.io/a:2", "sha256:aa", Vec::new));
        assert!(!records.must_pull("r.io/a", "sha256:aa", Vec::new));
        assert!(records.must_pull("mirror.io/a:1", "sha256:aa", Vec::new), "another name");
        assert!(!records.must_pull("r.io/b", "sha256:bb", Vec::new), "another image");
        records = world.open();
    }
    pull(&records, "mirror.io/a:1", "sha256:aa").await;
    assert!(!records.must_pull("mirror.io/a:1", "sha256:aa", Vec::new));
    assert!(!records.must_pull("r.io/a:1", "sha256:aa", Vec::new));
}

#[tokio::test]
async fn records_of_the_kubelet_before_are_gone_by_and_kept_whole() {
    let world = World::new();
    let secrets = r#""kubernetesSecrets":[{"uid":"u","namespace":"default","name":"pull-secret","credentialHash":"h"}]"#;
    let accounts = r#""kubernetesServiceAccounts":[{"uid":"u","namespace":"default","name":"sa"}]"#;
    let record = format!(
        r#"{{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1","lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"sha256:aa","credentialMapping":{{"r.io/a":{{{secrets}}},"r.io/b":{{{accounts}}},"r.io/c":{{"nodePodsAccessible":true}}}}}}"#
    );
    world.put("pulled", "sha256:aa", &record);
    let records = world.open();
    assert!(records.must_pull("r.io/a", "sha256:aa", Vec::new), "it needs a secret");
    assert!(records.must_pull("r.io/b", "sha256:aa", Vec::new), "it needs a service account");
    assert!(!records.must_pull("r.io/c", "sha256:aa", Vec::new));
    pull(&records, "r.io/c", "sha256:aa").await;
    assert_eq!(world.text("pulled", "sha256:aa"), record, "nothing new, nothing written");
    pull(&records, "r.io/b:1", "sha256:aa").await;
    assert!(!records.must_pull("r.io/b", "sha256:aa", Vec::new));
    let text = world.text("pulled", "sha256:aa");
    assert!(text.contains(secrets) && !text.contains(accounts), "{text}");
    assert!(text.contains("kubelet.config.k8s.io/v1beta1"), "{text}");
    // Without any credentials, it was pulled in unknown circumstances.
    let bare = r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":null,"imageRef":"sha256:bb"}"#;
    world.put("pulled", "sha256:bb", bare);
    assert!(world.open().must_pull("r.io/b", "sha256:bb", Vec::new));
}

#[tokio::test]
async fn what_cannot_be_read_counts_as_pulled_by_who_knows_whom() {
    let world = World::new();
    for (n, text) in ["{", "", r#"{"kind":"Pod"}"#, r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","imageRef":"sha256:other"}"#]
        .iter()
        .enumerate()
    {
        let image_ref = format!("sha256:{n}");
        world.put("pulled", &image_ref, text);
        assert!(world.open().must_pull("r.io/a", &image_ref, Vec::new), "{text}");
    }
    world.put("pulling", "r.io/x", "{");
    let records = world.open();
    assert!(records.must_pull("r.io/x", "sha256:new", Vec::new));
    pull(&records, "r.io/x", "sha256:0").await;
    assert!(!records.must_pull("r.io/x", "sha256:0", Vec::new));
    assert_eq!(world.count("pulling"), 0);
}

#[tokio::test]
async fn pulls_that_share_an_image_share_its_note_and_the_last_one_takes_it_away() {
    let world = World::new();
    let records = world.open();
    let (one, two) = (
        records.record_pull_intent("x").await.unwrap(),
        records.record_pull_intent("x").await.unwrap(),
    );
    assert!(records.must_pull("x", "sha256:aa", Vec::new), "it is being pulled");
    one.record_image_pull_failed().await;
    assert_eq!(world.count("pulling"), 1);
    two.record_image_pull_failed().await;
    assert_eq!(world.count("pulling"), 0);
    assert!(!records.must_pull("x", "sha256:aa", Vec::new));
}

#[tokio::test]
async fn an_image_whose_pull_was_cut_short_by_the_kubelets_death_is_to_be_verified() {
    let world = World::new();
    let records = world.open();
    let by_digest = format!("r.io/by-digest@sha256:{}", "d".repeat(64));
    for image in ["r.io/by-tag:1", &by_digest, "busybox", "r.io/absent:1"] {
        std::mem::forget(records.record_pull_intent(image).await.unwrap());
    }
    let records = world.open();
    assert!(records.has_interrupted_pulls());
    assert!(records.must_pull("r.io/by-tag:1", "sha256:aa", Vec::new));
    let images = [
        image("sha256:aa", &["r.io/by-tag:1"], &[]),
        image("sha256:bb", &[], &[&by_digest]),
        image("sha256:dd", &["docker.io/library/busybox:latest"], &[]),
        image("sha256:cc", &["r.io/else:1"], &[]),
    ];
    records.recover(&images, clock::timestamp()).await;
    assert_eq!((world.count("pulling"), world.count("pulled")), (1, 3));
    let records = world.open();
    assert!(records.must_pull("r.io/by-tag:1", "sha256:aa", Vec::new));
    assert!(records.must_pull(&by_digest, "sha256:bb", Vec::new));
    assert!(records.must_pull("busybox", "sha256:dd", Vec::new));
    assert!(!records.must_pull("r.io/else:1", "sha256:cc", Vec::new));
}

#[tokio::test]
async fn records_of_images_that_are_gone_go_unless_they_are_newer_than_the_list() {
    let world = World::new();
    let records = world.open();
    for (name, id) in [("r.io/a", "sha256:aa"), ("r.io/b", "sha256:bb")] {
        pull(&records, name, id).await;
    }
    world.put("pulled", "sha256:broken", "{");
    let records = world.open();
    let present = HashSet::from(["sha256:aa"]);
    records.prune(&present, clock::timestamp() - jiff::SignedDuration::from_secs(60)).await;
    assert_eq!(world.count("pulled"), 2, "only the one without a time is older");
    records.prune(&present, clock::timestamp() + jiff::SignedDuration::from_secs(1)).await;
    assert_eq!(world.count("pulled"), 1);
    assert!(!world.text("pulled", "sha256:aa").is_empty());
}

#[tokio::test]
async fn the_record_of_an_image_that_is_pulled_again_after_the_list_stays() {
    let world = World::new();
    let records = world.open();
    pull(&records, "r.io/a", "sha256:aa").await;
    // The resolution of records is a second.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    let listed_at = clock::timestamp();
    // The image was removed before the list, and is back: the record does not change.
    pull(&records, "r.io/a", "sha256:aa").await;
    records.prune(&HashSet::new(), listed_at).await;
    assert_eq!(world.count("pulled"), 1);
    records.prune(&HashSet::new(), clock::timestamp()).await;
    assert_eq!(world.count("pulled"), 0);
}

#[tokio::test]
async fn an_image_whose_pull_was_cancelled_is_to_be_verified() {
    let world = World::new();
    let records = world.open();
    for image in ["r.io/a:1", "r.io/absent:1"] {
        drop(records.record_pull_intent(image).await.unwrap());
    }
    assert!(records.must_pull("r.io/a:1", "sha256:aa", Vec::new));
    let images = [image("sha256:aa", &["r.io/a:1"], &[])];
    // A pull in progress is none of these.
    let again = records.record_pull_intent("r.io/a:1").await.unwrap();
    records.recover(&images, clock::timestamp()).await;
    assert_eq!((world.count("pulling"), world.count("pulled")), (2, 0));
    drop(again);
    records.recover(&images, clock::timestamp()).await;
    assert_eq!((world.count("pulling"), world.count("pulled")), (1, 1));
    assert!(records.must_pull("r.io/a:1", "sha256:aa", Vec::new));
    // The runtime may go on with a pull that was cancelled, but not for ever.
    let later = clock::timestamp() + INTENT_KEPT_FOR;
    records.recover(&images, later).await;
    assert_eq!(world.count("pulling"), 0);
}

#[test]
fn what_a_killed_kubelet_left_half_written_is_removed() {
    let world = World::new();
    for name in ["sha256-00.tmp", ".sha256-00.123-4.tmp", "unrelated"] {
        fs::write(world.dir.path().join("image_manager/pulled").join(name), "{").unwrap();
    }
    world.open();
    assert_eq!(world.count("pulled"), 1, "what is nobody's record stays");
}

#[test]
fn patterns_of_the_allowlist_are_images_or_prefixes_of_images() {
    for good in ["r.io/team/app", "r.io/*", "r.io/team/*", "localhost:5000/app", "busybox"] {
        assert_eq!(check_pattern(good), Ok(()), "{good}");
    }
    let table = [
        ("", "too short"),
        (" r.io/x", "leading/trailing spaces"),
        ("/*", "at least registry hostname"),
        ("*", "not a valid wildcard pattern"),
        ("r.io/*/x", "not a valid wildcard pattern"),
        ("r.io/x*", "not a valid wildcard pattern"),
        ("r.io/x:1", "neither tag nor digest"),
        ("r.io/X", "failed to parse"),
    ];
    for (bad, expected) in table {
        let error = check_pattern(bad).unwrap_err();
        assert!(error.contains(expected), "{bad}: {error}");
    }
    let policy = |patterns: &[&str]| {
        let patterns: Vec<_> = patterns.iter().map(|p| (*p).to_owned()).collect();
        VerificationPolicy::of("NeverVerifyAllowlistedImages", &patterns)
    };
    let must = |patterns: &[&str], image: &str| {
        let plain = ImageName::without_tag_and_digest(image);
        policy::must_pull(&policy(patterns), plain.as_deref(), image, None, false, Vec::new)
    };
    assert!(!must(&["r.io/team/*"], "r.io/team/app:1"));
    assert!(!must(
        &["r.io/app"],
        "r.io/app@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    ));
    assert!(must(&["r.io/app"], "r.io/app2"));
    assert!(must(&["r.io/team/*"], "r.io/teams/app"));
    assert!(must(&["docker.io/library/busybox"], "busybox"), "names are compared as written");
}

#[tokio::test]
async fn without_records_nothing_is_verified_and_nothing_written() {
    let records = PullRecords::disabled();
    pull(&records, "x", "sha256:aa").await;
    assert!(!records.must_pull("x", "sha256:aa", Vec::new));
    assert!(!records.has_interrupted_pulls());
}

#[tokio::test]
async fn an_image_that_was_pulled_with_a_secret_is_for_pods_with_that_secret_or_its_login() {
    let world = World::new();
    let secret = |uid: &str, name: &str, hash: &str| ImagePullSecret {
        uid: uid.into(),
        namespace: "ns".into(),
        name: name.into(),
        credential_hash: hash.into(),
    };
    let mut records = world.open();
    let intent = records.record_pull_intent("r.io/a:1").await.unwrap();
    let used = secret("u1", "pull", "h1");
    let owner = LoginOwner::Secret(used.clone());
    intent.record_image_pulled("sha256:aa", Some(owner)).await;
    let text = world.text("pulled", "sha256:aa");
    let tail = r#"{"r.io/a":{"kubernetesSecrets":[{"uid":"u1","namespace":"ns","name":"pull","credentialHash":"h1"}]}}}"#;
    assert!(text.trim_end().ends_with(tail), "{text}");
    for _ in 0..2 {
        let must_pull = |secrets: Vec<ImagePullSecret>| {
            records.must_pull("r.io/a:2", "sha256:aa", move || secrets)
        };
        assert!(!must_pull(vec![used.clone()]));
        assert!(!must_pull(vec![secret("u1", "pull", "renewed")]));
        assert!(!must_pull(vec![secret("u2", "other", "h1")]));
        assert!(must_pull(vec![secret("u2", "pull", "h2")]), "made again");
        assert!(must_pull(vec![]));
        records = world.open();
    }
    // Another secret is added, a renewed login replaces the old one, and the node's own opens it to all.
    for (uid, name, hash, count) in [("u2", "other", "h2", 2), ("u1", "pull", "h3", 2)] {
        let intent = records.record_pull_intent("r.io/a:1").await.unwrap();
        intent
            .record_image_pulled("sha256:aa", Some(LoginOwner::Secret(secret(uid, name, hash))))
            .await;
        let text = world.text("pulled", "sha256:aa");
        assert_eq!(text.matches("credentialHash").count(), count, "{text}");
    }
    assert!(!world.text("pulled", "sha256:aa").contains("h1"));
    pull(&records, "r.io/a:1", "sha256:aa").await;
    assert!(!records.must_pull("r.io/a:1", "sha256:aa", Vec::new));
}

#[tokio::test]
async fn an_image_that_was_pulled_for_a_service_account_is_not_everybodys() {
    let world = World::new();
    let records = world.open();
    for uid in ["u1", "u2", "u1"] {
        let account = ImagePullServiceAccount {
            uid: uid.into(),
            namespace: "ns".into(),
            name: "puller".into(),
        };
        let intent = records.record_pull_intent("r.io/a:1").await.unwrap();
        let owner = LoginOwner::ServiceAccount(account);
        intent.record_image_pulled("sha256:aa", Some(owner)).await;
    }
    assert!(records.must_pull("r.io/a:1", "sha256:aa", Vec::new));
    let text = world.text("pulled", "sha256:aa");
    let accounts = r#""kubernetesServiceAccounts":[{"uid":"u2","namespace":"ns","name":"puller"},{"uid":"u1","namespace":"ns","name":"puller"}]"#;
    assert!(text.contains(accounts), "{text}");
}
