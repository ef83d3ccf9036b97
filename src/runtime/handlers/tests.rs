//! Handlers against real sockets on the loopback.

mod hooks;
mod http;
mod server;

use super::*;
use crate::cri::{CriError, ExecOutput, Rpc};
use server::Server;
use std::sync::Arc;

const SECOND: Duration = Duration::from_secs(1);

/// Commands answer what the closure says.
fn exec_with(
    answer: impl Fn(&[String]) -> Result<ExecOutput, CriError> + Send + Sync + 'static,
) -> ExecFn {
    Arc::new(move |_, command, _| {
        let answer = answer(&command);
        Box::pin(async move { answer })
    })
}

fn no_exec() -> ExecFn {
    exec_with(|command| panic!("unexpected command {command:?}"))
}

fn exited(exit_code: i32, stdout: &str, stderr: &str) -> Result<ExecOutput, CriError> {
    Ok(ExecOutput { stdout: stdout.into(), stderr: stderr.into(), exit_code })
}

async fn run(exec: &ExecFn, handler: Handler<'_>, timeout: Duration) -> ProbeOutcome {
    let target = HandlerTarget {
        container_id: &ContainerId::from("c1"),
        pod_ip: Some("127.0.0.1"),
        ports: &[],
    };
    run_handler(exec, &handler, &target, timeout).await
}

async fn run_command(exec: ExecFn, command: &[&str], timeout: Duration) -> ProbeOutcome {
    let command: Vec<String> = command.iter().map(|&arg| arg.into()).collect();
    run(&exec, Handler::Exec(command.into()), timeout).await
}

#[tokio::test]
async fn exec_says_by_its_exit_code_whether_the_container_is_well() {
    let well = run_command(exec_with(|_| exited(0, "fine", "")), &["x"], SECOND).await;
    assert_eq!(well, ProbeOutcome::success("fine"));
    let ill = run_command(exec_with(|_| exited(3, "out ", "err")), &["x"], SECOND).await;
    assert_eq!(ill, ProbeOutcome::failure("out err"));
}

#[tokio::test]
async fn exec_output_is_cut_at_ten_kib_without_breaking_utf_8() {
    let long = "ä".repeat(MAX_OUTPUT);
    let outcome = run_command(exec_with(move |_| exited(1, &long, "")), &["x"], SECOND).await;
    let ProbeOutcome::Failure { output } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(output.len(), MAX_OUTPUT);
}

fn outcome_unknown(code: tonic::Code) -> CriError {
    CriError::OutcomeUnknown { rpc: Rpc::ExecSync, code, message: "said the runtime".into() }
}

#[tokio::test(start_paused = true)]
async fn a_command_that_outlived_its_timeout_is_a_failure_whenever_the_runtime_says_so() {
    for early in [0, 1, 90].map(Duration::from_secs) {
        let exec: ExecFn = Arc::new(move |_, _, timeout| {
            Box::pin(async move {
                tokio::time::sleep(timeout - early).await;
                Err(outcome_unknown(tonic::Code::DeadlineExceeded))
            })
        });
        assert_eq!(
            run_command(exec, &["sh", "-c", "sleep 9"], 90 * SECOND).await,
            ProbeOutcome::failure(r#"command timed out: "sh -c sleep 9" timed out after 1m30s"#)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_to_the_runtime_says_nothing_about_the_container() {
    for late in [0, 9].map(Duration::from_secs) {
        let exec: ExecFn = Arc::new(move |_, _, _| {
            Box::pin(async move {
                tokio::time::sleep(late).await;
                Err(outcome_unknown(tonic::Code::Unavailable))
            })
        });
        let outcome = run_command(exec, &["x"], SECOND).await;
        assert!(matches!(outcome, ProbeOutcome::Unknown { .. }), "{outcome:?}");
    }
    let gone = CriError::NotFound { rpc: Rpc::ExecSync, message: "no such container".into() };
    assert_eq!(
        run_command(exec_with(move |_| Err(gone.clone())), &["x"], SECOND).await,
        ProbeOutcome::unknown("rpc error: code = NotFound desc = no such container")
    );
}

#[tokio::test]
async fn commands_reach_the_runtime_as_they_are_written() {
    use crate::cri::{test_server, v1};
    use prost::Message as _;
    let server = test_server::TestRuntime::started();
    server.script.on("ExecSync", |request| {
        let request = v1::ExecSyncRequest::decode(request).unwrap();
        test_server::Reply::message(&v1::ExecSyncResponse {
            stdout: format!("{:?} {} {}", request.cmd, request.container_id, request.timeout)
                .into(),
            ..Default::default()
        })
    });
    let exec = runtime_exec(server.client(10 * SECOND));
    assert_eq!(
        run_command(exec, &["echo", "a b", "ä+"], 2 * SECOND).await,
        ProbeOutcome::success(r#"["echo", "a b", "ä+"] c1 2"#)
    );
}

fn tcp(port: u16) -> TCPSocketAction {
    TCPSocketAction { host: None, port: IntOrString::Int(port.into()) }
}

#[tokio::test]
async fn tcp_succeeds_where_something_listens_and_leaves_no_time_wait_behind() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let action = tcp(port);
    let outcome = run(&no_exec(), Handler::TcpSocket(&action), SECOND).await;
    assert_eq!(outcome, ProbeOutcome::success(""));
    let (mut accepted, _) = listener.accept().await.unwrap();
    let read = tokio::io::AsyncReadExt::read(&mut accepted, &mut [0; 1]).await;
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn tcp_fails_where_nothing_listens() {
    let port = server::closed_port().await;
    let action = tcp(port);
    assert_eq!(
        run(&no_exec(), Handler::TcpSocket(&action), SECOND).await,
        ProbeOutcome::failure(format!("dial tcp 127.0.0.1:{port}: connect: connection refused"))
    );
}

#[tokio::test]
async fn a_port_can_be_a_name_or_a_number_written_as_text() {
    let ports = [ContainerPort {
        name: Some("web".into()),
        container_port: 8080,
        host_port: Some(80),
        ..Default::default()
    }];
    let text = |text: &str| resolve_port(&IntOrString::String(text.into()), &ports);
    assert_eq!(text("web"), Ok(8080));
    assert_eq!(text("81"), Ok(81));
    assert_eq!(text("nope"), Err(r#"the container has no port named "nope""#.into()));
    for bad in [0, -1, 65536] {
        assert!(resolve_port(&IntOrString::Int(bad), &ports).is_err());
    }
}

#[tokio::test]
async fn what_cannot_be_asked_is_unknown() {
    let target = HandlerTarget { container_id: &ContainerId::from("c1"), pod_ip: None, ports: &[] };
    let action = tcp(80);
    let outcome = run_handler(&no_exec(), &Handler::TcpSocket(&action), &target, SECOND).await;
    assert_eq!(outcome, ProbeOutcome::unknown("the pod has no IP address yet"));
}

async fn check_health(server: &Server, service: &str, timeout: Duration) -> ProbeOutcome {
    let action = GRPCAction { port: server.port.into(), service: Some(service.into()) };
    run(&no_exec(), Handler::Grpc(&action), timeout).await
}

#[tokio::test]
async fn grpc_success_is_serving_and_nothing_else() {
    let server = Server::grpc().await;
    assert_eq!(
        check_health(&server, "good", SECOND).await,
        ProbeOutcome::success("service healthy")
    );
    assert_eq!(
        check_health(&server, "bad", SECOND).await,
        ProbeOutcome::failure(r#"service unhealthy (responded with "NOT_SERVING")"#)
    );
    assert_eq!(
        check_health(&server, "missing", SECOND).await,
        ProbeOutcome::failure(
            "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service"
        )
    );
    assert_eq!(
        check_health(&server, "unimplemented", SECOND).await,
        ProbeOutcome::failure(
            "error: this server does not implement the grpc health protocol \
             (grpc.health.v1.Health): no"
        )
    );
    assert_eq!(
        check_health(&server, "slow", SECOND).await,
        ProbeOutcome::failure("timeout: health rpc did not complete within 1s")
    );
}

#[tokio::test]
async fn grpc_fails_where_nothing_listens() {
    let port = server::closed_port().await;
    let action = GRPCAction { port: port.into(), service: None };
    assert_eq!(
        run(&no_exec(), Handler::Grpc(&action), SECOND).await,
        ProbeOutcome::failure(format!(
            "error: failed to connect service at \"127.0.0.1:{port}\": \
             dial tcp 127.0.0.1:{port}: connect: connection refused"
        ))
    );
}
