//! hostPath volumes: checks the path's type. Blocking.

use super::{error::cannot, plan::HostPathCheck};
use crate::base::if_exists;
use anyhow::{Context as _, anyhow};
use std::{
    fs,
    os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Checks the path, following links as upstream does, and creates it for the `…OrCreate` types.
pub(super) fn set_up(path: &str, check: HostPathCheck) -> anyhow::Result<PathBuf> {
    use HostPathCheck as Check;
    let place = Path::new(path);
    if check == Check::None {
        return Ok(place.to_path_buf());
    }
    let found = if_exists(fs::metadata(place)).with_context(cannot("read", place))?;
    let Some(found) = found.map(|metadata| metadata.file_type()) else {
        return make(place, path, check).map(|()| place.to_path_buf());
    };
    let matches = match check {
        Check::None => true,
        Check::Directory | Check::DirectoryOrCreate => found.is_dir(),
        Check::File | Check::FileOrCreate => found.is_file(),
        Check::Socket => found.is_socket(),
        Check::CharDevice => found.is_char_device(),
        Check::BlockDevice => found.is_block_device(),
    };
    if matches {
        Ok(place.to_path_buf())
    } else {
        Err(not_expected(path, check))
    }
}

/// The path does not exist: the `…OrCreate` types create it, the others fail.
fn make(place: &Path, path: &str, check: HostPathCheck) -> anyhow::Result<()> {
    match check {
        HostPathCheck::DirectoryOrCreate => fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(place)
            .with_context(cannot("make directory", place)),
        HostPathCheck::FileOrCreate => fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(place)
            .map(drop)
            .with_context(cannot("make file", place)),
        _ => Err(not_expected(path, check)),
    }
}

fn not_expected(path: &str, check: HostPathCheck) -> anyhow::Error {
    use HostPathCheck as Check;
    let expected = match check {
        Check::None => "anything",
        Check::Directory | Check::DirectoryOrCreate => "a directory",
        Check::File | Check::FileOrCreate => "a file",
        Check::Socket => "a socket file",
        Check::CharDevice => "a character device",
        Check::BlockDevice => "a block device",
    };
    anyhow!("hostPath type check failed: {path} is not {expected}")
}
