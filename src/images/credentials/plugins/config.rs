//! `CredentialProviderConfig`: the providers, and the images they match.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};

use crate::base::GoDuration;
use crate::host::files::read_head_or_empty;
use crate::images::credentials::matching::RegistryPath;
use crate::model::validation::decode_secret;

/// Maximum size of a configuration file, in bytes.
const MAX_FILE: usize = 1 << 20;
const KIND: &str = "CredentialProviderConfig";
const GROUP: &str = "kubelet.config.k8s.io";
const VERSIONS: [&str; 3] = ["v1", "v1alpha1", "v1beta1"];
/// The API group of requests and responses; it has the same versions as the configuration.
const PLUGIN_API_GROUP: &str = "credentialprovider.kubelet.k8s.io";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConfigDocument {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    providers: Option<Vec<Provider>>,
}

/// The configuration of one provider.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Provider {
    /// The executable's file name.
    pub(super) name: String,
    /// Image patterns.
    #[serde(deserialize_with = "null_as_default")]
    pub(super) match_images: Vec<String>,
    /// Lifetime of a response that has none of its own. Validation requires it.
    pub(super) default_cache_duration: Option<GoDuration>,
    /// API version of request and response.
    pub(super) api_version: String,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) args: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    pub(super) env: Vec<EnvVar>,
    /// What the provider receives about the service account of a pod; `None` for nothing.
    pub(super) token_attributes: Option<TokenAttributes>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EnvVar {
    pub(super) name: String,
    pub(super) value: String,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct TokenAttributes {
    pub(super) service_account_token_audience: String,
    pub(super) cache_type: String,
    /// The provider applies only to pods that have a service account. Validation requires the field.
    pub(super) require_service_account: Option<bool>,
    /// Annotations without which the provider does not apply to a service account.
    #[serde(deserialize_with = "null_as_default")]
    pub(super) required_service_account_annotation_keys: Vec<String>,
    /// Annotations that are passed if the service account has them.
    #[serde(deserialize_with = "null_as_default")]
    pub(super) optional_service_account_annotation_keys: Vec<String>,
}

impl TokenAttributes {
    /// Whether a response is cached for the token, not for the service account.
    pub(super) fn is_cached_by_token(&self) -> bool {
        self.cache_type == "Token"
    }
}

fn null_as_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads a file, or all `*.json`, `*.yaml` and `*.yml` of a directory in the order of their names, and validates them
/// together; `account_tokens` is whether `tokenAttributes` may be used. Also returns a hash of the files, which a
/// metric exposes. Blocking.
pub(super) fn read(path: &Path, account_tokens: bool) -> anyhow::Result<(Vec<Provider>, String)> {
    let mut hash = Sha256::new();
    let (mut providers, mut problems) = (Vec::new(), Vec::new());
    for file in files(path)? {
        let path_text = file.display().to_string();
        let bytes = read_head_or_empty(&file, MAX_FILE + 1)
            .with_context(|| format!("cannot read {path_text}"))?;
        anyhow::ensure!(bytes.len() <= MAX_FILE, "{path_text} is longer than {MAX_FILE} bytes");
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(&bytes);
        let text =
            String::from_utf8(bytes).with_context(|| format!("{path_text} is not valid UTF-8"))?;
        for provider in decode(&path_text, &text)? {
            let field = format!("{path_text}: providers[{}]", providers.len());
            providers.push((field, provider));
        }
    }
    let mut names = HashSet::new();
    for (field, provider) in &providers {
        let found = check(provider, account_tokens);
        problems.extend(found.into_iter().map(|what| format!("{field}.{what}")));
        if !names.insert(&provider.name) {
            problems.push(format!("{field}.name: Duplicate value: {:?}", provider.name));
        }
    }
    if providers.is_empty() {
        problems.push("providers: Required value: at least 1 item in plugins is required".into());
    }
    anyhow::ensure!(problems.is_empty(), "{}", problems.join("; "));
    let providers = providers.into_iter().map(|(_, provider)| provider).collect();
    Ok((providers, format!("sha256:{}", crate::base::hex(&hash.finalize()))))
}

fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let path_text = path.display();
    let metadata = path.metadata().with_context(|| format!("unable to access path {path_text}"))?;
    if !metadata.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut files = Vec::new();
    let entries = path.read_dir();
    for entry in entries.with_context(|| format!("unable to read directory {path_text}"))? {
        let file = entry.with_context(|| format!("unable to read directory {path_text}"))?.path();
        let extension = file.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("json" | "yaml" | "yml")) && !file.is_dir() {
            files.push(file);
        }
    }
    files.sort();
    anyhow::ensure!(!files.is_empty(), "no configuration files found in directory {path_text}");
    Ok(files)
}

fn decode(path: &str, text: &str) -> anyhow::Result<Vec<Provider>> {
    let document: ConfigDocument = decode_secret(text).with_context(|| path.to_owned())?;
    anyhow::ensure!(document.kind == KIND, "{path}: kind: {:?} is not {KIND}", document.kind);
    let (group, version) = document.api_version.split_once('/').unwrap_or_default();
    anyhow::ensure!(
        group == GROUP && VERSIONS.contains(&version),
        "{path}: apiVersion: {:?} is not {GROUP}/v1",
        document.api_version
    );
    Ok(document.providers.unwrap_or_default())
}

/// The validation errors of one provider, with their fields. Pure.
fn check(provider: &Provider, account_tokens: bool) -> Vec<String> {
    let mut found = Vec::new();
    let name = &provider.name;
    let mut bad_name =
        |what| found.push(format!("name: Invalid value: {name:?}: provider name {what}"));
    match name.as_str() {
        "" => bad_name("cannot be empty"),
        "." => bad_name("cannot be '.'"),
        ".." => bad_name("cannot be '..'"),
        name if name.contains('/') => bad_name("cannot contain '/'"),
        name if name.contains(' ') => bad_name("cannot contain spaces"),
        _ => {}
    }
    let version = provider.api_version.strip_prefix(PLUGIN_API_GROUP);
    let version = version.and_then(|rest| rest.strip_prefix('/'));
    match version {
        Some(version) if VERSIONS.contains(&version) => {}
        _ if provider.api_version.is_empty() => found.push("apiVersion: Required value".into()),
        _ => found.push(format!(
            "apiVersion: Unsupported value: {:?}: supported values: {}",
            provider.api_version,
            VERSIONS.map(|v| format!("\"{PLUGIN_API_GROUP}/{v}\"")).join(", ")
        )),
    }
    if provider.match_images.is_empty() {
        found
            .push("matchImages: Required value: at least 1 item in matchImages is required".into());
    }
    for image in provider.match_images.iter().filter(|image| RegistryPath::parse(image).is_none()) {
        found.push(format!("matchImages: Invalid value: {image:?}: match image is invalid"));
    }
    match provider.default_cache_duration {
        None => found.push("defaultCacheDuration: Required value".into()),
        Some(duration) if duration.as_nanos() < 0 => found.push(format!(
            "defaultCacheDuration: Invalid value: \"{duration}\": must be greater than or equal to 0"
        )),
        Some(_) => {}
    }
    let has_bad_name = |var: &EnvVar| var.name.is_empty() || var.name.contains(['=', '\0']);
    let env = provider.env.iter();
    for (index, _) in env.enumerate().filter(|(_, var)| has_bad_name(var)) {
        // The entry may be `NAME=VALUE` with a secret value, so it is not repeated.
        found.push(format!(
            "env[{index}].name: Invalid value: not a valid name of an environment variable"
        ));
    }
    if let Some(token) = &provider.token_attributes {
        if !account_tokens {
            found.push("tokenAttributes: Forbidden: tokenAttributes is not supported when KubeletServiceAccountTokenForCredentialProviders feature gate is disabled".into());
        }
        let found_here = check_token(token, version == Some("v1"));
        found.extend(found_here.into_iter().map(|what| format!("tokenAttributes{what}")));
    }
    found
}

fn check_token(token: &TokenAttributes, is_v1: bool) -> Vec<String> {
    let mut found = Vec::new();
    if token.service_account_token_audience.is_empty() {
        found.push(".serviceAccountTokenAudience: Required value".into());
    }
    if token.require_service_account.is_none() {
        found.push(".requireServiceAccount: Required value".into());
    }
    if !is_v1 {
        found.push(format!(
            ": Forbidden: tokenAttributes is only supported for {PLUGIN_API_GROUP}/v1 API version"
        ));
    }
    let required = &token.required_service_account_annotation_keys;
    let optional = &token.optional_service_account_annotation_keys;
    if token.require_service_account == Some(false) && !required.is_empty() {
        found.push(".requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set".into());
    }
    for (field, keys) in [("required", required), ("optional", optional)] {
        let field = format!(".{field}ServiceAccountAnnotationKeys");
        let mut seen = HashSet::new();
        for key in keys {
            if !seen.insert(key) {
                found.push(format!("{field}: Duplicate value: {key:?}"));
            }
        }
    }
    if required.iter().any(|key| optional.contains(key)) {
        found.push(": Invalid value: annotation keys cannot be both required and optional".into());
    }
    match token.cache_type.as_str() {
        "ServiceAccount" | "Token" => {}
        "" => found.push(".cacheType: Required value: cacheType is required to be set when tokenAttributes is specified. Supported values are: ServiceAccount, Token".into()),
        other => found.push(format!(
            ".cacheType: Unsupported value: {other:?}: supported values: \"ServiceAccount\", \"Token\""
        )),
    }
    found
}

#[cfg(test)]
mod tests;
