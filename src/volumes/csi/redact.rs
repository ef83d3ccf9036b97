//! Removes secrets from the messages of drivers, which may quote their requests. Pure.

use serde_json::Value;
use std::collections::BTreeMap;

/// Key of the volume context, or of the secrets, under which a driver gets tokens of the pod's service account.
pub const SERVICE_ACCOUNT_TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// What replaces a secret; upstream's text.
const STRIPPED: &str = "***stripped***";
/// Shorter values protect nothing, and replacing them would make messages unreadable.
const MIN_LENGTH: usize = 4;
/// Maximum length of a driver's message in bytes.
const MAX_MESSAGE: usize = 1024;

/// The values of a request that must not be shown.
#[derive(Default)]
pub(super) struct SensitiveValues(Vec<String>);

impl SensitiveValues {
    /// The secrets of a request, and the tokens in its volume context.
    pub(super) fn of(
        secrets: &BTreeMap<String, String>,
        volume_context: Option<&BTreeMap<String, String>>,
    ) -> Self {
        let mut values = Vec::new();
        // A driver may quote one line of a key file, or a value without its final line break.
        let lines = secrets.values().flat_map(|secret| secret.lines());
        values.extend(lines.map(str::trim).map(str::to_owned));
        for map in [Some(secrets), volume_context].into_iter().flatten() {
            if let Some(tokens) = map.get(SERVICE_ACCOUNT_TOKENS) {
                values.push(tokens.clone());
                values.extend(tokens_of(tokens));
            }
        }
        values.retain(|value| value.len() >= MIN_LENGTH);
        // A secret that is part of another one must not break up the longer one.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self(values)
    }

    /// A driver's message without secrets, cut to a maximum length.
    pub(super) fn message(&self, message: &str) -> String {
        let mut text = message.to_owned();
        for value in &self.0 {
            if text.contains(value.as_str()) {
                text = text.replace(value.as_str(), STRIPPED);
            }
        }
        // Only now: a cut secret would not be found.
        text.truncate(text.floor_char_boundary(MAX_MESSAGE));
        text
    }
}

/// The tokens in the JSON object of audiences.
fn tokens_of(json: &str) -> Vec<String> {
    let audiences = match serde_json::from_str(json) {
        Ok(Value::Object(audiences)) => audiences,
        _ => return Vec::new(),
    };
    let tokens = audiences.values().filter_map(|audience| {
        let token = audience.get("token")?.as_str()?;
        Some(token.to_owned())
    });
    tokens.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        entries.iter().map(owned).collect()
    }

    #[test]
    fn secrets_and_tokens_are_replaced_wherever_a_driver_quotes_them() {
        let secrets = map(&[("password", "hunter22\n"), ("key", "BEGIN\nabcdefgh\n")]);
        let tokens = r#"{"vault":{"token":"eyJhbGc","expirationTimestamp":"2026-01-01"}}"#;
        let context = map(&[(SERVICE_ACCOUNT_TOKENS, tokens), ("share", "public")]);
        let values = SensitiveValues::of(&secrets, Some(&context));
        for (message, shown) in [
            ("login with hunter22 failed", "login with ***stripped*** failed"),
            ("line abcdefgh", "line ***stripped***"),
            ("token eyJhbGc rejected", "token ***stripped*** rejected"),
            ("share public is away", "share public is away"),
            (tokens, "***stripped***"),
        ] {
            assert_eq!(values.message(message), shown);
        }
    }

    #[test]
    fn tokens_that_are_secrets_are_replaced() {
        let secrets = map(&[(SERVICE_ACCOUNT_TOKENS, r#"{"":{"token":"abc.def"}}"#)]);
        let values = SensitiveValues::of(&secrets, None);
        assert_eq!(values.message("bad abc.def"), "bad ***stripped***");
    }

    #[test]
    fn a_secret_within_another_one_does_not_reveal_the_rest() {
        let secrets = map(&[("a", "open"), ("b", "opensesame")]);
        let values = SensitiveValues::of(&secrets, None);
        assert_eq!(values.message("opensesame open"), "***stripped*** ***stripped***");
    }

    #[test]
    fn short_values_stay_and_long_messages_are_cut_at_a_character() {
        let values = SensitiveValues::of(&map(&[("flag", "1")]), None);
        assert_eq!(values.message("1 of 10"), "1 of 10");
        let cut = values.message(&format!("x{}", "é".repeat(1024)));
        assert_eq!(cut.len(), 1023);
        assert!(cut.ends_with('é'));
    }
}
