//! The managers of exclusive CPUs and memory.

use super::Stores;
use crate::{
    base::Tasks,
    config::KubeletConfig,
    host::MachineTopology,
    model::Quantity,
    node::node_status::resources::ReservedResources,
    pods::sync_loop::ResizeRules,
    resources::{
        Swap,
        allocation::Allocations,
        cpu::{self, CpuManager, CpuTopology},
        managers::{ManagerMetrics, ResourceManagerDeps, ResourceManagers, StateFiles},
        memory::{self, MemoryManager, NodeReservation},
        topology::TopologyManager,
    },
};
use anyhow::Context as _;

/// Reads the machine and the state of an earlier kubelet, and starts the task that updates containers.
pub(super) async fn start(
    config: &KubeletConfig,
    stores: &Stores,
    tasks: &mut Tasks,
) -> anyhow::Result<ResourceManagers> {
    let deps = ResourceManagerDeps {
        runtime: stores.runtime.clone(),
        cache: stores.cache.clone(),
        files: StateFiles::new(&config.root_dir),
        metrics: ManagerMetrics::new(&stores.metrics),
        retry_after: config.managers.retry_after,
        no_quota: config.managers.no_quota,
    };
    let (config, sys) = (config.clone(), stores.system.sys.clone());
    let memory_bytes = stores.machine.memory_bytes;
    let build = move || {
        let machine = if config.managers.is_off() {
            MachineTopology::default()
        } else {
            MachineTopology::read(&sys).context("cannot read the CPU topology")?
        };
        let topology = topology(&config, &machine)?;
        let cpu = cpu_manager(&config, &machine, &deps.files)?;
        let memory = memory_manager(&config, &machine, memory_bytes, &deps.files)?;
        anyhow::Ok(ResourceManagers::new(topology, cpu, memory, deps))
    };
    let managers = tokio::task::spawn_blocking(build).await?;
    let managers = managers.context("Failed to start ContainerManager")?;
    tasks.spawn("resources", managers.clone().run(tasks.shutdown()));
    Ok(managers)
}

/// The allocations of an earlier kubelet, and the task that saves them.
pub(super) async fn allocations(
    config: &KubeletConfig,
    tasks: &mut Tasks,
) -> anyhow::Result<Allocations> {
    let directory = config.root_dir.clone();
    let allocations = tokio::task::spawn_blocking(move || Allocations::read(&directory)).await??;
    let run = allocations.clone().run(tasks.shutdown());
    tasks.spawn("allocations", run);
    Ok(allocations)
}

/// The resources that this node does not resize.
pub(super) fn resize_rules(config: &KubeletConfig, stores: &Stores) -> ResizeRules {
    let machine = &stores.machine;
    let swap = super::cgroups::cpu_enforcement(config, machine).swap;
    ResizeRules {
        static_cpus: config.managers.cpu.is_some(),
        static_memory: config.managers.memory.is_some(),
        limited_swap: matches!(swap, Swap::ByRequest(_)),
        allocatable: super::cgroups::allocatable(config, machine),
    }
}

fn topology(config: &KubeletConfig, machine: &MachineTopology) -> anyhow::Result<TopologyManager> {
    let managers = &config.managers;
    let nodes = machine.nodes.iter();
    let nodes = nodes.map(|node| (node.id, node.distances.clone()));
    TopologyManager::new(
        managers.topology_policy,
        managers.topology_scope,
        managers.topology_options,
        nodes.collect(),
    )
    .map_err(anyhow::Error::msg)
}

fn cpu_manager(
    config: &KubeletConfig,
    machine: &MachineTopology,
    files: &StateFiles,
) -> anyhow::Result<CpuManager> {
    let Some(options) = config.managers.cpu else {
        files.cpu("none")?;
        return Ok(CpuManager::default());
    };
    let reserved = cpu::ReservedCpus {
        milli_cpu: config.node.reservation.milli_cpu,
        cpus: config.managers.reserved_cpus.clone(),
    };
    let policy = cpu::StaticCpuPolicy::new(
        CpuTopology::new(machine),
        options,
        &reserved,
        config.managers.topology_policy,
    );
    let policy = policy.map_err(anyhow::Error::msg)?;
    let manager = CpuManager::new(policy, files.cpu("static")?).map_err(anyhow::Error::msg);
    manager.context("invalid state, please drain node and remove policy state file")
}

fn memory_manager(
    config: &KubeletConfig,
    machine: &MachineTopology,
    memory_bytes: u64,
    files: &StateFiles,
) -> anyhow::Result<MemoryManager> {
    let Some(reserved) = &config.managers.memory else {
        files.memory("None")?;
        return Ok(MemoryManager::default());
    };
    let of_node = node_reservation(&config.node.reservation, memory_bytes);
    let policy = memory::StaticMemoryPolicy::new(machine, reserved, &of_node);
    let policy = policy.map_err(anyhow::Error::msg)?;
    let manager = MemoryManager::new(&policy, files.memory("Static")?).map_err(anyhow::Error::msg);
    manager.context("invalid state, please drain node and remove policy state file")
}

/// Reserved memory and the hard eviction threshold.
fn node_reservation(reservation: &ReservedResources, memory_bytes: u64) -> NodeReservation {
    let capacity = i64::try_from(memory_bytes).unwrap_or(i64::MAX);
    let threshold = reservation.memory_threshold;
    let threshold = threshold.map(|threshold| threshold.of(capacity));
    let bytes = reservation
        .memory
        .saturating_add(threshold.unwrap_or_default());
    let memory = Quantity::parse(&bytes.to_string()).unwrap_or_default();
    [("memory".to_owned(), memory)].into()
}
