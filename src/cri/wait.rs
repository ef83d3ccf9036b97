//! Waits for the runtime when the kubelet starts, and logs what is missing.

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use tokio::time::sleep;

use super::error::CriError;
use super::runtime::RuntimeClient;
use super::v1::{RuntimeCondition, StatusResponse, VersionResponse};
use crate::base::clock::{self, Instant};
use crate::base::spawn_blocking;

const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which the same reason is logged again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// The condition that the runtime has to report before anything can be started.
const RUNTIME_READY: &str = "RuntimeReady";
const NETWORK_READY: &str = "NetworkReady";

/// The replies of the runtime when it was ready.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimeInfo {
    /// Name and versions.
    pub version: VersionResponse,
    /// Conditions, handlers and features.
    pub status: StatusResponse,
}

/// Waits without limit until the runtime answers Version and Status and reports `RuntimeReady`. What is missing is
/// logged when it changes, and otherwise once a minute. `NetworkReady` is not waited for: pods on the host network
/// need no pod network.
pub async fn wait_for_runtime(runtime: &RuntimeClient) -> RuntimeInfo {
    let mut last: Option<(String, Instant)> = None;
    loop {
        let missing = match runtime_info(runtime).await {
            Ok(info) => {
                let VersionResponse { runtime_name, runtime_version, .. } = &info.version;
                let endpoint = runtime.connection().endpoint();
                tracing::info!(%endpoint, runtime_name, runtime_version, "Container runtime is ready");
                if let Some(reason) = network_error(&info.status) {
                    tracing::info!("Starting without a pod network: {reason}");
                }
                return info;
            }
            Err(missing) => missing,
        };
        let repeat = match &last {
            Some((text, at)) => *text != missing || clock::since(*at) >= REPEAT_INTERVAL,
            None => true,
        };
        if repeat {
            let endpoint = runtime.connection().endpoint();
            tracing::warn!(%endpoint, "Waiting for the container runtime: {missing}");
            last = Some((missing, clock::instant()));
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Asks the runtime whether it is ready, once.
///
/// # Errors
/// What is missing, and what to do about it.
pub async fn runtime_info(runtime: &RuntimeClient) -> Result<RuntimeInfo, String> {
    let asked = async { Ok((runtime.version().await?, runtime.status(false).await?)) };
    let (version, status) = match asked.await {
        Ok(answers) => answers,
        Err(error) => {
            let path = runtime.connection().endpoint().path();
            return Err(advice(&error, is_other_file(path).await));
        }
    };
    match not_ready(&status, RUNTIME_READY) {
        Some(reason) => Err(reason),
        None => Ok(RuntimeInfo { version, status }),
    }
}

/// Why the pod network is not ready; `None` if it is.
pub fn network_error(status: &StatusResponse) -> Option<String> {
    not_ready(status, NETWORK_READY)
}

/// Whether a file that is no socket has this path.
async fn is_other_file(path: &Path) -> bool {
    let path = path.to_owned();
    let is_other = move || fs::metadata(path).is_ok_and(|file| !file.file_type().is_socket());
    spawn_blocking(is_other).await.unwrap_or_default()
}

/// The likely cause of a failed call, and what to do about it.
fn advice(error: &CriError, is_other_file: bool) -> String {
    let advice = match error {
        CriError::Unavailable { .. } if is_other_file => {
            "the endpoint is a file or a directory and not a socket"
        }
        CriError::Unavailable { kind: Some(kind), .. } => match kind {
            io::ErrorKind::NotFound => {
                "the socket does not exist; is the runtime installed and running, and is the endpoint the right one?"
            }
            io::ErrorKind::PermissionDenied => "this user may not open the socket; run as root",
            io::ErrorKind::ConnectionRefused => {
                "nothing listens on the socket; the runtime is stopped or still starting"
            }
            _ => "the runtime accepts no connections",
        },
        CriError::Unavailable { kind: None, .. } => "the connection broke",
        CriError::Unimplemented { .. } => {
            "it does not implement CRI v1; containerd needs version 1.6 or later with its CRI plugin enabled"
        }
        CriError::OutcomeUnknown { .. } => "it accepts connections but does not respond",
        _ => "it returned an error",
    };
    format!("{advice} ({error})")
}

/// Why a condition is not met, if it is false or missing.
fn not_ready(status: &StatusResponse, condition: &str) -> Option<String> {
    let conditions: &[RuntimeCondition] =
        status.status.as_ref().map_or(&[], |status| status.conditions.as_slice());
    match conditions.iter().find(|known| known.r#type == condition) {
        Some(known) if known.status => None,
        Some(known) => Some(format!("{condition} is false: {}: {}", known.reason, known.message)),
        None => Some(format!("it does not report {condition}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::rpc::Rpc;
    use crate::cri::v1::RuntimeStatus;

    #[test]
    fn each_kind_of_absence_has_its_own_advice() {
        let rpc = Rpc::Version;
        let away = |kind| CriError::Unavailable { rpc, kind: Some(kind), message: "m".into() };
        let table = [
            (away(io::ErrorKind::NotFound), "does not exist"),
            (away(io::ErrorKind::PermissionDenied), "run as root"),
            (away(io::ErrorKind::ConnectionRefused), "nothing listens"),
            (
                CriError::Unimplemented { rpc, message: "unknown service".into() },
                "not implement CRI v1",
            ),
            (
                CriError::OutcomeUnknown {
                    rpc,
                    code: tonic::Code::DeadlineExceeded,
                    message: "m".into(),
                },
                "does not respond",
            ),
        ];
        for (error, expected) in table {
            let text = advice(&error, false);
            assert!(text.contains(expected), "{text}");
            assert!(text.contains(error.message()), "{text}");
        }
        let text = advice(&away(io::ErrorKind::ConnectionRefused), true);
        assert!(text.contains("not a socket"), "{text}");
    }

    #[test]
    fn a_condition_is_ready_only_when_it_is_there_and_true() {
        let condition = |status| RuntimeCondition {
            r#type: RUNTIME_READY.into(),
            status,
            reason: "Starting".into(),
            message: "wait".into(),
        };
        let reply = |conditions| StatusResponse {
            status: Some(RuntimeStatus { conditions }),
            ..Default::default()
        };
        assert_eq!(not_ready(&reply(vec![condition(true)]), RUNTIME_READY), None);
        assert_eq!(
            not_ready(&reply(vec![condition(false)]), RUNTIME_READY).as_deref(),
            Some("RuntimeReady is false: Starting: wait")
        );
        assert!(not_ready(&reply(vec![]), RUNTIME_READY).is_some());
        assert!(not_ready(&StatusResponse::default(), RUNTIME_READY).is_some());
    }
}
