//! Formats errors with their sources.

use std::error::Error;

/// The error and all its sources on one line, `outermost: cause: root`. A source that ends the text of its error
/// already, as in many libraries, is not repeated.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let own = cause.to_string();
        if !text.ends_with(&own) {
            text.push_str(": ");
            text.push_str(&own);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Layer(&'static str, #[source] Option<Box<Layer>>);

    #[test]
    fn sources_are_listed_once() {
        let table: [(&[&str], &str); 4] = [
            (&["a"], "a"),
            (&["cannot read f", "no such file"], "cannot read f: no such file"),
            (
                &[
                    "cannot use f: cannot read f: no such file",
                    "cannot read f: no such file",
                    "no such file",
                ],
                "cannot use f: cannot read f: no such file",
            ),
            (&["a: b", "b", "c"], "a: b: c"),
        ];
        for (texts, expected) in table {
            let chain =
                texts.iter().rev().fold(None, |source, text| Some(Box::new(Layer(text, source))));
            assert_eq!(error_chain(chain.unwrap().as_ref()), expected);
        }
    }
}
