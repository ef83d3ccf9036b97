//! The node's cgroups.

use super::Stores;
use crate::{
    base::{Tasks, chain},
    config::KubeletConfig,
    cri::{CriError, RuntimeClient, v1},
    host::{Machine, cgroup::Cgroups, proc},
    resources::{
        CpuEnforcement,
        cm::{
            ActivePods, CgroupDriver, CgroupMetrics, CgroupName, ContainerManager, NodeCgroups,
            wanted::{NodeAmounts, PodRules},
        },
    },
};
use anyhow::Context as _;
use std::time::Duration;

/// How often a runtime that does not answer is asked for its driver.
const TRIES: usize = 3;
const BETWEEN_TRIES: Duration = Duration::from_secs(2);

/// Makes the node's cgroups and starts the task that keeps them.
pub(super) async fn start(
    config: &KubeletConfig,
    stores: &Stores,
    cpu: CpuEnforcement,
    tasks: &mut Tasks,
) -> anyhow::Result<ContainerManager> {
    if !config.cgroups.per_qos {
        return Ok(ContainerManager::off());
    }
    let driver = driver(&stores.runtime, config.cgroups.driver).await?;
    if driver == CgroupDriver::Systemd {
        tracing::warn!(
            cgroupDriver = driver.as_str(),
            "The kubelet does not make cgroups with this driver yet; they are left to the runtime"
        );
        return Ok(ContainerManager::off());
    }
    let node = node_cgroups(config, &stores.machine, driver, cpu);
    let metrics = CgroupMetrics::new(&stores.metrics);
    let (events, active) = (stores.events.clone(), active_pods(stores));
    let (v2, plain) = (stores.machine.cgroup_v2, stores.cgroup_dir.clone());
    let make = move || {
        let root = CgroupName::of_cgroupfs(&node.root).path(driver)?;
        let cgroups = match plain {
            Some(directory) => Cgroups::in_directory(&directory, root, v2),
            None => Cgroups::below(root, v2)?,
        };
        ContainerManager::start(
            with_huge_pages(node, &cgroups),
            cgroups,
            metrics,
            events,
            active,
        )
    };
    let manager = tokio::task::spawn_blocking(make).await?;
    let manager = manager.context("Failed to start ContainerManager")?;
    tasks.spawn("cgroups", manager.clone().run(tasks.shutdown()));
    Ok(manager)
}

/// The driver that the runtime says it uses; `configured` if it cannot say.
async fn driver(runtime: &RuntimeClient, configured: CgroupDriver) -> anyhow::Result<CgroupDriver> {
    let mut tries = 0;
    let reply = loop {
        match runtime.runtime_config().await {
            Ok(reply) => break reply,
            Err(CriError::Unimplemented { .. }) => {
                tracing::info!(
                    "CRI implementation should be updated to support RuntimeConfig. Falling back to using cgroupDriver from kubelet config."
                );
                return Ok(configured);
            }
            Err(error) => {
                tries += 1;
                anyhow::ensure!(
                    tries < TRIES,
                    "cannot read the runtime's cgroup driver: {}",
                    chain(&error)
                );
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
        }
    };
    let Some(linux) = reply.linux else {
        return Ok(configured);
    };
    let driver = match v1::CgroupDriver::try_from(linux.cgroup_driver) {
        Ok(v1::CgroupDriver::Systemd) => CgroupDriver::Systemd,
        Ok(v1::CgroupDriver::Cgroupfs) => CgroupDriver::Cgroupfs,
        Err(_) => anyhow::bail!(
            "runtime returned an unknown cgroup driver {}",
            linux.cgroup_driver
        ),
    };
    tracing::info!(
        cgroupDriver = driver.as_str(),
        "Using cgroup driver setting received from the CRI runtime"
    );
    Ok(driver)
}

/// Without the controller huge pages are not limited.
fn with_huge_pages(mut node: NodeCgroups, cgroups: &Cgroups) -> NodeCgroups {
    if !cgroups.has("hugetlb") {
        node.rules.page_sizes.clear();
    }
    node
}

fn active_pods(stores: &Stores) -> ActivePods {
    let (pods, statuses) = (stores.manager.reader(), stores.statuses.reader());
    Box::new(move || {
        let mut pods = pods.pods();
        pods.retain(|pod| {
            let status = statuses.get(&crate::model::PodExt::uid(&**pod));
            let phase = status.as_ref().and_then(|status| status.phase.as_deref());
            !matches!(phase, Some("Failed" | "Succeeded"))
        });
        pods
    })
}

fn node_cgroups(
    config: &KubeletConfig,
    machine: &Machine,
    driver: CgroupDriver,
    cpu: CpuEnforcement,
) -> NodeCgroups {
    let cgroups = &config.cgroups;
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let (_, most_threads) = proc::thread_counts();
    let capacity = NodeAmounts {
        milli_cpu: Some(i64::from(machine.cpus).saturating_mul(1000)),
        memory: Some(number(machine.memory_bytes)),
        pids: most_threads.map(number),
    };
    let [system, kube] = &cgroups.reservations;
    let allocatable = capacity.without(&[system, kube]);
    let memory_qos = cgroups.memory_qos && machine.cgroup_v2;
    let memory = allocatable.memory.unwrap_or_default();
    NodeCgroups {
        node_name: config.node_name.clone(),
        root: cgroups.root.clone(),
        driver,
        pods: if cgroups.enforce_pods {
            allocatable
        } else {
            capacity
        },
        cpus: machine.online_cpus.clone(),
        rules: PodRules {
            cpu,
            pids: cgroups.pod_pids,
            page_sizes: machine.hugepage_sizes.clone(),
            protect_memory: memory_qos && cgroups.tiered_reservation,
        },
        memory_qos,
        qos_reserved: cgroups
            .qos_reserved_percent
            .map(|percent| (memory, percent)),
        reserved: cgroups.reserved.clone(),
    }
}

/// How CPU time of containers is limited.
pub(super) fn cpu_enforcement(config: &KubeletConfig, machine: &Machine) -> CpuEnforcement {
    let period = config.containers.cpu_cfs_quota_period.as_micros();
    CpuEnforcement {
        cfs_quota: config.containers.cpu_cfs_quota,
        period_microseconds: i64::try_from(period).unwrap_or(100_000),
        oom_group: machine.cgroup_v2 && config.effective.single_process_oom_kill != Some(true),
        no_swap: machine.limits_swap && !config.limited_swap(),
    }
}
