//! The response of a plugin: `CredentialProviderResponse`. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::cache::CacheKeyType;
use crate::base::GoDuration;
use crate::images::credentials::auths::{Auths, Login};
use crate::images::credentials::login::ImagePullServiceAccount;

const KIND: &str = "CredentialProviderResponse";

/// The logins of a response, and how long and for which images they are cached.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) key_type: CacheKeyType,
    /// `None` uses the provider's default; zero is not cached.
    pub(super) cache_duration: Option<Duration>,
    pub(super) auths: Auths,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    api_version: Option<String>,
    kind: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResponseDocument {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(default)]
    cache_key_type: String,
    cache_duration: Option<GoDuration>,
    auth: Option<BTreeMap<String, AuthConfig>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthConfig {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// Parses a response, which must have the API version of the request. The error contains none of its text, which may
/// hold secrets.
pub(super) fn decode(
    bytes: &[u8],
    api_version: &str,
    account: Option<&ImagePullServiceAccount>,
) -> Result<Response, String> {
    let unreadable =
        |_| "error decoding credential provider plugin response from stdout".to_owned();
    let head: Head = serde_json::from_slice(bytes).map_err(unreadable)?;
    let actual = head.api_version.unwrap_or_default();
    if actual != api_version {
        return Err(format!(
            "apiVersion from credential plugin response did not match expected apiVersion:{api_version}, actual apiVersion:{}",
            short(&actual)
        ));
    }
    if head.kind.as_deref() != Some(KIND) {
        return Err(format!("the credential plugin's response is not a {KIND}"));
    }
    let document: ResponseDocument = serde_json::from_slice(bytes).map_err(unreadable)?;
    let key_type = match document.cache_key_type.as_str() {
        "Image" => CacheKeyType::Image,
        "Registry" => CacheKeyType::Registry,
        "Global" => CacheKeyType::Global,
        other => {
            return Err(format!(
                "credential provider plugin did not return a valid cacheKeyType: {}",
                short(other)
            ));
        }
    };
    let mut auths = Auths::default();
    for (registry, AuthConfig { username, password }) in document.auth.unwrap_or_default() {
        // An entry that is not a valid registry matches no image.
        let login = Login { username, password, account: account.cloned() };
        auths.add(&registry, login);
    }
    Ok(Response {
        key_type,
        cache_duration: document.cache_duration.map(GoDuration::to_std),
        auths,
    })
}

fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

    fn response(more: &str) -> String {
        format!(r#"{{"kind": "CredentialProviderResponse", "apiVersion": "{V1}"{more}}}"#)
    }

    #[test]
    fn an_answer_says_what_for_and_how_long() {
        let more = r#", "cacheKeyType": "Registry", "cacheDuration": "1m30s",
            "auth": {"*.io": {"username": "u", "password": "p"}, "a b:c": {}}"#;
        let read = decode(response(more).as_bytes(), V1, None).unwrap();
        assert_eq!(read.key_type, CacheKeyType::Registry);
        assert_eq!(read.cache_duration, Some(Duration::from_secs(90)));
        let login = read.auths.lookup("r.io/x");
        assert_eq!((&*login[0].username, &*login[0].password), ("u", "p"));
        let more = r#", "cacheKeyType": "Global", "cacheDuration": null, "auth": null"#;
        let read = decode(response(more).as_bytes(), V1, None).unwrap();
        assert_eq!((read.key_type, read.cache_duration), (CacheKeyType::Global, None));
        let more = r#", "cacheKeyType": "Image", "cacheDuration": "0s""#;
        let read = decode(response(more).as_bytes(), V1, None).unwrap();
        assert_eq!(read.cache_duration, Some(Duration::ZERO));
        let more = r#", "cacheKeyType": "Image", "cacheDuration": "-5s""#;
        let read = decode(response(more).as_bytes(), V1, None).unwrap();
        assert_eq!(read.cache_duration, Some(Duration::ZERO));
    }

    #[test]
    fn what_is_wrong_with_an_answer_is_told_without_repeating_it() {
        let other = r#"{"kind": "CredentialProviderResponse", "apiVersion": "x/v2"}"#;
        let kind = format!(r#"{{"kind": "Secret", "apiVersion": "{V1}", "data": "hunter2"}}"#);
        let table = [
            ("hunter2".to_owned(), "error decoding"),
            (String::new(), "error decoding"),
            (
                other.to_owned(),
                "expected apiVersion:credentialprovider.kubelet.k8s.io/v1, actual apiVersion:x/v2",
            ),
            (kind, "is not a CredentialProviderResponse"),
            (response(""), "valid cacheKeyType: "),
            (response(r#", "cacheKeyType": "Node""#), "valid cacheKeyType: Node"),
            (response(r#", "cacheKeyType": "Image", "token": "hunter2""#), "error decoding"),
            (response(r#", "cacheKeyType": "Image", "auth": {"r": "hunter2"}"#), "error decoding"),
            (
                response(r#", "cacheKeyType": "Image", "cacheDuration": "hunter2""#),
                "error decoding",
            ),
        ];
        for (text, expected) in table {
            let error = decode(text.as_bytes(), V1, None).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
