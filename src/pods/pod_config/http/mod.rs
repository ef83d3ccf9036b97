//! The URL source: a pod or a list of pods, polled.
//!
//! If a fetch fails or its body is invalid, the last pods are kept. An unchanged body is not parsed. An empty body is
//! an empty list.

mod fetch;
mod request;
#[cfg(test)]
mod tests;

use super::SourceList;
use super::manifest::{decode_catching_panic, decode_url};
use super::static_pod::ManifestOrigin;
use crate::base::{SecretUrl, clock, spawn_blocking};
use crate::model::validation::LocalConfigMapsAndSecrets;
use crate::model::{Completeness, PodSource, reasons};
use crate::state::events::{EventRecorder, ObjectRef};
use anyhow::Context as _;
use fetch::Fetcher;
use hyper::body::Bytes;
use request::ManifestRequest;
use std::fmt;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// Deadline of one fetch, redirects and body included.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// How many failures in a row are logged as warnings.
const MAX_FAILURE_WARNINGS: u32 = 3;

/// What the URL source is to fetch.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// `staticPodURL`, http or https.
    pub url: SecretUrl,
    /// `staticPodURLHeader`, one entry per value.
    pub headers: Vec<(String, String)>,
    /// `httpCheckFrequency`.
    pub check_period: Duration,
    /// Which objects its pods may refer to.
    pub config_maps_and_secrets: LocalConfigMapsAndSecrets,
}

/// Secrets may stand in the URL and the headers.
impl fmt::Debug for HttpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpConfig")
            .field("url", &self.url)
            .field("check_period", &self.check_period)
            .finish_non_exhaustive()
    }
}

impl HttpConfig {
    /// Checks URL and headers.
    ///
    /// # Errors
    /// The URL is not http or https or names no host, or a header is not one.
    pub fn validate(&self) -> anyhow::Result<()> {
        self.target().map(drop)
    }

    fn target(&self) -> anyhow::Result<ManifestRequest> {
        ManifestRequest::new(&self.url, &self.headers).context("staticPodURL")
    }
}

/// The source's task; ends at shutdown only.
pub(super) async fn run(
    config: HttpConfig,
    node_name: String,
    lists: mpsc::Sender<SourceList>,
    recorder: EventRecorder,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut source = HttpSource {
        fetcher: Fetcher::new(config.target()?),
        last: None,
        failures: 0,
        node_name,
        lists,
        recorder,
        config_maps_and_secrets: config.config_maps_and_secrets,
        url: config.url,
    };
    let work = async {
        let mut ticks = tokio::time::interval(config.check_period.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            source.poll().await?;
        }
    };
    let ended = shutdown.run_until_cancelled(work).await;
    ended.unwrap_or(Ok(()))
}

struct HttpSource {
    fetcher: Fetcher,
    url: SecretUrl,
    /// The bytes last parsed.
    last: Option<Bytes>,
    /// Failures in a row.
    failures: u32,
    node_name: String,
    config_maps_and_secrets: LocalConfigMapsAndSecrets,
    lists: mpsc::Sender<SourceList>,
    recorder: EventRecorder,
}

impl HttpSource {
    async fn poll(&mut self) -> anyhow::Result<()> {
        let result = match tokio::time::timeout(FETCH_TIMEOUT, self.fetcher.fetch()).await {
            Ok(result) => result,
            Err(_) => Err(anyhow::anyhow!("timed out after {FETCH_TIMEOUT:?}")),
        };
        match result {
            Ok(bytes) => {
                self.fetched();
                self.take(bytes).await
            }
            Err(error) => {
                self.failed(&error);
                Ok(())
            }
        }
    }

    fn fetched(&mut self) {
        if std::mem::take(&mut self.failures) > 0 {
            tracing::info!(url = %self.url, "Reading pods from URL recovered");
        }
    }

    fn failed(&mut self, error: &anyhow::Error) {
        self.failures = self.failures.saturating_add(1);
        let url = self.url.to_string();
        let error = format!("{error:#}");
        if self.failures <= MAX_FAILURE_WARNINGS {
            let failures = self.failures;
            tracing::warn!(
                url,
                failures,
                error,
                "Failed to read pods from URL; keeping the current static pods"
            );
        } else {
            tracing::debug!(
                url,
                error,
                "Failed to read pods from URL; keeping the current static pods"
            );
        }
    }

    /// Parses new bytes and delivers the pods. Bytes that are not pods are remembered, too, so that they are
    /// reported once.
    async fn take(&mut self, bytes: Bytes) -> anyhow::Result<()> {
        if self.last.as_ref() == Some(&bytes) {
            return Ok(());
        }
        self.last = Some(bytes.clone());
        if bytes.is_empty() {
            return self.deliver(Vec::new()).await;
        }
        let url = self.url.to_string();
        let (location, node_name) = (self.url.clone(), self.node_name.clone());
        let config_maps_and_secrets = self.config_maps_and_secrets;
        let parsed = spawn_blocking(move || {
            let origin = ManifestOrigin {
                node_name: &node_name,
                source: PodSource::Http,
                location: &location,
                config_maps_and_secrets,
            };
            decode_catching_panic(decode_url, &bytes, origin, clock::timestamp())
        });
        match parsed.await.context("reading pods from a URL")? {
            Ok(manifest) => {
                for warning in &manifest.warnings {
                    tracing::warn!(url, %warning, "Static pod manifest has a warning");
                }
                self.deliver(manifest.pods).await
            }
            Err(why) => {
                let node = ObjectRef::node(&self.node_name);
                let text = format!("{url}: {why}; keeping the current static pods");
                self.recorder.warning(&node, reasons::event::FAILED_VALIDATION, text);
                Ok(())
            }
        }
    }

    async fn deliver(&self, pods: Vec<std::sync::Arc<crate::model::Pod>>) -> anyhow::Result<()> {
        let source = PodSource::Http;
        let list = SourceList { source, pods, completeness: Completeness::Complete };
        self.lists.send(list).await.context("the merge of sources has ended")
    }
}
