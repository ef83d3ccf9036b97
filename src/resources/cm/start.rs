//! Creates the node's cgroups from the configuration, and starts their tasks.

use super::driver::driver;
use super::resource_config::{NodeAmounts, PodRules};
use super::{
    CgroupDriver, CgroupMetrics, CgroupName, CgroupsConfig, ContainerManager, NodeCgroups,
    SystemContainers, SystemContainersConfig,
};
use crate::base::{Tasks, spawn_blocking};
use crate::host::cgroup::{CgroupPath, Cgroups};
use crate::host::{
    HostMachine, KernelTunableBehavior, ProcDir, Slices, proc, set_up_kernel_tunables,
};
use crate::resources::managers::ResourceManagers;
use crate::resources::{Deps, ResourceEnforcement};
use crate::state::events::ObjectRef;
use anyhow::Context as _;
use std::path::Path;

/// Upstream's warning at each start on cgroup v1.
const CGROUP_V1: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. \
    Please migrate to cgroup v2. More information at \
    https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";

/// Inputs for the cgroups of pods other than their configuration.
pub struct CgroupRules {
    /// How CPU and memory limits are enforced.
    pub enforcement: ResourceEnforcement,
    /// Whether the CPU manager assigns CPUs, so that the cgroup of all pods has no CPU list.
    pub assigns_cpus: bool,
    /// `oomScoreAdj` of the kubelet.
    pub oom_score_adj: i32,
}

/// Creates the node's cgroups and starts the task that maintains them.
///
/// # Errors
/// A configured cgroup cannot be used, or the runtime's cgroup driver is unknown.
pub async fn start(
    config: &CgroupsConfig,
    rules: CgroupRules,
    deps: &Deps,
    managers: &ResourceManagers,
    tasks: &mut Tasks,
) -> anyhow::Result<ContainerManager> {
    if !deps.machine.cgroup_v2 {
        let node = ObjectRef::node(&deps.node_name);
        deps.events.warning(&node, "CgroupV1", CGROUP_V1);
    }
    set_up_kernel(config, deps).await?;
    start_system_containers(config, rules.oom_score_adj, deps, tasks)?;
    if !config.per_qos {
        return Ok(ContainerManager::off());
    }
    let driver = driver(&deps.runtime, &deps.metrics, config.driver).await?;
    let node = NodeCgroups {
        slices: (driver == CgroupDriver::Systemd).then(|| Slices::new(deps.system.bus.clone())),
        ..node_cgroups(config, rules, deps)
    };
    let managers = managers.clone();
    let metrics = CgroupMetrics::register(&deps.metrics);
    let (events, active) = (deps.events.clone(), deps.active_pods.clone());
    let (v2, test_directory) = (deps.machine.cgroup_v2, deps.system.cgroups.clone());
    let make = move || {
        let root = CgroupName::of_cgroupfs(&node.root).path(driver)?;
        let cgroups = match test_directory {
            Some(directory) => Cgroups::in_directory(&directory, root, v2),
            None => Cgroups::below(root, v2)?,
        };
        let node = with_huge_pages(node, &cgroups);
        ContainerManager::start(node, cgroups, metrics, events, active, managers)
    };
    let manager = spawn_blocking(make).await?;
    let manager = manager.context("Failed to start ContainerManager")?;
    let all_sources_seen = deps.all_sources_seen.clone();
    tasks.spawn_until_shutdown("cgroups", manager.clone().run(all_sources_seen));
    Ok(manager)
}

/// What to do about kernel settings that differ from upstream's. Unlike upstream, they are changed only with
/// `cgroupsPerQOS` and `cgroupRoot: /`, because otherwise other programs of the machine may depend on them.
pub(super) fn kernel_behavior(config: &CgroupsConfig) -> KernelTunableBehavior {
    if config.protect_kernel_defaults {
        KernelTunableBehavior::Error
    } else if config.per_qos && config.root == "/" {
        KernelTunableBehavior::Modify
    } else {
        KernelTunableBehavior::Warn
    }
}

async fn set_up_kernel(config: &CgroupsConfig, deps: &Deps) -> anyhow::Result<()> {
    let behavior = match deps.system.cgroups {
        // A directory of a test in place of the machine's.
        Some(_) => KernelTunableBehavior::Warn,
        None => kernel_behavior(config),
    };
    let proc = deps.system.proc.clone();
    let set_up = move || set_up_kernel_tunables(&proc, behavior);
    let set_up = spawn_blocking(set_up).await?;
    set_up.context("Failed to start ContainerManager")
}

/// Moves this process into its cgroup (`kubeletCgroups`) early, because memory stays charged to the cgroup in which it
/// was allocated. On a failure, a task retries later and logs the error. Blocking.
pub fn enter_kubelet_cgroup(config: &CgroupsConfig, oom_score_adj: i32) {
    let Some(kubelet) = &config.kubelet else {
        return;
    };
    let v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let cgroups = Cgroups::below(CgroupPath::default(), v2);
    if let (Ok(path), Ok(cgroups)) = (CgroupPath::parse(kubelet), cgroups) {
        let settings = SystemContainersConfig { kubelet: Some(path), system: None, oom_score_adj };
        SystemContainers::new(settings, cgroups, ProcDir::default()).enter();
    }
}

/// Starts the task that keeps the kubelet and processes of the root cgroup in their configured cgroups. Nothing is
/// moved if a test has replaced the cgroup directory but not `/proc`.
fn start_system_containers(
    config: &CgroupsConfig,
    oom_score_adj: i32,
    deps: &Deps,
    tasks: &mut Tasks,
) -> anyhow::Result<()> {
    let (kubelet, system) = (&config.kubelet, &config.system);
    let v2 = deps.machine.cgroup_v2;
    let real_processes = deps.system.proc == Path::new("/proc");
    if kubelet.is_none() {
        log_if_cgroup_unknown(v2);
    }
    if deps.system.cgroups.is_some() && real_processes {
        return Ok(());
    }
    let path = |path: &Option<String>| path.as_deref().map(CgroupPath::parse).transpose();
    let settings = SystemContainersConfig {
        kubelet: path(kubelet).context("kubeletCgroups")?,
        system: path(system).context("systemCgroups")?,
        oom_score_adj,
    };
    let top = CgroupPath::default();
    let cgroups = match &deps.system.cgroups {
        Some(directory) => Cgroups::in_directory(directory, top, v2),
        None => match Cgroups::below(top, v2) {
            // Nothing has to be moved, and without `cgroupsPerQOS` the kubelet needs no cgroups.
            Err(_) if kubelet.is_none() && system.is_none() => return Ok(()),
            found => found.context("Failed to start ContainerManager")?,
        },
    };
    let proc = ProcDir::from(deps.system.proc.clone());
    let containers = SystemContainers::new(settings, cgroups, proc);
    tasks.spawn_until_shutdown("system_containers", containers.run());
    Ok(())
}

fn log_if_cgroup_unknown(v2: bool) {
    let cgroups = ProcDir::default().cgroups(std::process::id());
    let found = cgroups.map_err(anyhow::Error::from);
    let found = found.and_then(|cgroups| Ok(cgroups.accounted(v2)?));
    if let Err(error) = found {
        tracing::info!(
            err = %error,
            "Failed to get the kubelet's cgroup. Kubelet system container metrics may be missing"
        );
    }
}

/// Removes the limits of huge pages if the controller is missing.
fn with_huge_pages(mut node: NodeCgroups, cgroups: &Cgroups) -> NodeCgroups {
    if !cgroups.has("hugetlb") {
        node.rules.page_sizes.clear();
    }
    node
}

fn node_cgroups(config: &CgroupsConfig, rules: CgroupRules, deps: &Deps) -> NodeCgroups {
    let machine = &deps.machine;
    let allocatable = allocatable(config, machine);
    let memory_qos = config.memory_qos && machine.cgroup_v2;
    let memory = allocatable.memory.unwrap_or_default();
    let percent = config.qos_reserved_percent;
    NodeCgroups {
        node_name: deps.node_name.clone(),
        root: config.root.clone(),
        slices: None,
        pods: if config.enforce_pods { allocatable } else { capacity(machine) },
        cpus: if rules.assigns_cpus { String::new() } else { machine.online_cpus.clone() },
        rules: PodRules {
            enforcement: rules.enforcement,
            pids: config.pod_pids,
            page_sizes: machine.hugepage_sizes.clone(),
            protect_memory: memory_qos && config.tiered_reservation,
        },
        memory_qos,
        qos_reserved: percent.map(|percent| (memory, percent)),
        reserved: config.reserved_cgroups.clone(),
    }
}

fn capacity(machine: &HostMachine) -> NodeAmounts {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let (_, max_threads) = proc::thread_counts();
    NodeAmounts {
        milli_cpu: Some(i64::from(machine.cpus).saturating_mul(1000)),
        memory: Some(number(machine.memory_bytes)),
        pids: max_threads.map(number),
    }
}

/// Capacity minus reservations; eviction thresholds are not subtracted.
pub fn allocatable(config: &CgroupsConfig, machine: &HostMachine) -> NodeAmounts {
    let [system, kube] = &config.reserved_amounts;
    capacity(machine).without(&[system, kube])
}
