//! The runtime's honest state: sandboxes, containers, images, and how they change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet::cri::v1;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use v1::{ContainerEventType as Event, ContainerState, PodSandboxState};

use super::behaviour::{Behaviour, Behaviours};
use super::calls::Subject;
use super::events::Subscribers;
use super::history::{End, History};
use super::logs::LogFile;

/// The label that the kubelet puts on everything of a pod.
pub const UID_LABEL: &str = "io.kubernetes.pod.uid";

pub struct Sandbox {
    pub id: String,
    pub config: v1::PodSandboxConfig,
    pub handler: String,
    pub state: PodSandboxState,
    pub created_at: i64,
    pub ip: String,
}

pub struct Container {
    pub id: String,
    pub sandbox: String,
    pub config: v1::ContainerConfig,
    pub state: ContainerState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    pub reason: String,
    pub message: String,
    pub image_id: String,
    /// The whole path of its log; empty when it has none.
    pub log_path: PathBuf,
    pub resources: Option<v1::LinuxContainerResources>,
    pub life: Behaviour,
    /// It has received the stop signal.
    pub asked_to_end: bool,
    /// When it will end by itself, and how.
    pub ends_at: Option<(i64, i32)>,
    /// Fires when it has ended.
    pub ended: CancellationToken,
    pub log: Option<LogFile>,
}

/// What the rest of a StartContainer must wait for, outside of the lock.
pub struct Started {
    pub exit: Option<(Duration, i32)>,
}

#[derive(Default)]
pub struct World {
    pub sandboxes: BTreeMap<String, Sandbox>,
    pub containers: BTreeMap<String, Container>,
    sandboxes_by_uid: HashMap<String, BTreeSet<String>>,
    containers_by_sandbox: HashMap<String, BTreeSet<String>>,
    names: HashMap<String, String>,
    pub images: BTreeMap<String, v1::Image>,
    pub behaviours: Behaviours,
    pub subscribers: Subscribers,
    pub write_logs: bool,
    pub history: History,
    next_ip: u32,
    next_id: u64,
}

impl World {
    fn new_id(&mut self) -> String {
        self.next_id += 1;
        // Sixty-four hex digits that share no prefix, the same in every run.
        let mut rng = fastrand::Rng::with_seed(self.next_id);
        (0..4).map(|_| format!("{:016x}", rng.u64(..))).collect()
    }

    fn new_ip(&mut self) -> String {
        self.next_ip += 1;
        let n = self.next_ip;
        format!("10.{}.{}.{}", 96 + (n >> 16), (n >> 8) & 255, n & 255)
    }

    fn reserve(&mut self, kind: &str, name: &str, id: &str) -> Result<(), Status> {
        if let Some(owner) = self.names.get(name) {
            return Err(Status::already_exists(format!(
                "failed to reserve {kind} name \"{name}\": name \"{name}\" is reserved for \"{owner}\""
            )));
        }
        self.names.insert(name.to_owned(), id.to_owned());
        Ok(())
    }

    pub fn run_sandbox(
        &mut self,
        request: v1::RunPodSandboxRequest,
        now: i64,
    ) -> Result<String, Status> {
        let config = request.config.ok_or_else(|| Status::invalid_argument("no sandbox config"))?;
        let metadata = config.metadata.clone().unwrap_or_default();
        let id = self.new_id();
        self.reserve("sandbox", &sandbox_name(&metadata), &id)?;
        let ip = if on_host_network(&config) { String::new() } else { self.new_ip() };
        let uid = uid_of(&config);
        self.note_twins(&Subject {
            id: id.clone(),
            namespace: metadata.namespace,
            pod: metadata.name,
            uid: uid.clone(),
            ..Subject::default()
        });
        self.sandboxes_by_uid.entry(uid).or_default().insert(id.clone());
        let handler = request.runtime_handler;
        let state = PodSandboxState::SandboxReady;
        let sandbox = Sandbox { id: id.clone(), config, handler, state, created_at: now, ip };
        self.sandboxes.insert(id.clone(), sandbox);
        self.emit(Event::ContainerCreatedEvent, &id, &id, now);
        self.emit(Event::ContainerStartedEvent, &id, &id, now);
        Ok(id)
    }

    pub fn stop_sandbox(&mut self, id: &str, now: i64) {
        for container in self.containers_of(id) {
            self.kill(&container, now);
        }
        let Some(sandbox) = self.sandboxes.get_mut(id) else {
            return;
        };
        if sandbox.state == PodSandboxState::SandboxReady {
            sandbox.state = PodSandboxState::SandboxNotready;
            self.emit(Event::ContainerStoppedEvent, id, id, now);
        }
    }

    pub fn remove_sandbox(&mut self, id: &str, now: i64) {
        self.stop_sandbox(id, now);
        for container in self.containers_of(id) {
            self.remove_container(&container, now);
        }
        self.containers_by_sandbox.remove(id);
        let Some(sandbox) = self.sandboxes.get(id) else {
            return;
        };
        let name = sandbox_name(&sandbox.config.metadata.clone().unwrap_or_default());
        let uid = uid_of(&sandbox.config);
        self.emit(Event::ContainerDeletedEvent, id, id, now);
        self.names.remove(&name);
        self.sandboxes.remove(id);
        if let Some(ids) = self.sandboxes_by_uid.get_mut(&uid) {
            ids.remove(id);
            if ids.is_empty() {
                self.sandboxes_by_uid.remove(&uid);
            }
        }
    }

    pub fn create_container(
        &mut self,
        request: v1::CreateContainerRequest,
        now: i64,
    ) -> Result<String, Status> {
        let config =
            request.config.ok_or_else(|| Status::invalid_argument("no container config"))?;
        let sandbox = self.sandbox(&request.pod_sandbox_id)?;
        if sandbox.state != PodSandboxState::SandboxReady {
            return Err(Status::failed_precondition(format!(
                "sandbox {} is not ready",
                sandbox.id
            )));
        }
        let sandbox_id = sandbox.id.clone();
        let pod = sandbox.config.metadata.clone().unwrap_or_default();
        let log_path = log_path(&sandbox.config.log_directory, &config.log_path);
        let wanted = config.image.clone().unwrap_or_default().image;
        let image_id = match self.image(&wanted) {
            Some(image) => image.id.clone(),
            None => {
                return Err(Status::not_found(format!(
                    "failed to get image \"{wanted}\": not found"
                )));
            }
        };
        let id = self.new_id();
        self.reserve("container", &container_name(&config, &pod), &id)?;
        let has_log = self.write_logs && !log_path.as_os_str().is_empty();
        let log = has_log.then(|| LogFile::open(log_path.clone()));
        self.containers_by_sandbox.entry(sandbox_id.clone()).or_default().insert(id.clone());
        let container = Container {
            id: id.clone(),
            sandbox: sandbox_id.clone(),
            resources: config.linux.as_ref().and_then(|linux| linux.resources.clone()),
            config,
            state: ContainerState::ContainerCreated,
            created_at: now,
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image_id,
            log_path,
            life: Behaviour::runs(),
            asked_to_end: false,
            ends_at: None,
            ended: CancellationToken::new(),
            log,
        };
        self.containers.insert(id.clone(), container);
        self.emit(Event::ContainerCreatedEvent, &id, &sandbox_id, now);
        Ok(id)
    }

    pub fn start_container(&mut self, id: &str, now: i64) -> Result<Started, Status> {
        let subject = self.subject_of_container(id);
        let container = self.container(id)?;
        if container.state != ContainerState::ContainerCreated {
            let state = container.state.as_str_name();
            return Err(Status::failed_precondition(format!("container is in {state} state")));
        }
        let sandbox_id = container.sandbox.clone();
        let image = container.config.image.clone().unwrap_or_default();
        let image = if image.user_specified_image.is_empty() {
            image.image
        } else {
            image.user_specified_image
        };
        let command = container.config.command.clone();
        if self.sandbox(&sandbox_id)?.state != PodSandboxState::SandboxReady {
            return Err(Status::failed_precondition(format!(
                "sandbox container {sandbox_id} is not running"
            )));
        }
        let life = self.behaviours.next(&subject, &image, &command);
        self.note_twins(&Subject { id: sandbox_id.clone(), ..subject.clone() });
        let Some(container) = self.containers.get_mut(id) else {
            return Err(no_container(id));
        };
        let config = container.config.clone();
        container.life = life.clone();
        if let Some(message) = life.start_error {
            container.state = ContainerState::ContainerExited;
            container.finished_at = now;
            container.exit_code = 128;
            container.reason = "StartError".to_owned();
            container.message = message.clone();
            container.ended.cancel();
            self.emit(Event::ContainerStoppedEvent, id, &sandbox_id, now);
            return Err(Status::unknown(message));
        }
        container.state = ContainerState::ContainerRunning;
        container.started_at = now;
        if let Some(log) = &mut container.log {
            for line in &life.output {
                log.line(now, "stdout", line);
            }
        }
        self.note_start(subject, &config);
        self.emit(Event::ContainerStartedEvent, id, &sandbox_id, now);
        Ok(Started { exit: life.exit })
    }

    /// Ends a container because a caller asked for it.
    pub fn kill(&mut self, id: &str, now: i64) {
        if let Some(container) = self.containers.get_mut(id) {
            container.asked_to_end = true;
        }
        self.end(id, 137, now);
    }

    pub fn will_end(&mut self, id: &str, at: i64, code: i32) {
        if let Some(container) = self.containers.get_mut(id)
            && container.ends_at.is_none_or(|(known, _)| at < known)
        {
            container.ends_at = Some((at, code));
        }
    }

    /// Running containers that will end by themselves: when, and how.
    pub fn pending_ends(&self) -> Vec<(String, i64, i32)> {
        let running = |container: &&Container| container.state == ContainerState::ContainerRunning;
        let pending = |container: &Container| {
            let (at, code) = container.ends_at?;
            Some((container.id.clone(), at, code))
        };
        self.containers.values().filter(running).filter_map(pending).collect()
    }

    /// The process of a running container ends; anything else stays as it is.
    pub fn end(&mut self, id: &str, code: i32, now: i64) -> bool {
        let subject = self.subject_of_container(id);
        let Some(container) = self.containers.get_mut(id) else {
            return false;
        };
        if container.state != ContainerState::ContainerRunning {
            return false;
        }
        self.history.ends.push(End { subject, code, was_asked: container.asked_to_end });
        container.state = ContainerState::ContainerExited;
        container.finished_at = now;
        container.exit_code = code;
        container.reason = match (&container.life.reason, code) {
            (Some(reason), _) => reason.clone(),
            (None, 0) => "Completed".to_owned(),
            (None, _) => "Error".to_owned(),
        };
        if let Some(message) = &container.life.termination_message {
            write_termination_message(&container.config, message);
        }
        container.ended.cancel();
        let sandbox = container.sandbox.clone();
        self.emit(Event::ContainerStoppedEvent, id, &sandbox, now);
        true
    }

    pub fn remove_container(&mut self, id: &str, now: i64) {
        self.kill(id, now);
        if let Some(sandbox) = self.forget_container(id) {
            self.emit(Event::ContainerDeletedEvent, id, &sandbox, now);
        }
    }

    /// The container was never here. Returns its sandbox.
    pub fn forget_container(&mut self, id: &str) -> Option<String> {
        let container = self.containers.get(id)?;
        let sandbox_id = container.sandbox.clone();
        if let Some(sandbox) = self.sandboxes.get(&sandbox_id) {
            let pod = sandbox.config.metadata.clone().unwrap_or_default();
            self.names.remove(&container_name(&container.config, &pod));
        }
        self.containers.remove(id);
        if let Some(ids) = self.containers_by_sandbox.get_mut(&sandbox_id) {
            ids.remove(id);
        }
        Some(sandbox_id)
    }

    /// No sandbox was ever here; their containers are.
    pub fn forget_sandboxes(&mut self) {
        self.sandboxes.clear();
        self.sandboxes_by_uid.clear();
    }

    /// As after a wipe of the runtime's state: no sandbox and no container was ever here.
    pub fn forget_everything(&mut self) {
        self.sandboxes.clear();
        self.containers.clear();
        self.sandboxes_by_uid.clear();
        self.containers_by_sandbox.clear();
        self.names.clear();
    }

    pub fn sandbox(&self, id: &str) -> Result<&Sandbox, Status> {
        let unknown = || {
            Status::not_found(format!(
                "an error occurred when try to find sandbox: not found: {id}"
            ))
        };
        self.sandboxes.get(id).ok_or_else(unknown)
    }

    pub fn container(&self, id: &str) -> Result<&Container, Status> {
        self.containers.get(id).ok_or_else(|| no_container(id))
    }

    pub fn containers_of(&self, sandbox: &str) -> Vec<String> {
        self.containers_by_sandbox.get(sandbox).into_iter().flatten().cloned().collect()
    }

    pub fn sandboxes_of(&self, uid: &str) -> Vec<String> {
        self.sandboxes_by_uid.get(uid).into_iter().flatten().cloned().collect()
    }

    pub fn image(&self, name: &str) -> Option<&v1::Image> {
        let full = super::images::normalize(name);
        self.images.get(&full).or_else(|| {
            self.images
                .values()
                .find(|image| image.id == name || image.repo_digests.iter().any(|d| d == name))
        })
    }

    pub fn subject_of_sandbox(&self, id: &str) -> Subject {
        let mut subject = Subject { id: id.to_owned(), ..Subject::default() };
        if let Some(sandbox) = self.sandboxes.get(id) {
            let metadata = sandbox.config.metadata.clone().unwrap_or_default();
            subject.namespace = metadata.namespace;
            subject.pod = metadata.name;
            subject.uid = metadata.uid;
        }
        subject
    }

    pub fn subject_of_container(&self, id: &str) -> Subject {
        let Some(container) = self.containers.get(id) else {
            return Subject { id: id.to_owned(), ..Subject::default() };
        };
        Subject {
            id: id.to_owned(),
            container: container.config.metadata.clone().unwrap_or_default().name,
            ..self.subject_of_sandbox(&container.sandbox)
        }
    }

    fn emit(&mut self, event: Event, id: &str, sandbox: &str, now: i64) {
        if self.subscribers.is_empty() {
            return;
        }
        let containers = self.containers_of(sandbox);
        let response = v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: event.into(),
            created_at: now,
            pod_sandbox_status: self.sandboxes.get(sandbox).map(super::views::sandbox_status),
            containers_statuses: containers
                .iter()
                .filter_map(|id| self.containers.get(id))
                .map(super::views::container_status)
                .collect(),
        };
        self.subscribers.send(&response);
    }
}

fn no_container(id: &str) -> Status {
    Status::not_found(format!("an error occurred when try to find container \"{id}\": not found"))
}

pub fn uid_of(config: &v1::PodSandboxConfig) -> String {
    match config.labels.get(UID_LABEL) {
        Some(uid) => uid.clone(),
        None => config.metadata.clone().unwrap_or_default().uid,
    }
}

/// As containerd has it: only both parts together are a log.
fn log_path(directory: &str, name: &str) -> PathBuf {
    if directory.is_empty() || name.is_empty() {
        PathBuf::new()
    } else {
        Path::new(directory).join(name)
    }
}

fn sandbox_name(m: &v1::PodSandboxMetadata) -> String {
    format!("{}_{}_{}_{}", m.name, m.namespace, m.uid, m.attempt)
}

fn container_name(config: &v1::ContainerConfig, pod: &v1::PodSandboxMetadata) -> String {
    let m = config.metadata.clone().unwrap_or_default();
    format!("{}_{}_{}_{}_{}", m.name, pod.name, pod.namespace, pod.uid, m.attempt)
}

fn on_host_network(config: &v1::PodSandboxConfig) -> bool {
    let options = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let options = options.and_then(|context| context.namespace_options.as_ref());
    options.is_some_and(|options| options.network() == v1::NamespaceMode::Node)
}

/// The kubelet mounts a host file over the termination message path.
fn write_termination_message(config: &v1::ContainerConfig, message: &str) {
    let path = config.annotations.get("io.kubernetes.container.terminationMessagePath");
    let path = path.map_or("/dev/termination-log", String::as_str);
    if let Some(mount) = config.mounts.iter().find(|mount| mount.container_path == path) {
        let _ = std::fs::write(Path::new(&mount.host_path), message);
    }
}
