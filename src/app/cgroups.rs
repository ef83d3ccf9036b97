//! The node's cgroups.

use super::Stores;
use crate::{
    base::{Tasks, chain, metrics::Metrics},
    config::KubeletConfig,
    cri::{CriError, v1},
    host::{
        HostMachine, ProcDir, Slices,
        cgroup::{CgroupPath, Cgroups},
        proc,
    },
    model::{PodExt as _, is_terminal},
    resources::{
        CpuEnforcement, MemoryQos, Swap,
        cm::{
            ActivePodsReader, CgroupDriver, CgroupMetrics, CgroupName, ContainerManager,
            NodeCgroups, SystemContainers, SystemContainersConfig,
            wanted::{NodeAmounts, PodRules},
        },
        managers::ResourceManagers,
    },
};
use anyhow::Context as _;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
};
use std::{path::Path, time::Duration};

/// Attempts to get the cgroup driver from a runtime that does not answer.
const TRIES: usize = 3;
const BETWEEN_TRIES: Duration = Duration::from_secs(2);

/// Makes the node's cgroups and starts the task that keeps them.
pub(super) async fn start(
    config: &KubeletConfig,
    stores: &Stores,
    managers: &ResourceManagers,
    tasks: &mut Tasks,
) -> anyhow::Result<ContainerManager> {
    start_system_containers(config, stores, tasks)?;
    if !config.cgroups.per_qos {
        return Ok(ContainerManager::off());
    }
    let driver = driver(stores, config.cgroups.driver).await?;
    let node = NodeCgroups {
        slices: (driver == CgroupDriver::Systemd).then(|| Slices::new(stores.system.bus.clone())),
        ..node_cgroups(config, &stores.machine)
    };
    let managers = managers.clone();
    let metrics = CgroupMetrics::new(&stores.metrics);
    let (events, active) = (stores.events.clone(), active_pods(stores));
    let (v2, plain) = (stores.machine.cgroup_v2, stores.system.cgroups.clone());
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
            managers,
        )
    };
    let manager = tokio::task::spawn_blocking(make).await?;
    let manager = manager.context("Failed to start ContainerManager")?;
    if let Some(path) = manager.all_pods() {
        let _ = stores.pods_cgroup.set(path);
    }
    let delivered = stores.all_delivered.clone();
    tasks.spawn("cgroups", manager.clone().run(delivered, tasks.shutdown()));
    Ok(manager)
}

/// Moves this process into the kubelet's cgroup.
pub(super) fn enter(config: &KubeletConfig) {
    let Some(kubelet) = &config.cgroups.kubelet else {
        return;
    };
    let v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let cgroups = Cgroups::below(CgroupPath::default(), v2);
    if let (Ok(path), Ok(cgroups)) = (CgroupPath::parse(kubelet), cgroups) {
        let settings = SystemContainersConfig {
            kubelet: Some(path),
            system: None,
            oom_score_adj: config.oom_score_adj,
        };
        SystemContainers::new(settings, cgroups, ProcDir::default()).enter();
    }
}

/// Starts the task that keeps the kubelet, and processes that belong to nothing else, where they are to be. With
/// cgroups in the place of the kernel's and without processes in the place of its, nothing is moved.
fn start_system_containers(
    config: &KubeletConfig,
    stores: &Stores,
    tasks: &mut Tasks,
) -> anyhow::Result<()> {
    let (kubelet, system) = (&config.cgroups.kubelet, &config.cgroups.system);
    let v2 = stores.machine.cgroup_v2;
    let real_processes = stores.system.proc == Path::new("/proc");
    if kubelet.is_none() {
        report_kubelet_cgroup(v2);
    }
    if stores.system.cgroups.is_some() && real_processes {
        return Ok(());
    }
    let path = |path: &Option<String>| path.as_deref().map(CgroupPath::parse).transpose();
    let settings = SystemContainersConfig {
        kubelet: path(kubelet).context("kubeletCgroups")?,
        system: path(system).context("systemCgroups")?,
        oom_score_adj: config.oom_score_adj,
    };
    let top = CgroupPath::default();
    let cgroups = match &stores.system.cgroups {
        Some(directory) => Cgroups::in_directory(directory, top, v2),
        None => match Cgroups::below(top, v2) {
            // Nothing is moved, and a kubelet that makes no cgroups does without.
            Err(_) if kubelet.is_none() && system.is_none() => return Ok(()),
            found => found.context("Failed to start ContainerManager")?,
        },
    };
    let proc = ProcDir::from(stores.system.proc.clone());
    let containers = SystemContainers::new(settings, cgroups, proc);
    tasks.spawn("system_containers", containers.run(tasks.shutdown()));
    Ok(())
}

fn report_kubelet_cgroup(v2: bool) {
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

/// The driver that the runtime says it uses; `configured` if it cannot say.
async fn driver(stores: &Stores, configured: CgroupDriver) -> anyhow::Result<CgroupDriver> {
    let mut tries = 0;
    let reply = loop {
        match stores.runtime.runtime_config().await {
            Ok(reply) => break reply,
            Err(CriError::Unimplemented { .. }) => {
                cri_loses_support(&stores.metrics);
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

/// Says in metrics from which version on the Go kubelet wants a newer runtime.
fn cri_loses_support(metrics: &Metrics) {
    #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
    struct CgroupVersionLabel {
        version: &'static str,
    }
    let family: Family<CgroupVersionLabel, Gauge> = metrics.register(
        "kubelet_cri_losing_support",
        "the Kubernetes version that the currently running CRI implementation will lose support on if not upgraded.",
        Family::default(),
    );
    family
        .get_or_create(&CgroupVersionLabel { version: "1.37.0" })
        .set(1);
}

/// Without the controller huge pages are not limited.
fn with_huge_pages(mut node: NodeCgroups, cgroups: &Cgroups) -> NodeCgroups {
    if !cgroups.has("hugetlb") {
        node.rules.page_sizes.clear();
    }
    node
}

fn active_pods(stores: &Stores) -> ActivePodsReader {
    let (pods, statuses) = (stores.pods.clone(), stores.statuses.clone());
    Box::new(move || {
        let mut pods = pods.pods();
        pods.retain(|pod| {
            let status = statuses.get(&pod.uid());
            !status.is_some_and(|status| is_terminal(&status))
        });
        pods
    })
}

fn node_cgroups(config: &KubeletConfig, machine: &HostMachine) -> NodeCgroups {
    let cgroups = &config.cgroups;
    let allocatable = allocatable(config, machine);
    let memory_qos = cgroups.memory_qos && machine.cgroup_v2;
    let memory = allocatable.memory.unwrap_or_default();
    NodeCgroups {
        node_name: config.node_name.clone(),
        root: cgroups.root.clone(),
        slices: None,
        pods: if cgroups.enforce_pods {
            allocatable
        } else {
            capacity(machine)
        },
        cpus: match config.managers.cpu {
            None => machine.online_cpus.clone(),
            Some(_) => String::new(),
        },
        rules: PodRules {
            cpu: cpu_enforcement(config, machine),
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

fn capacity(machine: &HostMachine) -> NodeAmounts {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let (_, most_threads) = proc::thread_counts();
    NodeAmounts {
        milli_cpu: Some(i64::from(machine.cpus).saturating_mul(1000)),
        memory: Some(number(machine.memory_bytes)),
        pids: most_threads.map(number),
    }
}

/// What is not reserved; eviction thresholds are not subtracted.
pub(super) fn allocatable(config: &KubeletConfig, machine: &HostMachine) -> NodeAmounts {
    let [system, kube] = &config.cgroups.reservations;
    capacity(machine).without(&[system, kube])
}

/// How CPU and memory limits are enforced.
pub(super) fn cpu_enforcement(config: &KubeletConfig, machine: &HostMachine) -> CpuEnforcement {
    let period = config.containers.cpu_cfs_quota_period.as_micros();
    CpuEnforcement {
        cfs_quota: config.containers.cpu_cfs_quota,
        period_microseconds: i64::try_from(period).unwrap_or(100_000),
        oom_group: machine.cgroup_v2 && config.effective.single_process_oom_kill != Some(true),
        swap: if !machine.limits_swap {
            Swap::Unlimited
        } else if config.limited_swap() {
            Swap::ByRequest(i64::try_from(machine.swap_bytes).unwrap_or(i64::MAX))
        } else {
            Swap::None
        },
        memory_qos: (config.cgroups.memory_qos && machine.cgroup_v2).then(|| MemoryQos {
            throttling_factor: config.effective.memory_throttling_factor.unwrap_or(0.9),
            tiered_reservation: config.cgroups.tiered_reservation,
        }),
    }
}
