//! Admits pods by NUMA alignment, and allocates their resources. Pure.

use super::{NumaInfo, NumaMask, ResourceHints, TopologyHint, TopologyOptions, TopologyPolicy};
use crate::base::named_enum;
use crate::model::requests::has_pod_level;
use crate::model::{Pod, PodExt};
use k8s_openapi::api::core::v1::Container;

/// Why a pod is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TopologyError {
    /// `status.reason`.
    pub reason: &'static str,
    /// `status.message`, without upstream's prefix for the pod.
    pub message: String,
}

impl TopologyError {
    /// An error with its own reason.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// The `TopologyAffinityError`: no allocation satisfies the policy.
    pub fn topology() -> Self {
        Self::new("TopologyAffinityError", "Resources cannot be allocated with Topology locality")
    }

    /// The `TopologyAffinityError` of a pod with pod-level resources; `scope` as in upstream's texts.
    fn pod_level(scope: &str) -> Self {
        let message = format!(
            "Pod Scope pod with pod-level resources failed admission {scope} topology manager"
        );
        Self::new("TopologyAffinityError", message)
    }

    /// The `UnexpectedAdmissionError`: any other error of a provider.
    pub fn unexpected(why: impl std::fmt::Display) -> Self {
        Self::new(
            "UnexpectedAdmissionError",
            format!("Allocate failed due to {why}, which is unexpected"),
        )
    }
}

/// A resource manager that gives NUMA hints and allocates.
pub trait HintProvider {
    /// Hints for the resources of a container; for an existing allocation, its nodes.
    fn container_hints(&self, pod: &Pod, container: &Container) -> ResourceHints;

    /// Hints for the resources of a whole pod; for an existing allocation, its nodes.
    fn pod_hints(&self, pod: &Pod) -> ResourceHints;

    /// Allocates the resources of a container on the nodes of `affinity`, if it has nodes. An existing allocation is
    /// kept.
    ///
    /// # Errors
    /// There are not enough resources.
    fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        affinity: TopologyHint,
    ) -> Result<(), TopologyError>;

    /// Allocates the resources of a pod with pod-level resources, which its containers divide among themselves. An
    /// existing allocation is kept. Providers without pod-level resources (the default) allocate for each container.
    ///
    /// # Errors
    /// There are not enough resources.
    fn allocate_pod(&mut self, pod: &Pod, affinity: TopologyHint) -> Result<(), TopologyError> {
        containers(pod).try_for_each(|container| self.allocate(pod, container, affinity))
    }
}

named_enum! {
    /// `topologyManagerScope`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum TopologyScope {
        /// Each container is aligned on its own.
        #[default]
        Container = "container",
        /// All containers of the pod are aligned to the same nodes.
        Pod = "pod",
    }
}

/// The outcome of an admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyAdmission {
    /// Whether all resources are allocated.
    pub result: Result<(), TopologyError>,
    /// Number of containers (or pods, in the pod scope) that were aligned to one NUMA node, if the policy guarantees
    /// that.
    pub aligned: u64,
    /// Whether the admission failed because a container (or pod) could not be aligned to one NUMA node; false unless
    /// the policy guarantees that.
    pub misaligned: bool,
}

/// Merges the hints of providers, and lets the providers allocate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyManager {
    policy: TopologyPolicy,
    scope: TopologyScope,
    numa: NumaInfo,
    /// Whether pods with pod-level resources are managed (`PodLevelResourceManagers`).
    pod_level: bool,
}

impl TopologyManager {
    /// Builds the manager for a machine with these NUMA nodes and distances.
    ///
    /// # Errors
    /// The machine has more nodes than permitted, or than a mask can hold; texts as upstream's.
    pub fn new(
        policy: TopologyPolicy,
        scope: TopologyScope,
        options: TopologyOptions,
        nodes: Vec<(u32, Vec<u64>)>,
    ) -> Result<Self, String> {
        if policy == TopologyPolicy::None {
            return Ok(Self::default());
        }
        let max = options.max_numa_nodes;
        if nodes.len() > max {
            return Err(format!("unsupported on machines with more than {max} NUMA Nodes"));
        }
        let too_large = nodes.iter().find(|(node, _)| *node >= NumaMask::LIMIT);
        if let Some((node, _)) = too_large {
            return Err(format!("NUMA node {node}: bit number must be in range 0-63"));
        }
        if options.prefer_closest && nodes.iter().any(|(_, distances)| distances.is_empty()) {
            return Err("cannot discover NUMA topology: error getting NUMA distances".to_owned());
        }
        Ok(Self {
            policy,
            scope,
            numa: NumaInfo { nodes, prefer_closest: options.prefer_closest },
            pod_level: false,
        })
    }

    /// Sets whether pods with pod-level resources are managed (`PodLevelResourceManagers`).
    pub fn with_pod_level(self, pod_level: bool) -> Self {
        Self { pod_level, ..self }
    }

    /// The policy.
    pub fn policy(&self) -> TopologyPolicy {
        self.policy
    }

    /// The NUMA nodes of the machine; empty without a policy.
    pub fn nodes(&self) -> NumaMask {
        self.numa.all()
    }

    /// The scope of alignment.
    pub fn scope(&self) -> TopologyScope {
        self.scope
    }

    /// Allocates the resources of a pod from all providers. After an error, some may be allocated; the caller has to
    /// release them.
    pub fn admit(&self, pod: &Pod, providers: &mut [&mut dyn HintProvider]) -> TopologyAdmission {
        let mut aligned = 0;
        let mut misaligned = false;
        let pod_level = self.pod_level && has_pod_level(pod);
        let misfit = |scope| {
            if pod_level { TopologyError::pod_level(scope) } else { TopologyError::topology() }
        };
        let result = match (self.policy, self.scope) {
            (TopologyPolicy::None, _) => allocate_all(pod, providers, TopologyHint::default()),
            (_, TopologyScope::Pod) => {
                let hints: Vec<_> = providers.iter().map(|p| p.pod_hints(pod)).collect();
                let allocated = match self.best(&hints) {
                    Some(best) if pod_level => allocate_pod(pod, providers, best),
                    Some(best) => allocate_all(pod, providers, best),
                    None => {
                        misaligned = true;
                        Err(misfit("under pod-scope"))
                    }
                };
                allocated.inspect(|()| aligned += 1)
            }
            (_, TopologyScope::Container) => containers(pod).try_for_each(|container| {
                let hints = providers.iter().map(|p| p.container_hints(pod, container));
                let Some(best) = self.best(&hints.collect::<Vec<_>>()) else {
                    misaligned = true;
                    return Err(misfit("with a container-level"));
                };
                allocate(pod, container, providers, best).inspect(|()| aligned += 1)
            }),
        };
        let guaranteed = self.policy == TopologyPolicy::SingleNumaNode;
        TopologyAdmission {
            result,
            aligned: if guaranteed { aligned } else { 0 },
            misaligned: misaligned && guaranteed,
        }
    }

    fn best(&self, hints: &[ResourceHints]) -> Option<TopologyHint> {
        let best = self.policy.merge(&self.numa, hints);
        Some(best).filter(|best| self.policy.admits(*best))
    }
}

/// All containers in the order of their creation.
fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.init_containers().iter().chain(pod.containers())
}

fn allocate_pod(
    pod: &Pod,
    providers: &mut [&mut dyn HintProvider],
    affinity: TopologyHint,
) -> Result<(), TopologyError> {
    let mut providers = providers.iter_mut();
    providers.try_for_each(|provider| provider.allocate_pod(pod, affinity))
}

fn allocate_all(
    pod: &Pod,
    providers: &mut [&mut dyn HintProvider],
    affinity: TopologyHint,
) -> Result<(), TopologyError> {
    containers(pod).try_for_each(|container| allocate(pod, container, providers, affinity))
}

fn allocate(
    pod: &Pod,
    container: &Container,
    providers: &mut [&mut dyn HintProvider],
    affinity: TopologyHint,
) -> Result<(), TopologyError> {
    providers.iter_mut().try_for_each(|provider| provider.allocate(pod, container, affinity))
}
