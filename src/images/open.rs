//! Builds the clients, credentials and records of this area from the configuration.

use super::credentials::{CredentialPlugins, Keyring, NodeFiles};
use super::records::{PullRecords, VerificationPolicy};
use super::{ImageManager, ImageManagerParts, PullConfig, PullMetrics};
use crate::apiserver::ApiServer;
use crate::base::clock;
use crate::base::metrics::Metrics;
use crate::cri::ImageClient;
use crate::state::events::EventRecorder;
use anyhow::Context as _;
use std::path::{Path, PathBuf};

/// Configuration of image pulls and their credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagesConfig {
    /// How images are pulled.
    pub pulls: PullConfig,
    /// `imagePullCredentialsVerificationPolicy`; `None` keeps no records of pulls (feature gate
    /// `KubeletEnsureSecretPulledImages` off).
    pub verification: Option<VerificationPolicy>,
    /// Credential provider plugins.
    pub credential_providers: Option<CredentialProviders>,
}

/// Where the credential provider plugins and their configuration are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialProviders {
    /// `--image-credential-provider-config`: a file, or a directory of files.
    pub config: PathBuf,
    /// `--image-credential-provider-bin-dir`: the directory of the plugins' executables.
    pub bin_dir: PathBuf,
    /// Whether plugins may get tokens of service accounts.
    pub account_tokens: bool,
}

/// What all image pulls share; cheap to clone.
#[derive(Clone)]
pub struct Images {
    /// The image service of the runtime.
    pub client: ImageClient,
    /// The node's registry credentials.
    pub keyring: Keyring,
    /// Records of pulled images, and of the credentials they were pulled with.
    pub records: PullRecords,
}

impl Images {
    /// Reads the node's registry credentials and the records of an earlier kubelet.
    ///
    /// # Errors
    /// The configuration of credential provider plugins, or the directory of records, cannot be used.
    pub fn open(
        config: &ImagesConfig,
        root_dir: &Path,
        client: ImageClient,
        api: Option<ApiServer>,
        metrics: &Metrics,
    ) -> anyhow::Result<Self> {
        let records = match &config.verification {
            Some(policy) => PullRecords::open(root_dir, policy.clone())
                .context("cannot open the records of image pulls in the root directory")?
                .measured(metrics),
            None => PullRecords::disabled(),
        };
        let keyring = keyring(config, root_dir, api, metrics)?;
        Ok(Self { client, keyring, records })
    }

    /// Completes the records of pulls that were in progress when an earlier kubelet was killed. Must be called before
    /// the first pull.
    pub async fn recover_pulls(&self) {
        if !self.records.has_interrupted_pulls() {
            return;
        }
        let listed_at = clock::timestamp();
        match self.client.list_images(None).await {
            Ok(images) => self.records.recover(&images, listed_at).await,
            Err(error) => tracing::warn!(
                err = %error,
                "Failed to list images; the records of interrupted pulls stay incomplete"
            ),
        }
    }

    /// Builds the image manager.
    pub fn manager(
        &self,
        config: &ImagesConfig,
        events: EventRecorder,
        metrics: &Metrics,
    ) -> ImageManager {
        ImageManager::new(ImageManagerParts {
            images: self.client.clone(),
            events,
            pulls: config.pulls.clone(),
            keyring: self.keyring.clone(),
            records: self.records.clone(),
            metrics: PullMetrics::register(metrics),
        })
    }
}

/// Checks the configuration of the credential provider plugins as a start does. Blocking.
///
/// # Errors
/// It cannot be used.
pub fn check_credential_providers(config: &ImagesConfig) -> anyhow::Result<()> {
    let Some(providers) = &config.credential_providers else {
        return Ok(());
    };
    let (config, bin_dir) = (&providers.config, &providers.bin_dir);
    let (tokens, metrics) = (providers.account_tokens, Metrics::new());
    CredentialPlugins::load(config, bin_dir, tokens, None, &metrics).map(drop)
}

/// Builds the keyring of docker's configuration files and credential provider plugins.
fn keyring(
    config: &ImagesConfig,
    root_dir: &Path,
    api: Option<ApiServer>,
    metrics: &Metrics,
) -> anyhow::Result<Keyring> {
    let working = std::env::current_dir().unwrap_or_default();
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.map(PathBuf::from);
    let files = NodeFiles::of_node(root_dir, &working, home.as_deref());
    let plugins = match &config.credential_providers {
        Some(providers) => {
            let tokens = providers.account_tokens;
            let (config, bin_dir) = (&providers.config, &providers.bin_dir);
            CredentialPlugins::load(config, bin_dir, tokens, api, metrics)?
        }
        None => CredentialPlugins::default(),
    };
    Ok(Keyring::new(files, plugins))
}
