//! Where the checkpoint is on disk.

use super::checkpoint::{self, CheckpointError, Data};
use crate::base::{atomic_file, with_own_files};
use std::{
    fs, io,
    path::{Path, PathBuf},
};
use tokio::sync::Mutex;

/// Name of the checkpoint, as upstream's.
pub(super) const CHECKPOINT: &str = "kubelet_internal_checkpoint";
/// What a checkpoint that cannot be used is renamed to. While this is there, containers may have devices that are
/// not known.
const DAMAGED: &str = "kubelet_internal_checkpoint.damaged";

/// The file.
pub(super) struct CheckpointFile {
    directory: PathBuf,
    /// What was written last.
    written: Mutex<Vec<u8>>,
}

/// What there was at the start.
#[derive(Debug)]
pub(super) struct Found {
    /// The content; `None` if there was no file.
    pub(super) data: Option<Data>,
    /// This or an earlier file could not be used.
    pub(super) damaged: bool,
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl CheckpointFile {
    pub(super) fn new(directory: PathBuf) -> Self {
        let written = Mutex::default();
        Self { directory, written }
    }

    /// Reads the file. One that cannot be used is kept beside. Blocking.
    pub(super) fn read(&self) -> Found {
        let (path, damaged) = (
            self.directory.join(CHECKPOINT),
            self.directory.join(DAMAGED),
        );
        let data = match read(&path) {
            Ok(data) => data,
            Err(error) => {
                tracing::error!(path = %path.display(), err = %error, "Failed to read data from checkpoint");
                if let Err(error) = fs::rename(&path, &damaged) {
                    tracing::error!(path = %path.display(), err = %error, "Failed to rename the checkpoint");
                }
                return Found {
                    data: None,
                    damaged: true,
                };
            }
        };
        Found {
            data,
            damaged: damaged.exists(),
        }
    }

    /// Writes a snapshot, unless that is what the file says already. Snapshots are taken in the order in which they
    /// are written. `true` beside it says that some devices are not known.
    pub(super) async fn save(&self, snapshot: impl Fn() -> (Data, bool)) -> Result<(), String> {
        let mut written = self.written.lock().await;
        let (data, incomplete) = snapshot();
        let bytes = checkpoint::encode(data).map_err(|error| error.to_string())?;
        let directory = self.directory.clone();
        let content = (*written != bytes).then(|| bytes.clone());
        let saved = with_own_files(move || {
            if let Some(content) = content {
                atomic_file::write(&directory.join(CHECKPOINT), &content)?;
            }
            if incomplete {
                return Ok(());
            }
            match fs::remove_file(directory.join(DAMAGED)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        });
        let saved = saved.await.map_err(|error| error.to_string())?;
        saved.map_err(|error| error.to_string())?;
        *written = bytes;
        Ok(())
    }
}

fn read(path: &Path) -> Result<Option<Data>, ReadError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => Ok(Some(checkpoint::decode(&text?)?)),
    }
}
