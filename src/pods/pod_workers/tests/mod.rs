mod driver;
mod properties;
mod state;
mod syncer;

use crate::model::{Pod, PodSource, PodStatus, SandboxStatus, keys};
use k8s_openapi::api::core::v1::{PodSpec, PodStatus as ApiPodStatus};
use std::sync::Arc;

/// A pod of an API server with a grace of 30 s.
fn api_pod(uid: &str, name: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.into());
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("default".into());
    pod.spec = Some(PodSpec { termination_grace_period_seconds: Some(30), ..PodSpec::default() });
    pod
}

fn static_pod(uid: &str, name: &str) -> Pod {
    let mut pod = api_pod(uid, name);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::CONFIG_SOURCE.into(), "file".into());
    pod
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
