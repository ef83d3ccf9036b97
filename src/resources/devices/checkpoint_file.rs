//! Where the checkpoint is on disk.

use super::{
    checkpoint::{self, CheckpointError, Data},
    state::DeviceState,
};
use crate::base::atomic_file;
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{sync::Mutex, task::spawn_blocking};

/// Name of the checkpoint, as upstream's.
pub(super) const CHECKPOINT: &str = "kubelet_internal_checkpoint";
/// What a checkpoint that cannot be used is renamed to. While this is there, containers may have devices that are
/// not known.
const DAMAGED: &str = "kubelet_internal_checkpoint.damaged";

/// The file.
pub(super) struct CheckpointFile {
    directory: PathBuf,
    /// What was written last.
    written: Arc<Mutex<Vec<u8>>>,
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
        let written = Arc::default();
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

    /// Writes a snapshot of the state, unless that is what the file says already, and then says which. Snapshots are
    /// taken in the order in which they are written.
    pub(super) async fn save<V: Send + 'static>(
        &self,
        snapshot: impl FnOnce() -> (DeviceState, V) + Send + 'static,
        saved: impl FnOnce(V) + Send + 'static,
    ) -> Result<(), String> {
        let mut written = self.written.clone().lock_owned().await;
        let directory = self.directory.clone();
        let work = move || {
            let (state, version) = snapshot();
            let bytes = checkpoint::encode(state.to_checkpoint());
            let bytes = bytes.map_err(|error| error.to_string())?;
            if *written != bytes {
                // What the file says is not known if this fails.
                written.clear();
                let path = directory.join(CHECKPOINT);
                atomic_file::write(&path, &bytes).map_err(|error| error.to_string())?;
                *written = bytes;
            }
            if !state.is_damaged() {
                remove_damaged(&directory).map_err(|error| error.to_string())?;
            }
            saved(version);
            Ok(())
        };
        let done = spawn_blocking(work).await;
        done.map_err(|error| error.to_string())?
    }
}

fn remove_damaged(directory: &Path) -> io::Result<()> {
    match fs::remove_file(directory.join(DAMAGED)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<Option<Data>, ReadError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => Ok(Some(checkpoint::decode(&text?)?)),
    }
}
