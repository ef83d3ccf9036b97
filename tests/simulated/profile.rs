//! What a busy kubelet uses the CPU for, as it says itself.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use kubelet::server::pprof::wire::Profile;
use prost::Message as _;
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use crate::node::Node;
use crate::pods::simple;
use crate::support::http;
use crate::support::wait::wait_for;
use crate::virtual_time::real_time;

/// Each attempt follows and names stacks for seconds in a debug build on a busy machine, and several may be needed.
const WAIT_LIMIT: Duration = Duration::from_secs(180);

/// Status and body of a profile; dropping it closes the connection.
async fn profile(socket: PathBuf, seconds: u32) -> (u16, Bytes) {
    let stream = UnixStream::connect(socket).await.expect("connect");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("a connection");
    let target = format!("/debug/pprof/profile?seconds={seconds}");
    let request = hyper::Request::get(target).header("host", "localhost");
    let request = request.body(Empty::<Bytes>::new()).expect("a request");
    let mut connection = std::pin::pin!(connection);
    let answer = async {
        let response = sender.send_request(request).await.expect("an answer");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body");
        (status, body.to_bytes())
    };
    tokio::select! {
        answer = answer => answer,
        ended = connection.as_mut() => panic!("the connection ended: {ended:?}"),
    }
}

fn decoded(body: &[u8]) -> Profile {
    let mut bytes = Vec::new();
    GzDecoder::new(body).read_to_end(&mut bytes).expect("gzip");
    Profile::decode(&*bytes).expect("a profile")
}

fn text(message: &Profile, number: i64) -> &str {
    &message.string_table[usize::try_from(number).expect("a number")]
}

/// Profiles until one has a function of such a name in a stack.
async fn wait_seen(socket: &Path, name: &str) -> Profile {
    wait_for(&format!("{name} is seen"), WAIT_LIMIT, async || {
        let (status, body) = profile(socket.to_owned(), 1).await;
        if status != 200 {
            return Err(String::from_utf8_lossy(&body).into_owned());
        }
        let message = decoded(&body);
        let mut names = message.function.iter().map(|f| text(&message, f.name));
        if names.any(|found| found.contains(name)) {
            Ok(message)
        } else {
            Err(format!("{} samples", message.sample.len()))
        }
    })
    .await
}

#[tokio::test]
async fn a_busy_kubelet_shows_what_keeps_it_busy_and_to_one_at_a_time() {
    real_time("the profile is of threads");
    let node = Node::started().await;
    for name in ["a", "b", "c"] {
        node.put(&simple(name));
    }
    for name in ["a", "b", "c"] {
        node.wait_phase(name, "Running").await;
    }
    let port = node.read_only_port();
    let load = || {
        let mut busy = JoinSet::new();
        for _ in 0..4 {
            busy.spawn(async move {
                loop {
                    assert_eq!(http::get(port, "/pods").await.expect("/pods").0, 200);
                }
            });
        }
        busy
    };
    let mut busy = load();
    let socket = node.path("root/kubelet.sock");
    let message = wait_seen(&socket, "kubelet::server").await;
    let types: Vec<_> = message
        .sample_type
        .iter()
        .map(|kind| (text(&message, kind.r#type), text(&message, kind.unit)))
        .collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    assert_eq!(message.period, 10_000_000);
    assert!(message.duration_nanos >= 1_000_000_000);
    for sample in &message.sample {
        assert_eq!(sample.value[1], sample.value[0] * message.period);
        let known = |id: &u64| message.location.iter().any(|location| location.id == *id);
        assert!(sample.location_id.iter().all(known));
    }

    // One profile at a time. Without the load, which would only make the attempts take longer.
    busy.shutdown().await;
    let mut long = tokio::spawn(profile(socket.clone(), 300));
    let refused = async {
        loop {
            let (status, body) = profile(socket.clone(), 1).await;
            if long.is_finished() {
                // It was the second itself.
                long = tokio::spawn(profile(socket.clone(), 300));
            } else if status == 503 {
                return body;
            }
        }
    };
    let body = tokio::time::timeout(WAIT_LIMIT, refused).await.expect("the second is refused");
    assert!(String::from_utf8_lossy(&body).contains("another CPU profile is in progress"));
    // A client that goes away makes room.
    long.abort();
    let _busy = load();
    wait_seen(&socket, "kubelet::").await;
}

#[tokio::test]
async fn a_profile_of_a_strange_length_is_refused_by_name() {
    let node = Node::started().await;
    let socket = node.path("root/kubelet.sock");
    for wrong in ["0", "301", "-1", "1.5", "", "ten"] {
        let target = format!("/debug/pprof/profile?seconds={wrong}");
        let (status, body) = http::local(&socket, "GET", &target, "").await.expect("an answer");
        assert_eq!(status, 400, "{wrong}: {body}");
        assert!(body.contains("\"seconds\""), "{wrong}: {body}");
    }
    // The other profiles of the Go runtime have no counterpart.
    for other in ["", "heap", "goroutine", "symbol", "trace", "cmdline"] {
        let target = format!("/debug/pprof/{other}");
        let (status, _) = http::local(&socket, "GET", &target, "").await.expect("an answer");
        assert_eq!(status, 404, "{other}");
    }
    let (status, _) = node.get("/debug/pprof/profile?seconds=1").await;
    assert_eq!(status, 404, "it needs rights");
}

#[tokio::test]
async fn profiles_can_be_switched_off_alone_and_with_the_rest() {
    for (switch, text) in [
        ("enableProfilingHandler", "profiling endpoint is disabled.\n"),
        ("enableDebuggingHandlers", "Debug endpoints are disabled.\n"),
    ] {
        let mut node = Node::new().await;
        node.configure(&format!("{switch}: false"));
        node.start().await;
        let socket = node.path("root/kubelet.sock");
        let target = "/debug/pprof/profile?seconds=1";
        let (status, body) = http::local(&socket, "GET", target, "").await.expect("an answer");
        assert_eq!((status, body.as_str()), (405, text));
    }
}
