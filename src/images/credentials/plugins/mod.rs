//! Credential provider plugins (upstream's exec plugins).
//!
//! * **Owns** the plugins' configuration, and the cache of their responses.
//! * **Woken by** a pull of an image that matches a provider. Concurrent pulls of one image share one execution of
//!   the plugin.
//! * **Publishes** logins, and metrics of executions.
//! * **Must never** let a plugin run for more than a minute or write an unbounded response, nor log any part of a
//!   response.
//! * Upstream: `pkg/credentialprovider/plugin`.
//!
//! Pods without a service account, such as static pods, get no token.

mod account;
mod cache;
mod config;
mod exec;
mod metrics;
mod response;

#[cfg(test)]
pub(in crate::images) mod tests;

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use self::account::{PodAccount, ProviderNotCalled, ServiceAccounts};
use self::cache::{AccountKey, Cache};
use self::config::Provider;
use self::exec::Program;
use self::metrics::PluginMetrics;
use super::auths::Auths;
use super::matching::covers;
use crate::apiserver::ApiServer;
use crate::base::metrics::Metrics;
use crate::base::{SingleFlight, clock};
use crate::model::Pod;

/// Maximum number of concurrent executions of a provider. Each has its own, so that one that hangs holds up no other.
const MAX_CONCURRENT: usize = 8;

/// The configured providers, in configuration order.
#[derive(Default)]
pub struct CredentialPlugins {
    providers: Vec<LoadedProvider>,
}

type ProviderResponse = Result<Arc<Auths>, String>;

struct LoadedProvider {
    inner: Arc<PluginsInner>,
    flights: SingleFlight<(String, AccountKey), ProviderResponse>,
}

struct PluginsInner {
    provider: Provider,
    program: Program,
    cache: Mutex<Cache>,
    accounts: Arc<ServiceAccounts>,
    permits: Semaphore,
    metrics: PluginMetrics,
}

impl CredentialPlugins {
    /// Reads the configuration (a file, or a directory of files) and finds the executables. `account_tokens` is
    /// whether plugins may get tokens of service accounts. Blocking.
    ///
    /// # Errors
    /// Any problem with a provider; the kubelet must not start then.
    pub fn load(
        config: &Path,
        bin_dir: &Path,
        account_tokens: bool,
        api: Option<ApiServer>,
        metrics: &Metrics,
    ) -> anyhow::Result<CredentialPlugins> {
        let about = "--image-credential-provider-bin-dir";
        anyhow::ensure!(bin_dir.is_dir(), "{about}: {} is not a directory", bin_dir.display());
        let (providers, hash) =
            config::read(config, account_tokens).context("--image-credential-provider-config")?;
        let metrics = PluginMetrics::new(metrics, &hash);
        let accounts = Arc::new(ServiceAccounts::new(api));
        let load = |provider: Provider| -> anyhow::Result<LoadedProvider> {
            let inner = PluginsInner {
                program: Program::find(bin_dir, &provider.name)?,
                provider,
                cache: Mutex::default(),
                accounts: accounts.clone(),
                permits: Semaphore::new(MAX_CONCURRENT),
                metrics: metrics.clone(),
            };
            Ok(LoadedProvider { inner: Arc::new(inner), flights: SingleFlight::default() })
        };
        let providers = providers.into_iter().map(load);
        Ok(CredentialPlugins { providers: providers.collect::<anyhow::Result<_>>()? })
    }

    /// The logins of all providers that match the image (full name without tag). A provider that fails is logged and
    /// skipped.
    pub(super) async fn auths(&self, image: &str, pod: &Pod) -> Auths {
        let providers = self.providers.iter();
        let lookups = providers.map(|provider| provider.auths(image, pod));
        let mut all = Auths::default();
        for known in join_all(lookups).await.into_iter().flatten() {
            all.extend(&known);
        }
        all
    }
}

impl LoadedProvider {
    async fn auths(&self, image: &str, pod: &Pod) -> Option<Arc<Auths>> {
        let provider = &self.inner.provider;
        let is_for = |pattern: &String| covers(pattern, image);
        if !provider.match_images.iter().any(is_for) {
            return None;
        }
        match self.response(image, pod).await {
            Ok(auths) => auths,
            Err(problem) => {
                tracing::error!(
                    plugin = provider.name,
                    image,
                    err = problem,
                    "Failed to get credentials from an image credential provider"
                );
                None
            }
        }
    }

    async fn response(&self, image: &str, pod: &Pod) -> Result<Option<Arc<Auths>>, String> {
        let account = match self.inner.account(pod).await {
            Ok(account) => account,
            Err(ProviderNotCalled::NotApplicable(reason)) => {
                let plugin = &self.inner.provider.name;
                tracing::debug!(plugin, image, reason, "Skipping an image credential provider");
                return Ok(None);
            }
            Err(ProviderNotCalled::Failed(error)) => return Err(error),
        };
        let key = self.inner.cache_key(account.as_ref());
        let now = clock::instant();
        if let Some(known) = self.inner.cache.lock().find(image, &key, now) {
            return Ok(Some(known));
        }
        let with_token = account.as_ref().map(|account| account.cache_key(true));
        let begin = || {
            let (inner, image) = (self.inner.clone(), image.to_owned());
            async move { inner.run(&image, account.as_ref()).await }
        };
        let flight = self.flights.join((image.to_owned(), with_token), begin);
        flight.await.map(Some)
    }
}

impl PluginsInner {
    async fn account(&self, pod: &Pod) -> Result<Option<PodAccount>, ProviderNotCalled> {
        match &self.provider.token_attributes {
            Some(attributes) => self.accounts.of_pod(attributes, pod).await,
            None => Ok(None),
        }
    }

    fn cache_key(&self, account: Option<&PodAccount>) -> AccountKey {
        let attributes = self.provider.token_attributes.as_ref()?;
        account.map(|account| account.cache_key(attributes.is_cached_by_token()))
    }

    async fn run(&self, image: &str, account: Option<&PodAccount>) -> ProviderResponse {
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await.ok();
        let output = {
            let run = self.metrics.run(&self.provider.name);
            let output = self.program.run(&self.provider, image, account).await;
            run.ended(output.is_ok());
            output.map_err(|error| error.to_string())?
        };
        let owner = account.map(|account| &account.account);
        let response = response::decode(&output, &self.provider.api_version, owner)?;
        let auths = Arc::new(response.auths);
        let default = self.provider.default_cache_duration.unwrap_or_default();
        let cache_duration = response.cache_duration.unwrap_or(default.to_std());
        if !cache_duration.is_zero() {
            let key = (response.key_type, self.cache_key(account));
            let mut cache = self.cache.lock();
            cache.insert(key, image, auths.clone(), cache_duration, clock::instant());
        }
        Ok(auths)
    }
}
