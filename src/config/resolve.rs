//! Resolves files, drop-ins, flags and host facts to a validated [`KubeletConfig`]. Pure.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::decode::decode;
use super::document::{ConfigProblem, Layers, Problems, sort_by_place};
use super::feature_gates::FeatureGate;
use super::flags::Flags;
use super::kubelet_configuration::{KubeletConfiguration, TracingConfiguration};
use super::logging::{LogFormat, LoggingConfig, VModule};
use super::resolved::*;
use super::supported::unsupported;
use super::validate::validate;
use super::values::{count, some_text, time};
use super::{HostFacts, cgroups, defaults, feature_gates, managers, node, redacted, server};
use crate::base::document::{DocumentNode, DocumentOrigin, DocumentValue};
use crate::base::otel::TracingSettings;
use crate::cri::RuntimeConfig;
use crate::images::gc::ImageGcPolicy;
use crate::images::records::VerificationPolicy;
use crate::images::{CredentialProviders, ImagesConfig, PullConfig};
use crate::model::Quantity;
use crate::node::certificates::IdentityConfig;
use crate::runtime::kuberuntime::{GcPolicy, UserNamespacesConfig};
use crate::runtime::logs::rotation::{self, RotationPolicy};

/// Merges `layers` and the flags, applies defaults, validates, and converts to concrete types.
///
/// # Errors
/// All problems at once, each with its field and where the value was given, in the order of the files and flags.
pub fn resolve(
    flags: &Flags,
    mut layers: Layers,
    facts: &HostFacts,
) -> Result<KubeletConfig, Problems> {
    let files = layers.files();
    let mut problems = std::mem::take(&mut layers.problems);
    let tree = merge(flags, layers);
    // Unknown fields were reported when the files were read.
    let (given, _) = decode::<KubeletConfiguration>(&tree);
    let mut effective = match given {
        Ok(given) => given,
        // More values than are rejected in one reading.
        Err(more) => {
            problems.extend(more);
            sort_by_place(&mut problems, &files);
            return Err(Problems(problems));
        }
    };
    defaults::apply(&mut effective);
    let invalid = validate(&effective).into_iter();
    problems.extend(
        invalid.filter(|(field, _)| !is_rejected(&tree, field)).map(|(field, message)| {
            ConfigProblem { origin: tree.origin_of(&field), field, message }
        }),
    );
    let node_name = node_name(flags, facts, &mut problems);
    let (node_ips, ipv6_first) = node_ips(flags, &mut problems);
    node::check(flags, &mut problems);
    check_provider_flags(flags, &mut problems);
    if flags.exit_on_lock_contention && flags.lock_file.is_none() {
        let message = "it needs --lock-file beside it".to_owned();
        problems.push(ConfigProblem::of_flag("exit-on-lock-contention", message));
    }
    let runtime_cgroups = flags.runtime_cgroups.as_deref();
    if let Some(path) = runtime_cgroups.filter(|path| cgroups::cgroup(path).is_none()) {
        let message = format!("{path:?} is not the path of a cgroup");
        problems.push(ConfigProblem::of_flag("runtime-cgroups", message));
    }
    let objects = flags.local_objects_dir.as_ref();
    if let Some(relative) = objects.filter(|path| path.is_relative()) {
        let message = format!("must be an absolute path; got {:?}", relative.display());
        problems.push(ConfigProblem::of_flag("local-objects-dir", message));
    }
    if !problems.is_empty() {
        sort_by_place(&mut problems, &files);
        return Err(Problems(problems));
    }
    let configuration = redacted::configuration(&effective);
    Ok(KubeletConfig {
        node_name,
        node_ips,
        ipv6_first,
        root_dir: flags.root_dir.clone(),
        local_objects_dir: flags.local_objects_dir.clone(),
        allow_posted_pods: flags.allow_posted_pods,
        lock_file: flags.lock_file.clone(),
        exit_on_lock_contention: flags.exit_on_lock_contention,
        sync_frequency: time(effective.sync_frequency),
        static_pods: static_pods(&effective),
        server: server::server(&effective, flags),
        kubeconfig: flags.kubeconfig.clone(),
        identity: identity(&effective, flags),
        node: node::node(&effective, flags),
        runtime: runtime(&effective),
        images: images(&effective, flags),
        image_gc: image_gc(&effective),
        containers: containers(&effective, flags),
        cgroups: cgroups::cgroups(&effective, flags.runtime_cgroups.as_deref(), |gate| {
            gate.is_on(effective.feature_gates.as_ref())
        }),
        managers: managers::managers(&effective),
        user_namespaces: user_namespaces(&effective),
        pod_logs_dir: pod_logs_dir(&effective),
        log_rotation: log_rotation(&effective),
        dns: dns(&effective),
        oom_score_adj: effective.oom_score_adj.unwrap_or_default(),
        max_open_files: effective.max_open_files.unwrap_or_default().unsigned_abs(),
        fail_swap_on: effective.fail_swap_on.unwrap_or_default(),
        fail_cgroup_v1: effective.fail_cgroup_v1.unwrap_or_default(),
        feature_gates: effective.feature_gates.clone().unwrap_or_default(),
        logging: logging(&effective),
        tracing: effective.tracing.as_ref().map(tracing),
        unsupported: unsupported(&effective, &defaults::default_configuration(), flags),
        warnings: warnings(&effective, flags),
        effective,
        redacted_flags: redacted::flags(flags, &configuration),
        redacted: configuration,
    })
}

/// Whether the value at `path`, or what it is in, was rejected already.
fn is_rejected(tree: &DocumentNode, path: &str) -> bool {
    let (steps, _) = tree.steps_along(path);
    tree.at(&steps).is_some_and(|(node, _, _)| node.value == DocumentValue::Rejected)
}

/// Merges the files in order, then the flags. Zeros that mean "not set" are removed before the flags are merged,
/// because a zero in a flag counts; of the file also before its own defaults are set.
pub(super) fn merge(flags: &Flags, layers: Layers) -> DocumentNode {
    let nowhere = DocumentOrigin::File { path: Arc::from("configuration"), line: 1, column: 1 };
    let mut tree = layers.file.unwrap_or_else(|| DocumentNode::empty(nowhere));
    defaults::drop_unset_zeros(&mut tree);
    defaults::apply_to_file(&mut tree);
    for drop_in in layers.drop_ins {
        tree.merge(drop_in);
    }
    defaults::drop_unset_zeros(&mut tree);
    for (path, node) in &flags.fields.0 {
        match (*path, &node.value) {
            // Feature gates are merged with those of the files; every other flag replaces its field.
            ("featureGates", DocumentValue::Map(entries)) => {
                for entry in entries {
                    tree.set(&format!("{path}.{}", entry.key), entry.node.clone());
                }
            }
            _ => tree.set(path, node.clone()),
        }
    }
    tree
}

/// The node's name. Upstream: `nodeutil.GetHostname`.
fn node_name(flags: &Flags, facts: &HostFacts, problems: &mut Vec<ConfigProblem>) -> String {
    let given = flags.hostname_override.as_deref();
    let name = given.unwrap_or(&facts.hostname).trim().to_lowercase();
    let problem = if name.is_empty() {
        Some("the host has no name: set one, or give --hostname-override".to_owned())
    } else if name.len() > 253 || name.contains(|c: char| c == '/' || c.is_control() || c == ' ') {
        Some(format!("{name:?} cannot name a node"))
    } else {
        None
    };
    problems.extend(problem.map(|message| ConfigProblem::of_flag("hostname-override", message)));
    name
}

/// The addresses of `--node-ip`, and whether IPv6 is the preferred family.
fn node_ips(flags: &Flags, problems: &mut Vec<ConfigProblem>) -> (Vec<IpAddr>, bool) {
    let Some(text) = &flags.node_ip else {
        return (Vec::new(), false);
    };
    let parsed: Result<Vec<IpAddr>, _> =
        text.split(',').map(|address| address.trim().parse()).collect();
    match parsed.as_deref() {
        // The unspecified address only selects the family for detection.
        Ok([one]) if one.is_unspecified() => (Vec::new(), one.is_ipv6()),
        Ok([one]) => (vec![*one], one.is_ipv6()),
        Ok([a, b]) if a.is_ipv4() != b.is_ipv4() => (vec![*a, *b], a.is_ipv6()),
        _ => {
            let message = format!(
                "must be one IP address, or an IPv4 and an IPv6 address with a comma; got {text:?}"
            );
            problems.push(ConfigProblem::of_flag("node-ip", message));
            (Vec::new(), false)
        }
    }
}

fn check_provider_flags(flags: &Flags, problems: &mut Vec<ConfigProblem>) {
    let (config, programs) = (
        ("image-credential-provider-config", &flags.image_credential_provider_config),
        ("image-credential-provider-bin-dir", &flags.image_credential_provider_bin_dir),
    );
    for ((given, value), (missing, other)) in [(config, programs), (programs, config)] {
        if value.is_some() && other.is_none() {
            problems.push(ConfigProblem::of_flag(given, format!("it needs --{missing} beside it")));
        }
    }
}

fn identity(config: &KubeletConfiguration, flags: &Flags) -> IdentityConfig {
    let directory = flags.cert_dir.clone();
    IdentityConfig {
        bootstrap_kubeconfig: flags.bootstrap_kubeconfig.clone(),
        cert_dir: directory.unwrap_or_else(|| PathBuf::from(defaults::CERT_DIR)),
        rotate_certificates: config.rotate_certificates.unwrap_or_default(),
        qps: count(config.kube_api_qps),
        burst: count(config.kube_api_burst),
        proxies: None,
    }
}

fn static_pods(config: &KubeletConfiguration) -> StaticPodSources {
    StaticPodSources {
        path: some_text(&config.static_pod_path).map(PathBuf::from),
        file_check_frequency: time(config.file_check_frequency),
        url: config.static_pod_url.clone().filter(|url| !url.is_empty()),
        url_headers: config.static_pod_url_header.clone().unwrap_or_default(),
        http_check_frequency: time(config.http_check_frequency),
    }
}

fn runtime(config: &KubeletConfiguration) -> RuntimeConfig {
    let with_scheme = |endpoint: String| {
        if endpoint.starts_with('/') { format!("unix://{endpoint}") } else { endpoint }
    };
    let endpoint = with_scheme(some_text(&config.container_runtime_endpoint).unwrap_or_default());
    let image_endpoint = some_text(&config.image_service_endpoint).map(with_scheme);
    RuntimeConfig {
        image_endpoint: image_endpoint.unwrap_or_else(|| endpoint.clone()),
        endpoint,
        request_timeout: time(config.runtime_request_timeout),
    }
}

fn images(config: &KubeletConfiguration, flags: &Flags) -> ImagesConfig {
    let providers = flags.image_credential_provider_config.clone();
    let providers = providers.zip(flags.image_credential_provider_bin_dir.clone());
    let gate = FeatureGate::KubeletServiceAccountTokenForCredentialProviders;
    let account_tokens = gate.is_on(config.feature_gates.as_ref());
    ImagesConfig {
        verification: verification(config),
        credential_providers: providers.map(|(config, bin_dir)| CredentialProviders {
            config,
            bin_dir,
            account_tokens,
        }),
        pulls: PullConfig {
            serialize: config.serialize_image_pulls.unwrap_or(true),
            max_parallel: config.max_parallel_image_pulls.map(|pulls| count(Some(pulls))),
            qps: Some(count(config.registry_pull_qps)).filter(|qps| *qps > 0),
            burst: count(config.registry_burst),
        },
    }
}

fn image_gc(config: &KubeletConfiguration) -> ImageGcPolicy {
    let percent = |value| u8::try_from(count(value)).unwrap_or(100);
    ImageGcPolicy {
        high_percent: percent(config.image_gc_high_threshold_percent),
        low_percent: percent(config.image_gc_low_threshold_percent),
        min_age: time(config.image_minimum_gc_age),
        max_age: time(config.image_maximum_gc_age),
    }
}

/// Without the feature gate there is no policy, not even the default.
fn verification(config: &KubeletConfiguration) -> Option<VerificationPolicy> {
    let policy = config.image_pull_credentials_verification_policy.as_deref()?;
    let allowlist = config.preloaded_images_verification_allowlist.as_deref();
    Some(VerificationPolicy::of(policy, allowlist.unwrap_or_default()))
}

fn containers(config: &KubeletConfiguration, flags: &Flags) -> ContainersConfig {
    let back_off = config.crash_loop_back_off.as_ref();
    ContainersConfig {
        max_restart_back_off: time(back_off.and_then(|b| b.max_container_restart_period)),
        seccomp_default: config.seccomp_default.unwrap_or_default(),
        cpu_cfs_quota: config.cpu_cfs_quota.unwrap_or_default(),
        cpu_cfs_quota_period: time(config.cpu_cfs_quota_period),
        gc_policy: GcPolicy {
            min_age: flags.minimum_container_ttl.to_std(),
            max_per_container: usize::try_from(flags.maximum_dead_containers_per_container).ok(),
            max_containers: usize::try_from(flags.maximum_dead_containers).ok(),
        },
        allowed_unsafe_sysctls: config.allowed_unsafe_sysctls.clone().unwrap_or_default(),
    }
}

fn user_namespaces(config: &KubeletConfiguration) -> UserNamespacesConfig {
    let ids = config.user_namespaces.as_ref().and_then(|u| u.ids_per_pod);
    UserNamespacesConfig {
        ids_per_pod: ids.and_then(|ids| u32::try_from(ids).ok()).unwrap_or(65536),
        max_pods: count(config.max_pods),
    }
}

fn pod_logs_dir(config: &KubeletConfiguration) -> PathBuf {
    let directory = config.pod_logs_dir.as_deref().unwrap_or_default();
    PathBuf::from(directory.strip_suffix('/').unwrap_or(directory))
}

fn log_rotation(config: &KubeletConfiguration) -> Option<rotation::Config> {
    let size = Quantity::parse(config.container_log_max_size.as_deref()?).ok()?;
    Some(rotation::Config {
        policy: RotationPolicy {
            max_size: u64::try_from(size.value()).ok()?,
            max_files: count(config.container_log_max_files),
        },
        workers: count(config.container_log_max_workers),
        interval: time(config.container_log_monitor_interval),
    })
}

fn dns(config: &KubeletConfiguration) -> DnsConfig {
    let servers = config.cluster_dns.iter().flatten();
    DnsConfig {
        cluster_dns: servers.filter_map(|server| server.parse().ok()).collect(),
        cluster_domain: config.cluster_domain.clone().unwrap_or_default(),
        resolv_conf: some_text(&config.resolv_conf).map(PathBuf::from),
    }
}

fn logging(config: &KubeletConfiguration) -> LoggingConfig {
    let section = config.logging.clone().unwrap_or_default();
    let rule = |item: super::kubelet_configuration::VModuleItem| VModule {
        pattern: item.file_pattern.unwrap_or_default(),
        verbosity: item.verbosity.unwrap_or_default(),
    };
    LoggingConfig {
        format: match section.format.as_deref() {
            Some("json") => LogFormat::Json,
            _ => LogFormat::Text,
        },
        verbosity: section.verbosity.unwrap_or_default(),
        vmodule: section.vmodule.into_iter().flatten().map(rule).collect(),
    }
}

/// Upstream: `NewProvider` of component-base's tracing. An empty section also enables traces: those whose parent is
/// sampled are recorded.
fn tracing(section: &TracingConfiguration) -> TracingSettings {
    let endpoint = some_text(&section.endpoint);
    TracingSettings {
        collector: endpoint.and_then(|text| text.parse().ok()).unwrap_or_default(),
        sampling_rate_per_million: count(section.sampling_rate_per_million),
    }
}

fn warnings(config: &KubeletConfiguration, flags: &Flags) -> Vec<String> {
    let mut warnings = Vec::new();
    for (what, names) in [
        ("deprecated flags given", &flags.deprecated),
        ("flags without effect given", &flags.obsolete),
    ] {
        if !names.is_empty() {
            warnings.push(format!("{what}: --{}", names.join(", --")));
        }
    }
    let gates = config.feature_gates.as_ref();
    warnings.extend(gates.and_then(feature_gates::warning));
    warnings.extend(server::warnings(config));
    warnings.extend(cgroups::warning(config));
    if flags.bootstrap_kubeconfig.is_some() && flags.kubeconfig.is_none() {
        let text = "--bootstrap-kubeconfig has no effect without --kubeconfig";
        warnings.push(text.to_owned());
    }
    warnings
}
