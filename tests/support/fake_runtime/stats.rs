//! Resource usage: small made-up numbers that grow with time.

use kubelet::cri::v1;

use super::views;
use super::world::{Container, World};

fn value(value: u64) -> Option<v1::UInt64Value> {
    Some(v1::UInt64Value { value })
}

/// One hundredth of a core and eight megabytes since the start.
pub fn of_container(container: &Container, now: i64) -> v1::ContainerStats {
    let age = now.saturating_sub(container.started_at).max(0).unsigned_abs();
    v1::ContainerStats {
        attributes: Some(v1::ContainerAttributes {
            id: container.id.clone(),
            metadata: container.config.metadata.clone(),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
        }),
        cpu: Some(v1::CpuUsage {
            timestamp: now,
            usage_core_nano_seconds: value(age / 100),
            usage_nano_cores: value(10_000_000),
            psi: None,
        }),
        memory: Some(v1::MemoryUsage {
            timestamp: now,
            working_set_bytes: value(8 << 20),
            usage_bytes: value(9 << 20),
            rss_bytes: value(7 << 20),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The matching containers that run.
pub fn list(
    world: &World,
    filter: Option<v1::ContainerStatsFilter>,
    now: i64,
) -> Vec<v1::ContainerStats> {
    let filter = filter.unwrap_or_default();
    let running = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning.into() };
    let filter = v1::ContainerFilter {
        id: filter.id,
        pod_sandbox_id: filter.pod_sandbox_id,
        label_selector: filter.label_selector,
        state: Some(running),
    };
    let containers = views::select_containers(world, Some(&filter));
    containers.into_iter().map(|container| of_container(container, now)).collect()
}
