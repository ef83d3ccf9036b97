//! Pod fields of the downward API (`fieldRef`). Pure.

use super::{Pod, PodExt};
use crate::base::go_quote;
use std::collections::BTreeMap;

/// The value of a field: `metadata.name`, `.namespace`, `.uid`, `.labels`, `.annotations`, or one entry of the last
/// two (`metadata.labels['key']`; empty if missing). `None` for other paths (upstream's
/// `fieldpath.ExtractFieldPathAsString`).
pub fn pod_field(pod: &Pod, path: &str) -> Option<String> {
    let meta = &pod.metadata;
    if let Some((map, key)) = subscript(path) {
        let values = match map {
            "metadata.labels" => meta.labels.as_ref(),
            "metadata.annotations" => meta.annotations.as_ref(),
            _ => return None,
        };
        let value = values.and_then(|values| values.get(key));
        return Some(value.cloned().unwrap_or_default());
    }
    Some(match path {
        "metadata.name" => pod.name().to_string(),
        "metadata.namespace" => pod.namespace().to_string(),
        "metadata.uid" => pod.uid().to_string(),
        "metadata.labels" => lines(meta.labels.as_ref()),
        "metadata.annotations" => lines(meta.annotations.as_ref()),
        _ => return None,
    })
}

/// Splits `metadata.labels['key']`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

/// `key="value"` per line, sorted by key.
fn lines(values: Option<&BTreeMap<String, String>>) -> String {
    let entries = values.into_iter().flatten();
    let lines: Vec<String> =
        entries.map(|(key, value)| format!("{key}={}", go_quote(value))).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_path_and_maps_are_lines_in_order() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".into());
        pod.metadata.namespace = Some("shop".into());
        pod.metadata.uid = Some("u-1".into());
        let labels = [("b", "2"), ("a", "1")].map(|(k, v)| (k.to_string(), v.to_string()));
        pod.metadata.labels = Some(labels.into());
        pod.metadata.annotations = Some([("x/y.z".into(), "two\n\"lines\"".into())].into());
        for (path, text) in [
            ("metadata.name", Some("web")),
            ("metadata.namespace", Some("shop")),
            ("metadata.uid", Some("u-1")),
            ("metadata.labels", Some("a=\"1\"\nb=\"2\"")),
            ("metadata.annotations", Some(r#"x/y.z="two\n\"lines\"""#)),
            ("metadata.labels['a']", Some("1")),
            ("metadata.labels['none']", Some("")),
            ("metadata.annotations['x/y.z']", Some("two\n\"lines\"")),
            ("metadata.finalizers", None),
            ("metadata.name['x']", None),
            ("metadata.labels['x", None),
            ("spec.nodeName", None),
            ("", None),
        ] {
            assert_eq!(pod_field(&pod, path).as_deref(), text, "{path}");
        }
        assert_eq!(pod_field(&Pod::default(), "metadata.labels").unwrap(), "");
    }
}
