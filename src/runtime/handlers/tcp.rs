//! tcpSocket: whether something accepts connections.

use super::{
    ProbeOutcome,
    deadline::{Late, within},
    net,
};
use std::time::Duration;

pub(super) async fn probe(host: &str, port: u16, timeout: Duration) -> ProbeOutcome {
    match within(timeout, net::dial(host, port)).await {
        Ok(Ok(_stream)) => ProbeOutcome::success(""),
        Ok(Err(error)) if error.local => ProbeOutcome::unknown(error.text),
        Ok(Err(error)) => ProbeOutcome::failure(error.text),
        Err(Late::TimedOut) => ProbeOutcome::failure(net::dial_timed_out(host, port)),
        Err(Late::Starved(lag)) => ProbeOutcome::unknown(Late::starved_text(lag, timeout)),
    }
}
