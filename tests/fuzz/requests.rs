//! Bytes on connections to the ports: whatever they are, the server answers or closes, says nothing that it
//! should not, and goes on serving others.

use crate::engine::{Target, fuzz, path};
use crate::routes::log_root;
use crate::spoken::{SEEDS, WORDS};
use kubelet::base::metrics::Metrics;
use kubelet::cri::{CriConnection, CriMetrics, RuntimeClient, RuntimeEndpoint};
use kubelet::model::Pod;
use kubelet::node::stats::api::Summary;
use kubelet::pods::pod_sync::PodLister;
use kubelet::pods::status::StatusManager;
use kubelet::runtime::logs::ContainerLogs;
use kubelet::server::auth::{AuthSettings, AuthorizationMode, KubeletAuth};
use kubelet::server::explain::{Explanation, Overview};
use kubelet::server::{
    Checkpoints, ConnectionLimits, Explanations, HealthChecks, KnownPods, Listener, LogDeps,
    LogReaders, NodeLogs, PodLists, PortHandler, Process, RouteGroup, RouteHandlers, Scrapes,
    StatsReaders, StreamDeps, StreamMetrics, StreamTable, TextChunks,
};
use kubelet::state::events::{EventRecorder, ObjectRef};
use kubelet::state::pod_cache::PodCache;
use kubelet::state::pod_manager::PodManagerWriter;
use kubelet::state::pod_state_store::PodStateStore;
use std::future::ready;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long an answer is waited for; some wait for news that never come.
const ANSWER: Duration = Duration::from_millis(5);
/// How long a connection may stay open once its client has said all.
const CLOSE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// Threads of the server are called so; a panic on one of them is a finding.
const THREADS: &str = "served";

/// Every status that a client may receive.
const STATUSES: &[u16] = &[
    200, 206, 301, 400, 401, 403, 404, 405, 406, 408, 411, 413, 414, 415, 416, 421, 422, 429, 431,
    500, 502, 503, 504,
];

static PANICS: AtomicUsize = AtomicUsize::new(0);

// -- the server ---------------------------------------------------------------------------------------------

/// One port of each kind, on sockets.
struct Ports {
    _runtime: tokio::runtime::Runtime,
    dir: tempfile::TempDir,
}

const EVERYTHING_OFF: [RouteGroup; 5] = [
    RouteGroup::Debugging,
    RouteGroup::SystemLogs,
    RouteGroup::Profiling,
    RouteGroup::DebugFlags,
    RouteGroup::PostedPods,
];

/// What the first byte of an input chooses from. Unauthenticated clients are refused.
const KINDS: [&str; 7] =
    ["open", "local", "read-only", "health", "closed", "local-off", "open-off"];

impl Ports {
    fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(THREADS)
            .enable_all()
            .build()
            .unwrap();
        let entered = runtime.enter();
        let views = views();
        let checks = || HealthChecks::ping().with("syncloop", || Err("<x> no turn".to_owned()));
        let on = PortHandler::read_only(checks(), views.clone(), vec![RouteGroup::PostedPods]);
        let off = PortHandler::read_only(checks(), views, EVERYTHING_OFF.to_vec());
        for kind in KINDS {
            let handlers = match kind {
                "open" => on.secured(auth(true)),
                "closed" => on.secured(auth(false)),
                "open-off" => off.secured(auth(true)),
                "local" => on.local(),
                "local-off" => off.local(),
                "health" => PortHandler::health(checks()),
                _ => on.clone(),
            };
            let limits = ConnectionLimits {
                head_timeout: HOUR,
                idle_timeout: HOUR,
                ..ConnectionLimits::default()
            };
            let listener = Listener::bind_local("fuzzed", &dir.path().join(kind)).unwrap();
            let served = listener.limits(limits).serve(handlers, CancellationToken::new());
            runtime.spawn(served);
        }
        drop(entered);
        Self { _runtime: runtime, dir }
    }

    fn connect(&self, kind: &str) -> UnixStream {
        let stream = UnixStream::connect(self.dir.path().join(kind)).unwrap();
        stream.set_read_timeout(Some(ANSWER)).unwrap();
        stream.set_write_timeout(Some(CLOSE)).unwrap();
        stream
    }
}

/// Either anonymous clients are allowed everything, or every client is refused.
fn auth(anonymous: bool) -> KubeletAuth {
    static FILE: &str = "/nonexistent/clients.crt";
    let settings = AuthSettings {
        strict_upgrade_verbs: false,
        client_ca_file: Some(FILE.into()),
        anonymous,
        token_ttl: None,
        review_qps: 0,
        review_burst: 0,
        authorization: AuthorizationMode::AlwaysAllow,
    };
    KubeletAuth::new(settings, "n1", None, None).unwrap()
}

/// A pod whose every word is hostile.
fn pod() -> Arc<Pod> {
    Arc::new(Pod {
        metadata: serde_json::from_value(serde_json::json!({
            "name": "a", "namespace": "default", "uid": "uid-a", "labels": {"<x>": "\u{1b}<x>"},
        }))
        .unwrap(),
        spec: serde_json::from_value(
            serde_json::json!({"containers": [{"name": "c", "image": "<x>"}]}),
        )
        .unwrap(),
        status: None,
    })
}

fn views() -> RouteHandlers {
    let known = known_pods();
    let events = EventRecorder::new();
    events.warning(&ObjectRef::container(&pod(), "c"), "BackOff", "<x>\u{1b} first");
    let nowhere = || PathBuf::from("/nonexistent");
    RouteHandlers {
        pods: PodLists { known: known.clone(), cache: PodCache::default() },
        scrapes: Scrapes::new(
            Arc::new(|| "up 1\n".to_owned()),
            Arc::new(String::new),
            Arc::new(|| Box::pin(std::future::ready(()))),
        ),
        http_metrics: None,
        stats: StatsReaders {
            summary: Arc::new(|_| Box::pin(ready(Some(Summary::default())))),
            cadvisor: Arc::new(|| {
                let pieces: TextChunks = Box::new(["a 1\n".to_owned()].into_iter());
                Box::pin(ready(Some(pieces)))
            }),
            resource: Arc::new(|| Box::pin(ready("r 1\n".to_owned()))),
            infos: Arc::new(|_| Box::pin(ready(None))),
            probes: Arc::new(|| "p 1\n".to_owned()),
        },
        explanations: Explanations {
            overview: Arc::new(|| Overview {
                version: "1".into(),
                node: "<x>".into(),
                ..Overview::default()
            }),
            explain: Arc::new(|query| {
                let known = query.name == "web" && query.uid.as_deref() != Some("other");
                known.then(|| Explanation {
                    summary: format!("<x> all about {}/{}", query.namespace, query.name),
                    ..Explanation::default()
                })
            }),
            overview_version: Arc::new(|| ("1".into(), Box::pin(std::future::pending()))),
            version: "1.2.3",
        },
        events,
        node_name: "n1".into(),
        process: Process {
            started: jiff::Timestamp::UNIX_EPOCH,
            version: "1.2.3",
            emulation_version: "v1.36",
            configuration: Arc::new(serde_json::json!({"kind": "KubeletConfiguration"})),
            flags: Arc::new(vec![("v".to_owned(), "0".to_owned())]),
            verbosity: Arc::new(|| 0),
            set_verbosity: Arc::new(|_| ()),
        },
        streams: streams(known.clone()),
        logs: LogReaders::new(LogDeps {
            logs: ContainerLogs::new(PodCache::default(), Arc::new(|_, _| None)),
            known,
            split_streams: false,
            write_timeout: HOUR,
        }),
        node_logs: NodeLogs::of(log_root()),
        posted: None,
        checkpoints: Checkpoints { directory: Arc::new(nowhere()) },
        machine: Arc::new(kubelet::host::HostMachine::read().unwrap()),
    }
}

fn known_pods() -> KnownPods {
    let (dir, desired) = (tempfile::tempdir().unwrap(), PodManagerWriter::default());
    let state_store = PodStateStore::open(dir.path().to_owned()).unwrap();
    desired.set(pod());
    let lister = PodLister {
        pod_manager: desired.reader(),
        statuses: StatusManager::new(None).reader(),
        state_store: state_store.clone(),
    };
    KnownPods::new(lister, watch::channel(true).1, state_store)
}

/// Streams of a runtime that was never started.
fn streams(known: KnownPods) -> StreamTable {
    let endpoint = RuntimeEndpoint::parse("unix:///nonexistent/cri.sock").unwrap();
    let connection = CriConnection::new(endpoint, HOUR, &CriMetrics::register(&Metrics::new()));
    let deps = StreamDeps {
        runtime: RuntimeClient::new(connection),
        metrics: StreamMetrics::register(&Metrics::new()),
        cache: PodCache::default(),
        known,
        idle: HOUR,
    };
    StreamTable::new(deps, CancellationToken::new())
}

// -- the client -----------------------------------------------------------------------------------------------

/// Sends one input and judges what comes back; says where it led.
fn run(ports: &Ports, input: &[u8]) -> u64 {
    let [chooses, said @ ..] = input else {
        return 0;
    };
    let kind = KINDS[usize::from(*chooses) % KINDS.len()];
    let mut stream = ports.connect(kind);
    // A server that has read enough does not read the rest.
    let _ = stream.write_all(said);
    let (mut answer, mut end) = (Vec::new(), End::Open);
    if said.windows(2).any(|two| two == b"\n\n" || two == b"\n\r") {
        (answer, end) = read_answer(&mut stream, said);
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
    if end == End::Open {
        read_to_close(&mut stream, &mut answer, said);
    }
    assert_eq!(PANICS.swap(0, Ordering::SeqCst), 0, "the server panicked");
    let led = if answer.is_empty() { (0, 0) } else { judge(kind, &answer) };
    others_are_served(ports);
    path(&(kind, led))
}

#[derive(PartialEq)]
enum End {
    Open,
    Closed,
}

/// What comes until the connection is closed, or nothing has come for a while.
fn read_answer(stream: &mut UnixStream, said: &[u8]) -> (Vec<u8>, End) {
    let mut answer = Vec::new();
    let mut chunk = [0; 16 * 1024];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return (answer, End::Closed),
            Ok(read) => answer.extend_from_slice(&chunk[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return (answer, End::Open);
            }
            Err(_) => return (answer, End::Closed),
        }
        if is_whole(&answer, said.starts_with(b"HEAD ")) {
            return (answer, End::Open);
        }
    }
}

/// Whether one response is complete, as far as its headers show.
fn is_whole(answer: &[u8], head_only: bool) -> bool {
    let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return false;
    };
    let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
    let length =
        text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    match length {
        _ if head_only => true,
        Some(length) => answer.len() >= head + 4 + length,
        None => answer.ends_with(b"0\r\n\r\n"),
    }
}

/// The client has said that nothing more will come; now the server has to close.
fn read_to_close(stream: &mut UnixStream, answer: &mut Vec<u8>, said: &[u8]) {
    let since = Instant::now();
    let mut chunk = [0; 16 * 1024];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return,
            Ok(read) => answer.extend_from_slice(&chunk[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let patient = since.elapsed() < CLOSE;
                assert!(patient, "still open after b\"{}\"", said.escape_ascii());
            }
            Err(_) => return,
        }
    }
}

/// What must hold of whatever is said to a client.
fn judge(kind: &str, answer: &[u8]) -> (u16, usize) {
    let shown = answer.escape_ascii().to_string();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let head = std::str::from_utf8(&answer[..end.expect("a whole head")]).expect(&shown);
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
    let status = status.unwrap_or_else(|| panic!("no status: {shown}"));
    assert!(STATUSES.contains(&status), "status {status}: {shown}");
    if kind == "closed" {
        assert!(matches!(status, 400 | 401 | 414 | 431), "let in: {shown}");
    }
    let headers: Vec<(String, &str)> = lines
        .map(|line| line.split_once(": ").unwrap_or_else(|| panic!("{line:?} in {shown}")))
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
        .collect();
    assert!(headers.iter().all(|(_, value)| !value.chars().any(char::is_control)), "{shown}");
    let header =
        |name: &str| headers.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
    let sent = &answer[head.len() + 4..];
    let mut plain = Vec::new();
    if header("content-encoding") == Some("gzip") && !sent.is_empty() {
        let read = flate2::read::GzDecoder::new(sent).read_to_end(&mut plain);
        read.unwrap_or_else(|error| panic!("{error}: {shown}"));
    } else {
        plain.extend_from_slice(sent);
    }
    let body = String::from_utf8_lossy(&plain);
    let kind = header("content-type").unwrap_or_default();
    if !kind.is_empty() {
        assert_eq!(header("x-content-type-options"), Some("nosniff"), "{shown}");
    }
    match kind.split(';').next().unwrap_or_default() {
        // No input comes out as a tag.
        "text/html" => assert!(!body.contains("<x>"), "{shown}"),
        "text/plain" => assert!(
            !body.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\r')),
            "{shown}"
        ),
        "application/json" => assert!(!body.contains('\u{1b}'), "{shown}"),
        "" | "application/octet-stream" => {}
        other => panic!("content of another type, {other}: {shown}"),
    }
    // Of pods that are not there, pages say so too.
    if status >= 400 && !kind.is_empty() {
        let default_hook = ["text/plain; charset=utf-8", "text/html; charset=utf-8"];
        assert!(default_hook.contains(&kind), "{shown}");
    }
    let place = body.find('\n').unwrap_or(body.len());
    (status, head.len().min(400) + place.min(60))
}

/// Connections that stood all the time are served as before.
fn others_are_served(ports: &Ports) {
    thread_local! {
        static OTHERS: std::cell::RefCell<Vec<UnixStream>> = const { std::cell::RefCell::new(Vec::new()) };
        static TURN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }
    // Each input costs one of them a request.
    let kinds = ["open", "local", "read-only", "health"];
    let turn = TURN.get();
    TURN.set((turn + 1) % kinds.len());
    OTHERS.with_borrow_mut(|others| {
        if others.is_empty() {
            others.extend(kinds.map(|kind| ports.connect(kind)));
        }
        let stream = &mut others[turn];
        stream.set_read_timeout(Some(CLOSE)).unwrap();
        stream
            .write_all(b"GET /healthz/ping HTTP/1.1\r\nHost: n1\r\n\r\n")
            .expect("it still stands");
        let mut answer = Vec::new();
        let mut chunk = [0; 1024];
        while !is_whole(&answer, false) {
            let read = stream.read(&mut chunk).expect("it is still served");
            assert!(read > 0, "another connection was closed");
            answer.extend_from_slice(&chunk[..read]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", answer.escape_ascii());
    });
}

fn count_panics() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name() == Some(THREADS) {
            PANICS.fetch_add(1, Ordering::SeqCst);
        }
        default_hook(info);
    }));
}

#[test]
fn requests() {
    count_panics();
    let ports = Ports::open();
    let seeds = SEEDS.iter().enumerate().flat_map(|(at, seed)| {
        let chosen = [0, at % KINDS.len()];
        chosen.map(|kind| [&[kind as u8][..], seed.as_bytes()].concat())
    });
    fuzz(&Target {
        name: "requests",
        seeds: seeds.collect(),
        words: WORDS,
        run: &|input| run(&ports, input),
    });
}
