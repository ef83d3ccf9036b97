//! Deletes the ResourceSlices of unusable drivers, so that the scheduler does not allocate their devices.

use crate::apiserver::{ApiError, ApiServer};
use crate::base::error_chain;
use k8s_openapi::api::resource::v1::ResourceSlice;
use std::time::Duration;
use tokio::time::sleep;

/// The delay before a retry, doubling from `FIRST_DELAY` to the maximum.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(5 * 60);

/// Deletes the ResourceSlices of a driver, or of all drivers, on a node; retries until it succeeds.
pub(super) async fn wipe(api: &ApiServer, node: &str, driver: Option<&str>) {
    let mut selector = format!("spec.nodeName={node}");
    if let Some(driver) = driver {
        selector.push_str(",spec.driver=");
        selector.push_str(driver);
    }
    let mut delay = FIRST_DELAY;
    loop {
        match api.delete_collection::<ResourceSlice>(&selector).await {
            Ok(()) => {
                tracing::debug!(fieldSelector = selector, "Deleted ResourceSlices");
                return;
            }
            // The API server does not serve ResourceSlices.
            Err(error) if error.is_not_found() => return,
            Err(error) => failed(&selector, &error),
        }
        sleep(delay.mul_f64(1.0 + 0.2 * fastrand::f64())).await;
        delay = (delay * 2).min(MAX_DELAY);
    }
}

fn failed(selector: &str, error: &ApiError) {
    tracing::debug!(
        fieldSelector = selector,
        err = error_chain(error),
        "Deleting ResourceSlice failed, retrying"
    );
}
