//! `$(VAR)` in commands, arguments and values. Pure.

use std::collections::HashMap;

/// Replaces `$(NAME)` with the value that `lookup` returns; a reference without a value is left unchanged. `$$` is a
/// plain `$`; a `$` before anything else, or without a closing parenthesis, is left unchanged (upstream's
/// `expansion.Expand`).
pub fn expand<'a>(text: &str, mut lookup: impl FnMut(&str) -> Option<&'a str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        rest = after;
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = reference(rest) {
            match lookup(name) {
                Some(value) => out.push_str(value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

/// Splits `(NAME)rest`.
fn reference(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('(')?.split_once(')')
}

/// Expands every item with the same variables.
pub fn expand_all(items: Option<&[String]>, variables: &[(String, String)]) -> Vec<String> {
    let known: HashMap<&str, &str> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    items
        .unwrap_or_default()
        .iter()
        .map(|item| expand(item, |name| known.get(name).copied()))
        .collect()
}

/// Expands text in which no reference may stay unexpanded (`subPathExpr`); the error is the first
/// variable that is not known.
pub fn expand_strictly(text: &str, variables: &[(String, String)]) -> Result<String, String> {
    let mut missing = None;
    let expanded = expand(text, |name| {
        let found = variables.iter().find(|(known, _)| known == name);
        if found.is_none() {
            missing.get_or_insert(name.to_string());
        }
        found.map(|(_, value)| value.as_str())
    });
    match missing {
        Some(name) => Err(name),
        None => Ok(expanded),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ab(text: &str) -> String {
        let variables = [("A", "1"), ("B", "two"), ("LOOP", "$(A)"), ("EMPTY", "")];
        expand(text, |name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| *v))
    }

    #[test]
    fn references_are_replaced_once_and_the_unknown_stay() {
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "1"),
            ("x$(A)$(B)y", "x1twoy"),
            ("$(LOOP)", "$(A)"),
            ("$(EMPTY)", ""),
            ("$(UNKNOWN)", "$(UNKNOWN)"),
            ("$()", "$()"),
            ("$(A", "$(A"),
            ("$(A $(B)", "$(A $(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$$$$", "$$"),
            ("$", "$"),
            ("$$", "$"),
            ("a$", "a$"),
            ("$A", "$A"),
            ("$(A)$", "1$"),
            ("$((A))", "$((A))"),
            ("$é$(A)", "$é1"),
            ("$$(A", "$(A"),
        ] {
            assert_eq!(ab(text), expected, "{text}");
        }
    }

    #[test]
    fn strict_expansion_names_the_missing_variable() {
        let variables = [("A".to_string(), "1".to_string())];
        assert_eq!(expand_strictly("x/$(A)", &variables).unwrap(), "x/1");
        assert_eq!(expand_strictly("$(A)/$(B)", &variables).unwrap_err(), "B");
        assert_eq!(expand_strictly("$$(B)", &variables).unwrap(), "$(B)");
    }

    proptest! {
        #[test]
        fn any_text_is_expanded_without_a_panic(text in "[$()A-C é]{0,40}") {
            let _ = ab(&text);
        }

        #[test]
        fn text_without_a_dollar_stays(text in "[^$]{0,60}") {
            prop_assert_eq!(ab(&text), text);
        }

        #[test]
        fn doubling_every_dollar_escapes_any_text(text in "[$()A-C]{0,40}") {
            prop_assert_eq!(ab(&text.replace('$', "$$")), text);
        }
    }
}
