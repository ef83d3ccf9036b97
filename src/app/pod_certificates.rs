//! Pod certificates: their source, and events about their problems.

use crate::apiserver::ApiServer;
use crate::apiserver::pod_certificate::{CertificateNotice, PodCertificates};
use crate::base::metrics::Metrics;
use crate::base::{DirtySet, Tasks};
use crate::config::{FeatureGate, KubeletConfig};
use crate::model::PodUid;
use crate::state::Stores;
use crate::state::events::{EventRecorder, ObjectRef};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Problems with pods' certificates, to be reported as events.
pub(super) type CertificateNotices = mpsc::Receiver<CertificateNotice>;

/// Builds the source of pod certificates; it issues none without an API server or with the feature gate off. It marks
/// the pods whose certificates changed in `pods_to_sync`.
pub(super) fn open(
    config: &KubeletConfig,
    api: Option<&ApiServer>,
    pods_to_sync: Arc<DirtySet<PodUid>>,
    stores: &Stores,
    metrics: &Metrics,
) -> (PodCertificates, Option<CertificateNotices>) {
    let is_on = config.is_on(FeatureGate::PodCertificateRequest);
    let Some(api) = api.filter(|_| is_on) else {
        return (PodCertificates::default(), None);
    };
    let node = stores.node_object.clone();
    let (certificates, notices) = PodCertificates::new(api.clone(), pods_to_sync, node);
    (certificates.measured(metrics), Some(notices))
}

/// Starts the task that emits the notices as events.
pub(super) fn start(notices: CertificateNotices, events: EventRecorder, tasks: &mut Tasks) {
    let recording = record(notices, events, tasks.shutdown());
    tasks.spawn("pod_certificates", recording);
}

async fn record(
    mut notices: mpsc::Receiver<CertificateNotice>,
    events: EventRecorder,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    while let Some(Some(notice)) = shutdown.run_until_cancelled(notices.recv()).await {
        let pod = ObjectRef {
            kind: "Pod",
            namespace: notice.namespace,
            name: notice.pod_name,
            uid: notice.pod_uid,
            field_path: String::new(),
        };
        events.warning(&pod, notice.reason, notice.message);
    }
    Ok(())
}
