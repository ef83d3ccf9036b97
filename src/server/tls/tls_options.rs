//! TLS versions, cipher suites and curves, by Go's names. Pure.
//!
//! Upstream: `k8s.io/component-base/cli/flag` (`ciphersuites_flag.go`) and Go's `crypto/tls`.

use crate::base::tls_provider;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{ALL_KX_GROUPS, cipher_suite as suite};
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, NamedGroup, SupportedCipherSuite, SupportedProtocolVersion};
use std::sync::Arc;

/// The TLS options of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    only_tls13: bool,
    /// Cipher suites of TLS 1.2; `None` for all.
    suites: Option<Vec<CipherSuite>>,
    /// Key exchange groups; `None` for all.
    groups: Option<Vec<NamedGroup>>,
}

/// An invalid option: the configuration field, and its error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct TlsOptionError {
    /// Has the index of the entry, if one entry is invalid.
    pub field: String,
    /// The error.
    pub message: String,
}

/// Whether an option that Go knows is supported by rustls.
enum GoSupport<T> {
    Supported(T),
    Unsupported,
}

/// The cipher suite with Go's name.
fn cipher_suite(name: &str) -> Option<GoSupport<SupportedCipherSuite>> {
    let supported = match name {
        "TLS_AES_128_GCM_SHA256" => suite::TLS13_AES_128_GCM_SHA256,
        "TLS_AES_256_GCM_SHA384" => suite::TLS13_AES_256_GCM_SHA384,
        "TLS_CHACHA20_POLY1305_SHA256" => suite::TLS13_CHACHA20_POLY1305_SHA256,
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" => suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384" => suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305"
        | "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256" => {
            suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
        }
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" => suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384" => suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" | "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256" => {
            suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
        }
        name => {
            return UNSUPPORTED.contains(&name).then_some(GoSupport::Unsupported);
        }
    };
    Some(GoSupport::Supported(supported))
}

/// Suites that Go supports and rustls does not: without forward secrecy, or with CBC, RC4 or 3DES.
const UNSUPPORTED: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// The key exchange group with Go's number (`tls.CurveID`).
fn curve(number: i32) -> Option<GoSupport<NamedGroup>> {
    Some(match number {
        23 => GoSupport::Supported(NamedGroup::secp256r1),
        24 => GoSupport::Supported(NamedGroup::secp384r1),
        29 => GoSupport::Supported(NamedGroup::X25519),
        4587 => GoSupport::Supported(NamedGroup::secp256r1MLKEM768),
        4588 => GoSupport::Supported(NamedGroup::X25519MLKEM768),
        // P-521, and P-384 with ML-KEM-1024.
        25 | 4589 => GoSupport::Unsupported,
        _ => return None,
    })
}

impl TlsOptions {
    /// Parses `tlsMinVersion`, `tlsCipherSuites` and `tlsCurvePreferences`. Empty ones mean the defaults. Entries
    /// that rustls does not support are ignored, unless no entry is left.
    ///
    /// # Errors
    /// All unknown entries, and a list without any supported entry.
    pub fn of(
        min_version: &str,
        suites: &[String],
        curves: &[i32],
    ) -> Result<Self, Vec<TlsOptionError>> {
        let mut errors = Vec::new();
        let mut error =
            |field: String, message: String| errors.push(TlsOptionError { field, message });
        let only_tls13 = match min_version {
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => false,
            "VersionTLS13" => true,
            other => {
                error("tlsMinVersion".into(), format!("unknown TLS version {other:?}"));
                false
            }
        };
        let mut chosen_suites = Vec::new();
        for (index, name) in suites.iter().enumerate() {
            match cipher_suite(name) {
                Some(GoSupport::Supported(suite)) => chosen_suites.push(suite.suite()),
                Some(GoSupport::Unsupported) => {}
                None => error(
                    format!("tlsCipherSuites[{index}]"),
                    format!("cipher suite {name:?} is not known"),
                ),
            }
        }
        let mut groups = Vec::new();
        for (index, number) in curves.iter().enumerate() {
            match curve(*number) {
                Some(GoSupport::Supported(group)) => groups.push(group),
                Some(GoSupport::Unsupported) => {}
                None => error(
                    format!("tlsCurvePreferences[{index}]"),
                    format!("curve {number} is not known"),
                ),
            }
        }
        if errors.is_empty() {
            let nothing = |field: &str| TlsOptionError {
                field: field.into(),
                message: "none of these is supported".into(),
            };
            if !suites.is_empty() && chosen_suites.is_empty() {
                errors.push(nothing("tlsCipherSuites"));
            }
            if !curves.is_empty() && groups.is_empty() {
                errors.push(nothing("tlsCurvePreferences"));
            }
        }
        if errors.is_empty() {
            Ok(Self {
                only_tls13,
                suites: (!suites.is_empty()).then_some(chosen_suites),
                groups: (!curves.is_empty()).then_some(groups),
            })
        } else {
            Err(errors)
        }
    }

    pub(super) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        static ONLY: [&SupportedProtocolVersion; 1] = [&TLS13];
        static BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
        if self.only_tls13 { &ONLY } else { &BOTH }
    }

    /// As in Go, the list of suites applies only to TLS 1.2; those of TLS 1.3 are always enabled.
    pub(super) fn provider(&self) -> Arc<CryptoProvider> {
        let mut provider = CryptoProvider::clone(&tls_provider());
        if let Some(suites) = &self.suites {
            let wanted = |suite: &SupportedCipherSuite| {
                suite.tls13().is_some() || suites.contains(&suite.suite())
            };
            provider.cipher_suites.retain(wanted);
        }
        if let Some(groups) = &self.groups {
            provider.kx_groups = ALL_KX_GROUPS.to_vec();
            provider.kx_groups.retain(|group| groups.contains(&group.name()));
        }
        Arc::new(provider)
    }
}

/// Entries that are ignored because rustls does not support them, and versions that are replaced by TLS 1.2; for a
/// warning.
pub fn without_effect(min_version: &str, suites: &[String], curves: &[i32]) -> Vec<String> {
    let version = match min_version {
        "VersionTLS10" | "VersionTLS11" => Some(format!("tlsMinVersion {min_version}")),
        _ => None,
    };
    let suites =
        suites.iter().filter(|name| matches!(cipher_suite(name), Some(GoSupport::Unsupported)));
    let curves =
        curves.iter().filter(|number| matches!(curve(**number), Some(GoSupport::Unsupported)));
    let suites = suites.map(|name| format!("tlsCipherSuites {name}"));
    let curves = curves.map(|number| format!("tlsCurvePreferences {number}"));
    version.into_iter().chain(suites).chain(curves).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(version: &str, suites: &[&str], curves: &[i32]) -> Result<TlsOptions, Vec<String>> {
        let suites: Vec<String> = suites.iter().map(|name| (*name).to_owned()).collect();
        let text = |errors: Vec<TlsOptionError>| errors.iter().map(ToString::to_string).collect();
        TlsOptions::of(version, &suites, curves).map_err(text)
    }

    fn suites(options: &TlsOptions) -> Vec<String> {
        let provider = options.provider();
        let suites = provider.cipher_suites.iter();
        suites.map(|suite| format!("{:?}", suite.suite())).collect()
    }

    #[test]
    fn nothing_given_leaves_everything() {
        let options = of("", &[], &[]).unwrap();
        assert_eq!(options.versions().len(), 2);
        assert_eq!(suites(&options).len(), 9);
        assert_eq!(options.provider().kx_groups.len(), 4);
    }

    #[test]
    fn a_list_of_suites_is_about_the_older_version() {
        let options = of("VersionTLS12", &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"], &[]).unwrap();
        let left = suites(&options);
        assert_eq!(left.len(), 4, "{left:?}");
        assert!(left.contains(&"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned()));
        let options = of("VersionTLS13", &[], &[24, 4587]).unwrap();
        assert_eq!(options.versions().len(), 1);
        let groups = &options.provider().kx_groups;
        assert_eq!(
            groups.iter().map(|group| group.name()).collect::<Vec<_>>(),
            [NamedGroup::secp256r1MLKEM768, NamedGroup::secp384r1]
        );
    }

    #[test]
    fn options_that_rustls_lacks_are_left_out_and_named() {
        let given = ["TLS_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305"];
        assert_eq!(suites(&of("", &given, &[]).unwrap()).len(), 4);
        let given = given.map(str::to_owned);
        assert_eq!(
            without_effect("VersionTLS10", &given, &[4589, 29]),
            [
                "tlsMinVersion VersionTLS10",
                "tlsCipherSuites TLS_RSA_WITH_AES_128_GCM_SHA256",
                "tlsCurvePreferences 4589"
            ]
        );
        assert!(without_effect("VersionTLS13", &[], &[23]).is_empty());
    }

    #[test]
    fn unknown_options_are_errors_that_name_them() {
        assert_eq!(
            of("TLS1.2", &["TLS_NULL", "TLS_AES_128_GCM_SHA256", "x"], &[29, 30]).unwrap_err(),
            [
                "tlsMinVersion: unknown TLS version \"TLS1.2\"",
                "tlsCipherSuites[0]: cipher suite \"TLS_NULL\" is not known",
                "tlsCipherSuites[2]: cipher suite \"x\" is not known",
                "tlsCurvePreferences[1]: curve 30 is not known",
            ]
        );
        assert_eq!(
            of("", &["TLS_RSA_WITH_RC4_128_SHA"], &[25]).unwrap_err(),
            [
                "tlsCipherSuites: none of these is supported",
                "tlsCurvePreferences: none of these is supported",
            ]
        );
    }

    #[test]
    fn every_suite_of_go_has_its_place() {
        for name in UNSUPPORTED {
            assert!(matches!(cipher_suite(name), Some(GoSupport::Unsupported)), "{name}");
        }
        let supported = &tls_provider().cipher_suites;
        for suite in supported {
            let name = format!("{:?}", suite.suite()).replace("TLS13_", "TLS_");
            let Some(GoSupport::Supported(found)) = cipher_suite(&name) else {
                panic!("{name} has no place");
            };
            assert_eq!(found, *suite);
        }
    }
}
