//! The feature gates that are implemented. Pure.

use std::collections::BTreeMap;

use super::known_gates::locked_to;

/// The feature gates that change this kubelet's behavior.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureGate {
    /// Lists of the runtime are requested as streams first.
    CriListStreaming,
    /// Options of the CPU manager that are alpha.
    CpuManagerPolicyAlphaOptions,
    /// Options of the CPU manager that are beta.
    CpuManagerPolicyBetaOptions,
    /// Containers with exclusive CPUs have no CFS quota.
    DisableCpuQuotaWithExclusiveCpus,
    /// Pods are terminated before the node shuts down.
    GracefulNodeShutdown,
    /// Shutdown grace periods may be set per pod priority.
    GracefulNodeShutdownBasedOnPodPriority,
    /// Pulls are recorded, and pods' access to present images is verified.
    KubeletEnsureSecretPulledImages,
    /// The PodResources API lists active pods only.
    KubeletPodResourcesListUseActivePods,
    /// Credential provider plugins may get tokens of service accounts.
    KubeletServiceAccountTokenForCredentialProviders,
    /// The usage of emptyDir volumes of pods in user namespaces is read from project quotas.
    LocalStorageCapacityIsolationFsQuotaMonitoring,
    /// Memory requests and limits are set on cgroup v2 (`memory.min`, `memory.high`).
    MemoryQos,
    /// `podCertificate` volumes: keys of pods with certificates of signers.
    PodCertificateRequest,
    /// The CPU and memory managers manage pods with pod-level resources.
    PodLevelResourceManagers,
    /// Clients may read stdout and stderr of a container separately.
    PodLogsQuerySplitStreams,
    /// Agents on the node list and watch its pods over a socket.
    PodsApi,
    /// Memory requested by pods is protected from pods of lower QoS classes.
    QosReserved,
    /// The status of a container has the health of its devices.
    ResourceHealthStatus,
    /// The health has messages of device plugins and drivers too.
    ResourceHealthStatusMessage,
}

/// The stages of gates; alpha and beta gates can be set as a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GateStage {
    /// `AllAlpha`.
    Alpha,
    /// `AllBeta`.
    Beta,
    /// Has no group.
    Deprecated,
}

impl FeatureGate {
    const ALL: [Self; 18] = [
        Self::CriListStreaming,
        Self::CpuManagerPolicyAlphaOptions,
        Self::CpuManagerPolicyBetaOptions,
        Self::DisableCpuQuotaWithExclusiveCpus,
        Self::GracefulNodeShutdown,
        Self::GracefulNodeShutdownBasedOnPodPriority,
        Self::KubeletEnsureSecretPulledImages,
        Self::KubeletPodResourcesListUseActivePods,
        Self::KubeletServiceAccountTokenForCredentialProviders,
        Self::LocalStorageCapacityIsolationFsQuotaMonitoring,
        Self::MemoryQos,
        Self::PodCertificateRequest,
        Self::PodLevelResourceManagers,
        Self::PodLogsQuerySplitStreams,
        Self::PodsApi,
        Self::QosReserved,
        Self::ResourceHealthStatus,
        Self::ResourceHealthStatusMessage,
    ];

    /// The name in the configuration, the stage in v1.36, and whether the gate is on by default.
    fn spec(self) -> (&'static str, GateStage, bool) {
        use GateStage::{Alpha, Beta, Deprecated};
        match self {
            Self::CriListStreaming => ("CRIListStreaming", Alpha, false),
            Self::CpuManagerPolicyAlphaOptions => ("CPUManagerPolicyAlphaOptions", Alpha, false),
            Self::CpuManagerPolicyBetaOptions => ("CPUManagerPolicyBetaOptions", Beta, true),
            Self::DisableCpuQuotaWithExclusiveCpus => {
                ("DisableCPUQuotaWithExclusiveCPUs", Deprecated, true)
            }
            Self::GracefulNodeShutdown => ("GracefulNodeShutdown", Beta, true),
            Self::GracefulNodeShutdownBasedOnPodPriority => {
                ("GracefulNodeShutdownBasedOnPodPriority", Beta, true)
            }
            Self::KubeletEnsureSecretPulledImages => {
                ("KubeletEnsureSecretPulledImages", Beta, true)
            }
            Self::KubeletPodResourcesListUseActivePods => {
                ("KubeletPodResourcesListUseActivePods", Deprecated, true)
            }
            Self::KubeletServiceAccountTokenForCredentialProviders => (
                "KubeletServiceAccountTokenForCredentialProviders",
                Beta,
                true,
            ),
            Self::LocalStorageCapacityIsolationFsQuotaMonitoring => (
                "LocalStorageCapacityIsolationFSQuotaMonitoring",
                Beta,
                false,
            ),
            Self::MemoryQos => ("MemoryQoS", Alpha, false),
            Self::PodCertificateRequest => ("PodCertificateRequest", Beta, false),
            Self::PodLevelResourceManagers => ("PodLevelResourceManagers", Alpha, false),
            Self::PodLogsQuerySplitStreams => ("PodLogsQuerySplitStreams", Alpha, false),
            Self::PodsApi => ("PodsAPI", Alpha, false),
            Self::QosReserved => ("QOSReserved", Alpha, false),
            Self::ResourceHealthStatus => ("ResourceHealthStatus", Beta, true),
            Self::ResourceHealthStatusMessage => ("ResourceHealthStatusMessage", Beta, true),
        }
    }

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        self.spec().0
    }

    /// Whether the gate is on: by its own setting, else by that of its stage's group, else by default.
    pub fn is_on(self, given: Option<&BTreeMap<String, bool>>) -> bool {
        let of = |name: &str| given.and_then(|gates| gates.get(name)).copied();
        let (name, stage, default) = self.spec();
        let of_stage = match stage {
            GateStage::Alpha => of("AllAlpha"),
            GateStage::Beta => of("AllBeta"),
            GateStage::Deprecated => None,
        };
        of(name).or(of_stage).unwrap_or(default)
    }
}

/// The warning about given gates without effect; `None` if there are none.
pub(super) fn warning(gates: &BTreeMap<String, bool>) -> Option<String> {
    let gate = |name: &str| {
        FeatureGate::ALL
            .into_iter()
            .find(|gate| gate.name() == name)
    };
    let of_stage = |stage| {
        let gates = FeatureGate::ALL.into_iter();
        let gates = gates.filter(|gate| gate.spec().1 == stage);
        gates.map(FeatureGate::name).collect::<Vec<_>>().join(", ")
    };
    let idle = gates.keys();
    let idle = idle.filter(|name| gate(name).is_none() && locked_to(name).is_none());
    let shown = |name: &String| match name.as_str() {
        "AllAlpha" => format!("AllAlpha (but for {})", of_stage(GateStage::Alpha)),
        "AllBeta" => format!("AllBeta (but for {})", of_stage(GateStage::Beta)),
        name => name.to_owned(),
    };
    let names: Vec<String> = idle.map(shown).collect();
    (!names.is_empty()).then(|| {
        format!(
            "feature gates are accepted but change nothing yet: {}",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::known_gates::is_known;

    #[test]
    fn gates_with_an_effect_are_known() {
        let mut gates = FeatureGate::ALL.into_iter();
        assert!(gates.all(|gate| is_known(gate.name())));
    }

    #[test]
    fn a_gate_is_as_it_was_set_or_as_its_stage_or_as_by_default() {
        use FeatureGate::{DisableCpuQuotaWithExclusiveCpus, GracefulNodeShutdown, MemoryQos};
        for (given, gate, on) in [
            (vec![], MemoryQos, false),
            (vec![], GracefulNodeShutdown, true),
            (vec![("AllAlpha", true)], MemoryQos, true),
            (
                vec![("AllAlpha", true), ("MemoryQoS", false)],
                MemoryQos,
                false,
            ),
            (vec![("AllBeta", false)], GracefulNodeShutdown, false),
            (
                vec![("AllBeta", false), ("GracefulNodeShutdown", true)],
                GracefulNodeShutdown,
                true,
            ),
            (vec![("AllAlpha", true)], GracefulNodeShutdown, true),
            (
                vec![("AllAlpha", false), ("AllBeta", false)],
                DisableCpuQuotaWithExclusiveCpus,
                true,
            ),
        ] {
            let gates = given.iter().map(|(name, on)| ((*name).to_owned(), *on));
            let gates = gates.collect();
            assert_eq!(gate.is_on(Some(&gates)), on, "{gate:?} {given:?}");
        }
        assert!(!MemoryQos.is_on(None));
    }
}
