//! Pod sources, from the configuration.

use super::Stores;
use crate::{
    config::{KubeletConfig, StaticPodSources},
    model::PodSource,
    model::validation::LocalObjects,
    pods::pod_config::{self, ApiConfig, FileConfig, HttpConfig, PostedPods},
};
use std::path::PathBuf;

fn posted_dir(config: &KubeletConfig) -> PathBuf {
    config.root_dir.join("posted-pods")
}

/// The store of pods that clients post.
pub(super) fn posted_pods(config: &KubeletConfig) -> std::io::Result<PostedPods> {
    let objects = LocalObjects::given(config.local_objects_dir.is_some());
    PostedPods::open(&posted_dir(config), &config.node_name, objects)
}

/// The sources that are configured.
pub(super) fn config(config: &KubeletConfig, stores: &Stores) -> pod_config::Config {
    let sources = &config.static_pods;
    let objects = LocalObjects::given(config.local_objects_dir.is_some());
    pod_config::Config {
        node_name: config.node_name.clone(),
        file: sources.path.clone().map(|path| FileConfig {
            source: PodSource::File,
            path,
            check_period: sources.file_check_frequency,
            objects,
        }),
        http: sources.url.clone().map(|url| HttpConfig {
            url,
            headers: headers(sources),
            check_period: sources.http_check_frequency,
            objects,
        }),
        posted: config.allow_posted_pods.then(|| FileConfig {
            source: PodSource::Posted,
            path: posted_dir(config),
            check_period: sources.file_check_frequency,
            objects,
        }),
        api: stores.api.clone().map(|api| ApiConfig {
            api,
            directory: config.root_dir.join("api-pods"),
            cache: stores.cache.clone(),
            node: stores.node_object.clone(),
        }),
        cache: stores.cache.clone(),
    }
}

fn headers(sources: &StaticPodSources) -> Vec<(String, String)> {
    let pairs = sources.url_headers.iter();
    pairs
        .flat_map(|(name, values)| values.0.iter().map(|value| (name.clone(), value.clone())))
        .collect()
}
