//! The kernel settings that the kubelet requires (upstream's `setupKernelTunables`). Blocking.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

/// Files below `/proc/sys`, and their required values: memory overcommit is on and the OOM killer is used, a panicked
/// kernel reboots after ten seconds, and root may have a key for each of a million containers.
const TUNABLES: [(&str, i64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

/// What to do about a setting with another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelTunableBehavior {
    /// Log it.
    Warn,
    /// Fail.
    Error,
    /// Change it.
    Modify,
}

/// A setting with another value than required.
#[derive(Debug)]
struct InvalidTunable {
    file: PathBuf,
    flag: &'static str,
    expected: i64,
    actual: io::Result<i64>,
}

impl fmt::Display for InvalidTunable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (flag, expected) = (self.flag, self.expected);
        write!(f, "invalid kernel flag: {flag}, expected value: {expected}, ")?;
        match &self.actual {
            Ok(actual) => write!(f, "actual value: {actual}"),
            Err(error) => write!(f, "which cannot be read: {error}"),
        }
    }
}

/// The settings below `proc` (`/proc`) with other values.
fn invalid(proc: &Path) -> Vec<InvalidTunable> {
    let all = TUNABLES.into_iter().map(|(flag, expected)| {
        let file = proc.join("sys").join(flag);
        let actual = fs::read_to_string(&file).and_then(|text| {
            let number = text.trim().parse();
            number.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        });
        InvalidTunable { file, flag, expected, actual }
    });
    all.filter(|one| !matches!(one.actual, Ok(actual) if actual == one.expected)).collect()
}

/// Logs, rejects or changes settings with other values. A failure to change one is logged.
///
/// # Errors
/// With [`KernelTunableBehavior::Error`]: a setting has another value.
pub fn set_up_kernel_tunables(proc: &Path, behavior: KernelTunableBehavior) -> anyhow::Result<()> {
    let invalid = invalid(proc);
    if behavior == KernelTunableBehavior::Error {
        let errors: Vec<String> = invalid.iter().map(ToString::to_string).collect();
        anyhow::ensure!(errors.is_empty(), "{}", errors.join("; "));
    }
    for one in invalid {
        let (flag, expected) = (one.flag, one.expected);
        if behavior == KernelTunableBehavior::Warn {
            tracing::debug!(err = %one, "Invalid kernel flag");
        } else if let Err(error) = fs::write(&one.file, expected.to_string()) {
            tracing::warn!(flag, expected, err = %error, "Updating kernel flag failed");
        } else {
            tracing::info!(flag, expected, err = %one, "Updated kernel flag");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use KernelTunableBehavior::{Error, Modify, Warn};

    /// Files of a machine with this setting and otherwise the right ones.
    fn machine(directory: &Path, overcommit: &str) {
        for (flag, _) in TUNABLES {
            let file = directory.join("sys").join(flag);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
        }
        let write = |flag, text| fs::write(directory.join("sys").join(flag), text).unwrap();
        write("vm/overcommit_memory", overcommit);
        write("vm/panic_on_oom", "0\n");
        write("kernel/panic", "10\n");
        write("kernel/panic_on_oops", "1\n");
        write("kernel/keys/root_maxkeys", "1000000\n");
        write("kernel/keys/root_maxbytes", "25000000\n");
    }

    #[test]
    fn kernel_settings_are_changed_unless_the_defaults_are_protected() {
        let wrong = "invalid kernel flag: vm/overcommit_memory, expected value: 1, actual value: 0";
        let unreadable = "invalid kernel flag: vm/overcommit_memory, expected value: 1, \
            which cannot be read: invalid digit found in string";
        let rows = [
            (Warn, "0\n", "", "0\n"),
            (Error, "0\n", wrong, "0\n"),
            (Error, "x\n", unreadable, "x\n"),
            (Modify, "0\n", "", "1"),
            (Modify, "x\n", "", "1"),
            // What is right is not written.
            (Error, "1\n", "", "1\n"),
            (Modify, "1\n", "", "1\n"),
        ];
        for (behavior, before, error, after) in rows {
            let directory = tempfile::tempdir().unwrap();
            machine(directory.path(), before);
            let result = set_up_kernel_tunables(directory.path(), behavior);
            let text = result.map_or_else(|error| error.to_string(), |()| String::new());
            let found = fs::read_to_string(directory.path().join("sys/vm/overcommit_memory"));
            assert_eq!(
                (text.as_str(), found.unwrap().as_str()),
                (error, after),
                "{behavior:?} {before:?}"
            );
        }
    }

    #[test]
    fn a_kernel_setting_that_cannot_be_changed_keeps_no_kubelet_from_starting() {
        let directory = tempfile::tempdir().unwrap();
        set_up_kernel_tunables(directory.path(), Modify).unwrap();
        let refused = set_up_kernel_tunables(directory.path(), Error).unwrap_err();
        assert!(refused.to_string().contains("kernel/panic_on_oops"));
    }
}
