//! The whole module on a pretended, and in `kernel` on the real, mount table.

use super::*;
use crate::apiserver::tests::stored::Stored;
use crate::base::metrics::Metrics;
use crate::base::{clock, error_chain, spawn_blocking};
use crate::host::program::{self, Program};
use crate::host::{MountEntry, ProgramEnd};
use crate::state::volumes_in_use::VolumesInUse;
use crate::volumes::csi::inputs::CsiSources;
use crate::volumes::csi::{CsiDrivers, CsiMetrics};
use futures::future::BoxFuture;
use parking_lot::Condvar;
use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;
use std::{fs, io};
use tokio::sync::watch;

mod certificates;
mod cluster;
mod content;
mod crashes;
mod dirs;
mod disk;
mod empty_dir;
mod fc;
mod flex;
mod host_path;
mod hung;
mod iscsi;
mod kernel;
mod local;
mod nfs;
mod ownership;
mod pending;
mod project_quotas;
mod real_iscsi;
mod sub_path;
mod teardown;

impl Default for ClusterSources {
    /// For a standalone node.
    fn default() -> Self {
        Self {
            tokens: Default::default(),
            bundles: Default::default(),
            certificates: Default::default(),
            claims: Default::default(),
            node: watch::Sender::new(None).subscribe(),
            csi: csi_sources(),
        }
    }
}

/// Without an API server and drivers.
fn csi_sources() -> CsiSources {
    let metrics = Metrics::new();
    CsiSources {
        drivers: CsiDrivers::new(CsiMetrics::register(&metrics)),
        objects: Default::default(),
        attachments: Default::default(),
        api: None,
        tokens: Default::default(),
        node: watch::Sender::new(None).subscribe(),
        node_name: "node1".into(),
        in_use: VolumesInUse::default(),
        full_drivers: Arc::default(),
        resync_interval: Duration::from_secs(60),
        reports_health: false,
        events: Default::default(),
        metrics: VolumeMetrics::register(&metrics),
    }
}

/// Of a sync that nothing cancels.
fn never() -> CancellationToken {
    CancellationToken::new()
}

/// Waits for something that threads and programs do.
async fn until(what: &str, mut fact: impl FnMut() -> bool) {
    let begun = clock::instant();
    while !fact() {
        assert!(clock::since(begun) < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// For [`Fake::format`]: an empty disk.
const EMPTY_DISK: &str = "nothing";

/// Pretends to mount: records what was asked and shows it in the list. Programs that are in `bin` of its machine's root
/// are run.
#[derive(Clone, Default)]
struct FakeMounter(Arc<Mutex<Fake>>, Arc<Condvar>, PathBuf);

#[derive(Default)]
struct Fake {
    mounts: Vec<MountEntry>,
    tmpfs: Vec<(PathBuf, u64)>,
    huge: Vec<(PathBuf, u64)>,
    bound: Vec<(PathBuf, PathBuf)>,
    unmounted: Vec<PathBuf>,
    /// Programs that ran, with their arguments, and with what code the next ones end.
    ran: Vec<String>,
    code: i32,
    /// What `blkid` prints.
    format: String,
    busy: bool,
    lists: usize,
    /// The program that hangs until it is ended.
    hanging_program: Option<&'static str>,
    /// What hangs when something is mounted on it, by its file name, and how many calls hang.
    hanging: Option<String>,
    waiting: usize,
    /// How many calls still work; the others fail as if the kubelet died there.
    left: Option<usize>,
}

impl Fake {
    fn spend(&mut self) -> io::Result<()> {
        match &mut self.left {
            Some(0) => Err(io::Error::other("the kubelet died")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl FakeMounter {
    /// The result of a program that does not hang.
    fn begin(&self, program: &Program) -> io::Result<ProgramEnd> {
        let mut fake = self.0.lock();
        fake.spend()?;
        let (name, args) = (&program.name, program.args.join(" "));
        fake.ran.push(format!("{name} {args}"));
        let is_empty = name == "blkid" && fake.format == EMPTY_DISK;
        Ok(ProgramEnd {
            code: Some(if is_empty { 2 } else { fake.code }),
            stdout: if name == "blkid" && !is_empty { fake.format.clone() } else { String::new() },
            stderr: if is_empty { "" } else { "scripted" }.into(),
        })
    }

    fn hang(&self, name: &str) {
        self.0.lock().hanging = Some(name.into());
    }

    fn release(&self) {
        self.0.lock().hanging = None;
        self.1.notify_all();
    }

    fn wait(&self, target: &Path) {
        let mut fake = self.0.lock();
        let name = target.file_name().unwrap_or_default();
        fake.waiting += 1;
        while fake.hanging.as_deref().is_some_and(|hanging| name == hanging) {
            self.1.wait(&mut fake);
        }
        fake.waiting -= 1;
    }

    fn add(&self, point: &Path, fs_type: &str) {
        self.add_device(point, fs_type, "0:1");
    }

    /// The program of this name that is run.
    fn program(&self, name: &str) -> Option<PathBuf> {
        let path = self.2.join("bin").join(name);
        path.is_file().then_some(path)
    }

    fn add_device(&self, point: &Path, fs_type: &str, device: &str) {
        self.0.lock().mounts.push(MountEntry {
            mount_point: point.into(),
            device: device.into(),
            root: "/".into(),
            fs_type: fs_type.into(),
            source: fs_type.into(),
        });
    }
}

impl Mounter for FakeMounter {
    fn list(&self) -> io::Result<Vec<MountEntry>> {
        let mut fake = self.0.lock();
        fake.lists += 1;
        fake.spend()?;
        Ok(fake.mounts.clone())
    }

    fn symlink_metadata(&self, path: &Path) -> io::Result<fs::Metadata> {
        self.wait(path);
        fs::symlink_metadata(path)
    }

    fn is_mounted(&self, directory: &Path) -> io::Result<bool> {
        let mut fake = self.0.lock();
        fake.lists += 1;
        fake.spend()?;
        Ok(fake.mounts.iter().any(|m| m.mount_point == directory))
    }

    fn huge_pages(&self, target: &Path, page_bytes: u64) -> io::Result<()> {
        self.0.lock().spend()?;
        self.0.lock().huge.push((target.into(), page_bytes));
        self.add(target, "hugetlbfs");
        Ok(())
    }

    fn tmpfs(&self, target: &Path, size_bytes: u64, _mode: u32) -> io::Result<()> {
        self.wait(target);
        self.0.lock().spend()?;
        self.0.lock().tmpfs.push((target.into(), size_bytes));
        self.add(target, "tmpfs");
        Ok(())
    }

    fn bind(&self, source: &Path, target: &Path) -> io::Result<()> {
        self.wait(target);
        self.0.lock().spend()?;
        let real = fs::read_link(source)?;
        let mut mounts = self.list()?.into_iter();
        let device = mounts.find(|mount| mount.mount_point == real);
        let device = device.map_or("0:1".into(), |mount| mount.device);
        self.0.lock().bound.push((real, target.into()));
        self.add_device(target, "ext4", &device);
        Ok(())
    }

    fn machine_root(&self) -> &Path {
        &self.2
    }

    fn run(&self, program: Program) -> io::Result<ProgramEnd> {
        if let Some(path) = self.program(&program.name) {
            let name = path.to_str().unwrap().to_owned();
            return program::run(Program { name, ..program });
        }
        let end = self.begin(&program)?;
        {
            let mut fake = self.0.lock();
            while fake.hanging_program == Some(&*program.name) {
                if program.ended.is_cancelled() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                self.1.wait_for(&mut fake, Duration::from_millis(1));
            }
        }
        let args: Vec<_> = program.args.iter().map(String::as_str).collect();
        if let ("mount", Some(0), ["-t", fs_type, .., device, target]) =
            (&*program.name, end.code, &*args)
            && self.2.join("bin").is_dir()
            && !self.is_mounted(Path::new(target))?
        {
            let name = fs::canonicalize(device).unwrap_or_default();
            let name = name.file_name().unwrap_or_default();
            let numbers = self.2.join("sys/block").join(name).join("dev");
            let numbers = fs::read_to_string(numbers).unwrap_or("0:1".into());
            self.add_device(Path::new(target), fs_type, numbers.trim());
        }
        Ok(end)
    }

    fn execute(&self, program: Program) -> BoxFuture<'static, io::Result<ProgramEnd>> {
        if program.name.starts_with('/') {
            return Box::pin(program::execute(program));
        }
        if let Some(path) = self.program(&program.name) {
            let name = path.to_str().unwrap().to_owned();
            return Box::pin(program::execute(Program { name, ..program }));
        }
        let fake = self.clone();
        Box::pin(async move {
            let end = fake.begin(&program)?;
            let hangs = || fake.0.lock().hanging_program == Some(&*program.name);
            while hangs() {
                tokio::select! {
                    () = program.ended.cancelled() => return Err(io::ErrorKind::Interrupted.into()),
                    () = tokio::time::sleep(Duration::from_millis(1)) => {}
                }
                if program.name == "umount" && !program.args.contains(&"-f".into()) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                if program.name == "umount" {
                    break;
                }
            }
            let target = PathBuf::from(program.args.last().unwrap());
            match (&*program.name, end.code) {
                ("mount", Some(0)) if program.args[1].contains("remount") => {}
                ("mount", Some(0)) => fake.add(&target, &program.args[1]),
                ("umount", Some(0)) => fake.unmount(&target)?,
                _ => {}
            }
            Ok(end)
        })
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        self.wait(target);
        let mut fake = self.0.lock();
        fake.spend()?;
        if fake.busy {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        if let Some(at) = fake.mounts.iter().rposition(|m| m.mount_point == target) {
            fake.mounts.remove(at);
            fake.unmounted.push(target.into());
        }
        Ok(())
    }
}

struct Node {
    _dir: tempfile::TempDir,
    base: PathBuf,
    mounter: FakeMounter,
    manager: VolumeManager,
}

fn node() -> Node {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let mounter = FakeMounter(Arc::default(), Arc::default(), base.clone());
    Node { manager: manager(&base, &mounter), mounter, base, _dir: dir }
}

impl Node {
    async fn prepare(&self, pod: &Pod) -> Result<VolumePaths, VolumeError> {
        let prepared = self.manager.prepare(pod, &never()).await;
        let prepared = prepared.map_err(|error| *error.first)?;
        assert!(prepared.update_errors.is_empty(), "{:?}", prepared.update_errors);
        Ok(prepared.paths)
    }

    /// Puts an entry of an object, `secrets/ns/name/key`.
    fn put(&self, path: &str, text: &str) {
        let path = self.base.join("objects").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn manager(base: &Path, mounter: &FakeMounter) -> VolumeManager {
    let facts = NodeFacts {
        allocatable_memory_bytes: 1 << 30,
        allocatable_milli_cpu: 4000,
        volume_plugin_dir: base.join("flex"),
        ..NodeFacts::default()
    };
    let root = KubeletRoot::create(&base.join("kubelet")).unwrap();
    let objects = ConfigMapSecretReader::new(Some(base.join("objects")), None);
    VolumeManager::new(
        root,
        Arc::new(facts),
        objects,
        ClusterSources::default(),
        None,
        mounter.clone(),
    )
}

/// A manager with an API server and the Node object, which has read what is on disk.
async fn cluster_manager(
    node: &Node,
    facts: Arc<NodeFacts>,
    server: &Stored,
    in_use: &VolumesInUse,
    object: &watch::Sender<Option<Arc<k8s_openapi::api::core::v1::Node>>>,
) -> VolumeManager {
    let cluster = ClusterSources {
        csi: CsiSources {
            api: Some(server.client().await),
            node: object.subscribe(),
            in_use: in_use.clone(),
            ..csi_sources()
        },
        ..Default::default()
    };
    let manager = VolumeManager::new(
        node.manager.shared.root.clone(),
        facts,
        ConfigMapSecretReader::new(None, None),
        cluster,
        None,
        node.mounter.clone(),
    );
    let csi = manager.csi().clone();
    spawn_blocking(move || csi.recover()).await.unwrap();
    manager
}

/// A pod whose one container mounts every volume.
fn pod(volumes: Value) -> Pod {
    let names = volumes.as_array().unwrap().iter();
    let mounts: Vec<Value> = names.map(|v| json!({"name": v["name"], "mountPath": "/x"})).collect();
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1",
            "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": {"volumes": volumes, "containers": [{"name": "c", "volumeMounts": mounts}]},
    }))
    .unwrap()
}

fn host_path(path: &Path, kind: &str) -> Value {
    json!([{"name": "h", "hostPath": {"path": path, "type": kind}}])
}
