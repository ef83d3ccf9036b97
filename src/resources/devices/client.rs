//! Calls of one device plugin, each with a deadline.

use super::{
    error::AllocationError,
    proto::{
        AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
        ContainerPreferredAllocationRequest, DevicePluginOptions, Empty, ListAndWatchResponse,
        PreStartContainerRequest, PreferredAllocationRequest,
        device_plugin_client::DevicePluginClient,
    },
    state::Preference,
};
use crate::{base::chain, cri::go_code};
use hyper_util::rt::TokioIo;
use std::{io, path::Path, time::Duration};
use tokio::{net::UnixStream, time::timeout};
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint},
};

/// How long a plugin may take to accept a connection, and to say what it can do.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take to prepare devices or a container.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to a plugin; clones share it.
#[derive(Clone, Debug)]
pub(super) struct PluginClient(DevicePluginClient<Channel>);

/// Opens a connection to a gRPC server on a Unix socket.
pub(super) async fn dial(socket: &Path) -> Result<Channel, String> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    // The authority is not used on a Unix socket; plugins expect "localhost".
    let endpoint = Endpoint::from_static("http://localhost");
    let connecting = endpoint.connect_with_connector(connector);
    match timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err("context deadline exceeded".into()),
    }
}

impl PluginClient {
    /// Connects to a plugin and reads what it can do.
    pub(super) async fn connect(socket: &Path) -> Result<(Self, DevicePluginOptions), String> {
        let channel = dial(socket).await;
        let channel = channel.map_err(|error| format!("failed to dial device plugin: {error}"))?;
        let mut client = DevicePluginClient::new(channel);
        let options = client.get_device_plugin_options(Empty {});
        let options = within(CONNECT_TIMEOUT, options).await;
        let options =
            options.map_err(|error| format!("failed to get device plugin options: {error}"))?;
        Ok((Self(client), options))
    }

    /// The plugin's devices, again whenever they change.
    pub(super) async fn list_and_watch(
        mut self,
    ) -> Result<Streaming<ListAndWatchResponse>, Status> {
        Ok(self.0.list_and_watch(Empty {}).await?.into_inner())
    }

    /// Devices that the plugin would rather see used.
    pub(super) async fn prefer(
        mut self,
        wanted: Preference,
    ) -> Result<Vec<String>, AllocationError> {
        let request = ContainerPreferredAllocationRequest {
            available_device_i_ds: wanted.available,
            must_include_device_i_ds: wanted.must_include,
            allocation_size: i32::try_from(wanted.size).unwrap_or(i32::MAX),
        };
        let call = self.0.get_preferred_allocation(PreferredAllocationRequest {
            container_requests: vec![request],
        });
        let response = within(CALL_TIMEOUT, call)
            .await
            .map_err(AllocationError::Prefer)?;
        let first = response.container_responses.into_iter().next();
        Ok(first.map(|first| first.device_i_ds).unwrap_or_default())
    }

    /// Has devices prepared for a container.
    pub(super) async fn allocate(
        mut self,
        devices: Vec<String>,
    ) -> Result<ContainerAllocateResponse, AllocationError> {
        let request = ContainerAllocateRequest {
            devices_ids: devices,
        };
        let call = self.0.allocate(AllocateRequest {
            container_requests: vec![request],
        });
        let response = within(CALL_TIMEOUT, call)
            .await
            .map_err(AllocationError::Allocate)?;
        let first = response.container_responses.into_iter().next();
        first.ok_or(AllocationError::NoResponse)
    }

    /// Says that a container with these devices is about to be created.
    pub(super) async fn pre_start(mut self, devices: Vec<String>) -> Result<(), AllocationError> {
        let request = PreStartContainerRequest {
            devices_ids: devices,
        };
        let call = self.0.pre_start_container(request);
        within(CALL_TIMEOUT, call)
            .await
            .map_err(AllocationError::PreStart)?;
        Ok(())
    }
}

/// The response of a call, or its error as the Go kubelet writes it.
pub(super) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, String> {
    match timeout(limit, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(text(&status)),
        Err(_) => Err(text(&Status::deadline_exceeded(
            "context deadline exceeded",
        ))),
    }
}

/// An error as the Go kubelet writes it.
pub(super) fn text(status: &Status) -> String {
    format!(
        "rpc error: code = {} desc = {}",
        go_code(status.code()),
        status.message()
    )
}
