//! Records which images the kubelet pulled, and with which credentials: a pod may not use every image that is present
//! on the node.
//!
//! * **Owns** `<root>/image_manager`: one file per image that is being pulled, and one per pulled image, in
//!   upstream's layout, so that this kubelet and the Go one can replace each other.
//! * **Woken by** pulls, and by image garbage collection.
//! * **Publishes** whether a present image has to be pulled again (`PullRecords::must_pull`).
//! * **Must never** lose a readable record of another kubelet, nor treat an image as preloaded because its record
//!   cannot be read.
//! * Upstream: `pkg/kubelet/images/pullmanager`.

mod disk;
mod policy;
mod record;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use self::disk::{PullRecordDirs, RecordFileName};
use self::record::{ImagePullCredentials, ImagePulledRecord, PulledRecordFile};
use super::credentials::{ImagePullSecret, ImagePullServiceAccount, LoginOwner};
use super::image_name::ImageName;
use crate::base::metrics::{AtScrape, Metrics};
use crate::base::{clock, run_file_io};
use crate::cri::v1::Image;

pub use policy::{VerificationPolicy, check_pattern};

/// How long the intent of a pull with an unknown outcome is kept while its image is absent.
const INTENT_KEPT_FOR: SignedDuration = SignedDuration::from_hours(1);

/// The records of pulls; cheap to clone.
#[derive(Clone, Default)]
pub struct PullRecords {
    inner: Option<Arc<PullRecordsInner>>,
}

struct PullRecordsInner {
    policy: VerificationPolicy,
    disk: PullRecordDirs,
    state: Mutex<PullRecordFiles>,
    /// Held while files are written, so that writes happen in the order of the state's changes.
    writing: tokio::sync::Mutex<()>,
}

/// Keyed by file name, because the image of an unreadable file is unknown.
#[derive(Default)]
struct PullRecordFiles {
    pulled: HashMap<RecordFileName, PulledRecordFile>,
    /// When images were last pulled by this process, also if that changed nothing in the record.
    pulled_at: HashMap<RecordFileName, Timestamp>,
    intents: HashMap<RecordFileName, PullIntentState>,
}

/// An image that is being pulled, or was when an earlier kubelet was killed.
#[derive(Default)]
struct PullIntentState {
    /// The reference as the user wrote it; `None` if the file cannot be read.
    image: Option<String>,
    /// Number of pulls in progress in this process.
    in_progress: usize,
    /// When the last pull was left with an unknown outcome, or when this process found the record.
    left_at: Option<Timestamp>,
}

impl PullIntentState {
    fn is_left_before(&self, time: Timestamp) -> bool {
        self.in_progress == 0 && self.left_at.is_none_or(|left_at| left_at <= time)
    }
}

impl PullRecords {
    /// Records and verifies nothing: feature gate `KubeletEnsureSecretPulledImages` off.
    pub fn disabled() -> PullRecords {
        PullRecords::default()
    }

    /// Reads the records below the kubelet's root directory; unreadable ones are logged. Blocking.
    ///
    /// # Errors
    /// The directories cannot be created or listed.
    pub fn open(root: &Path, policy: VerificationPolicy) -> io::Result<PullRecords> {
        let (disk, found) = PullRecordDirs::open(root)?;
        for problem in &found.problems {
            tracing::warn!("Failed to read a record of an image pull: {problem}");
        }
        let now = clock::timestamp();
        let pulling = |(name, image)| {
            let state = PullIntentState { image, in_progress: 0, left_at: Some(now) };
            (name, state)
        };
        let state = PullRecordFiles {
            pulled: found.pulled,
            pulled_at: HashMap::new(),
            intents: found.intents.into_iter().map(pulling).collect(),
        };
        let inner = PullRecordsInner {
            policy,
            disk,
            state: Mutex::new(state),
            writing: tokio::sync::Mutex::default(),
        };
        Ok(PullRecords { inner: Some(Arc::new(inner)) })
    }

    /// Registers the numbers of records.
    pub fn measured(self, metrics: &Metrics) -> Self {
        let Some(inner) = &self.inner else {
            return self;
        };
        let number = |name, help, count: fn(&PullRecordFiles) -> usize| {
            let inner = inner.clone();
            let read = move || count(&inner.state.lock()) as f64;
            metrics.register(name, help, AtScrape::number(read));
        };
        number(
            "kubelet_imagemanager_ondisk_pulledrecords",
            "Number of ImagePulledRecords stored on disk.",
            |files| files.pulled.len(),
        );
        number(
            "kubelet_imagemanager_ondisk_pullintents",
            "Number of ImagePullIntents stored on disk.",
            |files| files.intents.len(),
        );
        self
    }

    /// Whether pulls are recorded and verified.
    pub(super) fn is_enabled(&self) -> bool {
        self.inner.is_some()
    }

    /// Whether the present image with the runtime's reference `image_ref` has to be pulled again, to verify that a
    /// pod with these secrets may use it.
    pub(super) fn must_pull(
        &self,
        image: &str,
        image_ref: &str,
        secrets: impl FnOnce() -> Vec<ImagePullSecret>,
    ) -> bool {
        let Some(inner) = &self.inner else {
            return false;
        };
        let state = inner.state.lock();
        let pulled = state.pulled.get(&RecordFileName::of(image_ref));
        let in_progress = state.intents.contains_key(&RecordFileName::of(image));
        let untagged = ImageName::without_tag_and_digest(image);
        let untagged = untagged.as_deref();
        policy::must_pull(&inner.policy, untagged, image, pulled, in_progress, secrets)
    }

    /// The service accounts that a present image was pulled for.
    pub(super) fn accounts(&self, image: &str, image_ref: &str) -> Vec<ImagePullServiceAccount> {
        let (Some(inner), Some(untagged)) = (&self.inner, ImageName::without_tag_and_digest(image))
        else {
            return Vec::new();
        };
        let state = inner.state.lock();
        let pulled = state.pulled.get(&RecordFileName::of(image_ref));
        let record = pulled.and_then(PulledRecordFile::record);
        record.map_or_else(Vec::new, |record| record.accounts(&untagged))
    }

    /// Records that an image is about to be pulled. This has to be written before the pull starts: if the kubelet is
    /// killed after the pull, nothing else distinguishes the image from a preloaded one.
    pub(super) async fn record_pull_intent(&self, image: &str) -> io::Result<PullInProgress> {
        if let Some(inner) = &self.inner {
            let name = RecordFileName::of(image);
            let _writing = inner.writing.lock().await;
            // An existing readable record is not rewritten.
            let readable = |pulling: &PullIntentState| pulling.image.is_some();
            let known = inner.state.lock().intents.get(&name).is_some_and(readable);
            if !known {
                let image = image.to_owned();
                inner.on_disk(move |disk| disk.write_intent(&image)).await?;
            }
            let mut state = inner.state.lock();
            let pulling = state.intents.entry(name).or_default();
            pulling.image = Some(image.to_owned());
            pulling.in_progress += 1;
        }
        Ok(PullInProgress { inner: self.inner.clone(), image: image.to_owned() })
    }

    /// Whether an earlier kubelet was killed during pulls, so that [`PullRecords::recover`] has to be called.
    pub fn has_interrupted_pulls(&self) -> bool {
        let has = |inner: &Arc<PullRecordsInner>| !inner.state.lock().intents.is_empty();
        self.inner.as_ref().is_some_and(has)
    }

    /// Turns the intents of pulls whose outcome is unknown (an earlier kubelet was killed, or the pull was cancelled) into
    /// pulled records without credentials, if the runtime has the image in the list that began at `listed_at`: access to
    /// it is then verified. An intent whose image is not there an hour later is removed.
    pub async fn recover(&self, images: &[Image], listed_at: Timestamp) {
        let Some(inner) = &self.inner else {
            return;
        };
        let expired = listed_at.saturating_sub(INTENT_KEPT_FOR).unwrap_or(Timestamp::MIN);
        let left: Vec<(String, bool)> = {
            let state = inner.state.lock();
            let left = state.intents.values().filter(|pulling| pulling.in_progress == 0);
            left.filter_map(|pulling| {
                Some((pulling.image.clone()?, pulling.is_left_before(expired)))
            })
            .collect()
        };
        for (image, is_expired) in left {
            // Runtimes return full image names.
            let full = ImageName::parse(&image).map(|name| name.full()).ok();
            let is_it = |name: &String| *name == image || full.as_ref() == Some(name);
            let known_as = |found: &&Image| {
                let names = found.repo_tags.iter().chain(&found.repo_digests);
                names.into_iter().any(is_it)
            };
            match images.iter().find(known_as) {
                Some(found) => match inner.write_pulled(&image, &found.id, None).await {
                    Ok(()) => inner.remove_left_intent(&image).await,
                    Err(error) => {
                        tracing::warn!(image, err = %error, "Failed to record an image pull");
                    }
                },
                None if is_expired => inner.remove_left_intent(&image).await,
                None => {}
            }
        }
    }

    /// Removes the records of images that the runtime no longer has (`present` are the IDs of those it has), unless
    /// they were updated after the images were listed.
    pub async fn prune(&self, present: &HashSet<&str>, listed_at: Timestamp) {
        let Some(inner) = &self.inner else {
            return;
        };
        let _writing = inner.writing.lock().await;
        let present: HashSet<RecordFileName> =
            present.iter().map(|id| RecordFileName::of(id)).collect();
        let gone: Vec<RecordFileName> = {
            let mut state = inner.state.lock();
            state.pulled_at.retain(|_, pulled_at| *pulled_at >= listed_at);
            let gone = |(name, known): &(&RecordFileName, &PulledRecordFile)| {
                let pulled_at = state.pulled_at.get(*name);
                !present.contains(*name)
                    && known.is_older_than(listed_at)
                    && pulled_at.is_none_or(|pulled_at| *pulled_at < listed_at)
            };
            let gone = state.pulled.iter().filter(gone);
            gone.map(|(name, _)| name.clone()).collect()
        };
        for name in gone {
            let file = name.clone();
            match inner.on_disk(move |disk| disk.remove_pulled(&file)).await {
                Ok(()) => {
                    inner.state.lock().pulled.remove(&name);
                }
                Err(error) => {
                    tracing::warn!(file = %name, err = %error, "Failed to remove the record of an image");
                }
            }
        }
    }
}

impl PullRecordsInner {
    async fn on_disk(
        &self,
        work: impl FnOnce(&PullRecordDirs) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let disk = self.disk.clone();
        let done = run_file_io(move || work(&disk)).await;
        done.map_err(io::Error::other)?
    }

    /// Creates or extends the record of an image. `credentials` is `None` if they are not known.
    async fn write_pulled(
        &self,
        image: &str,
        image_ref: &str,
        credentials: Option<ImagePullCredentials>,
    ) -> io::Result<()> {
        let untagged = ImageName::without_tag_and_digest(image)
            .ok_or_else(|| io::Error::other(format!("invalid image name {image:?}")))?;
        let _writing = self.writing.lock().await;
        let name = RecordFileName::of(image_ref);
        let known = self.state.lock().pulled.get(&name).cloned();
        let known = known.as_ref().and_then(PulledRecordFile::record);
        let now = clock::timestamp();
        self.state.lock().pulled_at.insert(name.clone(), now);
        let Some(record) = ImagePulledRecord::merged(known, image_ref, &untagged, credentials, now)
        else {
            return Ok(());
        };
        let new = record.clone();
        self.on_disk(move |disk| disk.write_pulled(&new)).await?;
        let mut state = self.state.lock();
        state.pulled.insert(name, PulledRecordFile::Record(Arc::new(record)));
        Ok(())
    }

    /// Leaves one pull with an unknown outcome: the image counts as pulled by the kubelet until it is recorded or absent.
    fn leave_intent(&self, image: &str) {
        let mut state = self.state.lock();
        if let Some(pulling) = state.intents.get_mut(&RecordFileName::of(image)) {
            pulling.in_progress = pulling.in_progress.saturating_sub(1);
            pulling.left_at = Some(clock::timestamp());
        }
    }

    /// Removes the record of pulls whose outcome is now known, unless the image is being pulled.
    async fn remove_left_intent(&self, image: &str) {
        let name = RecordFileName::of(image);
        let _writing = self.writing.lock().await;
        let is_pulled = |pulling: &PullIntentState| pulling.in_progress > 0;
        if self.state.lock().intents.get(&name).is_some_and(is_pulled) {
            return;
        }
        let file = name.clone();
        match self.on_disk(move |disk| disk.remove_intent(&file)).await {
            Ok(()) => {
                self.state.lock().intents.remove(&name);
            }
            // While the file exists, the image counts as pulled by the kubelet.
            Err(error) => {
                tracing::warn!(image, err = %error, "Failed to remove the record of a pull in progress");
            }
        }
    }
}

/// A pull in progress. Its record stays when this is dropped: the pull was cancelled, and the runtime may have finished it
/// or may go on with it.
pub(super) struct PullInProgress {
    inner: Option<Arc<PullRecordsInner>>,
    image: String,
}

impl PullInProgress {
    /// Records that the image was pulled with a login of this owner. `None` is for an anonymous pull or a login of
    /// the node: every pod of the node may use the image.
    pub(super) async fn record_image_pulled(self, image_ref: &str, owner: Option<LoginOwner>) {
        let Some(inner) = &self.inner else {
            return;
        };
        let credentials = Some(match owner {
            Some(LoginOwner::Secret(secret)) => ImagePullCredentials::of_secret(secret),
            Some(LoginOwner::ServiceAccount(account)) => ImagePullCredentials::of_account(account),
            None => ImagePullCredentials::of_node(),
        });
        match inner.write_pulled(&self.image, image_ref, credentials).await {
            Ok(()) => self.end().await,
            Err(error) => {
                tracing::warn!(image = self.image, err = %error, "Failed to record an image pull");
            }
        }
    }

    pub(super) async fn record_image_pull_failed(self) {
        self.end().await;
    }

    /// Removes the record, unless the image is pulled by another one.
    async fn end(mut self) {
        if let Some(inner) = self.inner.take() {
            inner.leave_intent(&self.image);
            inner.remove_left_intent(&self.image).await;
        }
    }
}

impl Drop for PullInProgress {
    fn drop(&mut self) {
        if let Some(inner) = &self.inner {
            inner.leave_intent(&self.image);
        }
    }
}
