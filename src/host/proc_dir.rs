//! Information in `/proc/<pid>` about other processes, and their OOM score adjustment. Blocking.

use super::cgroup::ProcessCgroups;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::PathBuf;

/// Limit of a command line or an environment that is read, bytes.
const MAX_STRINGS: u64 = 4 << 20;

/// `/proc`, or a directory that stands in for it in tests.
#[derive(Clone, Debug)]
pub struct ProcDir(PathBuf);

impl Default for ProcDir {
    fn default() -> Self {
        Self("/proc".into())
    }
}

impl From<PathBuf> for ProcDir {
    fn from(directory: PathBuf) -> Self {
        Self(directory)
    }
}

impl ProcDir {
    fn file(&self, process: u32, name: &str) -> PathBuf {
        self.0.join(process.to_string()).join(name)
    }

    /// The cgroups of a process.
    ///
    /// # Errors
    /// The process has ended, or the file cannot be read.
    pub fn cgroups(&self, process: u32) -> io::Result<ProcessCgroups> {
        let text = fs::read_to_string(self.file(process, "cgroup"))?;
        Ok(ProcessCgroups::parse(&text))
    }

    /// Whether a process has no executable: a kernel thread, or one that has ended.
    pub fn is_without_program(&self, process: u32) -> bool {
        let program = fs::read_link(self.file(process, "exe"));
        program.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Whether a process is in the PID namespace of process 1.
    ///
    /// # Errors
    /// A namespace cannot be read.
    pub fn is_on_host(&self, process: u32) -> io::Result<bool> {
        let namespace = |process| fs::read_link(self.file(process, "ns/pid"));
        Ok(namespace(1)? == namespace(process)?)
    }

    /// The ids of all processes, in ascending order.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn processes(&self) -> io::Result<Vec<u32>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            ids.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        ids.sort_unstable();
        Ok(ids)
    }

    /// The command line of a process, with the name of its program; empty for a process without memory.
    ///
    /// # Errors
    /// The process has ended, or the file cannot be read.
    pub fn command_line(&self, process: u32) -> io::Result<Vec<String>> {
        self.strings(process, "cmdline")
    }

    /// The environment variables of a process for which `is_wanted` is true and which are not empty. The values may be
    /// secret.
    ///
    /// # Errors
    /// The process has ended, or the file cannot be read.
    pub fn variables(
        &self,
        process: u32,
        is_wanted: impl Fn(&str) -> bool,
    ) -> io::Result<BTreeMap<String, String>> {
        let all = self.strings(process, "environ")?;
        let set = all.iter().filter_map(|one| one.split_once('='));
        let set = set.filter(|(name, value)| !value.is_empty() && is_wanted(name));
        Ok(set.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Whether a process runs as root or as the user of this one.
    ///
    /// # Errors
    /// The process has ended, or a file cannot be read.
    pub fn is_of_root_or_own_user(&self, process: u32) -> io::Result<bool> {
        // The owner of the directory is no proof: a process that may not be dumped belongs to root there.
        let user = |name: &str| {
            let text = fs::read_to_string(self.0.join(name).join("status"))?;
            let line = text.lines().find_map(|line| line.strip_prefix("Uid:"));
            let user = line.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok());
            user.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "status has no user"))
        };
        let user_id: u32 = user(&process.to_string())?;
        Ok(user_id == 0 || user_id == user("self")?)
    }

    /// Strings that end with a zero byte.
    fn strings(&self, process: u32, name: &str) -> io::Result<Vec<String>> {
        let file = fs::File::open(self.file(process, name))?;
        let mut bytes = Vec::new();
        file.take(MAX_STRINGS).read_to_end(&mut bytes)?;
        let mut strings: Vec<_> = bytes
            .split(|byte| *byte == 0)
            .map(|part| String::from_utf8_lossy(part).into_owned())
            .collect();
        // After the last zero byte.
        strings.pop_if(|last| last.is_empty());
        Ok(strings)
    }

    /// The program of a process. ` (deleted)` is appended by the kernel if the file was removed or replaced.
    ///
    /// # Errors
    /// The process has ended or has no program, or this process may not read it.
    pub fn program(&self, process: u32) -> io::Result<PathBuf> {
        fs::read_link(self.file(process, "exe"))
    }

    /// The working directory of a process.
    ///
    /// # Errors
    /// The process has ended, or this process may not read it.
    pub fn directory(&self, process: u32) -> io::Result<PathBuf> {
        fs::read_link(self.file(process, "cwd"))
    }

    /// Whether a process is in the mount namespace of this one.
    ///
    /// # Errors
    /// A namespace cannot be read.
    pub fn has_own_mounts(&self, process: u32) -> io::Result<bool> {
        let own = fs::read_link(self.0.join("self/ns/mnt"))?;
        Ok(fs::read_link(self.file(process, "ns/mnt"))? == own)
    }

    /// Sets `oom_score_adj` of a process, unless it has this value.
    ///
    /// # Errors
    /// The kernel rejects the value.
    pub fn set_oom_score_adj(&self, process: u32, value: i32) -> io::Result<()> {
        let file = self.file(process, "oom_score_adj");
        let now = fs::read_to_string(&file)?;
        if now.trim() == value.to_string() {
            return Ok(());
        }
        fs::write(file, value.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_process_is_seen_with_its_program_namespace_and_score() {
        let directory = tempfile::tempdir().unwrap();
        let proc = ProcDir::from(directory.path().to_owned());
        for (process, program, namespace) in [(1, true, 7), (20, true, 7), (30, false, 8)] {
            let own = directory.path().join(process.to_string());
            fs::create_dir_all(own.join("ns")).unwrap();
            symlink(format!("pid:[{namespace}]"), own.join("ns/pid")).unwrap();
            fs::write(own.join("oom_score_adj"), "0\n").unwrap();
            if program {
                symlink("/bin/gone", own.join("exe")).unwrap();
            }
        }
        assert!(!proc.is_without_program(20) && proc.is_without_program(30));
        assert!(proc.is_without_program(40));
        assert!(proc.is_on_host(20).unwrap() && !proc.is_on_host(30).unwrap());
        assert!(proc.is_on_host(40).is_err() && proc.cgroups(40).is_err());
        proc.set_oom_score_adj(20, -999).unwrap();
        let score = directory.path().join("20/oom_score_adj");
        assert_eq!(fs::read_to_string(&score).unwrap(), "-999");
        assert!(proc.set_oom_score_adj(40, 0).is_err());
        let own = ProcDir::default();
        assert!(!own.is_without_program(std::process::id()));
        assert!(own.cgroups(std::process::id()).is_ok());
    }
}
