use super::*;
use crate::base::clock;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn key(kind: ObjectKind, name: &str) -> ObjectKey {
    ObjectKey { kind, namespace: "shop".into(), name: name.into() }
}

fn static_pod() -> Pod {
    pod_of("file", "static")
}

pub(super) fn pod_of(source: &str, uid: &str) -> Pod {
    serde_json::from_value(serde_json::json!({"metadata": {
        "name": uid, "namespace": "shop", "uid": uid,
        "annotations": {"kubernetes.io/config.source": source},
    }}))
    .unwrap()
}

fn put(dir: &Path, path: &str, text: impl AsRef<[u8]>) {
    let path = dir.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

async fn get(dir: &Path, key: ObjectKey) -> Result<Arc<ObjectData>, ObjectError> {
    let objects = ConfigMapSecretReader::new(Some(dir.to_path_buf()), None);
    objects.of(&static_pod()).get([key.clone()].into()).await.remove(&key).unwrap()
}

async fn secret(dir: &Path, name: &str) -> Result<Vec<(String, String)>, String> {
    let object = get(dir, key(ObjectKind::Secret, name)).await;
    let object = object.map_err(|error| error.to_string())?;
    let text = |(key, value): (&str, &bytes::Bytes)| {
        (key.to_string(), String::from_utf8_lossy(value).into_owned())
    };
    Ok(object.entries().map(text).collect())
}

#[tokio::test]
async fn an_object_is_a_directory_and_a_key_is_a_file() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "secrets/shop/db/user", "admin");
    put(dir.path(), "secrets/shop/db/.dockerconfigjson", "{}");
    put(dir.path(), "configmaps/shop/db/user", "nobody");
    let pair = |k: &str, v: &str| (k.to_string(), v.to_string());
    assert_eq!(
        secret(dir.path(), "db").await.unwrap(),
        [pair(".dockerconfigjson", "{}"), pair("user", "admin")]
    );
    let map = get(dir.path(), key(ObjectKind::ConfigMap, "db")).await;
    assert_eq!(map.unwrap().get("user").unwrap(), "nobody");
}

#[tokio::test]
async fn a_file_that_no_key_can_be_makes_an_object_immutable() {
    let dir = tempfile::tempdir().unwrap();
    let immutable = async || {
        let map = get(dir.path(), key(ObjectKind::ConfigMap, "app")).await.unwrap();
        assert_eq!(map.entries().count(), 1, "it is not an entry");
        map.is_immutable()
    };
    put(dir.path(), "configmaps/shop/app/color", "blue");
    assert!(!immutable().await);
    put(dir.path(), "configmaps/shop/app/..immutable", "");
    assert!(immutable().await);
}

#[tokio::test]
async fn missing_objects_have_upstreams_errors() {
    let dir = tempfile::tempdir().unwrap();
    let text = |kind, name: &'static str| {
        let dir = dir.path().to_path_buf();
        async move { get(&dir, key(kind, name)).await.unwrap_err().to_string() }
    };
    assert_eq!(text(ObjectKind::Secret, "db").await, "secret \"db\" not found");
    assert_eq!(text(ObjectKind::ConfigMap, "app").await, "configmap \"app\" not found");
    let wanted = [key(ObjectKind::Secret, "db"), key(ObjectKind::ConfigMap, "app")];
    let found = ConfigMapSecretReader::default().of(&static_pod()).get(wanted.into()).await;
    let texts: Vec<_> = found.into_values().map(|found| found.unwrap_err().to_string()).collect();
    assert_eq!(
        texts,
        [
            "couldn't get configMap shop/app, no kubeClient defined",
            "couldn't get secret shop/db, no kubeClient defined",
        ]
    );
}

#[tokio::test]
async fn names_that_lead_elsewhere_find_nothing() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "secrets/other/db/user", "admin");
    put(dir.path(), "outside/user", "admin");
    for name in ["../other/db", "..", ".", "", "/", "a/b", "UPPER", "-a", "a."] {
        let found = get(dir.path(), key(ObjectKind::Secret, name)).await;
        assert!(found.unwrap_err().is_not_found(), "{name:?}");
    }
    let mut elsewhere = key(ObjectKind::Secret, "user");
    elsewhere.namespace = "../../outside".into();
    assert!(get(dir.path(), elsewhere).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn links_within_an_object_are_followed_and_none_out_of_it() {
    let dir = tempfile::tempdir().unwrap();
    // As another atomic writer leaves it.
    put(dir.path(), "secrets/shop/good/..v1/user", "admin");
    symlink("..v1", dir.path().join("secrets/shop/good/..data")).unwrap();
    symlink("..data/user", dir.path().join("secrets/shop/good/user")).unwrap();
    symlink("nowhere", dir.path().join("secrets/shop/good/dangling")).unwrap();
    let good = secret(dir.path(), "good").await.unwrap();
    assert_eq!(good, [("user".to_string(), "admin".to_string())]);

    put(dir.path(), "secrets/shop/bad/a", "fine");
    put(dir.path(), "elsewhere/user", "precious");
    for target in ["/etc/passwd", "../good/user", "../../../elsewhere/user"] {
        let link = dir.path().join("secrets/shop/bad/out");
        symlink(target, &link).unwrap();
        let error = secret(dir.path(), "bad").await.unwrap_err();
        assert_eq!(
            error,
            "secret \"bad\" cannot be read: out is a link that leads out of its parent directory",
            "{target}"
        );
        fs::remove_file(link).unwrap();
    }
    // Who may write to one namespace does not read another one's secrets for it.
    put(dir.path(), "secrets/other/db/user", "precious");
    symlink("good", dir.path().join("secrets/shop/other-name")).unwrap();
    assert_eq!(secret(dir.path(), "other-name").await.unwrap(), good);
    for (place, target) in
        [("secrets/shop/taken", "../other/db"), ("configmaps/shop/taken", "../../secrets/other/db")]
    {
        put(dir.path(), "configmaps/shop/some/key", "v");
        symlink(target, dir.path().join(place)).unwrap();
        let kind =
            if place.starts_with("secrets") { ObjectKind::Secret } else { ObjectKind::ConfigMap };
        let error = get(dir.path(), key(kind, "taken")).await.unwrap_err();
        assert!(
            error.to_string().ends_with("is a link that leads out of its parent directory"),
            "{error}"
        );
    }
    symlink("/etc", dir.path().join("secrets/shop/whole")).unwrap();
    let error = secret(dir.path(), "whole").await.unwrap_err();
    assert!(
        error.ends_with("its directory is a link that leads out of its parent directory"),
        "{error}"
    );
}

#[tokio::test]
async fn invalid_keys_are_ignored_and_irregular_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "secrets/shop/s/key", "v");
    put(dir.path(), "secrets/shop/s/backup~", "v");
    put(dir.path(), "secrets/shop/s/with blank", "v");
    put(dir.path(), "secrets/shop/s/..hidden", "v");
    put(dir.path(), "secrets/shop/s/directory/x", "v");
    assert_eq!(secret(dir.path(), "s").await.unwrap().len(), 1);
    let pipe = dir.path().join("secrets/shop/s/pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, pipe, fifo, mode, 0).unwrap();
    assert_eq!(
        secret(dir.path(), "s").await.unwrap_err(),
        "secret \"s\" cannot be read: pipe: not a regular file"
    );
    put(dir.path(), "secrets/shop/file", "v");
    assert!(secret(dir.path(), "file").await.is_err());
}

#[tokio::test]
async fn an_object_is_at_most_as_large_as_the_api_lets_it_be() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "secrets/shop/s/a", vec![b'x'; MAX_OBJECT_BYTES - 1]);
    put(dir.path(), "secrets/shop/s/b", "x");
    assert!(secret(dir.path(), "s").await.is_ok());
    put(dir.path(), "secrets/shop/s/b", "xx");
    assert_eq!(
        secret(dir.path(), "s").await.unwrap_err(),
        "secret \"s\" cannot be read: it is larger than 1048576 bytes"
    );
}

#[test]
fn debug_output_of_an_object_has_no_values() {
    let entry = ("password".to_string(), bytes::Bytes::from_static(b"hunter2"));
    let object: ObjectData = [entry].into_iter().collect();
    let shown = format!("{object:?} {object:#?}");
    assert!(shown.contains("password") && !shown.contains("hunter2"));
}

#[test]
fn two_versions_are_never_mixed() {
    let dir = tempfile::tempdir().unwrap();
    let object = dir.path().join("secrets/shop/s");
    let make = |n: usize| {
        let version = object.join(format!("..v{n}"));
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join("a"), n.to_string()).unwrap();
        fs::write(version.join("b"), n.to_string()).unwrap();
        let new = object.join("..new");
        symlink(format!("..v{n}"), &new).unwrap();
        fs::rename(new, object.join("..data")).unwrap();
    };
    make(0);
    symlink("..data/a", object.join("a")).unwrap();
    symlink("..data/b", object.join("b")).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (1..200).for_each(make);
            done.store(true, Ordering::Relaxed);
        });
        let mut reads = 0;
        while !done.load(Ordering::Relaxed) || reads == 0 {
            if let Ok(found) = local::read(dir.path(), &key(ObjectKind::Secret, "s")) {
                assert_eq!(found.get("a"), found.get("b"));
                reads += 1;
            }
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_hangs_is_an_error_after_a_while_and_read_again_when_it_answers() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "secrets/shop/db/user", "admin");
    let objects = ConfigMapSecretReader::new(Some(dir.path().to_path_buf()), None);
    let files = objects.of(&static_pod());
    // Each read that hangs keeps its permit.
    let reads = objects.local.as_ref().unwrap().reads.clone();
    let hanging = reads.try_acquire_many_owned(MAX_READS as u32).unwrap();
    let key = key(ObjectKind::Secret, "db");
    let begun = clock::instant();
    let error = files.get([key.clone()].into()).await[&key].clone().unwrap_err();
    assert_eq!(clock::since(begun), READ_TIMEOUT);
    let text = r#"secret "db" cannot be read: reading its directory timed out"#;
    assert_eq!(error.to_string(), text);
    assert!(!error.is_not_found());
    assert_eq!(objects.fault().await, Some("reading its directory timed out"));
    drop(hanging);
    assert!(files.get([key.clone()].into()).await[&key].is_ok());
    assert_eq!(objects.fault().await, None);
    let missing = ConfigMapSecretReader::new(Some(dir.path().join("missing")), None);
    assert_eq!(missing.fault().await, Some("is not a directory"));
}
