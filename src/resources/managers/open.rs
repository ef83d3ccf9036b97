//! Opens the CPU, memory and topology managers with the state of an earlier kubelet.

use super::{ManagerMetrics, ResourceManagerDeps, ResourceManagers, StateFiles};
use crate::base::spawn_blocking;
use crate::host::MachineTopology;
use crate::resources::Deps;
use crate::resources::cpu::{self, CpuManager, CpuOptions, CpuSet, CpuTopology};
use crate::resources::memory::{self, MemoryManager, NodeReservation, ReservedMemory};
use crate::resources::topology::{TopologyManager, TopologyOptions, TopologyPolicy, TopologyScope};
use anyhow::Context as _;
use std::path::Path;
use std::time::Duration;

/// Configuration of the managers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManagersConfig {
    /// Options of the static policy of the CPU manager; `None` for the policy `none`.
    pub cpu: Option<CpuOptions>,
    /// `reservedSystemCPUs`.
    pub reserved_cpus: CpuSet,
    /// Delay before a retry after a failed update of a container's CPUs (`cpuManagerReconcilePeriod`).
    pub retry_after: Duration,
    /// Whether containers with exclusive CPUs have no CPU quota.
    pub no_cpu_quota_with_exclusive_cpus: bool,
    /// `reservedMemory`, for the policy `Static` of the memory manager; `None` for the policy `None`.
    pub memory: Option<ReservedMemory>,
    /// The policy of the topology manager.
    pub topology_policy: TopologyPolicy,
    /// `topologyManagerScope`: whether containers or whole pods are aligned.
    pub topology_scope: TopologyScope,
    /// `topologyManagerPolicyOptions`.
    pub topology_options: TopologyOptions,
    /// Whether pods with pod-level resources are managed (`PodLevelResourceManagers`).
    pub pod_level: bool,
}

impl ManagersConfig {
    /// Whether no manager has a policy.
    pub fn is_off(&self) -> bool {
        self.cpu.is_none() && self.memory.is_none() && self.topology_policy == TopologyPolicy::None
    }
}

/// Resources of the node that are reserved.
#[derive(Debug, Clone, Default)]
pub struct NodeReserved {
    /// CPU time, millicores.
    pub milli_cpu: i64,
    /// Memory and huge pages, with the hard eviction threshold.
    pub memory: NodeReservation,
}

/// Reads the topology and the checkpoints.
///
/// # Errors
/// The topology cannot be read, a policy does not support it, or a checkpoint does not match the policy.
pub async fn open(
    config: ManagersConfig,
    reserved: NodeReserved,
    deps: &Deps,
) -> anyhow::Result<ResourceManagers> {
    let sys = deps.system.sys.clone();
    let deps = ResourceManagerDeps {
        runtime: deps.runtime.clone(),
        cache: deps.cache.clone(),
        files: StateFiles::new(&deps.root_dir),
        metrics: ManagerMetrics::new(&deps.metrics, config.pod_level),
        retry_after: config.retry_after,
        no_cpu_quota_with_exclusive_cpus: config.no_cpu_quota_with_exclusive_cpus,
    };
    let build = move || {
        let machine = if config.is_off() {
            MachineTopology::default()
        } else {
            MachineTopology::read(&sys).context("cannot read the CPU topology")?
        };
        let topology = topology(&config, &machine)?;
        let cpu = cpu_manager(&config, reserved.milli_cpu, &machine, &deps.files)?;
        let memory = memory_manager(&config, &reserved.memory, &machine, &deps.files)?;
        anyhow::Ok(ResourceManagers::new(topology, cpu, memory, deps))
    };
    let managers = spawn_blocking(build).await?;
    managers.context("Failed to start ContainerManager")
}

/// What would keep [`open`] from opening the managers: the machine or its checkpoints do not fit their configuration.
/// Blocking.
pub fn open_errors(
    config: &ManagersConfig,
    reserved: &NodeReserved,
    sys: &Path,
    root_dir: &Path,
) -> Vec<anyhow::Error> {
    let machine = if config.is_off() {
        MachineTopology::default()
    } else {
        match MachineTopology::read(sys).context("cannot read the CPU topology") {
            Ok(machine) => machine,
            Err(error) => return vec![error],
        }
    };
    let files = StateFiles::new(root_dir);
    let opened = [
        topology(config, &machine).map(drop),
        cpu_manager(config, reserved.milli_cpu, &machine, &files).map(drop),
        memory_manager(config, &reserved.memory, &machine, &files).map(drop),
    ];
    opened.into_iter().filter_map(Result::err).collect()
}

fn topology(config: &ManagersConfig, machine: &MachineTopology) -> anyhow::Result<TopologyManager> {
    let nodes = machine.nodes.iter();
    let nodes = nodes.map(|node| (node.id, node.distances.clone()));
    TopologyManager::new(
        config.topology_policy,
        config.topology_scope,
        config.topology_options,
        nodes.collect(),
    )
    .map(|manager| manager.with_pod_level(config.pod_level))
    .map_err(anyhow::Error::msg)
}

fn cpu_manager(
    config: &ManagersConfig,
    milli_cpu: i64,
    machine: &MachineTopology,
    files: &StateFiles,
) -> anyhow::Result<CpuManager> {
    let Some(options) = config.cpu else {
        files.cpu("none")?;
        return Ok(CpuManager::default());
    };
    let reserved = cpu::ReservedCpus { milli_cpu, cpus: config.reserved_cpus.clone() };
    let policy = cpu::StaticCpuPolicy::new(
        CpuTopology::new(machine),
        options,
        &reserved,
        config.topology_policy,
    );
    let policy = policy.map_err(anyhow::Error::msg).context("cpuManagerPolicy")?;
    let manager = CpuManager::new(policy, files.cpu("static")?).map_err(anyhow::Error::msg);
    manager
        .map(|manager| manager.with_pod_level(config.pod_level))
        .context("invalid state, please drain node and remove policy state file")
}

fn memory_manager(
    config: &ManagersConfig,
    of_node: &NodeReservation,
    machine: &MachineTopology,
    files: &StateFiles,
) -> anyhow::Result<MemoryManager> {
    let Some(reserved) = &config.memory else {
        files.memory("None")?;
        return Ok(MemoryManager::default());
    };
    let policy = memory::StaticMemoryPolicy::new(machine, reserved, of_node);
    let policy = policy
        .map_err(anyhow::Error::msg)
        .context("memoryManagerPolicy: Static: reservedMemory")?;
    let manager = MemoryManager::new(&policy, files.memory("Static")?).map_err(anyhow::Error::msg);
    manager
        .map(|manager| manager.with_pod_level(config.pod_level))
        .context("invalid state, please drain node and remove policy state file")
}
