use super::*;

const STAMP: ManifestStamp =
    ManifestStamp { device: 1, inode: 2, size: 3, modified: 4, changed: 5 };

fn good(name: &str) -> ManifestReading {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.into());
    let manifest = Manifest { pods: vec![Arc::new(pod)], warnings: vec![] };
    ManifestReading::Valid([1; 16], manifest)
}

fn note(cache: &mut ManifestCache, path: &str, reading: ManifestReading) {
    cache.record(Path::new(path), Freshness::UntilStampChanges(STAMP), reading);
}

fn names(cache: &mut ManifestCache) -> Vec<String> {
    cache.outcome(&ScanScope::Everything).0.iter().map(|pod| pod.name().to_string()).collect()
}

fn reports(cache: &mut ManifestCache) -> Vec<String> {
    let text = |notice| match notice {
        Notice::Unusable(text) | Notice::Warning(text) => text,
        Notice::Missing(path) => path.display().to_string(),
    };
    cache.outcome(&ScanScope::Everything).1.into_iter().map(text).collect()
}

#[test]
fn a_file_is_read_again_only_when_its_stamp_changes() {
    let mut cache = ManifestCache::default();
    let path = Path::new("a");
    assert!(cache.must_read(path, STAMP));
    cache.record(path, Freshness::UntilStampChanges(STAMP), good("a"));
    assert!(!cache.must_read(path, STAMP));
    for change in [
        ManifestStamp { inode: 9, ..STAMP },
        ManifestStamp { size: 9, ..STAMP },
        ManifestStamp { modified: 9, ..STAMP },
        ManifestStamp { changed: 9, ..STAMP },
        ManifestStamp { device: 9, ..STAMP },
    ] {
        assert!(cache.must_read(path, change));
    }
    cache.record(path, Freshness::Changing, ManifestReading::SameBytes);
    assert!(cache.must_read(path, STAMP) && !cache.to_reread().is_empty());
    cache.record(path, Freshness::UntilNextScan, ManifestReading::ReadFailed("no".into()));
    assert!(cache.must_read(path, STAMP));
}

#[test]
fn a_file_that_turns_bad_keeps_its_last_good_pod_and_is_reported_once() {
    let mut cache = ManifestCache::default();
    note(&mut cache, "a", good("a"));
    assert_eq!(names(&mut cache), ["a"]);
    note(&mut cache, "a", ManifestReading::Invalid([2; 16], "line 1: bad".into()));
    assert!(!cache.to_reread().is_empty());
    assert_eq!(reports(&mut cache), [""; 0], "perhaps it is being written");
    assert!(!cache.to_reread().is_empty());
    assert_eq!(reports(&mut cache), ["a: line 1: bad; the last valid version is kept"]);
    assert!(cache.to_reread().is_empty());
    assert_eq!(reports(&mut cache), [""; 0]);
    assert_eq!(names(&mut cache), ["a"]);
    note(&mut cache, "a", ManifestReading::Invalid([3; 16], "line 1: bad".into()));
    reports(&mut cache);
    assert_eq!(reports(&mut cache).len(), 1, "other bytes, reported again");
}

#[test]
fn a_half_written_file_is_not_reported() {
    let mut cache = ManifestCache::default();
    note(&mut cache, "a", ManifestReading::Invalid([2; 16], "no object".into()));
    assert_eq!(reports(&mut cache), [""; 0]);
    note(&mut cache, "a", good("a"));
    assert_eq!(reports(&mut cache), [""; 0]);
    assert_eq!(names(&mut cache), ["a"]);
}

#[test]
fn a_file_bad_from_the_start_is_reported_and_skipped() {
    let mut cache = ManifestCache::default();
    note(&mut cache, "a", ManifestReading::Invalid([2; 16], "bad".into()));
    note(&mut cache, "b", good("b"));
    assert_eq!(names(&mut cache), ["b"]);
    assert_eq!(reports(&mut cache), ["a: bad"]);
}

#[test]
fn pods_of_removed_files_and_of_non_files_are_dropped() {
    let mut cache = ManifestCache::default();
    note(&mut cache, "a", good("a"));
    note(&mut cache, "b", good("b"));
    cache.keep_only(&HashSet::from(["a".into()]));
    assert_eq!(names(&mut cache), ["a"]);
    note(&mut cache, "a", ManifestReading::NotAFile("is a directory".into()));
    assert_eq!(names(&mut cache), [""; 0]);
    assert_eq!(reports(&mut cache), ["a: is a directory"]);
    note(&mut cache, "a", ManifestReading::NotAFile("is a directory".into()));
    reports(&mut cache);
    assert_eq!(reports(&mut cache), [""; 0]);
}

#[test]
fn of_two_files_with_one_pod_the_first_by_name_counts() {
    let mut cache = ManifestCache::default();
    note(&mut cache, "b", good("same"));
    note(&mut cache, "a", good("same"));
    assert_eq!(names(&mut cache), ["same"]);
    note(&mut cache, "c", good("same"));
    assert_eq!(reports(&mut cache), ["c: pod /same is already in a; this file is ignored"]);
    assert_eq!(reports(&mut cache), [""; 0]);
    cache.keep_only(&HashSet::from(["b".into(), "c".into()]));
    assert_eq!(reports(&mut cache), ["c: pod /same is already in b; this file is ignored"]);
}

#[test]
fn an_unreadable_file_keeps_its_pod_until_it_can_be_read() {
    let mut cache = ManifestCache::default();
    note(&mut cache, "a", good("a"));
    cache.record(
        Path::new("a"),
        Freshness::UntilNextScan,
        ManifestReading::ReadFailed("permission denied".into()),
    );
    assert_eq!(names(&mut cache), ["a"]);
    assert_eq!(reports(&mut cache).len(), 1);
    assert_eq!(cache.digest(Path::new("a")), None, "parsed again when it can be read");
    assert!(cache.to_reread().is_empty(), "tried again by the next scan, not by a tight loop");
}

#[test]
fn an_error_is_reported_after_its_file_was_read_again() {
    let mut cache = ManifestCache::default();
    note(&mut cache, "dir/a", ManifestReading::Invalid([1; 16], "half".into()));
    let entries = |name: &str| ScanScope::Entries([name.into()].into());
    assert_eq!(cache.outcome(&entries("a")).1, []);
    assert_eq!(cache.to_reread(), ["a".into()].into());
    assert_eq!(cache.outcome(&entries("b")).1, []);
    let expected = vec![Notice::Unusable("dir/a: half".into())];
    assert_eq!(cache.outcome(&entries("a")).1, expected);
    assert!(cache.to_reread().is_empty());
}
