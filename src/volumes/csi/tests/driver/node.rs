//! The Node service.

use super::proto::node_server::Node;
use super::proto::node_service_capability::rpc::Type;
use super::proto::node_service_capability::{Rpc, Type as Kind};
use super::proto::volume_capability::AccessType;
use super::proto::volume_capability::access_mode::Mode;
use super::proto::volume_usage::Unit;
use super::proto::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
    NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, Topology, VolumeCapability,
    VolumeCondition, VolumeUsage,
};
use super::{DriverService, DriverVolume, JournalEntry, required};
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use tonic::{Request, Response, Status};

/// Key of the volume context that marks an inline volume.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

fn io_error(error: std::io::Error) -> Status {
    Status::internal(error.to_string())
}

fn is_block(capability: &VolumeCapability) -> bool {
    matches!(capability.access_type, Some(AccessType::Block(_)))
}

fn is_device_at(path: &str) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_block_device())
}

impl DriverService {
    fn volume(&self, handle: &str) -> Result<DriverVolume, Status> {
        let volume = self.volumes.get(handle);
        volume.ok_or_else(|| Status::not_found(format!("there is no volume {handle}")))
    }

    /// The checks that stage and publish have in common.
    fn check_capability(
        &self,
        capability: Option<VolumeCapability>,
    ) -> Result<VolumeCapability, Status> {
        let capability =
            capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))?;
        let mode = capability.access_mode.as_ref().map(|mode| mode.mode());
        let is_new =
            matches!(mode, Some(Mode::SingleNodeSingleWriter | Mode::SingleNodeMultiWriter));
        match mode {
            None | Some(Mode::Unknown) => {
                return Err(Status::invalid_argument("access_mode is missing"));
            }
            _ if is_new && !self.config.single_node_multi_writer => {
                let text = "the access mode needs SINGLE_NODE_MULTI_WRITER";
                return Err(Status::invalid_argument(text));
            }
            _ => {}
        }
        match &capability.access_type {
            None => return Err(Status::invalid_argument("access_type is missing")),
            Some(AccessType::Block(_)) if self.volumes.has_disks() => {}
            Some(AccessType::Block(_)) => {
                return Err(Status::invalid_argument("block volumes are not supported"));
            }
            Some(AccessType::Mount(mount)) => {
                let has_group = !mount.volume_mount_group.is_empty();
                if has_group && !self.config.volume_mount_group {
                    let text = "volume_mount_group without VOLUME_MOUNT_GROUP".to_owned();
                    return Err(self.violation(text));
                }
            }
        }
        Ok(capability)
    }

    fn stage(&self, request: NodeStageVolumeRequest) -> Result<(), Status> {
        let (handle, path) = (&request.volume_id, &request.staging_target_path);
        if !self.config.stage_unstage {
            return Err(Status::unimplemented("volumes are not staged"));
        }
        required("volume_id", handle)?;
        required("staging_target_path", path)?;
        let capability = self.check_capability(request.volume_capability)?;
        let volume = self.volume(handle)?;
        if self.config.attach && !volume.attached_to.contains(&self.config.node_id) {
            return Err(self.violation(format!("{handle} is staged before it is attached")));
        }
        match &volume.staged {
            Some((at, _)) if at != path => {
                let text = format!("{handle} is staged at {path} and at {at}");
                return Err(self.violation(text));
            }
            Some((_, known)) if *known != capability => {
                let text = format!("{handle} is staged with another capability");
                return Err(Status::already_exists(text));
            }
            Some(_) => return Ok(()),
            None => {}
        }
        if !Path::new(path).is_dir() {
            return Err(self.violation(format!("staging path {path} is no directory")));
        }
        let staged = if is_block(&capability) {
            self.volumes.attach_disk(handle).map(drop)
        } else {
            let data = self.volumes.data(handle);
            self.volumes.mount(&data, path.as_ref(), false)
        };
        staged.map_err(io_error)?;
        let staged = Some((path.clone(), capability));
        self.volumes.change(handle, |volume| volume.staged = staged);
        Ok(())
    }

    fn unstage(&self, request: NodeUnstageVolumeRequest) -> Result<(), Status> {
        let (handle, path) = (&request.volume_id, &request.staging_target_path);
        if !self.config.stage_unstage {
            return Err(Status::unimplemented("volumes are not staged"));
        }
        required("volume_id", handle)?;
        required("staging_target_path", path)?;
        let volume = self.volume(handle)?;
        if !volume.published.is_empty() {
            return Err(self.violation(format!("{handle} is unstaged while it is published")));
        }
        self.volumes.unmount(path.as_ref()).map_err(io_error)?;
        self.volumes.detach_disk(handle).map_err(io_error)?;
        self.volumes.change(handle, |volume| volume.staged = None);
        Ok(())
    }

    fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), Status> {
        let (handle, target) = (&request.volume_id, &request.target_path);
        required("volume_id", handle)?;
        required("target_path", target)?;
        let capability = self.check_capability(request.volume_capability)?;
        let is_inline = request.volume_context.get(EPHEMERAL).is_some_and(|text| text == "true");
        if is_inline && self.volumes.get(handle).is_none() {
            self.volumes.create(handle, 1 << 30, true);
        }
        let volume = self.volume(handle)?;
        if self.config.attach && !is_inline && !volume.attached_to.contains(&self.config.node_id) {
            return Err(self.violation(format!("{handle} is published before it is attached")));
        }
        let known = (capability.clone(), request.readonly);
        match volume.published.get(target) {
            Some(published) if *published != known => {
                let text = format!("{handle} is published with another capability");
                return Err(Status::already_exists(text));
            }
            Some(_) => return Ok(()),
            None => {}
        }
        let is_single = capability.access_mode.as_ref().map(|mode| mode.mode())
            == Some(Mode::SingleNodeSingleWriter);
        if is_single && !volume.published.is_empty() {
            return Err(self.violation(format!("{handle} is published to a second writer")));
        }
        let source = if self.config.stage_unstage && !is_inline {
            let staged_at = volume.staged.as_ref().map(|(path, _)| path);
            if staged_at != Some(&request.staging_target_path) {
                let at = &request.staging_target_path;
                return Err(
                    self.violation(format!("{handle} is published but not staged at {at:?}"))
                );
            }
            request.staging_target_path.clone().into()
        } else {
            self.volumes.data(handle)
        };
        let target_path = Path::new(target);
        if !target_path.parent().is_some_and(Path::is_dir) {
            return Err(self.violation(format!("there is no directory for {target}")));
        }
        let published = if is_block(&capability) {
            let device = self.volumes.attach_disk(handle).map_err(io_error)?;
            self.volumes.show_device(&device, target_path)
        } else {
            fs::create_dir_all(target_path).map_err(io_error)?;
            self.volumes.mount(&source, target_path, request.readonly)
        };
        published.map_err(io_error)?;
        self.volumes.change(handle, |volume| {
            volume.published.insert(target.clone(), known);
        });
        Ok(())
    }

    fn unpublish(&self, request: NodeUnpublishVolumeRequest) -> Result<(), Status> {
        let (handle, target) = (&request.volume_id, &request.target_path);
        required("volume_id", handle)?;
        required("target_path", target)?;
        let is_inline = match self.volumes.get(handle) {
            Some(volume) => volume.is_inline,
            // An inline volume is gone with its last target.
            None if handle.starts_with("csi-") => return Ok(()),
            None => return Err(self.volume(handle).unwrap_err()),
        };
        self.volumes.unmount(target.as_ref()).map_err(io_error)?;
        use std::io::ErrorKind::{NotADirectory, NotFound, ResourceBusy};
        let removed = match fs::remove_dir(target) {
            Err(error) if error.kind() == NotADirectory => fs::remove_file(target),
            removed => removed,
        };
        match removed {
            // A mount may have been left.
            Err(error) if !matches!(error.kind(), NotFound | ResourceBusy) => {
                return Err(io_error(error));
            }
            _ => {}
        }
        self.volumes.change(handle, |volume| {
            volume.published.remove(target);
        });
        if is_inline {
            self.volumes.delete(handle);
        } else if !self.config.stage_unstage
            && (self.volumes.get(handle)).is_some_and(|volume| volume.published.is_empty())
        {
            self.volumes.detach_disk(handle).map_err(io_error)?;
        }
        Ok(())
    }

    fn stats(
        &self,
        request: &NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        required("volume_id", &request.volume_id)?;
        required("volume_path", &request.volume_path)?;
        let volume = self.volume(&request.volume_id)?;
        let path = &request.volume_path;
        let is_staged = volume.staged.as_ref().is_some_and(|(at, _)| at == path);
        let is_device = is_device_at(path) && !volume.published.is_empty();
        if !is_staged && !is_device && !volume.published.contains_key(path) {
            return Err(Status::not_found(format!("nothing is published at {path}")));
        }
        let files = fs::read_dir(self.volumes.data(&request.volume_id)).map_err(io_error)?;
        let sizes = files.flatten().filter_map(|file| file.metadata().ok());
        let sizes: Vec<_> = sizes.map(|meta| meta.len() as i64).collect();
        let usage = |unit: Unit, total: i64, used: i64| VolumeUsage {
            available: total - used,
            total,
            used,
            unit: unit.into(),
        };
        Ok(NodeGetVolumeStatsResponse {
            usage: vec![
                usage(Unit::Bytes, volume.node_capacity, sizes.iter().sum()),
                usage(Unit::Inodes, 1000, sizes.len() as i64),
            ],
            volume_condition: self.config.volume_condition.then(|| VolumeCondition {
                abnormal: volume.abnormal.is_some(),
                message: volume.abnormal.unwrap_or_else(|| "all is well".into()),
            }),
        })
    }

    fn expand(&self, request: &NodeExpandVolumeRequest) -> Result<i64, Status> {
        if !self.config.expand {
            return Err(Status::unimplemented("volumes are not expanded on nodes"));
        }
        required("volume_id", &request.volume_id)?;
        required("volume_path", &request.volume_path)?;
        let volume = self.volume(&request.volume_id)?;
        let range = request.capacity_range.as_ref();
        let wanted = range.map_or(volume.capacity, |range| range.required_bytes);
        if wanted > volume.capacity {
            return Err(Status::out_of_range("the controller has not expanded it"));
        }
        let path = &request.volume_path;
        let is_staged = volume.staged.as_ref().is_some_and(|(at, _)| at == path);
        match volume.published.get(path) {
            None if is_staged => {}
            None => {
                return Err(Status::not_found(format!("nothing is published at {path}")));
            }
            Some((_, true)) => {
                return Err(self.violation(format!("{path} is expanded and read-only")));
            }
            Some((_, false)) => {}
        }
        let staged_at = volume.staged.as_ref().map(|(path, _)| path.as_str());
        let at = request.staging_target_path.as_str();
        if !at.is_empty() && staged_at != Some(at) {
            return Err(self.violation(format!("what is expanded is not staged at {at:?}")));
        }
        let reached = wanted.max(volume.node_capacity);
        let grown = self.volumes.grow(&request.volume_id, reached);
        grown.map_err(io_error)?;
        Ok(reached)
    }
}

#[tonic::async_trait]
impl Node for DriverService {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let entry = JournalEntry::new("NodeStageVolume", &request.volume_id)
            .paths(&request.staging_target_path, "")
            .secrets(&request.secrets)
            .contexts(&request.volume_context, &request.publish_context)
            .capability(request.volume_capability.as_ref());
        let work = |service: &Self| service.stage(request).map(|()| NodeStageVolumeResponse {});
        self.run(entry, work).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let entry = JournalEntry::new("NodeUnstageVolume", &request.volume_id)
            .paths(&request.staging_target_path, "");
        let work = |service: &Self| {
            let unstaged = service.unstage(request);
            unstaged.map(|()| NodeUnstageVolumeResponse {})
        };
        self.run(entry, work).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let entry = JournalEntry {
            readonly: request.readonly,
            ..JournalEntry::new("NodePublishVolume", &request.volume_id)
        };
        let entry = entry
            .paths(&request.staging_target_path, &request.target_path)
            .secrets(&request.secrets)
            .contexts(&request.volume_context, &request.publish_context)
            .capability(request.volume_capability.as_ref());
        let work = |service: &Self| {
            let published = service.publish(request);
            published.map(|()| NodePublishVolumeResponse {})
        };
        self.run(entry, work).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let entry = JournalEntry::new("NodeUnpublishVolume", &request.volume_id)
            .paths("", &request.target_path);
        let work = |service: &Self| {
            let unpublished = service.unpublish(request);
            unpublished.map(|()| NodeUnpublishVolumeResponse {})
        };
        self.run(entry, work).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let entry = JournalEntry::new("NodeGetVolumeStats", &request.volume_id)
            .paths(&request.staging_target_path, &request.volume_path);
        let work = move |service: &Self| service.stats(&request);
        self.run(entry, work).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let entry = JournalEntry::new("NodeExpandVolume", &request.volume_id)
            .paths(&request.staging_target_path, &request.volume_path)
            .secrets(&request.secrets)
            .capability(request.volume_capability.as_ref());
        let work = move |service: &Self| {
            let expanded = service.expand(&request);
            expanded.map(|capacity_bytes| NodeExpandVolumeResponse { capacity_bytes })
        };
        self.run(entry, work).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let entry = JournalEntry::new("NodeGetCapabilities", "");
        let work = |service: &Self| {
            let config = &service.config;
            let capabilities = [
                (config.stage_unstage, Type::StageUnstageVolume),
                (config.volume_stats, Type::GetVolumeStats),
                (config.expand, Type::ExpandVolume),
                (config.volume_condition, Type::VolumeCondition),
                (config.volume_mount_group, Type::VolumeMountGroup),
                (config.single_node_multi_writer, Type::SingleNodeMultiWriter),
            ];
            let capable = capabilities.into_iter().filter(|(has, _)| *has);
            let capabilities = capable.map(|(_, rpc)| NodeServiceCapability {
                r#type: Some(Kind::Rpc(Rpc { r#type: rpc.into() })),
            });
            Ok(NodeGetCapabilitiesResponse { capabilities: capabilities.collect() })
        };
        self.run(entry, work).await
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let work = |service: &Self| {
            let segments = service.config.topology.clone();
            Ok(NodeGetInfoResponse {
                node_id: service.config.node_id.clone(),
                max_volumes_per_node: service.config.max_volumes,
                accessible_topology: (!segments.is_empty()).then_some(Topology { segments }),
            })
        };
        self.run(JournalEntry::new("NodeGetInfo", ""), work).await
    }
}
