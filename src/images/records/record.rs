//! The records: upstream's `ImagePullIntent` and `ImagePulledRecord`. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::images::credentials::{ImagePullSecret, ImagePullServiceAccount};

/// The version that is written; older ones are read too.
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const READ_VERSIONS: [&str; 2] = [API_VERSION, "kubelet.config.k8s.io/v1alpha1"];
/// Maximum number of secrets in one record; a new one replaces the oldest.
const MAX_SECRETS: usize = 100;
/// Maximum number of service accounts in one record.
const MAX_ACCOUNTS: usize = 100;
const INTENT: &str = "ImagePullIntent";
const RECORD: &str = "ImagePulledRecord";

/// An image is being pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ImagePullIntent {
    kind: String,
    api_version: String,
    /// The reference as the user wrote it.
    pub(super) image: String,
}

impl ImagePullIntent {
    pub(super) fn of(image: &str) -> ImagePullIntent {
        ImagePullIntent {
            kind: INTENT.to_owned(),
            api_version: API_VERSION.to_owned(),
            image: image.to_owned(),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<ImagePullIntent, String> {
        let intent: ImagePullIntent = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        check_head(INTENT, &intent.kind, &intent.api_version)?;
        Ok(intent)
    }
}

/// The kubelet has pulled an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ImagePulledRecord {
    kind: String,
    api_version: String,
    /// In whole seconds.
    last_updated_time: Option<Timestamp>,
    /// The runtime's image reference.
    pub(super) image_ref: String,
    /// The credentials of pulls, by the image name without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    credential_mapping: BTreeMap<String, ImagePullCredentials>,
}

/// Which pods may use an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ImagePullCredentials {
    /// Pods with one of these pull secrets, or one with the same login, may use it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<ImagePullSecret>,
    /// Pods with one of these service accounts may use it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<ImagePullServiceAccount>,
    /// Every pod of the node may use it; the other two fields are empty then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
}

impl ImagePullCredentials {
    /// For a pull that was anonymous or used a login of the node.
    pub(super) fn of_node() -> ImagePullCredentials {
        ImagePullCredentials { node_pods_accessible: true, ..ImagePullCredentials::default() }
    }

    /// For a pull with a login of this secret.
    pub(super) fn of_secret(secret: ImagePullSecret) -> ImagePullCredentials {
        ImagePullCredentials { kubernetes_secrets: vec![secret], ..ImagePullCredentials::default() }
    }

    /// For a pull with a login that a credential provider issued for this service account.
    pub(super) fn of_account(account: ImagePullServiceAccount) -> ImagePullCredentials {
        ImagePullCredentials {
            kubernetes_service_accounts: vec![account],
            ..ImagePullCredentials::default()
        }
    }

    /// The union of both; if one allows every pod of the node, so does the result.
    fn union(&self, others: &ImagePullCredentials) -> ImagePullCredentials {
        if self.node_pods_accessible || others.node_pods_accessible {
            return ImagePullCredentials::of_node();
        }
        let mut all = self.clone();
        for secret in &others.kubernetes_secrets {
            let secrets = &mut all.kubernetes_secrets;
            secrets.retain(|known| !is_same_object(known, secret));
            if secrets.len() >= MAX_SECRETS {
                secrets.remove(0);
            }
            secrets.push(secret.clone());
        }
        for account in &others.kubernetes_service_accounts {
            let accounts = &mut all.kubernetes_service_accounts;
            accounts.retain(|known| known != account);
            if accounts.len() >= MAX_ACCOUNTS {
                accounts.remove(0);
            }
            accounts.push(account.clone());
        }
        all
    }
}

/// Whether it is the same secret, even with a changed login.
fn is_same_object(one: &ImagePullSecret, other: &ImagePullSecret) -> bool {
    (&one.uid, &one.namespace, &one.name) == (&other.uid, &other.namespace, &other.name)
}

/// Whether pods with this secret may use an image of the known one: it is the same secret, or has the same login.
fn covers(known: &ImagePullSecret, used: &ImagePullSecret) -> bool {
    let hash = &known.credential_hash;
    is_same_object(known, used) || (!hash.is_empty() && *hash == used.credential_hash)
}

impl ImagePulledRecord {
    pub(super) fn decode(bytes: &[u8]) -> Result<ImagePulledRecord, String> {
        let record: ImagePulledRecord = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        check_head(RECORD, &record.kind, &record.api_version)?;
        Ok(record)
    }

    /// Whether every pod of the node may use the image of this name (without tag and digest).
    pub(super) fn is_for_all(&self, untagged: &str) -> bool {
        let credentials = self.credential_mapping.get(untagged);
        credentials.is_some_and(|credentials| credentials.node_pods_accessible)
    }

    /// Whether a pod with one of these secrets may use the image of this name.
    pub(super) fn is_for_any(&self, untagged: &str, secrets: &[ImagePullSecret]) -> bool {
        let credentials = self.credential_mapping.get(untagged);
        let known = credentials.map(|credentials| &credentials.kubernetes_secrets);
        let covered = |used| known.into_iter().flatten().any(|it| covers(it, used));
        secrets.iter().any(covered)
    }

    /// The service accounts whose pods may use the image of this name, as long as a credential provider has a login
    /// for them.
    pub(super) fn accounts(&self, untagged: &str) -> Vec<ImagePullServiceAccount> {
        let credentials = self.credential_mapping.get(untagged);
        credentials
            .map_or_else(Vec::new, |credentials| credentials.kubernetes_service_accounts.clone())
    }

    /// The record after another pull; `None` if the pull adds nothing to it. `credentials` is `None` if they are not
    /// known.
    pub(super) fn merged(
        known: Option<&ImagePulledRecord>,
        image_ref: &str,
        untagged: &str,
        credentials: Option<ImagePullCredentials>,
        now: Timestamp,
    ) -> Option<ImagePulledRecord> {
        let before = known.and_then(|known| known.credential_mapping.get(untagged));
        // Access for every pod of the node is never narrowed by a later pull.
        let credentials = credentials.map(|new| match before {
            Some(before) => before.union(&new),
            None => new,
        });
        let changes = match (known, &credentials) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(_), now) => before != now.as_ref(),
        };
        if !changes {
            return None;
        }
        let mut record = known.cloned().unwrap_or_else(|| ImagePulledRecord {
            kind: RECORD.to_owned(),
            api_version: String::new(),
            last_updated_time: None,
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        });
        API_VERSION.clone_into(&mut record.api_version);
        record.last_updated_time = Timestamp::from_second(now.as_second()).ok();
        if let Some(credentials) = credentials {
            record.credential_mapping.insert(untagged.to_owned(), credentials);
        }
        Some(record)
    }
}

fn check_head(expected: &str, kind: &str, api_version: &str) -> Result<(), String> {
    if kind == expected && READ_VERSIONS.contains(&api_version) {
        Ok(())
    } else {
        Err(format!("{api_version} {kind} is not {API_VERSION} {expected}"))
    }
}

/// The content of a file in `pulled`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PulledRecordFile {
    Record(Arc<ImagePulledRecord>),
    /// The file exists and cannot be read.
    Unreadable,
}

impl PulledRecordFile {
    pub(super) fn record(&self) -> Option<&ImagePulledRecord> {
        match self {
            PulledRecordFile::Record(record) => Some(record),
            PulledRecordFile::Unreadable => None,
        }
    }

    /// Whether the record was last updated before `time`.
    pub(super) fn is_older_than(&self, time: Timestamp) -> bool {
        // Records have a resolution of seconds.
        let updated = self.record().and_then(|record| record.last_updated_time);
        updated.is_none_or(|updated| updated.as_second() < time.as_second())
    }
}
