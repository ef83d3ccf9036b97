use super::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

#[test]
fn mountinfo_lines_are_read_with_escapes_and_optional_fields() {
    let text = b"22 28 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n\
        garbage\n\
        40 28 0:35 /a\\040b /var/lib/a\\134b\\040c rw - tmpfs tmp\\040fs rw,size=4k\n\
        41 28 8:1 / /x rw shared:1 master:2 - ext4 /dev/sda1 rw\n\
        42 28 8:1 / /cut rw shared:1\n";
    let mounts = parse_mountinfo(text);
    let points: Vec<_> = mounts.iter().map(|m| m.mount_point.to_str().unwrap()).collect();
    assert_eq!(points, ["/sys", "/var/lib/a\\b c", "/x"]);
    assert_eq!(mounts[1].fs_type, "tmpfs");
    assert_eq!(mounts[1].source, "tmp fs");
    assert_eq!(mounts[1].root, Path::new("/a b"));
    assert_eq!(mounts[2].fs_type, "ext4");
    assert!(mounts.iter().all(|mount| mount.device.contains(':')));
}

#[test]
fn beneath_is_about_components_not_about_letters() {
    let at = |point: &str| MountEntry {
        mount_point: point.into(),
        device: "0:1".into(),
        root: "/".into(),
        fs_type: "tmpfs".into(),
        source: "tmpfs".into(),
    };
    assert!(at("/pods/a/v").is_beneath(Path::new("/pods/a")));
    assert!(at("/pods/a").is_beneath(Path::new("/pods/a")));
    assert!(!at("/pods/ab").is_beneath(Path::new("/pods/a")));
}

#[test]
fn our_own_mountinfo_has_a_root() {
    let mounts = mount::list().unwrap();
    assert!(mounts.iter().any(|m| m.mount_point == Path::new("/")));
}

#[test]
fn meminfo_and_cpu_lists_are_read() {
    let meminfo = "MemFree: 1 kB\nMemTotal:       16384 kB\n";
    assert_eq!(parse_mem_total(meminfo), Some(16384 * 1024));
    assert_eq!(parse_mem_total("MemTotal: lots\n"), None);
    assert_eq!(parse_mem_total(""), None);
    assert_eq!(parse_cpu_list("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
    assert_eq!(parse_cpu_list(""), Some(vec![]));
    for garbage in ["a", "1-", "3-1", "0-4294967295"] {
        assert_eq!(parse_cpu_list(garbage), None, "{garbage}");
    }
    assert_eq!(machine::parse_hugepage_name("hugepages-2048kB"), Some(2 << 20));
    assert_eq!(machine::parse_hugepage_name("other"), None);
}

#[test]
fn this_machine_has_memory_cpus_and_a_name() {
    let machine = HostMachine::read().unwrap();
    assert!(machine.memory_bytes > 1 << 20);
    assert!(machine.cpus > 0);
    assert!(!machine.hostname.is_empty());
    assert!(filesystem_usage(Path::new("/")).unwrap().capacity > 1 << 20);
}

#[test]
fn what_is_no_file_is_not_even_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    // To open it is an error of its own, as to open a device without a driver is.
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let within = files::read_within(dir.path(), Path::new("socket"), 9);
    for read in [files::read_tail(&path, 9), files::read_head_or_empty(&path, 9), within] {
        assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    }
}

#[test]
fn only_the_end_of_a_file_is_read_and_links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("log");
    fs::write(&file, "0123456789").unwrap();
    assert_eq!(files::read_tail(&file, 4).unwrap(), b"6789");
    assert_eq!(files::read_tail(&file, 100).unwrap(), b"0123456789");
    let link = dir.path().join("link");
    symlink(&file, &link).unwrap();
    assert!(files::read_tail(&link, 4).is_err());
    assert!(files::read_tail(dir.path(), 4).is_err());
    assert!(files::read_tail(Path::new("/dev/zero"), 4).is_err());
}

#[test]
fn a_missing_file_is_empty_and_a_long_one_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("hosts");
    assert_eq!(files::read_head_or_empty(&file, 4).unwrap(), b"");
    fs::write(&file, "0123456789").unwrap();
    assert_eq!(files::read_head_or_empty(&file, 4).unwrap(), b"0123");
}

#[test]
fn writing_in_place_keeps_the_inode_and_sets_the_mode() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("etc-hosts");
    files::write_in_place(&file, b"a longer first version", 0o666).unwrap();
    let before = fs::metadata(&file).unwrap();
    assert_eq!(before.permissions().mode() & 0o777, 0o666);
    files::write_in_place(&file, b"short", 0o644).unwrap();
    let after = fs::metadata(&file).unwrap();
    assert_eq!(before.ino(), after.ino());
    assert_eq!(after.permissions().mode() & 0o777, 0o644);
    assert_eq!(fs::read(&file).unwrap(), b"short");
}

#[test]
fn an_existing_directory_keeps_its_mode_and_a_file_is_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("d");
    assert!(files::create_dir(&made, 0o777).unwrap());
    assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, 0o777);
    assert!(!files::create_dir(&made, 0o700).unwrap());
    assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, 0o777);
    let file = dir.path().join("f");
    fs::write(&file, "").unwrap();
    assert!(files::create_dir(&file, 0o777).is_err());
}

#[test]
fn a_tree_is_removed_but_what_its_links_point_to_stays() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "x").unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/file"), "x").unwrap();
    symlink(&outside, tree.join("a/link")).unwrap();
    symlink("/nowhere", tree.join("dangling")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    remove::tree(&tree).unwrap();
    assert!(!tree.exists());
    assert!(outside.join("precious").exists());
}

#[test]
fn removing_what_is_missing_or_a_link_is_fine() {
    let dir = tempfile::tempdir().unwrap();
    remove::tree(&dir.path().join("missing")).unwrap();
    remove::tree(&dir.path().join("missing/deeper")).unwrap();
    let target = dir.path().join("target");
    fs::create_dir(&target).unwrap();
    let link = dir.path().join("link");
    symlink(&target, &link).unwrap();
    remove::tree(&link).unwrap();
    assert!(target.is_dir());
    assert!(link.symlink_metadata().is_err());
}

#[test]
fn a_tree_deeper_than_the_stack_should_be_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("deep");
    fs::create_dir(&base).unwrap();
    let mut at =
        rustix::fs::open(&base, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    for _ in 0..1000 {
        rustix::fs::mkdirat(&at, "d", rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        at = rustix::fs::openat(&at, "d", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty())
            .unwrap();
    }
    drop(at);
    remove::tree(&base).unwrap();
    assert!(!base.exists());
}

/// Mounting needs privileges that a developer's machine may not give.
fn try_tmpfs(target: &Path) -> bool {
    match mount::tmpfs(target, Some(1 << 20), 0o777) {
        Ok(()) => true,
        Err(error) if std::env::var_os("CI").is_some() => {
            panic!("CI must be able to mount: {error}")
        }
        Err(error) => {
            eprintln!("SKIPPED, cannot mount here: {error}");
            false
        }
    }
}

#[test]
fn a_mount_inside_a_tree_stops_its_removal_and_keeps_the_data() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    let inner = tree.join("volume");
    fs::create_dir_all(&inner).unwrap();
    if !try_tmpfs(&inner) {
        return;
    }
    fs::write(inner.join("precious"), "x").unwrap();
    let refused = remove::tree(&tree);
    let kept = inner.join("precious").exists();
    let mode = fs::metadata(&inner).unwrap().mode() & 0o777;
    mount::unmount(&inner).unwrap();
    mount::unmount(&inner).unwrap();
    assert!(refused.is_err());
    assert!(kept);
    assert_eq!(mode, 0o777);
    remove::tree(&tree).unwrap();
}

#[test]
fn a_bind_mount_of_the_same_file_system_stops_removal_too() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let tree = dir.path().join("tree");
    fs::create_dir_all(&data).unwrap();
    fs::create_dir_all(tree.join("bound")).unwrap();
    fs::write(data.join("precious"), "x").unwrap();
    if let Err(error) = mount::bind(&data, &tree.join("bound")) {
        assert!(std::env::var_os("CI").is_none(), "CI must be able to mount: {error}");
        eprintln!("SKIPPED, cannot mount here: {error}");
        return;
    }
    let refused = remove::tree(&tree);
    mount::unmount(&tree.join("bound")).unwrap();
    assert!(refused.is_err());
    assert!(data.join("precious").exists());
}

#[test]
fn a_file_within_a_directory_is_read_and_no_link_leads_out() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("volume");
    fs::create_dir_all(volume.join("sub")).unwrap();
    fs::write(dir.path().join("outside"), "outside").unwrap();
    fs::write(volume.join("sub/file"), "inside").unwrap();
    let read = |path: &str| files::read_within(&volume, Path::new(path), 100);
    assert_eq!(read("sub/file").unwrap(), b"inside");
    assert_eq!(files::read_within(&volume, Path::new("sub/file"), 2).unwrap(), b"in");
    symlink("/sub/file", volume.join("absolute")).unwrap();
    symlink("../outside", volume.join("escape")).unwrap();
    symlink(dir.path().join("outside"), volume.join("elsewhere")).unwrap();
    assert_eq!(read("absolute").unwrap(), b"inside");
    assert_eq!(read("/sub/../sub/file").unwrap(), b"inside");
    for path in ["escape", "elsewhere", "../outside", "none"] {
        let error = read(path).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{path}");
    }
    assert!(read("sub").is_err(), "a directory is not a file");
    let status = std::process::Command::new("mkfifo").arg(volume.join("pipe")).status();
    assert!(status.unwrap().success());
    assert!(read("pipe").is_err(), "nothing waits for a pipe");
}
