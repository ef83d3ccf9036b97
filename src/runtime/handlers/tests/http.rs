use super::server::{Server, closed_port, reply};
use super::*;
use crate::host::tcp_table;
use k8s_openapi::api::core::v1::HTTPHeader;

fn answers(path: &str, port: u16) -> String {
    let to =
        |status: &str, location: &str| reply(status, &format!("Location: {location}\r\n"), "moved");
    match path {
        "/ok" => reply("200 OK", "", "fine"),
        "/204" => "HTTP/1.1 204 No Content\r\n\r\n".into(),
        "/500" => reply("500 Oops", "", "secret"),
        "/304" => reply("304 Not Modified", "", ""),
        "/to-ok" => to("302 Found", "/ok"),
        "/to-500" => to("301 Moved", &format!("http://127.0.0.1:{port}/500")),
        "/to-other" => to("307 Temporary", "http://other.invalid/ok"),
        "/loop" => to("302 Found", "/loop"),
        "/big" => reply("200 OK", "", &"x".repeat(3 * MAX_OUTPUT)),
        "/half" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc".into(),
        "/garbage" => "no HTTP at all\r\n\r\n".into(),
        _ => String::new(),
    }
}

fn get(port: u16, path: &str) -> HTTPGetAction {
    HTTPGetAction {
        path: Some(path.into()),
        port: IntOrString::Int(port.into()),
        ..Default::default()
    }
}

async fn probe(action: &HTTPGetAction, timeout: Duration) -> ProbeOutcome {
    run(&no_exec(), Handler::HttpGet(action), timeout).await
}

#[tokio::test]
async fn the_final_status_decides() {
    let server = Server::http("127.0.0.1:0", answers).await;
    let moved =
        ProbeOutcome::Warning { output: "Probe terminated redirects, Response body: moved".into() };
    let table = [
        ("/ok", ProbeOutcome::success("fine")),
        ("/204", ProbeOutcome::success("")),
        ("/500", ProbeOutcome::failure("HTTP probe failed with statuscode: 500")),
        ("/to-ok", ProbeOutcome::success("fine")),
        ("/to-500", ProbeOutcome::failure("HTTP probe failed with statuscode: 500")),
        ("/to-other", moved),
        ("/big", ProbeOutcome::success("x".repeat(MAX_OUTPUT))),
    ];
    for (path, outcome) in table {
        assert_eq!(probe(&get(server.port, path), SECOND).await, outcome, "{path}");
    }
}

#[tokio::test]
async fn redirects_end_after_ten_requests() {
    let server = Server::http("127.0.0.1:0", answers).await;
    let url = format!("http://127.0.0.1:{}/loop", server.port);
    assert_eq!(
        probe(&get(server.port, "/loop"), SECOND).await,
        ProbeOutcome::failure(format!("Get {url:?}: stopped after 10 redirects"))
    );
    assert_eq!(server.requests.lock().len(), 10);
}

#[tokio::test]
async fn requests_introduce_themselves_and_let_the_connection_end() {
    let server = Server::http("127.0.0.1:0", answers).await;
    probe(&get(server.port, "/ok"), SECOND).await;
    let head = server.requests.lock()[0].clone();
    assert_eq!(
        head,
        format!(
            "GET /ok HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nUser-Agent: kube-probe/1.36\r\n\
             Accept: */*\r\nConnection: close\r\n\r\n",
            server.port
        )
    );
}

#[tokio::test]
async fn the_users_headers_win_and_an_empty_one_removes_ours() {
    let server = Server::http("127.0.0.1:0", answers).await;
    let header = |name: &str, value: &str| HTTPHeader { name: name.into(), value: value.into() };
    let action = HTTPGetAction {
        http_headers: Some(vec![
            header("Host", "example.org"),
            header("user-agent", ""),
            header("Accept", "text/plain"),
            header("X-Twice", "1"),
            header("X-Twice", "2"),
            header("X-Empty", ""),
            header("Content-Length", "77"),
        ]),
        ..get(server.port, "/ok")
    };
    assert_eq!(probe(&action, SECOND).await, ProbeOutcome::success("fine"));
    let head = server.requests.lock()[0].clone();
    let mut lines: Vec<_> = head.trim_end().split("\r\n").collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "Accept: text/plain",
            "Connection: close",
            "GET /ok HTTP/1.1",
            "Host: example.org",
            "X-Empty: ",
            "X-Twice: 1",
            "X-Twice: 2",
        ]
    );
}

#[tokio::test]
async fn a_header_that_cannot_be_sent_is_unknown() {
    let action = HTTPGetAction {
        http_headers: Some(vec![HTTPHeader { name: "a b".into(), value: String::new() }]),
        ..get(1, "/")
    };
    assert_eq!(
        probe(&action, SECOND).await,
        ProbeOutcome::unknown(r#"invalid header field name "a b""#)
    );
}

#[tokio::test]
async fn silence_is_a_failure_that_says_where_it_began() {
    let server = Server::http("127.0.0.1:0", answers).await;
    let hang = probe(&get(server.port, "/hang"), SECOND * 2).await;
    assert_eq!(
        hang,
        ProbeOutcome::failure(format!(
            "Get \"http://127.0.0.1:{}/hang\": context deadline exceeded \
             (Client.Timeout exceeded while awaiting headers)",
            server.port
        ))
    );
    let half = probe(&get(server.port, "/half"), SECOND * 2).await;
    assert_eq!(
        half,
        ProbeOutcome::failure(format!(
            "Get \"http://127.0.0.1:{}/half\": context deadline exceeded \
             (Client.Timeout or context cancellation while reading body)",
            server.port
        ))
    );
}

#[tokio::test]
async fn no_answer_is_a_failure_in_words_users_know() {
    let port = closed_port().await;
    assert_eq!(
        probe(&get(port, "/"), SECOND).await,
        ProbeOutcome::failure(format!(
            "Get \"http://127.0.0.1:{port}/\": dial tcp 127.0.0.1:{port}: connect: connection refused"
        ))
    );
    let server = Server::http("127.0.0.1:0", answers).await;
    let port = server.port;
    assert_eq!(
        probe(&get(port, "/nothing"), SECOND).await,
        ProbeOutcome::failure(format!("Get \"http://127.0.0.1:{port}/nothing\": EOF"))
    );
    let garbage = probe(&get(port, "/garbage"), SECOND).await;
    assert!(matches!(garbage, ProbeOutcome::Failure { .. }), "{garbage:?}");
}

#[tokio::test]
async fn ipv6_hosts_are_asked_too() {
    let server = Server::http("[::1]:0", answers).await;
    let action = HTTPGetAction { host: Some("::1".into()), ..get(server.port, "/ok") };
    assert_eq!(probe(&action, SECOND).await, ProbeOutcome::success("fine"));
    let head = server.requests.lock()[0].clone();
    assert!(head.contains(&format!("Host: [::1]:{}\r\n", server.port)), "{head}");
}

#[tokio::test]
async fn https_takes_any_certificate() {
    let server = Server::https(answers).await;
    let action = HTTPGetAction { scheme: Some("HTTPS".into()), ..get(server.port, "/ok") };
    assert_eq!(probe(&action, SECOND).await, ProbeOutcome::success("fine"));
}

#[tokio::test]
async fn https_to_a_server_that_speaks_http_fails() {
    let server = Server::http("127.0.0.1:0", answers).await;
    let action = HTTPGetAction { scheme: Some("HTTPS".into()), ..get(server.port, "/ok") };
    assert_eq!(
        probe(&action, SECOND).await,
        ProbeOutcome::failure(format!(
            "Get \"https://127.0.0.1:{}/ok\": http: server gave HTTP response to HTTPS client",
            server.port
        ))
    );
}

#[tokio::test]
async fn the_port_of_a_probe_comes_back_at_once_though_the_server_would_have_kept_the_connection() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut stream, client) = listener.accept().await.unwrap();
        let mut head = [0; 1024];
        assert!(stream.read(&mut head).await.unwrap() > 0);
        let answer = reply("200 OK", "", "fine");
        stream.write_all(answer.as_bytes()).await.unwrap();
        while matches!(stream.read(&mut head).await, Ok(read) if read > 0) {}
        client.port()
    });
    let outcome = probe(&get(port, "/"), SECOND).await;
    assert_eq!(outcome, ProbeOutcome::success("fine"));
    let client = server.await.unwrap();
    assert!(!tcp_table::has_state(client, port, tcp_table::TIME_WAIT));
}
