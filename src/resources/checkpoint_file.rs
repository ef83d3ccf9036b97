//! A checkpoint file, written only when its content changes. After a power failure it has the old content or the new one.

use crate::base::{atomic_file, if_exists, spawn_blocking};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Suffix of the name of a file that cannot be used.
const DAMAGED: &str = ".damaged";

pub(super) struct CheckpointFile {
    path: PathBuf,
    damaged: PathBuf,
    /// The last written content; empty while the content of the file is unknown.
    written: Arc<Mutex<Vec<u8>>>,
}

impl CheckpointFile {
    pub(super) fn new(path: PathBuf) -> Self {
        let mut damaged = path.clone().into_os_string();
        damaged.push(DAMAGED);
        Self { path, damaged: damaged.into(), written: Arc::default() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and decodes the file; `None` if it does not exist. Blocking.
    pub(super) fn read<T>(
        &self,
        decode: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let bytes = if_exists(fs::read(&self.path)).map_err(|error| error.to_string())?;
        bytes.map(|bytes| decode(&bytes)).transpose()
    }

    /// Whether the file can be read, and no damaged one was renamed. Blocking.
    pub(super) fn check<T>(
        &self,
        decode: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<(), String> {
        let place = |path: &Path, why: &str| format!("{}: {why}", path.display());
        self.read(decode).map_err(|error| place(&self.path, &error))?;
        if self.has_damaged() {
            return Err(place(&self.damaged, "an earlier kubelet could not read it"));
        }
        Ok(())
    }

    /// Renames a file that cannot be used; a failure is logged. Blocking.
    pub(super) fn rename_damaged(&self) {
        if let Err(error) = fs::rename(&self.path, &self.damaged) {
            tracing::error!(path = %self.path.display(), err = %error, "Failed to rename the checkpoint");
        }
    }

    /// Whether there is a renamed file, of this or an earlier kubelet. Blocking.
    pub(super) fn has_damaged(&self) -> bool {
        self.damaged.exists()
    }

    /// Runs blocking `work` with the writer of the file. Calls are serialized, so that an older state never replaces a
    /// newer one.
    pub(super) async fn update(
        &self,
        work: impl FnOnce(&mut CheckpointWriter) -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        let mut writer = self.writer().await;
        let done = spawn_blocking(move || work(&mut writer)).await;
        done.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// The writer of the file; waits until no other one exists.
    pub(super) async fn writer(&self) -> CheckpointWriter {
        CheckpointWriter {
            path: self.path.clone(),
            damaged: self.damaged.clone(),
            written: self.written.clone().lock_owned().await,
        }
    }
}

/// Writes the file.
pub(super) struct CheckpointWriter {
    path: PathBuf,
    damaged: PathBuf,
    written: OwnedMutexGuard<Vec<u8>>,
}

impl CheckpointWriter {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the content, unless the file has it already.
    pub(super) fn write(&mut self, bytes: Vec<u8>) -> Result<(), String> {
        if *self.written != bytes {
            // After a failure the content of the file is unknown.
            self.written.clear();
            atomic_file::write_synced(&self.path, &bytes, atomic_file::PRIVATE)
                .map_err(|error| error.to_string())?;
            *self.written = bytes;
        }
        Ok(())
    }

    /// Removes the renamed file, if there is one.
    pub(super) fn remove_damaged(&self) -> Result<(), String> {
        let removed = if_exists(fs::remove_file(&self.damaged)).map(drop);
        removed.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_written_when_its_content_changes_or_an_earlier_write_failed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("d/state"), dir.path().join("moved"));
        let file = CheckpointFile::new(path.clone());
        let write =
            async |content: &'static [u8]| file.update(|file| file.write(content.to_vec())).await;
        write(b"one").await.unwrap_err();
        fs::create_dir(dir.path().join("d")).unwrap();
        write(b"one").await.unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        fs::remove_file(&path).unwrap();
        write(b"one").await.unwrap();
        assert!(!path.exists(), "the same again is not written");
        write(b"two").await.unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        fs::rename(dir.path().join("d"), &moved).unwrap();
        write(b"one").await.unwrap_err();
        fs::rename(&moved, dir.path().join("d")).unwrap();
        write(b"two").await.unwrap();
        fs::remove_file(&path).unwrap();
        write(b"one").await.unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
    }

    #[tokio::test]
    async fn a_damaged_file_is_kept_beside_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = CheckpointFile::new(dir.path().join("state"));
        let read =
            || file.read(|bytes| String::from_utf8(bytes.to_vec()).map_err(|_| "bad".into()));
        assert_eq!(read(), Ok(None));
        fs::write(file.path(), [0xff]).unwrap();
        assert_eq!(read(), Err("bad".into()));
        file.rename_damaged();
        assert_eq!((read(), file.has_damaged()), (Ok(None), true));
        assert!(dir.path().join("state.damaged").exists());
        for _ in 0..2 {
            file.update(|file| file.remove_damaged()).await.unwrap();
            assert!(!file.has_damaged());
        }
    }
}
