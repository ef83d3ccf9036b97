//! The world as messages, with filters and with lies.

use std::collections::HashMap;

use kubelet::cri::v1;

use super::faults::Distortion;
use super::world::{Container, Sandbox, UID_LABEL, World};

pub fn sandbox_status(sandbox: &Sandbox) -> v1::PodSandboxStatus {
    let ready = sandbox.state == v1::PodSandboxState::SandboxReady;
    let options = sandbox.config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let options = options.and_then(|context| context.namespace_options.clone());
    v1::PodSandboxStatus {
        id: sandbox.id.clone(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox.state.into(),
        created_at: sandbox.created_at,
        network: Some(v1::PodSandboxNetworkStatus {
            ip: if ready { sandbox.ip.clone() } else { String::new() },
            additional_ips: Vec::new(),
        }),
        linux: Some(v1::LinuxPodSandboxStatus { namespaces: Some(v1::Namespace { options }) }),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.handler.clone(),
    }
}

fn sandbox_item(sandbox: &Sandbox) -> v1::PodSandbox {
    v1::PodSandbox {
        id: sandbox.id.clone(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox.state.into(),
        created_at: sandbox.created_at,
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.handler.clone(),
    }
}

pub fn container_status(container: &Container) -> v1::ContainerStatus {
    v1::ContainerStatus {
        id: container.id.clone(),
        metadata: container.config.metadata.clone(),
        state: container.state.into(),
        created_at: container.created_at,
        started_at: container.started_at,
        finished_at: container.finished_at,
        exit_code: container.exit_code,
        image: container.config.image.clone(),
        image_ref: container.image_id.clone(),
        reason: container.reason.clone(),
        message: container.message.clone(),
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
        mounts: container.config.mounts.clone(),
        log_path: container.log_path.display().to_string(),
        resources: container
            .resources
            .clone()
            .map(|linux| v1::ContainerResources { linux: Some(linux), windows: None }),
        image_id: container.image_id.clone(),
        user: None,
        stop_signal: container.config.stop_signal,
    }
}

fn container_item(container: &Container) -> v1::Container {
    v1::Container {
        id: container.id.clone(),
        pod_sandbox_id: container.sandbox.clone(),
        metadata: container.config.metadata.clone(),
        image: container.config.image.clone(),
        image_ref: container.image_id.clone(),
        state: container.state.into(),
        created_at: container.created_at,
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
        image_id: container.image_id.clone(),
    }
}

fn selected(labels: &HashMap<String, String>, selector: &HashMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// The matching sandboxes; a filter by id or pod uid costs only that pod.
pub fn list_sandboxes(world: &World, filter: Option<&v1::PodSandboxFilter>) -> Vec<v1::PodSandbox> {
    let none = v1::PodSandboxFilter::default();
    let filter = filter.unwrap_or(&none);
    let matches = |sandbox: &&Sandbox| {
        (filter.id.is_empty() || filter.id == sandbox.id)
            && filter.state.as_ref().is_none_or(|state| state.state() == sandbox.state)
            && selected(&sandbox.config.labels, &filter.label_selector)
    };
    if !filter.id.is_empty() {
        return world
            .sandboxes
            .get(&filter.id)
            .into_iter()
            .filter(matches)
            .map(sandbox_item)
            .collect();
    }
    if let Some(uid) = filter.label_selector.get(UID_LABEL) {
        let ids = world.sandboxes_of(uid);
        return ids
            .iter()
            .filter_map(|id| world.sandboxes.get(id))
            .filter(matches)
            .map(sandbox_item)
            .collect();
    }
    world.sandboxes.values().filter(matches).map(sandbox_item).collect()
}

/// The matching containers; a filter by id, sandbox or pod uid costs only that pod.
pub fn list_containers(world: &World, filter: Option<&v1::ContainerFilter>) -> Vec<v1::Container> {
    select_containers(world, filter).into_iter().map(container_item).collect()
}

pub fn select_containers<'w>(
    world: &'w World,
    filter: Option<&v1::ContainerFilter>,
) -> Vec<&'w Container> {
    let none = v1::ContainerFilter::default();
    let filter = filter.unwrap_or(&none);
    let matches = |container: &&Container| {
        (filter.id.is_empty() || filter.id == container.id)
            && (filter.pod_sandbox_id.is_empty() || filter.pod_sandbox_id == container.sandbox)
            && filter.state.as_ref().is_none_or(|state| state.state() == container.state)
            && selected(&container.config.labels, &filter.label_selector)
    };
    if !filter.id.is_empty() {
        return world.containers.get(&filter.id).into_iter().filter(matches).collect();
    }
    let sandboxes = if !filter.pod_sandbox_id.is_empty() {
        vec![filter.pod_sandbox_id.clone()]
    } else if let Some(uid) = filter.label_selector.get(UID_LABEL) {
        world.sandboxes_of(uid)
    } else {
        return world.containers.values().filter(matches).collect();
    };
    let ids = sandboxes.iter().flat_map(|sandbox| world.containers_of(sandbox)).collect::<Vec<_>>();
    ids.iter().filter_map(|id| world.containers.get(id)).filter(matches).collect()
}

/// Bends answers.
pub trait Bend {
    fn bend(&mut self, distort: &Distortion);
}

fn other_id(id: &str) -> String {
    id.chars().rev().collect()
}

fn bend_labels(labels: &mut HashMap<String, String>, uid: &str) {
    if let Some(value) = labels.get_mut(UID_LABEL) {
        *value = uid.to_owned();
    }
}

fn bend_metadata(metadata: &mut Option<v1::PodSandboxMetadata>, uid: &str) {
    if let Some(metadata) = metadata {
        metadata.uid = uid.to_owned();
    }
}

fn keep_every_second<T>(items: &mut Vec<T>) {
    let mut keep = false;
    items.retain(|_| {
        keep = !keep;
        keep
    });
}

impl Bend for Vec<v1::PodSandbox> {
    fn bend(&mut self, distort: &Distortion) {
        match distort {
            Distortion::EmptyLists => self.clear(),
            Distortion::HalfLists => keep_every_second(self),
            Distortion::DuplicateNames => {
                let overlaps = self
                    .iter()
                    .map(|item| v1::PodSandbox { id: other_id(&item.id), ..item.clone() });
                let overlaps = overlaps.collect::<Vec<_>>();
                self.extend(overlaps);
            }
            Distortion::WrongUid(uid) => {
                for item in self {
                    bend_labels(&mut item.labels, uid);
                    bend_metadata(&mut item.metadata, uid);
                }
            }
            Distortion::NoIp | Distortion::State(_) => {}
        }
    }
}

impl Bend for Vec<v1::Container> {
    fn bend(&mut self, distort: &Distortion) {
        match distort {
            Distortion::EmptyLists => self.clear(),
            Distortion::HalfLists => keep_every_second(self),
            Distortion::DuplicateNames => {
                let overlaps = self
                    .iter()
                    .map(|item| v1::Container { id: other_id(&item.id), ..item.clone() });
                let overlaps = overlaps.collect::<Vec<_>>();
                self.extend(overlaps);
            }
            Distortion::WrongUid(uid) => {
                self.iter_mut().for_each(|item| bend_labels(&mut item.labels, uid))
            }
            Distortion::State(state) => self.iter_mut().for_each(|item| item.state = *state),
            Distortion::NoIp => {}
        }
    }
}

impl Bend for v1::PodSandboxStatus {
    fn bend(&mut self, distort: &Distortion) {
        match distort {
            Distortion::NoIp => self.network = Some(v1::PodSandboxNetworkStatus::default()),
            Distortion::WrongUid(uid) => {
                bend_labels(&mut self.labels, uid);
                bend_metadata(&mut self.metadata, uid);
            }
            _ => {}
        }
    }
}

impl Bend for v1::ContainerStatus {
    fn bend(&mut self, distort: &Distortion) {
        match distort {
            Distortion::State(state) => self.state = *state,
            Distortion::WrongUid(uid) => bend_labels(&mut self.labels, uid),
            _ => {}
        }
    }
}
