//! Writes a configuration as YAML with comments, in the order of the format. Pure.

use crate::config::FieldSpec;
use crate::config::kubelet_configuration::fields_of;
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// The type of the whole file.
const ROOT: &str = "KubeletConfiguration";
const INDENT: usize = 2;

/// The comments of a configuration.
pub(super) trait Comments {
    /// Lines above a field.
    fn above(&self, field: &FieldSpec) -> &'static [&'static str];
    /// A remark beside the value at this path of keys.
    fn beside(&self, path: &[&str]) -> Option<String>;
    /// Whether fields without a value are shown, too.
    fn shows_absent(&self) -> bool;
}

/// Formats a configuration, which is a JSON object.
pub(super) fn yaml(configuration: &Value, comments: &dyn Comments) -> String {
    let mut writer = Writer { out: String::new(), comments };
    if let (Value::Object(values), Some(fields)) = (configuration, fields_of(ROOT)) {
        writer.section(&mut Vec::new(), fields, values);
    }
    writer.out
}

struct Writer<'a> {
    out: String,
    comments: &'a dyn Comments,
}

impl<'a> Writer<'a> {
    fn section(
        &mut self,
        path: &mut Vec<&'a str>,
        fields: &'static [FieldSpec],
        values: &'a Map<String, Value>,
    ) {
        for field in fields {
            let value = values.get(field.key);
            if value.is_none() && !self.comments.shows_absent() {
                continue;
            }
            for line in self.comments.above(field) {
                self.line(path.len(), &format!("#{line}"));
            }
            match value {
                Some(value) => self.entry(path, field.key, value, fields_of(field.type_name)),
                None => self.line(path.len(), &format!("#{}:", field.key)),
            }
        }
    }

    fn entry(
        &mut self,
        path: &mut Vec<&'a str>,
        key: &'a str,
        value: &'a Value,
        section: Option<&'static [FieldSpec]>,
    ) {
        let depth = path.len();
        path.push(key);
        let beside = self.comments.beside(path);
        let beside = beside.map_or_else(String::new, |text| format!("  # {text}"));
        let key = scalar(&Value::from(key));
        match value {
            Value::Object(values) if !values.is_empty() => {
                self.line(depth, &format!("{key}:"));
                match section {
                    Some(fields) => self.section(path, fields, values),
                    None => {
                        for (key, value) in values {
                            self.entry(path, key, value, None);
                        }
                    }
                }
            }
            Value::Array(items) if !items.is_empty() => {
                self.line(depth, &format!("{key}:{beside}"));
                for item in items {
                    // JSON is YAML.
                    let item = match item {
                        Value::Array(_) | Value::Object(_) => item.to_string(),
                        item => scalar(item),
                    };
                    self.line(depth, &format!("- {item}"));
                }
            }
            value => self.line(depth, &format!("{key}: {}{beside}", scalar(value))),
        }
        path.pop();
    }

    fn line(&mut self, depth: usize, text: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.out, "{:indent$}{text}", "", indent = depth * INDENT);
    }
}

/// A value without children. Text is quoted unless every version of YAML reads it as text.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        value => value.to_string(),
    }
}

fn is_plain(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "._/-+".contains(c);
    let begins_well = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    // Durations and quantities: 10Mi, 1m0s.
    let is_amount = text.starts_with(|c: char| c.is_ascii_digit())
        && text.ends_with(|c: char| "sihmMGKT".contains(c))
        && text.chars().all(|c| c.is_ascii_alphanumeric());
    let is_keyword = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"]
        .contains(&text.to_ascii_lowercase().as_str());
    let is_url = text.split_once("://").is_some_and(|(scheme, rest)| {
        scheme.chars().all(|c| c.is_ascii_lowercase()) && rest.chars().all(is_word)
    });
    is_amount || is_url || begins_well && !is_keyword && text.chars().all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_is_quoted_unless_it_cannot_be_read_as_anything_else() {
        for plain in ["cgroupfs", "/var/log", "1m0s", "10Mi", "unix:///run/a.sock", "a.b/c-1"] {
            assert!(is_plain(plain), "{plain}");
        }
        for quoted in [
            "", "yes", "No", "null", "0.0.0.0", "10", "1e3", "0x1F", "a: b", "#a", "a b", "~",
            "-1", "10%", "<masked>", "1:30",
        ] {
            assert!(!is_plain(quoted), "{quoted}");
        }
    }

    struct Remarks;

    impl Comments for Remarks {
        fn above(&self, field: &FieldSpec) -> &'static [&'static str] {
            if field.key == "enableServer" { &[" Whether."] } else { &[] }
        }

        fn beside(&self, path: &[&str]) -> Option<String> {
            (path.last() == Some(&"memory.available")).then(|| path.join("|"))
        }

        fn shows_absent(&self) -> bool {
            false
        }
    }

    #[test]
    fn values_are_in_the_order_of_the_format_with_their_comments() {
        let configuration = json!({
            "evictionHard": {"memory.available": "5%"},
            "enableServer": true,
            "clusterDNS": ["10.0.0.1"],
            "authentication": {"webhook": {"cacheTTL": "2m0s", "enabled": false}},
            "registerWithTaints": [{"key": "a"}],
            "featureGates": {},
        });
        let expected = "\
# Whether.
enableServer: true
authentication:
  webhook:
    enabled: false
    cacheTTL: 2m0s
clusterDNS:
- \"10.0.0.1\"
evictionHard:
  memory.available: \"5%\"  # evictionHard|memory.available
featureGates: {}
registerWithTaints:
- {\"key\":\"a\"}
";
        assert_eq!(yaml(&configuration, &Remarks), expected);
    }
}
