//! Settings of authentication and authorization, and their validation. Pure.

use std::path::PathBuf;
use std::time::Duration;

/// `authentication` and `authorization` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthSettings {
    /// `clientCAFile`: the CA bundle that client certificates are verified with; `None` disables client certificates.
    pub client_ca_file: Option<PathBuf>,
    /// Whether requests without credentials are authenticated as `system:anonymous`.
    pub anonymous: bool,
    /// How long TokenReviews are cached; `None` disables tokens.
    pub token_ttl: Option<Duration>,
    /// The authorization mode.
    pub authorization: AuthorizationMode,
    /// Average number of reviews per second for unknown clients; zero means no limit.
    pub review_qps: u32,
    /// Burst of these reviews.
    pub review_burst: u32,
    /// `--strict-upgrade-verbs`: a request that upgrades its connection needs the verb `create`, whatever its method.
    pub strict_upgrade_verbs: bool,
}

/// `authorization.mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Every authenticated user has full access.
    AlwaysAllow,
    /// SubjectAccessReviews by the API server.
    Webhook {
        /// How long an allowed request is cached.
        allowed_ttl: Duration,
        /// How long a denied request is cached.
        denied_ttl: Duration,
    },
}

/// Why the settings are invalid on this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAuthSettings {
    /// The settings need an API server.
    #[error(
        "{} for the kubelet's server (enableServer is true), and --kubeconfig is not given. A node without a cluster needs \
         these lines in its configuration file:\n{}\
         or, to do without that server:\n\nenableServer: false",
        .fields.join(" and "), suggested_config(*.has_tokenless_auth)
    )]
    NoApiServer {
        /// The fields that need an API server.
        fields: Vec<&'static str>,
        /// Whether clients can be authenticated without tokens.
        has_tokenless_auth: bool,
    },
    /// No request could be authenticated.
    #[error(
        "no authentication method configured for the kubelet's server (enableServer is true): every request would be \
         refused. The configuration file needs these lines:\n{}\
         or, to do without that server:\n\nenableServer: false",
        suggested_config(false)
    )]
    NoAuthentication,
}

/// Suggested configuration for a standalone node.
fn suggested_config(has_tokenless_auth: bool) -> String {
    let x509_lines = if has_tokenless_auth {
        ""
    } else {
        "  x509:\n    clientCAFile: /etc/kubelet/admins.crt   # a CA bundle: every client with a certificate signed by it has full access to the node. Or: anonymous: {enabled: true}, which gives every client full access\n"
    };
    format!(
        "\nauthentication:\n  webhook:\n    enabled: false\n{x509_lines}authorization:\n  mode: AlwaysAllow\n\n"
    )
}

impl AuthSettings {
    /// Validates as upstream's `BuildAuth`.
    ///
    /// # Errors
    /// They need an API server and there is none, or no request could be authenticated.
    pub fn check(&self, has_api: bool) -> Result<(), InvalidAuthSettings> {
        let webhook = matches!(self.authorization, AuthorizationMode::Webhook { .. });
        let has_tokenless_auth = self.client_ca_file.is_some() || self.anonymous;
        let needs_api = [
            (self.token_ttl.is_some(), "authentication.webhook.enabled is true"),
            (webhook, "authorization.mode is Webhook"),
        ];
        let fields: Vec<_> = needs_api.into_iter().filter(|(is_set, _)| *is_set).collect();
        if !has_api && !fields.is_empty() {
            let fields = fields.into_iter().map(|(_, field)| field).collect();
            return Err(InvalidAuthSettings::NoApiServer { fields, has_tokenless_auth });
        }
        if has_tokenless_auth || self.token_ttl.is_some() {
            Ok(())
        } else {
            Err(InvalidAuthSettings::NoAuthentication)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEBHOOK: AuthorizationMode = AuthorizationMode::Webhook {
        allowed_ttl: Duration::from_secs(300),
        denied_ttl: Duration::from_secs(30),
    };

    #[test]
    fn settings_that_need_an_api_server_are_refused_without_one() {
        let of = |ca: bool, anonymous, tokens: bool, authorization, has_api| {
            let settings = AuthSettings {
                client_ca_file: ca.then(|| "/ca.crt".into()),
                anonymous,
                token_ttl: tokens.then_some(Duration::from_secs(120)),
                authorization,
                review_qps: 50,
                review_burst: 100,
                strict_upgrade_verbs: false,
            };
            settings.check(has_api).map_err(|error| match error {
                InvalidAuthSettings::NoApiServer { fields, .. } => fields.len(),
                InvalidAuthSettings::NoAuthentication => 0,
            })
        };
        use AuthorizationMode::AlwaysAllow;
        assert_eq!(of(false, false, true, WEBHOOK, false), Err(2));
        assert_eq!(of(true, false, false, WEBHOOK, false), Err(1));
        assert_eq!(of(true, false, true, AlwaysAllow, false), Err(1));
        assert_eq!(of(false, false, false, AlwaysAllow, false), Err(0));
        assert_eq!(of(false, false, false, WEBHOOK, true), Err(0));
        assert_eq!(of(false, false, true, WEBHOOK, true), Ok(()));
        assert_eq!(of(true, false, false, AlwaysAllow, false), Ok(()));
        assert_eq!(of(false, true, false, AlwaysAllow, false), Ok(()));
    }

    #[test]
    fn the_error_shows_the_lines_to_add() {
        let settings = AuthSettings {
            client_ca_file: Some("/ca.crt".into()),
            anonymous: false,
            token_ttl: Some(Duration::from_secs(120)),
            authorization: WEBHOOK,
            review_qps: 50,
            review_burst: 100,
            strict_upgrade_verbs: false,
        };
        let text = settings.check(false).unwrap_err().to_string();
        let lines = "\nauthentication:\n  webhook:\n    enabled: false\nauthorization:\n  mode: AlwaysAllow\n";
        assert!(text.contains(lines), "{text}");
        assert!(text.contains("authorization.mode is Webhook"), "{text}");
        let unknown = AuthSettings { client_ca_file: None, ..settings };
        let text = unknown.check(false).unwrap_err().to_string();
        assert!(text.contains("\n  x509:\n    clientCAFile: "), "{text}");
        // These authorities sign the certificates of every user of the cluster.
        assert!(!text.contains("/etc/kubernetes"), "{text}");
        assert!(text.ends_with("\nenableServer: false"), "{text}");
    }
}
