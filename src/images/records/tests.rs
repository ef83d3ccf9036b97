use super::*;
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
        let name = FileName::of(image).to_string();
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
    let intent = records.intend(image).await.unwrap();
    intent.pulled(image_ref).await;
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
    let intent = records.intend("repo.repo/test/test:v1").await.unwrap();
    // The digest of that very text.
    let file = "sha256-ee81caca15454863449fb55a1d942904d56d5ed9f9b20a7cb3453944ea2c7e11";
    let path = world.dir.path().join("image_manager/pulling").join(file);
    assert_eq!(
        fs::read_to_string(path).unwrap(),
        "{\"kind\":\"ImagePullIntent\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"image\":\"repo.repo/test/test:v1\"}\n"
    );
    intent.pulled("sha256:aa").await;
    assert_eq!(world.count("pulling"), 0);
    let text = world.text("pulled", "sha256:aa");
    let head = "{\"kind\":\"ImagePulledRecord\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"lastUpdatedTime\":\"";
    let tail = "Z\",\"imageRef\":\"sha256:aa\",\"credentialMapping\":{\"repo.repo/test/test\":{\"nodePodsAccessible\":true}}}\n";
    assert!(text.starts_with(head) && text.ends_with(tail), "{text}");
    assert_eq!(
        text.len(),
        head.len() + "2026-01-01T00:00:00".len() + tail.len()
    );
}

#[tokio::test]
async fn an_image_belongs_to_those_who_pulled_it_by_that_name_also_after_a_restart() {
    let world = World::new();
    let mut records = world.open();
    assert!(
        !records.must_pull("r.io/a:1", "sha256:aa"),
        "it was there before"
    );
    pull(&records, "r.io/a:1", "sha256:aa").await;
    for _ in 0..2 {
        assert!(!records.must_pull("r.io/a:2", "sha256:aa"));
        assert!(!records.must_pull("r.io/a", "sha256:aa"));
        assert!(
            records.must_pull("mirror.io/a:1", "sha256:aa"),
            "another name"
        );
        assert!(!records.must_pull("r.io/b", "sha256:bb"), "another image");
        records = world.open();
    }
    pull(&records, "mirror.io/a:1", "sha256:aa").await;
    assert!(!records.must_pull("mirror.io/a:1", "sha256:aa"));
    assert!(!records.must_pull("r.io/a:1", "sha256:aa"));
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
    assert!(
        records.must_pull("r.io/a", "sha256:aa"),
        "it needs a secret"
    );
    assert!(
        records.must_pull("r.io/b", "sha256:aa"),
        "it needs a service account"
    );
    assert!(!records.must_pull("r.io/c", "sha256:aa"));
    pull(&records, "r.io/c", "sha256:aa").await;
    assert_eq!(
        world.text("pulled", "sha256:aa"),
        record,
        "nothing new, nothing written"
    );
    pull(&records, "r.io/b:1", "sha256:aa").await;
    assert!(!records.must_pull("r.io/b", "sha256:aa"));
    let text = world.text("pulled", "sha256:aa");
    assert!(text.contains(secrets) && !text.contains(accounts), "{text}");
    assert!(text.contains("kubelet.config.k8s.io/v1beta1"), "{text}");
    // Without any credentials, it was pulled in unknown circumstances.
    let bare = r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":null,"imageRef":"sha256:bb"}"#;
    world.put("pulled", "sha256:bb", bare);
    assert!(world.open().must_pull("r.io/b", "sha256:bb"));
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
        assert!(world.open().must_pull("r.io/a", &image_ref), "{text}");
    }
    world.put("pulling", "r.io/x", "{");
    let records = world.open();
    assert!(records.must_pull("r.io/x", "sha256:new"));
    pull(&records, "r.io/x", "sha256:0").await;
    assert!(!records.must_pull("r.io/x", "sha256:0"));
    assert_eq!(world.count("pulling"), 0);
}

#[tokio::test]
async fn pulls_that_share_an_image_share_its_note_and_the_last_one_takes_it_away() {
    let world = World::new();
    let records = world.open();
    let (one, two) = (
        records.intend("x").await.unwrap(),
        records.intend("x").await.unwrap(),
    );
    assert!(records.must_pull("x", "sha256:aa"), "it is being pulled");
    one.failed().await;
    assert_eq!(world.count("pulling"), 1);
    two.failed().await;
    assert_eq!(world.count("pulling"), 0);
    assert!(!records.must_pull("x", "sha256:aa"));
}

#[tokio::test]
async fn an_image_whose_pull_was_cut_short_by_the_kubelets_death_is_to_be_verified() {
    let world = World::new();
    let records = world.open();
    let by_digest = format!("r.io/by-digest@sha256:{}", "d".repeat(64));
    for image in ["r.io/by-tag:1", &by_digest, "busybox", "r.io/absent:1"] {
        std::mem::forget(records.intend(image).await.unwrap());
    }
    let records = world.open();
    assert!(records.has_interrupted_pulls());
    assert!(records.must_pull("r.io/by-tag:1", "sha256:aa"));
    let images = [
        image("sha256:aa", &["r.io/by-tag:1"], &[]),
        image("sha256:bb", &[], &[&by_digest]),
        image("sha256:dd", &["docker.io/library/busybox:latest"], &[]),
        image("sha256:cc", &["r.io/else:1"], &[]),
    ];
    records.recover(&images).await;
    assert_eq!((world.count("pulling"), world.count("pulled")), (1, 3));
    let records = world.open();
    assert!(records.must_pull("r.io/by-tag:1", "sha256:aa"));
    assert!(records.must_pull(&by_digest, "sha256:bb"));
    assert!(records.must_pull("busybox", "sha256:dd"));
    assert!(!records.must_pull("r.io/else:1", "sha256:cc"));
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
    records
        .prune(
            &present,
            Timestamp::now() - jiff::SignedDuration::from_secs(60),
        )
        .await;
    assert_eq!(
        world.count("pulled"),
        2,
        "only the one without a time is older"
    );
    records
        .prune(
            &present,
            Timestamp::now() + jiff::SignedDuration::from_secs(1),
        )
        .await;
    assert_eq!(world.count("pulled"), 1);
    assert!(!world.text("pulled", "sha256:aa").is_empty());
}

#[test]
fn what_a_killed_kubelet_left_half_written_is_removed() {
    let world = World::new();
    for name in ["sha256-00.tmp", ".sha256-00.123-4.tmp", "unrelated"] {
        fs::write(
            world.dir.path().join("image_manager/pulled").join(name),
            "{",
        )
        .unwrap();
    }
    world.open();
    assert_eq!(world.count("pulled"), 1, "what is nobody's record stays");
}

#[test]
fn patterns_of_the_allowlist_are_images_or_prefixes_of_images() {
    for good in [
        "r.io/team/app",
        "r.io/*",
        "r.io/team/*",
        "localhost:5000/app",
        "busybox",
    ] {
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
        policy::must_pull(&policy(patterns), plain.as_deref(), image, None, false)
    };
    assert!(!must(&["r.io/team/*"], "r.io/team/app:1"));
    assert!(!must(
        &["r.io/app"],
        "r.io/app@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    ));
    assert!(must(&["r.io/app"], "r.io/app2"));
    assert!(must(&["r.io/team/*"], "r.io/teams/app"));
    assert!(
        must(&["docker.io/library/busybox"], "busybox"),
        "names are compared as written"
    );
}

#[tokio::test]
async fn without_records_nothing_is_verified_and_nothing_written() {
    let records = PullRecords::off();
    pull(&records, "x", "sha256:aa").await;
    assert!(!records.must_pull("x", "sha256:aa"));
    assert!(!records.has_interrupted_pulls());
}
