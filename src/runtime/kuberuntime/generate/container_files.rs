//! Creates the files and directories that a container's configuration refers to. Their content is computed by
//! the pure modules beside it.

use super::container_config::ContainerConfigRequest;
use super::dns::{self, ResolvConf};
use super::env::env_file::MAX_FILE;
use super::env::{EnvFile, EnvFiles, Environment, wanted_files};
use super::hostname::pod_hostname;
use super::mounts::{self, ContainerFiles};
use super::settings::GenerateSettings;
use crate::base::{if_exists, run_file_io};
use crate::host::files;
use crate::model::{Pod, PodExt};
use crate::runtime::kuberuntime::log_paths;
use crate::runtime::kuberuntime::termination::{FileRead, TerminationMessageSource};
use crate::runtime::kuberuntime::translate::MAX_MESSAGE;
use crate::state::pod_cache::PodRef;
use crate::volumes::pod_dirs::TerminationLog;
use crate::volumes::{VolumeManager, VolumePaths, pod_dirs};
use anyhow::Context as _;
use k8s_openapi::api::core::v1::Container;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};
use tokio_util::sync::CancellationToken;

/// Limit of the copied part of the node's hosts file, bytes.
const MAX_HOSTS: usize = 1 << 20;
const NODE_HOSTS: &str = "/etc/hosts";

/// The content of a container's `/etc/hosts`: none is mounted, a generated text, or a copy of the node's file.
enum Hosts {
    None,
    Text(String),
    FromNode,
}

fn plan_hosts(
    settings: &GenerateSettings,
    pod: &Pod,
    container: &Container,
    pod_ips: &[String],
) -> anyhow::Result<Hosts> {
    if !mounts::wants_hosts_file(pod, container, pod_ips) {
        return Ok(Hosts::None);
    }
    if pod.host_network() {
        return Ok(Hosts::FromNode);
    }
    let name = pod_hostname(pod, &settings.cluster_domain)?;
    Ok(Hosts::Text(mounts::pod_hosts(pod, &name, pod_ips)))
}

impl Hosts {
    /// The content of the file. Blocking.
    fn content(self, pod: &Pod) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(match self {
            Self::None => None,
            Self::Text(text) => Some(text.into_bytes()),
            Self::FromNode => {
                let node = files::read_head_or_empty(Path::new(NODE_HOSTS), MAX_HOSTS)
                    .with_context(|| format!("cannot read {NODE_HOSTS}"))?;
                Some(mounts::node_hosts(pod, &node))
            }
        })
    }
}

/// Creates what a container needs before CreateContainer: log directory, sub-paths, hosts file and an empty termination
/// log. Checks the types of its paths of the node.
pub async fn create_container_files(
    manager: &VolumeManager,
    settings: &GenerateSettings,
    request: &ContainerConfigRequest<'_>,
    environment: &Environment,
    cancel: &CancellationToken,
) -> anyhow::Result<ContainerFiles> {
    let ContainerConfigRequest { pod, container, volumes, images, .. } = *request;
    let requests = mounts::sub_path_requests(container, volumes, images, environment)?;
    let uid = pod.uid();
    manager.check_host_paths(&uid, mounts::volumes_of(container, volumes), cancel).await?;
    let sub_paths = manager.prepare_sub_paths(&uid, &container.name, requests, cancel).await?;
    let hosts = plan_hosts(settings, pod, container, request.pod_ips)?;
    let message_path = container.termination_message_path.as_deref();
    let wants_log = message_path.is_some_and(|path| !path.is_empty());
    let logs =
        log_paths::container_logs_dir(&settings.pod_logs_dir, &PodRef::of(pod), &container.name)?;
    let directory = settings.root.pod(&uid)?;
    let name = container.name.clone();
    let termination_log = TerminationLog {
        restart_count: request.restart_count,
        other_restart_counts: request.other_restart_counts.to_vec(),
    };
    let pod = pod.clone();
    let make = move || {
        create_log_dir(&logs)?;
        pod_dirs::create(&directory)?;
        let content = hosts.content(&pod)?;
        Ok(ContainerFiles {
            sub_paths,
            hosts_file: content
                .map(|content| pod_dirs::write_hosts_file(&directory, &content))
                .transpose()?,
            termination_log: wants_log
                .then(|| pod_dirs::create_termination_log(&directory, &name, &termination_log))
                .transpose()?,
        })
    };
    run_file_io(make).await.context("the file task did not finish")?
}

/// Makes a log directory and its parents (0755). Blocking.
pub fn create_log_dir(path: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .with_context(|| format!("cannot create the log directory {}", path.display()))
}

/// Makes a pod's log directory and its parents. Returns true if it did not exist. Blocking.
pub fn create_pod_log_dir(path: &Path) -> io::Result<bool> {
    let one = || fs::DirBuilder::new().mode(0o755).create(path);
    let made = match one() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().unwrap_or(path);
            let all = fs::DirBuilder::new().recursive(true).mode(0o755).create(parent);
            all.and_then(|()| one())
        }
        made => made,
    };
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(false),
        made => made.map(|()| true),
    }
}

/// The restart count according to the log files of a container's earlier instances; 0 without any.
/// Blocking.
pub fn restart_count_from_log_dir(logs: &Path) -> io::Result<u32> {
    let entries = if_exists(fs::read_dir(logs))?;
    let names: Vec<String> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    Ok(log_paths::restart_count_from_logs(names.iter().map(String::as_str)))
}

/// Links a container's log where collectors read it, replacing an older link. Blocking.
pub fn link_log(log: &Path, link: &Path) -> io::Result<()> {
    if let Some(parent) = link.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    if_exists(fs::remove_file(link))?;
    std::os::unix::fs::symlink(log, link)
}

/// Reads the files that a container's variables come from. Files of unknown volumes are skipped.
pub async fn read_env_files(
    container: &Container,
    volumes: &VolumePaths,
) -> anyhow::Result<EnvFiles> {
    let wanted = wanted_files(container).filter_map(|(volume, path)| {
        let place = (volume.to_string(), path.to_string());
        Some((place, volumes.get(volume)?.host_path.clone()))
    });
    let wanted: Vec<_> = wanted.collect();
    if wanted.is_empty() {
        return Ok(EnvFiles::new());
    }
    let read = move || {
        let read = |((volume, path), directory): ((String, String), PathBuf)| {
            let host_path = directory.join(path.trim_start_matches('/'));
            let file = EnvFile {
                host_path: host_path.to_string_lossy().into_owned(),
                content: read_env_file(&directory, Path::new(&path)),
            };
            ((volume, path), file)
        };
        wanted.into_iter().map(read).collect()
    };
    let files = run_file_io(read).await;
    files.context("the file task did not finish")
}

fn read_env_file(directory: &Path, path: &Path) -> Result<Option<Vec<u8>>, String> {
    match if_exists(files::read_within(directory, path, MAX_FILE + 1)) {
        Ok(Some(bytes)) if bytes.len() > MAX_FILE => {
            Err(format!("the environment variable file is larger than {MAX_FILE} bytes"))
        }
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(format!("failed to open environment variable file: {error}")),
    }
}

/// Reads the end of an exited container's termination log. Blocking.
pub fn read_termination_message(source: &TerminationMessageSource) -> FileRead {
    let Some(path) = &source.file else {
        return FileRead::Missing;
    };
    match if_exists(files::read_tail(path, MAX_MESSAGE)) {
        Ok(Some(bytes)) => FileRead::Bytes(bytes),
        Ok(None) => FileRead::Missing,
        Err(error) => FileRead::Failed(error.to_string()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::kuberuntime::fixtures::{node, pod, settings};
    use crate::runtime::kuberuntime::generate::mounts::ImageVolumes;
    use crate::runtime::kuberuntime::generate::security_context::ImageUser;
    use crate::volumes::{ClusterSources, HostMounter};
    use serde_json::json;
    use std::sync::Arc;

    #[tokio::test]
    async fn everything_a_container_refers_to_is_there_before_it_is_created() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = settings(&dir.path().join("kubelet"));
        settings.pod_logs_dir = dir.path().join("logs");
        let volumes = VolumeManager::new(
            settings.root.clone(),
            Arc::new(node()),
            crate::apiserver::configmap_secret::ConfigMapSecretReader::default(),
            ClusterSources::default(),
            None,
            HostMounter,
        );
        let pod = Arc::new(pod(json!({"containers": [
            {"name": "c", "terminationMessagePath": "/dev/termination-log"}
        ]})));
        let container = &pod.containers()[0];
        let ips = ["10.1.0.5".to_string()];
        let make = async |restart_count| {
            let paths = VolumePaths::new();
            let environment = Environment::new();
            let request = ContainerConfigRequest {
                pod: &pod,
                container,
                restart_count,
                other_restart_counts: &[],
                image_ref: "",
                image_user: &ImageUser::Uid(0),
                pod_ips: &ips,
                volumes: &paths,
                images: &ImageVolumes::new(),
            };
            let never = CancellationToken::new();
            create_container_files(&volumes, &settings, &request, &environment, &never)
                .await
                .unwrap()
        };
        let first = make(0).await;
        let second = make(1).await;
        assert!(dir.path().join("logs/shop_web_u-1/c").is_dir());
        let hosts = fs::read_to_string(first.hosts_file.unwrap()).unwrap();
        assert!(hosts.contains("10.1.0.5\tweb\n"));
        let (old, new) = (first.termination_log.unwrap(), second.termination_log.unwrap());
        assert_ne!(old, new, "an instance does not inherit the termination message");
        assert!(new.is_file() && !old.exists());
    }

    #[test]
    fn logs_of_earlier_instances_count_and_links_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("c");
        assert_eq!(restart_count_from_log_dir(&logs).unwrap(), 0);
        create_log_dir(&logs).unwrap();
        fs::write(logs.join("4.log"), "").unwrap();
        assert_eq!(restart_count_from_log_dir(&logs).unwrap(), 5);
        let link = dir.path().join("containers/link.log");
        link_log(&logs.join("4.log"), &link).unwrap();
        link_log(&logs.join("5.log"), &link).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), logs.join("5.log"));
    }

    #[test]
    fn termination_message_is_read_only_from_a_regular_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        let source = TerminationMessageSource { file: Some(path.clone()), log: None };
        assert_eq!(
            read_termination_message(&TerminationMessageSource::default()),
            FileRead::Missing
        );
        assert_eq!(read_termination_message(&source), FileRead::Missing);
        fs::write(&path, [vec![b'x'; MAX_MESSAGE], b"end".to_vec()].concat()).unwrap();
        assert!(matches!(
            read_termination_message(&source),
            FileRead::Bytes(bytes) if bytes.len() == MAX_MESSAGE && bytes.ends_with(b"end")
        ));
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(matches!(read_termination_message(&source), FileRead::Failed(_)));
    }

    #[test]
    fn a_missing_resolver_configuration_is_empty_and_an_empty_path_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let missing = read_resolv_conf(&dir.path().join("resolv.conf")).unwrap();
        assert_eq!(missing, Some(ResolvConf::default()));
        assert_eq!(read_resolv_conf(Path::new("")).unwrap(), None);
    }
}
