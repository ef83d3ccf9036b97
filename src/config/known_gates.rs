//! The feature gates of v1.36. Pure.
//!
//! The list has the gates of all Kubernetes components, because they share one set. As upstream, an unknown name is
//! an error, so that a misspelled gate is noticed.

use super::decode::closest;

/// Whether a gate can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// To true and false.
    Settable,
    /// Only to this value.
    Locked(bool),
}
use Known::{Locked, Settable};

/// All gates, sorted by name; `AllAlpha` and `AllBeta` set groups of gates.
const KNOWN: &[(&str, Known)] = &[
    ("APIResponseCompression", Settable),
    ("APIServerIdentity", Settable),
    ("APIServerTracing", Locked(true)),
    ("APIServingWithRoutine", Settable),
    ("AggregatedDiscoveryRemoveBetaType", Locked(true)),
    ("AllAlpha", Settable),
    ("AllBeta", Settable),
    ("AllowDNSOnlyNodeCSR", Settable),
    ("AllowInsecureKubeletCertificateSigningRequests", Settable),
    ("AllowOverwriteTerminationGracePeriodSeconds", Locked(false)),
    ("AllowParsingUserUIDFromCertAuth", Settable),
    ("AllowUnsafeMalformedObjectDeletion", Settable),
    ("AnonymousAuthConfigurableEndpoints", Locked(true)),
    ("AnyVolumeDataSource", Locked(true)),
    ("AtomicFIFO", Settable),
    ("AuthorizeNodeWithSelectors", Locked(true)),
    ("AuthorizePodWebsocketUpgradeCreatePermission", Settable),
    ("AuthorizeWithSelectors", Locked(true)),
    ("BtreeWatchCache", Locked(true)),
    ("CBORServingAndStorage", Settable),
    ("CPUManagerPolicyAlphaOptions", Settable),
    ("CPUManagerPolicyBetaOptions", Settable),
    ("CPUManagerPolicyOptions", Locked(true)),
    ("CRDObservedGenerationTracking", Settable),
    ("CRDValidationRatcheting", Locked(true)),
    ("CRIListStreaming", Settable),
    ("CSIMigrationPortworx", Settable),
    ("CSIServiceAccountTokenSecrets", Locked(true)),
    ("CSIVolumeHealth", Settable),
    ("ChangeContainerStatusOnKubeletRestart", Settable),
    ("ClearingNominatedNodeNameAfterBinding", Settable),
    ("ClientsAllowCARotation", Settable),
    ("ClientsAllowCBOR", Settable),
    ("ClientsAllowTLSCacheGC", Settable),
    ("ClientsPreferCBOR", Settable),
    (
        "CloudControllerManagerWatchBasedRoutesReconciliation",
        Settable,
    ),
    ("CloudControllerManagerWebhook", Settable),
    ("ClusterTrustBundle", Settable),
    ("ClusterTrustBundleProjection", Settable),
    ("ComponentFlagz", Settable),
    ("ComponentStatusz", Settable),
    ("ConcurrentWatchObjectDecode", Settable),
    ("ConsistentListFromCache", Locked(true)),
    ("ConstrainedImpersonation", Settable),
    ("ContainerCheckpoint", Settable),
    ("ContainerRestartRules", Settable),
    ("ContainerStopSignals", Settable),
    ("ContextualLogging", Settable),
    ("ControllerManagerReleaseLeaderElectionLockOnExit", Settable),
    ("CoordinatedLeaderElection", Settable),
    ("CrossNamespaceVolumeDataSource", Settable),
    ("CustomCPUCFSQuotaPeriod", Settable),
    ("CustomResourceFieldSelectors", Locked(true)),
    ("DRAAdminAccess", Locked(true)),
    ("DRAConsumableCapacity", Settable),
    ("DRADeviceBindingConditions", Settable),
    ("DRADeviceTaintRules", Settable),
    ("DRADeviceTaints", Settable),
    ("DRAExtendedResource", Settable),
    ("DRAListTypeAttributes", Settable),
    ("DRANodeAllocatableResources", Settable),
    ("DRAPartitionableDevices", Settable),
    ("DRAPrioritizedList", Settable),
    ("DRAResourceClaimDeviceStatus", Settable),
    ("DRAResourceClaimGranularStatusAuthorization", Settable),
    ("DRAResourcePoolStatus", Settable),
    ("DRASchedulerFilterTimeout", Settable),
    ("DRAWorkloadResourceClaims", Settable),
    ("DeclarativeValidation", Locked(true)),
    ("DeclarativeValidationBeta", Settable),
    ("DeclarativeValidationTakeover", Settable),
    ("DeploymentReplicaSetTerminatingReplicas", Settable),
    ("DetectCacheInconsistency", Settable),
    ("DisableAllocatorDualWrite", Locked(true)),
    ("DisableCPUQuotaWithExclusiveCPUs", Settable),
    ("DisableNodeKubeProxyVersion", Locked(true)),
    ("DynamicResourceAllocation", Locked(true)),
    ("EnvFiles", Settable),
    ("EventedPLEG", Settable),
    ("ExecProbeTimeout", Locked(true)),
    ("ExtendWebSocketsToKubelet", Settable),
    ("ExternalServiceAccountTokenSigner", Locked(true)),
    ("GangScheduling", Settable),
    ("GenericWorkload", Settable),
    ("GitRepoVolumeDriver", Locked(false)),
    ("GracefulNodeShutdown", Settable),
    ("GracefulNodeShutdownBasedOnPodPriority", Settable),
    ("HPAConfigurableTolerance", Settable),
    ("HPAScaleToZero", Settable),
    ("HonorPVReclaimPolicy", Settable),
    ("HostnameOverride", Settable),
    ("ImageMaximumGCAge", Locked(true)),
    ("ImageVolume", Locked(true)),
    ("ImageVolumeWithDigest", Settable),
    ("InOrderInformersBatchProcess", Settable),
    ("InPlacePodLevelResourcesVerticalScaling", Settable),
    ("InPlacePodVerticalScaling", Locked(true)),
    ("InPlacePodVerticalScalingAllocatedStatus", Settable),
    ("InPlacePodVerticalScalingExclusiveCPUs", Settable),
    ("InPlacePodVerticalScalingExclusiveMemory", Settable),
    ("InPlacePodVerticalScalingInitContainers", Settable),
    ("InTreePluginPortworxUnregister", Settable),
    ("JobBackoffLimitPerIndex", Locked(true)),
    ("JobManagedBy", Locked(true)),
    ("JobPodReplacementPolicy", Locked(true)),
    ("JobSuccessPolicy", Locked(true)),
    ("KMSv1", Settable),
    ("KubeletCgroupDriverFromCRI", Locked(true)),
    ("KubeletCrashLoopBackOffMax", Settable),
    ("KubeletEnsureSecretPulledImages", Settable),
    ("KubeletFineGrainedAuthz", Locked(true)),
    ("KubeletInUserNamespace", Settable),
    ("KubeletPSI", Locked(true)),
    ("KubeletPodResourcesDynamicResources", Locked(true)),
    ("KubeletPodResourcesGet", Locked(true)),
    ("KubeletPodResourcesListUseActivePods", Settable),
    ("KubeletRegistrationGetOnExistsOnly", Settable),
    ("KubeletSeparateDiskGC", Settable),
    ("KubeletServiceAccountTokenForCredentialProviders", Settable),
    ("KubeletTracing", Locked(true)),
    ("ListFromCacheSnapshot", Settable),
    ("LocalStorageCapacityIsolationFSQuotaMonitoring", Settable),
    ("LogarithmicScaleDown", Locked(true)),
    ("LoggingAlphaOptions", Settable),
    ("LoggingBetaOptions", Settable),
    ("ManifestBasedAdmissionControlConfig", Settable),
    ("MatchLabelKeysInPodAffinity", Locked(true)),
    ("MatchLabelKeysInPodTopologySpread", Settable),
    ("MatchLabelKeysInPodTopologySpreadSelectorMerge", Settable),
    ("MaxUnavailableStatefulSet", Settable),
    ("MemoryManager", Settable),
    ("MemoryQoS", Settable),
    ("MultiCIDRServiceAllocator", Locked(true)),
    ("MutableCSINodeAllocatableCount", Locked(true)),
    ("MutablePVNodeAffinity", Settable),
    ("MutablePodResourcesForSuspendedJobs", Settable),
    ("MutableSchedulingDirectivesForSuspendedJobs", Settable),
    ("MutatingAdmissionPolicy", Settable),
    ("NFTablesProxyMode", Locked(true)),
    ("NativeHistograms", Settable),
    ("NodeDeclaredFeatures", Settable),
    ("NodeInclusionPolicyInPodTopologySpread", Locked(true)),
    ("NodeLogQuery", Locked(true)),
    ("NodeSwap", Locked(true)),
    ("NominatedNodeNameForExpectation", Settable),
    ("OpenAPIEnums", Settable),
    ("OpportunisticBatching", Settable),
    ("OrderedNamespaceDeletion", Locked(true)),
    ("PLEGOnDemandRelist", Settable),
    ("PersistentVolumeClaimUnusedSinceTime", Settable),
    ("PodAndContainerStatsFromCRI", Settable),
    ("PodCertificateRequest", Settable),
    ("PodDeletionCost", Settable),
    ("PodLevelResourceManagers", Settable),
    ("PodLevelResources", Settable),
    ("PodLifecycleSleepAction", Locked(true)),
    ("PodLifecycleSleepActionAllowZero", Locked(true)),
    ("PodLogsQuerySplitStreams", Settable),
    ("PodObservedGenerationTracking", Locked(true)),
    ("PodReadyToStartContainersCondition", Settable),
    ("PodSchedulingReadiness", Locked(true)),
    ("PodTopologyLabelsAdmission", Settable),
    ("PodsAPI", Settable),
    ("PortForwardWebsockets", Settable),
    ("PreferSameTrafficDistribution", Locked(true)),
    ("PreventStaticPodAPIReferences", Settable),
    ("ProcMountType", Locked(true)),
    ("QOSReserved", Settable),
    ("RecoverVolumeExpansionFailure", Locked(true)),
    ("RecursiveReadOnlyMounts", Locked(true)),
    ("ReduceDefaultCrashLoopBackOffDecay", Settable),
    ("RelaxedDNSSearchValidation", Locked(true)),
    ("RelaxedEnvironmentVariableValidation", Locked(true)),
    ("RelaxedServiceNameValidation", Settable),
    ("ReloadKubeletClientCAFile", Settable),
    ("ReloadKubeletServerCertificateFile", Settable),
    ("RemoteRequestHeaderUID", Settable),
    ("ResilientWatchCacheInitialization", Locked(true)),
    ("ResourceHealthStatus", Settable),
    ("ResourceHealthStatusMessage", Settable),
    ("RestartAllContainersOnContainerExits", Settable),
    ("RetryGenerateName", Locked(true)),
    ("RotateKubeletServerCertificate", Settable),
    ("RuntimeClassInImageCriApi", Settable),
    ("SELinuxChangePolicy", Locked(true)),
    ("SELinuxMount", Settable),
    ("SELinuxMountReadWriteOncePod", Locked(true)),
    ("SchedulerAsyncAPICalls", Settable),
    ("SchedulerAsyncPreemption", Settable),
    ("SchedulerPopFromBackoffQ", Settable),
    ("SchedulerQueueingHints", Locked(true)),
    ("SeparateTaintEvictionController", Locked(true)),
    ("ServiceAccountNodeAudienceRestriction", Settable),
    ("ServiceAccountTokenJTI", Locked(true)),
    ("ServiceAccountTokenNodeBinding", Locked(true)),
    ("ServiceAccountTokenNodeBindingValidation", Locked(true)),
    ("ServiceAccountTokenPodNodeInfo", Locked(true)),
    ("ServiceTrafficDistribution", Settable),
    ("ShardedListAndWatch", Settable),
    ("SidecarContainers", Locked(true)),
    ("SizeBasedListCostEstimate", Settable),
    ("StaleControllerConsistencyDaemonSet", Settable),
    ("StaleControllerConsistencyJob", Settable),
    ("StaleControllerConsistencyReplicaSet", Settable),
    ("StaleControllerConsistencyStatefulSet", Settable),
    ("StatefulSetSemanticRevisionComparison", Settable),
    ("StorageCapacityScoring", Settable),
    ("StorageNamespaceIndex", Settable),
    ("StorageVersionAPI", Settable),
    ("StorageVersionHash", Settable),
    ("StorageVersionMigrator", Settable),
    ("StreamingCollectionEncodingToJSON", Locked(true)),
    ("StreamingCollectionEncodingToProtobuf", Locked(true)),
    ("StrictIPCIDRValidation", Settable),
    ("StructuredAuthenticationConfiguration", Locked(true)),
    (
        "StructuredAuthenticationConfigurationEgressSelector",
        Settable,
    ),
    ("StructuredAuthenticationConfigurationJWKSMetrics", Settable),
    ("StructuredAuthorizationConfiguration", Settable),
    ("SupplementalGroupsPolicy", Locked(true)),
    ("SystemdWatchdog", Locked(true)),
    ("TaintTolerationComparisonOperators", Settable),
    ("TokenRequestServiceAccountUIDValidation", Settable),
    ("TopologyAwareHints", Settable),
    ("TopologyAwareWorkloadScheduling", Settable),
    ("TopologyManagerPolicyAlphaOptions", Settable),
    ("TopologyManagerPolicyBetaOptions", Settable),
    ("TopologyManagerPolicyOptions", Locked(true)),
    ("TranslateStreamCloseWebsocketRequests", Settable),
    ("UnauthenticatedHTTP2DOSMitigation", Settable),
    ("UnknownVersionInteroperabilityProxy", Settable),
    ("UnlockWhileProcessingFIFO", Settable),
    ("UserNamespacesHostNetworkSupport", Settable),
    ("UserNamespacesSupport", Locked(true)),
    ("ValidatingAdmissionPolicy", Settable),
    ("VolumeAttributesClass", Locked(true)),
    ("VolumeLimitScaling", Settable),
    ("WatchCacheInitializationPostStartHook", Settable),
    ("WatchFromStorageWithoutResourceVersion", Settable),
    ("WatchList", Settable),
    ("WatchListClient", Settable),
    ("WinDSR", Locked(true)),
    ("WinOverlay", Locked(true)),
    ("WindowsCPUAndMemoryAffinity", Settable),
    ("WindowsGracefulNodeShutdown", Settable),
    ("WindowsHostNetwork", Settable),
    ("WorkloadAwarePreemption", Settable),
    ("WorkloadWithJob", Settable),
];

fn find(name: &str) -> Option<Known> {
    let index = KNOWN.binary_search_by_key(&name, |(known, _)| known);
    KNOWN.get(index.ok()?).map(|(_, known)| *known)
}

/// Whether `name` is a gate of v1.36.
pub(super) fn is_known(name: &str) -> bool {
    find(name).is_some()
}

/// The value that a gate is locked to.
pub(super) fn locked_to(name: &str) -> Option<bool> {
    match find(name)? {
        Locked(value) => Some(value),
        Settable => None,
    }
}

/// The error for an unknown gate.
pub(super) fn unknown_message(name: &str) -> String {
    let names: Vec<&str> = KNOWN.iter().map(|(known, _)| *known).collect();
    match closest(name, &names) {
        Some(near) => format!("unrecognized feature gate: {name}; did you mean {near}?"),
        None => format!("unrecognized feature gate: {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_so_that_it_can_be_searched() {
        assert!(KNOWN.is_sorted_by_key(|(name, _)| name));
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
