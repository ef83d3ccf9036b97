use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::kubelet_configuration::{Decoding, Part, read};
use super::*;
use crate::images::records::VerificationPolicy;
use crate::images::{ImagesConfig, PullConfig};
use crate::node::certificates::IdentityConfig;
use crate::runtime::kuberuntime::GcPolicy;
use crate::runtime::logs::rotation::{self, RotationPolicy};

const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn flags(list: &[&str]) -> Flags {
    match parse_args(list.iter().map(std::ffi::OsString::from)) {
        Ok(Invocation::Run(flags)) => *flags,
        other => panic!("{list:?}: {other:?}"),
    }
}

fn facts() -> HostFacts {
    HostFacts { hostname: " Node-1\n".to_owned() }
}

/// The trees of a file and its drop-ins, from their bodies (without headers; named f0, f1, ...).
fn layers(bodies: &[&str]) -> Layers {
    let mut layers = Layers::default();
    for (index, body) in bodies.iter().enumerate() {
        let (name, text) = (format!("f{index}"), format!("{HEADER}{body}"));
        let parse = |part| read(&name, &text, part, Decoding::Strict).unwrap().0;
        match index {
            0 => layers.file = Some(parse(Part::File)),
            _ => layers.drop_ins.push(parse(Part::DropIn)),
        }
    }
    layers
}

/// Resolves flags, and the bodies of a file and its drop-ins.
fn resolved(list: &[&str], bodies: &[&str]) -> Result<KubeletConfig, Problems> {
    resolve(&flags(list), layers(bodies), &facts())
}

/// The warnings about a file.
fn read_leniently(body: &str) -> Vec<String> {
    let text = format!("{HEADER}{body}");
    let (_, warnings) = read("f", &text, Part::File, Decoding::Lenient).unwrap();
    warnings.iter().map(ConfigProblem::to_string).collect()
}

fn problems(list: &[&str], bodies: &[&str]) -> Vec<String> {
    resolved(list, bodies).unwrap_err().0.iter().map(ConfigProblem::to_string).collect()
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn nothing_given_means_the_defaults() {
    let config = resolved(&[], &[]).unwrap();
    assert_eq!(config.node_name, "node-1");
    assert_eq!(config.root_dir, PathBuf::from("/var/lib/kubelet"));
    assert_eq!(config.sync_frequency, Duration::from_secs(60));
    assert_eq!(config.static_pods.path, None);
    assert_eq!(config.static_pods.url, None);
    assert_eq!(config.static_pods.file_check_frequency, Duration::from_secs(20));
    assert_eq!(config.server.address, address("0.0.0.0:10250"));
    assert_eq!(config.server.read_only, None);
    assert_eq!(config.server.healthz, Some(address("127.0.0.1:10248")));
    assert_eq!(config.runtime.endpoint, "unix:///run/containerd/containerd.sock");
    assert_eq!(config.runtime.image_endpoint, config.runtime.endpoint);
    assert_eq!(config.runtime.request_timeout, Duration::from_secs(120));
    let images = ImagesConfig {
        pulls: PullConfig { serialize: false, max_parallel: None, qps: Some(5), burst: 10 },
        verification: Some(VerificationPolicy::NeverVerifyPreloadedImages),
        credential_providers: None,
    };
    assert_eq!(config.images, images);
    assert_eq!(
        config.containers,
        ContainersConfig {
            max_restart_back_off: Duration::from_secs(300),
            seccomp_default: false,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: Duration::from_millis(100),
            gc_policy: GcPolicy {
                min_age: Duration::ZERO,
                max_per_container: Some(1),
                max_containers: None,
            },
            allowed_unsafe_sysctls: vec![],
        }
    );
    assert_eq!(config.pod_logs_dir, Path::new("/var/log/pods"));
    assert_eq!(
        config.log_rotation,
        Some(rotation::Config {
            policy: RotationPolicy { max_size: 10 << 20, max_files: 5 },
            workers: 1,
            interval: Duration::from_secs(10),
        })
    );
    assert_eq!(config.dns.resolv_conf.as_deref(), Some(Path::new("/etc/resolv.conf")));
    assert_eq!(config.oom_score_adj, -999);
    assert_eq!(config.max_open_files, 1_000_000);
    assert_eq!(config.logging, logging::LoggingConfig::default());
    assert_eq!((config.unsupported, config.warnings), (vec![], vec![]));
}

#[test]
fn a_flag_wins_over_a_drop_in_over_the_file_over_the_default() {
    let file = "maxPods: 1\neventBurst: 1\nnodeStatusMaxImages: 1\n";
    let drop_in = "eventBurst: 2\nnodeStatusMaxImages: 2\n";
    let config = resolved(&["--node-status-max-images=3"], &[file, drop_in]).unwrap().effective;
    assert_eq!(config.pods_per_core, Some(0));
    assert_eq!(config.max_pods, Some(1));
    assert_eq!(config.event_burst, Some(2));
    assert_eq!(config.node_status_max_images, Some(3));
}

#[test]
fn maps_and_sections_merge_lists_are_replaced_and_null_unsets() {
    let file = "\
clusterDNS: [10.0.0.1, 10.0.0.2]
systemReserved: {cpu: 100m, memory: 1Gi}
clusterDomain: a.example
authentication: {x509: {clientCAFile: /ca}, anonymous: {enabled: true}}
";
    let drop_in = "\
clusterDNS: [10.0.0.3]
systemReserved: {memory: 2Gi}
clusterDomain: null
authentication: {anonymous: {enabled: false}}
";
    let config = resolved(&[], &[file, drop_in]).unwrap();
    assert_eq!(config.dns.cluster_dns, ["10.0.0.3".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(config.dns.cluster_domain, "");
    let reserved = config.effective.system_reserved.unwrap();
    assert_eq!((&*reserved["cpu"], &*reserved["memory"]), ("100m", "2Gi"));
    let authentication = config.effective.authentication.unwrap();
    assert_eq!(authentication.x509.unwrap().client_ca_file.as_deref(), Some("/ca"));
    assert_eq!(authentication.anonymous.unwrap().enabled, Some(false));
}

#[test]
fn flag_maps_replace_those_of_the_file_but_feature_gates_add() {
    let file = "\
evictionHard: {memory.available: 1Gi}
featureGates: {EventedPLEG: true, MemoryQoS: true}
";
    let list =
        ["--eviction-hard=pid.available<5%", "--feature-gates=EventedPLEG=false,NodeSwap=true"];
    let config = resolved(&list, &[file]).unwrap();
    let hard: Vec<_> = config.effective.eviction_hard.clone().unwrap().into_iter().collect();
    assert_eq!(hard, [("pid.available".to_owned(), "5%".to_owned())]);
    let gates: Vec<_> = config.feature_gates.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    assert_eq!(gates, [("EventedPLEG", false), ("MemoryQoS", true), ("NodeSwap", true)]);
    assert!(config.is_on(FeatureGate::MemoryQos) && !config.is_on(FeatureGate::QosReserved));
}

#[test]
fn a_zero_in_a_file_is_unset_where_go_has_no_pointer() {
    let file = "\
port: 0
maxPods: 0
syncFrequency: 0s
address: \"\"
registryPullQPS: 0
healthzPort: 0
resolvConf: \"\"
authorization: {webhook: {cacheAuthorizedTTL: 0s}}
";
    let config = resolved(&[], &[file]).unwrap();
    assert_eq!(config.server.address, address("0.0.0.0:10250"));
    assert_eq!(config.effective.max_pods, Some(110));
    assert_eq!(config.sync_frequency, Duration::from_secs(60));
    assert_eq!(config.images.pulls.qps, None);
    assert_eq!(config.server.healthz, None);
    assert_eq!(config.dns.resolv_conf, None);
    assert_eq!(resolved(&["--max-pods=0"], &[]).unwrap().effective.max_pods, Some(0));
}

#[test]
fn images_are_verified_as_configured_and_not_at_all_without_the_feature_gate() {
    let verification = |body: &str| resolved(&[], &[body]).map(|c| c.images.verification);
    let allow = "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n\
                 preloadedImagesVerificationAllowlist: [\"r.io/*\"]\n";
    let patterns = vec!["r.io/*".to_owned()];
    assert_eq!(
        verification(allow).unwrap(),
        Some(VerificationPolicy::NeverVerifyAllowlistedImages(patterns))
    );
    for off in ["KubeletEnsureSecretPulledImages: false", "AllBeta: false"] {
        let gates = format!("featureGates: {{ {off} }}\n");
        assert_eq!(verification(&gates).unwrap(), None);
        let error = verification(&format!("{gates}{allow}")).unwrap_err().to_string();
        assert!(error.contains("KubeletEnsureSecretPulledImages is off"), "{error}");
    }
    let bad = allow.replace("r.io/*", "r.io/x:1");
    let error = verification(&bad).unwrap_err().to_string();
    assert!(error.contains("neither tag nor digest is accepted"), "{error}");
}

#[test]
fn credential_providers_need_both_flags() {
    let config_flag = "--image-credential-provider-config=/etc/providers.yaml";
    let programs_flag = "--image-credential-provider-bin-dir=/usr/libexec/providers";
    let config = resolved(&[config_flag, programs_flag], &[]).unwrap();
    let providers = config.images.credential_providers.unwrap();
    assert_eq!(providers.config, PathBuf::from("/etc/providers.yaml"));
    assert_eq!(providers.bin_dir, PathBuf::from("/usr/libexec/providers"));
    assert!(providers.account_tokens);
    assert!(config.unsupported.is_empty(), "{:?}", config.unsupported);
    for (gate, expected) in [
        ("KubeletServiceAccountTokenForCredentialProviders", false),
        ("AllBeta", false),
        ("AllAlpha", true),
    ] {
        let off = format!("featureGates: {{{gate}: false}}\n");
        let config = resolved(&[config_flag, programs_flag], &[&off]).unwrap();
        let providers = config.images.credential_providers.unwrap();
        assert_eq!(providers.account_tokens, expected, "{gate}");
    }
    for (given, missing) in [(config_flag, "bin-dir"), (programs_flag, "config")] {
        let error = resolved(&[given], &[]).unwrap_err().to_string();
        let expected = format!("it needs --image-credential-provider-{missing} beside it");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn pulls_are_serial_only_when_asked_for() {
    let config = resolved(&[], &["maxParallelImagePulls: 3\n"]).unwrap();
    assert!(!config.images.pulls.serialize);
    assert_eq!(config.images.pulls.max_parallel, Some(3));
    let config = resolved(&[], &["maxParallelImagePulls: 1\n"]).unwrap();
    assert!(config.images.pulls.serialize);
    let config = resolved(&[], &["serializeImagePulls: true\n"]).unwrap();
    assert!(config.images.pulls.serialize);
}

#[test]
fn every_invalid_value_is_named_at_once_in_the_order_of_the_files() {
    let file = "\
containerLogMaxFiles: 1
imageGCLowThresholdPercent: 90
crashLoopBackOff:
  maxContainerRestartPeriod: 10m
evictionSoft:
  memory.available: 1Gi
clusterDNS:
- 10.0.0.1
- dns.example
tlsMinVersion: TLS1.2
";
    let list = ["--read-only-port=10250", "--feature-gates=EventedPLEGG=true"];
    assert_eq!(
        problems(&list, &[file, "oomScoreAdj: 1001\n"]),
        [
            "f0:3:23: containerLogMaxFiles: must be greater than 1, got 1",
            "f0:4:29: imageGCLowThresholdPercent: must be less than imageGCHighThresholdPercent \
             (85), got 90",
            "f0:6:30: crashLoopBackOff.maxContainerRestartPeriod: must be between 1s and 5m0s, \
             got 10m0s",
            "f0:8:21: evictionSoft.memory.available: needs an entry in evictionSoftGracePeriod",
            "f0:11:3: clusterDNS[1]: must be an IP address, got \"dns.example\"",
            "f0:12:16: tlsMinVersion: must be one of VersionTLS10, VersionTLS11, VersionTLS12, \
             VersionTLS13; got \"TLS1.2\"",
            "f1:3:14: oomScoreAdj: must be between -1000 and 1000, got 1001",
            "--read-only-port: readOnlyPort: must differ from port: both would listen there",
            "--feature-gates: featureGates.EventedPLEGG: unrecognized feature gate: \
             EventedPLEGG; did you mean EventedPLEG?",
        ]
    );
}

#[test]
fn unknown_fields_and_duplicate_keys_are_warnings_unless_strict() {
    let body = "\
maxPodz: 1
maxPods: 2
crashLoopBackOff: {typo: 1}
maxPods: 3
evictionHard:
  memory.available: 1Gi
  memory.available: 2Gi
";
    assert_eq!(
        read_leniently(body),
        [
            "f:3:1: maxPodz: unknown field is ignored; did you mean \"maxPods\"?",
            "f:5:20: crashLoopBackOff.typo: unknown field is ignored",
            "f:6:1: maxPods: duplicate key; the value given at f:4:1 is ignored",
            "f:9:3: evictionHard.memory.available: duplicate key; the value given at f:8:3 is ignored",
        ]
    );
    let text = format!("{HEADER}{body}");
    let strict = read("f", &text, Part::File, Decoding::Strict).unwrap_err();
    assert_eq!(
        strict.to_string(),
        "f:3:1: maxPodz: unknown field; did you mean \"maxPods\"?\n\
         f:5:20: crashLoopBackOff.typo: unknown field\n\
         f:6:1: maxPods: duplicate key, also given at f:4:1\n\
         f:9:3: evictionHard.memory.available: duplicate key, also given at f:8:3"
    );
    // What has the wrong type is an error all the same, and the warnings do not hide it.
    let text = format!("{text}failSwapOn: maybe\n");
    let lenient = read("f", &text, Part::File, Decoding::Lenient).unwrap_err();
    assert_eq!(
        lenient.to_string(),
        "f:10:13: failSwapOn: expected true or false, got the string \"maybe\""
    );
}

#[test]
fn the_first_of_many_mistyped_values_are_named() {
    let body: String = (0..60).map(|n| format!("  gate{n}: maybe\n")).collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubelet.yaml");
    fs::write(&path, format!("{HEADER}featureGates:\n{body}")).unwrap();
    let argument = format!("--config={}", path.display());
    let error = load(&flags(&[&argument]), &facts()).unwrap_err().to_string();
    let fields: Vec<_> = error.lines().collect();
    assert_eq!(fields.len(), 60, "{error}");
    assert!(fields[0].contains("featureGates.gate0: "), "{error}");
}

#[test]
fn a_node_starts_with_any_number_of_unknown_fields() {
    let body: String = (0..1000).map(|n| format!("of-1-37-{n}: {{a: 1}}\n")).collect();
    assert_eq!(read_leniently(&body).len(), 1000);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubelet.yaml");
    fs::write(&path, format!("{HEADER}{body}maxPods: 7\nmaxPods: 8\n")).unwrap();
    let argument = format!("--config={}", path.display());
    let config = load(&flags(&[&argument]), &facts()).unwrap();
    assert_eq!(config.effective.max_pods, Some(8));
    // The log is not flooded.
    let warnings = config.warnings;
    assert_eq!(warnings.len(), 51, "{warnings:?}");
    assert!(warnings[50].ends_with("kubelet.yaml: 951 more like these"), "{warnings:?}");
    let error = load(&flags(&[&argument, "--strict"]), &facts()).unwrap_err();
    assert_eq!(error.to_string().lines().count(), 1001, "{error}");
}

fn thresholds(bodies: &[&str]) -> Vec<String> {
    let hard = resolved(&[], bodies).unwrap().effective.eviction_hard.unwrap();
    hard.into_iter().map(|(signal, amount)| format!("{signal}<{amount}")).collect()
}

#[test]
fn a_drop_in_with_one_threshold_leaves_the_defaults_of_the_file() {
    let defaults = [
        "imagefs.available<15%",
        "imagefs.inodesFree<5%",
        "memory.available<100Mi",
        "nodefs.available<10%",
        "nodefs.inodesFree<5%",
    ];
    let with_memory = |amount: &str| {
        let memory = format!("memory.available<{amount}");
        defaults.map(
            |each| {
                if each.starts_with("memory") { memory.clone() } else { each.to_owned() }
            },
        )
    };
    let (none, memory) = ("port: 10250\n", "evictionHard: {memory.available: 500Mi}\n");
    let table: &[(&[&str], &[&str])] = &[
        (&[], &defaults),
        (&[none], &defaults),
        (&[memory], &["memory.available<500Mi"]),
        (&["evictionHard: {}\n"], &[]),
        (&["evictionHard: null\n"], &defaults),
        (
            &[memory, "evictionHard: {nodefs.available: 1Gi}\n"],
            &["memory.available<500Mi", "nodefs.available<1Gi"],
        ),
        // Differs from upstream: there the map is gone.
        (&[none, "evictionHard: null\n"], &defaults),
        (
            &[none, "evictionHard: {imagefs.available: null, imagefs.inodesFree: null}\n"],
            &defaults[2..],
        ),
    ];
    for (bodies, expected) in table {
        assert_eq!(thresholds(bodies), *expected, "{bodies:?}");
    }
    assert_eq!(thresholds(&[none, memory]), with_memory("500Mi"));
    let merges = "mergeDefaultEvictionSettings: true\n";
    assert_eq!(thresholds(&[&format!("{memory}{merges}")]), with_memory("500Mi"));
    // Differs from upstream, where this field has no effect in a drop-in.
    assert_eq!(thresholds(&[memory, merges]), with_memory("500Mi"));
    let flag = resolved(&["--eviction-hard=pid.available<5%"], &[none, memory]).unwrap();
    assert_eq!(flag.effective.eviction_hard.unwrap().len(), 1);
}

#[test]
fn the_report_frequency_follows_the_update_frequency_of_the_file_alone() {
    let update = |seconds: u32| format!("nodeStatusUpdateFrequency: {seconds}s\n");
    let both = "nodeStatusReportFrequency: 7m\nnodeStatusUpdateFrequency: 20s\n";
    let table: &[(&[&str], &[&str], u64)] = &[
        (&[], &[], 300),
        (&[], &[&update(20)], 20),
        (&[], &[both], 420),
        (&[], &["", &update(20)], 300),
        (&[], &[&update(20), &update(30)], 20),
        (&[], &["nodeStatusReportFrequency: 0s\n", &update(20)], 300),
        (&[], &["", "nodeStatusReportFrequency: 1m\n"], 60),
        (&["--node-status-update-frequency=20s"], &[], 300),
    ];
    for (list, bodies, expected) in table {
        let node = resolved(list, bodies).unwrap().node;
        assert_eq!(node.report_period.as_secs(), *expected, "{list:?} {bodies:?}");
    }
}

proptest::proptest! {
    /// Upstream: `loadConfigFile`, then `mergeKubeletConfigurations`.
    #[test]
    fn maps_of_drop_ins_are_merged_as_upstream_merges_them(
        file in proptest::option::of(proptest::collection::btree_map(0..5usize, 1..9u32, 0..5)),
        drop_ins in proptest::collection::vec(
            proptest::collection::btree_map(0..5usize, proptest::option::of(1..9u32), 0..5),
            0..3,
        ),
    ) {
        const SIGNALS: [&str; 5] = [
            "imagefs.available", "memory.available", "nodefs.available", "nodefs.inodesFree", "pid.available",
        ];
        let body = |amounts: Vec<(usize, Option<u32>)>| {
            let show = |(signal, amount): (usize, Option<u32>)| match amount {
                Some(amount) => format!("{}: {amount}%", SIGNALS[signal]),
                None => format!("{}: null", SIGNALS[signal]),
            };
            let entries: Vec<_> = amounts.into_iter().map(show).collect();
            format!("evictionHard: {{{}}}\n", entries.join(", "))
        };
        let mut expected: std::collections::BTreeMap<&str, String> = match &file {
            Some(amounts) => amounts.iter().map(|(signal, n)| (SIGNALS[*signal], format!("{n}%"))).collect(),
            None => [
                ("memory.available", "100Mi"), ("nodefs.available", "10%"), ("nodefs.inodesFree", "5%"),
                ("imagefs.available", "15%"), ("imagefs.inodesFree", "5%"),
            ].map(|(signal, amount)| (signal, amount.to_owned())).into(),
        };
        for (signal, amount) in drop_ins.iter().flatten() {
            match amount {
                Some(n) => drop(expected.insert(SIGNALS[*signal], format!("{n}%"))),
                None => drop(expected.remove(SIGNALS[*signal])),
            }
        }
        let mut bodies = vec![match file {
            Some(amounts) => body(amounts.into_iter().map(|(signal, n)| (signal, Some(n))).collect()),
            None => String::new(),
        }];
        bodies.extend(drop_ins.into_iter().map(|amounts| body(amounts.into_iter().collect())));
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        let expected: Vec<_> = expected.iter().map(|(signal, amount)| format!("{signal}<{amount}")).collect();
        proptest::prop_assert_eq!(thresholds(&bodies), expected);
    }
}

#[test]
fn the_port_of_a_server_that_is_off_is_free() {
    let off = "enableServer: false\n";
    assert!(resolved(&["--read-only-port=10250"], &[off]).is_ok());
}

#[test]
fn settings_without_effect_are_named_only_when_they_differ_from_the_default() {
    let quiet = "\
maxPods: 110
cgroupDriver: cgroupfs
enforceNodeAllocatable: [pods]
memorySwap: {swapBehavior: \"\"}
tlsCertFile: \"\"
evictionSoft: {}
";
    assert_eq!(resolved(&[], &[quiet]).unwrap().unsupported, Vec::<String>::new());
    let file = "\
maxPods: 50
eventBurst: 50
kubeletCgroups: /k
cgroupDriver: systemd
cgroupsPerQOS: true
evictionHard: {memory.available: 5%}
authentication: {x509: {clientCAFile: /ca}}
syncFrequency: 30s
";
    let list = ["--node-labels=a=b", "--cloud-provider=external"];
    assert_eq!(resolved(&list, &[file]).unwrap().unsupported, ["--cloud-provider", "eventBurst"]);
    // On a node of a cluster these have a Node object to act on.
    let with_api_server = [&list[..], &["--kubeconfig=/k"]].concat();
    assert_eq!(resolved(&with_api_server, &[file]).unwrap().unsupported, Vec::<String>::new());
    let off = "cgroupsPerQOS: false\nenforceNodeAllocatable: []\n";
    assert_eq!(resolved(&[], &[off]).unwrap().unsupported, Vec::<String>::new());
    let effective = resolved(&[], &["singleProcessOOMKill: true\n"]).unwrap();
    assert_eq!(effective.unsupported, Vec::<String>::new());
}

#[test]
fn deprecated_flags_and_feature_gates_are_warned_about() {
    let list = [
        "--max-pods=110",
        "--pod-infra-container-image=p",
        "--feature-gates=EventedPLEG=true,NodeSwap=true",
    ];
    let warnings = resolved(&list, &[]).unwrap().warnings;
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert_eq!(warnings[0], "deprecated flags given: --max-pods");
    assert_eq!(warnings[1], "flags without effect given: --pod-infra-container-image");
    assert!(warnings[2].ends_with(": EventedPLEG"), "{warnings:?}");
    let gates = |given: &str| {
        let list = [&*format!("--feature-gates={given}")];
        resolved(&list, &[]).unwrap().warnings.concat()
    };
    assert_eq!(gates("KubeletEnsureSecretPulledImages=false"), "");
    assert!(gates("AllBeta=false").ends_with("AllBeta (but for CPUManagerPolicyBetaOptions, GracefulNodeShutdown, GracefulNodeShutdownBasedOnPodPriority, KubeletEnsureSecretPulledImages, KubeletServiceAccountTokenForCredentialProviders, LocalStorageCapacityIsolationFSQuotaMonitoring, PodCertificateRequest, ResourceHealthStatus, ResourceHealthStatusMessage)"));
}

#[test]
fn flags_of_cadvisor_are_accepted_with_a_warning_and_without_their_values() {
    let list = [
        "--application_metrics_count_limit=100",
        "--boot-id-file=/proc/sys/kernel/random/boot_id",
        "--container-hints=/etc/cadvisor/container_hints.json",
        "--containerd=/run/containerd/containerd.sock",
        "--containerd-namespace=k8s.io",
        "--enable-load-reader",
        "--event-storage-age-limit=default=0",
        "--event-storage-event-limit=default=0",
        "--global-housekeeping-interval=1m0s",
        "--housekeeping-interval=10s",
        "--log-cadvisor-usage=false",
        "--machine-id-file=/etc/machine-id,/var/lib/dbus/machine-id",
        "--storage-driver-buffer-duration=1m",
        "--storage-driver-db=cadvisor",
        "--storage-driver-host=localhost:8086",
        "--storage-driver-password=hunter2",
        "--storage-driver-secure",
        "--storage-driver-table=stats",
        "--storage-driver-user=root",
    ];
    let config = resolved(&list, &[]).unwrap();
    assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
    for flag in list {
        let name = flag.split('=').next().unwrap().replace('_', "-");
        assert!(config.warnings[0].contains(&name), "{name}");
    }
    assert!(!format!("{config:?}").contains("hunter2"));
    let wrong = ["--housekeeping-interval=10".into()];
    let error = parse_args(wrong).unwrap_err().to_string();
    assert!(error.contains("--housekeeping-interval: \"10\" has no unit"), "{error}");
}

#[test]
fn contention_for_a_lock_takes_a_lock() {
    assert_eq!(
        problems(&["--exit-on-lock-contention"], &[]),
        ["--exit-on-lock-contention: it needs --lock-file beside it"]
    );
    let list = ["--exit-on-lock-contention", "--lock-file=/run/kubelet.lock"];
    assert!(resolved(&list, &[]).unwrap().exit_on_lock_contention);
}

#[test]
fn the_node_is_named_by_the_override_or_the_host_in_lower_case() {
    assert_eq!(resolved(&["--hostname-override= Other "], &[]).unwrap().node_name, "other");
    for name in ["", " ", "a/b", "a b"] {
        let facts = HostFacts { hostname: name.to_owned() };
        assert!(resolve(&flags(&[]), Layers::default(), &facts).is_err(), "{name:?}");
    }
}

#[test]
fn node_addresses_are_one_or_a_dual_pair() {
    let count =
        |text: &str| resolved(&[&format!("--node-ip={text}")], &[]).map(|c| c.node_ips.len());
    assert_eq!(count("10.0.0.1"), Ok(1));
    assert_eq!(count("10.0.0.1,fd00::1"), Ok(2));
    assert_eq!(count("::"), Ok(0));
    for wrong in ["10.0.0.1,10.0.0.2", "x", "1.1.1.1,::1,2.2.2.2"] {
        assert!(count(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_family_of_the_first_address_comes_first_also_of_the_unspecified_one() {
    let resolved = |flags: &[&str]| resolved(flags, &[]).unwrap();
    assert!(!resolved(&[]).ipv6_first);
    for (text, ipv6_first) in [
        ("0.0.0.0", false),
        ("::", true),
        ("10.0.0.1", false),
        ("fd00::1", true),
        ("10.0.0.1,fd00::1", false),
        ("fd00::1,10.0.0.1", true),
    ] {
        let config = resolved(&[&format!("--node-ip={text}")]);
        assert_eq!(config.ipv6_first, ipv6_first, "{text}");
    }
}

#[test]
fn logging_is_resolved_from_file_and_flags() {
    let file = "logging: {format: json, verbosity: 2, flushFrequency: 5s, \
                vmodule: [{filePattern: a, verbosity: 3}]}\n";
    let config = resolved(&["-v=4"], &[file]).unwrap();
    assert_eq!(config.logging.format, logging::LogFormat::Json);
    assert_eq!(config.logging.verbosity, 4);
    assert_eq!(config.logging.vmodule.len(), 1);
    assert!(resolved(&[], &["logging: {flushFrequency: 5000000000}\n"]).is_ok());
}

#[test]
fn a_plain_path_is_accepted_as_endpoint() {
    let config = resolved(&["--container-runtime-endpoint=/run/c.sock"], &[]).unwrap();
    assert_eq!(config.runtime.endpoint, "unix:///run/c.sock");
    assert_eq!(config.runtime.image_endpoint, "unix:///run/c.sock");
}

#[test]
fn another_kind_of_document_is_refused_before_its_fields_are_checked() {
    let said = |text: &str| {
        let read = read("f", text, Part::File, Decoding::Lenient);
        read.unwrap_err().to_string()
    };
    assert!(said("").contains("the document is empty"));
    assert!(said("- a\n").contains("not a mapping"));
    let wrong = said("apiVersion: v1\nkind: Pod\nspec: {}\n");
    assert_eq!(
        wrong,
        "f:1:13: apiVersion: must be \"kubelet.config.k8s.io/v1beta1\", got the string \"v1\"\n\
         f:2:7: kind: must be \"KubeletConfiguration\", got the string \"Pod\""
    );
    assert!(said("maxPods: 1\n").contains("apiVersion: is missing"));
}

#[test]
fn files_are_read_from_disk_in_name_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let write = |name: &str, body: &str| fs::write(path(name), format!("{HEADER}{body}")).unwrap();
    fs::create_dir_all(path("conf.d/15-more")).unwrap();
    write("kubelet.yaml", "maxPods: 1\neventBurst: 1\n");
    write("conf.d/20-b.conf", "maxPods: 20\n");
    write("conf.d/10-a.conf", "maxPods: 10\neventBurst: 10\n");
    write("conf.d/15-more/x.conf", "eventBurst: 15\n");
    write("conf.d/99-ignored.yaml", "maxPods: 99\n");
    let arguments = [
        format!("--config={}", path("kubelet.yaml").display()),
        format!("--config-dir={}", path("conf.d").display()),
    ];
    let list: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let config = load(&flags(&list), &facts()).unwrap();
    assert_eq!(config.effective.max_pods, Some(20));
    assert_eq!(config.effective.event_burst, Some(15));
    assert_eq!(config.warnings.len(), 1);
    assert!(config.warnings[0].contains("99-ignored.yaml"));

    write("conf.d/30-c.conf", "maxPodz: 1\n");
    let config = load(&flags(&list), &facts()).unwrap();
    assert_eq!(config.effective.max_pods, Some(20));
    let warnings = config.warnings;
    assert!(
        warnings[1].ends_with(
            "30-c.conf:3:1: maxPodz: unknown field is ignored; did you mean \"maxPods\"?"
        ),
        "{warnings:?}"
    );
    write("conf.d/40-d.conf", "maxPods: x\n");
    let list = [&list[..], &["--strict"]].concat();
    let error = load(&flags(&list), &facts()).unwrap_err().to_string();
    let lines: Vec<_> = error.lines().collect();
    assert_eq!(lines.len(), 2, "{error}");
    assert!(lines[0].contains("30-c.conf:3:1: maxPodz: unknown field"), "{error}");
    assert!(lines[1].contains("40-d.conf:3:10: maxPods: expected an integer"), "{error}");
}

#[test]
fn unreadable_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let said = |flag: &str, name: &str| {
        let argument = format!("--{flag}={}", directory.path().join(name).display());
        format!("{:#}", load(&flags(&[&argument]), &facts()).unwrap_err())
    };
    fs::write(directory.path().join("binary"), b"a: 1\n\xff").unwrap();
    fs::write(directory.path().join("huge"), vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(said("config", "none").contains("none: No such file"), "{}", said("config", "none"));
    assert!(said("config-dir", "none").contains("none"));
    let deep = directory.path().join("deep").join("d/".repeat(9));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("x.conf"), format!("{HEADER}maxPods: 1\n")).unwrap();
    assert!(said("config-dir", "deep").contains("not looked for this deep"));
    assert!(said("config", "binary").contains("binary:2: not valid UTF-8"));
    assert!(said("config", "huge").contains("larger than"));
}

#[test]
fn header_values_stay_out_of_debug_output_and_errors() {
    let secret = "staticPodURLHeader: {Authorization: [\"Bearer hunter2\"]}\n";
    let config = resolved(&[], &[secret]).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    let misplaced = format!("{HEADER}staticPodURLHeader: {{Authorization: hunter2}}\n");
    let read = read("f", &misplaced, Part::File, Decoding::Lenient);
    let said = read.unwrap_err().to_string();
    assert!(said.contains("Authorization: expected a list") && !said.contains("hunter2"), "{said}");
}

#[test]
fn credentials_of_a_url_are_shown_nowhere() {
    let url = "https://user:hunter2@host:81/pods?token=hunter3";
    let file = format!("staticPodURL: \"{url}\"\n");
    let given = format!("--manifest-url={url}");
    for config in [resolved(&[], &[&file]).unwrap(), resolved(&[&given], &[]).unwrap()] {
        let shown = format!("{} {:?} {config:?}", config.redacted, config.redacted_flags);
        assert!(shown.contains("host:81/pods"), "{shown}");
        assert!(!shown.contains("hunter"), "{shown}");
        // What is fetched is the URL as it was given.
        assert_eq!(config.static_pods.url.as_deref(), Some(url));
    }
    assert!(!format!("{:?}", flags(&[&given])).contains("hunter"));
}

#[test]
fn the_effective_configuration_reads_back_the_same() {
    let config = resolved(&[], &["maxPods: 7\nclusterDNS: [::1]\n"]).unwrap();
    let json = serde_json::to_string(&config.effective).unwrap();
    let (file, _) = read("json", &json, Part::File, Decoding::Strict).unwrap();
    let layers = Layers { file: Some(file), ..Layers::default() };
    let again = resolve(&flags(&[]), layers, &facts()).unwrap();
    assert_eq!(again.effective, config.effective);
}

/// The value at a dotted path of the configuration as JSON.
fn at<'a>(json: &'a serde_json::Value, path: &str) -> &'a serde_json::Value {
    path.split('.').fold(json, |value, key| &value[key])
}

#[test]
fn help_shows_the_defaults_that_are_applied() {
    let defaults = resolved(&[], &[]).unwrap().effective;
    let defaults = serde_json::to_value(defaults).unwrap();
    let mut compared = 0;
    for (name, path, shown) in flags::shown_defaults() {
        // These describe a default that is not one value, or that lies outside the configuration.
        if name.starts_with("log-")
            || ["v", "eviction-hard", "image-service-endpoint"].contains(&name)
        {
            continue;
        }
        let given = resolved(&[&format!("--{name}={shown}")], &[]).unwrap().effective;
        let given = serde_json::to_value(given).unwrap();
        assert_eq!(at(&given, path), at(&defaults, path), "--{name}");
        compared += 1;
    }
    assert!(compared > 60, "{compared}");
}

proptest::proptest! {
    #[test]
    fn the_last_layer_that_gives_a_value_wins(
        file in proptest::option::of(1..1000i32),
        drop_ins in proptest::collection::vec(proptest::option::of(1..1000i32), 0..4),
        flag in proptest::option::of(0..1000i32),
    ) {
        let body = |value: &Option<i32>| match value {
            Some(value) => format!("maxPods: {value}\n"),
            None => "podsPerCore: 1\n".to_owned(),
        };
        let bodies: Vec<_> = std::iter::once(&file).chain(&drop_ins).map(body).collect();
        let bodies: Vec<_> = bodies.iter().map(String::as_str).collect();
        let argument = flag.map(|value| format!("--max-pods={value}"));
        let list: Vec<_> = argument.iter().map(String::as_str).collect();
        let last = drop_ins.iter().rev().copied().flatten().next();
        let expected = flag.or(last).or(file).unwrap_or(110);
        let config = resolved(&list, &bodies).unwrap();
        proptest::prop_assert_eq!(config.effective.max_pods, Some(expected));
    }
}

#[test]
fn the_identity_is_of_flags_and_file() {
    use crate::server::tls::ServingCertificate;
    let config = resolved(&["--kubeconfig=/k"], &[]).unwrap();
    assert_eq!(
        config.identity,
        IdentityConfig {
            bootstrap_kubeconfig: None,
            cert_dir: "/var/lib/kubelet/pki".into(),
            rotate_certificates: false,
            qps: 50,
            burst: 100,
            proxies: None,
        }
    );
    let file =
        "rotateCertificates: true\nserverTLSBootstrap: true\nkubeAPIQPS: 5\nkubeAPIBurst: 6\n";
    let flags = ["--kubeconfig=/k", "--bootstrap-kubeconfig=/b", "--cert-dir=/pki"];
    let config = resolved(&flags, &[file]).unwrap();
    let identity = &config.identity;
    assert_eq!(identity.bootstrap_kubeconfig, Some("/b".into()));
    assert!(identity.rotate_certificates);
    assert_eq!((identity.qps, identity.burst), (5, 6));
    let directory = "/pki".into();
    assert_eq!(config.server.tls.certificate, ServingCertificate::Issued { directory });
    assert_eq!(config.unsupported, Vec::<String>::new());
    // A certificate that is given is used.
    let file = format!("{file}tlsCertFile: /c.crt\ntlsPrivateKeyFile: /c.key\n");
    let config = resolved(&flags, &[&file]).unwrap();
    assert!(matches!(config.server.tls.certificate, ServingCertificate::Files { .. }));
    let said = resolved(&["--bootstrap-kubeconfig=/b"], &[]).unwrap().warnings.concat();
    assert!(said.contains("--bootstrap-kubeconfig has no effect"), "{said}");
}

#[test]
fn who_may_ask_is_as_upstream_has_it_unless_said_otherwise() {
    use crate::server::auth::AuthorizationMode;
    use crate::server::tls::ServingCertificate;
    let config = resolved(&[], &[]).unwrap();
    let auth = &config.server.auth;
    assert_eq!(auth.client_ca_file, None);
    assert!(!auth.anonymous);
    assert_eq!(auth.token_ttl, Some(Duration::from_secs(120)));
    assert_eq!(
        auth.authorization,
        AuthorizationMode::Webhook {
            allowed_ttl: Duration::from_secs(300),
            denied_ttl: Duration::from_secs(30),
        }
    );
    assert_eq!(
        config.server.tls.certificate,
        ServingCertificate::SelfSigned { directory: "/var/lib/kubelet/pki".into() }
    );
    let file = "\
authentication:
  webhook: {enabled: false}
  x509: {clientCAFile: /ca.crt}
authorization: {mode: AlwaysAllow}
tlsCertFile: /c.crt
tlsPrivateKeyFile: /c.key
";
    let config = resolved(&[], &[file]).unwrap();
    let auth = &config.server.auth;
    assert_eq!(auth.client_ca_file, Some("/ca.crt".into()));
    assert_eq!(auth.token_ttl, None);
    assert_eq!(auth.authorization, AuthorizationMode::AlwaysAllow);
    assert_eq!(
        config.server.tls.certificate,
        ServingCertificate::Files { certificate: "/c.crt".into(), key: "/c.key".into() }
    );
    assert_eq!(config.unsupported, Vec::<String>::new());
    let flags = [
        "--anonymous-auth",
        "--authentication-token-webhook=false",
        "--authorization-mode=AlwaysAllow",
        "--client-ca-file=/other.crt",
        "--cert-dir=/pki",
        "--tls-min-version=VersionTLS13",
        "--tls-cipher-suites=TLS_RSA_WITH_AES_128_GCM_SHA256,TLS_AES_128_GCM_SHA256",
    ];
    let config = resolved(&flags, &[]).unwrap();
    let auth = &config.server.auth;
    assert!(auth.anonymous);
    assert_eq!(auth.client_ca_file, Some("/other.crt".into()));
    assert_eq!(
        config.server.tls.certificate,
        ServingCertificate::SelfSigned { directory: "/pki".into() }
    );
    let said = config.warnings.join("\n");
    assert!(said.contains("any client that reaches this port is root"), "{said}");
    assert!(said.contains("tlsCipherSuites TLS_RSA_WITH_AES_128_GCM_SHA256"), "{said}");
    let flags = [&flags[..], &["--enable-server=false"]].concat();
    let said = resolved(&flags, &[]).unwrap().warnings.join("\n");
    assert!(!said.contains("any client that reaches this port is root"), "{said}");
}

#[test]
fn authorities_of_a_cluster_that_let_everybody_do_everything_are_warned_of() {
    let said = |ca: &str, mode: &str| {
        let file = format!(
            "authentication: {{x509: {{clientCAFile: {ca}}}, webhook: {{enabled: false}}}}\n\
             authorization: {{mode: {mode}}}\n"
        );
        resolved(&[], &[&file]).unwrap().warnings.join("\n")
    };
    for ca in [
        "/etc/kubernetes/pki/ca.crt",
        "/etc/kubernetes/pki/../pki/ca.crt",
        "/etc/kubernetes/ca.pem",
        "/var/lib/kubernetes/ca.pem",
        "/srv/kubernetes/ca.crt",
    ] {
        let text = said(ca, "AlwaysAllow");
        assert!(text.contains("IS ROOT HERE"), "{ca}: {text}");
        assert!(text.contains(ca), "{ca}: {text}");
        assert_eq!(said(ca, "Webhook"), "", "{ca}");
    }
    assert_eq!(said("/etc/kubelet/admins.crt", "AlwaysAllow"), "");
}

#[test]
fn traces_are_on_with_their_section_even_an_empty_one() {
    use crate::base::otel::{Collector, TracingSettings};
    let settings = |collector: &str, rate| {
        Some(TracingSettings {
            collector: collector.parse().unwrap(),
            sampling_rate_per_million: rate,
        })
    };
    for (file, expected) in [
        ("", None),
        ("tracing: null", None),
        ("tracing: {}", settings("localhost:4317", 0)),
        ("tracing: {endpoint: \"\"}", settings("localhost:4317", 0)),
        ("tracing: {endpoint: \"otel:1\", samplingRatePerMillion: 500}", settings("otel:1", 500)),
        ("tracing: {endpoint: \"unix:///run/otel.sock\"}", settings("unix:///run/otel.sock", 0)),
    ] {
        let config = resolved(&[], &[file]).unwrap();
        assert_eq!(config.tracing, expected, "{file}");
        assert_eq!(config.unsupported, Vec::<String>::new(), "{file}");
    }
    assert_eq!(Collector::default().to_string(), "localhost:4317");
}

#[test]
fn the_node_is_what_flags_and_file_say() {
    use crate::node::node_status::resources::{PodLimits, ReservedResources, ThresholdValue};
    let node = resolved(&[], &[]).unwrap().node;
    assert!(node.registration.register && node.registration.controller_attach);
    assert!(node.local_storage_isolation);
    let defaults = ReservedResources {
        memory_threshold: Some(ThresholdValue::Absolute(100 << 20)),
        storage_threshold: Some(ThresholdValue::Percentage(0.1)),
        ..ReservedResources::default()
    };
    assert_eq!(node.reservation, defaults);
    let pods = |max_pods, pods_per_core| PodLimits { max_pods, pods_per_core };
    assert_eq!((node.max_images, node.pods), (Some(50), pods(110, 0)));
    assert_eq!((node.lease_seconds, node.update_period.as_secs()), (40, 10));
    assert_eq!(node.report_period.as_secs(), 300);
    let file = "\
registerNode: false
providerID: x://1
registerWithTaints: [{key: k, effect: NoSchedule}]
nodeStatusMaxImages: -1
maxPods: 20
podsPerCore: 5
evictionHard: {memory.available: 0%}
systemReserved: {cpu: 500m, memory: 1Gi}
kubeReserved: {cpu: \"1\", ephemeral-storage: 2Gi}
";
    let flags = ["--cloud-provider=external", "--node-labels=a=b"];
    let node = resolved(&flags, &[file]).unwrap().node;
    let registration = node.registration;
    assert!(!registration.register && registration.external_cloud_provider);
    assert_eq!(registration.provider_id.as_deref(), Some("x://1"));
    let taints = registration.taints;
    assert_eq!((taints.len(), &taints[0].key[..]), (1, "k"));
    assert_eq!(registration.labels["a"], "b");
    assert_eq!((node.max_images, node.pods), (None, pods(20, 5)));
    let expected = ReservedResources {
        milli_cpu: 1500,
        memory: 1 << 30,
        ephemeral_storage: 2 << 30,
        memory_threshold: None,
        storage_threshold: None,
    };
    assert_eq!(node.reservation, expected);
    let pinned = "reservedSystemCPUs: 0-1,4\nkubeReserved: {cpu: \"1\"}\n";
    let node = resolved(&[], &[pinned]).unwrap().node;
    assert_eq!(node.reservation.milli_cpu, 3000);
}

#[test]
fn labels_and_providers_that_cannot_be_are_refused() {
    let flags = ["--node-labels=kubernetes.io/role=x", "--cloud-provider=aws"];
    let problems = resolved(&flags, &[]).unwrap_err().to_string();
    assert!(problems.contains("--node-labels: unknown 'kubernetes.io'"), "{problems}");
    let provider = "--cloud-provider: must be \"external\" or empty; got \"aws\"";
    assert!(problems.contains(provider), "{problems}");
}

#[test]
fn a_kubeconfig_joins_a_cluster_and_without_one_the_node_is_its_own() {
    let config = resolved(&["--kubeconfig=/k"], &[]).unwrap();
    assert_eq!(config.kubeconfig, Some("/k".into()));
    assert_eq!(resolved(&[], &[]).unwrap().kubeconfig, None);
}

#[test]
fn the_example_is_accepted_as_it_stands_and_with_the_port_that_it_shows() {
    use crate::server::auth::KubeletAuth;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/kubelet-config.yaml");
    let example = fs::read_to_string(path).unwrap();
    let example: String =
        example.split_inclusive('\n').filter(|line| !HEADER.contains(line)).collect();
    let config = resolved(&[], &[&example]).unwrap();
    assert!(!config.server.enabled);
    let (before, after) = example.split_once("enableServer: false\n").unwrap();
    let shown = after.lines().map(|line| match line.strip_prefix('#') {
        Some(line) if !line.starts_with(' ') || line.starts_with("  ") => line,
        _ => line,
    });
    let with_port = before.to_owned() + &shown.collect::<Vec<_>>().join("\n");
    let server = resolved(&[], &[&with_port]).unwrap().server;
    assert!(server.enabled);
    assert!(server.auth.client_ca_file.is_some());
    assert!(KubeletAuth::new(server.auth, "n", None, None).is_ok());
}
