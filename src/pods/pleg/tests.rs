use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Code;

use super::{Config, PlegContext, PlegMetrics, RelistTask, RelistTrigger};
use crate::base::clock;
use crate::base::metrics::Metrics;
use crate::cri::events::RuntimeEventSource;
use crate::cri::test_server::{Reply, TestRuntime, until};
use crate::cri::v1::{ListContainersResponse, ListPodSandboxResponse};
use crate::state::pod_cache;

/// A task whose periods are longer than any test.
fn relist(runtime: &TestRuntime) -> (RelistTrigger, DropGuard) {
    let (cache, reader) = pod_cache::pod_cache();
    let metrics = PlegMetrics::new(&Metrics::new(), &reader);
    let long = Duration::from_secs(60);
    let config =
        Config { relist_period: long, relist_period_with_events: long, status_period: long };
    let context =
        PlegContext { runtime: runtime.client(long), cache: Arc::new(cache), config, metrics };
    let (task, trigger) = RelistTask::new(context, Arc::default());
    let shutdown = CancellationToken::new();
    tokio::spawn(task.run(shutdown.clone()));
    (trigger, shutdown.drop_guard())
}

fn answering() -> TestRuntime {
    let runtime = TestRuntime::started();
    let sandboxes = ListPodSandboxResponse::default();
    let containers = ListContainersResponse::default();
    runtime
        .script
        .on("ListPodSandbox", move |_| Reply::message(&sandboxes))
        .on("ListContainers", move |_| Reply::message(&containers));
    runtime
}

#[tokio::test]
async fn a_reconnected_stream_causes_a_list_at_once_although_lists_failed() {
    let runtime = TestRuntime::started();
    let lists = || runtime.script.calls("ListPodSandbox");
    runtime.script.on("ListPodSandbox", |_| Reply::Fail(Code::Unavailable, "away"));
    let (trigger, _guard) = relist(&runtime);
    // The waits between them: 0.4, 0.8, 1.6 and 3.2 seconds; the next is five.
    until("some lists have failed", || lists() == 5).await;
    let begin = clock::instant();
    trigger.reconnected();
    trigger.set_source(RuntimeEventSource::Cri);
    until("another list", || lists() == 6).await;
    assert!(clock::since(begin) < Duration::from_secs(4));
}

#[tokio::test]
async fn a_new_mode_and_its_relist_are_one_list() {
    for _ in 0..20 {
        let runtime = answering();
        let lists = || runtime.script.calls("ListContainers");
        let (trigger, _guard) = relist(&runtime);
        until("the first list", || lists() == 1).await;
        trigger.reconnected();
        trigger.set_source(RuntimeEventSource::Cri);
        until("the relist", || lists() == 2).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(lists(), 2);
    }
}
