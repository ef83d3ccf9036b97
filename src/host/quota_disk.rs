//! File systems with project quotas, for tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop-mounted file system of this size in MiB; unmounted when dropped.
pub(crate) struct QuotaDisk {
    pub(crate) path: PathBuf,
    _directory: tempfile::TempDir,
}

impl QuotaDisk {
    /// ext4 and XFS. File systems that this machine cannot create or mount are skipped with a warning, because its
    /// kernel may lack their quotas. `hack/quota-test.sh` runs a kernel with them.
    pub(crate) fn all(mebibytes: u64) -> impl Iterator<Item = Self> {
        let ext4 = ["mke2fs", "-q", "-t", "ext4", "-O", "quota,project", "-i", "1024"];
        let kinds: [&[&str]; 2] = [&ext4, &["mkfs.xfs", "-q"]];
        let made = kinds.map(|make| match Self::new(make, mebibytes) {
            Ok(disk) => Some(disk),
            Err(error) => {
                eprintln!("SKIPPED, no project quotas by {}: {error}", make[0]);
                None
            }
        });
        made.into_iter().flatten()
    }

    fn new(make: &[&str], mebibytes: u64) -> Result<Self, String> {
        let directory = tempfile::tempdir().unwrap();
        let (image, path) = (directory.path().join("image"), directory.path().join("root"));
        let file = std::fs::File::create_new(&image).unwrap();
        file.set_len(mebibytes << 20).unwrap();
        std::fs::create_dir(&path).unwrap();
        run(make, &[&image])?;
        run(&["mount", "-o", "loop,prjquota"], &[&image, &path])?;
        Ok(Self { path, _directory: directory })
    }
}

impl Drop for QuotaDisk {
    fn drop(&mut self) {
        run(&["umount"], &[&self.path]).unwrap();
    }
}

fn run(command: &[&str], paths: &[&Path]) -> Result<(), String> {
    let (program, args) = command.split_first().unwrap();
    let output = Command::new(program).args(args).args(paths).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}
