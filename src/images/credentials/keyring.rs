//! The node's credentials: where logins are looked up.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::auths::Auths;
use super::docker_config::{DockerConfigForm, parse};
use super::login::{LoginOwner, PullLogin};
use super::plugins::CredentialPlugins;
use super::pull_secret::PullSecret;
use crate::base::run_file_io;
use crate::cri::v1::AuthConfig;
use crate::host::files::read_head_or_empty;
use crate::model::Pod;

/// Maximum size of a configuration file, in bytes.
const MAX_FILE: usize = 1 << 20;

/// The directories in which docker's configuration files are searched.
#[derive(Debug, Clone, Default)]
pub struct NodeFiles {
    candidates: Vec<(DockerConfigForm, PathBuf)>,
}

impl NodeFiles {
    /// Upstream's search order: the kubelet's root directory, the working directory, the home directory if there is
    /// one, and `/`; `config.json` before `.dockercfg`.
    pub fn of_node(root: &Path, working: &Path, home: Option<&Path>) -> NodeFiles {
        let mut candidates = Vec::new();
        for (form, hidden, file) in [
            (DockerConfigForm::ConfigJson, ".docker", "config.json"),
            (DockerConfigForm::Dockercfg, "", ".dockercfg"),
        ] {
            let homes = home.into_iter().chain([Path::new("/")]);
            let dirs = [root.to_path_buf(), working.to_path_buf()].into_iter();
            let dirs = dirs.chain(homes.map(|home| home.join(hidden)));
            candidates.extend(dirs.map(|dir| (form, dir.join(file))));
        }
        NodeFiles { candidates }
    }

    /// The logins of the first usable file, and the errors of the files before it. Blocking.
    fn read(&self) -> (Auths, Vec<String>) {
        let mut warnings = Vec::new();
        for (form, path) in &self.candidates {
            match read_one(*form, path) {
                Ok(Some((auths, skipped))) => {
                    let skipped = skipped.into_iter();
                    warnings.extend(skipped.map(|what| format!("{}: {what}", path.display())));
                    return (auths, warnings);
                }
                Ok(None) => {}
                Err(problem) => warnings.push(format!("{}: {problem}", path.display())),
            }
        }
        (Auths::default(), warnings)
    }
}

fn read_one(form: DockerConfigForm, path: &Path) -> Result<Option<(Auths, Vec<String>)>, String> {
    let bytes = read_head_or_empty(path, MAX_FILE + 1).map_err(|error| error.to_string())?;
    match bytes.len() {
        0 => Ok(None),
        length if length > MAX_FILE => Err(format!("the file is longer than {MAX_FILE} bytes")),
        _ => parse(form, &bytes).map(Some),
    }
}

/// The node's credentials; cheap to clone.
#[derive(Clone, Default)]
pub struct Keyring {
    inner: Arc<KeyringInner>,
}

#[derive(Default)]
struct KeyringInner {
    files: NodeFiles,
    plugins: CredentialPlugins,
    /// The warnings logged last, so that unchanged ones are not repeated.
    warnings: Mutex<Vec<String>>,
}

impl Keyring {
    /// Logins of docker's configuration files come before those of credential provider plugins.
    pub fn new(files: NodeFiles, plugins: CredentialPlugins) -> Keyring {
        let inner = KeyringInner { files, plugins, ..KeyringInner::default() };
        Keyring { inner: Arc::new(inner) }
    }

    /// The logins to try for an image (`repo` is the full name without tag): those of the pod's secrets first. Empty
    /// for an anonymous pull.
    pub(in crate::images) async fn lookup(
        &self,
        pod: &Pod,
        repo: &str,
        secrets: &[PullSecret],
    ) -> Vec<PullLogin> {
        let mut logins: Vec<PullLogin> = secrets.iter().flat_map(|s| s.lookup(repo)).collect();
        let mut node_logins = self.node_auths().await.lookup(repo);
        node_logins.extend(self.inner.plugins.auths(repo, pod).await.lookup(repo));
        let node_logins = node_logins.into_iter().map(|mut login| PullLogin {
            owner: login.account.take().map(LoginOwner::ServiceAccount),
            auth: AuthConfig::from(login),
        });
        logins.extend(node_logins);
        logins
    }

    async fn node_auths(&self) -> Auths {
        if self.inner.files.candidates.is_empty() {
            return Auths::default();
        }
        let keyring = self.clone();
        let read = run_file_io(move || keyring.inner.files.read()).await;
        let (auths, warnings) = read.unwrap_or_default();
        let mut last = self.inner.warnings.lock();
        for warning in warnings.iter().filter(|known| !last.contains(known)) {
            tracing::warn!(err = %warning, "Skipping registry credentials");
        }
        *last = warnings;
        auths
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn config(user: &str) -> String {
        format!(r#"{{"auths": {{"a.io": {{"username": "{user}", "password": "p"}}}}}}"#)
    }

    async fn user(keyring: &Keyring) -> String {
        let found = keyring.lookup(&Pod::default(), "a.io/x", &[]).await;
        found.first().map_or(String::new(), |login| login.auth.username.clone())
    }

    #[tokio::test]
    async fn the_first_file_that_can_be_used_counts_and_changes_count_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let [root, working, home] = ["root", "work", "home"].map(|name| dir.path().join(name));
        for dir in [&root, &working, &home.join(".docker")] {
            fs::create_dir_all(dir).unwrap();
        }
        let keyring = Keyring::new(
            NodeFiles::of_node(&root, &working, Some(&home)),
            CredentialPlugins::default(),
        );
        assert_eq!(user(&keyring).await, "");
        let old = r#"{"a.io": {"username": "old", "password": "p"}}"#;
        fs::write(root.join(".dockercfg"), old).unwrap();
        assert_eq!(user(&keyring).await, "old");
        fs::write(home.join(".docker/config.json"), config("home")).unwrap();
        assert_eq!(user(&keyring).await, "home");
        fs::write(working.join("config.json"), config("work")).unwrap();
        assert_eq!(user(&keyring).await, "work");
        fs::write(root.join("config.json"), config("root")).unwrap();
        assert_eq!(user(&keyring).await, "root");
        for broken in ["{", "", r#"{"auths": {"a.io": {"auth": "?"}}}"#] {
            fs::write(root.join("config.json"), broken).unwrap();
            assert_eq!(user(&keyring).await, "work");
        }
        // A file that can be used ends the search even if it says nothing of the image.
        fs::write(root.join("config.json"), "{}").unwrap();
        assert_eq!(user(&keyring).await, "");
    }

    #[tokio::test]
    async fn a_file_that_is_too_long_or_no_file_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let [root, working] = ["root", "work"].map(|name| dir.path().join(name));
        fs::create_dir_all(root.join("config.json")).unwrap();
        fs::create_dir_all(&working).unwrap();
        fs::write(working.join("config.json"), config("work")).unwrap();
        let keyring =
            Keyring::new(NodeFiles::of_node(&root, &working, None), CredentialPlugins::default());
        assert_eq!(user(&keyring).await, "work");
        fs::remove_dir(root.join("config.json")).unwrap();
        let long = " ".repeat(MAX_FILE) + &config("root");
        fs::write(root.join("config.json"), long).unwrap();
        assert_eq!(user(&keyring).await, "work");
    }
}
