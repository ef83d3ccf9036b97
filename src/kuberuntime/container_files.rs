//! Makes the files and directories that a container's configuration refers to. Executor of what
//! the pure files beside it decide.

use super::dns::{self, ResolvConf};
use super::mounts::{self, ContainerFiles};
use super::settings::{ConfigError, SpecSettings};
use super::{env::Environment, hostname::pod_hostname, log_paths};
use crate::host::files;
use crate::model::{Pod, PodExt};
use crate::volumes::{VolumeError, VolumeManager, VolumePaths, pod_dirs};
use k8s_openapi::api::core::v1::Container;
use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

/// How much of the node's hosts file is passed on, bytes.
const MAX_HOSTS: usize = 1 << 20;
const NODE_HOSTS: &str = "/etc/hosts";

/// Why a container's files could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The pod asks for something impossible.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The volumes or the pod's directory are in trouble.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The log directory cannot be made.
    #[error("cannot make log directory {0}")]
    LogDirectory(PathBuf, #[source] io::Error),
    /// The node's hosts file cannot be read.
    #[error("cannot read {NODE_HOSTS}")]
    NodeHosts(#[source] io::Error),
    /// The blocking task was lost.
    #[error("the file task did not finish")]
    Task(#[from] tokio::task::JoinError),
}

/// Hosts file of a pod: composed here, or from the node's.
enum Hosts {
    None,
    Text(String),
    FromNode,
}

/// Makes what one container needs before it is created: log directory, sub-paths, hosts file and a
/// fresh termination log.
pub async fn make_container_files(
    volumes: &VolumeManager,
    settings: &SpecSettings,
    pod: &std::sync::Arc<Pod>,
    container: &Container,
    pod_ips: &[String],
    paths: &VolumePaths,
    environment: &Environment,
) -> Result<ContainerFiles, FilesError> {
    let requests =
        mounts::sub_path_requests(container, paths, environment).map_err(ConfigError::from)?;
    let uid = pod.uid();
    let sub_paths = volumes
        .prepare_sub_paths(&uid, &container.name, requests)
        .await?;
    let hosts = match mounts::wants_hosts_file(pod, container, pod_ips) {
        false => Hosts::None,
        true if pod.host_network() => Hosts::FromNode,
        true => {
            let name = pod_hostname(pod, &settings.cluster_domain).map_err(ConfigError::from)?;
            Hosts::Text(mounts::pod_hosts(pod, &name, pod_ips))
        }
    };
    let message_path = container.termination_message_path.as_deref();
    let wants_log = message_path.is_some_and(|path| !path.is_empty());
    let logs = log_paths::container_logs_dir(&settings.pod_logs_dir, pod, &container.name)
        .map_err(ConfigError::from)?;
    let directory = settings.root.pod(&uid).map_err(ConfigError::from)?;
    let name = container.name.clone();
    let pod = pod.clone();
    let make = move || {
        make_log_dir(&logs)?;
        pod_dirs::create(&directory)?;
        let content = match hosts {
            Hosts::None => None,
            Hosts::Text(text) => Some(text.into_bytes()),
            Hosts::FromNode => {
                let node = files::read_head_or_empty(Path::new(NODE_HOSTS), MAX_HOSTS)
                    .map_err(FilesError::NodeHosts)?;
                Some(mounts::node_hosts(&pod, &node))
            }
        };
        Ok(ContainerFiles {
            sub_paths,
            hosts_file: content
                .map(|content| pod_dirs::write_hosts_file(&directory, &content))
                .transpose()?,
            termination_log: wants_log
                .then(|| pod_dirs::create_termination_log(&directory, &name))
                .transpose()?,
        })
    };
    tokio::task::spawn_blocking(make).await?
}

/// Makes a log directory and its parents (0755). Blocking.
pub fn make_log_dir(path: &Path) -> Result<(), FilesError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .map_err(|e| FilesError::LogDirectory(path.to_path_buf(), e))
}

/// The restart count that the log files of a container's earlier instances prove; 0 without any.
/// Blocking.
pub fn restart_count_from_log_dir(logs: &Path) -> io::Result<u32> {
    let entries = match fs::read_dir(logs) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        listed => listed?,
    };
    let names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    Ok(log_paths::restart_count_from_logs(
        names.iter().map(String::as_str),
    ))
}

/// Links a container's log where collectors look for it, replacing an older link. Blocking.
pub fn link_log(log: &Path, link: &Path) -> io::Result<()> {
    if let Some(parent) = link.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(parent)?;
    }
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::os::unix::fs::symlink(log, link)
}

/// The node's resolver configuration; a missing file is an empty one. `None` for an empty path,
/// which switches it off. Blocking.
pub fn read_resolv_conf(path: &Path) -> io::Result<Option<ResolvConf>> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let text = files::read_head_or_empty(path, dns::MAX_RESOLV_CONF)?;
    Ok(Some(dns::parse_resolv_conf(&text)))
}
