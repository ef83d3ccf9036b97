//! The metrics of `/metrics/cadvisor`, with cAdvisor's names and labels, so that dashboards and alerts keep working.
//! Pure.
//!
//! Left out on purpose (`docs/deviations.md`): metrics that need continuous sampling (load averages), or a read of
//! every process (file descriptors, sockets, soft limits).

use super::{
    families::FAMILIES,
    sampler::{CgroupSample, PodSample, Snapshot},
    series::{Entity, Samples},
    text::{Labels, MetricKind, MetricValue, Text},
};
use crate::host::FilesystemUsage;
use std::sync::Arc;

/// Minimum size of a chunk of the response, bytes.
const PIECE: usize = 32 * 1024;

#[derive(Clone, Debug, Default)]
pub(super) struct MachineFacts {
    pub(super) kernel: String,
    pub(super) os: String,
    pub(super) boot_id: String,
    pub(super) machine_id: String,
    pub(super) system_uuid: String,
    pub(super) cores: u64,
    pub(super) physical_cores: Option<u64>,
    pub(super) sockets: Option<u64>,
    pub(super) memory: u64,
    pub(super) swap: u64,
    /// Boot time, nanoseconds since the epoch.
    pub(super) booted: i64,
}

/// The response in chunks: with hundreds of pods it has megabytes, of which only one chunk is in memory.
pub struct Pieces {
    snapshot: Arc<Snapshot>,
    entities: Vec<Entity>,
    family: usize,
    entity: usize,
    headed: bool,
    text: Text,
    last: Option<String>,
}

/// The metrics of a snapshot.
pub(super) fn pieces(
    snapshot: Arc<Snapshot>,
    machine: &MachineFacts,
    sandbox_image: &str,
    filesystems: Vec<(String, FilesystemUsage)>,
) -> Pieces {
    let mut entities = vec![Entity {
        labels: labels("/", "", "", None, ""),
        sample: snapshot.node.clone(),
        started: snapshot.node.created.map(|at| at.max(machine.booted)),
        network: snapshot.network.clone(),
        filesystems,
    }];
    let system = snapshot.system.iter().map(|system| &system.sample);
    let mut above: Vec<&CgroupSample> = snapshot.above.iter().chain(system).collect();
    // The root cgroup is the first entity already.
    above.retain(|sample| sample.path != snapshot.node.path);
    above.sort_by(|a, b| a.path.cmp(&b.path));
    above.dedup_by(|a, b| a.path == b.path);
    entities.extend(above.into_iter().map(|sample| Entity {
        labels: labels(&sample.path, "", "", None, ""),
        sample: sample.clone(),
        started: sample.created,
        ..Entity::default()
    }));
    for pod in &snapshot.pods {
        of_pod(pod, sandbox_image, &mut entities);
    }
    Pieces {
        last: Some(ending(machine)),
        snapshot,
        entities,
        family: 0,
        entity: 0,
        headed: false,
        text: Text::default(),
    }
}

fn of_pod(pod: &PodSample, sandbox_image: &str, entities: &mut Vec<Entity>) {
    let whose = Some((&*pod.pod.name, &*pod.pod.namespace));
    if let Some(whole) = &pod.whole {
        entities.push(Entity {
            labels: labels(&whole.path, "", "", whose, ""),
            sample: whole.clone(),
            started: whole.created,
            ..Entity::default()
        });
    }
    if let (Some(sandbox), Some(id)) = (&pod.sandbox, &pod.pod.sandbox) {
        entities.push(Entity {
            labels: labels(&sandbox.path, id, sandbox_image, whose, ""),
            sample: sandbox.clone(),
            started: sandbox.created,
            network: pod.network.clone().unwrap_or_default(),
            ..Entity::default()
        });
    }
    for (container, sample) in pod.pod.containers.iter().zip(&pod.containers) {
        let Some(sample) = sample else { continue };
        entities.push(Entity {
            labels: labels(
                &sample.path,
                &container.id,
                &container.image,
                whose,
                &container.name,
            ),
            sample: sample.clone(),
            started: sample.created,
            ..Entity::default()
        });
    }
}

/// The labels of an entity. Unknown labels are present with an empty value.
fn labels(id: &str, name: &str, image: &str, pod: Option<(&str, &str)>, container: &str) -> String {
    let (pod, namespace) = pod.unwrap_or_default();
    Labels::default()
        .and("container", container)
        .and("id", id)
        .and("image", image)
        .and("name", name)
        .and("namespace", namespace)
        .and("pod", pod)
        .finish()
}

impl Iterator for Pieces {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        self.text = Text::with_capacity(PIECE + PIECE / 4);
        while let Some(family) = FAMILIES.get(self.family) {
            if self.text.len() >= PIECE {
                return Some(self.text.take());
            }
            let Some(entity) = self.entities.get(self.entity) else {
                (self.family, self.entity, self.headed) = (self.family + 1, 0, false);
                continue;
            };
            let mut samples = Samples {
                text: &mut self.text,
                family,
                headed: &mut self.headed,
                labels: &entity.labels,
                at: entity.sample.at,
                snapshot: &self.snapshot,
            };
            (family.write)(entity, &mut samples);
            self.entity += 1;
        }
        let last = self.last.take()?;
        Some(self.text.take() + &last)
    }
}

/// The metrics of the machine (`machine_*`), at the end.
fn ending(machine: &MachineFacts) -> String {
    let mut text = Text::default();
    let one = |text: &mut Text, name: &str, help: &str, labels: &str, value: u64| {
        text.head(name, help, MetricKind::Gauge);
        text.sample(name, labels, &[], MetricValue::Whole(value), None);
    };
    let version = Labels::default()
        .and("cadvisorRevision", "")
        .and("cadvisorVersion", "")
        .and("dockerVersion", "")
        .and("kernelVersion", &machine.kernel)
        .and("osVersion", &machine.os)
        .finish();
    one(
        &mut text,
        "cadvisor_version_info",
        "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.",
        &version,
        1,
    );
    one(
        &mut text,
        "container_scrape_error",
        "1 if there was an error while getting container metrics, 0 otherwise",
        "",
        0,
    );
    let whose = Labels::default()
        .and("boot_id", &machine.boot_id)
        .and("machine_id", &machine.machine_id)
        .and("system_uuid", &machine.system_uuid)
        .finish();
    for (name, help, value) in [
        (
            "machine_cpu_cores",
            "Number of logical CPU cores.",
            Some(machine.cores),
        ),
        (
            "machine_cpu_physical_cores",
            "Number of physical CPU cores.",
            machine.physical_cores,
        ),
        (
            "machine_cpu_sockets",
            "Number of CPU sockets.",
            machine.sockets,
        ),
        (
            "machine_memory_bytes",
            "Amount of memory installed on the machine.",
            Some(machine.memory),
        ),
        (
            "machine_swap_bytes",
            "Amount of swap memory available on the machine.",
            Some(machine.swap),
        ),
    ] {
        if let Some(value) = value {
            one(&mut text, name, help, &whose, value);
        }
    }
    one(
        &mut text,
        "machine_scrape_error",
        "1 if there was an error while getting machine metrics, 0 otherwise.",
        "",
        0,
    );
    text.take()
}

#[cfg(test)]
mod tests;
