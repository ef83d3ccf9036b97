//! Which settings have an effect in this kubelet. Others are accepted, and reported if their value is not the
//! default.

use super::flags::Flags;
use super::kubelet_configuration::KubeletConfiguration;

/// Fields that are implemented, or that only affect other fields in this list.
const SUPPORTED: &[&str] = &[
    "apiVersion",
    "kind",
    "staticPodPath",
    "staticPodURL",
    "staticPodURLHeader",
    "syncFrequency",
    "fileCheckFrequency",
    "httpCheckFrequency",
    "podLogsDir",
    "containerLogMaxSize",
    "containerLogMaxFiles",
    "containerLogMaxWorkers",
    "containerLogMonitorInterval",
    "enableServer",
    "streamingConnectionIdleTimeout",
    "address",
    "port",
    "authentication",
    "authorization",
    "tlsCertFile",
    "tlsPrivateKeyFile",
    "tlsCipherSuites",
    "tlsCurvePreferences",
    "tlsMinVersion",
    "readOnlyPort",
    "healthzPort",
    "healthzBindAddress",
    "oomScoreAdj",
    "maxOpenFiles",
    "containerRuntimeEndpoint",
    "imageServiceEndpoint",
    "runtimeRequestTimeout",
    "enableDebuggingHandlers",
    "enableSystemLogHandler",
    "enableSystemLogQuery",
    "enableProfilingHandler",
    "enableDebugFlagsHandler",
    "rotateCertificates",
    "serverTLSBootstrap",
    "kubeAPIQPS",
    "kubeAPIBurst",
    "registryPullQPS",
    "registryBurst",
    "serializeImagePulls",
    "maxParallelImagePulls",
    "imageMinimumGCAge",
    "imageMaximumGCAge",
    "evictionHard",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "evictionPressureTransitionPeriod",
    "evictionMaxPodGracePeriod",
    "evictionMinimumReclaim",
    "mergeDefaultEvictionSettings",
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
    "imagePullCredentialsVerificationPolicy",
    "preloadedImagesVerificationAllowlist",
    "clusterDNS",
    "clusterDomain",
    "resolvConf",
    "crashLoopBackOff",
    "seccompDefault",
    "allowedUnsafeSysctls",
    "userNamespaces",
    "singleProcessOOMKill",
    "cpuCFSQuota",
    "cpuCFSQuotaPeriod",
    "failSwapOn",
    "failCgroupV1",
    "protectKernelDefaults",
    "logging",
    "tracing",
    "cgroupsPerQOS",
    "cgroupRoot",
    "cgroupDriver",
    "kubeletCgroups",
    "systemCgroups",
    "shutdownGracePeriod",
    "shutdownGracePeriodCriticalPods",
    "shutdownGracePeriodByPodPriority",
    "enforceNodeAllocatable",
    "systemReserved",
    "systemReservedCgroup",
    "kubeReserved",
    "kubeReservedCgroup",
    "podPidsLimit",
    "qosReserved",
    "memorySwap",
    "memoryThrottlingFactor",
    "memoryReservationPolicy",
    "cpuManagerPolicy",
    "cpuManagerPolicyOptions",
    "cpuManagerReconcilePeriod",
    "reservedSystemCPUs",
    "memoryManagerPolicy",
    "reservedMemory",
    "topologyManagerPolicy",
    "topologyManagerPolicyOptions",
    "topologyManagerScope",
    "localStorageCapacityIsolation",
    "maxPods",
    "podsPerCore",
    // Reported separately, as a warning with the gates.
    "featureGates",
    "volumeStatsAggPeriod",
];

/// Fields that only matter to a node in a cluster.
const SUPPORTED_IN_CLUSTERS: &[&str] = &[
    "registerNode",
    "registerWithTaints",
    "providerID",
    "nodeStatusUpdateFrequency",
    "nodeStatusReportFrequency",
    "nodeStatusMaxImages",
    "nodeLeaseDurationSeconds",
    "enableControllerAttachDetach",
    "eventRecordQPS",
    "eventBurst",
];

/// The given settings that have no effect yet: fields by name, flags with their dashes.
///
/// `effective` is the configuration with defaults; `defaults` has only the defaults.
pub(super) fn unsupported(
    effective: &KubeletConfiguration,
    defaults: &KubeletConfiguration,
    flags: &Flags,
) -> Vec<String> {
    let fields = |config| match serde_json::to_value(config) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let defaults = fields(defaults);
    let mut names: Vec<String> = fields(effective)
        .into_iter()
        .filter(|(name, value)| {
            let same = match defaults.get(name) {
                Some(default) => default == value,
                None => is_zero(value),
            };
            let name = name.as_str();
            let in_cluster = flags.kubeconfig.is_some() && SUPPORTED_IN_CLUSTERS.contains(&name);
            !same && !in_cluster && !SUPPORTED.contains(&name)
        })
        .map(|(name, _)| name)
        .collect();
    if flags.kubeconfig.is_none() && flags.cloud_provider.is_some() {
        names.push("--cloud-provider".to_owned());
    }
    names.sort();
    names
}

/// Whether a value is the zero value: generated files contain empty sections.
fn is_zero(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero),
    }
}
