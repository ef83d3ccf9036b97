//! The PodResources API: lists the devices, CPUs and memory of containers for monitoring agents on the node.
//!
//! * Owns: the socket `pod-resources/kubelet.sock`.
//! * Woken by: requests, at most 100 per second.
//! * Must never list a terminated pod, because its devices may belong to another one, unless the feature gate
//!   `KubeletPodResourcesListUseActivePods` is off.
//! * Upstream: `pkg/kubelet/apis/podresources`.

mod v1alpha1;

use crate::base::metrics::{Metrics, metric_set};
use crate::base::{RequestRate, connections, error_chain};
use crate::host::unix_socket::{SocketFile, listen_in};
use crate::model::{Pod, PodExt as _, is_sidecar};
use crate::resources::devices::allocation::NO_NUMA_NODE;
use crate::resources::dra::ContainerClaim;
use crate::resources::managers::{ExclusiveResources, ResourceManagers};
use crate::resources::{DeviceManagers, PodSetReader, memory};
use anyhow::Context as _;
use k8s_openapi::api::core::v1::Container;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use v1::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use v1alpha1::{AlphaServer, PodResourcesV1alpha1, VersionDispatch};

/// The generated messages, clients and servers of version v1.
#[allow(missing_docs, clippy::all, unreachable_pub, clippy::indexing_slicing)]
pub mod v1 {
    tonic::include_proto!("v1");
}

/// Returns whether a pod may have running containers.
pub type IsActive = Arc<dyn Fn(&Pod) -> bool + Send + Sync>;

metric_set! {
    struct PodResourcesMetrics {
        #[expect(dead_code, reason = "List does not fail here")]
        list_errors: Counter["server_api_version"] = "kubelet_pod_resources_endpoint_errors_list",
            "Number of requests to the PodResource List endpoint which returned error. Broken down by server api version.";
        #[expect(dead_code, reason = "GetAllocatableResources does not fail here")]
        allocatable_errors: Counter["server_api_version"] =
            "kubelet_pod_resources_endpoint_errors_get_allocatable", "Number of requests to the PodResource GetAllocatableResources endpoint which returned error. Broken down by server api version.";
        total: Counter["server_api_version"] = "kubelet_pod_resources_endpoint_requests_total",
            "Cumulative number of requests to the PodResource endpoint. Broken down by server api version.";
        list: Counter["server_api_version"] = "kubelet_pod_resources_endpoint_requests_list",
            "Number of requests to the PodResource List endpoint. Broken down by server api version.";
        allocatable: Counter["server_api_version"] =
            "kubelet_pod_resources_endpoint_requests_get_allocatable", "Number of requests to the PodResource GetAllocatableResources endpoint. Broken down by server api version.";
        get: Counter["server_api_version"] = "kubelet_pod_resources_endpoint_requests_get",
            "Number of requests to the PodResource Get endpoint. Broken down by server api version.";
        get_errors: Counter["server_api_version"] = "kubelet_pod_resources_endpoint_errors_get",
            "Number of requests to the PodResource Get endpoint which returned error. Broken down by server api version.";
    }
}

/// The PodResources service, version v1.
pub struct PodResources {
    desired: PodSetReader,
    is_active: IsActive,
    list_inactive: bool,
    devices: DeviceManagers,
    managers: ResourceManagers,
    metrics: PodResourcesMetrics,
    rate: RequestRate,
}

/// The listening socket; `None` if it could not be created.
pub struct PodResourcesSocket(Option<(StdListener, SocketFile)>);

impl PodResourcesSocket {
    /// Binds the socket; connections wait until [`serve`]. A failure is logged. Blocking.
    pub fn bind(path: &Path) -> Self {
        let bound = listen_in(path).inspect_err(|error| {
            tracing::error!(err = %error_chain(error.as_ref()), "Failed to create listener for podResources endpoint");
        });
        Self(bound.ok())
    }
}

/// Serves until shutdown.
///
/// # Errors
/// The server fails.
pub async fn serve(
    pods: PodResources,
    socket: PodResourcesSocket,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let Some((listener, _socket_file)) = socket.0 else {
        shutdown.cancelled().await;
        return Ok(());
    };
    let incoming = connections("podresources", UnixListener::from_std(listener)?);
    let pods = Arc::new(pods);
    let alpha = PodResourcesV1alpha1(pods.clone());
    let service = VersionDispatch {
        v1: PodResourcesListerServer::from_arc(pods),
        v1alpha1: AlphaServer::new(alpha),
    };
    tokio::select! {
        served = Server::builder().serve_with_incoming(service, incoming) => {
            served.context("the podresources API")
        }
        () = shutdown.cancelled() => Ok(()),
    }
}

impl PodResources {
    /// Builds the service. With `list_inactive`, terminated pods are listed too.
    pub fn new(
        desired: PodSetReader,
        is_active: IsActive,
        list_inactive: bool,
        devices: DeviceManagers,
        managers: ResourceManagers,
        metrics: &Metrics,
    ) -> Self {
        Self {
            desired,
            is_active,
            list_inactive,
            devices,
            managers,
            metrics: PodResourcesMetrics::register(metrics),
            rate: RequestRate::default(),
        }
    }

    fn listed(&self) -> Vec<Arc<Pod>> {
        let mut pods = (self.desired)();
        pods.retain(|pod| self.list_inactive || (self.is_active)(pod));
        pods
    }

    /// The resources of a pod's regular containers and sidecars.
    fn of_pod(&self, pod: &Pod) -> v1::PodResources {
        let sidecars = pod.init_containers().iter().filter(|init| is_sidecar(init));
        let containers = sidecars.chain(pod.containers());
        v1::PodResources {
            name: pod.name().into(),
            namespace: pod.namespace().into(),
            containers: containers.map(|container| self.of_container(pod, container)).collect(),
        }
    }

    fn of_container(&self, pod: &Pod, container: &Container) -> v1::ContainerResources {
        let all = self.devices.plugins.of_container(&pod.uid(), &container.name);
        let devices = all.iter().flat_map(|(resource, own)| {
            let lists = own.devices.iter();
            lists.flat_map(move |(node, ids)| {
                let ids = ids.iter().flatten();
                ids.map(move |id| container_devices(resource, id, Some(*node)))
            })
        });
        let ExclusiveResources { cpus, memory } =
            self.managers.exclusive(&pod.uid(), &container.name);
        let claims = self.devices.dra.of_container(pod, container);
        v1::ContainerResources {
            name: container.name.clone(),
            devices: devices.collect(),
            cpu_ids: cpus,
            memory: memory.iter().map(container_memory).collect(),
            dynamic_resources: claims.into_iter().map(dynamic_resource).collect(),
        }
    }
}

fn dynamic_resource(claim: ContainerClaim) -> v1::DynamicResource {
    let devices = claim.devices.into_iter().map(|device| {
        let names = device.cdi_ids.into_iter();
        v1::ClaimResource {
            cdi_devices: names.map(|name| v1::CdiDevice { name }).collect(),
            driver_name: device.driver,
            pool_name: device.pool,
            device_name: device.device,
            share_id: device.share_id,
        }
    });
    v1::DynamicResource {
        claim_name: claim.name,
        claim_namespace: claim.namespace,
        claim_resources: devices.collect(),
    }
}

fn container_memory(block: &memory::MemoryBlock) -> v1::ContainerMemory {
    let nodes = block.nodes.iter();
    let nodes = nodes.map(|node| v1::NumaNode { id: i64::from(*node) });
    v1::ContainerMemory {
        memory_type: block.resource.clone(),
        size: block.size,
        topology: Some(v1::TopologyInfo { nodes: nodes.collect() }),
    }
}

/// One device with one NUMA node, as upstream lists them.
fn container_devices(resource: &str, device: &str, node: Option<i64>) -> v1::ContainerDevices {
    let node = node.filter(|node| *node != NO_NUMA_NODE);
    v1::ContainerDevices {
        resource_name: resource.into(),
        device_ids: vec![device.into()],
        topology: node.map(|id| v1::TopologyInfo { nodes: vec![v1::NumaNode { id }] }),
    }
}

#[tonic::async_trait]
impl PodResourcesLister for PodResources {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        self.rate.admit()?;
        self.metrics.total.with(["v1"]).inc();
        self.metrics.list.with(["v1"]).inc();
        let pods = self.listed();
        let pod_resources = pods.iter().map(|pod| self.of_pod(pod)).collect();
        Ok(Response::new(v1::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        self.rate.admit()?;
        self.metrics.total.with(["v1"]).inc();
        self.metrics.allocatable.with(["v1"]).inc();
        let all = self.devices.plugins.allocatable();
        let mut devices = Vec::new();
        for (resource, list) in &all {
            for (id, device) in list {
                let nodes = device.numa_nodes.iter();
                let near = nodes.map(|node| container_devices(resource, id, Some(*node)));
                devices.extend(near);
                if device.numa_nodes.is_empty() {
                    devices.push(container_devices(resource, id, None));
                }
            }
        }
        let ExclusiveResources { cpus, memory } = self.managers.allocatable();
        Ok(Response::new(v1::AllocatableResourcesResponse {
            devices,
            cpu_ids: cpus,
            memory: memory.iter().map(container_memory).collect(),
        }))
    }

    async fn get(
        &self,
        request: Request<v1::GetPodResourcesRequest>,
    ) -> Result<Response<v1::GetPodResourcesResponse>, Status> {
        self.rate.admit()?;
        self.metrics.total.with(["v1"]).inc();
        self.metrics.get.with(["v1"]).inc();
        let v1::GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let mut pods = (self.desired)().into_iter();
        let pod = pods.find(|pod| pod.namespace() == pod_namespace && pod.name() == pod_name);
        let Some(pod) = pod.filter(|pod| (self.is_active)(pod)) else {
            self.metrics.get_errors.with(["v1"]).inc();
            let text = format!("pod {pod_name} in namespace {pod_namespace} not found");
            return Err(Status::unknown(text));
        };
        let pod_resources = Some(self.of_pod(&pod));
        Ok(Response::new(v1::GetPodResourcesResponse { pod_resources }))
    }
}
