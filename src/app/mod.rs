//! The application: builds every component, starts its tasks, and stops them.
//!
//! * Owns: the order of start and stop.
//! * Woken by: the signals SIGTERM and SIGINT, and a task that exits before shutdown.
//! * Publishes: the exit of the process.
//! * Must never decide anything about pods, and never stop a container because the kubelet stops.
//! * Answers to upstream's `cmd/kubelet/app/server.go` and `NewMainKubelet`.
//!
//! Start: bind the sockets, wait for the runtime, start the tasks. Stop: accept no new work, let workers finish
//! their current step, drain the servers and flush the pod state store, within 12 seconds in all.

mod certificates;
mod cgroups;
mod cluster_node;
mod cluster_objects;
mod cluster_pods;
mod container_resources;
mod devices;
mod eviction;
mod https;
mod images;
mod introspect;
mod logs;
mod memory;
mod node;
mod open;
mod probes;
mod process_metrics;
mod resource_managers;
mod runtime;
mod service;
mod shutdown;
mod sources;
mod start;
mod stats;
mod store_metrics;
mod stores;
mod user_ids;
mod views;

use crate::{
    apiserver::configmap_secret::Objects,
    base::metrics::Metrics,
    base::{TaskEnd, Tasks, chain, panics::PanicScope, spawn},
    config::{
        KubeletConfig, local_socket,
        logging::{self, LogControl},
    },
    cri,
    host::{HostMachine, ServiceManager, SystemBus},
    node::stats::Stats,
    pods::pleg,
    pods::pod_workers::PodWorkers,
    pods::sync_loop::HOUSEKEEPING_PERIOD,
    server::{CheckMetrics, Handlers, HealthChecks, Listener},
    state::pod_state_store::PodStateStore,
};
use anyhow::Context as _;
use https::Secured;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use stores::{Stores, Writers};
use tokio::signal::unix::{SignalKind, signal};

/// Time for the tasks to stop.
const DRAIN: Duration = Duration::from_secs(10);
/// Time for the last writes of the pod state store after that.
const FLUSH: Duration = Duration::from_secs(2);

/// A kubelet whose sockets are bound and whose state is read; nothing runs yet.
pub struct App {
    config: KubeletConfig,
    stores: Stores,
    writers: Writers,
    stats: Stats,
    healthz: Option<Listener>,
    read_only: Option<Listener>,
    secured: Option<Secured>,
    local: Option<Listener>,
    periods: Periods,
    log: LogControl,
    service_manager: Option<Arc<ServiceManager>>,
    lock: Option<node::Lock>,
}

/// Periods of checks that find what no event reports. They are not configurable; tests make them short.
#[derive(Clone, Debug)]
pub struct Periods {
    /// Relist, audit and status periods of the PLEG.
    pub pleg: pleg::Config,
    /// Period of housekeeping.
    pub housekeeping: Duration,
}

impl Default for Periods {
    fn default() -> Self {
        Self {
            pleg: pleg::Config::default(),
            housekeeping: HOUSEKEEPING_PERIOD,
        }
    }
}

/// Warns if the directory cannot be read. A task of its own: the directory may be on a file system that hangs.
async fn check_local_objects(path: PathBuf) {
    if let Some(fault) = Objects::new(Some(path.clone()), None).fault().await {
        tracing::warn!(
            path = %path.display(),
            err = fault,
            "The directory of local objects cannot be read; until it can, no ConfigMap or Secret is found"
        );
    }
}

/// Moves this process into its cgroup (`kubeletCgroups`) before it uses memory, because memory stays charged to the
/// cgroup in which it was allocated. If that fails, a task tries again later and logs the error. Blocking.
pub fn enter_kubelet_cgroup(config: &KubeletConfig) {
    cgroups::enter(config);
}

impl App {
    /// Binds the sockets, takes the lock file and reads the state on disk.
    ///
    /// # Errors
    /// The first of these that failed, with the flag, field or path concerned.
    pub async fn build(config: KubeletConfig) -> anyhow::Result<Self> {
        report_settings(&config);
        let machine = HostMachine::read()?;
        node::check(&config, &machine)?;
        let watch = config.exit_on_lock_contention;
        let lock = node::take_lock(config.lock_file.as_deref(), watch).await?;
        node::set_oom_score_adj(config.oom_score_adj);
        node::allow_open_files(config.max_open_files);
        let healthz = bind("healthz", config.server.healthz).await?;
        let read_only = bind("read-only", config.server.read_only).await?;
        let metrics = Metrics::new();
        let api = certificates::open_api(&config, &metrics).await?;
        let secured = https::open(&config, api.clone(), &metrics).await?;
        if let Some(path) = config.local_objects_dir.clone() {
            spawn(PanicScope::Other, check_local_objects(path));
        }
        let (stores, writers) = open::stores(&config, machine, api, metrics)?;
        let stats = stats::of(&config, &stores);
        process_metrics::register(&config, &stores);
        store_metrics::register(&stores, stats.clone(), &stores.metrics);
        let local = bind_local(&config.root_dir);
        let log = logging::detached(&config.logging);
        Ok(Self {
            config,
            stores,
            writers,
            stats,
            healthz,
            read_only,
            secured,
            local,
            periods: Periods::default(),
            log,
            service_manager: None,
            lock,
        })
    }

    /// The same app with other periods.
    #[must_use]
    pub fn with_periods(self, periods: Periods) -> Self {
        Self { periods, ..self }
    }

    /// The same app with plain directories below this one as its cgroups, for tests.
    #[must_use]
    pub fn with_cgroups_in(mut self, directory: PathBuf) -> Self {
        self.stores.system.cgroups = Some(directory);
        self
    }

    /// The same app with this directory as `/proc` for the processes that it moves, for tests.
    #[must_use]
    pub fn with_processes_in(mut self, directory: PathBuf) -> Self {
        self.stores.system.proc = directory;
        self
    }

    /// The same app with this directory as `/sys`, for tests.
    #[must_use]
    pub fn with_machine_in(mut self, directory: PathBuf) -> Self {
        self.stores.system.sys = directory;
        self
    }

    /// The same app with systemd and logind at this address, for tests.
    #[must_use]
    pub fn with_system_bus_at(mut self, address: String) -> Self {
        self.stores.system.bus = Arc::new(SystemBus::at(address));
        self
    }

    /// The same app, with a log whose verbosity can be changed.
    #[must_use]
    pub fn with_log(self, log: LogControl) -> Self {
        Self { log, ..self }
    }

    /// The same app, which reports its state to the service manager.
    #[must_use]
    pub fn with_service_manager(self, manager: Option<ServiceManager>) -> Self {
        let service_manager = manager.map(Arc::new);
        Self {
            service_manager,
            ..self
        }
    }

    /// Runs until SIGTERM, SIGINT or contention for the lock file.
    ///
    /// # Errors
    /// A task that failed or exited before shutdown.
    pub async fn run(mut self) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let mut lock = self.lock.take();
        let contention = async {
            match &mut lock {
                Some(lock) => lock.contention().await,
                None => std::future::pending().await,
            }
        };
        let stop_requested = async {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                () = contention => "lock file contention",
            }
        };
        self.run_until(stop_requested).await
    }

    /// Runs until `stop_requested` yields the reason to stop.
    ///
    /// # Errors
    /// A task that failed or exited before shutdown.
    pub async fn run_until(
        mut self,
        stop_requested: impl Future<Output = &'static str>,
    ) -> anyhow::Result<()> {
        process_metrics::log(&self.stores.metrics, self.log.clone());
        let mut tasks = Tasks::new();
        let tracer = self.stores.tracer.clone();
        if tracer.is_on() {
            tasks.spawn("traces", tracer.clone().run(tasks.shutdown()));
        }
        certificates::start(&self.config, &self.stores, &mut tasks);
        self.serve(&mut tasks);
        let manager = self.service_manager.clone();
        if let Some(manager) = &manager {
            self.watch(manager, &mut tasks);
            service::notify(manager, "READY=1");
        }
        let stop_requested = async move {
            let why = stop_requested.await;
            if let Some(manager) = &manager {
                service::notify(manager, "STOPPING=1");
            }
            why
        };
        let ended = self.run_tasks(tasks, stop_requested).await;
        // The last spans are sent as well.
        tracer.flush().await;
        ended
    }

    async fn run_tasks(
        self,
        mut tasks: Tasks,
        stop_requested: impl Future<Output = &'static str>,
    ) -> anyhow::Result<()> {
        tokio::pin!(stop_requested);
        let runtime = self.stores.runtime.clone();
        let info = tokio::select! {
            info = cri::wait_for_runtime(&runtime) => info,
            why = &mut stop_requested => {
                tracing::info!(why, "Stopping before the runtime was reached");
                return stop(&mut tasks, None).await;
            }
        };
        let state_store = self.stores.state_store.clone();
        let started = start::start(
            &self.config,
            self.periods,
            &self.stores,
            self.writers,
            self.stats,
            &info,
            &mut tasks,
        );
        let started = tokio::select! {
            workers = started => Ok(workers?),
            why = &mut stop_requested => Err(why),
        };
        let workers = match started {
            Ok(workers) => workers,
            Err(why) => {
                tracing::info!(why, "Stopping during startup");
                return stop(&mut tasks, None).await;
            }
        };
        tracing::info!(node = self.config.node_name, "Started kubelet");
        let early = tokio::select! {
            end = tasks.first_end() => end,
            why = &mut stop_requested => {
                tracing::info!(why, "Stopping; pods are left as they are");
                None
            }
        };
        stop(&mut tasks, Some((&workers, &state_store))).await?;
        early.map_or(Ok(()), failed)
    }

    fn watch(&self, manager: &Arc<ServiceManager>, tasks: &mut Tasks) {
        if let Some(within) = manager.watchdog() {
            let checks = self.stores.health_checks(self.config.sync_frequency);
            let (live, shutdown) = (self.stores.live.clone(), tasks.shutdown());
            let feeding = service::watchdog(manager.clone(), within, checks, live, shutdown);
            tasks.spawn("service.watchdog", feeding);
        }
    }

    fn serve(&mut self, tasks: &mut Tasks) {
        let counted = CheckMetrics::new(&self.stores.sli_metrics);
        if let Some(listener) = self.healthz.take() {
            let checks = HealthChecks::ping().with("log", || Ok(()));
            let checks = checks.counted(counted.clone());
            let serving = listener.serve(Handlers::health(checks), tasks.shutdown());
            tasks.spawn("server.healthz", serving);
        }
        let checks = self.stores.health_checks(self.config.sync_frequency);
        let checks = checks.counted(counted);
        let stats = stats::views(&self.stores, &self.stats);
        let shutdown = tasks.shutdown();
        let claims = stats::claims(&self.stores);
        let views = views::of(
            &self.stores,
            &self.config,
            &self.log,
            stats,
            claims,
            shutdown,
        );
        tasks.spawn("server.streams", views.streams.clone().drained());
        let handlers = Handlers::read_only(checks, views, self.config.server.off.clone());
        let handlers = handlers.traced(self.stores.tracer.clone());
        if let Some(Secured { listener, auth }) = self.secured.take() {
            let serving = listener.serve(handlers.secured(auth), tasks.shutdown());
            tasks.spawn("server.main", serving);
        }
        if let Some(listener) = self.read_only.take() {
            let serving = listener.serve(handlers.clone(), tasks.shutdown());
            tasks.spawn("server.readonly", serving);
        }
        if let Some(listener) = self.local.take() {
            let serving = listener.serve(handlers.local(), tasks.shutdown());
            tasks.spawn("server.local", serving);
        }
    }
}

async fn bind(
    name: &'static str,
    address: Option<std::net::SocketAddr>,
) -> anyhow::Result<Option<Listener>> {
    match address {
        Some(address) => Ok(Some(Listener::bind(name, address).await?)),
        None => Ok(None),
    }
}

/// The socket of the local commands. Pods run without it.
fn bind_local(root_dir: &Path) -> Option<Listener> {
    match Listener::bind_local("local", &local_socket(root_dir)) {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::warn!(err = %chain(&error), "Failed to bind the local socket; `kubelet pods` and `kubelet explain` will not work");
            None
        }
    }
}

async fn stop(
    tasks: &mut Tasks,
    pods: Option<(&PodWorkers, &PodStateStore)>,
) -> anyhow::Result<()> {
    let draining = async {
        tasks.shutdown().cancel();
        if let Some((workers, _)) = pods {
            workers.stop().await;
        }
        tasks.stop().await;
    };
    if tokio::time::timeout(DRAIN, draining).await.is_err() {
        tracing::warn!(seconds = DRAIN.as_secs(), "Tasks did not stop in time");
    }
    // The last steps of workers may come after the task of the state store has ended.
    if let Some((_, state_store)) = pods
        && tokio::time::timeout(FLUSH, state_store.flush())
            .await
            .is_err()
    {
        tracing::warn!("Failed to flush the pod state store before exit");
    }
    Ok(())
}

fn failed(end: TaskEnd) -> anyhow::Result<()> {
    let error = match end.result {
        Ok(()) => anyhow::anyhow!("task exited before shutdown"),
        Err(error) => error,
    };
    tracing::error!(task = end.name, err = %chain(error.as_ref()), "Task exited before shutdown");
    Err(error.context(format!("task {} ended", end.name)))
}

fn report_settings(config: &KubeletConfig) {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if !config.unsupported.is_empty() {
        tracing::warn!(
            settings = config.unsupported.join(", "),
            "These settings are accepted and have no effect yet"
        );
    }
}
