//! The Services of the cluster, for service environment variables.
//!
//! * Owns: one watch of all Services, reduced to cluster IPs and ports; a file with the last known ones, for a start
//!   while the API server is unavailable.
//! * Woken by: the watch. Publishes the pods that waited for the first list.
//! * Must never treat a failed request as an empty list.
//! * Upstream: the service lister of `pkg/kubelet`.

use super::ApiServer;
use super::collection::Collection;
use crate::base::{DirtySet, atomic_file, run_file_io};
use crate::model::{Pod, PodExt as _, PodUid};
use k8s_openapi::api::core::v1 as api;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// The Service in namespace `default` of which every pod gets variables (upstream's `masterServices`).
const MASTER_SERVICE: &str = "kubernetes";
/// Minimum interval between two writes of the file.
const WRITE_INTERVAL: Duration = Duration::from_secs(30);

/// A Service with a cluster IP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterService {
    /// Its name.
    pub name: String,
    /// `clusterIP`.
    pub cluster_ip: String,
    /// Its ports, at least one.
    pub ports: Vec<ServicePort>,
}

/// A port of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    /// Name; empty if it has none.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Port number.
    pub port: i32,
}

/// The Services of the cluster. Cheap to clone.
#[derive(Clone, Default)]
pub struct Services(Option<(ApiServer, Collection<Arc<ClusterService>>)>);

/// An entry of the file: a Service with its namespace.
type Namespaced = (String, Arc<ClusterService>);

impl Services {
    /// Reads from this API server; with `None` there are no Services. Waiting pods are marked in `changed`.
    pub fn new(api: Option<ApiServer>, changed: Arc<DirtySet<PodUid>>) -> Self {
        Self(api.map(|api| (api, Collection::new(changed))))
    }

    /// Watches the Services until shutdown. `file` holds the last known ones: containers that restart while the API
    /// server is unavailable need them.
    ///
    /// # Errors
    /// Never fails.
    pub async fn run(self, file: PathBuf, shutdown: CancellationToken) -> anyhow::Result<()> {
        let Some((api, services)) = &self.0 else {
            shutdown.cancelled().await;
            return Ok(());
        };
        let path = file.clone();
        let stored = run_file_io(move || read(&path)).await.ok().flatten();
        if let Some(stored) = &stored {
            let keyed = stored.iter().cloned();
            let keyed = keyed.map(|(namespace, one)| ((namespace, one.name.clone()), one));
            services.restore(keyed.collect());
        }
        let mut stored = ServicesFile { file, stored };
        tokio::join!(services.follow(api, &shutdown, reduced), stored.keep(services, &shutdown));
        if services.is_listed_now() {
            stored.write(services).await;
        }
        Ok(())
    }

    /// The Services for a pod's environment variables, sorted by name; `None` if they have not been listed yet. A
    /// static pod does not wait for them.
    pub async fn of(&self, pod: &Pod) -> Option<Vec<Arc<ClusterService>>> {
        let Some((_, services)) = &self.0 else {
            return Some(Vec::new());
        };
        if !pod.is_static() && !services.is_listed().await {
            services.wait(pod.uid());
            // The list may have arrived in between.
            if !services.is_listed_now() {
                return None;
            }
        }
        let links = pod.spec().and_then(|spec| spec.enable_service_links);
        Some(services.read(|all| visible(all, pod.namespace(), links != Some(false))))
    }
}

/// Reads the file; `None` if it cannot be read or decoded.
fn read(file: &Path) -> Option<Vec<Namespaced>> {
    let bytes = fs::read(file).ok()?;
    let read = serde_json::from_slice(&bytes);
    read.inspect_err(|error| tracing::warn!(path = %file.display(), err = %error, "Ignoring the stored services"))
        .ok()
}

struct ServicesFile {
    file: PathBuf,
    /// Content of the file, so that equal content is not written again.
    stored: Option<Vec<Namespaced>>,
}

impl ServicesFile {
    /// Writes the file after changes, until shutdown; changes within the interval share a write. If a write fails, the
    /// file keeps its old content. A write in progress completes before this returns, because it could otherwise
    /// replace a later one.
    async fn keep(
        &mut self,
        services: &Collection<Arc<ClusterService>>,
        shutdown: &CancellationToken,
    ) {
        let mut changes = services.changes();
        while let Some(Ok(())) = shutdown.run_until_cancelled(changes.changed()).await {
            if self.write(services).await {
                shutdown.run_until_cancelled(sleep(WRITE_INTERVAL)).await;
            }
        }
    }

    /// Writes the known Services unless the file has them; returns whether it attempted a write.
    async fn write(&mut self, services: &Collection<Arc<ClusterService>>) -> bool {
        let known: Vec<Namespaced> = services.read(|all| {
            let all = all.iter();
            all.map(|((namespace, _), one)| (namespace.clone(), one.clone())).collect()
        });
        if self.stored.as_ref() == Some(&known) {
            return false;
        }
        let bytes = serde_json::to_vec(&known).map_err(io::Error::other);
        let path = self.file.clone();
        let write = move || atomic_file::write(&path, &bytes?);
        match run_file_io(write).await {
            Ok(Ok(())) => self.stored = Some(known),
            Ok(Err(error)) => {
                tracing::debug!(path = %self.file.display(), err = %error, "Cannot store the services");
            }
            Err(_) => {}
        }
        true
    }
}

fn reduced(service: &api::Service) -> Option<Arc<ClusterService>> {
    let spec = service.spec.as_ref()?;
    let cluster_ip = spec.cluster_ip.clone()?;
    if cluster_ip.is_empty() || cluster_ip == "None" {
        return None;
    }
    let port = |port: &api::ServicePort| ServicePort {
        name: port.name.clone().unwrap_or_default(),
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
        port: port.port,
    };
    let ports: Vec<_> = spec.ports.iter().flatten().map(port).collect();
    (!ports.is_empty()).then(|| {
        Arc::new(ClusterService {
            name: service.metadata.name.clone().unwrap_or_default(),
            cluster_ip,
            ports,
        })
    })
}

/// The Services of the pod's namespace, if `enableServiceLinks` is set, and that of the API server.
fn visible(
    all: &BTreeMap<(String, String), Arc<ClusterService>>,
    namespace: &str,
    links: bool,
) -> Vec<Arc<ClusterService>> {
    let mut visible = BTreeMap::new();
    for ((of, name), service) in all {
        if of == namespace && links {
            visible.insert(name, service.clone());
        } else if of == "default" && name == MASTER_SERVICE {
            visible.entry(name).or_insert_with(|| service.clone());
        }
    }
    visible.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::tests::stored::{Mode, Stored};
    use crate::model::{fixture, keys};
    use serde_json::{Value, json};

    fn service(ip: &str) -> Value {
        json!({"spec": {"clusterIP": ip, "ports": [{"port": 80}]}})
    }

    fn pod(source: &str, links: Option<bool>) -> Pod {
        let pod = fixture::pod("shop/p/u1", json!({"enableServiceLinks": links}));
        fixture::annotated(pod, [(keys::CONFIG_SOURCE, source)])
    }

    async fn started() -> (Stored, Services, Arc<DirtySet<PodUid>>) {
        let server = Stored::start().await;
        let changed = Arc::<DirtySet<PodUid>>::default();
        let services = Services::new(Some(server.client().await), changed.clone());
        (server, services, changed)
    }

    fn addresses(services: Option<Vec<Arc<ClusterService>>>) -> Option<Vec<(String, String)>> {
        let pair = |s: &Arc<ClusterService>| (s.name.clone(), s.cluster_ip.clone());
        services.map(|services| services.iter().map(pair).collect())
    }

    #[tokio::test]
    async fn a_pod_sees_the_services_of_its_namespace_and_the_api_servers() {
        let (server, services, _) = started().await;
        let dir = tempfile::tempdir().unwrap();
        server.put("services", "default", "kubernetes", service("10.0.0.1"));
        server.put("services", "default", "other", service("10.0.0.2"));
        server.put("services", "shop", "web", service("10.0.0.3"));
        server.put("services", "shop", "headless", service("None"));
        server.put("services", "shop", "external", json!({"spec": {"ports": [{"port": 1}]}}));
        let task = tokio::spawn(
            services.clone().run(dir.path().join("services"), CancellationToken::new()),
        );
        let pair = |name: &str, ip: &str| (name.to_owned(), ip.to_owned());
        let own = [pair("kubernetes", "10.0.0.1"), pair("web", "10.0.0.3")];
        assert_eq!(addresses(services.of(&pod("api", None)).await), Some(own.to_vec()));
        let without = addresses(services.of(&pod("api", Some(false))).await);
        assert_eq!(without, Some(vec![pair("kubernetes", "10.0.0.1")]));
        // One of the pod's own namespace stands before the API server's.
        server.put("services", "shop", "kubernetes", service("10.0.0.9"));
        server.delete("services", "shop", "web");
        let own = Some(vec![pair("kubernetes", "10.0.0.9")]);
        let follow = async {
            while addresses(services.of(&pod("api", None)).await) != own {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), follow).await.unwrap();
        task.abort();
    }

    #[tokio::test]
    async fn before_the_first_list_only_static_pods_go_on_and_others_are_marked_when_it_comes() {
        let (server, services, changed) = started().await;
        let dir = tempfile::tempdir().unwrap();
        server.set(Mode::Refusing(503));
        let task = tokio::spawn(
            services.clone().run(dir.path().join("services"), CancellationToken::new()),
        );
        assert_eq!(services.of(&pod("api", None)).await, None);
        assert_eq!(services.of(&pod("file", None)).await, Some(vec![]));
        server.set(Mode::Serving);
        let marked = tokio::time::timeout(Duration::from_secs(20), changed.take());
        assert!(marked.await.unwrap().contains(&PodUid::from("u1")));
        assert_eq!(services.of(&pod("api", None)).await, Some(vec![]));
        task.abort();
        let none = Services::default();
        assert_eq!(none.of(&pod("api", None)).await, Some(vec![]));
    }

    #[tokio::test]
    async fn the_file_is_written_once_for_many_changes_and_again_at_the_stop() {
        let (server, services, _) = started().await;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("services");
        server.put("services", "default", "kubernetes", service("10.0.0.1"));
        let shutdown = CancellationToken::new();
        let run = services.clone().run(file.clone(), shutdown.clone());
        let task = tokio::spawn(run);
        let wait = async |fact: &dyn Fn() -> bool| {
            let wait = async {
                while !fact() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap();
        };
        let stored = || read(&file).map_or(0, |stored| stored.len());
        let known = || services.0.as_ref().unwrap().1.read(BTreeMap::len);
        wait(&|| stored() == 1).await;
        server.put("services", "default", "second", service("10.0.0.2"));
        wait(&|| known() == 2).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(stored(), 1, "the interval has not passed");
        shutdown.cancel();
        task.await.unwrap().unwrap();
        assert_eq!(stored(), 2);
    }

    #[tokio::test]
    async fn a_file_that_has_what_is_known_is_not_written() {
        let changed = Arc::<DirtySet<PodUid>>::default();
        let services = Collection::new(changed);
        let one = reduced(&serde_json::from_value(service("10.0.0.1")).unwrap()).unwrap();
        let key = ("default".to_owned(), "kubernetes".to_owned());
        services.restore([(key, one)].into());
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("services");
        let mut stored = ServicesFile { file: file.clone(), stored: None };
        assert!(stored.write(&services).await);
        fs::remove_file(&file).unwrap();
        assert!(!stored.write(&services).await);
        assert!(!file.exists());
    }

    #[tokio::test]
    async fn services_are_known_to_the_next_kubelet_while_the_api_server_is_away() {
        let (server, services, _) = started().await;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("services");
        server.put("services", "default", "kubernetes", service("10.0.0.1"));
        let task = tokio::spawn(services.run(file.clone(), CancellationToken::new()));
        let stored = async {
            while read(&file).is_none_or(|stored| stored.is_empty()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), stored).await.unwrap();
        task.abort();
        server.set(Mode::Silent);
        let client = server.client().await;
        let next = Services::new(Some(client), Arc::default());
        let task = tokio::spawn(next.clone().run(file.clone(), CancellationToken::new()));
        let pair = ("kubernetes".to_owned(), "10.0.0.1".to_owned());
        let known = addresses(next.of(&pod("api", None)).await);
        assert_eq!(known, Some(vec![pair]));
        task.abort();
        fs::write(&file, "{").unwrap();
        assert_eq!(read(&file), None);
    }
}
