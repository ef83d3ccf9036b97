use super::atomic_writer::{Written, is_written, write as write_files};
use super::{Payload, VolumeGroup};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const NOBODY: VolumeGroup = VolumeGroup(None);

/// Whether there was something to write.
fn write(volume: &Path, payload: &Payload, group: VolumeGroup) -> std::io::Result<bool> {
    write_files(volume, payload, group).map(|written| written == Written::Now)
}

fn payload(files: &[(&str, &str)]) -> Payload {
    let mut payload = Payload::default();
    for (path, text) in files {
        let data = Bytes::copy_from_slice(text.as_bytes());
        payload.insert(path, data, 0o644).unwrap();
    }
    payload
}

/// What a container sees: path to text, the writer's own names left out.
fn seen(volume: &Path) -> BTreeMap<String, String> {
    fn walk(at: &Path, prefix: &str, out: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(at).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if prefix.is_empty() && name.starts_with("..") {
                continue;
            }
            let path = at.join(&name);
            if path.is_dir() {
                walk(&path, &format!("{prefix}{name}/"), out)
            } else {
                let text = fs::read_to_string(&path).unwrap();
                out.insert(format!("{prefix}{name}"), text);
            }
        }
    }
    let mut out = BTreeMap::new();
    walk(volume, "", &mut out);
    out
}

fn own_names(volume: &Path) -> Vec<String> {
    let names = fs::read_dir(volume).unwrap();
    let mut names: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".."))
        .collect();
    names.sort();
    names
}

fn expected(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    let own = |(path, text): &(&str, &str)| (path.to_string(), text.to_string());
    files.iter().map(own).collect()
}

fn version(volume: &Path) -> PathBuf {
    fs::read_link(volume.join("..data")).unwrap()
}

#[test]
fn files_are_shown_through_links_in_upstreams_layout() {
    let dir = tempfile::tempdir().unwrap();
    let files = [("plain", "1"), ("deep/er/one", "2"), ("deep/two", "3")];
    assert!(write(dir.path(), &payload(&files), NOBODY).unwrap());
    assert_eq!(seen(dir.path()), expected(&files));
    let link = |name: &str| fs::read_link(dir.path().join(name)).unwrap();
    assert_eq!(link("plain"), Path::new("..data/plain"));
    assert_eq!(link("deep"), Path::new("..data/deep"));
    let version = version(dir.path()).into_os_string().into_string().unwrap();
    let (time, random) = version.rsplit_once('.').unwrap();
    assert_eq!(time.len(), "..2006_01_02_15_04_05".len(), "{version}");
    assert!(time.starts_with("..20") && random.parse::<u32>().is_ok());
    let mode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode(&version), mode("..data/deep/er")), (0o755, 0o755));
}

#[test]
fn a_new_version_replaces_all_and_keys_that_are_gone_go() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path();
    for files in [
        &[("a", "1"), ("b/c", "2"), ("b/d", "3")][..],
        &[("a", "new"), ("b/d", "3")],
        &[("b", "now a file"), ("z/y", "")],
        &[],
        &[("a", "1")],
    ] {
        assert!(write(volume, &payload(files), NOBODY).unwrap());
        assert_eq!(seen(volume), expected(files));
        assert_eq!(own_names(volume).len(), 2, "{:?}", own_names(volume));
    }
}

#[test]
fn nothing_is_written_when_nothing_changed() {
    let dir = tempfile::tempdir().unwrap();
    let files = payload(&[("a", "1"), ("b/c", "2")]);
    write(dir.path(), &files, NOBODY).unwrap();
    let before = version(dir.path());
    assert!(!write(dir.path(), &files, NOBODY).unwrap());
    assert_eq!(version(dir.path()), before);
}

#[test]
fn another_mode_group_or_text_of_one_file_is_a_change() {
    let own = rustix::process::getgid().as_raw();
    let dir = tempfile::tempdir().unwrap();
    let with_mode = |mode| {
        let mut payload = Payload::default();
        payload.insert("a", Bytes::from_static(b"1"), mode).unwrap();
        payload
    };
    assert!(write(dir.path(), &with_mode(0o644), NOBODY).unwrap());
    assert!(write(dir.path(), &with_mode(0o400), NOBODY).unwrap());
    assert!(write(dir.path(), &with_mode(0o400), VolumeGroup(Some(own))).unwrap());
    assert!(!write(dir.path(), &with_mode(0o400), VolumeGroup(Some(own))).unwrap());
    let shown = dir.path().join("..data/a");
    fs::write(shown.canonicalize().unwrap(), "tampered").unwrap();
    assert!(write(dir.path(), &with_mode(0o400), VolumeGroup(Some(own))).unwrap());
    assert_eq!(fs::read(shown).unwrap(), b"1");
}

#[test]
fn modes_are_exact_and_the_pods_group_may_read() {
    let group =
        if rustix::process::getuid().is_root() { 4242 } else { rustix::process::getgid().as_raw() };
    for (group, mode, shown, directory) in [
        (None, 0o400, 0o400, 0o755),
        (None, 0o777, 0o777, 0o755),
        (None, 0o000, 0o000, 0o755),
        (Some(group), 0o400, 0o440, 0o2755),
        (Some(group), 0o600, 0o640, 0o2755),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut payload = Payload::default();
        payload.insert("d/f", Bytes::from_static(b"x"), mode).unwrap();
        write(dir.path(), &payload, VolumeGroup(group)).unwrap();
        let stat = |path: &str| fs::metadata(dir.path().join(path)).unwrap();
        assert_eq!(stat("d/f").mode() & 0o7777, shown, "{mode:o}");
        assert_eq!(stat("d").mode() & 0o7777, directory);
        if let Some(group) = group {
            let link = fs::symlink_metadata(dir.path().join("d")).unwrap();
            assert_eq!((stat("d/f").gid(), stat("d").gid()), (group, group));
            assert_eq!(link.gid(), group);
        }
    }
}

#[test]
fn what_an_interrupted_write_left_is_finished_or_removed() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path();
    let files = [("a", "1"), ("b", "2")];
    write(volume, &payload(&files), NOBODY).unwrap();
    // Killed while the next version was being written.
    fs::create_dir_all(volume.join("..2020_01_01_00_00_00.7/half")).unwrap();
    symlink("..2020_01_01_00_00_00.7", volume.join("..data_tmp")).unwrap();
    // Killed between the switch and the links.
    fs::remove_file(volume.join("b")).unwrap();
    symlink("..data/gone", volume.join("gone")).unwrap();
    assert!(!write(volume, &payload(&files), NOBODY).unwrap());
    assert_eq!(seen(volume), expected(&files));
    assert_eq!(own_names(volume).len(), 2);
    assert!(fs::symlink_metadata(volume.join("gone")).is_err());
}

#[test]
fn mount_points_of_other_volumes_are_not_the_writers_to_remove() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("nested/point")).unwrap();
    write(dir.path(), &payload(&[("a", "1")]), NOBODY).unwrap();
    write(dir.path(), &payload(&[("b", "1")]), NOBODY).unwrap();
    assert!(dir.path().join("nested/point").is_dir());
}

#[test]
fn links_that_lead_elsewhere_are_neither_followed_nor_kept_as_data() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("a"), "precious").unwrap();
    for target in [outside.to_str().unwrap(), "../outside", "..", "."] {
        let volume = dir.path().join("volume");
        fs::create_dir(&volume).unwrap();
        symlink(target, volume.join("..data")).unwrap();
        symlink(&outside, volume.join("..old")).unwrap();
        assert!(!is_written(&volume));
        assert!(write(&volume, &payload(&[("a", "ours")]), NOBODY).unwrap());
        assert!(is_written(&volume));
        assert_eq!(fs::read(volume.join("a")).unwrap(), b"ours", "{target}");
        assert_eq!(fs::read(outside.join("a")).unwrap(), b"precious");
        fs::remove_dir_all(&volume).unwrap();
    }
}

#[test]
fn a_write_that_fails_leaves_the_old_version_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path();
    write(volume, &payload(&[("a", "1")]), NOBODY).unwrap();
    // Too long for one call of the kernel although each name is fine.
    let long = format!("{}/{}/x", vec!["n".repeat(255); 15].join("/"), "n".repeat(254));
    assert_eq!(long.len(), 4096);
    let failed = write(volume, &payload(&[("a", "2"), (&long, "x")]), NOBODY);
    assert!(failed.is_err());
    assert_eq!(seen(volume), expected(&[("a", "1")]));
    assert_eq!(own_names(volume).len(), 2);
    assert!(write(&volume.join("missing"), &payload(&[]), NOBODY).is_err());
}

#[test]
fn deep_paths_need_no_deep_stack() {
    let dir = tempfile::tempdir().unwrap();
    let deep = format!("{}f", "d/".repeat(1500));
    let files = payload(&[(&deep, "x"), ("other", "y")]);
    write(dir.path(), &files, NOBODY).unwrap();
    assert!(!write(dir.path(), &files, NOBODY).unwrap());
    write(dir.path(), &payload(&[("other", "y")]), NOBODY).unwrap();
    assert_eq!(seen(dir.path()), expected(&[("other", "y")]));
}

#[test]
fn whoever_looks_sees_one_version_whole() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().to_path_buf();
    let of = |n: usize| payload(&[("a", &n.to_string()), ("d/b", &n.to_string())]);
    write(&volume, &of(0), NOBODY).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut looks = 0;
            while !done.load(Ordering::Relaxed) {
                // As a program does that wants both files of one version.
                let Ok(version) = fs::read_link(volume.join("..data")) else {
                    panic!("..data was missing");
                };
                let read = |path: &str| fs::read_to_string(volume.join(&version).join(path));
                if let (Ok(a), Ok(b)) = (read("a"), read("d/b")) {
                    assert_eq!(a, b, "two versions at once");
                    assert!(!a.is_empty(), "half a file");
                    looks += 1;
                }
            }
            looks
        });
        for n in 1..=300 {
            write(&volume, &of(n), NOBODY).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
}

fn names() -> impl Strategy<Value = String> {
    proptest::string::string_regex("(\\.|\\.\\.|[ab]|/|\\.\\.data|é){1,6}").unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_history_of_payloads_shows_the_last_and_touches_nothing_outside(
        history in prop::collection::vec(prop::collection::vec((names(), "[xy]{0,3}"), 0..5), 1..5)
    ) {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        fs::create_dir(&volume).unwrap();
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o777)).unwrap();
        for files in history {
            let mut payload = Payload::default();
            for (path, text) in files {
                // A refused path is refused before anything is written.
                let _ = payload.insert(&path, Bytes::from(text), 0o644);
            }
            if payload.check().is_err() {
                continue;
            }
            write(&volume, &payload, NOBODY).unwrap();
            let expected: BTreeMap<String, String> = payload
                .files()
                .map(|(path, c)| (path.into(), String::from_utf8(c.data.to_vec()).unwrap()))
                .collect();
            prop_assert_eq!(seen(&volume), expected);
            prop_assert_eq!(own_names(&volume).len(), 2);
        }
        prop_assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
