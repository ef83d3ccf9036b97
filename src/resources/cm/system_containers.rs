//! Moves the kubelet, and processes of the root cgroup, into their configured cgroups.

use super::placement::{self, HostProcess};
use crate::base::{error_chain, spawn_blocking};
use crate::host::ProcDir;
use crate::host::cgroup::{CgroupPath, Cgroups};
use anyhow::Context as _;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Interval of passes if a cgroup is configured.
const ENSURE_PERIOD: Duration = Duration::from_secs(60);
/// Interval of passes that only set the kubelet's OOM score.
const SCORE_PERIOD: Duration = Duration::from_secs(5 * 60);
/// Maximum number of times that one pass lists the processes, because they may fork while they are moved.
const MAX_LISTINGS_PER_PASS: usize = 11;

/// Configuration of the cgroups of processes other than pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemContainersConfig {
    /// `kubeletCgroups`: the cgroup of the kubelet.
    pub kubelet: Option<CgroupPath>,
    /// `systemCgroups`: the cgroup for processes of the root cgroup.
    pub system: Option<CgroupPath>,
    /// `oomScoreAdj` of the kubelet.
    pub oom_score_adj: i32,
}

/// The cgroups of the kubelet and of the system (upstream's `systemContainers`).
#[derive(Clone, Debug)]
pub struct SystemContainers {
    config: SystemContainersConfig,
    /// Paths are relative to the root of the hierarchy, not to `cgroupRoot`.
    cgroups: Cgroups,
    proc: ProcDir,
}

impl SystemContainers {
    /// `cgroups` is the hierarchy from the root of the machine.
    pub fn new(config: SystemContainersConfig, cgroups: Cgroups, proc: ProcDir) -> Self {
        Self { config, cgroups, proc }
    }

    /// Moves the kubelet. Ignores errors: the task retries and logs them. Blocking.
    pub fn enter(&self) {
        if let Err(error) = self.ensure_kubelet() {
            tracing::debug!(err = %error_chain(error.as_ref()), "The kubelet is not in its cgroup yet");
        }
    }

    /// Moves processes periodically, without an end.
    pub async fn run(self) {
        let has_configured_cgroups = self.config.kubelet.is_some() || self.config.system.is_some();
        let period = if has_configured_cgroups { ENSURE_PERIOD } else { SCORE_PERIOD };
        let containers = Arc::new(self);
        let mut reported = [None, None];
        loop {
            let pass = containers.clone();
            let ensured = spawn_blocking(move || pass.ensure()).await;
            if let Ok(ensured) = ensured {
                report(&mut reported, ensured);
            }
            tokio::time::sleep(period).await;
        }
    }

    /// Runs one pass. The kubelet is moved first, so that it is not moved with the processes of the system.
    fn ensure(&self) -> [anyhow::Result<()>; 2] {
        let kubelet = self.ensure_kubelet();
        let system = self.config.system.as_ref();
        [kubelet, system.map_or(Ok(()), |path| self.ensure_system(path))]
    }

    /// Moves the kubelet into its cgroup and sets its OOM score; does neither in a PID namespace other than the host's.
    fn ensure_kubelet(&self) -> anyhow::Result<()> {
        let pid = std::process::id();
        let on_host = self.proc.is_on_host(pid);
        if !on_host.context("failed to find pid namespace of the kubelet")? {
            tracing::debug!(pid, "PID is not running in the host namespace");
            return Ok(());
        }
        let wanted = self.config.kubelet.as_ref();
        let moved = wanted.map_or(Ok(()), |path| self.move_kubelet(pid, path));
        let value = self.config.oom_score_adj;
        let scored = match self.proc.set_oom_score_adj(pid, value) {
            // Already logged at start.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            scored => {
                scored.with_context(|| format!("failed to apply oom score {value} to PID {pid}"))
            }
        };
        moved.and(scored)
    }

    fn move_kubelet(&self, pid: u32, path: &CgroupPath) -> anyhow::Result<()> {
        let now = self.proc.cgroups(pid);
        let now = now.with_context(|| format!("failed to find container of PID {pid}"))?;
        if placement::is_in(&now, path, &self.cgroups.joined()) {
            return Ok(());
        }
        self.create(path)?;
        let joined = self.cgroups.join(path, pid);
        joined.with_context(|| format!("failed to move PID {pid} to {path}"))?;
        tracing::info!(cgroupName = %path, "Moved the kubelet into its cgroup");
        Ok(())
    }

    fn create(&self, path: &CgroupPath) -> anyhow::Result<()> {
        if *path != CgroupPath::default() {
            let made = self.cgroups.create(path);
            made.with_context(|| format!("failed to create cgroup {path}"))?;
        }
        Ok(())
    }

    /// Moves processes of the root cgroup into that of the system. A process that the kernel does not move is retried
    /// in the next pass.
    fn ensure_system(&self, system: &CgroupPath) -> anyhow::Result<()> {
        self.create(system)?;
        let (mut tried, mut moved, mut failed) = (BTreeSet::new(), 0_usize, None);
        for _ in 0..MAX_LISTINGS_PER_PASS {
            let listed = self.cgroups.pids(&CgroupPath::default());
            let mut listed = listed.context("failed to list PIDs for root")?;
            listed.retain(|process| !tried.contains(process));
            let found: Vec<HostProcess> =
                listed.into_iter().filter_map(|process| self.process(process)).collect();
            let ids = placement::processes_to_move(&found, system, &self.cgroups.joined());
            if ids.is_empty() {
                break;
            }
            for process in ids {
                tried.insert(process);
                match self.cgroups.join(system, process) {
                    Ok(joined) => moved += usize::from(joined),
                    Err(error) => failed = Some((process, error)),
                }
            }
        }
        if moved > 0 {
            tracing::info!(cgroupName = %system, processes = moved, "Moved non-kernel processes");
        }
        let Some((process, error)) = failed else {
            return Ok(());
        };
        let text = format!("failed to move PID {process} into the system container {system}");
        Err(error).context(text)
    }

    /// Reads a process; `None` if it has ended.
    fn process(&self, id: u32) -> Option<HostProcess> {
        Some(HostProcess {
            id,
            is_kernel: self.proc.is_without_program(id),
            cgroups: self.proc.cgroups(id).ok()?,
        })
    }
}

/// Logs an error, unless it equals that of the last pass.
fn report(reported: &mut [Option<String>; 2], ensured: [anyhow::Result<()>; 2]) {
    for ((name, reported), ensured) in ["kubelet", "system"].into_iter().zip(reported).zip(ensured)
    {
        let failed = ensured.err().map(|error| error_chain(error.as_ref()));
        if let Some(error) = failed.as_ref().filter(|_| *reported != failed) {
            tracing::warn!(systemContainer = name, err = %error, "Failed to ensure state");
        }
        *reported = failed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    const CONTROLLERS: [&str; 7] =
        ["cpu", "cpuacct", "cpuset", "hugetlb", "memory", "pids", "systemd"];

    fn path(text: &str) -> Option<CgroupPath> {
        Some(CgroupPath::parse(text).unwrap())
    }

    /// A fake process; the kernel's have no program.
    fn process(root: &Path, id: u32, cgroup: &str, program: bool) {
        let own = root.join("proc").join(id.to_string());
        fs::create_dir_all(own.join("ns")).unwrap();
        let _ = symlink("pid:[1]", own.join("ns/pid"));
        fs::write(own.join("oom_score_adj"), "0\n").unwrap();
        let mut text = format!("0::{cgroup}\n");
        for name in CONTROLLERS {
            text.push_str(&format!("1:{name}:{cgroup}\n"));
        }
        fs::write(own.join("cgroup"), text).unwrap();
        if program {
            let _ = symlink("/bin/program", own.join("exe"));
        }
    }

    fn containers(root: &Path, v2: bool, config: SystemContainersConfig) -> SystemContainers {
        let directory = root.join("cgroup");
        for name in CONTROLLERS.iter().filter(|_| !v2) {
            fs::create_dir_all(directory.join(name)).unwrap();
        }
        fs::create_dir_all(&directory).unwrap();
        let cgroups = Cgroups::in_directory(&directory, CgroupPath::default(), v2);
        SystemContainers::new(config, cgroups, ProcDir::from(root.join("proc")))
    }

    fn procs(root: &Path, v2: bool, path: &str) -> Vec<String> {
        let hierarchies: Vec<&str> = if v2 { vec![""] } else { CONTROLLERS.to_vec() };
        let read = |name: &str| {
            let file = root.join("cgroup").join(name).join(path);
            fs::read_to_string(file.join("cgroup.procs")).unwrap_or_default()
        };
        hierarchies.into_iter().map(read).collect()
    }

    #[test]
    fn the_kubelet_goes_into_its_cgroup_once_and_again_when_it_is_found_elsewhere() {
        for v2 in [false, true] {
            let root = tempfile::tempdir().unwrap();
            let root = root.path();
            let config = SystemContainersConfig {
                kubelet: path("/kube/kubelet"),
                oom_score_adj: -999,
                ..SystemContainersConfig::default()
            };
            let own = std::process::id();
            process(root, 1, "/", true);
            process(root, own, "/", true);
            let containers = containers(root, v2, config);
            let [kubelet, _] = containers.ensure();
            kubelet.unwrap();
            let listed = |times: usize| {
                let found = procs(root, v2, "kube/kubelet");
                let expected = format!("{own}\n").repeat(times);
                assert!(found.iter().all(|text| *text == expected), "{found:?}");
            };
            listed(1);
            let score = root.join(format!("proc/{own}/oom_score_adj"));
            assert_eq!(fs::read_to_string(&score).unwrap(), "-999");
            process(root, own, "/kube/kubelet", true);
            containers.ensure_kubelet().unwrap();
            listed(1);
            process(root, own, "/elsewhere", true);
            containers.ensure_kubelet().unwrap();
            listed(2);
        }
    }

    #[test]
    fn a_kubelet_in_a_container_is_not_moved_and_one_without_proc_says_why() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let own = std::process::id();
        let config =
            SystemContainersConfig { kubelet: path("/k"), ..SystemContainersConfig::default() };
        let containers = containers(root, true, config);
        let error = format!("{:#}", containers.ensure_kubelet().unwrap_err());
        assert!(error.starts_with("failed to find pid namespace"), "{error}");
        process(root, 1, "/", true);
        process(root, own, "/", true);
        fs::remove_file(root.join("proc/1/ns/pid")).unwrap();
        symlink("pid:[2]", root.join("proc/1/ns/pid")).unwrap();
        containers.ensure_kubelet().unwrap();
        assert!(!root.join("cgroup/k").exists());
    }

    #[test]
    fn processes_of_the_root_go_into_the_systems_cgroup_and_others_stay() {
        for v2 in [false, true] {
            let root = tempfile::tempdir().unwrap();
            let root = root.path();
            let config = SystemContainersConfig {
                system: path("/system"),
                ..SystemContainersConfig::default()
            };
            let containers = containers(root, v2, config);
            process(root, 1, "/", true);
            process(root, 2, "/", false);
            process(root, 300, "/", true);
            process(root, 301, "/user", true);
            process(root, 302, "/", true);
            // 303 ends after it was listed.
            let list = "1\n2\n300\n301\n302\n303\n0\n";
            let at = root.join("cgroup").join(if v2 { "" } else { "cpu" });
            fs::write(at.join("cgroup.procs"), list).unwrap();
            containers.ensure_system(&path("/system").unwrap()).unwrap();
            let found = procs(root, v2, "system");
            assert!(found.iter().all(|text| text == "300\n302\n"), "{found:?}");
        }
    }

    #[test]
    fn a_cgroup_that_cannot_be_made_is_an_error_with_its_name() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let own = std::process::id();
        let config = SystemContainersConfig {
            kubelet: path("/taken/kubelet"),
            system: path("/taken/system"),
            oom_score_adj: -5,
        };
        process(root, 1, "/", true);
        process(root, own, "/", true);
        let containers = containers(root, true, config);
        fs::write(root.join("cgroup/taken"), "").unwrap();
        let [kubelet, system] = containers.ensure();
        let kubelet = format!("{:#}", kubelet.unwrap_err());
        let text = "failed to create cgroup /taken/kubelet: cannot create";
        assert!(kubelet.starts_with(text), "{kubelet}");
        assert!(format!("{:#}", system.unwrap_err()).contains("/taken/system"));
        let score = root.join(format!("proc/{own}/oom_score_adj"));
        assert_eq!(fs::read_to_string(score).unwrap(), "-5", "it does not depend on the move");
    }
}
