//! The feature gates a v1.36 kubelet knows by name.
//!
//! A kubelet knows the gates of every Kubernetes component, because one set serves all of them.
//! An unknown name is refused as upstream refuses it: a misspelt gate must not look accepted.

use std::collections::BTreeMap;

use super::decode::closest;

/// Whether it is recorded and verified who may use an image.
pub(super) const ENSURE_SECRET_PULLED_IMAGES: &str = "KubeletEnsureSecretPulledImages";

/// Every known name, sorted; `AllAlpha` and `AllBeta` set whole groups.
const KNOWN: &[&str] = &[
    "APIResponseCompression",
    "APIServerIdentity",
    "APIServerTracing",
    "APIServingWithRoutine",
    "AggregatedDiscoveryRemoveBetaType",
    "AllAlpha",
    "AllBeta",
    "AllowDNSOnlyNodeCSR",
    "AllowInsecureKubeletCertificateSigningRequests",
    "AllowOverwriteTerminationGracePeriodSeconds",
    "AllowParsingUserUIDFromCertAuth",
    "AllowUnsafeMalformedObjectDeletion",
    "AnonymousAuthConfigurableEndpoints",
    "AnyVolumeDataSource",
    "AtomicFIFO",
    "AuthorizeNodeWithSelectors",
    "AuthorizePodWebsocketUpgradeCreatePermission",
    "AuthorizeWithSelectors",
    "BtreeWatchCache",
    "CBORServingAndStorage",
    "CPUManagerPolicyAlphaOptions",
    "CPUManagerPolicyBetaOptions",
    "CPUManagerPolicyOptions",
    "CRDObservedGenerationTracking",
    "CRDValidationRatcheting",
    "CRIListStreaming",
    "CSIMigrationPortworx",
    "CSIServiceAccountTokenSecrets",
    "CSIVolumeHealth",
    "ChangeContainerStatusOnKubeletRestart",
    "ClearingNominatedNodeNameAfterBinding",
    "ClientsAllowCARotation",
    "ClientsAllowCBOR",
    "ClientsAllowTLSCacheGC",
    "ClientsPreferCBOR",
    "CloudControllerManagerWatchBasedRoutesReconciliation",
    "CloudControllerManagerWebhook",
    "ClusterTrustBundle",
    "ClusterTrustBundleProjection",
    "ComponentFlagz",
    "ComponentStatusz",
    "ConcurrentWatchObjectDecode",
    "ConsistentListFromCache",
    "ConstrainedImpersonation",
    "ContainerCheckpoint",
    "ContainerRestartRules",
    "ContainerStopSignals",
    "ContextualLogging",
    "ControllerManagerReleaseLeaderElectionLockOnExit",
    "CoordinatedLeaderElection",
    "CrossNamespaceVolumeDataSource",
    "CustomCPUCFSQuotaPeriod",
    "CustomResourceFieldSelectors",
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRADeviceTaintRules",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "DRAListTypeAttributes",
    "DRANodeAllocatableResources",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
    "DRAResourceClaimDeviceStatus",
    "DRAResourceClaimGranularStatusAuthorization",
    "DRAResourcePoolStatus",
    "DRASchedulerFilterTimeout",
    "DRAWorkloadResourceClaims",
    "DeclarativeValidation",
    "DeclarativeValidationBeta",
    "DeclarativeValidationTakeover",
    "DeploymentReplicaSetTerminatingReplicas",
    "DetectCacheInconsistency",
    "DisableAllocatorDualWrite",
    "DisableCPUQuotaWithExclusiveCPUs",
    "DisableNodeKubeProxyVersion",
    "DynamicResourceAllocation",
    "EnvFiles",
    "EventedPLEG",
    "ExecProbeTimeout",
    "ExtendWebSocketsToKubelet",
    "ExternalServiceAccountTokenSigner",
    "GangScheduling",
    "GenericWorkload",
    "GitRepoVolumeDriver",
    "GracefulNodeShutdown",
    "GracefulNodeShutdownBasedOnPodPriority",
    "HPAConfigurableTolerance",
    "HPAScaleToZero",
    "HonorPVReclaimPolicy",
    "HostnameOverride",
    "ImageMaximumGCAge",
    "ImageVolume",
    "ImageVolumeWithDigest",
    "InOrderInformersBatchProcess",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScaling",
    "InPlacePodVerticalScalingAllocatedStatus",
    "InPlacePodVerticalScalingExclusiveCPUs",
    "InPlacePodVerticalScalingExclusiveMemory",
    "InPlacePodVerticalScalingInitContainers",
    "InTreePluginPortworxUnregister",
    "JobBackoffLimitPerIndex",
    "JobManagedBy",
    "JobPodReplacementPolicy",
    "JobSuccessPolicy",
    "KMSv1",
    "KubeletCgroupDriverFromCRI",
    "KubeletCrashLoopBackOffMax",
    "KubeletEnsureSecretPulledImages",
    "KubeletFineGrainedAuthz",
    "KubeletInUserNamespace",
    "KubeletPSI",
    "KubeletPodResourcesDynamicResources",
    "KubeletPodResourcesGet",
    "KubeletPodResourcesListUseActivePods",
    "KubeletRegistrationGetOnExistsOnly",
    "KubeletSeparateDiskGC",
    "KubeletServiceAccountTokenForCredentialProviders",
    "KubeletTracing",
    "ListFromCacheSnapshot",
    "LocalStorageCapacityIsolationFSQuotaMonitoring",
    "LogarithmicScaleDown",
    "LoggingAlphaOptions",
    "LoggingBetaOptions",
    "ManifestBasedAdmissionControlConfig",
    "MatchLabelKeysInPodAffinity",
    "MatchLabelKeysInPodTopologySpread",
    "MatchLabelKeysInPodTopologySpreadSelectorMerge",
    "MaxUnavailableStatefulSet",
    "MemoryManager",
    "MemoryQoS",
    "MultiCIDRServiceAllocator",
    "MutableCSINodeAllocatableCount",
    "MutablePVNodeAffinity",
    "MutablePodResourcesForSuspendedJobs",
    "MutableSchedulingDirectivesForSuspendedJobs",
    "MutatingAdmissionPolicy",
    "NFTablesProxyMode",
    "NativeHistograms",
    "NodeDeclaredFeatures",
    "NodeInclusionPolicyInPodTopologySpread",
    "NodeLogQuery",
    "NodeSwap",
    "NominatedNodeNameForExpectation",
    "OpenAPIEnums",
    "OpportunisticBatching",
    "OrderedNamespaceDeletion",
    "PLEGOnDemandRelist",
    "PersistentVolumeClaimUnusedSinceTime",
    "PodAndContainerStatsFromCRI",
    "PodCertificateRequest",
    "PodDeletionCost",
    "PodLevelResourceManagers",
    "PodLevelResources",
    "PodLifecycleSleepAction",
    "PodLifecycleSleepActionAllowZero",
    "PodLogsQuerySplitStreams",
    "PodObservedGenerationTracking",
    "PodReadyToStartContainersCondition",
    "PodSchedulingReadiness",
    "PodTopologyLabelsAdmission",
    "PodsAPI",
    "PortForwardWebsockets",
    "PreferSameTrafficDistribution",
    "PreventStaticPodAPIReferences",
    "ProcMountType",
    "QOSReserved",
    "RecoverVolumeExpansionFailure",
    "RecursiveReadOnlyMounts",
    "ReduceDefaultCrashLoopBackOffDecay",
    "RelaxedDNSSearchValidation",
    "RelaxedEnvironmentVariableValidation",
    "RelaxedServiceNameValidation",
    "ReloadKubeletClientCAFile",
    "ReloadKubeletServerCertificateFile",
    "RemoteRequestHeaderUID",
    "ResilientWatchCacheInitialization",
    "ResourceHealthStatus",
    "ResourceHealthStatusMessage",
    "RestartAllContainersOnContainerExits",
    "RetryGenerateName",
    "RotateKubeletServerCertificate",
    "RuntimeClassInImageCriApi",
    "SELinuxChangePolicy",
    "SELinuxMount",
    "SELinuxMountReadWriteOncePod",
    "SchedulerAsyncAPICalls",
    "SchedulerAsyncPreemption",
    "SchedulerPopFromBackoffQ",
    "SchedulerQueueingHints",
    "SeparateTaintEvictionController",
    "ServiceAccountNodeAudienceRestriction",
    "ServiceAccountTokenJTI",
    "ServiceAccountTokenNodeBinding",
    "ServiceAccountTokenNodeBindingValidation",
    "ServiceAccountTokenPodNodeInfo",
    "ServiceTrafficDistribution",
    "ShardedListAndWatch",
    "SidecarContainers",
    "SizeBasedListCostEstimate",
    "StaleControllerConsistencyDaemonSet",
    "StaleControllerConsistencyJob",
    "StaleControllerConsistencyReplicaSet",
    "StaleControllerConsistencyStatefulSet",
    "StatefulSetSemanticRevisionComparison",
    "StorageCapacityScoring",
    "StorageNamespaceIndex",
    "StorageVersionAPI",
    "StorageVersionHash",
    "StorageVersionMigrator",
    "StreamingCollectionEncodingToJSON",
    "StreamingCollectionEncodingToProtobuf",
    "StrictIPCIDRValidation",
    "StructuredAuthenticationConfiguration",
    "StructuredAuthenticationConfigurationEgressSelector",
    "StructuredAuthenticationConfigurationJWKSMetrics",
    "StructuredAuthorizationConfiguration",
    "SupplementalGroupsPolicy",
    "SystemdWatchdog",
    "TaintTolerationComparisonOperators",
    "TokenRequestServiceAccountUIDValidation",
    "TopologyAwareHints",
    "TopologyAwareWorkloadScheduling",
    "TopologyManagerPolicyAlphaOptions",
    "TopologyManagerPolicyBetaOptions",
    "TopologyManagerPolicyOptions",
    "TranslateStreamCloseWebsocketRequests",
    "UnauthenticatedHTTP2DOSMitigation",
    "UnknownVersionInteroperabilityProxy",
    "UnlockWhileProcessingFIFO",
    "UserNamespacesHostNetworkSupport",
    "UserNamespacesSupport",
    "ValidatingAdmissionPolicy",
    "VolumeAttributesClass",
    "VolumeLimitScaling",
    "WatchCacheInitializationPostStartHook",
    "WatchFromStorageWithoutResourceVersion",
    "WatchList",
    "WatchListClient",
    "WinDSR",
    "WinOverlay",
    "WindowsCPUAndMemoryAffinity",
    "WindowsGracefulNodeShutdown",
    "WindowsHostNetwork",
    "WorkloadAwarePreemption",
    "WorkloadWithJob",
];

/// Whether `name` is a gate of v1.36.
pub(super) fn is_known(name: &str) -> bool {
    KNOWN.binary_search(&name).is_ok()
}

/// Whether a gate that is on by default as a beta feature has been switched off, by itself or with all
/// others of its kind.
pub(super) fn beta_is_off(gates: Option<&BTreeMap<String, bool>>, name: &str) -> bool {
    let given = |name: &str| gates.and_then(|gates| gates.get(name)).copied();
    given(name).or_else(|| given("AllBeta")) == Some(false)
}

/// What of the gates given has no effect, in words; `None` when all have theirs.
pub(super) fn remark(gates: &BTreeMap<String, bool>) -> Option<String> {
    let idle = gates
        .keys()
        .filter(|name| *name != ENSURE_SECRET_PULLED_IMAGES);
    let shown = |name: &String| match name.as_str() {
        "AllBeta" => format!("AllBeta (but for {ENSURE_SECRET_PULLED_IMAGES})"),
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

/// What to say about an unknown gate.
pub(super) fn unknown_message(name: &str) -> String {
    match closest(name, KNOWN) {
        Some(near) => format!("unrecognized feature gate: {name}; did you mean {near}?"),
        None => format!("unrecognized feature gate: {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_so_that_it_can_be_searched() {
        assert!(KNOWN.is_sorted());
    }

    #[test]
    fn known_gates_are_known_and_unknown_ones_get_a_suggestion() {
        for name in [
            "EventedPLEG",
            "AllAlpha",
            "PLEGOnDemandRelist",
            "UserNamespacesSupport",
        ] {
            assert!(is_known(name), "{name}");
        }
        assert!(!is_known("NoSuchGate"));
        assert_eq!(
            unknown_message("NoSuchGate"),
            "unrecognized feature gate: NoSuchGate"
        );
        assert_eq!(
            unknown_message("EventedPleg2"),
            "unrecognized feature gate: EventedPleg2; did you mean EventedPLEG?"
        );
    }
}
