//! Spans of the workers' turns, named and described as upstream does.

use crate::{
    base::chain,
    base::otel::{Kind, Parent, Span, Tracer, traced as run},
    model::{GraceDeadline, Pod, PodExt, PodStatus},
    pods::pod_sync::syncer::{PodSyncer, SyncTurn, TerminationReason, UpdateKind},
};
use futures::future::BoxFuture;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The syncer, with turns that are spans where there are any, and as it is otherwise.
pub fn traced(syncer: Arc<dyn PodSyncer>, tracer: &Tracer) -> Arc<dyn PodSyncer> {
    let tracer = tracer.clone();
    match tracer.is_on() {
        true => Arc::new(Traced { syncer, tracer }),
        false => syncer,
    }
}

struct Traced {
    syncer: Arc<dyn PodSyncer>,
    tracer: Tracer,
}

/// What is said of a pod.
#[derive(Clone, Copy)]
struct Subject<'a> {
    uid: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl Traced {
    fn span(&self, name: &'static str, of: Subject<'_>, kind: Option<UpdateKind>) -> Option<Span> {
        let tracer = &self.tracer;
        let mut span = tracer.start(Kind::Internal, Parent::Current, || name.into())?;
        span.note(|| {
            let full = match of.namespace {
                "" => of.name.to_owned(),
                namespace => format!("{namespace}/{}", of.name),
            };
            let kind = kind.map(|kind| ("k8s.pod.update_type", kind.as_str().into()));
            let always = [
                ("k8s.pod.uid", of.uid.to_owned().into()),
                ("k8s.pod", full.into()),
                ("k8s.pod.name", of.name.to_owned().into()),
                ("k8s.namespace.name", of.namespace.to_owned().into()),
            ];
            always.into_iter().chain(kind)
        });
        Some(span)
    }

    fn of_pod(&self, name: &'static str, pod: &Pod, kind: Option<UpdateKind>) -> Option<Span> {
        let uid = pod.uid();
        let of = Subject {
            uid: &uid.to_string(),
            namespace: pod.namespace(),
            name: pod.name(),
        };
        self.span(name, of, kind)
    }
}

fn failure(ended: &anyhow::Result<()>) -> Option<String> {
    ended.as_ref().err().map(|error| chain(error.as_ref()))
}

impl PodSyncer for Traced {
    fn sync_pod(
        &self,
        pod: Arc<Pod>,
        kind: UpdateKind,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, SyncTurn> {
        let span = self.of_pod("syncPod", &pod, Some(kind));
        let turn = self.syncer.sync_pod(pod, kind, cancel);
        let failure = |turn: &SyncTurn| turn.result.as_ref().err().map(|e| chain(e.as_ref()));
        Box::pin(run(span, turn, failure))
    }

    fn sync_terminating_pod(
        &self,
        pod: Arc<Pod>,
        grace: watch::Receiver<GraceDeadline>,
        reason: TerminationReason,
    ) -> BoxFuture<'_, anyhow::Result<()>> {
        let span = self.of_pod("syncTerminatingPod", &pod, None);
        let turn = self.syncer.sync_terminating_pod(pod, grace, reason);
        Box::pin(run(span, turn, failure))
    }

    fn sync_terminating_runtime_pod(
        &self,
        running: Arc<PodStatus>,
        grace: watch::Receiver<GraceDeadline>,
    ) -> BoxFuture<'_, anyhow::Result<()>> {
        let of = Subject {
            uid: &running.uid.to_string(),
            namespace: &running.namespace,
            name: &running.name,
        };
        let span = self.span("syncTerminatingRuntimePod", of, None);
        let turn = self.syncer.sync_terminating_runtime_pod(running, grace);
        Box::pin(run(span, turn, failure))
    }

    fn sync_terminated_pod(&self, pod: Arc<Pod>) -> BoxFuture<'_, anyhow::Result<()>> {
        let span = self.of_pod("syncTerminatedPod", &pod, None);
        let turn = self.syncer.sync_terminated_pod(pod);
        Box::pin(run(span, turn, failure))
    }
}
