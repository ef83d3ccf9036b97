use super::*;
use crate::base::clock;
use crate::base::metrics::Metrics;
use crate::cri::{CriConnection, CriMetrics, RuntimeEndpoint};
use crate::model::{ContainerState, ContainerStatus};
use crate::state::pod_cache::{InspectedItem, ItemId, PodCacheWriter, PodRef, pod_cache};

/// Statistics of what this cache has, with the runtime at this socket.
fn stats(socket: &std::path::Path, cache: PodCache) -> Stats {
    let endpoint = RuntimeEndpoint::parse(&format!("unix://{}", socket.display())).unwrap();
    let metrics = CriMetrics::register(&Metrics::new());
    let connection = CriConnection::new(endpoint, Duration::from_secs(120), &metrics);
    let deps = StatsDeps {
        runtime: RuntimeClient::new(connection.clone()),
        images: ImageClient::new(connection),
        cache,
        volumes: Arc::new(|_| Vec::new()),
        measure_volumes: Arc::new(|| Box::pin(async {})),
        hosts_file: Arc::new(|_| None),
        termination_logs: Arc::new(|_, _| None),
        node_name: "node".into(),
        root_dir: "/nonexistent".into(),
        pod_logs_dir: "/nonexistent".into(),
        volume_period: None,
        started_at: 0,
        system: SystemCgroups::default(),
    };
    Stats::new(deps, &HostMachine::read().unwrap())
}

/// A pod whose container, in a virtual machine for example, has no cgroup here.
fn runs_without_cgroups(pods: &PodCacheWriter, uid: &str) {
    let pod_ref = PodRef { uid: uid.into(), name: uid.into(), namespace: "default".into() };
    let status = ContainerStatus {
        id: format!("no-such-cgroup-of-{uid}").as_str().into(),
        name: "main".into(),
        state: ContainerState::Running,
        ..ContainerStatus::default()
    };
    let item = ItemId::Container(status.id.clone());
    pods.apply(&pod_ref, &item, pods.next_seq(), InspectedItem::Container(status));
}

#[tokio::test(start_paused = true)]
async fn usage_for_evictions_is_read_while_the_runtime_accepts_calls_and_answers_none() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("cri.sock");
    let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let (writer, cache) = pod_cache();
    runs_without_cgroups(&writer, "vm");
    let stats = stats(&socket, cache);
    let begun = clock::instant();
    let pods = stats.read_pod_usage().await.unwrap();
    assert!(clock::since(begun) < Duration::from_millis(500), "{begun:?}");
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0].pod_ref.uid, "vm");
    assert_eq!(pods[0].memory, None, "nothing says how much");
}
