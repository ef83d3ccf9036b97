//! The nested types of [`KubeletConfiguration`](super::KubeletConfiguration).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::GoDuration;
use crate::config::fields::FlagKind::*;
use crate::config::fields::{ApplyDefaults, FieldSpec, config_sections, secs};

config_sections! {
    /// How requests to the kubelet's server are authenticated.
    pub struct KubeletAuthentication {
        /// Client certificates.
        "x509" x509: KubeletX509Authentication;
        /// Bearer tokens, verified by the API server.
        "webhook" webhook: KubeletWebhookAuthentication = KubeletWebhookAuthentication::default();
        /// Requests without credentials.
        "anonymous" anonymous: KubeletAnonymousAuthentication = KubeletAnonymousAuthentication::default();
    }

    /// Client certificate authentication.
    pub struct KubeletX509Authentication {
        /// File with the certificate authorities for client certificates.
        "clientCAFile" client_ca_file: String, flag: Some((Path, "client-ca-file", "Authorities of client certificates"));
    }

    /// Bearer token authentication through TokenReview.
    pub struct KubeletWebhookAuthentication {
        /// Whether tokens are accepted.
        "enabled" enabled: bool = true, flag: Some((Bool, "authentication-token-webhook", "Check tokens with the API server"));
        /// How long a result is cached.
        "cacheTTL" cache_ttl: GoDuration = secs(120), zero_is_unset: true, flag: Some((Duration, "authentication-token-webhook-cache-ttl", "How long token answers are kept"));
    }

    /// Anonymous requests.
    pub struct KubeletAnonymousAuthentication {
        /// Whether they are accepted.
        "enabled" enabled: bool = false, flag: Some((Bool, "anonymous-auth", "Accept requests without credentials"));
    }

    /// How requests to the kubelet's server are authorized.
    pub struct KubeletAuthorization {
        /// `AlwaysAllow` or `Webhook`.
        "mode" mode: String = "Webhook", zero_is_unset: true, flag: Some((Text, "authorization-mode", "AlwaysAllow or Webhook"));
        /// Settings of the `Webhook` mode.
        "webhook" webhook: KubeletWebhookAuthorization = KubeletWebhookAuthorization::default();
    }

    /// Authorization through SubjectAccessReview.
    pub struct KubeletWebhookAuthorization {
        /// How long an "authorized" result is cached.
        "cacheAuthorizedTTL" cache_authorized_ttl: GoDuration = secs(300), zero_is_unset: true, flag: Some((Duration, "authorization-webhook-cache-authorized-ttl", "How long allowing answers are kept"));
        /// How long an "unauthorized" result is cached.
        "cacheUnauthorizedTTL" cache_unauthorized_ttl: GoDuration = secs(30), zero_is_unset: true, flag: Some((Duration, "authorization-webhook-cache-unauthorized-ttl", "How long denying answers are kept"));
    }

    /// Swap behavior of containers.
    pub struct MemorySwapConfiguration {
        /// `NoSwap` (also when empty) or `LimitedSwap`.
        "swapBehavior" swap_behavior: String;
    }

    /// Shutdown grace period of pods with at least this priority.
    pub struct ShutdownGracePeriodByPodPriority {
        /// The minimum priority.
        "priority" priority: i32;
        /// The grace period in seconds.
        "shutdownGracePeriodSeconds" shutdown_grace_period_seconds: i64;
    }

    /// Container restart back-off.
    pub struct CrashLoopBackOffConfig {
        /// Maximum back-off between restarts.
        "maxContainerRestartPeriod" max_container_restart_period: GoDuration = secs(300);
    }

    /// Memory reserved on one NUMA node.
    pub struct MemoryReservation {
        /// The NUMA node's number.
        "numaNode" numa_node: i32;
        /// Quantities by resource name (`memory`, `hugepages-2Mi`, ...).
        "limits" limits: BTreeMap<String, String>;
    }

    /// User namespaces of pods.
    pub struct UserNamespacesSection {
        /// Number of user IDs per pod; a multiple of 65536.
        "idsPerPod" ids_per_pod: i64 = 65536;
    }

    /// A taint the node registers with.
    pub struct Taint {
        /// Taint key.
        "key" key: String;
        /// Taint value.
        "value" value: String;
        /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
        "effect" effect: String;
        /// Set by the control plane; not allowed here.
        "timeAdded" time_added: String;
    }

    /// OpenTelemetry tracing.
    pub struct TracingConfiguration {
        /// Address of the collector; default `localhost:4317`.
        "endpoint" endpoint: String;
        /// Number of traces recorded per million that start here.
        "samplingRatePerMillion" sampling_rate_per_million: i32;
    }

    /// The `logging` section.
    pub struct LoggingConfiguration {
        /// `text` or `json`.
        "format" format: String = "text", zero_is_unset: true;
        /// Accepted without effect: lines are written immediately.
        "flushFrequency" flush_frequency: FlushFrequency;
        /// klog verbosity.
        "verbosity" verbosity: u32;
        /// Verbosity by source file.
        "vmodule" vmodule: Vec<VModuleItem>;
        /// Options of the formats.
        "options" options: FormatOptions;
    }

    /// One file pattern and its verbosity.
    pub struct VModuleItem {
        /// Glob over source file names without extension.
        "filePattern" file_pattern: String;
        /// The verbosity there.
        "verbosity" verbosity: u32;
    }

    /// Options per log format.
    pub struct FormatOptions {
        /// Options of `text`.
        "text" text: OutputRoutingOptions;
        /// Options of `json`.
        "json" json: OutputRoutingOptions;
    }

    /// The destination of log lines.
    pub struct OutputRoutingOptions {
        /// Errors to stderr and the rest to stdout.
        "splitStream" split_stream: bool;
        /// Buffer size for informational lines, as a quantity.
        "infoBufferSize" info_buffer_size: String;
    }
}

/// The values of one HTTP header. They may be credentials, so `Debug` prints only their number.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HeaderValues(pub Vec<String>);

impl std::fmt::Debug for HeaderValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{} hidden]", self.0.len())
    }
}

/// A flush interval: a duration, or (in older files) an integer of nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct FlushFrequency(pub GoDuration);

impl ApplyDefaults for FlushFrequency {}

impl<'de> Deserialize<'de> for FlushFrequency {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = FlushFrequency;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a duration such as \"5s\" or an integer of nanoseconds")
            }

            fn visit_i64<E>(self, nanos: i64) -> Result<FlushFrequency, E> {
                Ok(FlushFrequency(GoDuration::from_nanos(nanos)))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<FlushFrequency, E> {
                let parsed = text.parse().map(FlushFrequency);
                parsed.map_err(|error| E::custom(format_args!("{text:?} {error}")))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
