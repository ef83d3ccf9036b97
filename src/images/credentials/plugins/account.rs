//! What credential providers receive about the service account of a pod: a token, and annotations.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ServiceAccount;
use sha2::{Digest as _, Sha256};

use super::config::TokenAttributes;
use crate::apiserver::token::{IssuedTokens, Token, TokenKey};
use crate::apiserver::{ApiServer, ResourcePath};
use crate::base::{error_chain, hex};
use crate::images::credentials::login::ImagePullServiceAccount;
use crate::model::{Pod, PodExt as _};

/// A service account, with the token and annotations for a provider.
#[derive(Debug)]
pub(super) struct PodAccount {
    pub(super) account: ImagePullServiceAccount,
    pub(super) annotations: BTreeMap<String, String>,
    token: Token,
}

impl PodAccount {
    pub(super) fn token(&self) -> &str {
        std::str::from_utf8(&self.token.0).unwrap_or_default()
    }

    /// The cache key of a response: the account and its annotations, and with `by_token` its token.
    pub(super) fn cache_key(&self, by_token: bool) -> String {
        let ImagePullServiceAccount { uid, namespace, name } = &self.account;
        // Hashed, because the token is a secret and long.
        let token = by_token.then(|| hex(&Sha256::digest(&self.token.0)));
        let key = (namespace, name, uid, &self.annotations, token);
        serde_json::to_string(&key).unwrap_or_default()
    }
}

/// Why a provider is not called for a pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProviderNotCalled {
    /// The provider does not apply to this pod.
    NotApplicable(String),
    /// The service account or its token cannot be obtained.
    Failed(String),
}

/// Reads service accounts and requests their tokens, which are reused until they have to be renewed.
#[derive(Default)]
pub(super) struct ServiceAccounts {
    api: Option<ApiServer>,
    tokens: IssuedTokens,
}

impl ServiceAccounts {
    pub(super) fn new(api: Option<ApiServer>) -> Self {
        Self { tokens: IssuedTokens::new(api.clone()), api }
    }

    /// What a provider with these attributes receives for a pod; `None` for a pod without a service account.
    pub(super) async fn of_pod(
        &self,
        attributes: &TokenAttributes,
        pod: &Pod,
    ) -> Result<Option<PodAccount>, ProviderNotCalled> {
        let spec = pod.spec();
        let name = spec.and_then(|spec| spec.service_account_name.as_deref());
        let name = name.filter(|name| !name.is_empty() && !pod.is_static());
        let Some(name) = name else {
            let text = "the pod has no service account";
            return if attributes.require_service_account == Some(true) {
                Err(ProviderNotCalled::NotApplicable(text.into()))
            } else {
                Ok(None)
            };
        };
        let api = self.api.as_ref();
        let api = api.ok_or_else(|| ProviderNotCalled::Failed("there is no API server".into()))?;
        let namespace = pod.namespace();
        let account = api.get::<ServiceAccount>(ResourcePath::namespaced(namespace, name));
        let account = account.await.map_err(|error| {
            let text = format!("get service account {namespace}/{name}: {}", error_chain(&error));
            ProviderNotCalled::Failed(text)
        })?;
        let annotations =
            annotations(attributes, account.metadata.annotations.unwrap_or_default())?;
        let key = TokenKey {
            namespace: namespace.to_owned(),
            service_account: name.to_owned(),
            audience: Some(attributes.service_account_token_audience.clone()),
            expiration_seconds: None,
            pod_name: pod.name().to_owned(),
            pod_uid: pod.uid(),
        };
        let issued = self.tokens.get(key).await;
        let issued = issued.map_err(|error| ProviderNotCalled::Failed(error.to_string()))?;
        Ok(Some(PodAccount {
            account: ImagePullServiceAccount {
                uid: account.metadata.uid.unwrap_or_default(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            },
            annotations,
            token: issued.token,
        }))
    }
}

/// The annotations that the provider receives.
fn annotations(
    attributes: &TokenAttributes,
    mut known: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, ProviderNotCalled> {
    let required = &attributes.required_service_account_annotation_keys;
    let optional = &attributes.optional_service_account_annotation_keys;
    if let Some(missing) = required.iter().find(|key| !known.contains_key(*key)) {
        let text = format!("the service account has no annotation {missing:?}");
        return Err(ProviderNotCalled::NotApplicable(text));
    }
    known.retain(|key, _| required.contains(key) || optional.contains(key));
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_annotations_that_are_named_are_given_and_the_required_ones_have_to_be_there() {
        let known = |names: &[&str]| {
            let known = names.iter().map(|name| ((*name).to_owned(), "v".to_owned()));
            known.collect::<BTreeMap<_, _>>()
        };
        let attributes = TokenAttributes {
            service_account_token_audience: "a".into(),
            cache_type: "ServiceAccount".into(),
            require_service_account: Some(true),
            required_service_account_annotation_keys: vec!["r".into()],
            optional_service_account_annotation_keys: vec!["o".into(), "p".into()],
        };
        let given = annotations(&attributes, known(&["r", "o", "x"])).unwrap();
        assert_eq!(given, known(&["o", "r"]));
        let error = annotations(&attributes, known(&["o"])).unwrap_err();
        assert!(matches!(error, ProviderNotCalled::NotApplicable(text) if text.contains("\"r\"")));
    }

    #[test]
    fn an_answer_serves_other_tokens_of_an_account_only_if_it_may() {
        let of = |uid: &str, token: &str, annotation: &str| PodAccount {
            account: ImagePullServiceAccount {
                uid: uid.into(),
                namespace: "ns".into(),
                name: "sa".into(),
            },
            annotations: [("k".to_owned(), annotation.to_owned())].into(),
            token: Token(token.to_owned().into()),
        };
        let one = of("u", "hunter2", "v");
        for (other, by_account, by_token) in [
            (of("u", "hunter2", "v"), true, true),
            (of("u", "other", "v"), true, false),
            (of("w", "hunter2", "v"), false, false),
            (of("u", "hunter2", "w"), false, false),
        ] {
            let is_same = |by_token| one.cache_key(by_token) == other.cache_key(by_token);
            assert_eq!((is_same(false), is_same(true)), (by_account, by_token));
        }
        assert!(!one.cache_key(true).contains("hunter2"));
        assert!(!format!("{one:?}").contains("hunter2"));
    }
}
