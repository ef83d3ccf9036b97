//! Resource usage of the node, pods and containers: the Summary API, `/metrics/cadvisor`, and `/metrics/resource` for
//! metrics-server.
//!
//! * Owns: the last sample of each cgroup (for CPU rates, and to skip idle cgroups), the last measurement of each
//!   directory, and results that concurrent scrapes share for a second.
//! * Woken by: scrapes only.
//! * Publishes: results. The samples of a pod are removed with the first scrape after its end.
//! * Must never read a cgroup, a disk or the runtime on an async thread, let one of these delay another, or walk a
//!   directory more often than once per period.
//! * Upstream: `pkg/kubelet/stats`, `pkg/kubelet/server/stats`, `pkg/kubelet/metrics/collectors`, and
//!   cAdvisor.
//!
//! CPU and memory are read from cgroup files. The runtime is called only for writable layers, and for containers
//! without a cgroup on the host.

pub mod api;
mod cadvisor;
mod claims;
mod disk;
mod families;
mod filesystem_meter;
mod generate;
mod index;
mod info;
mod machine;
mod measured_paths;
mod running_pods;
mod rate;
mod resource;
mod sampler;
mod series;
mod source;
mod system;
mod text;

pub use cadvisor::MetricsChunks;
pub use claims::{ClaimMeter, ClaimVolumes};
pub use info::{ContainerInfo, ContainerInfoSelector};
pub use sampler::Snapshot;
pub use system::SystemCgroups;

use crate::base::{clock, spawn_blocking};
use crate::cri::{ImageClient, RuntimeClient, v1};
use crate::host::cgroup::{CgroupFs, Depth};
use crate::host::{FilesystemUsage, HostMachine, proc};
use crate::images::sandbox_image;
use crate::model::{MeasurableVolume, PodUid};
use crate::state::pod_cache::PodCache;
use api::{FsStats, PodStats, Summary, Time};
use cadvisor::MachineFacts;
use disk::DiskMeter;
use filesystem_meter::FilesystemMeter;
use futures::future::BoxFuture;
use generate::{Disks, SummaryInputs};
use parking_lot::Mutex;
use sampler::PodSample;
use source::{CachePolicy, CachedReading};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Age up to which scrapes share a reading.
const CACHE_TTL: Duration = Duration::from_secs(1);

/// Policy for readings of the kernel, which are fast unless the machine is overloaded.
const KERNEL_SOURCE: CachePolicy = CachePolicy {
    max_age: CACHE_TTL,
    timeout: Duration::from_secs(8),
    max_age_on_failure: Duration::from_secs(60),
};

/// Policy for readings of the runtime and of disks, which may be slow or hang.
const SLOW_SOURCE: CachePolicy = CachePolicy {
    max_age: CACHE_TTL,
    timeout: Duration::from_secs(2),
    max_age_on_failure: Duration::from_secs(120),
};

/// How long an eviction for memory waits for the runtime, if pods have no cgroups.
const EVICTION_RUNTIME_TIMEOUT: Duration = Duration::from_millis(50);

/// Policy for readings that hardly ever change.
const STATIC_SOURCE: CachePolicy = CachePolicy {
    max_age: Duration::from_secs(300),
    timeout: Duration::from_secs(1),
    max_age_on_failure: Duration::MAX,
};

/// Returns the measurable volumes of a pod.
pub type VolumesOf = Arc<dyn Fn(&PodUid) -> Vec<MeasurableVolume> + Send + Sync>;

/// Has drivers report the usage of their volumes, each at most once in `volumeStatsAggPeriod`.
pub type MeasureVolumes = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Returns the path of a pod's hosts file, which need not exist.
pub type HostsFileOf = Arc<dyn Fn(&PodUid) -> Option<PathBuf> + Send + Sync>;

/// Returns the directory of a container's termination logs, which need not exist.
pub type TerminationLogsOf = Arc<dyn Fn(&PodUid, &str) -> Option<PathBuf> + Send + Sync>;

/// Dependencies of [`Stats`].
pub struct StatsDeps {
    /// The CRI runtime service.
    pub runtime: RuntimeClient,
    /// The CRI image service.
    pub images: ImageClient,
    /// The runtime status of every pod.
    pub cache: PodCache,
    /// The volumes of each pod.
    pub volumes: VolumesOf,
    /// Has drivers report the usage of their volumes.
    pub measure_volumes: MeasureVolumes,
    /// The hosts file of each pod.
    pub hosts_file: HostsFileOf,
    /// The directory of each container's termination logs.
    pub termination_logs: TerminationLogsOf,
    /// The node's name.
    pub node_name: String,
    /// The kubelet's directory.
    pub root_dir: PathBuf,
    /// The directory of pod logs.
    pub pod_logs_dir: PathBuf,
    /// `volumeStatsAggPeriod`; `None` disables volume measurements.
    pub volume_period: Option<Duration>,
    /// When the kubelet started, nanoseconds since the epoch.
    pub started_at: i64,
    /// The configured cgroups of system containers.
    pub system: SystemCgroups,
}

/// Reads resource usage. Cheap to clone.
#[derive(Clone)]
pub struct Stats {
    inner: Arc<StatsState>,
}

struct StatsState {
    deps: StatsDeps,
    machine: MachineFacts,
    sampler: Arc<Mutex<sampler::Sampler>>,
    disks: DiskMeter,
    /// The latest snapshot of each depth.
    snapshots: [(Depth, CachedReading<Arc<Snapshot>>); 3],
    runtime_stats: CachedReading<HashMap<String, v1::ContainerStats>>,
    volume_filesystems: FilesystemMeter,
    disk_measurement: CachedReading<()>,
    node_fs: CachedReading<(Time, FilesystemUsage, String)>,
    image_fs: CachedReading<(FsStats, FilesystemUsage, String)>,
    sandbox_image: CachedReading<String>,
    runtime_name: CachedReading<String>,
    runtime_pid: CachedReading<u32>,
}

impl Stats {
    /// Reads the facts that do not change. Blocking.
    pub fn new(deps: StatsDeps, machine: &HostMachine) -> Self {
        let fs = CgroupFs::new("/sys/fs/cgroup", machine.cgroup_v2);
        Self {
            inner: Arc::new(StatsState {
                machine: machine::facts(machine),
                sampler: Arc::new(Mutex::new(sampler::Sampler::new(fs))),
                disks: DiskMeter::default(),
                volume_filesystems: FilesystemMeter::default(),
                snapshots: [Depth::Core, Depth::Common, Depth::Full]
                    .map(|depth| (depth, CachedReading::new(KERNEL_SOURCE))),
                runtime_stats: CachedReading::new(SLOW_SOURCE),
                disk_measurement: CachedReading::new(SLOW_SOURCE),
                node_fs: CachedReading::new(SLOW_SOURCE),
                image_fs: CachedReading::new(SLOW_SOURCE),
                sandbox_image: CachedReading::new(STATIC_SOURCE),
                runtime_name: CachedReading::new(STATIC_SOURCE),
                runtime_pid: CachedReading::new(STATIC_SOURCE),
                deps,
            }),
        }
    }

    /// Number of kept samples and measurements of pods.
    pub fn count(&self) -> usize {
        // Not awaited: the sampler holds the lock while it reads; then its samples count as zero.
        let sampler = self.inner.sampler.try_lock();
        let samples = sampler.map_or(0, |sampler| sampler.len());
        samples.saturating_sub(NODE_CGROUPS) + self.inner.disks.len()
    }

    /// Invalidates cached samples, so that the next request reads usage again.
    pub fn invalidate(&self) {
        let sources = self.inner.snapshots.iter();
        sources.for_each(|(_, source)| source.invalidate());
    }

    /// CPU, memory and process usage of pods, for evictions. Reads the cgroups again. The runtime may be slow when
    /// memory is short, so it is called only for pods without any cgroup on the host, with a short timeout. `None` if
    /// the cgroups could not be read in time.
    pub async fn read_pod_usage(&self) -> Option<Vec<PodStats>> {
        self.invalidate();
        let inner = &self.inner;
        let snapshot = inner.snapshot(Depth::Common).await?;
        let runtime_stats = if snapshot.pods.iter().any(has_no_cgroup) {
            let reading = inner.runtime_stats();
            let ended = tokio::time::timeout(EVICTION_RUNTIME_TIMEOUT, reading).await;
            ended.ok().flatten()
        } else {
            None
        };
        let runtime_stats = runtime_stats.unwrap_or_default();
        let inputs = inner.inputs(&snapshot, &runtime_stats, None);
        Some(generate::summary(&inputs).pods)
    }

    /// The Summary API. With `only_cpu_and_memory`, disks, networks and process counts are left out, as in upstream.
    /// `None` if the cgroups could not be read in time.
    pub async fn summary(&self, only_cpu_and_memory: bool) -> Option<Summary> {
        let inner = &self.inner;
        if only_cpu_and_memory {
            let mut summary = self.cpu_and_memory(Depth::Common).await?;
            for pod in &mut summary.pods {
                pod.process_stats = None;
            }
            return Some(summary);
        }
        let snapshot = inner.snapshot(Depth::Common).await?;
        let volumes = async {
            (inner.deps.measure_volumes)().await;
            let pods = inner.pod_paths(&snapshot);
            let measurements = inner.measure(&pods).await;
            (pods, measurements)
        };
        let (runtime_stats, node, images, (pods, measurements)) =
            tokio::join!(inner.runtime_stats(), inner.node_fs(), inner.image_fs(), volumes);
        let node = node.map(|node| (node.0, node.1));
        let threads = inner.threads().await;
        let disks = Disks {
            node: node.as_ref(),
            images: images.as_deref().map(|images| &images.0),
            measurements: &measurements,
            pods: &pods,
            threads,
        };
        let runtime_stats = runtime_stats.unwrap_or_default();
        Some(generate::summary(&inner.inputs(&snapshot, &runtime_stats, Some(disks))))
    }

    async fn cpu_and_memory(&self, depth: Depth) -> Option<Summary> {
        let inner = &self.inner;
        let snapshot = inner.snapshot(depth).await?;
        let runtime_stats = if has_container_without_cgroup(&snapshot) {
            inner.runtime_stats().await.unwrap_or_default()
        } else {
            Arc::default()
        };
        Some(generate::summary(&inner.inputs(&snapshot, &runtime_stats, None)))
    }

    /// The response of `/metrics/cadvisor`, in chunks. `None` if the cgroups could not be read in time.
    pub async fn cadvisor(&self) -> Option<MetricsChunks> {
        let inner = &self.inner;
        let depth = Depth::Full;
        let (snapshot, image, filesystems) =
            tokio::join!(inner.snapshot(depth), inner.sandbox_image(), inner.filesystems());
        let image = image.unwrap_or_default();
        Some(cadvisor::chunks(snapshot?, &inner.machine, &image, filesystems))
    }

    /// The `ContainerInfo` of cgroups and containers; empty if the selected one does not exist. `None` if the cgroups
    /// could not be read in time.
    pub async fn infos(&self, of: ContainerInfoSelector) -> Option<Vec<ContainerInfo>> {
        let inner = &self.inner;
        let depth = Depth::Full;
        let (snapshot, runtime, filesystems) =
            tokio::join!(inner.snapshot(depth), inner.runtime_name(), inner.filesystems());
        let context = info::InfoContext {
            booted: inner.machine.booted,
            runtime: &runtime.unwrap_or_default(),
            filesystems: &filesystems,
        };
        Some(info::infos(&*snapshot?, &context, &of))
    }

    /// The response of `/metrics/resource`.
    pub async fn resource(&self) -> String {
        resource::text(self.cpu_and_memory(Depth::Core).await.as_ref())
    }
}

/// Number of sampled cgroups that belong to no pod: machine, kubelet, runtime, system and all pods.
const NODE_CGROUPS: usize = 5;

fn has_no_cgroup(pod: &PodSample) -> bool {
    let containers = pod.containers.iter().flatten();
    let mut samples = pod.pod_cgroup.iter().chain(&pod.sandbox).chain(containers);
    samples.next().is_none()
}

fn has_container_without_cgroup(snapshot: &Snapshot) -> bool {
    let mut samples = snapshot.pods.iter().flat_map(|pod| &pod.containers);
    samples.any(Option::is_none)
}

impl StatsState {
    fn inputs<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        runtime_stats: &'a HashMap<String, v1::ContainerStats>,
        disks: Option<Disks<'a>>,
    ) -> SummaryInputs<'a> {
        SummaryInputs {
            node_name: &self.deps.node_name,
            booted: Time(self.machine.booted),
            started: Time(self.deps.started_at),
            snapshot,
            runtime_stats,
            disks,
        }
    }

    /// The cached snapshot with at least this depth, or a new one.
    async fn snapshot(&self, depth: Depth) -> Option<Arc<Snapshot>> {
        let mut enough = self.snapshots.iter().filter(|(of, _)| *of >= depth);
        if let Some(fresh) = enough.clone().find_map(|(_, source)| source.fresh()) {
            return Some(fresh.as_ref().clone());
        }
        let (depth, source) = enough.next()?;
        let (depth, runtime) = (*depth, self.runtime_pid().await);
        let fetch = || {
            let (cache, sampler) = (self.deps.cache.clone(), self.sampler.clone());
            let runtime = runtime.as_deref().copied();
            let system = self.deps.system.subjects(std::process::id(), runtime);
            let read = move || {
                let pods = running_pods::subjects(&cache.pods());
                Arc::new(sampler.lock().snapshot(pods, &system, depth))
            };
            blocking(read)
        };
        Some(source.get(fetch).await?.as_ref().clone())
    }

    /// Container stats of the runtime, by container ID.
    async fn runtime_stats(&self) -> Option<Arc<HashMap<String, v1::ContainerStats>>> {
        let fetch = || {
            let runtime = self.deps.runtime.clone();
            async move {
                let stats = runtime.list_container_stats().await;
                let stats = stats.inspect_err(|error| {
                    tracing::warn!(err = %error, "Failed to list container stats");
                });
                let id = |stats: v1::ContainerStats| {
                    Some((stats.attributes.as_ref()?.id.clone(), stats))
                };
                Some(stats.ok()?.into_iter().filter_map(id).collect())
            }
        };
        self.runtime_stats.get(fetch).await
    }

    async fn node_fs(&self) -> Option<Arc<(Time, FilesystemUsage, String)>> {
        let fetch = || {
            let path = self.deps.root_dir.clone();
            async move {
                let (fs, device) = filesystem(path).await?;
                Some((now(), fs, device))
            }
        };
        self.node_fs.get(fetch).await
    }

    /// The file systems of the kubelet's directory and of images, with their devices.
    async fn filesystems(&self) -> Vec<(String, FilesystemUsage)> {
        let (node, images) = tokio::join!(self.node_fs(), self.image_fs());
        let mut found = Vec::new();
        found.extend(node.map(|node| (node.2.clone(), node.1)));
        found.extend(images.map(|images| (images.2.clone(), images.1)));
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found.dedup_by(|a, b| a.0 == b.0);
        found
    }

    async fn runtime_name(&self) -> Option<Arc<String>> {
        let fetch = || {
            let runtime = self.deps.runtime.clone();
            async move { Some(runtime.version().await.ok()?.runtime_name) }
        };
        self.runtime_name.get(fetch).await
    }

    async fn image_fs(&self) -> Option<Arc<(FsStats, FilesystemUsage, String)>> {
        let fetch = || {
            let images = self.deps.images.clone();
            async move {
                let info = images.image_fs_info().await;
                let info = info.inspect_err(|error| {
                    tracing::warn!(err = %error, "Failed to get image filesystem stats");
                });
                let first = info.ok()?.image_filesystems.into_iter().next()?;
                let mount = first.fs_id.map(|id| id.mountpoint).unwrap_or_default();
                let (fs, device) = filesystem(PathBuf::from(mount)).await?;
                let value = |value: Option<v1::UInt64Value>| value.map(|value| value.value);
                let stats = FsStats {
                    used_bytes: value(first.used_bytes),
                    inodes_used: value(first.inodes_used),
                    ..generate::whole_fs(Time(first.timestamp), &fs)
                };
                Some((stats, fs, device))
            }
        };
        self.image_fs.get(fetch).await
    }

    /// The pause image, for the metrics of sandboxes. All sandboxes use the same one.
    async fn sandbox_image(&self) -> Option<Arc<String>> {
        let fetch = || {
            let runtime = self.deps.runtime.clone();
            let pods = self.deps.cache.pods();
            async move {
                let mut sandboxes = pods.iter().flat_map(|pod| pod.ready_sandboxes());
                let sandbox = sandboxes.next()?;
                let status = runtime.status(true).await.ok()?;
                if let Some(image) = sandbox_image(&status.info) {
                    return Some(image);
                }
                // containerd 2 does not report it in the runtime's status, only in that of a sandbox.
                let status = runtime.pod_sandbox_status(sandbox.id.as_str(), true).await;
                running_pods::image_of_sandbox(&status.ok()?.info)
            }
        };
        self.sandbox_image.get(fetch).await
    }

    /// The PID of the process that listens on the runtime's socket.
    async fn runtime_pid(&self) -> Option<Arc<u32>> {
        let fetch = || {
            let socket = self.deps.runtime.connection().endpoint().path().to_owned();
            async move { blocking(move || system::runtime_process(&socket)).await? }
        };
        self.runtime_pid.get(fetch).await
    }

    async fn threads(&self) -> (Option<u64>, Option<u64>) {
        blocking(proc::thread_counts).await.unwrap_or_default()
    }
}

/// Runs work on a blocking thread; `None` if it panics.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    spawn_blocking(work).await.ok()
}

async fn filesystem(path: PathBuf) -> Option<(FilesystemUsage, String)> {
    blocking(move || disk::filesystem_of(&path)).await?
}

fn now() -> Time {
    Time(i64::try_from(clock::timestamp().as_nanosecond()).unwrap_or_default())
}

#[cfg(test)]
mod tests;
