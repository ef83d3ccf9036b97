//! The drivers of flexVolumes: executables in directories of the node.
//!
//! A driver is looked for when a volume needs it, so one that is installed, replaced or removed is seen at the next attempt.

use super::protocol::{Answer, CallError, Capabilities, DriverName, read_answer};
use crate::base::run_file_io;
use crate::host::program::Program;
use crate::volumes::Mounter;
use crate::volumes::kinds::programs;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};
use tokio_util::sync::CancellationToken;

/// Timeout of calls that only change the node. Upstream has none.
const SHORT_LIMIT: Duration = Duration::from_secs(2 * 60);
/// Timeout of calls that may wait for the storage, or format it.
const LONG_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Maximum size of an answer in bytes.
const MAX_ANSWER: u64 = 64 * 1024;

/// Distinguishes executables: device, inode, size, and the times of the last changes in nanoseconds.
type ExecutableIdentity = (u64, u64, u64, i64, i64);

/// A driver that has answered `init`.
#[derive(Debug)]
pub(super) struct FlexDriver {
    pub(super) name: DriverName,
    pub(super) capabilities: Capabilities,
    path: PathBuf,
    identity: ExecutableIdentity,
    /// The calls that it leaves to the kubelet.
    not_supported: Mutex<BTreeSet<&'static str>>,
}

/// The drivers that have answered `init`.
pub(in crate::volumes) struct FlexDrivers {
    directory: PathBuf,
    mounter: Arc<dyn Mounter>,
    known: Mutex<BTreeMap<DriverName, Arc<FlexDriver>>>,
}

impl FlexDrivers {
    /// Drivers are below this directory (`volumePluginDir`).
    pub(in crate::volumes) fn new(directory: PathBuf, mounter: Arc<dyn Mounter>) -> Self {
        Self { directory, mounter, known: Mutex::default() }
    }

    /// The driver of this name; `None` if it is not installed.
    ///
    /// # Errors
    /// It cannot be read, or `init` failed.
    pub(super) async fn get(&self, name: &DriverName) -> Result<Option<Arc<FlexDriver>>, String> {
        let path = self.directory.join(name.directory()).join(name.executable());
        let read = path.clone();
        let found = run_file_io(move || fs::metadata(read)).await;
        let metadata = match found.map_err(|error| error.to_string())? {
            Ok(metadata) if metadata.is_file() => metadata,
            Ok(_) => return Err(format!("{} is not a file", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
        };
        let nanos = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000) + nanos;
        let identity = (
            metadata.dev(),
            metadata.ino(),
            metadata.size(),
            nanos(metadata.mtime(), metadata.mtime_nsec()),
            nanos(metadata.ctime(), metadata.ctime_nsec()),
        );
        let known = self.known.lock().get(name).cloned();
        if let Some(known) = known.filter(|known| known.identity == identity) {
            return Ok(Some(known));
        }
        let mut driver = FlexDriver {
            name: name.clone(),
            capabilities: Capabilities::default(),
            path,
            identity,
            not_supported: Mutex::default(),
        };
        let answer = self.call(&driver, "init", &[], &CancellationToken::new()).await;
        driver.capabilities = match answer {
            Ok(answer) => answer.capabilities,
            Err(CallError::NotSupported) => return Err("init command is not supported".to_owned()),
            Err(CallError::Failed(why)) => return Err(why),
        };
        let driver = Arc::new(driver);
        tracing::info!(driver = name.as_str(), "Initialized flexVolume driver");
        self.known.lock().insert(name.clone(), driver.clone());
        Ok(Some(driver))
    }

    /// Calls a driver. The call ends early if `ended` fires. Its arguments may have secrets, and are not shown.
    pub(super) async fn call(
        &self,
        driver: &FlexDriver,
        call: &'static str,
        args: &[&str],
        ended: &CancellationToken,
    ) -> Result<Answer, CallError> {
        if driver.not_supported.lock().contains(call) {
            return Err(CallError::NotSupported);
        }
        let limit = match call {
            "init" | "unmount" => SHORT_LIMIT,
            _ => LONG_LIMIT,
        };
        let all = [call].into_iter().chain(args.iter().copied());
        let all: Vec<_> = all.map(str::to_owned).collect();
        let program = Program {
            ended: ended.clone(),
            max_output: MAX_ANSWER,
            ..Program::new(&driver.path.to_string_lossy(), &all, limit)
        };
        let end = self.mounter.execute(program).await;
        let end = end.map_err(|error| {
            let why = programs::not_run(driver.name.as_str(), &error);
            CallError::Failed(format!("{call} command failed: {why}"))
        })?;
        let answer = read_answer(call, &end);
        if answer == Err(CallError::NotSupported) {
            driver.not_supported.lock().insert(call);
        }
        answer
    }
}
