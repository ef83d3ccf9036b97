//! The records: upstream's `ImagePullIntent` and `ImagePulledRecord`. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::images::credentials::{UsedAccount, UsedSecret};

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
pub(super) struct PullIntent {
    kind: String,
    api_version: String,
    /// The reference as the user wrote it.
    pub(super) image: String,
}

impl PullIntent {
    pub(super) fn of(image: &str) -> PullIntent {
        PullIntent {
            kind: INTENT.to_owned(),
            api_version: API_VERSION.to_owned(),
            image: image.to_owned(),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<PullIntent, String> {
        let intent: PullIntent = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        check_head(INTENT, &intent.kind, &intent.api_version)?;
        Ok(intent)
    }
}

/// The kubelet has pulled an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PulledRecord {
    kind: String,
    api_version: String,
    /// In whole seconds.
    last_updated_time: Option<Timestamp>,
    /// The runtime's image reference.
    pub(super) image_ref: String,
    /// The credentials of pulls, by the image name without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    credential_mapping: BTreeMap<String, Credentials>,
}

/// Which pods may use an image (upstream's `ImagePullCredentials`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Credentials {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<Secret>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<ServiceAccount>,
    /// Every pod of the node may use it; the other two fields are empty then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
}

/// Pods with this pull secret, or one with the same login, may use it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Secret {
    uid: String,
    namespace: String,
    name: String,
    credential_hash: String,
}

/// Pods with this service account may use it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ServiceAccount {
    uid: String,
    namespace: String,
    name: String,
}

impl Credentials {
    /// For a pull that was anonymous or used a login of the node.
    pub(super) fn of_node() -> Credentials {
        Credentials {
            node_pods_accessible: true,
            ..Credentials::default()
        }
    }

    /// For a pull with a login of this secret.
    pub(super) fn of_secret(secret: UsedSecret) -> Credentials {
        let secret = Secret {
            uid: secret.uid,
            namespace: secret.namespace,
            name: secret.name,
            credential_hash: secret.credential_hash,
        };
        Credentials {
            kubernetes_secrets: vec![secret],
            ..Credentials::default()
        }
    }

    /// For a pull with a login that a credential provider issued for this service account.
    pub(super) fn of_account(account: UsedAccount) -> Credentials {
        let account = ServiceAccount {
            uid: account.uid,
            namespace: account.namespace,
            name: account.name,
        };
        Credentials {
            kubernetes_service_accounts: vec![account],
            ..Credentials::default()
        }
    }

    /// The union of both; if one allows every pod of the node, so does the result.
    fn and(&self, others: &Credentials) -> Credentials {
        if self.node_pods_accessible || others.node_pods_accessible {
            return Credentials::of_node();
        }
        let mut all = self.clone();
        for secret in &others.kubernetes_secrets {
            let secrets = &mut all.kubernetes_secrets;
            secrets.retain(|known| !known.is_same_object(secret));
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

impl Secret {
    fn is_same_object(&self, other: &Secret) -> bool {
        self.uid == other.uid && self.namespace == other.namespace && self.name == other.name
    }

    /// Whether it is the same secret, even with a changed login, or has the same login.
    fn covers(&self, used: &UsedSecret) -> bool {
        let is_it =
            self.uid == used.uid && self.namespace == used.namespace && self.name == used.name;
        let hash = &self.credential_hash;
        is_it || (!hash.is_empty() && *hash == used.credential_hash)
    }
}

impl PulledRecord {
    pub(super) fn decode(bytes: &[u8]) -> Result<PulledRecord, String> {
        let record: PulledRecord = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        check_head(RECORD, &record.kind, &record.api_version)?;
        Ok(record)
    }

    /// Whether every pod of the node may use the image of this name (without tag and digest).
    pub(super) fn is_for_all(&self, plain: &str) -> bool {
        let credentials = self.credential_mapping.get(plain);
        credentials.is_some_and(|credentials| credentials.node_pods_accessible)
    }

    /// Whether a pod with one of these secrets may use the image of this name.
    pub(super) fn is_for_any(&self, plain: &str, secrets: &[UsedSecret]) -> bool {
        let credentials = self.credential_mapping.get(plain);
        let known = credentials.map(|credentials| &credentials.kubernetes_secrets);
        let covered = |used: &UsedSecret| known.into_iter().flatten().any(|it| it.covers(used));
        secrets.iter().any(covered)
    }

    /// The service accounts whose pods may use the image of this name, as long as a credential provider has a login
    /// for them.
    pub(super) fn accounts(&self, plain: &str) -> Vec<UsedAccount> {
        let credentials = self.credential_mapping.get(plain);
        let accounts =
            credentials.map(|credentials| credentials.kubernetes_service_accounts.iter());
        let used = |account: &ServiceAccount| UsedAccount {
            uid: account.uid.clone(),
            namespace: account.namespace.clone(),
            name: account.name.clone(),
        };
        accounts.into_iter().flatten().map(used).collect()
    }

    /// The record after another pull; `None` if the pull adds nothing to it. `credentials` is `None` if they are not
    /// known.
    pub(super) fn merged(
        known: Option<&PulledRecord>,
        image_ref: &str,
        plain: &str,
        credentials: Option<Credentials>,
        now: Timestamp,
    ) -> Option<PulledRecord> {
        let before = known.and_then(|known| known.credential_mapping.get(plain));
        // Access for every pod of the node is never narrowed by a later pull.
        let credentials = credentials.map(|new| match before {
            Some(before) => before.and(&new),
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
        let mut record = known.cloned().unwrap_or_else(|| PulledRecord {
            kind: RECORD.to_owned(),
            api_version: String::new(),
            last_updated_time: None,
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        });
        API_VERSION.clone_into(&mut record.api_version);
        record.last_updated_time = Timestamp::from_second(now.as_second()).ok();
        if let Some(credentials) = credentials {
            record
                .credential_mapping
                .insert(plain.to_owned(), credentials);
        }
        Some(record)
    }
}

fn check_head(expected: &str, kind: &str, api_version: &str) -> Result<(), String> {
    if kind == expected && READ_VERSIONS.contains(&api_version) {
        Ok(())
    } else {
        Err(format!(
            "{api_version} {kind} is not {API_VERSION} {expected}"
        ))
    }
}

/// The content of a file in `pulled`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KnownRecord {
    Record(Arc<PulledRecord>),
    /// The file exists and cannot be read.
    Unreadable,
}

impl KnownRecord {
    pub(super) fn record(&self) -> Option<&PulledRecord> {
        match self {
            KnownRecord::Record(record) => Some(record),
            KnownRecord::Unreadable => None,
        }
    }

    /// Whether the record was last updated before `time`.
    pub(super) fn is_older_than(&self, time: Timestamp) -> bool {
        // Records have a resolution of seconds.
        let updated = self.record().and_then(|record| record.last_updated_time);
        updated.is_none_or(|updated| updated.as_second() < time.as_second())
    }
}
