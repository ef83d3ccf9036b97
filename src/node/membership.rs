//! Membership of the node in a cluster: Node object, lease and events.

use super::csi_node::NodeInfoManager;
use super::event_sink::{EventQueue, EventRate, EventSink};
use super::lease::NodeLease;
use super::node_manager::{NodeManager, NodeManagerDeps};
use super::node_status::resources::{Allocatable, PodLimits, ReservedResources};
use super::node_status::{self, NodeMachineInfo, NodeStatusInputs, RuntimeFacts, StatusSettings};
use super::registration::{self, RegistrationConfig, RegistrationSettings};
use super::runtime_facts::RuntimeFactsReader;
use super::startup_latency::StartupLatency;
use crate::apiserver::ApiServer;
use crate::base::{Tasks, clock, spawn_blocking};
use crate::cri::{ImageClient, RuntimeClient, RuntimeInfo};
use crate::host::{self, HostMachine, MachineIdentity, MountEntry, go_architecture, own_address};
use crate::model::NodeFacts;
use crate::pods::pleg::RuntimeStateReader;
use crate::resources::devices::DeviceManager;
use crate::state::Stores;
use crate::state::device_capacity::Capacities;
use crate::state::events::ObjectRef;
use crate::state::node_object::{NodeObject, NodeObjectWriter};
use crate::state::node_pressure::NodePressure;
use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, NodeSystemInfo};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Directory names of volume plugins that never attach a device.
const NON_ATTACHABLE_PLUGINS: [&str; 6] =
    ["configmap", "downward-api", "empty-dir", "local-volume", "projected", "secret"];

/// Configuration of the Node object, its status and lease, and of events.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Registration: whether and with which labels and taints.
    pub registration: RegistrationConfig,
    /// Whether ephemeral storage is a resource (`localStorageCapacityIsolation`).
    pub local_storage_isolation: bool,
    /// `nodeStatusUpdateFrequency`: how often the status is computed.
    pub update_period: Duration,
    /// `nodeStatusReportFrequency`: how often an unchanged status is sent.
    pub report_period: Duration,
    /// `nodeLeaseDurationSeconds`.
    pub lease_seconds: i32,
    /// Maximum number of images in the status; `None` for all.
    pub max_images: Option<usize>,
    /// `maxPods` and `podsPerCore`.
    pub pods: PodLimits,
    /// Resources reserved for the system and Kubernetes, and eviction thresholds.
    pub reservation: ReservedResources,
    /// Rate limit of events.
    pub events: EventRate,
}

/// Identity and settings of the node.
#[derive(Debug, Clone)]
pub struct NodeProfile {
    /// The node's name.
    pub name: String,
    /// `--node-ip`; if empty, the address of the default route is used.
    pub given_ips: Vec<IpAddr>,
    /// Whether IPv6 comes before IPv4.
    pub ipv6_first: bool,
    /// The kubelet's directory; its file system is the node's ephemeral storage.
    pub root_dir: PathBuf,
    /// Port of the kubelet's HTTPS server; `None` if it is disabled.
    pub port: Option<u16>,
    /// The kubelet version in the Node object.
    pub version: &'static str,
    /// The Node object, its lease and events.
    pub node: NodeConfig,
}

/// Dependencies of a node in a cluster.
pub(super) struct MembershipDeps<'a> {
    /// The API server.
    pub(super) api: ApiServer,
    pub(super) client: RuntimeClient,
    pub(super) images: ImageClient,
    /// Name and version of the runtime, as reported at start.
    pub(super) info: &'a RuntimeInfo,
    pub(super) runtime_state: RuntimeStateReader,
    pub(super) stores: &'a Stores,
    /// Writing end of the Node object.
    pub(super) node_object: NodeObjectWriter,
    pub(super) machine: &'a HostMachine,
    pub(super) devices: &'a DeviceManager,
    /// Registers CSI drivers.
    pub(super) csi_node: Option<NodeInfoManager>,
    /// The events since the kubelet started.
    pub(super) events: Option<EventQueue>,
    /// Follows a new node until it is ready.
    pub(super) startup: StartupLatency,
}

/// Starts the tasks of a node with an API server.
///
/// # Errors
/// The machine cannot be read.
pub(super) async fn start(
    profile: &NodeProfile,
    deps: MembershipDeps<'_>,
    tasks: &mut Tasks,
) -> anyhow::Result<()> {
    let (api, stores) = (deps.api, deps.stores);
    let node = &profile.node;
    if let Some(queue) = deps.events {
        let sink = EventSink::new(api.clone(), queue, profile.name.clone(), node.events);
        tasks.spawn_until_shutdown("node.events", sink.run());
    }
    let object = ObjectRef::node(&profile.name);
    stores.events.normal(&object, "Starting", "Starting kubelet.");
    let (version, status) = (&deps.info.version, &deps.info.status);
    let (facts, runtime) = RuntimeFactsReader::new(deps.client, deps.images, version, status);
    tasks.spawn_until_shutdown("node.runtime", facts.run());
    let (name, seconds) = (profile.name.clone(), node.lease_seconds);
    let lease = NodeLease::new(api.unlimited(), stores.node_object.clone(), name, seconds);
    tasks.spawn_until_shutdown("node.lease", lease.run());
    let not_ready = deps.csi_node.as_ref().map(NodeInfoManager::not_ready);
    if let Some(csi_node) = deps.csi_node {
        tasks.spawn_until_shutdown("node.csi", csi_node.run());
    }
    let (host, node_profile) = (deps.machine.clone(), profile.clone());
    let read = move || node_machine_info(&host, &node_profile);
    let machine = spawn_blocking(read).await??;
    let root = profile.root_dir.clone();
    let manager = NodeManager::new(NodeManagerDeps {
        api: api.unlimited(),
        node: deps.node_object,
        events: stores.events.clone(),
        startup: deps.startup,
        runtime,
        state: deps.runtime_state,
        pressure: stores.pressure.clone(),
        shutting_down: stores.shutting_down.clone(),
        default_route_ip: default_route_ip(profile.ipv6_first),
        csi_node: not_ready.unwrap_or_else(|| watch::channel(None).1),
        volumes_in_use: stores.volumes_in_use.clone(),
        volumes_mounted: Arc::new(move || {
            host::mount::list().map_or(true, |mounts| has_plugin_mount(&mounts, &root))
        }),
        devices: deps.devices.capacity(),
        reset_devices: deps.devices.should_reset_capacity(),
        machine,
        status: profile.status(),
        registration: profile.registration(),
        update_period: node.update_period,
        report_period: node.report_period,
    });
    tasks.spawn_until_shutdown("node.status", manager.run());
    Ok(())
}

/// Returns the function that finds the address of the default route.
fn default_route_ip(ipv6_first: bool) -> fn() -> Option<IpAddr> {
    if ipv6_first { || own_address(true) } else { || own_address(false) }
}

/// Capacity and allocatable of the node, for pods. Computed once at start.
///
/// # Errors
/// The file system of the kubelet's directory cannot be measured.
pub fn facts(profile: &NodeProfile, machine: &HostMachine) -> anyhow::Result<NodeFacts> {
    let root = &profile.root_dir;
    let existing = root.ancestors().find(|path| path.exists());
    let storage = host::filesystem_usage(existing.unwrap_or(root))
        .with_context(|| format!("cannot read {}", root.display()))?;
    let facts = unreserved(machine, storage.capacity, &profile.given_ips);
    let huge_pages = host::huge_pages().into_iter();
    let huge_pages = huge_pages.fold(0_u64, |sum, (_, bytes)| sum.saturating_add(bytes));
    let huge_pages = i64::try_from(huge_pages).unwrap_or(i64::MAX);
    Ok(reserve(facts, &profile.node.reservation, huge_pages))
}

/// Facts with allocatable equal to capacity. `given` are the configured addresses.
fn unreserved(machine: &HostMachine, ephemeral_storage_bytes: u64, given: &[IpAddr]) -> NodeFacts {
    let bytes = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    NodeFacts {
        memory_capacity_bytes: bytes(machine.memory_bytes),
        allocatable_milli_cpu: i64::from(machine.cpus).saturating_mul(1000),
        allocatable_memory_bytes: bytes(machine.memory_bytes),
        unreserved_memory_bytes: bytes(machine.memory_bytes),
        allocatable_ephemeral_storage_bytes: bytes(ephemeral_storage_bytes),
        hugepage_sizes: machine.hugepage_sizes.clone(),
        configured_address: given.first().map(ToString::to_string),
        masked_paths: machine.thermal_paths.clone(),
        selinux: machine.selinux,
        selinux_file_context: machine.selinux_file_context.clone(),
        // From the configuration.
        volume_plugin_dir: PathBuf::new(),
        controller_attach: true,
    }
}

/// Subtracts reservations from allocatable. `huge_pages` is the memory of preallocated huge pages, bytes.
fn reserve(facts: NodeFacts, reservation: &ReservedResources, huge_pages: i64) -> NodeFacts {
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

/// The Node object that admission uses in standalone mode: the one that would be registered. `sys` is the path of
/// `/sys`.
///
/// # Errors
/// The machine cannot be read.
pub async fn standalone_node(
    profile: &NodeProfile,
    host: &HostMachine,
    sys: PathBuf,
) -> anyhow::Result<NodeObject> {
    let (host, node_profile) = (host.clone(), profile.clone());
    let read = move || {
        let mut machine = node_machine_info(&host, &node_profile)?;
        machine.cpus = host::online_cpus(&sys).unwrap_or(machine.cpus);
        anyhow::Ok(machine)
    };
    let machine = spawn_blocking(read).await??;
    let registration = profile.registration();
    let facts = NodeStatusInputs {
        machine: &machine,
        settings: &profile.status(),
        runtime: &RuntimeFacts::default(),
        devices: &Capacities::default(),
        default_route_ip: None,
        volumes_in_use: None,
        volumes_mounted: false,
        not_ready_reasons: &[],
        pressure: NodePressure::default(),
        now: clock::timestamp(),
    };
    let generated = node_status::generate(&registration::initial(&registration), &facts);
    let node = registration::new_node(&registration, generated);
    Ok(watch::channel(Some(Arc::new(node))).1)
}

/// Reads the facts of the machine. Blocking.
fn node_machine_info(host: &HostMachine, profile: &NodeProfile) -> anyhow::Result<NodeMachineInfo> {
    let root = profile.root_dir.as_path();
    let bytes = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let storage = profile.node.local_storage_isolation;
    let storage = storage.then(|| host::filesystem_usage(root).map(|fs| bytes(fs.capacity)));
    let identity = MachineIdentity::read();
    let huge_pages = host::huge_pages().into_iter();
    Ok(NodeMachineInfo {
        cpus: host.cpus,
        memory: bytes(host.memory_bytes),
        ephemeral_storage: storage
            .transpose()
            .with_context(|| format!("cannot measure {}", root.display()))?,
        huge_pages: huge_pages.map(|(size, all)| (bytes(size), bytes(all))).collect(),
        swap: bytes(host.swap_bytes),
        info: NodeSystemInfo {
            architecture: go_architecture().to_owned(),
            boot_id: host.boot_id.clone(),
            kernel_version: host.kernel_release.clone(),
            kubelet_version: profile.version.to_owned(),
            machine_id: identity.machine_id,
            operating_system: "linux".to_owned(),
            os_image: identity.os_image,
            system_uuid: identity.system_uuid,
            ..NodeSystemInfo::default()
        },
    })
}

/// Whether a volume plugin that attaches devices has a mount, global or in a pod's directory.
fn has_plugin_mount(mounts: &[MountEntry], root: &Path) -> bool {
    let (plugins, pods) = (root.join("plugins"), root.join("pods"));
    // Devices of local volumes are not attached.
    let local = plugins.join("kubernetes.io/local-volume");
    // In a pod's directory: `UID/volumes/kubernetes.io~csi/NAME`.
    let of_plugin = |path: &Path| {
        let mut parts = path.iter().skip(1);
        let kind = parts.next().is_some_and(|part| part == "volumes");
        kind && parts.next().is_some_and(|plugin| {
            let others = NON_ATTACHABLE_PLUGINS.map(|name| format!("kubernetes.io~{name}"));
            !others.iter().any(|other| plugin == other.as_str())
        })
    };
    mounts.iter().any(|mount| {
        let below = mount.mount_point.strip_prefix(&pods);
        let of_node = mount.is_beneath(&plugins) && !mount.is_beneath(&local);
        of_node || below.is_ok_and(of_plugin)
    })
}

impl NodeProfile {
    fn status(&self) -> StatusSettings {
        StatusSettings {
            node_name: self.name.clone(),
            given_ips: self.given_ips.clone(),
            external_cloud_provider: self.node.registration.external_cloud_provider,
            port: self.port.unwrap_or_default(),
            max_images: self.node.max_images,
            pods: self.node.pods,
            reservation: self.node.reservation,
        }
    }

    /// The Node object as the kubelet registers it, without a status.
    pub fn initial_node(&self) -> Node {
        registration::initial(&self.registration())
    }

    fn registration(&self) -> RegistrationSettings {
        RegistrationSettings {
            node_name: self.name.clone(),
            architecture: go_architecture().to_owned(),
            config: self.node.registration.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::node_status::resources::ThresholdValue;

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
            memory_threshold: Some(ThresholdValue::Absolute(100)),
            storage_threshold: Some(ThresholdValue::Percentage(0.5)),
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
            ("/var/lib/kubelet/plugins/kubernetes.io/csi/d/1/globalmount", true),
            ("/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/v/mount", true),
            ("/var/lib/kubelet/pods/u/volumes/kubernetes.io~nfs/v", true),
            ("/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/v", false),
            ("/var/lib/kubelet/pods/u/volumes/kubernetes.io~projected/v", false),
            ("/var/lib/kubelet/plugins/kubernetes.io/local-volume/mounts/v", false),
            ("/var/lib/kubelet/pods/u/volume-subpaths/v/c/0", false),
            ("/var/lib/kubelet", false),
            ("/mnt", false),
        ] {
            let mount = MountEntry {
                mount_point: path.into(),
                device: "0:1".into(),
                root: "/".into(),
                fs_type: "ext4".into(),
                source: String::new(),
            };
            assert_eq!(has_plugin_mount(&[mount], root), expected, "{path}");
        }
    }

    #[test]
    fn containers_on_the_nodes_network_are_reached_at_the_address_given_for_it_or_else_at_loopback()
    {
        let given: IpAddr = "192.0.2.1".parse().unwrap();
        let of = |given: &[_]| {
            let facts = unreserved(&HostMachine::default(), 0, given);
            facts.address().to_string()
        };
        assert_eq!(of(&[given]), "192.0.2.1");
        // What listens on loopback only is reached as well, as upstream reaches it without an API server.
        assert_eq!(of(&[]), "127.0.0.1");
    }
}
