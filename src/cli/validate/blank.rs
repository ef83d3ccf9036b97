//! Removes an invalid value from a document, so that the rest can be decoded. Pure.

use crate::base::document::{DocumentNode, DocumentValue};

/// Removes the value at `path` if possible: a key is removed; a list item is replaced by an empty one, so that the
/// other items keep their indices. False if nothing was changed.
pub(super) fn blank(tree: &mut DocumentNode, path: &str) -> bool {
    let (steps, rest) = tree.steps_along(path);
    let Some((last, parents)) = steps.split_last().filter(|_| rest.is_empty()) else {
        return false;
    };
    match tree.at_mut(parents).map(|parent| &mut parent.value) {
        Some(DocumentValue::Map(entries)) if *last < entries.len() => {
            entries.remove(*last);
            true
        }
        Some(DocumentValue::List(items)) => items.get_mut(*last).is_some_and(empty),
        _ => false,
    }
}

/// Replaces a value by an empty mapping, because most items are objects; if it is one, by an empty string.
fn empty(item: &mut DocumentNode) -> bool {
    item.value = match &item.value {
        DocumentValue::Map(entries) if entries.is_empty() => DocumentValue::String(String::new()),
        DocumentValue::String(text) if text.is_empty() => return false,
        _ => DocumentValue::Map(Vec::new()),
    };
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::validation::manifest_tree;

    fn tree() -> DocumentNode {
        let text = "a: {b.c: 1, b: {c: 2}}\nl: [x, {k: 3}, z]\nm: 1.5\nt: true\nz: ~\n";
        manifest_tree(text.as_bytes()).unwrap()
    }

    fn json(tree: &DocumentNode) -> String {
        String::from_utf8(tree.to_json()).unwrap().replace('\n', "")
    }

    #[test]
    fn a_value_is_taken_out_by_its_path() {
        for (path, expected) in [
            ("a.b.c", r#"{"a":{"b":{"c":2}},"l":["x",{"k":3},"z"],"m":1.5,"t":true,"z":null}"#),
            ("a.b", r#"{"a":{"b.c":1},"l":["x",{"k":3},"z"],"m":1.5,"t":true,"z":null}"#),
            ("l[1].k", r#"{"a":{"b.c":1,"b":{"c":2}},"l":["x",{},"z"],"m":1.5,"t":true,"z":null}"#),
            (
                "l[0]",
                r#"{"a":{"b.c":1,"b":{"c":2}},"l":[{},{"k":3},"z"],"m":1.5,"t":true,"z":null}"#,
            ),
        ] {
            let mut tree = tree();
            assert!(blank(&mut tree, path), "{path}");
            assert_eq!(json(&tree), expected, "{path}");
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
            decoded.map(|decoded| decoded.value).map_err(|error| error.field)
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
                let Ok(tree) = manifest_tree(text.as_bytes()) else {
                    continue;
                };
                let again = json(&tree);
                assert_eq!(read(again.as_bytes()), read(text.as_bytes()), "{text}\n{again}");
            }
        }
    }

    #[test]
    fn missing_values_cannot_be_removed_and_an_item_only_twice() {
        let mut tree = tree();
        for path in ["", "x", "a.x", "l[9]", "l[x]", "m.m", "l.k"] {
            assert!(!blank(&mut tree, path), "{path}");
        }
        let goes: Vec<_> = (0..4).map(|_| blank(&mut tree, "l[0]")).collect();
        assert_eq!(goes, [true, true, false, false]);
    }
}
