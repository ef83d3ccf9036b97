mod answers;
mod node;
mod page;
mod routes;
mod secured;
mod sockets;
mod spans;

use super::explain::{Explanation, Overview};
use super::*;
use crate::base::metrics::Metrics;
use crate::cri::{CriConnection, CriMetrics, RuntimeClient, RuntimeEndpoint};
use crate::model::{ContainerState, ContainerStatus, Pod, PodExt, fixture};
use crate::node::stats::api::{NodeStats, PodReference, PodStats, RlimitStats, Summary};
use crate::pods::pod_sync::{PodLister, PodWithStatus};
use crate::pods::status::StatusManager;
use crate::runtime::logs::ContainerLogs;
use crate::state::events::{EventRecorder, ObjectRef};
use crate::state::pod_cache::{self, InspectedItem, ItemId, PodCache, PodRef};
use crate::state::pod_manager::PodManagerWriter;
use crate::state::pod_state_store::PodStateStore;
use bytes::Bytes;
use k8s_openapi::api::core::v1;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Long enough for anything on loopback, short enough to fail a test.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn pod(name: &str) -> Arc<Pod> {
    let spec = serde_json::json!({"containers": [{"name": "c"}]});
    let pod = fixture::pod(&format!("default/{name}/uid-{name}"), spec);
    Arc::new(Pod { status: Some(phase("Pending")), ..pod })
}

pub(super) fn phase(phase: &str) -> v1::PodStatus {
    v1::PodStatus { phase: Some(phase.into()), ..v1::PodStatus::default() }
}

/// The runtime status of a pod that runs one container and has another that ended, and of one that runs nothing.
fn runtime_statuses() -> PodCache {
    let (writer, cache) = pod_cache::pod_cache();
    for (pod, name, state) in [
        ("up", "web", ContainerState::Running),
        ("up", "job", ContainerState::Exited),
        ("down", "x", ContainerState::Exited),
    ] {
        let pod_ref = PodRef {
            uid: format!("uid-{pod}").into(),
            name: pod.into(),
            namespace: "default".into(),
        };
        let container = ContainerStatus {
            id: name.into(),
            name: name.into(),
            image: "img:1".into(),
            state,
            ..ContainerStatus::default()
        };
        let item = ItemId::Container(container.id.clone());
        let read = InspectedItem::Container(container);
        writer.apply(&pod_ref, &item, writer.next_seq(), read);
    }
    cache
}

/// These pods, of sources that have delivered, and the store that has them. They are listed in no order.
pub(super) fn known_pods(pods: &[PodWithStatus]) -> (PodManagerWriter, KnownPods) {
    let (dir, desired) = (tempfile::tempdir().unwrap(), PodManagerWriter::default());
    let state_store = PodStateStore::open(dir.path().to_owned()).unwrap();
    for (pod, status) in pods {
        state_store.update_in_memory(&pod.uid(), |record| record.status = status.clone());
        desired.set(pod.clone());
    }
    let lister = PodLister {
        pod_manager: desired.reader(),
        statuses: StatusManager::new(None).reader(),
        state_store: state_store.clone(),
    };
    (desired, KnownPods::new(lister, watch::channel(true).1, state_store))
}

pub(super) fn views(pods: Vec<(Arc<Pod>, Option<Arc<v1::PodStatus>>)>) -> RouteHandlers {
    let events = EventRecorder::new();
    events.warning(&ObjectRef::container(&pod("a"), "c"), "BackOff", "first");
    events.normal(&ObjectRef::pod(&pod("b")), "Killing", "second");
    events.normal(&ObjectRef::node("n1"), "Starting", "third");
    RouteHandlers {
        pods: PodLists { known: known_pods(&pods).1, cache: runtime_statuses() },
        scrapes: Scrapes::new(
            Arc::new(|| "up 1\n".to_owned()),
            Arc::new(|| "kubernetes_healthcheck 1\n".to_owned()),
            Arc::new(|| Box::pin(std::future::ready(()))),
        ),
        http_metrics: None,
        stats: stats(),
        explanations: Explanations {
            overview: Arc::new(|| Overview {
                version: "1".into(),
                node: "n1".into(),
                ..Overview::default()
            }),
            explain: Arc::new(|query| {
                let known = query.name == "web" && query.uid.as_deref() != Some("other");
                known.then(|| Explanation {
                    summary: format!("all about {}/{}", query.namespace, query.name),
                    ..Explanation::default()
                })
            }),
            overview_version: Arc::new(|| ("1".into(), Box::pin(std::future::pending()))),
            version: "1.2.3",
        },
        events,
        node_name: "n1".into(),
        process: process(),
        streams: streams(),
        logs: logs(),
        node_logs: NodeLogs::of("/nonexistent"),
        posted: None,
        checkpoints: Checkpoints { directory: Arc::new("/nonexistent".into()) },
        machine: Arc::new(crate::host::HostMachine::read().unwrap()),
    }
}

/// Streams of a runtime that does not run.
fn streams() -> StreamTable {
    let endpoint = RuntimeEndpoint::parse("unix:///nonexistent/cri.sock").unwrap();
    let metrics = CriMetrics::register(&Metrics::new());
    let connection = CriConnection::new(endpoint, TIMEOUT, &metrics);
    let deps = StreamDeps {
        runtime: RuntimeClient::new(connection),
        metrics: StreamMetrics::register(&Metrics::new()),
        cache: PodCache::default(),
        known: known_pods(&[]).1,
        idle: TIMEOUT,
    };
    StreamTable::new(deps, CancellationToken::new())
}

/// Logs of no pods.
fn logs() -> LogReaders {
    LogReaders::new(LogDeps {
        logs: ContainerLogs::new(PodCache::default(), Arc::new(|_, _| None)),
        known: known_pods(&[]).1,
        split_streams: false,
        write_timeout: TIMEOUT,
    })
}

/// A node with one pod that has only a name.
pub(super) fn stats() -> StatsReaders {
    let summary = |only: bool| {
        let pod = PodStats {
            pod_ref: PodReference { name: "web".into(), ..PodReference::default() },
            ..PodStats::default()
        };
        Summary {
            node: NodeStats {
                node_name: "n1".into(),
                rlimit: (!only).then(RlimitStats::default),
                ..NodeStats::default()
            },
            pods: vec![pod],
        }
    };
    StatsReaders {
        summary: Arc::new(move |only| Box::pin(std::future::ready(Some(summary(only))))),
        cadvisor: Arc::new(|| {
            let pieces = ["a 1\n", "b 2\n"].map(str::to_owned);
            let pieces: TextChunks = Box::new(pieces.into_iter());
            Box::pin(std::future::ready(Some(pieces)))
        }),
        resource: Arc::new(|| Box::pin(std::future::ready("r 1\n".to_owned()))),
        infos: Arc::new(|of| {
            let of = crate::node::stats::ContainerInfo::example(&of);
            Box::pin(std::future::ready(Some(of.into_iter().collect())))
        }),
        probes: Arc::new(|| "p 1\n".to_owned()),
    }
}

pub(super) fn process() -> Process {
    let verbosity = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let written = verbosity.clone();
    Process {
        started: jiff::Timestamp::UNIX_EPOCH,
        version: "1.2.3",
        emulation_version: "v1.36",
        configuration: Arc::new(serde_json::json!({"kind": "KubeletConfiguration"})),
        flags: Arc::new(vec![("v".to_owned(), "0".to_owned())]),
        verbosity: Arc::new(move || verbosity.load(std::sync::atomic::Ordering::Relaxed)),
        set_verbosity: Arc::new(move |v| written.store(v, std::sync::atomic::Ordering::Relaxed)),
    }
}

pub(super) fn read_only() -> PortHandler {
    let failing = || Err("no sync for 5 minutes".to_owned());
    let checks = HealthChecks::ping().with("log", || Ok(())).with("syncloop", failing);
    let running = Some(Arc::new(phase("Running")));
    PortHandler::read_only(checks, views(vec![(pod("a"), running), (pod("b"), None)]), Vec::new())
}

/// The response of one port to a request without a connection.
pub(super) async fn answer<B>(
    handler: &PortHandler,
    request: hyper::Request<B>,
    shutdown: &CancellationToken,
) -> hyper::Response<http::response::Body>
where
    B: hyper::body::Body<Data = Bytes, Error: Into<http::response::BodyError>> + Send + 'static,
{
    handler.service(shutdown).call(request).await.unwrap()
}

/// A served port that is shut down by its token.
pub(super) struct Served {
    pub(super) address: std::net::SocketAddr,
    pub(super) shutdown: CancellationToken,
    pub(super) task: JoinHandle<anyhow::Result<()>>,
}

pub(super) async fn serve(handler: PortHandler, limits: ConnectionLimits) -> Served {
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind("test", any).await.unwrap().limits(limits);
    let address = listener.address().unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(listener.serve(handler, shutdown.clone()));
    Served { address, shutdown, task }
}

impl Served {
    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes on a connection of their own and reads until the server closes it.
    pub(super) async fn send(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        read_to_end(&mut stream).await
    }

    /// GET on a connection that is closed after it.
    pub(super) async fn get(&self, target: &str) -> String {
        let request = format!("GET {target} HTTP/1.0\r\n\r\n");
        self.send(request.as_bytes()).await
    }

    pub(super) async fn stop(self) {
        self.shutdown.cancel();
        timeout(TIMEOUT, self.task).await.unwrap().unwrap().unwrap();
    }
}

/// Everything until the connection closes, by an end or by a reset.
pub(super) async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = timeout(TIMEOUT, stream.read_to_end(&mut bytes)).await.expect("still open");
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) fn split(response: &str) -> (&str, &str) {
    response.split_once("\r\n\r\n").expect("a whole head")
}
