use crate::config::kubelet_configuration::{Decoding, Part, read};
use crate::config::{Flags, HostFacts, Layers, resolve};

const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

#[test]
fn each_rule_is_broken_by_its_own_example() {
    let cases = [
        ("port: 65536", "port: must be between 1 and 65535"),
        ("healthzPort: -1", "healthzPort: must be between 1 and 65535, or 0"),
        ("healthzPort: 10250", "healthzPort: must differ from port"),
        (
            "tracing: {samplingRatePerMillion: 1000001}",
            "tracing.samplingRatePerMillion: must be between 0 and 1000000",
        ),
        (
            "tracing: {samplingRatePerMillion: -1}",
            "tracing.samplingRatePerMillion: must be between 0 and 1000000",
        ),
        (
            "tracing: {endpoint: \"http://localhost:4317\"}",
            "tracing.endpoint: must be host:port, dns:///host:port or unix:///path",
        ),
        ("tracing: {endpoint: localhost}", "tracing.endpoint: must end with a port"),
        (
            "tracing: {endpoint: \"me:hush@localhost:4317\"}",
            "tracing.endpoint: must have a host name or an IP address",
        ),
        ("address: localhost", "address: must be an IP address"),
        ("imageMinimumGCAge: -1s", "imageMinimumGCAge: must not be negative"),
        ("imageMaximumGCAge: 1m", "imageMaximumGCAge: must be greater than imageMinimumGCAge"),
        ("syncFrequency: -1m", "syncFrequency: must be greater than 0"),
        ("runtimeRequestTimeout: -2m", "runtimeRequestTimeout: must be greater than 0"),
        ("maxPods: -1", "maxPods: must be 0 or greater"),
        ("registryBurst: -1", "registryBurst: must be 0 or greater"),
        ("maxParallelImagePulls: 0", "maxParallelImagePulls: must be 1 or greater"),
        ("maxParallelImagePulls: 2\nserializeImagePulls: true", "maxParallelImagePulls: must be 1"),
        ("cpuCFSQuotaPeriod: 2s", "cpuCFSQuotaPeriod: must be between 1ms and 1s"),
        ("oomScoreAdj: 1001", "oomScoreAdj: must be between -1000 and 1000"),
        ("crashLoopBackOff: {maxContainerRestartPeriod: 500ms}", "must be between 1s and 5m0s"),
        ("containerLogMaxSize: ten", "containerLogMaxSize: \"ten\" is not a quantity"),
        ("containerLogMaxSize: \"0\"", "containerLogMaxSize: must not be 0"),
        ("containerLogMonitorInterval: 1s", "containerLogMonitorInterval: must be 3s or greater"),
        ("podLogsDir: logs", "podLogsDir: must be an absolute path"),
        ("podLogsDir: /var/../logs", "podLogsDir: must not have"),
        ("podLogsDir: /var/l\u{f6}g", "podLogsDir: must be plain ASCII"),
        ("containerRuntimeEndpoint: tcp://1.2.3.4", "containerRuntimeEndpoint: must be unix://"),
        ("staticPodURL: ftp://host/x", "staticPodURL: must be an http"),
        ("staticPodURLHeader: {\"a b\": [c]}", "is not a header name"),
        ("staticPodURLHeader: {a: [\"c\\nd\"]}", "line break"),
        ("evictionHard: {disk: 5%}", "evictionHard.disk: unknown eviction signal"),
        ("evictionHard: {nodefs.available: 101%}", "must be between 0% and 100%"),
        ("evictionHard: {memory.available: much}", "is not a quantity"),
        ("evictionSoftGracePeriod: {memory.available: 5}", ""),
        ("systemReserved: {gpu: \"1\"}", "systemReserved.gpu: must be cpu, memory"),
        ("qosReserved: {memory: \"5\"}", "must be a percentage"),
        ("enforceNodeAllocatable: [none, pods]", "\"none\" must stand alone"),
        ("enforceNodeAllocatable: [kube-reserved]", "needs kubeReservedCgroup"),
        ("cgroupsPerQOS: false", "needs cgroupsPerQOS: true"),
        ("reservedSystemCPUs: 3-1", "must be a list of CPUs"),
        ("shutdownGracePeriodCriticalPods: 10s", "must not exceed shutdownGracePeriod"),
        ("shutdownGracePeriod: 10ms", "must be 0s or at least 1s"),
        (
            "shutdownGracePeriod: 10s\nfeatureGates: {GracefulNodeShutdown: false}",
            "must not be set while feature gate GracefulNodeShutdown is off",
        ),
        (
            "shutdownGracePeriodByPodPriority: [{priority: 0}]\nfeatureGates: {AllBeta: false}",
            "must not be set while feature gate GracefulNodeShutdownBasedOnPodPriority is off",
        ),
        ("registerWithTaints: [{key: a, effect: Never}]", "effect: must be one of"),
        ("authorization: {mode: None}", "authorization.mode: must be one of"),
        ("tlsCertFile: /c", "tlsCertFile: needs tlsPrivateKeyFile"),
        (
            "tlsCipherSuites: [TLS_AES_128_GCM_SHA256, TLS_NULL]",
            "tlsCipherSuites[1]: cipher suite \"TLS_NULL\" is not known",
        ),
        ("tlsCurvePreferences: [25]", "tlsCurvePreferences: none of these is supported"),
        (
            "systemCgroups: /system",
            "systemCgroups: systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified",
        ),
        (
            "systemCgroups: //\ncgroupRoot: /",
            "systemCgroups: system container cannot be root (\"/\")",
        ),
        (
            "systemCgroups: /a/..\ncgroupRoot: /",
            "systemCgroups: \"/a/..\" is not the path of a cgroup",
        ),
        (
            "kubeletCgroups: ../kubelet",
            "kubeletCgroups: \"../kubelet\" is not the path of a cgroup",
        ),
        ("logging: {format: xml}", "logging.format: must be one of text, json"),
        ("logging: {vmodule: [{filePattern: \"a=b\", verbosity: 1}]}", "logging.vmodule[0]"),
        ("userNamespaces: {idsPerPod: 1000}", "userNamespaces.idsPerPod: must be a multiple"),
        ("runOnce: true", "runOnce: must be false"),
        ("memorySwap: {swapBehavior: Always}", "memorySwap.swapBehavior: must be one of"),
        ("memoryThrottlingFactor: 1.5", "memoryThrottlingFactor: must be greater than 0"),
        ("hairpinMode: loop", "hairpinMode: must be one of"),
        ("featureGates: {NoSuchGate: true}", "unrecognized feature gate: NoSuchGate"),
        (
            "featureGates: {KubeletPSI: false}",
            "cannot set feature gate KubeletPSI to false, feature is locked to true",
        ),
    ];
    let facts = HostFacts { hostname: "node".to_owned() };
    for (body, expected) in cases {
        let text = format!("{HEADER}{body}\n");
        let said = match read("f", &text, Part::File, Decoding::Lenient) {
            Err(mistaken) => mistaken.to_string(),
            Ok((file, _)) => {
                let layers = Layers { file: Some(file), ..Layers::default() };
                let resolved = resolve(&Flags::default(), layers, &facts);
                resolved.unwrap_err().to_string()
            }
        };
        assert!(said.contains(expected), "{body}: {said}");
    }
}
