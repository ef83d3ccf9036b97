//! Image pulls, credentials and image collection, from the configuration.

use super::Stores;
use crate::{
    apiserver::ApiServer,
    base::metrics::Metrics,
    config::KubeletConfig,
    images::{
        ImageManager, ImageManagerParts, PullConfig, PullMetrics,
        credentials::{CredentialPlugins, Keyring, NodeFiles},
        gc::{CollectorParts, ImageCollector},
        records::PullRecords,
    },
};
use anyhow::Context as _;
use std::path::PathBuf;

/// The node's registry credentials: docker's files and credential provider plugins.
pub(super) fn keyring(
    config: &KubeletConfig,
    api: Option<ApiServer>,
    metrics: &Metrics,
) -> anyhow::Result<Keyring> {
    let working = std::env::current_dir().unwrap_or_default();
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.map(PathBuf::from);
    let files = NodeFiles::of_node(&config.root_dir, &working, home.as_deref());
    let plugins = match &config.images.credential_providers {
        Some(providers) => {
            let tokens = providers.account_tokens;
            let (config, programs) = (&providers.config, &providers.programs);
            CredentialPlugins::load(config, programs, tokens, api, metrics)?
        }
        None => CredentialPlugins::default(),
    };
    Ok(Keyring::new(files, plugins))
}

/// The records of image pulls, unless verification is off.
pub(super) fn records(config: &KubeletConfig) -> anyhow::Result<PullRecords> {
    match &config.images.verification {
        Some(policy) => PullRecords::open(&config.root_dir, policy.clone())
            .context("cannot use the records of image pulls in the root directory"),
        None => Ok(PullRecords::off()),
    }
}

pub(super) fn manager(config: &KubeletConfig, stores: &Stores) -> ImageManager {
    let images = &config.images;
    ImageManager::new(ImageManagerParts {
        images: stores.images.clone(),
        events: stores.events.clone(),
        pulls: PullConfig {
            serialize: images.serialize,
            max_parallel: images.max_parallel,
            qps: images.qps.map_or(0.0, f64::from),
            burst: images.burst,
        },
        keyring: stores.keyring.clone(),
        records: stores.records.clone(),
        metrics: PullMetrics::new(&stores.metrics),
    })
}

pub(super) fn collector(config: &KubeletConfig, stores: &Stores) -> ImageCollector {
    let parts = CollectorParts {
        images: stores.images.clone(),
        runtime: stores.runtime.clone(),
        pods: stores.pods.clone(),
        records: stores.records.clone(),
        events: stores.events.clone(),
        node_name: config.node_name.clone(),
        policy: config.image_gc,
        root: config.root_dir.clone(),
    };
    ImageCollector::new(parts, &stores.metrics)
}

/// Completes the records of pulls during which an earlier kubelet was killed, before anything is started.
pub(super) async fn recover_pulls(stores: &Stores) {
    if !stores.records.has_interrupted_pulls() {
        return;
    }
    match stores.images.list_images(None).await {
        Ok(images) => stores.records.recover(&images).await,
        Err(error) => tracing::warn!(
            err = %error,
            "Failed to list images; the records of interrupted pulls stay incomplete"
        ),
    }
}
