mod driver;
mod properties;
mod state;
mod syncer;

use crate::model::{Pod, PodSource, PodStatus, SandboxStatus, fixture, keys};
use k8s_openapi::api::core::v1::PodStatus as ApiPodStatus;
use std::sync::Arc;

/// A pod of an API server with a grace of 30 s.
fn api_pod(uid: &str, name: &str) -> Pod {
    let spec = serde_json::json!({"terminationGracePeriodSeconds": 30});
    fixture::pod(&format!("default/{name}/{uid}"), spec)
}

fn static_pod(uid: &str, name: &str) -> Pod {
    fixture::annotated(api_pod(uid, name), [(keys::CONFIG_SOURCE, "file")])
}

fn in_phase(mut pod: Pod, phase: &str) -> Pod {
    pod.status = Some(ApiPodStatus { phase: Some(phase.into()), ..ApiPodStatus::default() });
    pod
}

/// Marked for deletion within so many seconds.
fn deleted(mut pod: Pod, grace: Option<i64>) -> Pod {
    let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    pod.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
    pod.metadata.deletion_grace_period_seconds = grace;
    pod
}

/// What the runtime shows of a static pod.
fn in_runtime(uid: &str, name: &str, active: bool) -> Arc<PodStatus> {
    Arc::new(PodStatus {
        uid: uid.into(),
        name: name.into(),
        namespace: "default".into(),
        sandboxes: vec![SandboxStatus {
            ready: active,
            source: Some(PodSource::File),
            ..SandboxStatus::default()
        }],
        ..PodStatus::default()
    })
}
