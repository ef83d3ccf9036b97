//! Logins by registry pattern, and the lookup of those for an image. Pure.

use std::collections::BTreeMap;
use std::fmt;

use super::login::ImagePullServiceAccount;
use super::matching::{DEFAULT_REGISTRY, RegistryPath, covers, is_of_default_registry};
use crate::cri::v1::AuthConfig;

/// A user name and password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) username: String,
    pub(super) password: String,
    /// The service account that a credential provider issued it for.
    pub(super) account: Option<ImagePullServiceAccount>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({:?}, <redacted>)", self.username)
    }
}

impl From<Login> for AuthConfig {
    fn from(login: Login) -> AuthConfig {
        AuthConfig { username: login.username, password: login.password, ..AuthConfig::default() }
    }
}

/// The logins of one source of credentials.
#[derive(Debug, Clone, Default)]
pub(super) struct Auths {
    by_pattern: BTreeMap<String, Vec<Login>>,
}

impl Auths {
    /// Adds a login for a registry as written in docker's files: a host, a host with a path, or a URL of either. The
    /// paths `/v1/` and `/v2/` are dropped. False if it is not a valid URL.
    pub(super) fn add(&mut self, registry: &str, login: Login) -> bool {
        let bare = ["https://", "http://"]
            .iter()
            .find_map(|scheme| registry.strip_prefix(scheme))
            .unwrap_or(registry);
        let Some(RegistryPath { host, path }) = RegistryPath::parse(bare) else {
            return false;
        };
        let path = if path.starts_with("/v1/") || path.starts_with("/v2/") {
            path.get(3..).unwrap_or_default()
        } else {
            path
        };
        let pattern = match path {
            "" | "/" => host.to_owned(),
            path => format!("{host}{path}"),
        };
        self.by_pattern.entry(pattern).or_default().push(login);
        true
    }

    /// Adds all logins of another source, after the existing ones of the same registry.
    pub(super) fn extend(&mut self, other: &Auths) {
        for (pattern, logins) in &other.by_pattern {
            let own = self.by_pattern.entry(pattern.clone()).or_default();
            own.extend(logins.iter().cloned());
        }
    }

    /// The logins for an image (without tag), in the order in which they are tried: longer patterns before their
    /// prefixes. Those of the default registry are used only if no pattern matches.
    pub(super) fn lookup(&self, image: &str) -> Vec<Login> {
        let fitting = self.by_pattern.iter().rev();
        let found: Vec<Login> = fitting
            .filter(|(pattern, _)| covers(pattern, image))
            .flat_map(|(_, logins)| logins.iter().cloned())
            .collect();
        match self.by_pattern.get(DEFAULT_REGISTRY) {
            Some(logins) if found.is_empty() && is_of_default_registry(image) => logins.clone(),
            _ => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auths(registries: &[&str]) -> Auths {
        let mut auths = Auths::default();
        for registry in registries {
            let login = Login {
                username: (*registry).to_owned(),
                password: "hunter2".into(),
                account: None,
            };
            assert!(auths.add(registry, login), "{registry}");
        }
        auths
    }

    fn users(auths: &Auths, image: &str) -> Vec<String> {
        let found = auths.lookup(image).into_iter();
        found.map(|login| login.username).collect()
    }

    #[test]
    fn the_most_specific_login_is_tried_first() {
        let auths = auths(&["quay.io", "quay.io/team", "quay.io/team/app", "*.io", "gcr.io"]);
        assert_eq!(
            users(&auths, "quay.io/team/app"),
            ["quay.io/team/app", "quay.io/team", "quay.io", "*.io"]
        );
        assert_eq!(users(&auths, "quay.io/else"), ["quay.io", "*.io"]);
        assert!(users(&auths, "registry.example/x").is_empty());
    }

    #[test]
    fn schemes_and_api_paths_stand_for_the_host() {
        let auths = auths(&["https://a.io/v1/", "http://b.io/v2/team", "c.io/", "d.io/v1"]);
        assert_eq!(users(&auths, "a.io/x"), ["https://a.io/v1/"]);
        assert_eq!(users(&auths, "b.io/team/x"), ["http://b.io/v2/team"]);
        assert!(users(&auths, "b.io/x").is_empty());
        assert_eq!(users(&auths, "c.io/x"), ["c.io/"]);
        assert!(users(&auths, "d.io/x").is_empty());
    }

    #[test]
    fn the_default_registrys_login_serves_its_images_when_nothing_else_fits() {
        let only_default = auths(&["https://index.docker.io/v1/"]);
        assert_eq!(users(&only_default, "docker.io/library/nginx").len(), 1);
        assert!(users(&only_default, "quay.io/x").is_empty());
        let own = auths(&["https://index.docker.io/v1/", "docker.io"]);
        assert_eq!(users(&own, "docker.io/library/nginx"), ["docker.io"]);
    }

    #[test]
    fn two_spellings_of_one_place_are_both_tried() {
        let auths = auths(&["a.io", "https://a.io/v1/"]);
        assert_eq!(users(&auths, "a.io/x").len(), 2);
    }

    #[test]
    fn a_place_that_is_no_url_is_refused_and_no_password_is_ever_shown() {
        let login = Login { username: "u".into(), password: "hunter2".into(), account: None };
        let mut auths = Auths::default();
        assert!(!auths.add("host:port/x", login.clone()));
        assert!(auths.add("host", login));
        assert!(!format!("{auths:?}").contains("hunter2"));
    }
}
