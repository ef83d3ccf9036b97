//! Image pull secrets of pods. Pure.

use super::auths::Auths;
use super::docker_config::{DockerConfigForm, parse};
use super::login::{ImagePullSecret, LoginOwner, PullLogin};
use crate::apiserver::configmap_secret::{
    ConfigMapsAndSecrets, ObjectData, ObjectError, ObjectKey, ObjectKind,
};
use crate::base::hex;
use crate::cri::v1::{AuthConfig, Image};
use crate::model::{Pod, PodExt as _};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::ops::Deref;
use std::sync::Arc;

/// The logins of one image pull secret.
#[derive(Clone, Debug)]
pub struct PullSecret {
    uid: String,
    namespace: String,
    name: String,
    auths: Auths,
}

/// The image pull secrets of a pod, in the order of its spec. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PullSecrets {
    secrets: Arc<[PullSecret]>,
    /// References of images that the pod may use although one of its secrets is not synced yet.
    accepted: Arc<[Arc<str>]>,
    /// The names of secrets that cannot be used, with the reasons. Reported by a pull, because an image that is present
    /// needs none.
    unusable: Arc<[(String, String)]>,
}

impl Deref for PullSecrets {
    type Target = [PullSecret];

    fn deref(&self) -> &[PullSecret] {
        &self.secrets
    }
}

impl PullSecrets {
    /// The names of secrets that cannot be used, with the reasons.
    pub(in crate::images) fn unusable(&self) -> &[(String, String)] {
        &self.unusable
    }

    /// Whether the pod may use this image without verification of its secrets.
    pub(in crate::images) fn allows_without_verification(&self, image: &Image) -> bool {
        let mut accepted = self.accepted.iter().map(|reference| &**reference);
        accepted.any(|one| one == image.id || image.repo_digests.iter().any(|digest| digest == one))
    }
}

/// The `imagePullSecrets` of a pod, in spec order. Entries without a name are ignored, because the API allows them.
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

/// The pull secrets for these keys. `ran` has the references of images that the pod's containers already ran: the pod
/// may use these while the API server has not returned a secret, for example after a restart of the kubelet while the API
/// server is unavailable.
pub fn pull_secrets(
    keys: &[ObjectKey],
    found: &ConfigMapsAndSecrets,
    ran: impl Iterator<Item = Arc<str>>,
) -> PullSecrets {
    let (mut secrets, mut unusable) = (Vec::new(), Vec::new());
    let unsynced = |key| matches!(found.get(key), Some(Err(ObjectError::Unsynced { .. })));
    let accepted = if keys.iter().any(unsynced) {
        ran.filter(|reference| !reference.is_empty()).collect()
    } else {
        Arc::default()
    };
    for key in keys {
        let secret = match found.get(key) {
            Some(Ok(object)) => PullSecret::of(key, object),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("it was not looked up".to_owned()),
        };
        match secret {
            Ok(secret) => secrets.push(secret),
            Err(error) => unusable.push((key.name.clone(), error)),
        }
    }
    PullSecrets { secrets: secrets.into(), accepted, unusable: unusable.into() }
}

/// The JSON form of a login that upstream hashes; the order of fields matters.
#[derive(Serialize)]
struct Hashed<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    password: &'a str,
}

impl PullSecret {
    /// The logins of a secret; none for a secret of another type.
    ///
    /// # Errors
    /// The reason that the secret cannot be parsed; contains none of its data.
    pub fn of(key: &ObjectKey, object: &ObjectData) -> Result<Self, String> {
        let forms = [
            (DockerConfigForm::ConfigJson, "kubernetes.io/dockerconfigjson", ".dockerconfigjson"),
            (DockerConfigForm::Dockercfg, "kubernetes.io/dockercfg", ".dockercfg"),
        ];
        // A secret that is read from a file has no type.
        let is_type = |expected| ["", expected].contains(&object.secret_type());
        let mut forms = forms.into_iter().filter(|(_, expected, _)| is_type(*expected));
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

    /// The logins for an image; `repo` is the full name without tag.
    pub(in crate::images) fn lookup(&self, repo: &str) -> Vec<PullLogin> {
        let logins = self.auths.lookup(repo).into_iter();
        let login = |login: super::auths::Login| {
            let auth = AuthConfig::from(login);
            let secret = ImagePullSecret {
                uid: self.uid.clone(),
                namespace: self.namespace.clone(),
                name: self.name.clone(),
                credential_hash: hash(&auth),
            };
            PullLogin { auth, owner: Some(LoginOwner::Secret(secret)) }
        };
        logins.map(login).collect()
    }
}

/// Upstream's hash of a login: that of its JSON as Go encodes it.
fn hash(auth: &AuthConfig) -> String {
    let hashed = Hashed { username: &auth.username, password: &auth.password };
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

    impl<const N: usize> From<[PullSecret; N]> for PullSecrets {
        fn from(secrets: [PullSecret; N]) -> Self {
            Self { secrets: secrets.into(), ..Self::default() }
        }
    }

    fn secret(kind: &str, key: &str, text: &str) -> Result<PullSecret, String> {
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "pull", "uid": "u"}, "type": kind,
        }))
        .unwrap();
        let data = [(key.to_owned(), k8s_openapi::ByteString(text.into()))];
        let secret = Secret { data: Some(data.into()), ..secret };
        let key =
            ObjectKey { kind: ObjectKind::Secret, namespace: "ns".into(), name: "pull".into() };
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
        let login =
            AuthConfig { username: "u".into(), password: "p<&>".into(), ..AuthConfig::default() };
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
        let object = |text: &'static str| -> ObjectData {
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
        let ran = || ["sha256:ran".into(), "r.io/x@sha256:ran".into()].into_iter();
        let mut found: ConfigMapsAndSecrets = keys.iter().map(look_up).collect();
        let secrets = pull_secrets(&keys, &found, ran());
        let unusable = secrets.unusable();
        let names: Vec<_> = secrets.iter().map(|secret| secret.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
        assert_eq!(unusable[0].0, "gone");
        assert_eq!(unusable[0].1, r#"secret "gone" not found"#);
        assert_eq!(unusable[1].0, "bad");
        assert!(!unusable[1].1.contains("hunter2"));
        // Images that ran are accepted only while a secret is not known.
        let image = |id: &str, digest: &str| Image {
            id: id.to_owned(),
            repo_digests: vec![digest.to_owned()],
            ..Image::default()
        };
        let here = image("sha256:ran", "r.io/y@sha256:other");
        assert!(!secrets.allows_without_verification(&here));
        let unsynced = ObjectError::Unsynced { key: keys[1].clone(), reason: "away".into() };
        found.insert(keys[1].clone(), Err(unsynced));
        let secrets = pull_secrets(&keys, &found, ran());
        for (image, accepted) in [
            (here, true),
            (image("sha256:other", "r.io/x@sha256:ran"), true),
            (image("sha256:other", "r.io/x@sha256:other"), false),
        ] {
            assert_eq!(secrets.allows_without_verification(&image), accepted, "{image:?}");
        }
    }
}
