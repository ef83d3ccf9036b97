//! The machine of a history: one clock, one thread, and a kubelet that can be killed at any point.
//!
//! A kubelet lives in a tokio runtime with paused time; to kill it is to drop the runtime. The story goes on in the next
//! runtime, at the same wall time. What must outlive the kubelet is data and not tasks: the state of the container
//! runtime, the objects of the API server, the files.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use jiff::Timestamp;
use kubelet::app::App;
use kubelet::base::clock::{self, SimulatedWallClock};
use kubelet::config::{self, HostFacts, Invocation};
use kubelet::host::System;
use serde_json::json;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::api_server::FakeApiServer;
use crate::support::fake_runtime::{FakeRuntime, Options};
use crate::support::manifests::Manifests;

pub const NODE: &str = "node1";
pub const DIRECTORY: &str = "/tmp/node";

struct Life {
    stop: oneshot::Sender<()>,
    task: JoinHandle<anyhow::Result<()>>,
}

pub struct Machine {
    pub fake: FakeRuntime,
    pub api: FakeApiServer,
    pub manifests: Manifests,
    kubelet: RefCell<Option<Life>>,
    /// The story waits for the next tokio runtime.
    is_ended: Cell<bool>,
}

impl Machine {
    /// In a tokio runtime with paused time.
    async fn new() -> Machine {
        let dir = Path::new(DIRECTORY);
        for directory in ["root", "cgroup", "proc"] {
            std::fs::create_dir_all(dir.join(directory)).expect("a directory");
        }
        let api = FakeApiServer::start().await;
        let node = json!({"metadata": {"name": NODE, "uid": "uid-of-node1"}});
        api.put("/api/v1/nodes/node1", node);
        api.kubeconfig(dir);
        Machine {
            fake: FakeRuntime::start_at(&dir.join("cri.sock"), Options::default()),
            api,
            manifests: Manifests::new(&dir.join("manifests"), &dir.join("aside")),
            kubelet: RefCell::default(),
            is_ended: Cell::new(false),
        }
    }

    /// Starts the kubelet.
    pub fn start(&self) {
        let (stop, stopped) = oneshot::channel();
        let config = configuration(&self.fake.endpoint());
        let task = tokio::spawn(async move {
            let mut app = App::build(config).await?;
            app.system = System {
                cgroups: Some(Path::new(DIRECTORY).join("cgroup")),
                kernel_log: Path::new(DIRECTORY).join("kmsg"),
                ..System::default()
            };
            app.run_until(async {
                let _ = stopped.await;
                "the story"
            })
            .await
        });
        self.kubelet.replace(Some(Life { stop, task }));
    }

    pub fn runs(&self) -> bool {
        self.kubelet.borrow().is_some()
    }

    /// Why the kubelet has ended by itself, if it has.
    pub async fn ended(&self) -> Option<String> {
        let life = self.kubelet.take()?;
        if !life.task.is_finished() {
            self.kubelet.replace(Some(life));
            return None;
        }
        Some(format!("{:?}", life.task.await))
    }

    /// Stops the kubelet as SIGTERM does.
    pub async fn stop(&self) -> Result<(), String> {
        let Some(life) = self.kubelet.take() else {
            return Ok(());
        };
        let _ = life.stop.send(());
        match life.task.await {
            Ok(Ok(())) => Ok(()),
            ended => Err(format!("{ended:?}")),
        }
    }

    /// Ends all tasks of this tokio runtime where they are. The caller must hold nothing of it, timers included.
    pub async fn kill(&self) {
        self.kubelet.take();
        self.is_ended.set(true);
        poll_fn(|_| if self.is_ended.get() { Poll::Pending } else { Poll::Ready(()) }).await;
        self.api.resume();
        self.fake.resume();
    }
}

/// Lives a story from its begin to its end.
pub fn live<T>(begin: Timestamp, story: impl AsyncFnOnce(Rc<Machine>) -> T) -> T {
    let machine = RefCell::new(None::<Rc<Machine>>);
    let now = Cell::new(begin);
    let mut story = pin!(async {
        let new = Rc::new(Machine::new().await);
        machine.replace(Some(new.clone()));
        story(new).await
    });
    loop {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
        let runtime = runtime.expect("a tokio runtime");
        let wall = SimulatedWallClock::start(runtime.handle(), now.get());
        if let Some(machine) = &*machine.borrow() {
            machine.is_ended.set(false);
        }
        let ended = runtime.block_on(poll_fn(|context| {
            let polled = story.as_mut().poll(context);
            now.set(clock::timestamp());
            let is_ended = || machine.borrow().as_ref().is_some_and(|one| one.is_ended.get());
            match polled {
                Poll::Ready(end) => Poll::Ready(Some(end)),
                Poll::Pending if is_ended() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        }));
        // What is dropped with its tasks still reads the wall time.
        drop(runtime);
        drop(wall);
        if let Some(end) = ended {
            return end;
        }
    }
}

fn configuration(endpoint: &str) -> config::KubeletConfig {
    let dir = DIRECTORY;
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\n\
         kind: KubeletConfiguration\n\
         staticPodPath: {dir}/manifests\n\
         podLogsDir: {dir}/logs\n\
         containerRuntimeEndpoint: {endpoint}\n\
         enableServer: false\n\
         healthzPort: 0\n\
         failSwapOn: false\n\
         failCgroupV1: false\n\
         cgroupsPerQOS: false\n\
         enforceNodeAllocatable: []\n\
         imageGCHighThresholdPercent: 100\n\
         evictionHard: {{memory.available: \"0%\", nodefs.available: \"0%\", nodefs.inodesFree: \"0%\", imagefs.available: \"0%\", imagefs.inodesFree: \"0%\"}}\n"
    );
    let path = PathBuf::from(dir).join("config.yaml");
    std::fs::write(&path, text).expect("write the configuration");
    let root = format!("--root-dir={dir}/root");
    let kubeconfig = format!("--kubeconfig={dir}/kubeconfig");
    let config = format!("--config={}", path.display());
    let (name, address) = ("--hostname-override=node1", "--node-ip=10.0.0.1");
    let args = [&*config, &root, &kubeconfig, name, address].map(Into::into);
    let Ok(Invocation::Run(flags)) = config::parse_args(args) else {
        panic!("the command line is not accepted");
    };
    config::load(&flags, &HostFacts { hostname: NODE.to_owned() }).expect("a configuration")
}
