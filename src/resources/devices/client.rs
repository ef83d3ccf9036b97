//! Calls to a device plugin, each with a timeout.

use super::error::DeviceAllocationError;
use super::proto::device_plugin_client::DevicePluginClient;
use super::proto::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreferredAllocationRequest,
};
use super::state::PreferredAllocationQuery;
use crate::resources::plugin_manager::connection::{CONNECT_TIMEOUT, call_with_timeout, dial};
use std::path::Path;
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to a plugin; clones share it.
#[derive(Clone, Debug)]
pub(super) struct PluginClient(DevicePluginClient<Channel>);

impl PluginClient {
    /// Connects to a plugin and reads its options.
    pub(super) async fn connect(socket: &Path) -> Result<(Self, DevicePluginOptions), String> {
        let channel = dial(socket).await;
        let channel = channel.map_err(|error| format!("failed to dial device plugin: {error}"))?;
        let mut client = DevicePluginClient::new(channel);
        let options = client.get_device_plugin_options(Empty {});
        let options = call_with_timeout(CONNECT_TIMEOUT, options).await;
        let options =
            options.map_err(|error| format!("failed to get device plugin options: {error}"))?;
        Ok((Self(client), options))
    }

    /// Opens the `ListAndWatch` stream.
    pub(super) async fn list_and_watch(
        mut self,
    ) -> Result<Streaming<ListAndWatchResponse>, Status> {
        Ok(self.0.list_and_watch(Empty {}).await?.into_inner())
    }

    /// Calls `GetPreferredAllocation`.
    pub(super) async fn get_preferred_allocation(
        mut self,
        wanted: PreferredAllocationQuery,
    ) -> Result<Vec<String>, DeviceAllocationError> {
        let request = ContainerPreferredAllocationRequest {
            available_device_i_ds: wanted.available,
            must_include_device_i_ds: wanted.must_include,
            allocation_size: i32::try_from(wanted.size).unwrap_or(i32::MAX),
        };
        let call = self.0.get_preferred_allocation(PreferredAllocationRequest {
            container_requests: vec![request],
        });
        let response = call_with_timeout(CALL_TIMEOUT, call)
            .await
            .map_err(DeviceAllocationError::GetPreferredAllocation)?;
        let first = response.container_responses.into_iter().next();
        Ok(first.map(|first| first.device_i_ds).unwrap_or_default())
    }

    /// Calls `Allocate` for the devices of a container.
    pub(super) async fn allocate(
        mut self,
        devices: Vec<String>,
    ) -> Result<ContainerAllocateResponse, DeviceAllocationError> {
        let request = ContainerAllocateRequest { devices_ids: devices };
        let call = self.0.allocate(AllocateRequest { container_requests: vec![request] });
        let response =
            call_with_timeout(CALL_TIMEOUT, call).await.map_err(DeviceAllocationError::Allocate)?;
        let first = response.container_responses.into_iter().next();
        first.ok_or(DeviceAllocationError::NoResponse)
    }

    /// Calls `PreStartContainer` with the devices of a container.
    pub(super) async fn pre_start(
        mut self,
        devices: Vec<String>,
    ) -> Result<(), DeviceAllocationError> {
        let request = PreStartContainerRequest { devices_ids: devices };
        let call = self.0.pre_start_container(request);
        call_with_timeout(CALL_TIMEOUT, call).await.map_err(DeviceAllocationError::PreStart)?;
        Ok(())
    }
}
