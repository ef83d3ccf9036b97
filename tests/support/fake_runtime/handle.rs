//! The handle by which a test scripts the fake, breaks it, reads it and waits for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kubelet::cri::v1;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::Status;

use super::{
    Behaviour, Call, Conditions, Distortion, End, ExecCall, ExecOutcome, Fault, Features, Options,
    Pull, Rpc, Shared, Start, StreamCall, Subject, calls, exec, images, server, world,
};

/// A pod as tests see it.
#[derive(Debug, Clone)]
pub struct PodView {
    pub id: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub attempt: u32,
    pub ready: bool,
    pub ip: String,
    pub config: v1::PodSandboxConfig,
    pub containers: Vec<ContainerView>,
}

/// A container as tests see it.
#[derive(Debug, Clone)]
pub struct ContainerView {
    pub id: String,
    pub name: String,
    pub attempt: u32,
    pub state: v1::ContainerState,
    pub exit_code: i32,
    pub config: v1::ContainerConfig,
}

impl ContainerView {
    pub fn is_running(&self) -> bool {
        self.state == v1::ContainerState::ContainerRunning
    }
}

/// The handle of a running fake; the last clone's drop ends it.
#[derive(Clone)]
pub struct FakeRuntime {
    shared: Arc<Shared>,
    server: Arc<Mutex<Option<server::Server>>>,
    socket: PathBuf,
    _dir: Option<Arc<tempfile::TempDir>>,
}

impl FakeRuntime {
    /// Starts on a socket of its own.
    pub async fn start(options: Options) -> FakeRuntime {
        let dir = tempfile::Builder::new().prefix("cri").tempdir().expect("a temporary directory");
        let socket = dir.path().join("cri.sock");
        let mut fake = Self::start_at(&socket, options);
        fake._dir = Some(Arc::new(dir));
        fake
    }

    /// Starts on a given socket; call it inside a tokio runtime.
    pub fn start_at(socket: &Path, options: Options) -> FakeRuntime {
        let mut world = world::World::default();
        world.write_logs = options.write_logs;
        for image in &options.images {
            world.images.insert(images::normalize(image), images::make_image(image));
        }
        let shared = Arc::new(Shared {
            world: Mutex::new(world),
            recorder: Mutex::new(calls::Recorder::new(options.keep_calls)),
            traced: Mutex::default(),
            faults: Mutex::default(),
            distortions: Mutex::default(),
            exec: Mutex::new(exec::succeed()),
            streams: Mutex::new(exec::no_streams()),
            pulls: Mutex::default(),
            conditions: Mutex::new(Conditions { runtime: Ok(()), network: Ok(()) }),
            pace: Mutex::default(),
            features: Mutex::new(options.features),
            version: watch::channel(0).0,
        });
        let server = server::Server::listen(&shared, socket).expect("a socket to listen on");
        let server = Arc::new(Mutex::new(Some(server)));
        FakeRuntime { shared, server, socket: socket.to_owned(), _dir: None }
    }

    /// Path and `traceparent` of every call that came with one.
    pub fn traced(&self) -> Vec<(String, String)> {
        self.shared.traced.lock().clone()
    }

    /// `unix:///...`, as the kubelet's configuration wants it.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    // -- what containers, commands and pulls do ------------------------------------------------

    /// The behaviour of all containers that `word` (container, `pod/container`, pod or image) means.
    pub fn behave(&self, word: &str, behaviour: Behaviour) {
        self.behave_in_turn(word, vec![behaviour]);
    }

    /// Behaviours of successive starts; the last repeats.
    pub fn behave_in_turn(&self, word: &str, lives: Vec<Behaviour>) {
        self.shared.world.lock().behaviours.set(word, lives);
    }

    /// How ExecSync answers.
    pub fn on_exec(&self, script: impl Fn(&ExecCall) -> ExecOutcome + Send + Sync + 'static) {
        *self.shared.exec.lock() = Arc::new(script);
    }

    /// Where streams are to be had.
    pub fn on_streams(
        &self,
        script: impl Fn(&StreamCall) -> Result<String, Status> + Send + Sync + 'static,
    ) {
        *self.shared.streams.lock() = Arc::new(script);
    }

    /// How pulls of this image go.
    pub fn on_pull(&self, image: &str, pull: Pull) {
        self.shared.pulls.lock().set(image, pull);
    }

    /// Puts an image there without a pull.
    pub fn add_image(&self, image: &str) {
        self.shared.world.lock().images.insert(images::normalize(image), images::make_image(image));
    }

    /// Takes all images away.
    pub fn remove_all_images(&self) {
        self.shared.world.lock().images.clear();
    }

    // -- what happens by itself ----------------------------------------------------------------

    /// The process of the newest running container that `word` (`pod/container` or container) means ends.
    pub fn exit(&self, word: &str, code: i32) -> bool {
        match self.find(word).into_iter().rev().find(ContainerView::is_running) {
            Some(container) => self.shared.end(&container.id, code),
            None => false,
        }
    }

    /// Appends a line to the log of the newest running container that `word` means.
    pub fn log(&self, word: &str, stream: &str, line: &str) {
        let Some(found) = self.find(word).into_iter().rev().find(ContainerView::is_running) else {
            return;
        };
        let now = self.shared.now();
        let mut world = self.shared.world.lock();
        if let Some(log) =
            world.containers.get_mut(&found.id).and_then(|container| container.log.as_mut())
        {
            log.line(now, stream, line);
        }
    }

    /// The sandbox of this pod dies by itself, its containers with it.
    pub fn kill_sandbox(&self, pod: &str) {
        for view in self.pods().into_iter().filter(|view| view.name == pod && view.ready) {
            self.shared.world.lock().stop_sandbox(&view.id, self.shared.now());
        }
        self.shared.changed();
    }

    // -- what goes wrong -----------------------------------------------------------------------

    pub fn inject(&self, fault: Fault) {
        self.shared.faults.lock().add(fault);
    }

    /// Ends all faults; hanging calls go on.
    pub fn clear_faults(&self) {
        self.shared.faults.lock().clear();
    }

    /// Lets the hanging calls of one kind go on, and later ones through.
    pub fn release(&self, rpc: Rpc) {
        self.shared.faults.lock().release(Some(rpc));
    }

    pub fn distort(&self, distort: Distortion) {
        self.shared.distortions.lock().push(distort);
    }

    pub fn stop_distorting(&self) {
        self.shared.distortions.lock().clear();
    }

    pub fn set_features(&self, features: Features) {
        *self.shared.features.lock() = features;
    }

    /// `Err` says why it is not ready.
    pub fn set_runtime_ready(&self, ready: Result<(), &str>) {
        self.shared.conditions.lock().runtime = ready.map_err(str::to_owned);
    }

    /// `Err` says why it is not ready.
    pub fn set_network_ready(&self, ready: Result<(), &str>) {
        self.shared.conditions.lock().network = ready.map_err(str::to_owned);
    }

    /// The next events are dropped.
    pub fn lose_events(&self, n: u32) {
        self.shared.world.lock().subscribers.lose_next(n);
    }

    /// How many event streams are open.
    pub fn subscribers(&self) -> usize {
        self.shared.world.lock().subscribers.len()
    }

    /// Ends all event streams, orderly or with an error.
    pub fn end_event_streams(&self, error: Option<Status>) {
        self.shared.world.lock().subscribers.end(error);
    }

    /// Drops every connection; new ones are accepted.
    pub fn drop_connections(&self) {
        self.shared.world.lock().subscribers.end(None);
        if let Some(server) = &*self.server.lock() {
            server.drop_connections();
        }
    }

    /// The runtime is gone: no connection, no socket. Its containers run on.
    pub fn vanish(&self) {
        self.shared.world.lock().subscribers.end(None);
        self.server.lock().take();
        let _ = std::fs::remove_file(&self.socket);
    }

    /// The runtime is there again.
    pub fn come_back(&self) {
        let mut server = self.server.lock();
        if server.is_none() {
            *server = Some(
                server::Server::listen(&self.shared, &self.socket).expect("a socket to listen on"),
            );
        }
    }

    /// Goes on with another tokio runtime, after the one before is gone with all its tasks.
    pub fn resume(&self) {
        self.vanish();
        self.come_back();
        let pending = self.shared.world.lock().pending_ends();
        let now = self.shared.now();
        for (id, at, code) in pending {
            let after = Duration::from_nanos(at.saturating_sub(now).max(0).unsigned_abs());
            self.shared.end_later(&id, after, code);
        }
    }

    /// From now on each call takes up to twice this long, half of it before its work and half after.
    pub fn take_time(&self, longest: Duration, seed: u64) {
        let rng = fastrand::Rng::with_seed(seed);
        *self.shared.pace.lock() = Some(super::Pace { rng, longest });
    }

    /// All containers that ended, in order.
    pub fn ends(&self) -> Vec<End> {
        self.shared.world.lock().history.ends.clone()
    }

    /// The newest container that `word` means is gone without a trace or an event.
    pub fn forget(&self, word: &str) -> bool {
        let Some(container) = self.container(word) else {
            return false;
        };
        let forgotten = self.shared.world.lock().forget_container(&container.id);
        self.shared.changed();
        forgotten.is_some()
    }

    /// All sandboxes are gone without a trace or an event, their containers are still here: as after
    /// creations that the runtime finished later than the removal of the sandboxes.
    pub fn forget_sandboxes(&self) {
        self.shared.world.lock().forget_sandboxes();
        self.shared.changed();
    }

    /// All sandboxes and containers are gone without a trace or an event.
    pub fn forget_everything(&self) {
        self.shared.world.lock().forget_everything();
        self.shared.changed();
    }

    // -- state and received calls ------------------------------------------------------

    /// How many containers there are, those without a sandbox included.
    pub fn container_count(&self) -> usize {
        self.shared.world.lock().containers.len()
    }

    /// All sandboxes, the oldest first, each with its containers, the oldest first.
    pub fn pods(&self) -> Vec<PodView> {
        let world = self.shared.world.lock();
        let mut pods =
            world.sandboxes.values().map(|sandbox| pod_view(&world, sandbox)).collect::<Vec<_>>();
        pods.sort_by_key(|pod| (pod.name.clone(), pod.namespace.clone(), pod.attempt));
        pods
    }

    /// The newest sandbox of a pod name.
    pub fn pod(&self, name: &str) -> Option<PodView> {
        self.pods().into_iter().rfind(|pod| pod.name == name)
    }

    /// The newest attempt of a container (`pod/container` or container).
    pub fn container(&self, word: &str) -> Option<ContainerView> {
        self.find(word).pop()
    }

    fn find(&self, word: &str) -> Vec<ContainerView> {
        let mut found = Vec::new();
        for pod in self.pods() {
            for container in pod.containers {
                let subject = Subject {
                    pod: pod.name.clone(),
                    container: container.name.clone(),
                    id: container.id.clone(),
                    ..Subject::default()
                };
                if subject.container == word || subject.id == word || subject.matches(word) {
                    found.push(container);
                }
            }
        }
        found.sort_by_key(|container| container.attempt);
        found
    }

    /// All kept calls in order.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.recorder.lock().calls()
    }

    /// The kept calls of one kind in order.
    pub fn calls_of(&self, rpc: Rpc) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.rpc == rpc).collect()
    }

    /// How often each call was made.
    pub fn counts(&self) -> BTreeMap<Rpc, u64> {
        self.shared.recorder.lock().counts()
    }

    pub fn count(&self, rpc: Rpc) -> u64 {
        self.counts().get(&rpc).copied().unwrap_or(0)
    }

    /// How many calls were made that can change something.
    pub fn mutations(&self) -> u64 {
        self.counts().iter().filter(|(rpc, _)| rpc.is_mutating()).map(|(_, n)| n).sum()
    }

    /// All containers that were ever started, in order.
    pub fn starts(&self) -> Vec<Start> {
        self.shared.world.lock().history.starts.clone()
    }

    /// Pods that ever began to run while another one of their name did.
    pub fn overlaps(&self) -> Vec<String> {
        self.shared.world.lock().history.overlaps.clone()
    }

    /// Clears the record.
    pub fn clear_calls(&self) {
        self.shared.recorder.lock().clear();
    }

    /// Waits until `fact` holds; looks again after each call and each change. False when it does not
    /// come true in time.
    pub async fn comes_true(
        &self,
        deadline: Duration,
        mut fact: impl FnMut(&Self) -> bool,
    ) -> bool {
        let mut version = self.shared.version.subscribe();
        let waiting = async {
            loop {
                version.borrow_and_update();
                if fact(self) {
                    return;
                }
                // The sender lives in `self`.
                let _ = version.changed().await;
            }
        };
        tokio::time::timeout(deadline, waiting).await.is_ok()
    }

    /// As `comes_true`, but when it does not the calls are printed and the test panics with `what`.
    pub async fn wait_until(
        &self,
        what: &str,
        deadline: Duration,
        fact: impl FnMut(&Self) -> bool,
    ) {
        if !self.comes_true(deadline, fact).await {
            for call in self.calls() {
                eprintln!(
                    "{:6} {:?} {:?} {} {:?}",
                    call.seq, call.rpc, call.subject, call.detail, call.code
                );
            }
            panic!("not within {deadline:?}: {what}; pods: {:#?}", self.pods());
        }
    }

    /// Waits until the recorded calls satisfy `fact`.
    pub async fn wait_for_calls(
        &self,
        what: &str,
        deadline: Duration,
        mut fact: impl FnMut(&[Call]) -> bool,
    ) {
        self.wait_until(what, deadline, |fake| fact(&fake.calls())).await;
    }
}

fn pod_view(world: &world::World, sandbox: &world::Sandbox) -> PodView {
    let metadata = sandbox.config.metadata.clone().unwrap_or_default();
    let mut containers = world
        .containers_of(&sandbox.id)
        .iter()
        .filter_map(|id| world.containers.get(id))
        .map(|container| (container.created_at, container_view(container)))
        .collect::<Vec<_>>();
    containers.sort_by_key(|(created, view)| (*created, view.attempt));
    PodView {
        id: sandbox.id.clone(),
        namespace: metadata.namespace,
        name: metadata.name,
        uid: metadata.uid,
        attempt: metadata.attempt,
        ready: sandbox.state == v1::PodSandboxState::SandboxReady,
        ip: sandbox.ip.clone(),
        config: sandbox.config.clone(),
        containers: containers.into_iter().map(|(_, view)| view).collect(),
    }
}

fn container_view(container: &world::Container) -> ContainerView {
    let metadata = container.config.metadata.clone().unwrap_or_default();
    ContainerView {
        id: container.id.clone(),
        name: metadata.name,
        attempt: metadata.attempt,
        state: container.state,
        exit_code: container.exit_code,
        config: container.config.clone(),
    }
}
