//! The CSI driver of the tests as a program: this binary, run again with other arguments. In a cluster its pods run it.

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/volumes/csi/tests/driver/mod.rs"]
mod driver;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use crate::registrar;
use driver::{CsiDriver, DriverConfig, Journal};
use kubelet::base::connections;
use kubelet::resources::plugin_manager::registration_proto;
use kubelet::volumes::csi::proto;

pub(crate) use driver::Mounts;

/// The first argument of the program.
pub const WORD: &str = "serve-csi-driver";
pub const NAME: &str = "csi.example.com";
/// Begins the lines of its journal that are no calls.
pub const VIOLATION: &str = Journal::VIOLATION;
/// The domain of the topology in which its only node is.
pub const TOPOLOGY: (&str, &str) = ("example.com/zone", "a");
/// How many volumes a node may have.
const MAX_VOLUMES: i64 = 20;

/// The command line of a driver that can do all that there is.
///
/// * `base`: for its socket, its volumes and its journal, which all stay when it ends;
/// * `registry`: the directory of registration sockets, if it is to be registered.
pub fn command(node: &str, base: &Path, registry: Option<&Path>, backend: Mounts) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let mut words = vec![program.display().to_string(), WORD.to_owned()];
    words.extend(["--node-id", node, "--base"].map(str::to_owned));
    words.push(base.display().to_string());
    words.extend(["--backend".to_owned(), format!("{backend:?}")]);
    if let Some(registry) = registry {
        words.extend(["--registry".to_owned(), registry.display().to_string()]);
    }
    words
}

/// Its socket and its journal, by its base.
pub fn socket(base: &Path) -> PathBuf {
    config(base).socket()
}

pub fn journal(base: &Path) -> PathBuf {
    config(base).journal()
}

fn config(base: &Path) -> DriverConfig {
    DriverConfig {
        is_kept: true,
        attach: true,
        expand: true,
        volume_stats: true,
        single_node_multi_writer: true,
        max_volumes: MAX_VOLUMES,
        topology: [(TOPOLOGY.0.to_owned(), TOPOLOGY.1.to_owned())].into(),
        ..DriverConfig::new(NAME, base)
    }
}

/// Serves until it is terminated, with the arguments behind [`WORD`]. With `--volumes` there are so many volumes from the
/// start, `vol-1` and so on, and a node may have all of them without a controller that attaches them.
pub fn serve(mut args: impl Iterator<Item = String>) -> ExitCode {
    let mut config = config(Path::new(""));
    let mut volumes = 0;
    while let Some(flag) = args.next() {
        let value = args.next().unwrap_or_else(|| panic!("{flag} without a value"));
        match flag.as_str() {
            "--node-id" => config.node_id = value,
            "--base" => config.base = value.into(),
            "--registry" => config.registry = Some(value.into()),
            "--expand" => config.expand = value.parse().unwrap(),
            "--volumes" => {
                volumes = value.parse().unwrap();
                config.attach = false;
                config.max_volumes = 0;
            }
            "--backend" => {
                let all = [Mounts::None, Mounts::Bind, Mounts::Tmpfs];
                let named = all.into_iter().find(|one| format!("{one:?}") == value);
                config.mounts = named.unwrap_or_else(|| panic!("no backend {value}"));
            }
            _ => panic!("no flag {flag}"),
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // The first process of a container ends only by what it handles.
        let mut end = signal(SignalKind::terminate()).unwrap();
        let driver = CsiDriver::start(config);
        for number in 1..=volumes {
            driver.add_volume(&format!("vol-{number}"));
        }
        end.recv().await;
    });
    ExitCode::SUCCESS
}
