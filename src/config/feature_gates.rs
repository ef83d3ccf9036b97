//! The feature gates that are implemented. Pure.

use std::collections::BTreeMap;

use super::known_gates::locked_to;
use crate::base::named_enum;

named_enum! {
    /// The stages of gates, as metrics show them; alpha and beta gates can be set as a group.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum GateStage {
        /// `AllAlpha`.
        Alpha = "ALPHA",
        /// `AllBeta`.
        Beta = "BETA",
        /// Has no group.
        Deprecated = "DEPRECATED",
    }
}

/// Declares the gates, each with its name in the configuration, its stage in v1.36, and whether it is on by default.
macro_rules! feature_gates {
    ($($(#[$doc:meta])* $gate:ident = $name:literal, $stage:ident, $default:literal;)*) => {
        /// The feature gates that change this kubelet's behavior.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum FeatureGate {
            $($(#[$doc])* $gate,)*
        }

        impl FeatureGate {
            /// In the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$gate),*];

            /// The name in the configuration, the stage, and whether the gate is on by default.
            fn spec(self) -> (&'static str, GateStage, bool) {
                match self {
                    $(Self::$gate => ($name, GateStage::$stage, $default),)*
                }
            }
        }
    };
}

feature_gates! {
    /// The conditions that CSI drivers report of volumes are in statistics and events.
    CsiVolumeHealth = "CSIVolumeHealth", Alpha, false;
    /// Lists of the runtime are requested as streams first.
    CriListStreaming = "CRIListStreaming", Alpha, false;
    /// Options of the CPU manager that are alpha.
    CpuManagerPolicyAlphaOptions = "CPUManagerPolicyAlphaOptions", Alpha, false;
    /// Options of the CPU manager that are beta.
    CpuManagerPolicyBetaOptions = "CPUManagerPolicyBetaOptions", Beta, true;
    /// Containers with exclusive CPUs have no CFS quota.
    DisableCpuQuotaWithExclusiveCpus = "DisableCPUQuotaWithExclusiveCPUs", Deprecated, true;
    /// Pods are terminated before the node shuts down.
    GracefulNodeShutdown = "GracefulNodeShutdown", Beta, true;
    /// Shutdown grace periods may be set per pod priority.
    GracefulNodeShutdownBasedOnPodPriority = "GracefulNodeShutdownBasedOnPodPriority", Beta, true;
    /// Pulls are recorded, and pods' access to present images is verified.
    KubeletEnsureSecretPulledImages = "KubeletEnsureSecretPulledImages", Beta, true;
    /// The PodResources API lists active pods only.
    KubeletPodResourcesListUseActivePods = "KubeletPodResourcesListUseActivePods", Deprecated, true;
    /// Credential provider plugins may get tokens of service accounts.
    KubeletServiceAccountTokenForCredentialProviders
        = "KubeletServiceAccountTokenForCredentialProviders", Beta, true;
    /// The usage of emptyDir volumes of pods in user namespaces is read from project quotas.
    LocalStorageCapacityIsolationFsQuotaMonitoring
        = "LocalStorageCapacityIsolationFSQuotaMonitoring", Beta, false;
    /// Memory requests and limits are set on cgroup v2 (`memory.min`, `memory.high`).
    MemoryQos = "MemoryQoS", Alpha, false;
    /// `podCertificate` volumes: keys of pods with certificates of signers.
    PodCertificateRequest = "PodCertificateRequest", Beta, false;
    /// The CPU and memory managers manage pods with pod-level resources.
    PodLevelResourceManagers = "PodLevelResourceManagers", Alpha, false;
    /// Clients may read stdout and stderr of a container separately.
    PodLogsQuerySplitStreams = "PodLogsQuerySplitStreams", Alpha, false;
    /// Agents on the node list and watch its pods over a socket.
    PodsApi = "PodsAPI", Alpha, false;
    /// Memory requested by pods is protected from pods of lower QoS classes.
    QosReserved = "QOSReserved", Alpha, false;
    /// The status of a container has the health of its devices.
    ResourceHealthStatus = "ResourceHealthStatus", Beta, true;
    /// The health has messages of device plugins and drivers too.
    ResourceHealthStatusMessage = "ResourceHealthStatusMessage", Beta, true;
}

impl FeatureGate {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        self.spec().0
    }

    /// The stage in v1.36, as metrics show it.
    pub fn stage(self) -> &'static str {
        self.spec().1.as_str()
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
    let gate = |name: &str| FeatureGate::ALL.iter().find(|gate| gate.name() == name);
    let of_stage = |stage| {
        let gates = FeatureGate::ALL.iter().copied();
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
    (!names.is_empty())
        .then(|| format!("feature gates are accepted but change nothing yet: {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::known_gates::is_known;

    #[test]
    fn gates_with_an_effect_are_known() {
        let mut gates = FeatureGate::ALL.iter();
        assert!(gates.all(|gate| is_known(gate.name())));
    }

    #[test]
    fn a_gate_is_as_it_was_set_or_as_its_stage_or_as_by_default() {
        use FeatureGate::{DisableCpuQuotaWithExclusiveCpus, GracefulNodeShutdown, MemoryQos};
        for (given, gate, on) in [
            (vec![], MemoryQos, false),
            (vec![], GracefulNodeShutdown, true),
            (vec![("AllAlpha", true)], MemoryQos, true),
            (vec![("AllAlpha", true), ("MemoryQoS", false)], MemoryQos, false),
            (vec![("AllBeta", false)], GracefulNodeShutdown, false),
            (vec![("AllBeta", false), ("GracefulNodeShutdown", true)], GracefulNodeShutdown, true),
            (vec![("AllAlpha", true)], GracefulNodeShutdown, true),
            (vec![("AllAlpha", false), ("AllBeta", false)], DisableCpuQuotaWithExclusiveCpus, true),
        ] {
            let gates = given.iter().map(|(name, on)| ((*name).to_owned(), *on));
            let gates = gates.collect();
            assert_eq!(gate.is_on(Some(&gates)), on, "{gate:?} {given:?}");
        }
        assert!(!MemoryQos.is_on(None));
    }
}
