//! The parts that deal with images.

use super::Boards;
use crate::{
    base::metrics::Metrics,
    config::KubeletConfig,
    images::{
        ImageManager, ImageManagerParts, PullConfig, PullMetrics,
        credentials::{Keyring, NodeFiles, Plugins},
        gc::{CollectorParts, ImageCollector},
        records::PullRecords,
    },
};
use anyhow::Context as _;
use std::path::PathBuf;

/// The credentials of the node: docker's files and the programs that are configured.
pub(super) fn keyring(config: &KubeletConfig, metrics: &Metrics) -> anyhow::Result<Keyring> {
    let working = std::env::current_dir().unwrap_or_default();
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.map(PathBuf::from);
    let files = NodeFiles::of_node(&config.root_dir, &working, home.as_deref());
    let plugins = match &config.images.credential_providers {
        Some(providers) => Plugins::load(&providers.config, &providers.programs, metrics)?,
        None => Plugins::default(),
    };
    Ok(Keyring::new(files, plugins))
}

/// What is recorded of pulls, unless nothing is.
pub(super) fn records(config: &KubeletConfig) -> anyhow::Result<PullRecords> {
    match &config.images.verification {
        Some(policy) => PullRecords::open(&config.root_dir, policy.clone())
            .context("cannot use the records of image pulls in the root directory"),
        None => Ok(PullRecords::off()),
    }
}

pub(super) fn manager(config: &KubeletConfig, boards: &Boards) -> ImageManager {
    let images = &config.images;
    ImageManager::new(ImageManagerParts {
        images: boards.images.clone(),
        events: boards.events.clone(),
        pulls: PullConfig {
            serialize: images.serialize,
            max_parallel: images.max_parallel,
            qps: images.qps.map_or(0.0, f64::from),
            burst: images.burst,
        },
        keyring: boards.keyring.clone(),
        records: boards.records.clone(),
        metrics: PullMetrics::new(&boards.metrics),
    })
}

pub(super) fn collector(config: &KubeletConfig, boards: &Boards) -> ImageCollector {
    let parts = CollectorParts {
        images: boards.images.clone(),
        runtime: boards.runtime.clone(),
        pods: boards.manager.reader(),
        records: boards.records.clone(),
        events: boards.events.clone(),
        node_name: config.node_name.clone(),
        policy: config.image_gc,
        root: config.root_dir.clone(),
    };
    ImageCollector::new(parts, &boards.metrics)
}

/// Pulls that an earlier kubelet was killed amid become records, before anything is started.
pub(super) async fn recover_pulls(boards: &Boards) {
    if !boards.records.has_interrupted_pulls() {
        return;
    }
    match boards.images.list_images(None).await {
        Ok(images) => boards.records.recover(&images).await,
        Err(error) => tracing::warn!(
            err = %error,
            "Cannot see what became of image pulls that were cut short"
        ),
    }
}
