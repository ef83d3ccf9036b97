//! hostPath volumes: checks the path's type. Blocking.

use super::{error::cannot, plan::HostPathCheck};
use crate::base::if_exists;
use anyhow::{Context as _, anyhow};
use std::{
    fs,
    os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt},
    path::Path,
};

/// Checks the path, following links as upstream does, and creates it for the `…OrCreate` types.
pub(super) fn set_up(path: &Path, check: HostPathCheck) -> anyhow::Result<()> {
    use HostPathCheck as Check;
    if check == Check::None {
        return Ok(());
    }
    let found = if_exists(fs::metadata(path)).with_context(cannot("read", path))?;
    let Some(found) = found.map(|metadata| metadata.file_type()) else {
        return make(path, check);
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
        Ok(())
    } else {
        Err(not_expected(path, check))
    }
}

/// The path does not exist: the `…OrCreate` types create it, the others fail.
fn make(path: &Path, check: HostPathCheck) -> anyhow::Result<()> {
    match check {
        HostPathCheck::DirectoryOrCreate => fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .with_context(cannot("make directory", path)),
        HostPathCheck::FileOrCreate => fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(path)
            .map(drop)
            .with_context(cannot("make file", path)),
        _ => Err(not_expected(path, check)),
    }
}

fn not_expected(path: &Path, check: HostPathCheck) -> anyhow::Error {
    use HostPathCheck as Check;
    let expected = match check {
        Check::None => "anything",
        Check::Directory | Check::DirectoryOrCreate => "a directory",
        Check::File | Check::FileOrCreate => "a file",
        Check::Socket => "a socket file",
        Check::CharDevice => "a character device",
        Check::BlockDevice => "a block device",
    };
    let path = path.display();
    anyhow!("hostPath type check failed: {path} is not {expected}")
}
