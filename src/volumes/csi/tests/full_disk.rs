//! A disk that becomes full in the middle of a step.

use super::world::World;
use crate::volumes::KubeletRoot;
use std::path::Path;
use std::process::Command;

/// A file system with a limited number of files, unmounted when dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// A root directory as the kubelet makes it, with space for this many files more. `None`, with a warning, where the
    /// test may not mount.
    fn mount(path: &'a Path, inodes: u64) -> Option<Self> {
        if !mount(path, &["-t", "tmpfs", "none"]) {
            assert!(std::env::var_os("CI").is_none(), "it may not mount");
            eprintln!("SKIPPED, cannot mount here");
            return None;
        }
        let disk = Self(path);
        KubeletRoot::create(path).unwrap();
        let known = rustix::fs::statvfs(path).unwrap();
        disk.limit(known.f_files - known.f_ffree + inodes);
        Some(disk)
    }

    fn limit(&self, inodes: u64) {
        let options = format!("remount,nr_inodes={inodes}");
        assert!(mount(self.0, &["-o", &options]), "{options}");
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

fn mount(path: &Path, args: &[&str]) -> bool {
    let status = Command::new("mount").args(args).arg(path).status();
    status.is_ok_and(|status| status.success())
}

#[tokio::test]
async fn a_step_on_a_full_disk_calls_no_driver_and_succeeds_once_there_is_space() {
    for inodes in 0.. {
        let world = World::start().await;
        let root = world.root();
        let Some(disk) = SmallDisk::mount(&root, inodes) else {
            return;
        };
        let published = world.publish("a").await;
        let calls = world.calls();
        if published.is_ok() {
            assert!(inodes > 8, "{inodes}");
            return;
        }
        let error = published.unwrap_err();
        assert!(error.contains("No space left on device"), "{error}");
        let staged = ["NodeStageVolume"];
        let expected = if error.starts_with("MountVolume.SetUp") { &staged[..] } else { &[] };
        // At last the kubelet has enough, and the driver cannot create its directory.
        if !error.contains("rpc error") {
            assert_eq!(calls, expected, "{inodes}: {error}");
        }
        disk.limit(1000);
        world.publish("a").await.unwrap();
        world.unpublish("a").await.unwrap();
        world.idle().await;
    }
}
