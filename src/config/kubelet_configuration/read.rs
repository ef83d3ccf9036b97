//! Parses one configuration document: syntax, `apiVersion` and `kind`, and strict decoding.

use super::{API_VERSION, KIND, KubeletConfiguration};
use crate::base::document::{DocumentNode, DocumentValue};
use crate::config::decode::decode;
use crate::config::document::{ConfigProblem, Problems, parse};

/// Parses a file or drop-in (`path` is its name in messages) and returns its tree for merging.
///
/// # Errors
/// Invalid syntax, another `apiVersion` or `kind`, or all unknown fields and fields of the wrong type.
pub fn read(path: &str, text: &str) -> Result<DocumentNode, Problems> {
    let tree = parse(path, text).map_err(|problem| Problems(vec![problem]))?;
    header(&tree)?;
    decode::<KubeletConfiguration>(&tree).map_err(Problems)?;
    Ok(tree)
}

/// Checks `apiVersion` and `kind`; the fields of another kind of object are not checked.
fn header(tree: &DocumentNode) -> Result<(), Problems> {
    let about_document = |message: &str| {
        let message = format!("{message}; expected apiVersion: {API_VERSION} and kind: {KIND}");
        ConfigProblem {
            field: String::new(),
            origin: Some(tree.origin.clone()),
            message,
        }
    };
    match tree.value {
        DocumentValue::Map(_) => {}
        DocumentValue::Null => return Err(Problems(vec![about_document("the document is empty")])),
        _ => {
            return Err(Problems(vec![about_document(
                "the document is not a mapping",
            )]));
        }
    }
    let check = |field: &str, expected: &str| match tree.get(field) {
        Some(node) if node.value == DocumentValue::String(expected.to_owned()) => None,
        Some(node) => Some(ConfigProblem {
            field: field.to_owned(),
            origin: Some(node.origin.clone()),
            message: format!("must be {expected:?}, got {}", node.value),
        }),
        None => Some(ConfigProblem {
            field: field.to_owned(),
            origin: Some(tree.origin.clone()),
            message: format!("is missing: must be {expected:?}"),
        }),
    };
    let problems: Vec<_> = [check("apiVersion", API_VERSION), check("kind", KIND)]
        .into_iter()
        .flatten()
        .collect();
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Problems(problems))
    }
}
