use super::fixture::{Log, take, text};
use crate::model::{ContainerId, ContainerState, ContainerStatus, PodUid};
use crate::runtime::logs::{ContainerLogs, LogError, LogOptions};
use crate::state::pod_cache::{self, InspectedItem, ItemId, PodCacheWriter, PodRef};
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::json;
use std::sync::Arc;

/// A pod `web` with a container `main`, whose instance of attempt `n` has the log `n.log`.
struct Bed {
    log: Log,
    pods: PodCacheWriter,
    logs: ContainerLogs,
}

impl Bed {
    fn new() -> Self {
        let log = Log::new();
        let (pods, cache) = pod_cache::pod_cache();
        let directory = log.dir().to_owned();
        let path = Arc::new(move |pod_ref: &PodRef, container: &ContainerStatus| {
            assert_eq!((&*pod_ref.name, &*container.name), ("web", "main"));
            Some(directory.join(format!("{}.log", container.restart_count)))
        });
        let logs = ContainerLogs::new(cache, path);
        Self { log, pods, logs }
    }

    fn instance(&self, id: &str, restart_count: u32, state: ContainerState) {
        let status = ContainerStatus {
            id: ContainerId::from(id),
            name: "main".into(),
            restart_count,
            state,
            ..ContainerStatus::default()
        };
        self.apply(id, InspectedItem::Container(status));
    }

    fn apply(&self, id: &str, read: InspectedItem) {
        let pod_ref = PodRef { uid: "u".into(), name: "web".into(), namespace: "n".into() };
        let item = ItemId::Container(ContainerId::from(id));
        self.pods.apply(&pod_ref, &item, self.pods.next_seq(), read);
    }

    async fn read(
        &self,
        previous: bool,
        follow: bool,
    ) -> Result<crate::runtime::logs::LogStream, LogError> {
        let status: PodStatus = serde_json::from_value(json!({"containerStatuses": [{
            "name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 1,
            "containerID": "containerd://new", "state": {"running": {}},
            "lastState": {"terminated": {"exitCode": 1, "containerID": "containerd://old"}},
        }]}))
        .unwrap();
        let options = LogOptions { follow, ..LogOptions::default() };
        let pod = (&PodUid::from("u"), "web");
        self.logs.read(pod, &status, "main", previous, options).await
    }
}

#[tokio::test]
async fn the_logs_of_this_and_of_the_previous_instance_are_read() {
    let mut bed = Bed::new();
    bed.log.lines(3);
    bed.instance("new", 0, ContainerState::Running);
    bed.instance("old", 7, ContainerState::Exited);
    let old = "2026-01-02T03:04:05Z stdout F before\n";
    std::fs::write(bed.log.path.with_file_name("7.log"), old).unwrap();
    let current = bed.read(false, false).await.unwrap();
    assert_eq!(text(current).await, bed.log.expected);
    let previous = bed.read(true, true).await.unwrap();
    assert_eq!(text(previous).await, "before\n", "it has ended, so following does");
}

#[tokio::test]
async fn following_ends_when_the_picture_shows_the_end() {
    for gone in [false, true] {
        let mut bed = Bed::new();
        bed.instance("new", 0, ContainerState::Running);
        let mut stream = bed.read(false, true).await.unwrap();
        bed.log.lines(1);
        let first = take(&mut stream, bed.log.expected.len()).await;
        bed.log.lines(1);
        if gone {
            bed.apply("new", InspectedItem::Gone)
        } else {
            bed.instance("new", 0, ContainerState::Exited)
        }
        assert_eq!(first + &text(stream).await, bed.log.expected);
    }
}

#[tokio::test]
async fn an_instance_that_is_gone_has_no_log_any_more() {
    let bed = Bed::new();
    let error = bed.read(false, false).await.err().unwrap();
    assert_eq!(error.to_string(), "unable to retrieve container logs for new");
}
