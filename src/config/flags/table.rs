//! All flags of the v1.36 kubelet but the deprecated ones, which are in the rows of their configuration fields, and four of
//! this one's own: `--strict`, `--local-objects-dir`, `--allow-posted-pods` and `--strict-upgrade-verbs`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::spec::{FieldLayer, FlagGroup, FlagSpec, FlagTarget};
use crate::base::GoDuration;
use crate::config::defaults::ROOT_DIR;
use crate::config::fields::FlagKind;

/// Declares flags: group, kind, name, printed default and help; then the configuration field that it sets, or the
/// member of `Flags` with its type and default. A flag with neither is ignored.
macro_rules! flags {
    ($(
        $group:ident $kind:ident $name:literal, $default:literal, $help:literal
        $(sets $path:literal)? $(as $member:ident: $type:ty = $value:expr)?;
    )*) => {
        pub(super) const FLAGS: &[FlagSpec] = &[$(FlagSpec {
            name: $name,
            kind: FlagKind::$kind,
            target: FlagTarget::of(&[$($path)?], &[$(stringify!($member))?]),
            group: FlagGroup::$group,
            default: Cow::Borrowed($default),
            help: $help,
        }),*];

        /// The parsed flags.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Flags {
            $($(
                #[doc = concat!("`--", $name, "`.")]
                #[serde(rename = $name)]
                pub $member: $type,
            )?)*
            /// Deprecated flags that were given, by name without dashes.
            #[serde(skip)]
            pub deprecated: Vec<&'static str>,
            /// Flags without effect that were given, by name without dashes.
            #[serde(skip)]
            pub obsolete: Vec<&'static str>,
            /// The configuration fields that flags set.
            #[serde(skip)]
            pub(in crate::config) fields: FieldLayer,
        }

        impl Default for Flags {
            /// An empty command line.
            fn default() -> Self {
                Self {
                    $($($member: $value,)?)*
                    deprecated: Vec::new(),
                    obsolete: Vec::new(),
                    fields: FieldLayer::default(),
                }
            }
        }
    };
}

// The most important flags first, then those set by tools, then the rest.
flags! {
    Essential Path "config", "", "Configuration file (KubeletConfiguration, YAML or JSON)" as config: Option<PathBuf> = None;
    Essential Path "config-dir", "", "Directory of drop-ins merged over the file: *.conf in name order" as config_dir: Option<PathBuf> = None;
    Essential Bool "strict", "false", "Refuse unknown fields and duplicate keys of the file and its drop-ins, in place of a warning; an extension of this kubelet" as strict: bool = false;
    Essential Path "pod-manifest-path", "", "File or directory of static pods" sets "staticPodPath";
    Essential Path "root-dir", "/var/lib/kubelet", "Where the kubelet keeps pod volumes and its state" as root_dir: PathBuf = ROOT_DIR.into();
    Essential Text "hostname-override", "the kernel's hostname", "Name of this node" as hostname_override: Option<String> = None;
    Essential Text "node-ip", "that of the default route", "Address of this node, or IPv4,IPv6 for both families" as node_ip: Option<String> = None;
    Essential BoolMap "feature-gates", "", "Feature gates; added to those of the file" sets "featureGates";
    Runtime Text "container-runtime-endpoint", "unix:///run/containerd/containerd.sock", "Socket of the container runtime" sets "containerRuntimeEndpoint";
    Runtime Text "image-service-endpoint", "the runtime's", "Socket of the image service" sets "imageServiceEndpoint";
    Runtime Duration "runtime-request-timeout", "2m0s", "Deadline of runtime calls, pulls and streams apart" sets "runtimeRequestTimeout";
    Runtime Bool "serialize-image-pulls", "false", "Pull one image at a time" sets "serializeImagePulls";
    Runtime Int32 "registry-qps", "5", "Image pulls per second; 0 is unlimited" sets "registryPullQPS";
    Runtime Int32 "registry-burst", "10", "Burst of image pulls" sets "registryBurst";
    Runtime Path "image-credential-provider-config", "", "Configuration of image credential providers" as image_credential_provider_config: Option<PathBuf> = None;
    Runtime Path "image-credential-provider-bin-dir", "", "Directory of image credential provider programs" as image_credential_provider_bin_dir: Option<PathBuf> = None;
    Runtime Text "runtime-cgroups", "", "Cgroup the runtime runs in" as runtime_cgroups: Option<String> = None;
    Pods Text "manifest-url", "", "URL of static pods" sets "staticPodURL";
    Pods Headers "manifest-url-header", "", "HTTP headers for that URL" sets "staticPodURLHeader";
    Pods Duration "sync-frequency", "1m0s", "Longest time between two syncs of a pod" sets "syncFrequency";
    Pods Duration "file-check-frequency", "20s", "Re-list interval of the manifest path" sets "fileCheckFrequency";
    Pods Duration "http-check-frequency", "20s", "Poll interval of the manifest URL" sets "httpCheckFrequency";
    Pods Path "local-objects-dir", "", "Directory of ConfigMaps and Secrets for static pods; an extension of this kubelet" as local_objects_dir: Option<PathBuf> = None;
    Pods Bool "allow-posted-pods", "false", "Take pods that clients POST to /container and /containers; an extension of this kubelet" as allow_posted_pods: bool = false;
    Pods List "cluster-dns", "", "DNS servers for pods of dnsPolicy ClusterFirst" sets "clusterDNS";
    Pods Text "cluster-domain", "", "DNS domain pods search first" sets "clusterDomain";
    Pods Path "resolv-conf", "/etc/resolv.conf", "Resolver file pods start from; \"\" for none" sets "resolvConf";
    Pods Bool "seccomp-default", "false", "Runtime's seccomp profile unless a pod chooses" sets "seccompDefault";
    Pods Int32 "maximum-dead-containers-per-container", "1", "Dead instances kept per container" as maximum_dead_containers_per_container: i32 = 1;
    Pods Int32 "maximum-dead-containers", "-1", "Dead instances kept on the node; -1 is no limit" as maximum_dead_containers: i32 = -1;
    Pods Duration "minimum-container-ttl-duration", "0s", "Youngest dead container that may be removed" as minimum_container_ttl: GoDuration = GoDuration::default();
    ApiServer Path "kubeconfig", "", "How to reach the API server of the cluster that the node joins; without it the node is on its own" as kubeconfig: Option<PathBuf> = None;
    ApiServer Path "bootstrap-kubeconfig", "", "How to get a client certificate while --kubeconfig has none" as bootstrap_kubeconfig: Option<PathBuf> = None;
    ApiServer Path "cert-dir", "/var/lib/kubelet/pki", "Directory of certificates" as cert_dir: Option<PathBuf> = None;
    ApiServer Bool "strict-upgrade-verbs", "false", "Need create, not get, for WebSockets to containers; an extension of this kubelet" as strict_upgrade_verbs: bool = false;
    ApiServer Map "node-labels", "", "Labels the node registers with" as node_labels: BTreeMap<String, String> = BTreeMap::new();
    ApiServer Text "cloud-provider", "", "\"external\" or empty" as cloud_provider: Option<String> = None;
    ApiServer Path "lock-file", "", "File to hold a lock on while running" as lock_file: Option<PathBuf> = None;
    ApiServer Bool "exit-on-lock-contention", "false", "Exit when another process wants that lock" as exit_on_lock_contention: bool = false;
    Logging Int32 "v", "0", "Verbosity: 0 normal, 4 debug, 6 trace (also -v)" sets "logging.verbosity";
    Logging VModule "vmodule", "", "Verbosity per source file or directory, with * and ?" sets "logging.vmodule";
    Logging Text "logging-format", "text", "text or json" sets "logging.format";
    Logging Duration "log-flush-frequency", "5s", "Accepted; every line is written at once" sets "logging.flushFrequency";
    Logging Bool "log-text-split-stream", "false", "Accepted; all lines go to stderr" sets "logging.options.text.splitStream";
    Logging Text "log-text-info-buffer-size", "0", "Accepted; lines are not buffered" sets "logging.options.text.infoBufferSize";
    Logging Bool "log-json-split-stream", "false", "Accepted; all lines go to stderr" sets "logging.options.json.splitStream";
    Logging Text "log-json-info-buffer-size", "0", "Accepted; lines are not buffered" sets "logging.options.json.infoBufferSize";
    Obsolete Text "pod-infra-container-image", "", "Sandbox image; the runtime's configuration decides";
    Obsolete Path "experimental-mounter-path", "", "Removed mounter";
    Obsolete Bool "experimental-allocatable-ignore-eviction", "", "Removed";
    // Of the cAdvisor in the Go kubelet; set-ups pass some of them.
    Obsolete Int64 "application-metrics-count-limit", "", "cAdvisor";
    Obsolete Text "boot-id-file", "", "cAdvisor";
    Obsolete Path "container-hints", "", "cAdvisor";
    Obsolete Text "containerd", "", "cAdvisor; the runtime is --container-runtime-endpoint";
    Obsolete Text "containerd-namespace", "", "cAdvisor";
    Obsolete Bool "enable-load-reader", "", "cAdvisor";
    Obsolete Text "event-storage-age-limit", "", "cAdvisor";
    Obsolete Text "event-storage-event-limit", "", "cAdvisor";
    Obsolete Duration "global-housekeeping-interval", "", "cAdvisor; statistics are read on request";
    Obsolete Duration "housekeeping-interval", "", "cAdvisor; statistics are read on request";
    Obsolete Bool "log-cadvisor-usage", "", "cAdvisor";
    Obsolete Text "machine-id-file", "", "cAdvisor";
    Obsolete Duration "storage-driver-buffer-duration", "", "cAdvisor";
    Obsolete Text "storage-driver-db", "", "cAdvisor";
    Obsolete Text "storage-driver-host", "", "cAdvisor";
    Obsolete Text "storage-driver-password", "", "cAdvisor";
    Obsolete Bool "storage-driver-secure", "", "cAdvisor";
    Obsolete Text "storage-driver-table", "", "cAdvisor";
    Obsolete Text "storage-driver-user", "", "cAdvisor";
}
