//! The feature gates of v1.36. Pure.
//!
//! The list has the gates of all Kubernetes components, because they share one set. As upstream, an unknown name is
//! an error, so that a misspelled gate is noticed.

use super::decode::closest;

/// All gates, sorted by name. A gate with a value is locked to it; `AllAlpha` and `AllBeta` set groups of gates.
const KNOWN: &str = "
    APIResponseCompression APIServerIdentity APIServerTracing=true APIServingWithRoutine
    AggregatedDiscoveryRemoveBetaType=true AllAlpha AllBeta AllowDNSOnlyNodeCSR
    AllowInsecureKubeletCertificateSigningRequests
    AllowOverwriteTerminationGracePeriodSeconds=false AllowParsingUserUIDFromCertAuth
    AllowServiceExternalIPs AllowUnsafeMalformedObjectDeletion
    AnonymousAuthConfigurableEndpoints=true AnyVolumeDataSource=true AtomicFIFO
    AuthorizeNodeWithSelectors=true AuthorizePodWebsocketUpgradeCreatePermission
    AuthorizeWithSelectors=true BtreeWatchCache=true CBORServingAndStorage
    CPUManagerPolicyAlphaOptions CPUManagerPolicyBetaOptions CPUManagerPolicyOptions=true
    CRDObservedGenerationTracking CRDValidationRatcheting=true CRIListStreaming
    CSIServiceAccountTokenSecrets=true CSIVolumeHealth ChangeContainerStatusOnKubeletRestart
    ClearingNominatedNodeNameAfterBinding ClientsAllowCARotation ClientsAllowCBOR
    ClientsAllowTLSCacheGC ClientsPreferCBOR
    CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook
    ClusterTrustBundle ClusterTrustBundleProjection ComponentFlagz ComponentStatusz
    ConcurrentWatchObjectDecode ConsistentListFromCache=true ConstrainedImpersonation
    ContainerCheckpoint ContainerRestartRules ContainerStopSignals ContextualLogging
    ControllerManagerReleaseLeaderElectionLockOnExit CoordinatedLeaderElection
    CrossNamespaceVolumeDataSource CustomCPUCFSQuotaPeriod CustomResourceFieldSelectors=true
    DRAAdminAccess=true DRAConsumableCapacity DRADeviceBindingConditions DRADeviceTaintRules
    DRADeviceTaints DRAExtendedResource DRAListTypeAttributes DRANodeAllocatableResources
    DRAPartitionableDevices DRAPrioritizedList DRAResourceClaimDeviceStatus
    DRAResourceClaimGranularStatusAuthorization DRAResourcePoolStatus
    DRASchedulerFilterTimeout DRAWorkloadResourceClaims DeclarativeValidation=true
    DeclarativeValidationBeta DeclarativeValidationTakeover
    DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency
    DisableAllocatorDualWrite=true DisableCPUQuotaWithExclusiveCPUs
    DisableNodeKubeProxyVersion=true DynamicResourceAllocation=true EnvFiles EventedPLEG
    ExecProbeTimeout=true ExtendWebSocketsToKubelet ExternalServiceAccountTokenSigner=true
    GangScheduling GenericWorkload GitRepoVolumeDriver=false GracefulNodeShutdown
    GracefulNodeShutdownBasedOnPodPriority HPAConfigurableTolerance HPAScaleToZero
    HostnameOverride ImageMaximumGCAge=true ImageVolume=true ImageVolumeWithDigest
    InOrderInformers=true InOrderInformersBatchProcess
    InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScaling=true
    InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
    InPlacePodVerticalScalingInitContainers InformerResourceVersion
    JobBackoffLimitPerIndex=true JobManagedBy=true JobPodReplacementPolicy=true
    JobSuccessPolicy=true KMSv1 KubeletCgroupDriverFromCRI=true KubeletCrashLoopBackOffMax
    KubeletEnsureSecretPulledImages KubeletFineGrainedAuthz=true KubeletInUserNamespace
    KubeletPSI=true KubeletPodResourcesDynamicResources=true KubeletPodResourcesGet=true
    KubeletPodResourcesListUseActivePods KubeletRegistrationGetOnExistsOnly
    KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders
    KubeletTracing=true ListFromCacheSnapshot LocalStorageCapacityIsolationFSQuotaMonitoring
    LogarithmicScaleDown=true LoggingAlphaOptions LoggingBetaOptions LoggingStableOptions
    ManifestBasedAdmissionControlConfig MatchLabelKeysInPodAffinity=true
    MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge
    MaxUnavailableStatefulSet MemoryQoS MultiCIDRServiceAllocator=true
    MutableCSINodeAllocatableCount=true MutablePVNodeAffinity
    MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs
    MutatingAdmissionPolicy NFTablesProxyMode=true NativeHistograms NodeDeclaredFeatures
    NodeInclusionPolicyInPodTopologySpread=true NodeLogQuery=true NodeSwap=true
    NominatedNodeNameForExpectation OpenAPIEnums OpportunisticBatching
    OrderedNamespaceDeletion=true PLEGOnDemandRelist PersistentVolumeClaimUnusedSinceTime
    PodAndContainerStatsFromCRI PodCertificateRequest PodDeletionCost
    PodLevelResourceManagers PodLevelResources PodLifecycleSleepAction=true
    PodLifecycleSleepActionAllowZero=true PodLogsQuerySplitStreams
    PodObservedGenerationTracking=true PodReadyToStartContainersCondition
    PodSchedulingReadiness=true PodTopologyLabelsAdmission PodsAPI PortForwardWebsockets
    PreferSameTrafficDistribution=true PreventStaticPodAPIReferences ProcMountType=true
    QOSReserved RecoverVolumeExpansionFailure=true RecursiveReadOnlyMounts=true
    ReduceDefaultCrashLoopBackOffDecay RelaxedDNSSearchValidation=true
    RelaxedEnvironmentVariableValidation=true RelaxedServiceNameValidation
    ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile RemoteRequestHeaderUID
    ResilientWatchCacheInitialization=true ResourceHealthStatus ResourceHealthStatusMessage
    RestartAllContainersOnContainerExits RetryGenerateName=true
    RotateKubeletServerCertificate RuntimeClassInImageCriApi SELinuxChangePolicy=true
    SELinuxMount SELinuxMountReadWriteOncePod=true SchedulerAsyncAPICalls
    SchedulerAsyncPreemption SchedulerPopFromBackoffQ SchedulerQueueingHints=true
    SeparateCacheWatchRPC=false SeparateTaintEvictionController=true
    ServiceAccountNodeAudienceRestriction ServiceAccountTokenJTI=true
    ServiceAccountTokenNodeBinding=true ServiceAccountTokenNodeBindingValidation=true
    ServiceAccountTokenPodNodeInfo=true ServiceCIDRStatusFieldWiping ShardedListAndWatch
    SidecarContainers=true SizeBasedListCostEstimate StaleControllerConsistencyDaemonSet
    StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet
    StaleControllerConsistencyStatefulSet StatefulSetSemanticRevisionComparison
    StorageCapacityScoring StorageNamespaceIndex StorageVersionAPI StorageVersionHash
    StorageVersionMigrator StreamingCollectionEncodingToJSON=true
    StreamingCollectionEncodingToProtobuf=true StrictIPCIDRValidation
    StructuredAuthenticationConfiguration=true
    StructuredAuthenticationConfigurationEgressSelector
    StructuredAuthenticationConfigurationJWKSMetrics SupplementalGroupsPolicy=true
    SystemdWatchdog=true TaintTolerationComparisonOperators
    TokenRequestServiceAccountUIDValidation TopologyAwareWorkloadScheduling
    TopologyManagerPolicyAlphaOptions TopologyManagerPolicyBetaOptions
    TopologyManagerPolicyOptions=true TranslateStreamCloseWebsocketRequests
    UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy
    UnlockWhileProcessingFIFO UserNamespacesHostNetworkSupport UserNamespacesSupport=true
    VolumeAttributesClass=true VolumeLimitScaling WatchCacheInitializationPostStartHook
    WatchList WatchListClient WinDSR=true WinOverlay=true WindowsCPUAndMemoryAffinity
    WindowsGracefulNodeShutdown WindowsHostNetwork WorkloadAwarePreemption WorkloadWithJob
";

/// The gates in order, each with the value that it is locked to.
fn gates() -> impl Iterator<Item = (&'static str, Option<bool>)> {
    KNOWN.split_whitespace().map(|gate| match gate.split_once('=') {
        Some((name, value)) => (name, value.parse().ok()),
        None => (gate, None),
    })
}

/// Whether `name` is a gate of v1.36.
pub(super) fn is_known(name: &str) -> bool {
    gates().any(|(known, _)| known == name)
}

/// The value that a gate is locked to.
pub(super) fn locked_to(name: &str) -> Option<bool> {
    gates().find(|(known, _)| *known == name)?.1
}

/// The error for an unknown gate.
pub(super) fn unknown_message(name: &str) -> String {
    let names: Vec<&str> = gates().map(|(known, _)| known).collect();
    match closest(name, &names) {
        Some(near) => format!("unrecognized feature gate: {name}; did you mean {near}?"),
        None => format!("unrecognized feature gate: {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gates_are_sorted_and_every_value_is_a_boolean() {
        assert!(gates().is_sorted_by(|(before, _), (after, _)| before < after));
        for gate in KNOWN.split_whitespace() {
            let value = gate.split_once('=').map(|(_, value)| value);
            assert!(matches!(value, None | Some("true" | "false")), "{gate}");
        }
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
            "AllowServiceExternalIPs",
            "InOrderInformers",
            "LoggingStableOptions",
        ] {
            assert!(is_known(name), "{name}");
        }
        // Gates of earlier versions end the Go kubelet of this one, too.
        for name in ["NoSuchGate", "MemoryManager", "ValidatingAdmissionPolicy"] {
            assert!(!is_known(name), "{name}");
        }
        assert_eq!(unknown_message("NoSuchGate"), "unrecognized feature gate: NoSuchGate");
        assert_eq!(
            unknown_message("EventedPleg2"),
            "unrecognized feature gate: EventedPleg2; did you mean EventedPLEG?"
        );
    }
}
