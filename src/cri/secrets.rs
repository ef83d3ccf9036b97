//! `Debug` implementations of messages with secrets.

use super::v1::{AuthConfig, KeyValue};
use std::fmt;

/// Prints the user and server, and which kinds of secrets are set, but no secret.
impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let redacted = |secret: &str| match secret {
            "" => "",
            _ => "<redacted>",
        };
        f.debug_struct("AuthConfig")
            .field("username", &self.username)
            .field("password", &redacted(&self.password))
            .field("auth", &redacted(&self.auth))
            .field("server_address", &self.server_address)
            .field("identity_token", &redacted(&self.identity_token))
            .field("registry_token", &redacted(&self.registry_token))
            .finish()
    }
}

/// An environment variable: prints only its name.
impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue").field("key", &self.key).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::cri::v1::{AuthConfig, ContainerConfig, KeyValue, PullImageRequest};

    #[test]
    fn the_value_of_a_variable_is_not_shown() {
        let config = ContainerConfig {
            envs: vec![KeyValue { key: "PASSWORD".into(), value: "hunter2".into() }],
            ..ContainerConfig::default()
        };
        let shown = format!("{config:?} {config:#?}");
        assert!(shown.contains("PASSWORD") && !shown.contains("hunter2"));
        assert!(!shown.contains("104, 117"), "{shown}");
    }

    #[test]
    fn no_secret_is_shown_not_even_inside_of_a_request() {
        let secret = || "hunter2".to_owned();
        let request = PullImageRequest {
            auth: Some(AuthConfig {
                username: "somebody".into(),
                password: secret(),
                auth: secret(),
                server_address: "registry.example".into(),
                identity_token: secret(),
                registry_token: secret(),
            }),
            ..PullImageRequest::default()
        };
        let shown = format!("{request:?} {request:#?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("somebody") && shown.contains("registry.example"));
        assert_eq!(shown.matches("<redacted>").count(), 8);
    }
}
