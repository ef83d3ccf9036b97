//! A directory tree that is served to clients, who must not be able to read anything outside of it.

use super::files::{open_again, open_beneath, reopen};
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

/// The file at a path in such a tree.
#[derive(Debug)]
pub enum ConfinedFile {
    /// A regular file.
    File(File, Metadata),
    /// The sorted names in a directory, and whether each is a directory.
    Directory(Vec<(String, bool)>),
}

/// Opens a path below a directory. Relative and absolute symbolic links are followed if they end inside. Returns at
/// most `max_names` names of a directory; names that are not UTF-8 are skipped.
///
/// # Errors
/// `NotFound` also for paths outside; `InvalidInput` for anything but files and directories, such as pipes and
/// devices, which are never opened.
pub fn open_confined(root: &Path, path: &Path, max_names: usize) -> io::Result<ConfinedFile> {
    let root = root.canonicalize()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(&root, flags, Mode::empty())?;
    let opened = open_beneath(&root, top.as_fd(), path);
    let opened = opened.map_err(|error| match error {
        Errno::XDEV => io::ErrorKind::NotFound.into(),
        error => io::Error::from(error),
    })?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode);
    if kind.is_dir() {
        return Ok(ConfinedFile::Directory(names(open_again(&opened)?, max_names)?));
    }
    let (file, meta) = reopen(opened)?;
    Ok(ConfinedFile::File(file, meta))
}

fn names(directory: OwnedFd, max_names: usize) -> io::Result<Vec<(String, bool)>> {
    let mut names = Vec::new();
    for entry in Dir::new(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        if name == "." || name == ".." {
            continue;
        }
        if names.len() == max_names {
            break;
        }
        names.push((name.to_owned(), entry.file_type().is_dir()));
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::{fs, thread};

    /// A tree with links of all kinds, and a secret beside it.
    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        fs::create_dir_all(log.join("pods/a")).unwrap();
        fs::write(log.join("syslog"), "one\n").unwrap();
        fs::write(log.join("pods/a/0.log"), "two\n").unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        symlink(log.join("pods/a/0.log"), log.join("absolute")).unwrap();
        symlink("pods/a/0.log", log.join("relative")).unwrap();
        symlink("../secret", log.join("out")).unwrap();
        symlink(dir.path().join("secret"), log.join("out2")).unwrap();
        symlink("/proc/self/root", log.join("magic")).unwrap();
        symlink("loop", log.join("loop")).unwrap();
        dir
    }

    fn text(root: &Path, path: &str) -> io::Result<String> {
        match open_confined(root, Path::new(path), 100)? {
            ConfinedFile::File(file, _) => io::read_to_string(file),
            ConfinedFile::Directory(names) => Ok(format!("{names:?}")),
        }
    }

    #[test]
    fn files_and_directories_inside_are_shown() {
        let dir = tree();
        let log = dir.path().join("log");
        let rows = [
            ("syslog", "one\n"),
            ("pods/a/0.log", "two\n"),
            ("absolute", "two\n"),
            ("relative", "two\n"),
            ("pods", "[(\"a\", true)]"),
            ("pods/a/", "[(\"0.log\", false)]"),
            ("pods/../syslog", "one\n"),
        ];
        for (path, expected) in rows {
            assert_eq!(text(&log, path).unwrap(), expected, "{path}");
        }
        assert!(text(&log, "").unwrap().contains("(\"pods\", true)"));
    }

    #[test]
    fn nothing_outside_is_shown() {
        let dir = tree();
        let log = dir.path().join("log");
        for path in [
            "out",
            "out2",
            "../secret",
            "pods/../../secret",
            "/etc/hostname",
            "magic/etc/hostname",
            "loop",
            "none",
        ] {
            assert!(text(&log, path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_pipe_is_refused_and_does_not_hang() {
        let dir = tree();
        let log = dir.path().join("log");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, log.join("pipe"), rustix::fs::FileType::Fifo, mode, 0)
            .unwrap();
        let kind = text(&log, "pipe").unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::InvalidInput);
    }

    #[test]
    fn what_is_no_file_is_not_even_opened() {
        let dir = tempfile::tempdir().unwrap();
        // To open it is an error of its own, as to open a device without a driver is.
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        let kind = text(dir.path(), "socket").unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_link_that_changes_all_the_time_never_leads_out() {
        let dir = tree();
        let log = dir.path().join("log");
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (inside, outside) = (log.join("syslog"), dir.path().join("secret"));
                let mut round = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    let target = if round.is_multiple_of(2) { &inside } else { &outside };
                    let _ = fs::remove_file(log.join("new"));
                    symlink(target, log.join("new")).unwrap();
                    fs::rename(log.join("new"), log.join("changing")).unwrap();
                    round += 1;
                }
            });
            let mut seen = 0;
            let mut wrong = None;
            for _ in 0..20_000 {
                if let Ok(text) = text(&log, "changing") {
                    seen += 1;
                    if text != "one\n" {
                        wrong = Some(text);
                        break;
                    }
                }
                if seen > 500 {
                    break;
                }
            }
            // The other thread must end also when this one fails.
            stop.store(true, Ordering::Relaxed);
            assert_eq!(wrong, None);
            assert!(seen > 0, "the race was never run");
        });
    }
}
