//! The devices of block volumes on the node. Blocking.
//!
//! A driver publishes a device at a path of upstream's. The kubelet binds it onto a file of its own, and links to it from
//! the pod's directory, which the container's device is made from.
//!
//! Upstream also attaches a loop device to the bound device, so that it stays open: else the kernel could give the number
//! of a device that has gone to another one, which the pod would get. Here the kubelet itself keeps it open; see [`map`].
//! Loop devices of a Go kubelet are detached.
//!
//! Each step of an undo succeeds if nothing is left to be undone: after a reboot, or if the device itself has gone.

use super::mount_table::MountTable;
use super::paths::{DeviceDirs, DevicePaths, PublishDir, StageDir};
use crate::base::{atomic_file, if_exists};
use crate::host::program::Program;
use crate::volumes::Mounter;
use crate::volumes::error::cannot;
use anyhow::{Context as _, bail, ensure};
use rustix::fs::OFlags;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The maximum number of mounts on one path that are unmounted.
const MAX_STACKED: usize = 16;
/// Mode of the file that a device is bound onto; upstream's.
const MAP_MODE: u32 = 0o750;
/// How long `losetup` may take.
const LOSETUP_TIMEOUT: Duration = Duration::from_secs(60);
/// The block devices of the machine.
const BLOCK_DEVICES: &str = "/sys/block";

/// Binds the device that a driver has published at `target`, and links to it. The directories have to exist. Returns the
/// open device: as long as it is open, no other device gets its number.
///
/// # Errors
/// It is no block device, or a system call failed. What was done stays.
pub fn map(target: &Path, device: &DevicePaths, mounter: &dyn Mounter) -> anyhow::Result<File> {
    let source = fs::canonicalize(target).with_context(cannot("resolve", target))?;
    let found = fs::symlink_metadata(&source).with_context(cannot("read", &source))?;
    let number = number_of(&found, &source)?;
    let map = &device.map;
    bind(&source, number, map, mounter)?;
    // Not the driver's own mount, which the driver could not unmount then.
    let opened = open(map).with_context(cannot("open", map))?;
    let found = opened.metadata().with_context(cannot("read", map))?;
    let is_same = number_of(&found, map)? == number;
    ensure!(is_same, "{} has another device", map.display());
    let link = &device.link;
    // A container of the pod may be starting while its volume is published again.
    if !fs::read_link(link).is_ok_and(|known| known == source) {
        if_exists(fs::remove_file(link)).with_context(cannot("remove", link))?;
        symlink(&source, link).with_context(cannot("create the link", link))?;
    }
    Ok(opened)
}

/// The number of a block device. Nothing else may be opened: a pipe or another kind of device may block or have effects.
fn number_of(found: &Metadata, path: &Path) -> anyhow::Result<u64> {
    let is_device = found.file_type().is_block_device();
    ensure!(is_device, "{} is not a block device", path.display());
    Ok(found.rdev())
}

fn open(device: &Path) -> io::Result<File> {
    let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(flags).open(device)
}

/// Binds a device onto a file, unless it is bound there.
fn bind(source: &Path, number: u64, map: &Path, mounter: &dyn Mounter) -> anyhow::Result<()> {
    for _ in 0..MAX_STACKED {
        let found = if_exists(fs::symlink_metadata(map)).with_context(cannot("read", map))?;
        let Some(found) = found else {
            let mut options = fs::OpenOptions::new();
            let created = options.write(true).create_new(true).mode(MAP_MODE).open(map);
            created.with_context(cannot("create", map))?;
            continue;
        };
        let is_device = found.file_type().is_block_device();
        if is_device && found.rdev() == number {
            return Ok(());
        }
        if found.is_file() {
            let bound = mounter.bind(source, map);
            return bound.with_context(cannot("bind onto", map));
        }
        ensure!(is_device, "{} is in the way", map.display());
        // The device of an earlier publish.
        mounter.unmount(map).with_context(cannot("unmount", map))?;
    }
    bail!("{} has another device", map.display())
}

/// Undoes [`map`], also of a Go kubelet.
///
/// # Errors
/// Something is left.
pub fn unmap(device: &DevicePaths, mounter: &dyn Mounter) -> anyhow::Result<()> {
    let removed = if_exists(fs::remove_file(&device.link));
    removed.with_context(cannot("remove", &device.link))?;
    unmap_device(&device.map, mounter)
}

/// Unmounts the device that [`map`] has bound onto a file, and removes the file.
///
/// # Errors
/// Something is left.
pub fn unmap_device(map: &Path, mounter: &dyn Mounter) -> anyhow::Result<()> {
    // First: as long as it is attached, what it is attached to cannot be unmounted.
    for name in loop_devices(Path::new(BLOCK_DEVICES), map)? {
        detach(&name, map, mounter)?;
    }
    for _ in 0..MAX_STACKED {
        let mounts = mounter.list().context("cannot list the mounts")?;
        if !MountTable::new(Ok(mounts)).is_mount_point(map) {
            break;
        }
        // Only a device node is mounted there, and whoever has it open may keep it.
        mounter.detach(map).with_context(cannot("unmount", map))?;
    }
    let removed = if_exists(fs::remove_file(map));
    removed.map(drop).with_context(cannot("remove", map))
}

fn detach(name: &str, map: &Path, mounter: &dyn Mounter) -> anyhow::Result<()> {
    let device = format!("/dev/{name}");
    let args = ["-d".to_owned(), device.clone()];
    let ended = mounter.run(Program::new("losetup", &args, LOSETUP_TIMEOUT));
    let why = match ended {
        Ok(end) if end.code == Some(0) => return Ok(()),
        Ok(end) => end.stderr.trim().to_owned(),
        Err(error) => error.to_string(),
    };
    // Another process may have detached it.
    let left = loop_devices(Path::new(BLOCK_DEVICES), map)?;
    let is_left = left.iter().any(|left| left == name);
    ensure!(!is_left, "losetup -d {device} failed: {why}");
    Ok(())
}

/// The names of the loop devices that are attached to a file.
fn loop_devices(devices: &Path, file: &Path) -> anyhow::Result<Vec<String>> {
    let entries = if_exists(fs::read_dir(devices)).with_context(cannot("list", devices))?;
    let mut found = Vec::new();
    for entry in entries.into_iter().flatten() {
        let entry = entry.with_context(cannot("list", devices))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("loop") {
            continue;
        }
        // The file exists only while the device is attached.
        if let Ok(backing) = fs::read(entry.path().join("loop/backing_file"))
            && is_file(&backing, file)
        {
            found.push(name);
        }
    }
    Ok(found)
}

/// Whether the text of a loop device's `backing_file` names this file.
fn is_file(backing: &[u8], file: &Path) -> bool {
    let backing = backing.strip_suffix(b"\n").unwrap_or(backing);
    let backing = backing.strip_suffix(b" (deleted)").unwrap_or(backing);
    backing == file.as_os_str().as_encoded_bytes()
}

/// The devices that are left in a directory of devices; none if it does not exist.
///
/// # Errors
/// The directory cannot be listed.
pub fn left_devices(maps: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = if_exists(fs::read_dir(maps))?.into_iter().flatten();
    let mut left = Vec::new();
    for entry in entries {
        let path = entry?.path();
        // The entry itself is the file that the device is bound onto.
        let found = if_exists(fs::symlink_metadata(&path))?;
        if found.is_some_and(|found| found.file_type().is_block_device()) {
            left.push(path);
        }
    }
    Ok(left)
}

/// Removes what is left of a block volume for a pod that it is not published for.
///
/// # Errors
/// The system's error; `ResourceBusy` if something is or may be mounted there, `DirectoryNotEmpty` if something is there
/// that no kubelet has created.
pub fn remove_published(
    directory: &PublishDir,
    device: &DevicePaths,
    mounts: &MountTable,
) -> io::Result<()> {
    let target = directory.target();
    if mounts.is_mounted(&target) || mounts.is_mounted(&device.map) {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    if_exists(fs::remove_file(&device.link))?;
    // Of the last volume. The pod's directory is removed with what is left.
    let of_plugin = device.link.parent();
    for directory in [of_plugin, of_plugin.and_then(Path::parent)] {
        let _ = directory.map(fs::remove_dir);
    }
    remove_placeholder(&device.map)?;
    remove_placeholder(&target)
}

/// Removes the directories of a block volume that is not staged.
///
/// # Errors
/// As [`remove_published`].
pub fn remove_stage(
    directory: &StageDir,
    devices: &DeviceDirs,
    mounts: &MountTable,
) -> io::Result<()> {
    let target = directory.target();
    let all = [directory.path(), &target, &devices.published];
    if all.iter().any(|path| mounts.is_mounted(path)) {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    if_exists(fs::remove_dir(target))?;
    for of_pods in [&devices.published, &devices.maps] {
        for entry in if_exists(fs::read_dir(of_pods))?.into_iter().flatten() {
            remove_placeholder(&entry?.path())?;
        }
        if_exists(fs::remove_dir(of_pods))?;
    }
    // Last: as long as something else is left, it says what it is.
    let vol_data = directory.vol_data();
    if_exists(fs::remove_file(&vol_data))?;
    if let Some(data) = vol_data.parent()
        && if_exists(atomic_file::remove_leftovers(data))?.is_some()
    {
        if_exists(fs::remove_dir(data))?;
    }
    if_exists(fs::remove_dir(directory.path())).map(drop)
}

/// Removes what may stand where a device was: a link, a node, or an empty file or directory.
fn remove_placeholder(path: &Path) -> io::Result<()> {
    let Some(found) = if_exists(fs::symlink_metadata(path))? else {
        return Ok(());
    };
    let removed = match found.file_type() {
        kind if kind.is_dir() => fs::remove_dir(path),
        kind if kind.is_file() && found.len() > 0 => {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        _ => fs::remove_file(path),
    };
    if_exists(removed).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::parse_mountinfo;
    use crate::volumes::csi::identity::VolumeIdentity;
    use crate::volumes::{HostMounter, KubeletRoot};

    struct Tree {
        _base: tempfile::TempDir,
        stage: StageDir,
        publish: PublishDir,
    }

    /// The directories of a volume that is published for one pod.
    fn tree() -> Tree {
        let base = tempfile::tempdir().unwrap();
        let root = KubeletRoot::create(&base.path().join("k")).unwrap();
        let volume = VolumeIdentity::block("d", "h", "pv1").unwrap();
        let uid = "u1".into();
        let pod = root.pod(&uid).unwrap();
        let tree = Tree {
            _base: base,
            stage: StageDir::new(&root, &volume),
            publish: PublishDir::block(&root, &pod, &uid, "pv1").unwrap(),
        };
        let devices = tree.stage.devices().unwrap();
        let data = tree.stage.vol_data();
        for directory in [
            &tree.stage.target(),
            &devices.maps,
            &devices.published,
            data.parent().unwrap(),
            tree.device().link.parent().unwrap(),
        ] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::write(data, "{}").unwrap();
        tree
    }

    impl Tree {
        fn device(&self) -> &DevicePaths {
            self.publish.device().unwrap()
        }

        fn remove_published(&self, mounts: &MountTable) -> io::Result<()> {
            remove_published(&self.publish, self.device(), mounts)
        }

        fn remove_stage(&self, mounts: &MountTable) -> io::Result<()> {
            remove_stage(&self.stage, self.stage.devices().unwrap(), mounts)
        }
    }

    fn mounted(path: &Path) -> MountTable {
        let line = format!("1 2 0:6 /x {} rw - devtmpfs x rw\n", path.display());
        MountTable::new(Ok(parse_mountinfo(line.as_bytes())))
    }

    fn no_mounts() -> MountTable {
        MountTable::new(Ok(Vec::new()))
    }

    #[test]
    fn a_loop_device_is_found_by_the_file_that_it_is_attached_to() {
        let file = Path::new("/k/dev/u1");
        for (backing, expected) in [
            ("/k/dev/u1\n", true),
            ("/k/dev/u1", true),
            ("/k/dev/u1 (deleted)\n", true),
            ("/k/dev/u11\n", false),
            ("/k/dev\n", false),
            ("", false),
        ] {
            assert_eq!(is_file(backing.as_bytes(), file), expected, "{backing:?}");
        }
        let base = tempfile::tempdir().unwrap();
        for (device, backing) in [
            ("loop0", Some("/k/dev/u2\n")),
            ("loop1", None),
            ("loop12", Some("/k/dev/u1\n")),
            ("sda", Some("/k/dev/u1\n")),
        ] {
            let directory = base.path().join(device).join("loop");
            fs::create_dir_all(&directory).unwrap();
            if let Some(backing) = backing {
                fs::write(directory.join("backing_file"), backing).unwrap();
            }
        }
        assert_eq!(loop_devices(base.path(), file).unwrap(), ["loop12"]);
        let none = loop_devices(&base.path().join("none"), file).unwrap();
        assert!(none.is_empty());
    }

    #[test]
    fn only_a_block_device_is_mapped() {
        let tree = tree();
        let target = tree.publish.target();
        let refused = || {
            let mapped = map(&target, tree.device(), &HostMounter);
            format!("{:#}", mapped.unwrap_err())
        };
        assert!(refused().starts_with("cannot resolve"), "{}", refused());
        fs::write(&target, "").unwrap();
        assert!(refused().ends_with("is not a block device"));
        fs::remove_file(&target).unwrap();
        symlink("/dev/null", &target).unwrap();
        assert_eq!(refused(), "/dev/null is not a block device");
        assert!(!tree.device().map.exists() && tree.device().link.symlink_metadata().is_err());
    }

    #[test]
    fn undoing_what_is_not_there_succeeds() {
        let tree = tree();
        for _ in 0..2 {
            unmap(tree.device(), &HostMounter).unwrap();
            tree.remove_published(&no_mounts()).unwrap();
            tree.remove_stage(&no_mounts()).unwrap();
        }
        assert!(!tree.stage.path().exists() && !tree.stage.target().exists());
        assert!(!tree.publish.path().exists());
        assert!(!tree.device().link.parent().unwrap().exists());
    }

    #[test]
    fn placeholders_are_removed() {
        let tree = tree();
        fs::write(tree.publish.target(), "").unwrap();
        fs::write(&tree.device().map, "").unwrap();
        symlink("/dev/gone", &tree.device().link).unwrap();
        tree.remove_published(&no_mounts()).unwrap();
        assert!(!tree.publish.target().exists() && !tree.device().map.exists());
        assert!(tree.device().link.symlink_metadata().is_err());
        // What other pods have left.
        let other = tree.publish.path().join("u2");
        symlink("/dev/gone", other).unwrap();
        tree.remove_stage(&no_mounts()).unwrap();
        assert!(!tree.stage.path().exists());
    }

    #[test]
    fn neither_data_nor_what_is_below_a_mount_is_removed() {
        let tree = tree();
        let target = tree.publish.target();
        let kind = |removed: io::Result<()>| removed.unwrap_err().kind();
        for path in [&target, &tree.device().map] {
            let removed = tree.remove_published(&mounted(path));
            assert_eq!(kind(removed), io::ErrorKind::ResourceBusy);
        }
        for path in [&target, &tree.device().map, &tree.stage.target()] {
            let removed = tree.remove_stage(&mounted(path));
            assert_eq!(kind(removed), io::ErrorKind::ResourceBusy);
        }
        let unreadable = MountTable::new(Err(io::ErrorKind::NotFound.into()));
        let removed = tree.remove_stage(&unreadable);
        assert_eq!(kind(removed), io::ErrorKind::ResourceBusy);
        let full = io::ErrorKind::DirectoryNotEmpty;
        let staged = tree.stage.target().join("data");
        fs::write(&staged, "data").unwrap();
        assert_eq!(kind(tree.remove_stage(&no_mounts())), full);
        assert!(staged.exists());
        fs::remove_file(&staged).unwrap();
        fs::write(&target, "data").unwrap();
        assert_eq!(kind(tree.remove_published(&no_mounts())), full);
        assert_eq!(kind(tree.remove_stage(&no_mounts())), full);
        assert!(target.exists() && tree.stage.vol_data().exists());
    }
}
