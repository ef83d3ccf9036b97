//! The metrics of `/metrics/cadvisor`, with cAdvisor's names and labels, so that dashboards and alerts keep working.
//! Pure.
//!
//! Left out on purpose (`docs/deviations.md`): metrics that need continuous sampling (load averages), or a read of
//! every process (file descriptors, sockets, soft limits).

use super::families::FAMILIES;
use super::sampler::{CgroupSample, PodSample, Snapshot};
use super::series::{MetricSubject, Samples};
use super::text::{LabelText, MetricKind, MetricValue, Text};
use crate::host::{FilesystemUsage, HostMachine, MachineIdentity};
use std::sync::Arc;

/// Minimum size of a chunk of the response, bytes.
const MIN_CHUNK: usize = 32 * 1024;

#[derive(Clone, Debug, Default)]
pub(super) struct MachineFacts {
    pub(super) host: HostMachine,
    pub(super) identity: MachineIdentity,
    pub(super) physical_cores: Option<u64>,
    pub(super) sockets: Option<u64>,
    /// Boot time, nanoseconds since the epoch.
    pub(super) booted: i64,
}

/// The response in chunks: with hundreds of pods it has megabytes, of which only one chunk is in memory.
pub struct MetricsChunks {
    snapshot: Arc<Snapshot>,
    entities: Vec<MetricSubject>,
    family: usize,
    entity: usize,
    header_written: bool,
    text: Text,
    last: Option<String>,
}

/// The metrics of a snapshot.
pub(super) fn chunks(
    snapshot: Arc<Snapshot>,
    machine: &MachineFacts,
    sandbox_image: &str,
    filesystems: Vec<(String, FilesystemUsage)>,
) -> MetricsChunks {
    let mut entities = vec![MetricSubject {
        labels: labels("/", "", "", None, ""),
        sample: snapshot.node.clone(),
        started: snapshot.node.created.map(|at| at.max(machine.booted)),
        network: snapshot.network.clone(),
        filesystems,
    }];
    let system = snapshot.system.iter().map(|system| &system.sample);
    let mut cgroups: Vec<&CgroupSample> = snapshot.ancestors.iter().chain(system).collect();
    // The root cgroup is the first entity already.
    cgroups.retain(|sample| sample.path != snapshot.node.path);
    cgroups.sort_by(|a, b| a.path.cmp(&b.path));
    cgroups.dedup_by(|a, b| a.path == b.path);
    entities.extend(cgroups.into_iter().map(|sample| MetricSubject {
        labels: labels(&sample.path, "", "", None, ""),
        sample: sample.clone(),
        started: sample.created,
        ..MetricSubject::default()
    }));
    for pod in &snapshot.pods {
        of_pod(pod, sandbox_image, &mut entities);
    }
    MetricsChunks {
        last: Some(machine_metrics(machine)),
        snapshot,
        entities,
        family: 0,
        entity: 0,
        header_written: false,
        text: Text::default(),
    }
}

fn of_pod(pod: &PodSample, sandbox_image: &str, entities: &mut Vec<MetricSubject>) {
    let pod_labels = Some((&*pod.pod.name, &*pod.pod.namespace));
    if let Some(pod_cgroup) = &pod.pod_cgroup {
        entities.push(MetricSubject {
            labels: labels(&pod_cgroup.path, "", "", pod_labels, ""),
            sample: pod_cgroup.clone(),
            started: pod_cgroup.created,
            ..MetricSubject::default()
        });
    }
    if let (Some(sandbox), Some(id)) = (&pod.sandbox, &pod.pod.sandbox) {
        entities.push(MetricSubject {
            labels: labels(&sandbox.path, id, sandbox_image, pod_labels, ""),
            sample: sandbox.clone(),
            started: sandbox.created,
            network: pod.network.clone().unwrap_or_default(),
            ..MetricSubject::default()
        });
    }
    for (container, sample) in pod.pod.containers.iter().zip(&pod.containers) {
        let Some(sample) = sample else { continue };
        entities.push(MetricSubject {
            labels: labels(
                &sample.path,
                &container.id,
                &container.image,
                pod_labels,
                &container.name,
            ),
            sample: sample.clone(),
            started: sample.created,
            ..MetricSubject::default()
        });
    }
}

/// The labels of an entity. Unknown labels are present with an empty value.
fn labels(id: &str, name: &str, image: &str, pod: Option<(&str, &str)>, container: &str) -> String {
    let (pod, namespace) = pod.unwrap_or_default();
    LabelText::default()
        .and("container", container)
        .and("id", id)
        .and("image", image)
        .and("name", name)
        .and("namespace", namespace)
        .and("pod", pod)
        .finish()
}

impl Iterator for MetricsChunks {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        self.text = Text::with_capacity(MIN_CHUNK + MIN_CHUNK / 4);
        while let Some(family) = FAMILIES.get(self.family) {
            if self.text.len() >= MIN_CHUNK {
                return Some(self.text.take());
            }
            let Some(entity) = self.entities.get(self.entity) else {
                (self.family, self.entity, self.header_written) = (self.family + 1, 0, false);
                continue;
            };
            let mut samples = Samples {
                text: &mut self.text,
                family,
                header_written: &mut self.header_written,
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
fn machine_metrics(machine: &MachineFacts) -> String {
    let (host, identity) = (&machine.host, &machine.identity);
    let mut text = Text::default();
    let one = |text: &mut Text, name: &str, help: &str, labels: &str, value: u64| {
        text.head(name, help, MetricKind::Gauge);
        text.sample(name, labels, &[], MetricValue::Whole(value), None);
    };
    let version = LabelText::default()
        .and("cadvisorRevision", "")
        .and("cadvisorVersion", "")
        .and("dockerVersion", "")
        .and("kernelVersion", &host.kernel_release)
        .and("osVersion", &identity.os_image)
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
    let machine_labels = LabelText::default()
        .and("boot_id", &host.boot_id)
        .and("machine_id", &identity.machine_id)
        .and("system_uuid", &identity.system_uuid)
        .finish();
    for (name, help, value) in [
        ("machine_cpu_cores", "Number of logical CPU cores.", Some(host.cpus.into())),
        ("machine_cpu_physical_cores", "Number of physical CPU cores.", machine.physical_cores),
        ("machine_cpu_sockets", "Number of CPU sockets.", machine.sockets),
        (
            "machine_memory_bytes",
            "Amount of memory installed on the machine.",
            Some(host.memory_bytes),
        ),
        (
            "machine_swap_bytes",
            "Amount of swap memory available on the machine.",
            Some(host.swap_bytes),
        ),
    ] {
        if let Some(value) = value {
            one(&mut text, name, help, &machine_labels, value);
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
