//! The configuration of the kubelet's servers: addresses, authentication, authorization, and warnings about them.
//! Pure.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};

use super::defaults;
use super::flags::Flags;
use super::kubelet_configuration::KubeletConfiguration;

use super::values::{count, some_text, time};
use crate::server::auth::{AuthSettings, AuthorizationMode};
use crate::server::tls::{ServingCertificate, TlsOptions, TlsSettings, without_effect};
use crate::server::{RouteGroup, ServerConfig};

/// Converts a validated configuration with defaults.
pub(super) fn server(config: &KubeletConfiguration, flags: &Flags) -> ServerConfig {
    let ip = |text: &Option<String>| {
        let parsed = text.as_ref().and_then(|text| text.parse().ok());
        parsed.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    };
    let port = |value: Option<i32>| u16::try_from(value.unwrap_or(0)).unwrap_or(0);
    let address = ip(&config.address);
    let optional = |address, value| match port(value) {
        0 => None,
        port => Some(SocketAddr::new(address, port)),
    };
    ServerConfig {
        enabled: config.enable_server.unwrap_or_default(),
        address: SocketAddr::new(address, port(config.port)),
        auth: auth(config, flags),
        tls: tls(config, flags),
        read_only: optional(address, config.read_only_port),
        healthz: optional(ip(&config.healthz_bind_address), config.healthz_port),
        disabled: disabled_route_groups(config, flags),
        stream_idle: config.streaming_connection_idle_timeout.unwrap_or_default().to_std(),
    }
}

fn disabled_route_groups(config: &KubeletConfiguration, flags: &Flags) -> Vec<RouteGroup> {
    let groups = [
        (config.enable_debugging_handlers, RouteGroup::Debugging),
        (config.enable_system_log_handler, RouteGroup::SystemLogs),
        (config.enable_profiling_handler, RouteGroup::Profiling),
        (config.enable_debug_flags_handler, RouteGroup::DebugFlags),
        (Some(flags.allow_posted_pods), RouteGroup::PostedPods),
    ];
    let off = groups.into_iter().filter(|(on, _)| *on == Some(false));
    off.map(|(_, group)| group).collect()
}

fn auth(config: &KubeletConfiguration, flags: &Flags) -> AuthSettings {
    let authentication = config.authentication.clone().unwrap_or_default();
    let anonymous = authentication.anonymous.unwrap_or_default();
    let tokens = authentication.webhook.unwrap_or_default();
    let authorization = config.authorization.clone().unwrap_or_default();
    let rights = authorization.webhook.unwrap_or_default();
    AuthSettings {
        client_ca_file: some_text(&authentication.x509.unwrap_or_default().client_ca_file)
            .map(PathBuf::from),
        anonymous: anonymous.enabled.unwrap_or_default(),
        token_ttl: tokens.enabled.unwrap_or_default().then(|| time(tokens.cache_ttl)),
        authorization: match authorization.mode.as_deref() {
            Some("AlwaysAllow") => AuthorizationMode::AlwaysAllow,
            _ => AuthorizationMode::Webhook {
                allowed_ttl: time(rights.cache_authorized_ttl),
                denied_ttl: time(rights.cache_unauthorized_ttl),
            },
        },
        review_qps: count(config.kube_api_qps),
        review_burst: count(config.kube_api_burst),
        strict_upgrade_verbs: flags.strict_upgrade_verbs,
    }
}

/// `tlsMinVersion`, `tlsCipherSuites` and `tlsCurvePreferences`, or their defaults.
fn tls_words(config: &KubeletConfiguration) -> (&str, &[String], &[i32]) {
    (
        config.tls_min_version.as_deref().unwrap_or_default(),
        config.tls_cipher_suites.as_deref().unwrap_or_default(),
        config.tls_curve_preferences.as_deref().unwrap_or_default(),
    )
}

fn tls(config: &KubeletConfiguration, flags: &Flags) -> TlsSettings {
    let (certificate, key) =
        (some_text(&config.tls_cert_file), some_text(&config.tls_private_key_file));
    let directory = flags.cert_dir.clone();
    let (version, suites, curves) = tls_words(config);
    TlsSettings {
        certificate: match certificate.zip(key) {
            Some((certificate, key)) => {
                ServingCertificate::Files { certificate: certificate.into(), key: key.into() }
            }
            None => {
                let directory = directory.unwrap_or_else(|| PathBuf::from(defaults::CERT_DIR));
                if config.server_tls_bootstrap.unwrap_or_default() {
                    ServingCertificate::Issued { directory }
                } else {
                    ServingCertificate::SelfSigned { directory }
                }
            }
        },
        // Invalid values were already reported by the validation.
        options: TlsOptions::of(version, suites, curves).unwrap_or_default(),
    }
}

/// Warnings for the operator.
pub(super) fn warnings(config: &KubeletConfiguration) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.enable_server != Some(true) {
        return warnings;
    }
    let (version, suites, curves) = tls_words(config);
    let left_out = without_effect(version, suites, curves);
    if !left_out.is_empty() {
        warnings.push(format!(
            "TLS here begins at 1.2 and has forward secrecy; without effect: {}",
            left_out.join(", ")
        ));
    }
    let auth = auth(config, &Flags::default());
    if auth.anonymous && auth.authorization == AuthorizationMode::AlwaysAllow {
        let text =
            "Anonymous requests are allowed everything: any client that reaches this port is root";
        warnings.push(text.to_owned());
    }
    let authorities = auth.client_ca_file.as_deref();
    if let Some(file) = authorities.filter(|file| is_of_cluster(file))
        && auth.authorization == AuthorizationMode::AlwaysAllow
    {
        warnings.push(format!(
            "clientCAFile {} seems to hold the authorities of a cluster, and everything is allowed: EVERY CLIENT WITH A \
             CERTIFICATE OF THE CLUSTER IS ROOT HERE. Use authorities of your own",
            file.display()
        ));
    }
    warnings
}

/// Whether installers such as kubeadm store the cluster's own authorities at this path.
fn is_of_cluster(file: &Path) -> bool {
    let is_authority = matches!(file.file_stem().and_then(OsStr::to_str), Some("ca" | "client-ca"));
    let names = |part: Component<'_>| {
        matches!(part.as_os_str().to_str(), Some("kubernetes" | "k8s" | "k3s" | "rke2"))
    };
    is_authority && file.components().any(names)
}
