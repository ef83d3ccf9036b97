//! The node as a member of a cluster: its Node object, lease and events.

use super::{Stores, process_metrics::go_architecture};
use crate::{
    base::Tasks,
    config::{KubeletConfig, NODE_VERSION},
    cri::RuntimeInfo,
    host::{self, MachineIdentity, MountEntry, own_address, proc},
    node::{
        event_sink::{self, EventSink},
        lease::NodeLease,
        node_manager::{self, NodeManager},
        node_status::{
            self, NodeMachineInfo, NodeStatusInputs, RuntimeFacts, StatusSettings,
            resources::{Allocatable, ReservedResources},
        },
        registration::{self, RegistrationSettings},
        runtime_facts::RuntimeFactsReader,
    },
    pods::pleg::RuntimeStateReader,
    resources::{NodeFacts, devices::DeviceManager},
    state::{
        device_capacity::Capacities,
        events::ObjectRef,
        node_object::{NodeObject, NodeObjectWriter},
        node_pressure::NodePressure,
    },
};
use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeSystemInfo;
use std::{net::IpAddr, path::Path, sync::Arc};
use tokio::sync::watch;

/// Volumes that need nothing attached, by the names of their directories.
const OWN_VOLUMES: [&str; 6] = [
    "configmap",
    "downward-api",
    "empty-dir",
    "local-volume",
    "projected",
    "secret",
];

/// Starts the tasks of a node that has an API server.
pub(super) async fn start(
    config: &KubeletConfig,
    stores: &Stores,
    node_object: NodeObjectWriter,
    state: RuntimeStateReader,
    devices: DeviceManager,
    info: &RuntimeInfo,
    tasks: &mut Tasks,
) -> anyhow::Result<()> {
    let Some(api) = &stores.api else {
        return Ok(());
    };
    let shutdown = tasks.shutdown();
    let dropped = event_sink::dropped(&stores.metrics);
    if let Some(outbox) = event_sink::outbox(&stores.events, &dropped) {
        let (name, rate) = (config.node_name.clone(), config.node.events);
        let sink = EventSink::new(api.clone(), outbox, name, rate, dropped);
        tasks.spawn("node.events", sink.run(shutdown.clone()));
    }
    let object = ObjectRef::node(&config.node_name);
    stores
        .events
        .normal(&object, "Starting", "Starting kubelet.");
    let (facts, runtime) = RuntimeFactsReader::new(
        stores.runtime.clone(),
        stores.images.clone(),
        &info.version,
        &info.status,
    );
    tasks.spawn("node.runtime", facts.run(shutdown.clone()));
    let (name, seconds) = (config.node_name.clone(), config.node.lease_seconds);
    let lease = NodeLease::new(api.unlimited(), stores.node_object.clone(), name, seconds);
    tasks.spawn("node.lease", lease.run(shutdown.clone()));
    let root = config.root_dir.clone();
    let (facts, storage) = (stores.machine.clone(), config.node.local_storage_isolation);
    let read = move || machine(&facts, &root, storage);
    let machine = tokio::task::spawn_blocking(read).await??;
    let root = config.root_dir.clone();
    let manager = NodeManager::new(node_manager::NodeManagerDeps {
        api: api.unlimited(),
        node: node_object,
        events: stores.events.clone(),
        runtime,
        state,
        pressure: stores.pressure.clone(),
        shutting_down: stores.shutting_down.clone(),
        own_ip: own_ip(config.ipv6_first),
        volumes_mounted: Arc::new(move || {
            host::mount::list().map_or(true, |mounts| has_plugin_mount(&mounts, &root))
        }),
        devices: devices.capacity(),
        reset_devices: devices.is_fresh(),
        machine,
        status: status(config),
        registration: registration(config),
        update_period: config.node.update_period,
        report_period: config.node.report_period,
    });
    tasks.spawn("node.status", manager.run(shutdown));
    Ok(())
}

/// Finds the address of the default route.
fn own_ip(ipv6_first: bool) -> fn() -> Option<IpAddr> {
    if ipv6_first {
        || own_address(true)
    } else {
        || own_address(false)
    }
}

/// What pods may have where some is reserved, with an API server or without. `huge_pages` is the memory that is kept for
/// them, bytes.
pub(super) fn reserve(
    facts: NodeFacts,
    reservation: &ReservedResources,
    huge_pages: i64,
) -> NodeFacts {
    let left = Allocatable::of(
        reservation,
        facts.allocatable_milli_cpu,
        facts.allocatable_memory_bytes,
        facts.allocatable_ephemeral_storage_bytes,
    );
    let unreserved = facts.unreserved_memory_bytes;
    NodeFacts {
        allocatable_milli_cpu: left.milli_cpu,
        allocatable_memory_bytes: left.memory.saturating_sub(huge_pages).max(0),
        unreserved_memory_bytes: unreserved.saturating_sub(reservation.memory).max(0),
        allocatable_ephemeral_storage_bytes: left.ephemeral_storage,
        ..facts
    }
}

/// The node that pods are admitted to: the API server's, or, without one, what would be registered.
pub(super) async fn for_admission(
    config: &KubeletConfig,
    stores: &Stores,
) -> anyhow::Result<NodeObject> {
    if stores.api.is_some() {
        return Ok(stores.node_object.clone());
    }
    let (facts, sys) = (stores.machine.clone(), stores.system.sys.clone());
    let root = config.root_dir.clone();
    let storage = config.node.local_storage_isolation;
    let read = move || {
        let mut machine = machine(&facts, &root, storage)?;
        machine.cpus = host::online_cpus(&sys).unwrap_or(machine.cpus);
        anyhow::Ok(machine)
    };
    let machine = tokio::task::spawn_blocking(read).await??;
    let registration = registration(config);
    let facts = NodeStatusInputs {
        machine: &machine,
        settings: &status(config),
        runtime: &RuntimeFacts::default(),
        devices: &Capacities::default(),
        own_ip: None,
        volumes_mounted: false,
        problems: &[],
        pressure: NodePressure::default(),
        now: Timestamp::now(),
    };
    let generated = node_status::generate(&registration::initial(&registration), &facts);
    let node = registration::new_node(&registration, generated);
    Ok(watch::channel(Some(Arc::new(node))).1)
}

/// Blocking.
fn machine(
    facts: &host::HostMachine,
    root: &Path,
    storage: bool,
) -> anyhow::Result<NodeMachineInfo> {
    let bytes = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let storage = storage.then(|| host::filesystem_bytes(root).map(bytes));
    let identity = MachineIdentity::read();
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let huge_pages = host::huge_pages().into_iter();
    Ok(NodeMachineInfo {
        cpus: facts.cpus,
        memory: bytes(facts.memory_bytes),
        ephemeral_storage: storage
            .transpose()
            .with_context(|| format!("cannot measure {}", root.display()))?,
        huge_pages: huge_pages
            .map(|(size, all)| (bytes(size), bytes(all)))
            .collect(),
        swap: bytes(proc::parse_meminfo(&meminfo).swap_total),
        info: NodeSystemInfo {
            architecture: go_architecture().to_owned(),
            boot_id: facts.boot_id.clone(),
            kernel_version: facts.kernel_release.clone(),
            kubelet_version: NODE_VERSION.to_owned(),
            machine_id: identity.machine_id,
            operating_system: "linux".to_owned(),
            os_image: identity.os_image,
            system_uuid: identity.system_uuid,
            ..NodeSystemInfo::default()
        },
    })
}

/// Whether something is mounted where volume plugins mount for the whole node, or for a pod.
fn has_plugin_mount(mounts: &[MountEntry], root: &Path) -> bool {
    let (plugins, pods) = (root.join("plugins"), root.join("pods"));
    // In a pod's directory: `UID/volumes/kubernetes.io~csi/NAME`.
    let of_plugin = |path: &Path| {
        let mut parts = path.iter().skip(1);
        let kind = parts.next().is_some_and(|part| part == "volumes");
        kind && parts.next().is_some_and(|plugin| {
            let own = OWN_VOLUMES.map(|name| format!("kubernetes.io~{name}"));
            !own.iter().any(|own| plugin == own.as_str())
        })
    };
    mounts.iter().any(|mount| {
        let below = mount.mount_point.strip_prefix(&pods);
        mount.is_beneath(&plugins) || below.is_ok_and(of_plugin)
    })
}

fn status(config: &KubeletConfig) -> StatusSettings {
    let node = &config.node;
    let port = config.server.enabled.then(|| config.server.address.port());
    StatusSettings {
        node_name: config.node_name.clone(),
        given_ips: config.node_ips.clone(),
        external_cloud_provider: node.external_cloud_provider,
        port: port.unwrap_or_default(),
        max_images: node.max_images,
        pods: node.pods,
        reservation: node.reservation,
    }
}

fn registration(config: &KubeletConfig) -> RegistrationSettings {
    let node = &config.node;
    RegistrationSettings {
        node_name: config.node_name.clone(),
        architecture: go_architecture().to_owned(),
        register: node.register,
        labels: node.labels.clone(),
        taints: node.taints.clone(),
        provider_id: node.provider_id.clone(),
        external_cloud_provider: node.external_cloud_provider,
        controller_attach: node.controller_attach,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::node_status::resources::ThresholdAmount;

    #[test]
    fn what_is_reserved_is_not_for_pods() {
        let all = NodeFacts {
            memory_capacity_bytes: 1000,
            allocatable_milli_cpu: 4000,
            allocatable_memory_bytes: 1000,
            unreserved_memory_bytes: 1000,
            allocatable_ephemeral_storage_bytes: 500,
            ..NodeFacts::default()
        };
        let reservation = ReservedResources {
            milli_cpu: 300,
            memory: 200,
            ephemeral_storage: 50,
            memory_threshold: Some(ThresholdAmount::Bytes(100)),
            storage_threshold: Some(ThresholdAmount::Share(0.5)),
        };
        let left = reserve(all.clone(), &reservation, 64);
        let expected = NodeFacts {
            allocatable_milli_cpu: 3700,
            allocatable_memory_bytes: 1000 - 200 - 100 - 64,
            // Neither eviction nor huge pages count for what throttles containers.
            unreserved_memory_bytes: 1000 - 200,
            allocatable_ephemeral_storage_bytes: 500 - 50 - 250,
            ..all.clone()
        };
        assert_eq!(left, expected);
        let everything = reserve(all, &reservation, 2000);
        assert_eq!(everything.allocatable_memory_bytes, 0);
    }

    #[test]
    fn only_mounts_of_volume_plugins_keep_volumes_in_use() {
        let root = Path::new("/var/lib/kubelet");
        for (path, expected) in [
            (
                "/var/lib/kubelet/plugins/kubernetes.io/csi/d/1/globalmount",
                true,
            ),
            (
                "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/v/mount",
                true,
            ),
            ("/var/lib/kubelet/pods/u/volumes/kubernetes.io~nfs/v", true),
            (
                "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/v",
                false,
            ),
            (
                "/var/lib/kubelet/pods/u/volumes/kubernetes.io~projected/v",
                false,
            ),
            ("/var/lib/kubelet/pods/u/volume-subpaths/v/c/0", false),
            ("/var/lib/kubelet", false),
            ("/mnt", false),
        ] {
            let mount = MountEntry {
                mount_point: path.into(),
                root: "/".into(),
                fs_type: "ext4".into(),
                source: String::new(),
            };
            assert_eq!(has_plugin_mount(&[mount], root), expected, "{path}");
        }
    }
}
