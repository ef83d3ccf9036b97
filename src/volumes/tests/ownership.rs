//! Changes of the ownership of files.

use super::*;
use crate::host::mount;
use crate::volumes::VolumeGroup;
use crate::volumes::ownership::{ChangePolicy, OwnershipWalk, apply};

fn set(directory: &Path, group: u32, policy: ChangePolicy, walk: &OwnershipWalk) -> bool {
    apply("pv1", directory, (VolumeGroup(Some(group)), policy), walk).is_ok()
}

fn always(directory: &Path, group: u32) {
    let walk = OwnershipWalk::default();
    assert!(set(directory, group, ChangePolicy::Always, &walk));
}

fn group(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().gid()
}

#[test]
fn a_walk_changes_only_what_differs_follows_no_link_and_crosses_no_mount() {
    let base = tempfile::tempdir().unwrap();
    let path = |name: &str| base.path().join(name);
    for directory in ["volume", "volume/below", "volume/mounted", "outside", "other"] {
        fs::create_dir(path(directory)).unwrap();
    }
    for file in ["volume/file", "volume/below/file", "outside/file", "other/file"] {
        fs::write(path(file), "").unwrap();
    }
    symlink(path("outside"), path("volume/link")).unwrap();
    let mounted = mount::bind(&path("other"), &path("volume/mounted")).is_ok();
    let volume = path("volume");
    always(&volume, 4321);
    let inside = ["volume", "volume/file", "volume/below", "volume/below/file", "volume/link"];
    assert!(inside.iter().all(|name| group(&path(name)) == 4321));
    let outside = ["outside", "outside/file", "other", "other/file"];
    assert!(outside.iter().all(|name| group(&path(name)) != 4321));
    // Unchanged files keep their times of change.
    let changed = |name: &str| {
        let stat = fs::symlink_metadata(path(name)).unwrap();
        (stat.ctime(), stat.ctime_nsec())
    };
    let before = inside.map(changed);
    std::os::unix::fs::chown(path("volume/below/file"), None, Some(0)).unwrap();
    always(&volume, 4321);
    let after = inside.map(changed);
    assert_eq!(before[1..3], after[1..3]);
    assert_ne!(before[3], after[3]);
    assert_eq!(group(&path("volume/below/file")), 4321);
    if mounted {
        mount::unmount(&path("volume/mounted")).unwrap();
    }
}

#[test]
fn a_walk_that_is_cut_short_is_repeated_also_for_the_group_of_before() {
    let base = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..5000).map(|number| base.path().join(number.to_string())).collect();
    for file in &files {
        fs::write(file, "").unwrap();
    }
    let mut group_of_before = 1000;
    // The walk may be over before it is cancelled.
    loop {
        always(base.path(), group_of_before);
        let walk = Arc::new(OwnershipWalk::default());
        let cancelling = std::thread::spawn({
            let walk = walk.clone();
            move || {
                while walk.processed() < 10 {
                    std::hint::spin_loop();
                }
                walk.cancel();
            }
        });
        let is_whole = set(base.path(), group_of_before + 1, ChangePolicy::Always, &walk);
        cancelling.join().unwrap();
        if !is_whole {
            break;
        }
        group_of_before += 2;
    }
    let has = |group_of: u32| files.iter().filter(|file| group(file) == group_of).count();
    assert!(has(group_of_before) > 0 && has(group_of_before + 1) > 0);
    assert_eq!(group(base.path()), group_of_before);
    let walk = OwnershipWalk::default();
    let policy = ChangePolicy::OnRootMismatch;
    assert!(set(base.path(), group_of_before, policy, &walk));
    assert_eq!(has(group_of_before), files.len());
    // Now the root directory shows that nothing is left to do.
    let walk = OwnershipWalk::default();
    assert!(set(base.path(), group_of_before, policy, &walk));
    assert_eq!(walk.processed(), 0);
}
