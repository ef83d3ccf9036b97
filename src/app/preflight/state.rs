//! Checks the state that the other kubelet has left below its root directory. Blocking, and only reads.

use crate::app::manager_check::manager_problems;
use crate::app::{Finding, settings};
use crate::base::error_chain;
use crate::config::KubeletConfig;
use crate::host::HostMachine;
use crate::images;
use crate::model::PodUid;
use crate::resources::allocation::{ACTUATED_FILE, ALLOCATED_FILE, Allocations};
use crate::resources::{cpu, devices, dra, memory};
use crate::state::pod_state_store::{PodRecord, read_pod_records};
use crate::volumes::csi::mount_table::MountTable;
use crate::volumes::csi::recovery;
use crate::volumes::{HostMounter, KubeletRoot, Mounter as _};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::{fs, io};

const CHECKPOINTS: &str = "checkpoints";
/// The directory with the sockets and the checkpoint of device plugins.
const DEVICE_PLUGINS: &str = "device-plugins";

/// What the other kubelet has left.
pub(super) struct LeftState {
    pub(super) allocations: Allocations,
    /// Records of this kubelet, if it ran here before.
    pub(super) records: HashMap<PodUid, PodRecord>,
    /// What is wrong with volumes of pods.
    pub(super) volumes: BTreeMap<PodUid, Vec<String>>,
    pub(super) findings: Vec<Finding>,
}

/// Reads everything.
pub(super) fn read(config: &KubeletConfig, machine: &HostMachine) -> LeftState {
    let root = &config.root_dir;
    let mut findings = unreadable(root);
    let mut state = LeftState {
        allocations: Allocations::default(),
        records: HashMap::new(),
        volumes: BTreeMap::new(),
        findings: Vec::new(),
    };
    // A file that may not be read says nothing about its content.
    if findings.is_empty() {
        match Allocations::read(root) {
            Ok(allocations) => state.allocations = allocations,
            Err(error) => findings.push(Finding::error(CHECKPOINTS, error_chain(error.as_ref()))),
        }
        let problems = manager_problems(config, machine).into_iter();
        findings.extend(problems.map(|why| Finding::error(CHECKPOINTS, why)));
        for (checked, effect) in [
            (
                devices::check_device_checkpoint(root),
                "which containers have which devices is not known",
            ),
            (dra::check_claim_checkpoint(root), "which resource claims are prepared is not known"),
        ] {
            let damaged = checked.err();
            findings.extend(
                damaged.map(|why| Finding::unknown(CHECKPOINTS, format!("{why}; {effect}"))),
            );
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECKPOINTS, "can be used"));
    }
    match read_pod_records(&settings::state(config).pod_state_dir) {
        Ok(records) => state.records = records,
        Err(error) => findings.push(Finding::unknown("records", error_chain(error.as_ref()))),
    }
    if let Err(error) = images::check_credential_providers(&config.images) {
        let why = error_chain(error.as_ref());
        findings.push(Finding::error("credential providers", why));
    }
    findings.extend(csi_volumes(root, &mut state.volumes));
    findings.extend(plugins(root));
    state.findings = findings;
    state
}

/// The checkpoints that exist and cannot be opened.
fn unreadable(root: &Path) -> Vec<Finding> {
    let names = [
        PathBuf::from(ALLOCATED_FILE),
        ACTUATED_FILE.into(),
        cpu::STATE_FILE.into(),
        memory::STATE_FILE.into(),
        dra::CHECKPOINT.into(),
        Path::new(DEVICE_PLUGINS).join(devices::CHECKPOINT),
    ];
    let paths = [root.to_owned()].into_iter().chain(names.into_iter().map(|name| root.join(name)));
    paths
        .filter_map(|path| {
            let opened = if path == *root {
                fs::read_dir(&path).map(drop)
            } else {
                fs::File::open(&path).map(drop)
            };
            let error = opened.err()?;
            let is_missing = error.kind() == io::ErrorKind::NotFound && path != *root;
            (!is_missing).then(|| {
                let message = format!("{}: {error}", path.display());
                Finding::unknown(CHECKPOINTS, message)
            })
        })
        .collect()
}

/// The CSI volumes that this kubelet would take over, and those that it could not undo.
fn csi_volumes(root: &Path, of_pods: &mut BTreeMap<PodUid, Vec<String>>) -> Vec<Finding> {
    let root = match KubeletRoot::existing(root) {
        Ok(root) => root,
        Err(error) => {
            let message = format!("{}: {error}", root.display());
            return vec![Finding::unknown("CSI volumes", message)];
        }
    };
    let mounts = HostMounter.list();
    if let Err(error) = &mounts {
        return vec![Finding::unknown("CSI volumes", format!("mounts: {error}"))];
    }
    let found = recovery::recover(&root, &MountTable::new(mounts));
    let mut findings = Vec::new();
    for unknown in &found.unknown {
        let message = format!(
            "{}: {}; it stays, and this kubelet cannot unmount it",
            unknown.path.display(),
            unknown.why
        );
        match &unknown.pod {
            Some(pod) => of_pods.entry(pod.clone()).or_default().push(message),
            None => findings.push(Finding::error("CSI volumes", message)),
        }
    }
    if !found.volumes.is_empty() {
        let message = format!("{} are taken over as they are", found.volumes.len());
        findings.push(Finding::ok("CSI volumes", message));
    }
    findings
}

/// The sockets of plugins, which register again with a kubelet that starts.
fn plugins(root: &Path) -> Option<Finding> {
    let sockets = |directory: &str| {
        let entries = fs::read_dir(root.join(directory)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let names = names.filter(|name| name.ends_with(".sock") && name != "kubelet.sock");
        names.collect::<Vec<_>>()
    };
    let mut names = [sockets(DEVICE_PLUGINS), sockets("plugins_registry")].concat();
    names.sort();
    let message = format!("{} register again", names.join(", "));
    (!names.is_empty()).then(|| Finding::ok("plugins", message))
}
