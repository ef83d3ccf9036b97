//! Docker's configuration files: `config.json` and its predecessor `.dockercfg`. Pure.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;

use super::auths::{Auths, Login};

/// The format of a docker configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DockerConfigForm {
    /// `config.json`, with the logins in `auths`.
    ConfigJson,
    /// `.dockercfg`, which consists of the logins.
    Dockercfg,
}

#[derive(Deserialize)]
struct ConfigJson {
    auths: Option<BTreeMap<String, Option<DockerConfigEntry>>>,
}

#[derive(Deserialize, Default)]
struct DockerConfigEntry {
    username: Option<String>,
    password: Option<String>,
    auth: Option<String>,
}

/// Parses a file; also returns the entries whose key is not a valid registry URL, which are skipped. As upstream, one
/// unreadable login makes the whole file unusable. The error names the entry and contains none of its data.
pub(super) fn parse(form: DockerConfigForm, bytes: &[u8]) -> Result<(Auths, Vec<String>), String> {
    // Parser errors quote the offending text, which may be a password.
    let broken = |error: serde_json::Error| {
        format!(
            "invalid JSON for a docker configuration (line {}, column {})",
            error.line(),
            error.column()
        )
    };
    let entries = match form {
        DockerConfigForm::ConfigJson => {
            let file: ConfigJson = serde_json::from_slice(bytes).map_err(broken)?;
            file.auths.unwrap_or_default()
        }
        DockerConfigForm::Dockercfg => serde_json::from_slice(bytes).map_err(broken)?,
    };
    let (mut auths, mut skipped) = (Auths::default(), Vec::new());
    for (registry, entry) in entries {
        let login = login(entry.unwrap_or_default())
            .map_err(|problem| format!("the entry {registry:?}: {problem}"))?;
        if !auths.add(&registry, login) {
            skipped.push(format!("the entry {registry:?} is not a valid registry URL"));
        }
    }
    Ok((auths, skipped))
}

fn login(entry: DockerConfigEntry) -> Result<Login, &'static str> {
    let Some(auth) = entry.auth.filter(|auth| !auth.is_empty()) else {
        return Ok(Login {
            username: entry.username.unwrap_or_default(),
            password: entry.password.unwrap_or_default(),
            account: None,
        });
    };
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let decoded = GeneralPurpose::new(&STANDARD, config)
        .decode(auth.trim().replace(['\r', '\n'], ""))
        .map_err(|_| "auth is not base64")?;
    let text = String::from_utf8(decoded).map_err(|_| "auth is not valid UTF-8")?;
    let (username, password) =
        text.split_once(':').ok_or("auth is not base64 of username:password")?;
    Ok(Login { username: username.to_owned(), password: password.to_owned(), account: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(auths: &Auths, image: &str) -> Vec<(String, String)> {
        let found = auths.lookup(image).into_iter();
        found.map(|login| (login.username, login.password)).collect()
    }

    #[test]
    fn both_forms_and_both_ways_to_spell_a_login_are_read() {
        // printf 'user:pass:word' | base64
        let json = r#"{"auths": {
            "a.io": {"auth": "dXNlcjpwYXNzOndvcmQ="},
            "b.io": {"auth": "dXNlcjpwYXNzOndvcmQ"},
            "c.io": {"username": "u", "password": "p", "email": "e", "identitytoken": "t"},
            "d.io": {"username": "u", "password": "p", "auth": ""},
            "e.io": null,
            "a b:c": {"username": "u"}
        }, "credsStore": "desktop"}"#;
        let (auths, skipped) = parse(DockerConfigForm::ConfigJson, json.as_bytes()).unwrap();
        assert_eq!(skipped, ["the entry \"a b:c\" is not a valid registry URL"]);
        let both = ("user".to_owned(), "pass:word".to_owned());
        assert_eq!(pair(&auths, "a.io/x"), std::slice::from_ref(&both));
        assert_eq!(pair(&auths, "b.io/x"), std::slice::from_ref(&both));
        assert_eq!(pair(&auths, "c.io/x"), [("u".into(), "p".into())]);
        assert_eq!(pair(&auths, "d.io/x"), [("u".into(), "p".into())]);
        assert_eq!(pair(&auths, "e.io/x"), [(String::new(), String::new())]);
        let old = r#"{"a.io": {"auth": "dXNlcjpwYXNzOndvcmQ="}}"#;
        let (auths, _) = parse(DockerConfigForm::Dockercfg, old.as_bytes()).unwrap();
        assert_eq!(pair(&auths, "a.io/x"), [both]);
        let (none, _) = parse(DockerConfigForm::ConfigJson, b"{}").unwrap();
        assert!(pair(&none, "a.io/x").is_empty());
    }

    #[test]
    fn one_bad_entry_spoils_the_file_and_the_error_repeats_no_secret() {
        let table = [
            (r#"{"auths": {"a.io": {"auth": "%hunter2"}}}"#, "base64"),
            (r#"{"auths": {"a.io": {"auth": "aHVudGVyMg=="}}}"#, "username:password"),
            (r#"{"auths": {"a.io": {"password": ["hunter2"]}}}"#, "line 1"),
            (r#"{"auths": {"a.io": "hunter2"}}"#, "line 1"),
            ("hunter2", "line 1"),
            ("", "invalid JSON"),
        ];
        for (text, expected) in table {
            let error = parse(DockerConfigForm::ConfigJson, text.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
