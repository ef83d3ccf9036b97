//! Image pull secrets of pods. Pure.

use super::auths::Auths;
use super::docker_config::{Form, parse};
use super::login::{LoginOwner, PullLogin, UsedSecret};
use crate::apiserver::configmap_secret::{Found, Object, ObjectKey, ObjectKind};
use crate::base::hex;
use crate::cri::v1::AuthConfig;
use crate::model::{Pod, PodExt as _};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// The logins of one secret.
#[derive(Clone, Debug)]
pub struct PullSecret {
    uid: String,
    namespace: String,
    name: String,
    auths: Auths,
}

/// The pull secrets of a pod, in its order.
pub type PullSecrets = Arc<[PullSecret]>;

/// The secrets that a pod names, in its order. Entries without a name are ignored, as the API allows them.
pub fn pull_secret_keys(pod: &Pod) -> Vec<ObjectKey> {
    let spec = pod.spec();
    let references = spec.and_then(|spec| spec.image_pull_secrets.as_ref());
    let key = |name: &str| ObjectKey {
        kind: ObjectKind::Secret,
        namespace: pod.namespace().to_owned(),
        name: name.to_owned(),
    };
    let names = references.into_iter().flatten().map(|it| it.name.as_str());
    names.filter(|name| !name.is_empty()).map(key).collect()
}

/// The secrets of these keys, and the names of those that cannot be used, with the reason.
pub fn pull_secrets(keys: &[ObjectKey], found: &Found) -> (PullSecrets, Vec<(String, String)>) {
    let (mut secrets, mut failed) = (Vec::new(), Vec::new());
    for key in keys {
        let secret = match found.get(key) {
            Some(Ok(object)) => PullSecret::of(key, object),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("it was not looked up".to_owned()),
        };
        match secret {
            Ok(secret) => secrets.push(secret),
            Err(error) => failed.push((key.name.clone(), error)),
        }
    }
    (secrets.into(), failed)
}

/// What upstream hashes, in its form.
#[derive(Serialize)]
struct Hashed<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    password: &'a str,
}

impl PullSecret {
    /// The logins of a secret; those of one of another type are none.
    ///
    /// # Errors
    /// What is wrong with it, without any of its data.
    pub fn of(key: &ObjectKey, object: &Object) -> Result<Self, String> {
        let forms = [
            (
                Form::ConfigJson,
                "kubernetes.io/dockerconfigjson",
                ".dockerconfigjson",
            ),
            (Form::Dockercfg, "kubernetes.io/dockercfg", ".dockercfg"),
        ];
        // A file has no type.
        let is_type = |expected| ["", expected].contains(&object.secret_type());
        let mut forms = forms
            .into_iter()
            .filter(|(_, expected, _)| is_type(*expected));
        let found = forms.find_map(|(form, _, key)| Some((form, object.get(key)?)));
        let found = found.filter(|(_, bytes)| !bytes.is_empty());
        let auths = match found {
            Some((form, bytes)) => parse(form, bytes)?.0,
            None => Auths::default(),
        };
        Ok(Self {
            uid: object.uid().to_owned(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            auths,
        })
    }

    /// The logins for an image, named in full and without tag.
    pub(in crate::images) fn lookup(&self, repo: &str) -> Vec<PullLogin> {
        let logins = self.auths.lookup(repo).into_iter();
        let login = |login: super::auths::Login| {
            let auth = AuthConfig::from(login);
            let secret = UsedSecret {
                uid: self.uid.clone(),
                namespace: self.namespace.clone(),
                name: self.name.clone(),
                credential_hash: hash(&auth),
            };
            PullLogin {
                auth,
                owner: Some(LoginOwner::Secret(secret)),
            }
        };
        logins.map(login).collect()
    }
}

/// Upstream's hash of a login: of its JSON as Go writes it.
fn hash(auth: &AuthConfig) -> String {
    let hashed = Hashed {
        username: &auth.username,
        password: &auth.password,
    };
    let mut text = serde_json::to_string(&hashed).unwrap_or_default();
    for (plain, escaped) in [
        ('<', "\\u003c"),
        ('>', "\\u003e"),
        ('&', "\\u0026"),
        ('\u{2028}', "\\u2028"),
        ('\u{2029}', "\\u2029"),
    ] {
        text = text.replace(plain, escaped);
    }
    hex(&Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::configmap_secret::ObjectError;
    use k8s_openapi::api::core::v1::Secret;
    use serde_json::json;

    fn secret(kind: &str, key: &str, text: &str) -> Result<PullSecret, String> {
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "pull", "uid": "u"}, "type": kind,
        }))
        .unwrap();
        let data = [(key.to_owned(), k8s_openapi::ByteString(text.into()))];
        let secret = Secret {
            data: Some(data.into()),
            ..secret
        };
        let key = ObjectKey {
            kind: ObjectKind::Secret,
            namespace: "ns".into(),
            name: "pull".into(),
        };
        PullSecret::of(&key, &secret.into())
    }

    #[test]
    fn both_types_of_secrets_give_logins_and_others_none() {
        let entry = r#"{"r.io": {"username": "u", "password": "p<&>"}}"#;
        let json = format!(r#"{{"auths": {entry}}}"#);
        let new = "kubernetes.io/dockerconfigjson";
        let old = "kubernetes.io/dockercfg";
        for (kind, key, text, users) in [
            (new, ".dockerconfigjson", json.as_str(), 1),
            (old, ".dockercfg", entry, 1),
            ("", ".dockerconfigjson", &json, 1),
            (new, ".dockercfg", entry, 0),
            (old, ".dockerconfigjson", &json, 0),
            ("Opaque", ".dockerconfigjson", &json, 0),
            (new, ".dockerconfigjson", "", 0),
        ] {
            let found = secret(kind, key, text).unwrap();
            assert_eq!(found.lookup("r.io/x").len(), users, "{kind} {key}");
            assert_eq!(found.lookup("other.io/x").len(), 0);
            assert!(!format!("{found:?}").contains("p<&>"));
        }
        let error = secret(new, ".dockerconfigjson", "hunter2").unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_login_is_hashed_as_upstream_hashes_it() {
        let login = AuthConfig {
            username: "u".into(),
            password: "p<&>".into(),
            ..AuthConfig::default()
        };
        let text = r#"{"username":"u","password":"p\u003c\u0026\u003e"}"#;
        assert_eq!(hash(&login), hex(&Sha256::digest(text)));
        assert_eq!(hash(&AuthConfig::default()), hex(&Sha256::digest("{}")));
    }

    #[test]
    fn secrets_that_cannot_be_used_are_named_and_the_others_stay_in_order() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns"},
            "spec": {"containers": [], "imagePullSecrets":
                [{"name": "b"}, {}, {"name": "gone"}, {"name": ""}, {"name": "a"}, {"name": "bad"}]},
        }))
        .unwrap();
        let keys = pull_secret_keys(&pod);
        let names: Vec<_> = keys.iter().map(|key| key.name.as_str()).collect();
        assert_eq!(names, ["b", "gone", "a", "bad"]);
        assert!(keys.iter().all(|key| key.namespace == "ns"));
        let object = |text: &'static str| -> Object {
            let entry = (".dockerconfigjson".to_owned(), text.into());
            [entry].into_iter().collect()
        };
        let look_up = |key: &ObjectKey| {
            let object = match key.name.as_str() {
                "gone" => Err(ObjectError::NotFound(key.clone())),
                "bad" => Ok(object("hunter2")),
                _ => Ok(object("{}")),
            };
            (key.clone(), object.map(Arc::new))
        };
        let (secrets, failed) = pull_secrets(&keys, &keys.iter().map(look_up).collect());
        let names: Vec<_> = secrets.iter().map(|secret| secret.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
        assert_eq!(failed[0].0, "gone");
        assert_eq!(failed[0].1, r#"secret "gone" not found"#);
        assert_eq!(failed[1].0, "bad");
        assert!(!failed[1].1.contains("hunter2"));
    }
}
