//! Removes a wrong value from a document, so that the rest can be read. Pure.

use crate::config::document::{Node, Value};
use serde_json::{Map, Value as Json};

/// Removes the value at `path`, if that is possible: a key is removed; an item of a list is replaced by an
/// empty one, so that the others keep their indices. False when nothing was changed.
pub(super) fn blank(node: &mut Node, path: &str) -> bool {
    match &mut node.value {
        Value::Map(entries) => {
            let keys = entries.iter().enumerate();
            let fits = keys.filter_map(|(at, entry)| Some((at, rest_after(path, &entry.key)?)));
            let Some((at, rest)) = fits.min_by_key(|(_, rest)| rest.len()) else {
                return false;
            };
            if rest.is_empty() {
                entries.remove(at);
                return true;
            }
            let entry = entries.get_mut(at);
            entry.is_some_and(|entry| blank(&mut entry.node, rest))
        }
        Value::List(items) => {
            let Some((index, rest)) = path.strip_prefix('[').and_then(|p| p.split_once(']')) else {
                return false;
            };
            let index = index.parse::<usize>().ok();
            let Some(item) = index.and_then(|index| items.get_mut(index)) else {
                return false;
            };
            match rest.strip_prefix('.').unwrap_or(rest) {
                "" => empty(item),
                rest => blank(item, rest),
            }
        }
        _ => false,
    }
}

fn rest_after<'p>(path: &'p str, key: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(key)?;
    match rest.strip_prefix('.') {
        Some(rest) => Some(rest),
        None => (rest.is_empty() || rest.starts_with('[')).then_some(rest),
    }
}

/// An empty mapping first, because most items are objects, then an empty text.
fn empty(item: &mut Node) -> bool {
    item.value = match &item.value {
        Value::Map(entries) if entries.is_empty() => Value::String(String::new()),
        Value::String(text) if text.is_empty() => return false,
        _ => Value::Map(Vec::new()),
    };
    true
}

/// The tree as JSON, which is valid YAML.
pub(super) fn json(node: &Node) -> Json {
    match &node.value {
        Value::Null | Value::Rejected => Json::Null,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
            (Ok(value), _) => value.into(),
            (_, Ok(value)) => value.into(),
            _ => Json::Null,
        },
        Value::Float(value) => (*value).into(),
        Value::String(text) => text.clone().into(),
        Value::List(items) => items.iter().map(json).collect(),
        Value::Map(entries) => {
            let entry =
                |entry: &crate::config::document::Entry| (entry.key.clone(), json(&entry.node));
            Json::Object(entries.iter().map(entry).collect::<Map<_, _>>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::document::parse;

    fn tree() -> Node {
        let text = "a: {b.c: 1, b: {c: 2}}\nl: [x, {k: 3}, z]\nn: 1.5\nt: true\nz: ~\n";
        parse(&"f".into(), text).unwrap()
    }

    #[test]
    fn a_value_is_taken_out_by_its_path() {
        for (path, expected) in [
            (
                "a.b.c",
                r#"{"a":{"b":{"c":2}},"l":["x",{"k":3},"z"],"n":1.5,"t":true,"z":null}"#,
            ),
            (
                "a.b",
                r#"{"a":{"b.c":1},"l":["x",{"k":3},"z"],"n":1.5,"t":true,"z":null}"#,
            ),
            (
                "l[1].k",
                r#"{"a":{"b":{"c":2},"b.c":1},"l":["x",{},"z"],"n":1.5,"t":true,"z":null}"#,
            ),
            (
                "l[0]",
                r#"{"a":{"b":{"c":2},"b.c":1},"l":[{},{"k":3},"z"],"n":1.5,"t":true,"z":null}"#,
            ),
        ] {
            let mut tree = tree();
            assert!(blank(&mut tree, path), "{path}");
            assert_eq!(json(&tree).to_string(), expected, "{path}");
        }
    }

    #[test]
    fn a_scalar_is_read_from_json_as_it_was_from_yaml() {
        let scalars = [
            "y",
            "yes",
            "on",
            "off",
            "True",
            "true",
            "~",
            "null",
            "1",
            "-1",
            "0x10",
            "010",
            "0o10",
            "1.5",
            "1e3",
            ".5",
            ".inf",
            "2026-01-01",
            "1_000",
            "+1",
            "'y'",
            "\"1\"",
            "a b",
            "=",
            "18446744073709551615",
            "99999999999999999999999",
        ];
        let read = |bytes: &[u8]| {
            let decoded = crate::model::validation::decode_pod(bytes);
            decoded
                .map(|decoded| decoded.value)
                .map_err(|error| error.field)
        };
        for scalar in scalars {
            for field in ["args: [", "terminationMessagePath: [", "tty: ["] {
                let (open, close) = match field {
                    "args: [" => ("args: [", "]"),
                    other => (other.trim_end_matches('['), ""),
                };
                let text = format!(
                    "apiVersion: v1\nkind: Pod\nspec: {{containers: [{{name: c, {open}{scalar}{close}}}]}}"
                );
                // A scalar has no children.
                let Ok(tree) = parse(&"f".into(), &text) else {
                    continue;
                };
                let again = json(&tree).to_string();
                assert_eq!(
                    read(again.as_bytes()),
                    read(text.as_bytes()),
                    "{text}\n{again}"
                );
            }
        }
    }

    #[test]
    fn missing_values_cannot_be_removed_and_an_item_only_twice() {
        let mut tree = tree();
        for path in ["", "x", "a.x", "l[9]", "l[x]", "n.m", "l.k"] {
            assert!(!blank(&mut tree, path), "{path}");
        }
        let goes: Vec<_> = (0..4).map(|_| blank(&mut tree, "l[0]")).collect();
        assert_eq!(goes, [true, true, false, false]);
    }
}
