//! The cgroup driver, which the kubelet and the runtime must share.

use super::CgroupDriver;
use crate::base::error_chain;
use crate::base::metrics::{Gauge, MetricVec, Metrics};
use crate::cri::{CriError, RuntimeClient, v1};
use std::time::Duration;

/// Number of attempts to get the cgroup driver from a runtime that does not respond.
const TRIES: usize = 3;
const BETWEEN_TRIES: Duration = Duration::from_secs(2);

/// The driver that the runtime reports; `configured` if it cannot report one.
///
/// # Errors
/// The runtime does not answer, or reports a driver that is not known.
pub async fn driver(
    runtime: &RuntimeClient,
    metrics: &Metrics,
    configured: CgroupDriver,
) -> anyhow::Result<CgroupDriver> {
    let mut tries = 0;
    let reply = loop {
        match runtime.runtime_config().await {
            Ok(reply) => break reply,
            Err(CriError::Unimplemented { .. }) => {
                record_cri_losing_support(metrics);
                tracing::info!(
                    "CRI implementation should be updated to support RuntimeConfig. Falling back to using cgroupDriver from kubelet config."
                );
                return Ok(configured);
            }
            Err(error) => {
                tries += 1;
                anyhow::ensure!(
                    tries < TRIES,
                    "cannot read the runtime's cgroup driver: {}",
                    error_chain(&error)
                );
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
        }
    };
    let Some(linux) = reply.linux else {
        return Ok(configured);
    };
    let driver = match v1::CgroupDriver::try_from(linux.cgroup_driver) {
        Ok(v1::CgroupDriver::Systemd) => CgroupDriver::Systemd,
        Ok(v1::CgroupDriver::Cgroupfs) => CgroupDriver::Cgroupfs,
        Err(_) => {
            anyhow::bail!("runtime returned an unknown cgroup driver {}", linux.cgroup_driver)
        }
    };
    tracing::info!(
        cgroupDriver = driver.as_str(),
        "Using cgroup driver setting received from the CRI runtime"
    );
    Ok(driver)
}

/// Sets upstream's metric of the version from which on the Go kubelet requires a newer runtime.
fn record_cri_losing_support(metrics: &Metrics) {
    let family = [
        "kubelet_cri_losing_support",
        "the Kubernetes version that the currently running CRI implementation will lose support on if not upgraded.",
    ];
    MetricVec::register(metrics, family, &["version"], <Gauge>::default).with(["1.37.0"]).set(1);
}
