//! grpc: the standard health service, in plain text.

use super::deadline::{TimeoutError, tolerance, within};
use super::health::HealthCheckRequest;
use super::health::health_check_response::ServingStatus;
use super::health::health_client::HealthClient;
use super::request::PROBE_AGENT;
use super::{ProbeOutcome, net};
use crate::base::{GoDuration, error_chain};
use crate::cri::go_code;
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

pub(super) async fn probe(host: &str, port: u16, service: &str, timeout: Duration) -> ProbeOutcome {
    let connected = AtomicBool::new(false);
    let address = net::join_host_port(host, port);
    let checking = check((host, port), tolerance(timeout), service, &connected);
    match within(timeout, checking).await {
        Ok(outcome) => outcome,
        Err(TimeoutError::Starved(lag)) => {
            ProbeOutcome::unknown(TimeoutError::starved_text(lag, timeout))
        }
        Err(TimeoutError::TimedOut) if connected.load(Ordering::Relaxed) => ProbeOutcome::failure(
            format!("timeout: health rpc did not complete within {}", GoDuration::from(timeout)),
        ),
        Err(TimeoutError::TimedOut) => ProbeOutcome::failure(format!(
            "timeout: failed to connect service {address:?} within {}: context deadline exceeded",
            GoDuration::from(timeout)
        )),
    }
}

async fn check(
    (host, port): (&str, u16),
    max_wait: Duration,
    service: &str,
    connected: &AtomicBool,
) -> ProbeOutcome {
    let address = net::join_host_port(host, port);
    let no_connection = |text: &str| {
        ProbeOutcome::failure(format!("error: failed to connect service at {address:?}: {text}"))
    };
    let stream = match net::dial(host, port, max_wait).await {
        Ok(stream) => stream,
        Err(error) if error.local => return ProbeOutcome::unknown(error.text),
        Err(error) => return no_connection(&error.text),
    };
    connected.store(true, Ordering::Relaxed);
    let channel = match channel_over(stream, &address).await {
        Ok(channel) => channel,
        Err(error) => return no_connection(&error_chain(&error)),
    };
    let request = HealthCheckRequest { service: service.to_owned() };
    match HealthClient::new(channel).check(request).await {
        Ok(reply) => match reply.get_ref().status() {
            ServingStatus::Serving => ProbeOutcome::success("service healthy"),
            status => ProbeOutcome::failure(format!(
                "service unhealthy (responded with {:?})",
                status.as_str_name()
            )),
        },
        Err(status) => ProbeOutcome::failure(rpc_failed(&status)),
    }
}

/// A channel over an open connection; it does not reconnect.
async fn channel_over(
    stream: tokio::net::TcpStream,
    address: &str,
) -> Result<Channel, tonic::transport::Error> {
    let mut stream = Some(stream);
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().map(TokioIo::new);
        async move { stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    Endpoint::from_shared(format!("http://{address}"))?
        .user_agent(PROBE_AGENT)?
        .connect_with_connector(connector)
        .await
}

fn rpc_failed(status: &Status) -> String {
    match status.code() {
        Code::Unimplemented => format!(
            "error: this server does not implement the grpc health protocol \
             (grpc.health.v1.Health): {}",
            status.message()
        ),
        code => format!(
            "error: health rpc probe failed: rpc error: code = {} desc = {}",
            go_code(code),
            status.message()
        ),
    }
}
