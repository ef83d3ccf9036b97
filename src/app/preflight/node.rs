//! What is known of the node when pods are decided about: admission, volumes, cgroups, the runtime's features.

use super::collect;
use super::forecast::{PodChecks, has_running_containers};
use super::pods::{PodLookup, RuntimePods};
use super::state::LeftState;
use crate::apiserver::ApiServer;
use crate::apiserver::claim::PersistentVolumeClaimKey;
use crate::app::{Finding, settings};
use crate::base::error_chain;
use crate::base::metrics::Metrics;
use crate::config::{KUBERNETES_VERSION, KubeletConfig, NODE_VERSION};
use crate::cri::{RuntimeClient, RuntimeFeatures};
use crate::host::HostMachine;
use crate::host::cgroup::Cgroups;
use crate::model::validation::sysctl_allowlist::Allowlist;
use crate::model::{NodeFacts, Pod, PodExt, PodStatus, PodUid};
use crate::node;
use crate::pods::sync_loop::{AdmittedPods, PodAdmitAttributes, admit, broken_by_running};
use crate::resources::allocation::PodResourceInfo;
use crate::resources::cm::{CgroupDriver, CgroupName, cgroup_driver, pod_cgroup_name};
use crate::runtime::kuberuntime::actions::RecordedFacts;
use crate::runtime::kuberuntime::recorded_facts;
use crate::state::node_pressure::NodePressure;
use crate::state::pod_state_store::{PodOrigin, PodRecord};
use crate::volumes::kinds::plan::{VolumeCheck, check};
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Claims = BTreeMap<PersistentVolumeClaimKey, Result<Option<Arc<PersistentVolume>>, String>>;

/// Decides what [`super::forecast`] needs to know of a pod.
pub(super) struct NodeChecks<'a> {
    left: &'a LeftState,
    machine: Arc<HostMachine>,
    features: RuntimeFeatures,
    facts: NodeFacts,
    node: Option<Node>,
    initial_node: Node,
    standalone: bool,
    sysctls: Allowlist,
    /// The pods of which something runs.
    running: Vec<Arc<Pod>>,
    claims: Claims,
    cgroups: Option<PodCgroups>,
}

/// Where the cgroups of pods are.
struct PodCgroups {
    root: String,
    driver: CgroupDriver,
    cgroups: Cgroups,
}

impl<'a> NodeChecks<'a> {
    /// Reads what is needed; also returns findings about the node.
    ///
    /// # Errors
    /// The machine cannot be read, or a setting cannot be used.
    #[expect(clippy::too_many_arguments, reason = "what was read before, each once")]
    pub(super) async fn new(
        config: &KubeletConfig,
        machine: Arc<HostMachine>,
        client: &RuntimeClient,
        features: RuntimeFeatures,
        api: Option<&ApiServer>,
        pods: &[Arc<Pod>],
        runtime: &RuntimePods,
        left: &'a LeftState,
    ) -> anyhow::Result<(Self, Vec<Finding>)> {
        let mut findings = Vec::new();
        let profile = settings::profile(config);
        let facts = node::facts(&profile, &machine)?;
        let node = match api {
            Some(api) => collect::node(api, &config.node_name).await,
            None => Ok(None),
        };
        let node = node.unwrap_or_else(|why| {
            let message = format!("node {}: {why}", config.node_name);
            findings.push(Finding::unknown("API server", message));
            None
        });
        findings.extend(node.as_ref().and_then(version_finding));
        let sysctls =
            Allowlist::new(&machine.kernel_release, &config.containers.allowed_unsafe_sysctls)?;
        let running = pods.iter().filter(|pod| {
            let status = runtime.pods.get(&pod.uid());
            status.is_some_and(|status| status.may_be_running())
        });
        let cgroups = match pod_cgroups(config, &machine, client).await {
            Ok((cgroups, finding)) => {
                findings.extend(finding);
                cgroups
            }
            Err(error) => {
                findings.push(Finding::unknown("cgroups", error_chain(error.as_ref())));
                None
            }
        };
        let mut checks = Self {
            left,
            features,
            facts,
            initial_node: profile.initial_node(),
            standalone: config.kubeconfig.is_none(),
            sysctls,
            running: running.cloned().collect(),
            claims: Claims::new(),
            node,
            cgroups,
            machine,
        };
        if let Some(api) = api {
            let keys = pods.iter().flat_map(|pod| checks.volumes(pod).claims);
            let keys: BTreeSet<_> = keys.map(|(_, key)| key).collect();
            checks.claims = collect::claims(api, keys).await;
            let unread = checks.claims.values().filter_map(|claim| claim.as_ref().err());
            findings.extend(unread.map(|why| Finding::unknown("volumes", why)));
        }
        Ok((checks, findings))
    }

    fn volumes(&self, pod: &Pod) -> VolumeCheck {
        let bound = |key: &PersistentVolumeClaimKey| self.claims.get(key)?.clone().ok()?;
        check(pod, &self.facts, self.node.as_ref(), &bound)
    }

    fn others(&self, pod: &Pod) -> Vec<Arc<Pod>> {
        let others = self.running.iter().filter(|other| other.uid() != pod.uid());
        others.cloned().collect()
    }

    /// Says that a resize is in progress, by the amounts that were recorded last.
    fn resize_remark(&self, pod: &Pod) -> Option<String> {
        let used = self.left.allocations.used(&pod.uid())?;
        (*used != PodResourceInfo::of(pod)).then(|| {
            "its allocated CPU and memory are not those that its containers have: a resize is in progress".to_owned()
        })
    }
}

impl PodLookup for NodeChecks<'_> {
    /// By the record of this kubelet, if it ran here before, and by the actuated amounts.
    fn facts(&self, uid: &PodUid) -> RecordedFacts {
        let actuated = self.left.allocations.actuated(uid);
        match self.left.records.get(uid) {
            Some(record) => recorded_facts(record, actuated),
            None => recorded_facts(&PodRecord::default(), actuated),
        }
    }

    fn origin(&self, uid: &PodUid) -> Option<&PodOrigin> {
        self.left.records.get(uid)?.origin.as_ref()
    }

    fn checks(&self, pod: &Pod, status: &PodStatus) -> PodChecks {
        let others = AdmittedPods { staying: self.others(pod), ..AdmittedPods::default() };
        let attributes = PodAdmitAttributes {
            sysctls: &self.sysctls,
            app_armor: self.machine.app_armor,
            supplemental_groups_policy: self.features.supplemental_groups_policy,
            pressure: self.node.as_ref().map(pressure).unwrap_or_default(),
            shutting_down: false,
            may_be_running: status.may_be_running(),
            node: self.node.as_ref(),
            initial_node: &self.initial_node,
            standalone: self.standalone,
            others: &others,
            device_error: None,
            allocated_devices: &BTreeMap::new(),
        };
        let runs = has_running_containers(status);
        let broken = broken_by_running(pod, &attributes).filter(|_| runs);
        let mut volumes = self.volumes(pod).errors;
        volumes.extend(self.left.volumes.get(&pod.uid()).into_iter().flatten().cloned());
        let mut remarks = Vec::new();
        if runs {
            remarks.extend(self.cgroups.as_ref().and_then(|cgroups| cgroups.remark(pod)));
            remarks.extend(self.resize_remark(pod));
        }
        PodChecks { admission: admit(pod, &attributes), broken, volumes, remarks }
    }
}

impl PodCgroups {
    /// What is to be said about the cgroup of a running pod.
    fn remark(&self, pod: &Pod) -> Option<String> {
        let name = pod_cgroup_name(&self.root, pod).ok()?;
        let path = name.path(self.driver).ok()?;
        (!self.cgroups.exists(&path)).then(|| {
            format!("its cgroup {path} does not exist: its containers stay where they are, without the pod's limits")
        })
    }
}

/// Where the cgroups of pods are, and the finding about the driver; `None` without `cgroupsPerQOS`.
async fn pod_cgroups(
    config: &KubeletConfig,
    machine: &HostMachine,
    client: &RuntimeClient,
) -> anyhow::Result<(Option<PodCgroups>, Option<Finding>)> {
    if !config.cgroups.per_qos {
        return Ok((None, None));
    }
    let driver = cgroup_driver(client, &Metrics::new(), config.cgroups.driver).await?;
    let root = config.cgroups.root.clone();
    let top = CgroupName::of_cgroupfs(&root).path(driver)?;
    let cgroups = PodCgroups { cgroups: Cgroups::below(top, machine.cgroup_v2)?, root, driver };
    let configured = config.cgroups.driver;
    let finding = (driver != configured).then(|| {
        let message = format!(
            "cgroupDriver is {}, and the runtime reports {}, which counts",
            configured.as_str(),
            driver.as_str()
        );
        Finding::warning("cgroups", message)
    });
    Ok((Some(cgroups), finding))
}

/// The pressure that the Node object shows.
fn pressure(node: &Node) -> NodePressure {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
    let is = |kind: &str| {
        let mut conditions = conditions.unwrap_or_default().iter();
        conditions.any(|one| one.type_ == kind && one.status == "True")
    };
    NodePressure { memory: is("MemoryPressure"), disk: is("DiskPressure"), pid: is("PIDPressure") }
}

/// The finding about the version that the Node object shows.
fn version_finding(node: &Node) -> Option<Finding> {
    let status = node.status.as_ref()?;
    let version = &status.node_info.as_ref()?.kubelet_version;
    Some(compare_version(version))
}

fn compare_version(version: &str) -> Finding {
    let minor = |version: &str| -> Option<u32> {
        let mut parts = version.trim_start_matches('v').split('.');
        let major: u32 = parts.next()?.parse().ok()?;
        Some(major * 1000 + parts.next()?.parse::<u32>().ok()?)
    };
    let subject = "version";
    if version.contains("+rs") {
        let message = format!(
            "the node is run by this kubelet already, {version}; this one is {NODE_VERSION}"
        );
        return Finding::ok(subject, message);
    }
    match (minor(version), minor(KUBERNETES_VERSION)) {
        (Some(theirs), Some(own)) if theirs == own => Finding::ok(
            subject,
            format!("the node reports {version}, this kubelet is {NODE_VERSION}"),
        ),
        (Some(theirs), Some(own)) if theirs > own => Finding::error(
            subject,
            format!(
                "the node reports {version}: this kubelet, {NODE_VERSION}, is older, and may not know its checkpoints and fields"
            ),
        ),
        (Some(_), Some(_)) => Finding::warning(
            subject,
            format!(
                "the node reports {version}, this kubelet is {NODE_VERSION}: the move is an upgrade, too"
            ),
        ),
        _ => Finding::unknown(subject, format!("the node reports the version {version:?}")),
    }
}

/// What the runtime's version lacks.
pub(super) fn runtime_findings(features: &RuntimeFeatures) -> Vec<Finding> {
    let handlers = features.handlers.values();
    let mut lacks = Vec::new();
    if !handlers.clone().any(|handler| handler.user_namespaces) {
        lacks.push("user namespaces (hostUsers: false)");
    }
    if !handlers.clone().any(|handler| handler.recursive_read_only_mounts) {
        lacks.push("recursive read-only mounts");
    }
    if !features.supplemental_groups_policy {
        lacks.push("supplementalGroupsPolicy: Strict");
    }
    if lacks.is_empty() {
        return Vec::new();
    }
    let message = format!("this version does not report {}", lacks.join(", "));
    vec![Finding::ok("runtime", message)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::Level;

    #[test]
    fn a_newer_kubelet_is_not_replaced_without_a_word() {
        for (version, level) in [
            ("v1.36.1", Level::Ok),
            ("v1.36.3+rs0.1.0", Level::Ok),
            ("v1.34.0", Level::Warning),
            ("v1.37.0-beta.1", Level::Error),
            ("v2.0.0", Level::Error),
            ("", Level::Unknown),
            ("v1.x", Level::Unknown),
        ] {
            assert_eq!(compare_version(version).level, level, "{version}");
        }
    }

    #[test]
    fn pressure_is_that_of_the_node_object() {
        let node = serde_json::json!({"status": {"conditions": [
            {"type": "MemoryPressure", "status": "False"}, {"type": "DiskPressure", "status": "True"},
        ]}});
        let found = pressure(&serde_json::from_value(node).unwrap());
        assert_eq!(found.conditions(), ["DiskPressure"]);
        assert_eq!(pressure(&Node::default()), NodePressure::default());
    }
}
