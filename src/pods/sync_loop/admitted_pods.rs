//! The pods that use resources of the node, beside which another pod is admitted.
//!
//! What counts is what runs: a pod whose source does not have it any more uses its ports, CPU and memory until its
//! containers have stopped, and one that an earlier kubelet left in the runtime does as well, although its spec is lost.

use super::SyncLoop;
use super::admission::AdmittedPods;
use super::admit::may_be_running;
use crate::model::{Pod, PodExt, PodStatus, keys};
use crate::pods::pod_workers::PodOfWorker;
use crate::resources::allocation::{PodResourceInfo, with_higher_requests};
use k8s_openapi::api::core::v1::{Container, PodSpec};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

impl SyncLoop {
    /// The pods other than `pod` that use resources of the node, and those that are admitted before it.
    pub(super) fn admitted_except(&self, pod: &Pod) -> AdmittedPods {
        let mut others = AdmittedPods::default();
        let mut counted = HashSet::from([pod.uid()]);
        for worker in self.workers.pods() {
            if counted.insert(worker.uid.clone()) {
                self.count_worker(pod, &worker, &mut others);
            }
        }
        let pod_manager = self.pod_manager.reader();
        for status in self.cache.pods() {
            // A desired pod that has no worker is counted when it is admitted.
            let is_counted = counted.contains(&status.uid) || self.removals.contains(&status.uid);
            if is_counted || pod_manager.contains(&status.uid) {
                continue;
            }
            if may_be_running(self.cache.try_settled(&status.uid).as_deref()) {
                let found = self.pod_of_runtime(&status);
                others.unclaimed.extend(unless_successor(pod, found));
            }
        }
        for uid in self.pending_admissions.before(&pod.uid()) {
            let waiting = pod_manager.get(&uid);
            let waiting = waiting.and_then(|waiting| unless_successor(pod, waiting));
            others.waiting.extend(waiting);
        }
        others
    }

    /// Counts the pod of a worker.
    fn count_worker(&self, pod: &Pod, worker: &PodOfWorker, others: &mut AdmittedPods) {
        let uid = &worker.uid;
        let desired = self.pod_manager.reader().get(uid);
        // If the desired pod is another one that has the UID of a pod that is being stopped, it has no worker yet.
        let is_worker_of = |_: &Arc<Pod>| worker.pod.is_some() && !worker.restart_requested;
        let Some(desired) = desired.filter(is_worker_of) else {
            if worker.could_have_running_containers {
                let leaving = match &worker.pod {
                    Some(pod) => self.with_actuated_requests(pod.clone()),
                    None => self.pod_of_runtime(&self.cache.latest(uid)),
                };
                others.terminating.extend(unless_successor(pod, leaving));
            }
            return;
        };
        if self.pod_sync.has_terminal_status(uid) && !worker.could_have_running_containers {
            return;
        }
        let is_terminating = self.is_terminating(&desired);
        let used = self.with_actuated_requests(desired);
        if is_terminating {
            others.terminating.extend(unless_successor(pod, used));
        } else {
            others.staying.push(used);
        }
    }

    /// The pod with the higher of its allocated and its actuated requests, because containers of a resize in progress
    /// still use the latter.
    pub(super) fn with_actuated_requests(&self, pod: Arc<Pod>) -> Arc<Pod> {
        let runs = |name: &str| self.cache.latest(&pod.uid()).runs(name);
        match self.allocations().actuated_pod(&pod, runs) {
            Some(actuated) => Arc::new(with_higher_requests(&pod, &actuated)),
            None => pod,
        }
    }

    fn pod_of_runtime(&self, status: &PodStatus) -> Arc<Pod> {
        let amounts = self.allocations().used(&status.uid);
        let is_settled = self.cache.try_settled(&status.uid).is_some();
        Arc::new(pod_of_runtime(status, is_settled, amounts.as_deref()))
    }
}

/// `other`, unless `pod` is its successor: static pods of one name never run together (the start gate sees to that), so
/// the later one needs nothing that the earlier one does not give back before.
fn unless_successor(pod: &Pod, other: Arc<Pod>) -> Option<Arc<Pod>> {
    let is_successor = pod.is_static() && other.is_static() && pod.full_name() == other.full_name();
    (!is_successor).then_some(other)
}

/// A pod of which only the runtime status is known, as far as it matters for others: what its running containers have by
/// the recorded amounts, and their ports on the host. Amounts that were not recorded count as zero. Of a pod that is not
/// settled, containers that were not read yet count as running.
fn pod_of_runtime(status: &PodStatus, is_settled: bool, amounts: Option<&PodResourceInfo>) -> Pod {
    let mut containers: BTreeMap<&str, Container> = BTreeMap::new();
    for instance in status.maybe_running_containers() {
        let container = containers.entry(&instance.name).or_default();
        container.ports = instance.host_ports.as_deref().map(<[_]>::to_vec);
    }
    for (name, amounts) in amounts.iter().flat_map(|amounts| &amounts.containers) {
        let was_read = status.newest(name).is_some();
        if let Some(container) = containers.get_mut(name.as_str()) {
            container.resources = Some(amounts.clone());
        } else if !is_settled && !was_read {
            containers.entry(name).or_default().resources = Some(amounts.clone());
        }
    }
    let containers = containers
        .into_iter()
        .map(|(name, container)| Container { name: name.to_owned(), ..container });
    let mut pod = Pod::default();
    pod.metadata.name = Some(status.name.to_string());
    pod.metadata.namespace = Some(status.namespace.to_string());
    pod.metadata.uid = Some(status.uid.to_string());
    let source = (keys::CONFIG_SOURCE.to_owned(), status.source().as_str().to_owned());
    pod.metadata.annotations = Some([source].into());
    pod.spec = Some(PodSpec {
        containers: containers.collect(),
        resources: amounts.and_then(|amounts| amounts.pod.clone()),
        ..PodSpec::default()
    });
    pod
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ContainerState, ContainerStatus, PodSource, SandboxStatus};
    use crate::resources::requests;
    use k8s_openapi::api::core::v1::ContainerPort;
    use serde_json::json;

    fn instance(name: &str, state: ContainerState, port: Option<i32>) -> ContainerStatus {
        let port = port.map(|port| ContainerPort {
            container_port: port,
            host_port: Some(port),
            ..ContainerPort::default()
        });
        ContainerStatus {
            name: name.into(),
            state,
            host_ports: port.map(|port| Arc::from([port])),
            ..ContainerStatus::default()
        }
    }

    #[test]
    fn a_pod_without_a_spec_counts_with_what_its_running_containers_have() {
        use ContainerState::{Exited, Running};
        let status = PodStatus {
            uid: "u".into(),
            name: "web-node1".into(),
            namespace: "shop".into(),
            sandboxes: vec![SandboxStatus {
                source: Some(PodSource::File),
                ..SandboxStatus::default()
            }],
            containers: vec![
                instance("main", Running, Some(80)),
                instance("main", Exited, Some(80)),
                instance("ended", Exited, Some(81)),
            ],
        };
        let sized = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let spec = json!({"spec": {"containers": [
            {"name": "main", "resources": sized("1")},
            {"name": "ended", "resources": sized("2")},
            {"name": "unread", "resources": sized("4")},
        ]}});
        let spec: Pod = serde_json::from_value(spec).unwrap();
        let amounts = PodResourceInfo::of(&spec);
        let cpu = |is_settled, amounts: Option<&PodResourceInfo>| {
            let pod = pod_of_runtime(&status, is_settled, amounts);
            let total = requests::of_pod_and_overhead::<crate::model::Quantity>(&pod).unwrap();
            let cpu = total.request(requests::CPU).unwrap_or_default();
            cpu.milli_value()
        };
        assert_eq!(cpu(true, Some(&amounts)), 1000);
        assert_eq!(cpu(false, Some(&amounts)), 5000);
        assert_eq!(cpu(true, None), 0);
        let pod = pod_of_runtime(&status, true, None);
        let containers = pod.containers().iter();
        let ports = containers.map(|one| (one.name.as_str(), one.ports.as_ref().unwrap().len()));
        assert_eq!(ports.collect::<Vec<_>>(), [("main", 1)]);
        assert!(pod.is_static());
        assert_eq!(pod.log_name().to_string(), "shop/web-node1");
    }

    #[test]
    fn a_static_pod_does_not_wait_for_the_one_that_it_replaces() {
        let pod = |namespace: &str, source: &str| {
            let annotations = json!({"kubernetes.io/config.source": source});
            let metadata =
                json!({"name": "web", "namespace": namespace, "annotations": annotations});
            Arc::new(serde_json::from_value::<Pod>(json!({"metadata": metadata})).unwrap())
        };
        let waits = |new: (&str, &str), old: (&str, &str)| {
            unless_successor(&pod(new.0, new.1), pod(old.0, old.1)).is_some()
        };
        assert!(!waits(("shop", "file"), ("shop", "http")));
        assert!(waits(("shop", "file"), ("other", "file")));
        assert!(waits(("shop", "file"), ("shop", "api")));
        assert!(waits(("shop", "api"), ("shop", "api")));
    }
}
