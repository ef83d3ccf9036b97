//! Real sockets, and hostile clients.

use super::*;
use crate::base::clock;
use crate::host::tcp_table;

fn brief() -> ConnectionLimits {
    ConnectionLimits {
        head_timeout: Duration::from_millis(200),
        idle_timeout: Duration::from_millis(200),
        ..ConnectionLimits::default()
    }
}

#[tokio::test]
async fn a_taken_port_is_a_clean_error_that_names_it() {
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let first = Listener::bind("healthz", any).await.unwrap();
    let error = Listener::bind("healthz", first.address().unwrap()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot listen on {} for healthz", first.address().unwrap())
    );
    assert!(std::error::Error::source(&error).is_some());
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let served = serve(read_only(), ConnectionLimits::default()).await;
    let requests = "GET /healthz/ping HTTP/1.1\r\nHost: n\r\n\r\n".repeat(3)
        + "GET /metrics HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n";
    let text = served.send(requests.as_bytes()).await;
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 4);
    assert!(text.ends_with("up 1\n"));
    served.stop().await;
}

#[tokio::test]
async fn http_1_0_is_answered_and_closed_with_the_whole_list() {
    let served = serve(read_only(), ConnectionLimits::default()).await;
    let text = served.get("/pods").await;
    let (head, body) = split(&text);
    assert!(head.starts_with("HTTP/1.0 200 OK"), "{head}");
    assert!(!head.to_ascii_lowercase().contains("transfer-encoding"));
    let list: k8s_openapi::List<Pod> = serde_json::from_str(body).unwrap();
    assert_eq!(list.items.len(), 2);
    served.stop().await;
}

#[tokio::test]
async fn head_has_the_headers_of_get_and_no_body() {
    let served = serve(read_only(), ConnectionLimits::default()).await;
    for target in ["/pods", "/metrics", "/healthz/ping"] {
        let request = format!("HEAD {target} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n");
        let text = served.send(request.as_bytes()).await;
        let (head, body) = split(&text);
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{target}: {head}");
        assert_eq!(body, "", "{target}");
    }
    served.stop().await;
}

#[tokio::test]
async fn refusals_name_the_error() {
    let served = serve(read_only(), ConnectionLimits::default()).await;
    let rows = [
        ("GET /nowhere", "404 Not Found", "404 page not found"),
        ("POST /pods", "405 Method Not Allowed", "405 method not allowed"),
        ("GET /events?limit=x", "400 Bad Request", "query parameter \"limit\""),
    ];
    for (line, status, body) in rows {
        let text = served
            .send(format!("{line} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").as_bytes())
            .await;
        assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{line}: {text}");
        assert!(text.contains(body), "{line}: {text}");
        assert_eq!(
            text.to_ascii_lowercase().contains("allow: get, head"),
            status.starts_with("405")
        );
    }
    served.stop().await;
}

#[tokio::test]
async fn garbage_is_refused_without_harm() {
    let served = serve(read_only(), ConnectionLimits::default()).await;
    let long_path = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000));
    let long_header = format!("GET /pods HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(100_000));
    let many_headers = format!("GET /pods HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(1000));
    let garbage: [&[u8]; 7] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        long_path.as_bytes(),
        long_header.as_bytes(),
        many_headers.as_bytes(),
    ];
    for bytes in garbage {
        let mut stream = served.connect().await;
        let _ = stream.write_all(bytes).await;
        let text = read_to_end(&mut stream).await;
        assert!(!text.contains(" 200 "), "{text}");
        assert!(served.get("/healthz/ping").await.ends_with("ok"));
    }
    served.stop().await;
}

#[tokio::test]
async fn a_large_or_endless_body_is_refused() {
    let served = serve(read_only(), ConnectionLimits::default()).await;
    let large = "GET /pods HTTP/1.1\r\nHost: n\r\nContent-Length: 1000000000\r\n\r\nabc";
    let endless = "GET /pods HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
    for request in [large, endless] {
        let text = served.send(request.as_bytes()).await;
        assert!(text.starts_with("HTTP/1.1 413 "), "{text}");
    }
    served.stop().await;
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut_off() {
    let served = serve(read_only(), brief()).await;
    for bytes in ["", "GET /pods HT", "GET /pods HTTP/1.1\r\nHost: n\r\n"] {
        let text = served.send(bytes.as_bytes()).await;
        assert!(!text.contains(" 200 "), "{bytes:?}: {text}");
    }
    served.stop().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_response() {
    let served = serve(read_only(), brief()).await;
    let text = served.send(b"GET /healthz/ping HTTP/1.1\r\nHost: n\r\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    served.stop().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_for_one_with_a_request() {
    let limits = ConnectionLimits { unauthenticated: 2, ..ConnectionLimits::default() };
    let served = serve(read_only(), limits).await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(served.connect().await);
    }
    assert!(served.get("/healthz/ping").await.ends_with("ok"));
    for stream in silent.iter_mut().take(2) {
        assert_eq!(read_to_end(stream).await, "", "the oldest is closed");
    }
    served.stop().await;
}

#[tokio::test]
async fn connections_that_wait_for_changes_are_closed_for_another_address() {
    let limits = ConnectionLimits { unauthenticated: 4, ..ConnectionLimits::default() };
    let served = serve(read_only(), limits).await;
    let mut waiting = Vec::new();
    for _ in 0..4 {
        let mut stream = served.connect().await;
        let request = b"GET /explain?after=1 HTTP/1.1\r\nHost: n\r\n\r\n";
        stream.write_all(request).await.unwrap();
        waiting.push(stream);
    }
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 9], 0).into()).unwrap();
    let mut other = socket.connect(served.address).await.unwrap();
    let request = b"GET /healthz/ping HTTP/1.0\r\n\r\n";
    other.write_all(request).await.unwrap();
    assert!(read_to_end(&mut other).await.ends_with("ok"));
    served.stop().await;
}

#[tokio::test]
async fn many_simultaneous_clients_are_all_served() {
    // With the default share of one source, requests that arrive late on a busy machine would find their connection closed.
    let limits = ConnectionLimits { per_source: 512, ..ConnectionLimits::default() };
    let served = Arc::new(serve(read_only(), limits).await);
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..400 {
        let served = served.clone();
        clients.spawn(async move { served.get("/pods").await });
    }
    while let Some(text) = clients.join_next().await {
        assert!(text.unwrap().starts_with("HTTP/1.0 200 OK"));
    }
    Arc::into_inner(served).unwrap().stop().await;
}

/// A pod list larger than all socket buffers together.
fn large() -> PortHandler {
    let annotations = Some([("a".to_string(), "x".repeat(100_000))].into());
    let large = |index| {
        let mut pod = Pod::clone(&pod(&format!("large-{index}")));
        pod.metadata.annotations = annotations.clone();
        (Arc::new(pod), None)
    };
    let pods = (0..300).map(large).collect();
    PortHandler::read_only(HealthChecks::ping(), views(pods), Vec::new())
}

#[tokio::test]
async fn shutdown_lets_a_response_in_progress_end() {
    let limits = ConnectionLimits { shutdown_timeout: TIMEOUT, ..ConnectionLimits::default() };
    let served = serve(large(), limits).await;
    let mut stream = served.connect().await;
    stream.write_all(b"GET /pods HTTP/1.0\r\n\r\n").await.unwrap();
    let mut first = [0; 1024];
    stream.read_exact(&mut first).await.unwrap();
    served.shutdown.cancel();
    let rest = read_to_end(&mut stream).await;
    assert!(rest.ends_with("]}\n"));
    served.stop().await;
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_client_that_does_not_read() {
    let limits = ConnectionLimits {
        shutdown_timeout: Duration::from_millis(200),
        ..ConnectionLimits::default()
    };
    let served = serve(large(), limits).await;
    let mut stream = served.connect().await;
    stream.write_all(b"GET /pods HTTP/1.0\r\n\r\n").await.unwrap();
    let mut first = [0; 1024];
    stream.read_exact(&mut first).await.unwrap();
    served.stop().await;
    assert!(!read_to_end(&mut stream).await.ends_with("]}\n"));
}

#[tokio::test]
async fn shutdown_closes_idle_connections_and_the_port() {
    let served = serve(read_only(), ConnectionLimits::default()).await;
    let address = served.address;
    let mut idle = served.connect().await;
    idle.write_all(b"GET /healthz/ping HTTP/1.1\r\nHost: n\r\n\r\n").await.unwrap();
    let mut first = [0; 16];
    idle.read_exact(&mut first).await.unwrap();
    served.stop().await;
    read_to_end(&mut idle).await;
    assert!(TcpStream::connect(address).await.is_err());
}

/// Waits until the server has closed its end of a connection, without reading from the connection.
async fn closed_by_server(client: &TcpStream) {
    let server = client.peer_addr().unwrap().port();
    let client = client.local_addr().unwrap().port();
    let established = || tcp_table::has_state(server, client, tcp_table::ESTABLISHED);
    assert!(established(), "the client is connected");
    let closed = async {
        while established() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TIMEOUT, closed).await.expect("still open");
}

#[tokio::test]
async fn a_client_that_takes_nothing_loses_its_connection() {
    let limits = ConnectionLimits {
        write_timeout: Duration::from_millis(200),
        ..ConnectionLimits::default()
    };
    let served = serve(large(), limits).await;
    let mut stalled = served.connect().await;
    stalled.write_all(b"GET /pods HTTP/1.0\r\n\r\n").await.unwrap();
    // Until then nothing is read: how long the server needs to fill the buffers depends on the machine.
    closed_by_server(&stalled).await;
    assert!(!read_to_end(&mut stalled).await.ends_with("]}\n"));
    served.stop().await;
}

#[tokio::test]
async fn a_client_that_takes_little_at_a_time_gets_all() {
    let limits = ConnectionLimits {
        head_timeout: Duration::from_millis(500),
        idle_timeout: Duration::from_millis(500),
        write_timeout: Duration::from_millis(500),
        ..ConnectionLimits::default()
    };
    let served = serve(large(), limits).await;
    let mut stream = served.connect().await;
    stream.write_all(b"GET /pods HTTP/1.0\r\n\r\n").await.unwrap();
    let (mut text, mut part) = (Vec::new(), vec![0; 3_000_000]);
    let begun = clock::instant();
    loop {
        let read = timeout(TIMEOUT, stream.read(&mut part)).await.unwrap();
        match read.unwrap() {
            0 => break,
            read => text.extend_from_slice(&part[..read]),
        }
        // Longer in total than any limit.
        if clock::since(begun) < Duration::from_secs(2) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    assert!(clock::since(begun) > Duration::from_secs(1));
    assert!(text.ends_with(b"]}\n"), "{} bytes", text.len());
    served.stop().await;
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_client_that_waits_for_changes() {
    let limits = ConnectionLimits {
        shutdown_timeout: Duration::from_secs(60),
        ..ConnectionLimits::default()
    };
    let served = serve(read_only(), limits).await;
    let mut waiting = served.connect().await;
    waiting.write_all(b"GET /explain?after=1 HTTP/1.0\r\n\r\n").await.unwrap();
    // A response to a later request shows that the first one is being handled.
    assert!(served.get("/healthz/ping").await.ends_with("ok"));
    let begun = clock::instant();
    served.stop().await;
    assert!(clock::since(begun) < Duration::from_secs(30));
    assert!(read_to_end(&mut waiting).await.contains("\"version\":\"1\""));
}

#[tokio::test]
async fn a_local_socket_answers_as_the_read_only_port_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.sock");
    let listener = Listener::bind_local("local", &path).unwrap();
    assert_eq!(listener.address(), None);
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(listener.serve(read_only(), shutdown.clone()));
    let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"GET /pods HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("\"kind\":\"PodList\""), "{answer}");
    shutdown.cancel();
    task.await.unwrap().unwrap();
    assert!(!path.exists());
    std::fs::write(&path, "").unwrap();
    let error = Listener::bind_local("local", &path).unwrap_err();
    assert!(error.to_string().contains("kubelet.sock for local"), "{error}");
}

#[tokio::test]
async fn a_response_may_take_longer_than_a_client_may_be_idle() {
    let limits = ConnectionLimits {
        idle_timeout: Duration::from_millis(50),
        write_timeout: Duration::from_millis(50),
        ..ConnectionLimits::default()
    };
    let (changed, overview_version) = tokio::sync::watch::channel(1);
    let mut views = views(vec![]);
    views.explanations.overview_version = Arc::new(move || {
        let mut overview_version = overview_version.clone();
        let version = overview_version.borrow_and_update().to_string();
        let changed = async move {
            let _ = overview_version.changed().await;
        };
        (version, Box::pin(changed))
    });
    let handler = PortHandler::read_only(HealthChecks::ping(), views, vec![]);
    let served = serve(handler, limits).await;
    let asking = served.send(b"GET /explain?after=1 HTTP/1.1\r\nHost: n\r\n\r\n");
    let later = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        changed.send(2).unwrap();
    };
    let (text, ()) = tokio::join!(asking, later);
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    served.stop().await;
}

#[tokio::test]
async fn a_request_that_panics_gets_a_500_and_its_connection_stays() {
    let mut views = views(vec![]);
    views.explanations.overview = Arc::new(|| panic!("as scripted"));
    let handler = PortHandler::read_only(HealthChecks::ping(), views, Vec::new());
    let served = serve(handler, ConnectionLimits::default()).await;
    let requests = "GET /explain HTTP/1.1\r\nHost: n\r\n\r\n".repeat(2)
        + "GET /metrics HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n";
    let text = served.send(requests.as_bytes()).await;
    let failed = "HTTP/1.1 500 Internal Server Error";
    assert_eq!(text.matches(failed).count(), 2, "{text}");
    assert!(text.ends_with("up 1\n"), "{text}");
    assert!(!text.contains("scripted"), "{text}");
    served.stop().await;
}
