//! exec, attach, port-forward and run: what the kubelet makes of the runtime's streaming server.

use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::node::{Node, WAIT_LIMIT};
use crate::pods::simple;
use crate::streaming_server::{Manner, StreamingServer, comes_back};
use crate::support::fake_runtime::{Behaviour, ExecOutcome, FakeRuntime, Fault, Rpc};
use crate::support::raw::{TIMEOUT, exchange, read_head, read_rest, send};
use crate::support::wait::{holds, wait_for};

const SPDY: &str = "Connection: Upgrade\nUpgrade: SPDY/3.1\nX-Stream-Protocol-Version: v4.channel.k8s.io\n\
                    X-Stream-Protocol-Version: channel.k8s.io";
const WEBSOCKET: &str = "Connection: keep-alive, Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n\
                         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n\
                         Sec-WebSocket-Protocol: v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel.k8s.io";
const EXEC: &str = "/exec/default/web-node1/main?output=1&command=sh";

/// A node with a running pod `web`, and the server's address.
async fn node_with_web() -> (Node, PathBuf) {
    node_configured(&[]).await
}

async fn node_configured(lines: &[&str]) -> (Node, PathBuf) {
    let mut node = Node::new().await;
    lines.iter().for_each(|line| node.configure(line));
    node.start().await;
    node.put(&simple("web"));
    node.wait_phase("web", "Running").await;
    let socket = node.path("root/kubelet.sock");
    (node, socket)
}

/// Streams of the node are to be had there.
fn serve_at(node: &Node, url: String) {
    node.fake.on_streams(move |_| Ok(url.clone()));
}

fn request(method: &str, target: &str, headers: &str) -> String {
    format!("{method} {target} HTTP/1.1\nHost: node\nAuthorization: Bearer s3cret\n{headers}")
}

/// An upgraded connection.
async fn upgraded(socket: &std::path::Path, target: &str, headers: &str) -> UnixStream {
    let mut stream = send(socket, &request("POST", target, headers)).await;
    let head = read_head(&mut stream).await;
    assert_eq!(head.status, 101, "{head:?}");
    stream
}

async fn expect(stream: &mut UnixStream, text: &str) {
    let mut got = vec![0; text.len()];
    let read = timeout(TIMEOUT, stream.read_exact(&mut got)).await;
    read.expect("it comes").expect("all of it");
    assert_eq!(String::from_utf8_lossy(&got), text);
}

#[tokio::test]
async fn a_command_is_spliced_with_the_runtimes_stream() {
    let (node, socket) = node_with_web().await;
    let server = StreamingServer::tcp(Manner::Echo).await;
    serve_at(&node, server.url());
    let target = "/exec/default/web-node1/main?input=1&output=1&error=1&command=sh&command=-c&command=a%20%20b%2Bc";
    let mut stream = send(&socket, &request("POST", target, SPDY)).await;
    let head = read_head(&mut stream).await;
    assert_eq!(head.status, 101);
    assert_eq!(head.get("upgrade"), Some("SPDY/3.1"));
    assert_eq!(head.get("x-stream-protocol-version"), Some("v4.channel.k8s.io"));
    expect(&mut stream, "hello ").await;
    let exec_call = &node.fake.calls_of(Rpc::Exec)[0];
    assert_eq!(exec_call.subject.container, "main");
    assert_eq!(
        exec_call.detail,
        r#"["sh", "-c", "a  b+c"] stdin=true stdout=true stderr=true tty=false"#
    );
    let head = server.heads()[0].to_ascii_lowercase();
    assert!(head.starts_with("post /exec/t0k3n http/1.1\r\n"), "{head}");
    for line in [
        "connection: upgrade",
        "upgrade: spdy/3.1",
        "x-stream-protocol-version: v4.channel.k8s.io",
        "x-stream-protocol-version: channel.k8s.io",
    ] {
        assert_eq!(head.matches(&format!("\r\n{line}\r\n")).count(), 1, "{head}");
    }
    assert!(!head.contains("s3cret"), "{head}");
    let (mut from, to) = stream.into_split();
    comes_back(&mut from, to, 5_000_000).await;
}

#[tokio::test]
async fn attach_and_ports_reach_the_runtime_over_either_protocol_and_either_socket() {
    let (node, socket) = node_with_web().await;
    let server = StreamingServer::unix(node.path("streams.sock"), Manner::Echo);
    serve_at(&node, server.url());
    let uid = node.pod("web").await.unwrap().metadata.uid.unwrap();
    let attach = "/attach/default/web-node1/main?stdin=true&stdout=true&tty=true&stderr=true";
    let with_uid = format!("/attach/default/web-node1/{uid}/main?output=1");
    let forward = "/portForward/default/web-node1?port=80,8080&port=9";
    let forward_uid = format!("/portForward/default/web-node1/{uid}");
    for (method, target, headers) in [
        ("GET", attach, WEBSOCKET),
        ("POST", with_uid.as_str(), SPDY),
        ("GET", forward, WEBSOCKET),
        ("POST", forward_uid.as_str(), SPDY),
    ] {
        let mut stream = send(&socket, &request(method, target, headers)).await;
        assert_eq!(read_head(&mut stream).await.status, 101, "{target}");
        stream.write_all(b"ping").await.unwrap();
        expect(&mut stream, "hello ping").await;
    }
    let details = |rpc| {
        let calls = node.fake.calls_of(rpc).into_iter();
        calls.map(|call| call.detail).collect::<Vec<_>>()
    };
    assert_eq!(
        details(Rpc::Attach),
        [
            "stdin=true stdout=true stderr=false tty=true",
            "stdin=false stdout=true stderr=false tty=false"
        ]
    );
    // Over SPDY the client names its ports itself.
    assert_eq!(details(Rpc::PortForward), ["[80, 8080, 9]", "[]"]);
    let heads = server.heads();
    assert!(
        heads[0]
            .to_ascii_lowercase()
            .contains("sec-websocket-protocol: v5.channel.k8s.io, v4.channel.k8s.io\r\n"),
        "all but the token: {}",
        heads[0]
    );
    let (_, metrics) = node.get("/metrics").await;
    let counted: Vec<_> = metrics
        .lines()
        .filter(|line| line.starts_with("kubelet_websocket_streaming_requests_total{"))
        .collect();
    // Over WebSocket, ports are counted only where they are tunnelled, as upstream has it.
    let expected = "kubelet_websocket_streaming_requests_total{subresource=\"attach\"} 1";
    assert_eq!(counted, [expected]);
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_the_reason_and_the_runtime_is_not_asked() {
    let (node, socket) = node_with_web().await;
    serve_at(&node, "http://127.0.0.1:1/".into());
    let rows = [
        ("/exec/default/other-node1/main?output=1&command=sh", SPDY, 404, "pod does not exist"),
        ("/exec/other/web-node1/main?output=1&command=sh", SPDY, 404, "pod does not exist"),
        ("/attach/default/web-node1/uid/main?output=1", SPDY, 404, "pod not found"),
        ("/portForward/default/web-node1/uid", SPDY, 404, "pod not found"),
        (
            "/exec/default/web-node1/other?output=1&command=sh",
            SPDY,
            404,
            "container not found (\"other\")",
        ),
        (
            "/exec/default/web-node1/main?command=sh",
            SPDY,
            400,
            "you must specify at least 1 of stdin, stdout, stderr",
        ),
        ("/exec/default/web-node1/main?output=1", SPDY, 400, "query parameter \"command\""),
        (
            "/exec/default/web-node1/main?output=1&tty=maybe&command=sh",
            SPDY,
            400,
            "query parameter \"tty\"",
        ),
        ("/attach/default/web-node1/main?output=%zz", SPDY, 400, "query parameter \"output\""),
        ("/portForward/default/web-node1?port=0", WEBSOCKET, 400, "query parameter \"port\""),
        ("/portForward/default/web-node1", WEBSOCKET, 400, "query parameter \"port\" is required"),
        (EXEC, "", 400, "Upgrade request required"),
        (EXEC, "Connection: close\nUpgrade: SPDY/3.1", 400, "Upgrade request required"),
        ("/portForward/default/web-node1", "", 400, "Upgrade request required"),
        ("/run/default/web-node1/main", "", 400, "query parameter \"cmd\""),
        ("/run/default/web-node1/other?cmd=ls", "", 404, "container not found (\"other\")"),
        ("/exec/default/web-node1", SPDY, 404, "404"),
    ];
    for (target, headers, status, text) in rows {
        let (head, body) = exchange(&socket, &request("POST", target, headers)).await;
        assert_eq!(head.status, status, "{target}: {body}");
        assert!(body.contains(text), "{target}: {body}");
    }
    for rpc in [Rpc::Exec, Rpc::Attach, Rpc::PortForward, Rpc::ExecSync] {
        assert_eq!(node.fake.count(rpc), 0, "{rpc}");
    }
    let (head, _) = exchange(&socket, &request("PUT", EXEC, SPDY)).await;
    assert_eq!(head.status, 405);
    let (code, _) = node.get(EXEC).await;
    assert_eq!(code, 404, "the read-only port has no streams");
}

#[tokio::test]
async fn a_container_that_does_not_run_is_told_with_its_state() {
    let mut node = Node::new().await;
    node.fake.behave("main", Behaviour::exits(Duration::ZERO, 3));
    node.start().await;
    let mut pod = simple("web");
    pod["spec"]["restartPolicy"] = "Never".into();
    node.put(&pod);
    node.wait_phase("web", "Failed").await;
    let socket = node.path("root/kubelet.sock");
    let (head, body) = exchange(&socket, &request("POST", EXEC, SPDY)).await;
    assert_eq!(head.status, 404);
    assert_eq!(body, "container not found (\"main\"): it has ended with code 3\n");
}

#[tokio::test]
async fn a_streaming_server_that_is_of_no_use_is_told_to_the_client() {
    let (node, socket) = node_with_web().await;
    let rows = [
        (Manner::Refuse, 403, "you are not my type"),
        (Manner::Ok, 502, "status code 200"),
        (Manner::Redirect, 502, "status code 302"),
        (Manner::Garbage, 502, "does not speak HTTP"),
        (Manner::Close, 502, "does not speak HTTP"),
    ];
    for (manner, status, text) in rows {
        let server = StreamingServer::tcp(manner).await;
        serve_at(&node, server.url());
        let (head, body) = exchange(&socket, &request("POST", EXEC, SPDY)).await;
        assert_eq!(head.status, status, "{manner:?}: {body}");
        assert!(body.contains(text), "{manner:?}: {body}");
        assert_eq!(head.get("location"), None);
        assert_eq!(server.heads().len(), 1, "{manner:?}");
    }
    let gone = StreamingServer::tcp(Manner::Echo).await.url();
    let nowhere = node.path("nowhere.sock").display().to_string();
    for (url, text) in [
        (gone, "cannot connect"),
        (format!("unix://{nowhere}"), "cannot connect"),
        ("http://192.0.2.1:80/exec/t0k3n".into(), "not a loopback address"),
        ("http://169.254.169.254:80/".into(), "not a loopback address"),
        ("https://127.0.0.1:80/exec/t0k3n".into(), "TLS"),
        ("nonsense".into(), "no scheme"),
    ] {
        serve_at(&node, url.clone());
        let (head, body) = exchange(&socket, &request("POST", EXEC, SPDY)).await;
        assert_eq!(head.status, 502, "{url}: {body}");
        assert!(body.contains(text), "{url}: {body}");
        assert!(!body.contains("t0k3n"), "{body}");
    }
}

#[tokio::test]
async fn what_the_runtime_says_instead_of_a_url_is_passed_on() {
    let (node, socket) = node_with_web().await;
    for (status, code) in [
        (Status::not_found("no such container"), 404),
        (Status::resource_exhausted("maximum number of in-flight requests exceeded"), 429),
        (Status::unknown("container is in CONTAINER_EXITED state"), 500),
    ] {
        let answer = status.clone();
        node.fake.on_streams(move |_| Err(answer.clone()));
        let (head, body) = exchange(&socket, &request("POST", EXEC, SPDY)).await;
        assert_eq!(head.status, code, "{body}");
        assert!(body.contains(status.message()), "{body}");
        assert_eq!(head.get("retry-after"), (code == 429).then_some("60"));
    }
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_stream() {
    let (node, socket) = node_with_web().await;
    let server = StreamingServer::tcp(Manner::Echo).await;
    serve_at(&node, server.url());
    let mut stream = upgraded(&socket, EXEC, SPDY).await;
    expect(&mut stream, "hello ").await;
    assert_eq!(server.closed(), 0);
    drop(stream);
    wait_for("the runtime's side is closed", WAIT_LIMIT, async || {
        holds(server.closed() == 1, "it is open")
    })
    .await;
    // Nor does one that goes while the runtime thinks about it leave anything.
    let hanging = StreamingServer::tcp(Manner::Hang).await;
    serve_at(&node, hanging.url());
    let stream = send(&socket, &request("POST", EXEC, SPDY)).await;
    wait_for("it is called", WAIT_LIMIT, async || holds(hanging.heads().len() == 1, "not yet"))
        .await;
    drop(stream);
}

#[tokio::test]
async fn a_stream_on_which_nothing_happens_is_closed() {
    let (node, socket) = node_configured(&["streamingConnectionIdleTimeout: 2s"]).await;
    let server = StreamingServer::tcp(Manner::Echo).await;
    serve_at(&node, server.url());
    let mut stream = upgraded(&socket, EXEC, SPDY).await;
    let begun = tokio::time::Instant::now();
    expect(&mut stream, "hello ").await;
    // Only the kubelet closes it.
    assert_eq!(read_rest(&mut stream).await, b"");
    assert!(begun.elapsed() >= Duration::from_millis(1900));
    wait_for("the runtime's side is closed", WAIT_LIMIT, async || {
        holds(server.closed() == 1, "it is open")
    })
    .await;
}

#[tokio::test]
async fn streams_are_counted_and_one_too_many_is_told_when_to_come_back() {
    const MAX: usize = 512;
    let (node, socket) = node_with_web().await;
    let server = StreamingServer::tcp(Manner::Echo).await;
    serve_at(&node, server.url());
    let mut open = Vec::new();
    for _ in 0..MAX {
        open.push(upgraded(&socket, EXEC, SPDY).await);
    }
    let (head, body) = exchange(&socket, &request("POST", EXEC, SPDY)).await;
    assert_eq!(head.status, 429, "{body}");
    assert!(head.get("retry-after").is_some());
    assert!(body.contains("too many streams are open"), "{body}");
    // Those that are open do not take the connections that others need.
    assert_eq!(exchange(&socket, &request("GET", "/pods", "")).await.0.status, 200);
    open.pop();
    wait_for("there is room again", WAIT_LIMIT, async || {
        let mut stream = send(&socket, &request("POST", EXEC, SPDY)).await;
        let status = read_head(&mut stream).await.status;
        holds(status == 101, format!("{status}"))
    })
    .await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_holds_up_the_runtime_and_nobody_else() {
    let (node, socket) = node_with_web().await;
    let server = StreamingServer::tcp(Manner::Pour(64 << 20)).await;
    serve_at(&node, server.url());
    let mut stuck = Vec::new();
    for _ in 0..8 {
        stuck.push(upgraded(&socket, EXEC, SPDY).await);
    }
    let other = upgraded(&socket, EXEC, SPDY).await;
    let (mut from, _to) = other.into_split();
    let got = read_rest(&mut from).await;
    assert_eq!(got.len(), 64 << 20, "who takes it gets all of it");
    // What the others did not take is with the runtime, but for what is in sockets.
    let mut poured = server.poured();
    poured.sort_unstable();
    assert_eq!(poured.pop(), Some(64 << 20));
    assert_eq!(poured.len(), 8);
    assert!(poured.iter().all(|bytes| *bytes < 32 << 20), "{poured:?}");
}

#[tokio::test]
async fn open_streams_end_with_the_kubelet() {
    let (mut node, socket) = node_with_web().await;
    let server = StreamingServer::tcp(Manner::Echo).await;
    serve_at(&node, server.url());
    let mut stream = upgraded(&socket, EXEC, SPDY).await;
    expect(&mut stream, "hello ").await;
    timeout(WAIT_LIMIT, node.stop()).await.expect("it stops");
    assert_eq!(read_rest(&mut stream).await, b"");
}

#[tokio::test]
async fn a_command_can_be_run_without_streams() {
    let (node, socket) = node_with_web().await;
    node.fake.on_exec(|call| match call.command[0].as_str() {
        "fail" => ExecOutcome {
            stdout: "half".into(),
            stderr: "no such file".into(),
            exit_code: 2,
            ..ExecOutcome::default()
        },
        _ => ExecOutcome {
            stdout: format!("{:?}\n", call.command),
            stderr: "and more".into(),
            ..ExecOutcome::default()
        },
    });
    let run = "/run/default/web-node1/main";
    let target = format!("{run}?cmd=ls%20-l+/");
    let (head, body) = exchange(&socket, &request("POST", &target, "")).await;
    assert_eq!((head.status, &*body), (200, "[\"ls\", \"-l\", \"/\"]\nand more"));
    assert_eq!(head.get("content-type"), Some("text/plain; charset=utf-8"));
    // As curl -d sends it.
    let form = "Content-Type: application/x-www-form-urlencoded\nContent-Length: 13";
    let mut stream = send(&socket, &request("POST", run, form)).await;
    stream.write_all(b"cmd=echo+a%20").await.unwrap();
    assert_eq!(read_head(&mut stream).await.status, 200);
    let (head, body) = exchange(&socket, &request("POST", &format!("{run}?cmd=fail+x"), "")).await;
    assert_eq!(head.status, 500);
    assert_eq!(body, "command 'fail x' exited with 2: no such file\n");
    node.fake.inject(Fault::fail(Rpc::ExecSync, Code::Unknown, "no shim"));
    let (head, body) = exchange(&socket, &request("POST", &target, "")).await;
    assert_eq!(head.status, 500);
    assert!(body.contains("no shim"), "{body}");
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_command_that_it_runs() {
    let (node, socket) = node_with_web().await;
    node.fake.inject(Fault::hang(Rpc::ExecSync));
    let target = "/run/default/web-node1/main?cmd=sleep+1000";
    let stream = send(&socket, &request("POST", target, "")).await;
    let began = |fake: &FakeRuntime| fake.count(Rpc::ExecSync) == 1;
    node.fake.wait_until("it runs", WAIT_LIMIT, began).await;
    drop(stream);
    let cancelled = |fake: &FakeRuntime| {
        let call = &fake.calls_of(Rpc::ExecSync)[0];
        call.code == Some(Code::Cancelled)
    };
    let what = "the runtime is called";
    node.fake.wait_until(what, WAIT_LIMIT, cancelled).await;
}

#[tokio::test]
async fn a_port_is_forwarded_only_while_there_is_a_sandbox() {
    let (node, socket) = node_with_web().await;
    serve_at(&node, "http://127.0.0.1:1/".into());
    let gone = |fake: &FakeRuntime| {
        let pods = fake.pods();
        pods.iter().all(|pod| !pod.ready)
    };
    node.remove("web");
    node.fake.wait_until("the sandbox is stopped", WAIT_LIMIT, gone).await;
    wait_for("it is refused", WAIT_LIMIT, async || {
        let target = "/portForward/default/web-node1";
        let (head, body) = exchange(&socket, &request("POST", target, SPDY)).await;
        holds(head.status == 404, format!("{} {body}", head.status))
    })
    .await;
}
