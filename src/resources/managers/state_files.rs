//! The checkpoints of the managers, in the kubelet's directory.

use super::super::{
    cpu::{self, CpuState},
    memory::{self, MemoryState},
};
use crate::base::{atomic_file, with_own_files};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// The names of the managers in upstream's errors.
const CPU: &str = "CPU";
const MEMORY: &str = "memory";

/// The directory with the files.
#[derive(Clone, Debug)]
pub struct StateFiles(PathBuf);

impl StateFiles {
    /// Files in this directory.
    pub fn new(directory: &Path) -> Self {
        Self(directory.to_path_buf())
    }

    /// The state of the CPU manager, which has to be of this policy; empty without a file. Blocking.
    ///
    /// # Errors
    /// It cannot be used; texts as upstream's.
    pub fn cpu(&self, policy: &str) -> anyhow::Result<CpuState> {
        self.read(CPU, cpu::STATE_FILE, policy, "none", cpu::from_checkpoint)
    }

    /// The state of the memory manager, which has to be of this policy; empty without a file. Blocking.
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
                // A file of the policy without management is replaced.
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

    /// Writes files by their names.
    pub(super) async fn write(&self, files: BTreeMap<&'static str, String>) -> io::Result<()> {
        let directory = self.0.clone();
        let write = move || {
            files.into_iter().try_for_each(|(name, text)| {
                atomic_file::write_durable(&directory.join(name), text.as_bytes())
            })
        };
        with_own_files(write).await.map_err(io::Error::other)?
    }
}
