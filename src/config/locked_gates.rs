//! The feature gates of v1.36 that are locked to their default. Pure.

/// Locked to true, sorted.
pub(super) const ON: &[&str] = &[
    "APIServerTracing",
    "AggregatedDiscoveryRemoveBetaType",
    "AnonymousAuthConfigurableEndpoints",
    "AnyVolumeDataSource",
    "AuthorizeNodeWithSelectors",
    "AuthorizeWithSelectors",
    "BtreeWatchCache",
    "CPUManagerPolicyOptions",
    "CRDValidationRatcheting",
    "CSIServiceAccountTokenSecrets",
    "ConsistentListFromCache",
    "CustomResourceFieldSelectors",
    "DRAAdminAccess",
    "DeclarativeValidation",
    "DisableAllocatorDualWrite",
    "DisableNodeKubeProxyVersion",
    "DynamicResourceAllocation",
    "ExecProbeTimeout",
    "ExternalServiceAccountTokenSigner",
    "ImageMaximumGCAge",
    "ImageVolume",
    "InPlacePodVerticalScaling",
    "JobBackoffLimitPerIndex",
    "JobManagedBy",
    "JobPodReplacementPolicy",
    "JobSuccessPolicy",
    "KubeletCgroupDriverFromCRI",
    "KubeletFineGrainedAuthz",
    "KubeletPSI",
    "KubeletPodResourcesDynamicResources",
    "KubeletPodResourcesGet",
    "KubeletTracing",
    "LogarithmicScaleDown",
    "MatchLabelKeysInPodAffinity",
    "MultiCIDRServiceAllocator",
    "MutableCSINodeAllocatableCount",
    "NFTablesProxyMode",
    "NodeInclusionPolicyInPodTopologySpread",
    "NodeLogQuery",
    "NodeSwap",
    "OrderedNamespaceDeletion",
    "PodLifecycleSleepAction",
    "PodLifecycleSleepActionAllowZero",
    "PodObservedGenerationTracking",
    "PodSchedulingReadiness",
    "PreferSameTrafficDistribution",
    "ProcMountType",
    "RecoverVolumeExpansionFailure",
    "RecursiveReadOnlyMounts",
    "RelaxedDNSSearchValidation",
    "RelaxedEnvironmentVariableValidation",
    "ResilientWatchCacheInitialization",
    "RetryGenerateName",
    "SELinuxChangePolicy",
    "SELinuxMountReadWriteOncePod",
    "SchedulerQueueingHints",
    "SeparateTaintEvictionController",
    "ServiceAccountTokenJTI",
    "ServiceAccountTokenNodeBinding",
    "ServiceAccountTokenNodeBindingValidation",
    "ServiceAccountTokenPodNodeInfo",
    "SidecarContainers",
    "StreamingCollectionEncodingToJSON",
    "StreamingCollectionEncodingToProtobuf",
    "StructuredAuthenticationConfiguration",
    "SupplementalGroupsPolicy",
    "SystemdWatchdog",
    "TopologyManagerPolicyOptions",
    "UserNamespacesSupport",
    "VolumeAttributesClass",
    "WinDSR",
    "WinOverlay",
];
/// Locked to false, sorted.
pub(super) const OFF: &[&str] = &[
    "AllowOverwriteTerminationGracePeriodSeconds",
    "GitRepoVolumeDriver",
];

/// The value that a gate is locked to.
pub(super) fn locked_to(name: &str) -> Option<bool> {
    let is_in = |list: &[&str]| list.binary_search(&name).is_ok();
    if is_in(ON) {
        Some(true)
    } else {
        is_in(OFF).then_some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sorted_so_that_they_can_be_searched() {
        assert!(ON.is_sorted() && OFF.is_sorted());
    }

    #[test]
    fn stable_features_are_on_and_removed_ones_off() {
        for (name, value) in [
            ("KubeletPSI", Some(true)),
            ("AllowOverwriteTerminationGracePeriodSeconds", Some(false)),
            ("MemoryQoS", None),
            ("NoSuchGate", None),
        ] {
            assert_eq!(locked_to(name), value, "{name}");
        }
    }
}
