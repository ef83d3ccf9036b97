//! The effective settings without secrets, for `/configz` and `/flagz`.

use serde_json::Value;

use super::flags::{Flags, flag_text, in_force, value_of_field};
use super::kubelet_configuration::KubeletConfiguration;
use crate::base::SecretUrl;

/// Replaces a value that may be a credential.
const MASKED: &str = "<masked>";

/// The configuration as JSON. Credentials in `staticPodURL` and its headers are masked.
pub(super) fn configuration(effective: &KubeletConfiguration) -> Value {
    let mut shown = serde_json::to_value(effective).unwrap_or_default();
    if let Some(url) = shown.get_mut("staticPodURL") {
        let masked = effective.static_pod_url.as_ref().map(SecretUrl::to_string);
        *url = masked.unwrap_or_default().into();
    }
    let headers = shown.get_mut("staticPodURLHeader");
    for values in headers.and_then(Value::as_object_mut).into_iter().flatten() {
        *values.1 = Value::from(vec![MASKED]);
    }
    shown
}

/// All flags with an effect and their values; flags that mirror a field have the field's value.
pub(super) fn flags(flags: &Flags, configuration: &Value) -> Vec<(String, String)> {
    let process = serde_json::to_value(flags).unwrap_or_default();
    let mut shown: Vec<_> = in_force()
        .map(|(name, field)| {
            let value = match field {
                Some(path) => value_of_field(configuration, path),
                None => process.get(name).map(flag_text).unwrap_or_default(),
            };
            (name.to_owned(), value)
        })
        .collect();
    shown.sort();
    shown
}

/// The flags that are no fields of the file and that have another value than without a command line.
pub fn given_flags(flags: &Flags) -> Vec<(String, String)> {
    let values = |flags: &Flags| serde_json::to_value(flags).unwrap_or_default();
    let (given, absent) = (values(flags), values(&Flags::default()));
    let names = in_force().filter(|(_, field)| field.is_none());
    let values = names.filter_map(|(name, _)| {
        let value = given.get(name).filter(|value| !value.is_null())?;
        let is_given = absent.get(name) != Some(value);
        is_given.then(|| (name.to_owned(), flag_text(value)))
    });
    values.collect()
}

/// The flags that were given, with their values, as they can be typed; `redacted` has the values of all flags without
/// secrets.
pub fn command_line(flags: &Flags, redacted: &[(String, String)]) -> String {
    let own = given_flags(flags);
    let is_given = |name: &str| {
        own.iter().any(|(given, _)| given == name)
            || flags.given_fields().any(|given| given == name)
    };
    let given = redacted.iter().filter(|(name, _)| is_given(name));
    let texts: Vec<_> = given.map(|(name, value)| format!("--{name}={value}")).collect();
    texts.join(" ")
}
