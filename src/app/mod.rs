//! The application: builds every component, starts its tasks, and stops them.
//!
//! * Owns: the order of start and stop.
//! * Woken by: the signals SIGTERM and SIGINT, and a task that exits before shutdown.
//! * Publishes: the exit of the process.
//! * Must never decide anything about pods, and never stop a container because the kubelet stops.
//! * Upstream: `cmd/kubelet/app/server.go` and `NewMainKubelet`.
//!
//! Start: bind the sockets, serve the ports, wait for the runtime, start the other tasks. Stop: accept no new work, let
//! workers finish their current step, drain the servers and flush the state of pods, within 12 seconds in all.

mod process_metrics;
mod settings;
mod pod_certificates;
mod open;
mod start;
mod node_check;
mod manager_check;
mod preflight;
mod service_status;

pub use manager_check::manager_findings;
pub use node_check::{Finding, Level, node_findings};
pub use preflight::{
    Outcome, PodForecast, PreflightReport, PreflightRequest, Verdict, families_not_served,
    preflight,
};

use crate::apiserver::ApiServer;
use crate::apiserver::configmap_secret::ConfigMapSecretReader;
use crate::base::metrics::Metrics;
use crate::base::panics::PanicScope;
use crate::base::{TaskEnd, Tasks, spawn, spawn_blocking};
use crate::config::logging::{self, LogControl};
use crate::config::{FeatureGate, KUBERNETES_VERSION, KubeletConfig, NODE_VERSION, local_socket};
use crate::cri;
use crate::host::{
    self, HostMachine, LockFile, ServiceManager, System, own_address,
    process_metrics as host_process_metrics,
};
use crate::node::certificates;
use crate::pods::sync_loop::HOUSEKEEPING_PERIOD;
use crate::pods::{PodsHandles, pleg};
use crate::server::{self, CheckMetrics, HealthChecks, Ports, Process, ServerDeps};
use crate::state::pod_state_store::PodStateStore;
use anyhow::Context as _;
use node_check::{machine_problems, missing_resolv_conf};
use open::Opened;
use service_status::ServiceStatus;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Time for the tasks to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the last writes of the pod state store after that.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A kubelet whose sockets are bound and whose state is read; nothing runs yet.
pub struct App {
    config: KubeletConfig,
    opened: Opened,
    ports: Ports,
    lock: Option<LockFile>,
    /// Intervals of checks.
    pub periods: Periods,
    /// The interfaces of the machine; tests replace them.
    pub system: System,
    /// The log, whose verbosity can be changed; by default one without output.
    pub log: LogControl,
    /// The service manager, to which the kubelet reports its state.
    pub service_manager: Option<ServiceManager>,
}

/// Intervals of checks that find changes without an event. Not configurable; tests shorten them.
#[derive(Clone, Debug)]
pub struct Periods {
    /// The PLEG's intervals.
    pub pleg: pleg::Config,
    /// The interval of housekeeping.
    pub housekeeping: Duration,
}

impl Default for Periods {
    fn default() -> Self {
        Self { pleg: pleg::Config::default(), housekeeping: HOUSEKEEPING_PERIOD }
    }
}

/// Warns if `resolvConf` is missing. Runs as a task, because it may be on a file system that hangs.
async fn check_resolv_conf(path: PathBuf) {
    let read = spawn_blocking(move || missing_resolv_conf(&path));
    if let Ok(Some(missing)) = read.await {
        tracing::warn!("{missing}");
    }
}

/// Warns if the directory cannot be read. Runs as a task, because the directory may be on a file system that hangs.
async fn check_local_objects(path: PathBuf) {
    if let Some(fault) = ConfigMapSecretReader::new(Some(path.clone()), None).fault().await {
        tracing::warn!(
            path = %path.display(),
            err = fault,
            "Failed to read the directory of local ConfigMaps and Secrets; lookups fail until it can be read"
        );
    }
}

impl App {
    /// Binds the sockets, takes the lock file and reads the state on disk.
    ///
    /// # Errors
    /// The first error, with the flag, field or path concerned.
    pub async fn build(config: KubeletConfig) -> anyhow::Result<Self> {
        report_settings(&config);
        let machine = HostMachine::read()?;
        if let Some(problem) = machine_problems(&config, &machine).first() {
            anyhow::bail!("{problem}");
        }
        let exit_on_contention = config.exit_on_lock_contention;
        let lock = host::take_lock(config.lock_file.as_deref(), exit_on_contention).await?;
        host::set_oom_score_adj(config.oom_score_adj);
        host::allow_open_files(config.max_open_files);
        let mut ports = Ports::bind(&config.server).await?;
        let metrics = Metrics::new();
        let kubeconfig = config.kubeconfig.clone();
        let api = certificates::open_api(kubeconfig, &config.identity, &metrics).await?;
        let addresses = settings::addresses(&config, own_address(config.ipv6_first));
        let (server, name) = (config.server.clone(), config.node_name.clone());
        ports.secure(server, name, addresses, api.clone(), &metrics).await?;
        if let Some(path) = config.dns.resolv_conf.clone() {
            spawn(PanicScope::Other, check_resolv_conf(path));
        }
        if let Some(path) = config.local_objects_dir.clone() {
            spawn(PanicScope::Other, check_local_objects(path));
        }
        let opened = open::open(&config, machine, api, metrics)?;
        process_metrics::register(&config.node_name, opened.machine.cgroup_v2, &opened.metrics);
        process_metrics::feature_gates(|gate| config.is_on(gate), &opened.metrics);
        host_process_metrics::register(&opened.metrics);
        host_process_metrics::register_start_time(&opened.probe_metrics);
        host_process_metrics::register_start_time(&opened.sli_metrics);
        ports.bind_local(&local_socket(&config.root_dir));
        let log = logging::detached(&config.logging);
        Ok(Self {
            config,
            opened,
            ports,
            lock,
            periods: Periods::default(),
            system: System::default(),
            log,
            service_manager: None,
        })
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
        process_metrics::log(&self.opened.metrics, self.log.clone());
        let mut tasks = Tasks::new();
        let tracer = self.opened.tracer.clone();
        if tracer.is_on() {
            tasks.spawn("traces", tracer.clone().run(tasks.shutdown()));
        }
        if let Some(identity) = settings::identity(&self.config, self.opened.api.clone()) {
            let node = self.opened.stores.node_object.clone();
            certificates::start(identity, node, &self.opened.metrics, &mut tasks);
        }
        self.serve(&mut tasks);
        let manager = self.service_manager.take().map(Arc::new);
        if let Some(manager) = &manager {
            self.watch(manager, &mut tasks);
            manager.report(service_status::WAITS_FOR_RUNTIME);
            manager.report("READY=1");
        }
        let stopped = manager.clone();
        let stop_requested = async move {
            let reason = stop_requested.await;
            if let Some(manager) = &stopped {
                manager.report("STOPPING=1");
            }
            reason
        };
        let ended = self.run_tasks(tasks, manager, stop_requested).await;
        // After the last tasks, so that their spans are exported too.
        tracer.flush().await;
        ended
    }

    async fn run_tasks(
        self,
        mut tasks: Tasks,
        manager: Option<Arc<ServiceManager>>,
        stop_requested: impl Future<Output = &'static str>,
    ) -> anyhow::Result<()> {
        tokio::pin!(stop_requested);
        let runtime = self.opened.runtime.clone();
        let info = tokio::select! {
            info = cri::wait_for_runtime(&runtime) => info,
            reason = &mut stop_requested => {
                tracing::info!(reason, "Stopping before the runtime was reached");
                return stop(&mut tasks, None).await;
            }
        };
        let state_store = self.opened.stores.state_store.clone();
        let (periods, system) = (self.periods, self.system);
        let desired = self.opened.stores.pod_manager.clone();
        let api = self.opened.api.as_ref().map(ApiServer::availability);
        let started = start::start(&self.config, periods, system, self.opened, &info, &mut tasks);
        let started = tokio::select! {
            pods = started => Ok(pods?),
            reason = &mut stop_requested => Err(reason),
        };
        let pods = match started {
            Ok(pods) => pods,
            Err(reason) => {
                tracing::info!(reason, "Stopping during startup");
                return stop(&mut tasks, None).await;
            }
        };
        tracing::info!(node = self.config.node_name, "Started kubelet");
        if let Some(manager) = manager {
            let status = ServiceStatus { pods: desired, runtime: pods.runtime_state.clone(), api };
            let reporting = status.report(manager, tasks.shutdown());
            tasks.spawn("service.status", reporting);
        }
        let early = tokio::select! {
            end = tasks.first_end() => end,
            reason = &mut stop_requested => {
                tracing::info!(reason, "Stopping; pods are left as they are");
                None
            }
        };
        stop(&mut tasks, Some((&pods, &state_store))).await?;
        early.map_or(Ok(()), failed)
    }

    /// The health check of the sync loop: fails without an iteration for two sync periods, but at least five minutes.
    fn sync_loop_check(&self) -> impl Fn() -> Result<(), String> + Send + Sync + Clone + 'static {
        let sync_loop_monitor = self.opened.pods.sync_loop_monitor.clone();
        let limit = (2 * self.config.sync_frequency).max(Duration::from_secs(300));
        move || sync_loop_monitor.check(limit)
    }

    /// Notifies the service manager's watchdog as long as the sync loop runs. An unavailable runtime is no reason for
    /// a restart: the loop has not started then, and the check succeeds.
    fn watch(&self, manager: &Arc<ServiceManager>, tasks: &mut Tasks) {
        if let Some(within) = manager.watchdog() {
            let (sync_loop_monitor, check) =
                (self.opened.pods.sync_loop_monitor.clone(), self.sync_loop_check());
            let check = move || {
                if sync_loop_monitor.has_started() { check() } else { Ok(()) }
            };
            let feeding = manager.clone().feed_watchdog(within, check, tasks.shutdown());
            tasks.spawn("service.watchdog", feeding);
        }
    }

    fn serve(&mut self, tasks: &mut Tasks) {
        let counted = CheckMetrics::register(&self.opened.sli_metrics);
        let pods = self.opened.pods.handles.clone();
        let warnings =
            move || pods.borrow().as_ref().map(PodsHandles::warnings).unwrap_or_default();
        let healthz = HealthChecks::ping().with("log", || Ok(())).noting(warnings);
        let checks = healthz.clone().with("syncloop", self.sync_loop_check());
        let opened = &self.opened;
        let volumes_for_claims = opened.volumes.clone();
        let measure_volumes = settings::measure_volumes(&self.config, opened.volumes.csi().clone());
        let deps = ServerDeps {
            stores: &opened.stores,
            pods: &opened.pods,
            runtime: &opened.runtime,
            volumes: &opened.volumes,
            claims: Arc::new(move || {
                let (measured, volumes) = (measure_volumes(), volumes_for_claims.clone());
                Box::pin(async move {
                    measured.await;
                    volumes.claims()
                })
            }),
            stats: &opened.stats,
            machine: &opened.machine,
            process: self.process(),
            metrics: &opened.metrics,
            probe_metrics: &opened.probe_metrics,
            sli_metrics: &opened.sli_metrics,
            tracer: &opened.tracer,
        };
        let checks = checks.counted(counted.clone());
        let shutdown = tasks.shutdown();
        let (handler, streams) =
            server::build(settings::server(&self.config), checks, deps, shutdown);
        tasks.spawn("server.streams", streams.drained());
        if self.config.is_on(FeatureGate::PodsApi) {
            let socket = self.config.root_dir.join("pods-api/pods-api.sock");
            let (stores, pods) = (&self.opened.stores, &self.opened.pods);
            let api = server::pods_api(stores, pods, tasks.shutdown());
            tasks.spawn("pods_api", async move { api?.serve(socket).await });
        }
        let ports = std::mem::take(&mut self.ports);
        ports.serve(healthz.counted(counted), &handler, tasks);
    }

    fn process(&self) -> Process {
        let (read, write) = (self.log.clone(), self.log.clone());
        Process {
            started: self.opened.started_at,
            version: NODE_VERSION,
            emulation_version: KUBERNETES_VERSION,
            configuration: Arc::new(self.config.redacted.clone()),
            flags: Arc::new(self.config.redacted_flags.clone()),
            verbosity: Arc::new(move || read.verbosity()),
            set_verbosity: Arc::new(move |verbosity| write.set_verbosity(verbosity)),
        }
    }
}

async fn stop(
    tasks: &mut Tasks,
    pods: Option<(&PodsHandles, &PodStateStore)>,
) -> anyhow::Result<()> {
    let draining = async {
        tasks.shutdown().cancel();
        if let Some((pods, _)) = pods {
            pods.workers.stop().await;
        }
        tasks.stop().await;
    };
    if tokio::time::timeout(DRAIN_TIMEOUT, draining).await.is_err() {
        tracing::warn!(seconds = DRAIN_TIMEOUT.as_secs(), "Tasks did not stop in time");
    }
    // Workers may finish their last step after the tasks that write its results have ended.
    if let Some((pods, state_store)) = pods {
        let flushed = async {
            let allocations = pods.runtime.allocations().flush();
            tokio::join!(state_store.flush(), allocations)
        };
        if tokio::time::timeout(FLUSH_TIMEOUT, flushed).await.is_err() {
            tracing::warn!("Failed to flush the state of pods before exit");
        }
    }
    Ok(())
}

fn failed(end: TaskEnd) -> anyhow::Result<()> {
    let error = match end.result {
        Ok(()) => anyhow::anyhow!("task exited before shutdown"),
        Err(error) => error,
    };
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
