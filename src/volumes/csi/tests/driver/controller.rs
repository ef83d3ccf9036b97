//! The Controller and Identity services.

use super::proto::controller_server::Controller;
use super::proto::identity_server::Identity;
use super::proto::validate_volume_capabilities_response::Confirmed;
use super::proto::volume_capability::AccessType;
use super::proto::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerServiceCapability,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetPluginCapabilitiesRequest,
    GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse, PluginCapability,
    ProbeRequest, ProbeResponse, Topology, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse, Volume, VolumeCapability,
    controller_service_capability as controller, plugin_capability as plugin,
};
use super::{DriverService, DriverVolumes, JournalEntry, required};
use std::collections::BTreeMap;
use tonic::{Request, Response, Status};

/// The size of a volume whose request has none.
const DEFAULT_CAPACITY: i64 = 1 << 30;

fn no_map() -> BTreeMap<String, String> {
    BTreeMap::new()
}

fn is_supported(volumes: &DriverVolumes, capabilities: &[VolumeCapability]) -> bool {
    let is_supported = |one: &VolumeCapability| match one.access_type {
        Some(AccessType::Mount(_)) => true,
        Some(AccessType::Block(_)) => volumes.has_disks(),
        None => false,
    };
    capabilities.iter().all(is_supported)
}

impl DriverService {
    fn create(&self, request: &CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        required("name", &request.name)?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities is empty"));
        }
        if !is_supported(&self.volumes, &request.volume_capabilities) {
            return Err(Status::invalid_argument("block volumes are not supported"));
        }
        let CapacityRange { required_bytes: least, limit_bytes: limit } =
            request.capacity_range.unwrap_or_default();
        let fits = |capacity: i64| capacity >= least && (limit == 0 || capacity <= limit);
        let all = self.volumes.all();
        let known = all.iter().find(|(_, volume)| volume.name == request.name);
        let (volume_id, capacity_bytes) = match known {
            Some((handle, volume)) if fits(volume.capacity) => (handle.clone(), volume.capacity),
            Some(_) => return Err(Status::already_exists("the volume has another size")),
            None => {
                let capacity = match (least, limit) {
                    (0, 0) => DEFAULT_CAPACITY,
                    (0, limit) => limit,
                    (least, _) => least,
                };
                if !fits(capacity) {
                    return Err(Status::out_of_range("there is no such size"));
                }
                let mut numbers = 1..;
                let handle = numbers.find_map(|number| {
                    let handle = format!("vol-{number}");
                    (!all.contains_key(&handle)).then_some(handle)
                });
                let handle = handle.unwrap();
                self.volumes.create(&handle, capacity, false);
                let name = request.name.clone();
                self.volumes.change(&handle, |volume| volume.name = name);
                (handle, capacity)
            }
        };
        let segments = self.config.topology.clone();
        let topology = (!segments.is_empty()).then_some(Topology { segments });
        Ok(CreateVolumeResponse {
            volume: Some(Volume {
                capacity_bytes,
                volume_id,
                volume_context: request.parameters.clone(),
                accessible_topology: topology.into_iter().collect(),
            }),
        })
    }

    fn delete(&self, handle: &str) -> Result<(), Status> {
        required("volume_id", handle)?;
        let Some(volume) = self.volumes.get(handle) else {
            return Ok(());
        };
        if volume.staged.is_some() || !volume.published.is_empty() {
            return Err(self.violation(format!("{handle} is deleted while it is on a node")));
        }
        if !volume.attached_to.is_empty() {
            return Err(Status::failed_precondition(format!("{handle} is attached")));
        }
        self.volumes.delete(handle);
        Ok(())
    }

    fn attach(
        &self,
        request: &ControllerPublishVolumeRequest,
    ) -> Result<ControllerPublishVolumeResponse, Status> {
        let (handle, node) = (&request.volume_id, &request.node_id);
        required("volume_id", handle)?;
        required("node_id", node)?;
        if request.volume_capability.is_none() {
            return Err(Status::invalid_argument("volume_capability is missing"));
        }
        if self.volumes.get(handle).is_none() {
            return Err(Status::not_found(format!("there is no volume {handle}")));
        }
        if *node != self.config.node_id {
            return Err(Status::not_found(format!("there is no node {node}")));
        }
        let all = self.volumes.all();
        let others = all.iter().filter(|(other, _)| *other != handle);
        let others = others.filter(|(_, volume)| volume.attached_to.contains(node));
        let limit = self.config.max_volumes;
        if limit > 0 && others.count() as i64 >= limit {
            return Err(Status::resource_exhausted(format!("{node} is full")));
        }
        self.volumes.change(handle, |volume| {
            volume.attached_to.insert(node.clone());
        });
        let context = [("attached-to".to_owned(), node.clone())];
        Ok(ControllerPublishVolumeResponse { publish_context: context.into() })
    }

    fn detach(&self, request: &ControllerUnpublishVolumeRequest) -> Result<(), Status> {
        let (handle, node) = (&request.volume_id, &request.node_id);
        required("volume_id", handle)?;
        let Some(volume) = self.volumes.get(handle) else {
            return Ok(());
        };
        if volume.staged.is_some() || !volume.published.is_empty() {
            return Err(self.violation(format!("{handle} is detached while it is on a node")));
        }
        self.volumes.change(handle, |volume| {
            volume.attached_to.retain(|one| !node.is_empty() && one != node);
        });
        Ok(())
    }

    fn grow(
        &self,
        request: &ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        required("volume_id", &request.volume_id)?;
        let range = request.capacity_range;
        let range = range.ok_or_else(|| Status::invalid_argument("capacity_range is missing"))?;
        let volume = self.volumes.get(&request.volume_id);
        let volume = volume.ok_or_else(|| Status::not_found("there is no such volume"))?;
        let capacity_bytes = volume.capacity.max(range.required_bytes);
        self.volumes.change(&request.volume_id, |volume| volume.capacity = capacity_bytes);
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes,
            node_expansion_required: self.config.expand,
        })
    }
}

#[tonic::async_trait]
impl Controller for DriverService {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let entry = JournalEntry::new("CreateVolume", "")
            .secrets(&request.secrets)
            .contexts(&request.parameters, &no_map());
        let work = move |service: &Self| service.create(&request);
        self.run(entry, work).await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        let entry = JournalEntry::new("DeleteVolume", &request.volume_id).secrets(&request.secrets);
        let work = move |service: &Self| {
            let deleted = service.delete(&request.volume_id);
            deleted.map(|()| DeleteVolumeResponse {})
        };
        self.run(entry, work).await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let entry = JournalEntry::new("ControllerPublishVolume", &request.volume_id)
            .secrets(&request.secrets)
            .contexts(&request.volume_context, &no_map())
            .capability(request.volume_capability.as_ref());
        let work = move |service: &Self| service.attach(&request);
        self.run(entry, work).await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let entry = JournalEntry::new("ControllerUnpublishVolume", &request.volume_id)
            .secrets(&request.secrets);
        let work = move |service: &Self| {
            let detached = service.detach(&request);
            detached.map(|()| ControllerUnpublishVolumeResponse {})
        };
        self.run(entry, work).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        let entry = JournalEntry::new("ValidateVolumeCapabilities", &request.volume_id)
            .secrets(&request.secrets);
        let work = move |service: &Self| {
            required("volume_id", &request.volume_id)?;
            if request.volume_capabilities.is_empty() {
                return Err(Status::invalid_argument("volume_capabilities is empty"));
            }
            if service.volumes.get(&request.volume_id).is_none() {
                return Err(Status::not_found("there is no such volume"));
            }
            let is_supported = is_supported(&service.volumes, &request.volume_capabilities);
            let confirmed = is_supported.then_some(Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
            });
            let message = match &confirmed {
                Some(_) => String::new(),
                None => "block volumes are not supported".to_owned(),
            };
            Ok(ValidateVolumeCapabilitiesResponse { confirmed, message })
        };
        self.run(entry, work).await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        use controller::rpc::Type;
        let config = &self.config;
        let capabilities = [
            (true, Type::CreateDeleteVolume),
            (config.attach, Type::PublishUnpublishVolume),
            (config.expand, Type::ExpandVolume),
            (config.single_node_multi_writer, Type::SingleNodeMultiWriter),
        ];
        let capable = capabilities.into_iter().filter(|(has, _)| *has);
        let capabilities = capable.map(|(_, rpc)| ControllerServiceCapability {
            r#type: Some(controller::Type::Rpc(controller::Rpc { r#type: rpc.into() })),
        });
        Ok(Response::new(ControllerGetCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let entry = JournalEntry::new("ControllerExpandVolume", &request.volume_id)
            .secrets(&request.secrets)
            .capability(request.volume_capability.as_ref());
        let work = move |service: &Self| service.grow(&request);
        self.run(entry, work).await
    }
}

#[tonic::async_trait]
impl Identity for DriverService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.config.name.clone(),
            vendor_version: "1.0.0".into(),
            manifest: no_map(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        use plugin::{Service, Type, VolumeExpansion, service, volume_expansion};
        let of_service = |kind: service::Type| {
            let r#type = kind.into();
            Some(Type::Service(Service { r#type }))
        };
        let mut types = vec![of_service(service::Type::ControllerService)];
        if !self.config.topology.is_empty() {
            let kind = service::Type::VolumeAccessibilityConstraints;
            types.push(of_service(kind));
        }
        if self.config.expand {
            let r#type = volume_expansion::Type::Online.into();
            types.push(Some(Type::VolumeExpansion(VolumeExpansion { r#type })));
        }
        let capabilities = types.into_iter().map(|r#type| PluginCapability { r#type });
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: capabilities.collect() }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
