//! The checkpoint files of the CPU and memory managers.

use super::super::cpu::{self, CpuState};
use super::super::memory::{self, MemoryState};
use crate::base::{atomic_file, run_file_io};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Names of the managers in upstream's errors.
const CPU: &str = "CPU";
const MEMORY: &str = "memory";

/// The directory of the checkpoints.
#[derive(Clone, Debug)]
pub struct StateFiles(PathBuf);

impl StateFiles {
    /// Checkpoints in this directory.
    pub fn new(directory: &Path) -> Self {
        Self(directory.to_path_buf())
    }

    /// The CPU manager's checkpoint, which has to be of this policy; empty if the file does not exist. Blocking.
    ///
    /// # Errors
    /// It cannot be used; texts as upstream's.
    pub fn cpu(&self, policy: &str) -> anyhow::Result<CpuState> {
        self.read(CPU, cpu::STATE_FILE, policy, "none", cpu::from_checkpoint)
    }

    /// The memory manager's checkpoint, which has to be of this policy; empty if the file does not exist. Blocking.
    ///
    /// # Errors
    /// It cannot be used; texts as upstream's.
    pub fn memory(&self, policy: &str) -> anyhow::Result<MemoryState> {
        let parse = memory::from_checkpoint;
        self.read(MEMORY, memory::STATE_FILE, policy, "None", parse)
    }

    fn read<T: Default>(
        &self,
        manager: &str,
        name: &str,
        policy: &str,
        none: &str,
        parse: fn(&str, &str) -> Result<T, String>,
    ) -> anyhow::Result<T> {
        let path = self.0.join(name);
        let state = match fs::read_to_string(&path) {
            Ok(text) => match parse(policy, &text) {
                // A checkpoint of the policy `none` is replaced.
                Err(_) if parse(none, &text).is_ok() => Ok(T::default()),
                state => state,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
            Err(error) => Err(error.to_string()),
        };
        state.map_err(|error| {
            anyhow::anyhow!(
                "could not restore state from checkpoint: {error}, please drain this node and delete the {manager} manager checkpoint file {path:?} before restarting Kubelet"
            )
        })
    }

    /// Writes checkpoints by file name.
    pub(super) async fn write(&self, files: BTreeMap<&'static str, String>) -> io::Result<()> {
        let directory = self.0.clone();
        let write = move || {
            files.into_iter().try_for_each(|(name, text)| {
                atomic_file::write_synced(
                    &directory.join(name),
                    text.as_bytes(),
                    atomic_file::PRIVATE,
                )
            })
        };
        run_file_io(write).await.map_err(io::Error::other)?
    }
}
