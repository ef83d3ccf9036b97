//! Field errors in the API's format: `spec.containers[0].image: Required value`.

use std::fmt;

/// Maximum length of an invalid value in an error, in characters.
const MAX_VALUE_CHARS: usize = 100;

/// Maximum number of errors per pod.
const MAX_ERRORS: usize = 64;

/// One error of one field. Printed as by the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The field's path, e.g. `spec.containers[0].image`.
    pub path: String,
    /// The kind of error in the API's words, its value, and the detail, if any.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl std::error::Error for FieldError {}

/// A field path: a linked list on the stack, formatted only for errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: FieldStep<'a>,
}

#[derive(Clone, Copy, Debug)]
enum FieldStep<'a> {
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    pub(super) const fn root(name: &'a str) -> Self {
        Self { parent: None, step: FieldStep::Field(name) }
    }

    pub(super) const fn child(&'a self, name: &'a str) -> Self {
        Self { parent: Some(self), step: FieldStep::Field(name) }
    }

    pub(super) const fn index(&'a self, index: usize) -> Self {
        Self { parent: Some(self), step: FieldStep::Index(index) }
    }

    pub(super) const fn key(&'a self, key: &'a str) -> Self {
        Self { parent: Some(self), step: FieldStep::Key(key) }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match (self.step, self.parent) {
            (FieldStep::Field(name), None) => f.write_str(name),
            (FieldStep::Field(name), Some(_)) => write!(f, ".{name}"),
            (FieldStep::Index(index), _) => write!(f, "[{index}]"),
            (FieldStep::Key(key), _) => write!(f, "[{}]", escaped(key)),
        }
    }
}

/// Returns what is wrong with a text.
pub(super) type Rule = fn(&str) -> Option<&'static str>;

/// Collects errors, at most [`MAX_ERRORS`].
#[derive(Debug, Default)]
pub(super) struct Errors {
    list: Vec<FieldError>,
}

impl Errors {
    pub(super) fn into_vec(self) -> Vec<FieldError> {
        self.list
    }

    fn push(&mut self, path: &Path<'_>, kind: impl fmt::Display, detail: impl Into<String>) {
        if self.list.len() < MAX_ERRORS {
            let detail = detail.into();
            let message =
                if detail.is_empty() { kind.to_string() } else { format!("{kind}: {detail}") };
            let path = path.to_string();
            self.list.push(FieldError { path, message });
        }
    }

    pub(super) fn required(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.push(path, "Required value", detail);
    }

    /// Adds an error for an invalid string.
    pub(super) fn invalid(&mut self, path: &Path<'_>, value: &str, detail: impl Into<String>) {
        self.invalid_raw(path, quoted(value), detail);
    }

    /// Adds an error for an invalid number, or another value printed without quotes.
    pub(super) fn invalid_raw(
        &mut self,
        path: &Path<'_>,
        value: impl fmt::Display,
        detail: impl Into<String>,
    ) {
        self.push(path, format_args!("Invalid value: {value}"), detail);
    }

    pub(super) fn unsupported(&mut self, path: &Path<'_>, value: &str, supported: &[&str]) {
        let list: Vec<String> = supported.iter().map(|s| format!("\"{s}\"")).collect();
        let detail = format!("supported values: {}", list.join(", "));
        self.push(path, format_args!("Unsupported value: {}", quoted(value)), detail);
    }

    pub(super) fn duplicate(&mut self, path: &Path<'_>, value: &str) {
        self.push(path, format_args!("Duplicate value: {}", quoted(value)), "");
    }

    pub(super) fn forbidden(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.push(path, "Forbidden", detail);
    }

    pub(super) fn not_found(&mut self, path: &Path<'_>, value: &str) {
        self.push(path, format_args!("Not found: {}", quoted(value)), "");
    }

    pub(super) fn too_many(&mut self, path: &Path<'_>, count: usize, max: usize) {
        let detail = format!("must have at most {max} items");
        self.push(path, format_args!("Too many: {count}"), detail);
    }

    pub(super) fn too_long(&mut self, path: &Path<'_>, max_bytes: usize) {
        let detail = format!("may not be more than {max_bytes} bytes");
        self.push(path, "Too long", detail);
    }

    /// Checks a text by one of the rules of `names`.
    pub(super) fn check(&mut self, path: &Path<'_>, value: &str, rule: Rule) {
        if let Some(wrong) = rule(value) {
            self.invalid(path, value, wrong);
        }
    }

    /// Checks a text that must not be empty.
    pub(super) fn check_required(&mut self, path: &Path<'_>, value: &str, rule: Rule) {
        if value.is_empty() {
            self.required(path, "");
        } else {
            self.check(path, value, rule);
        }
    }

    /// Checks a text that may be empty.
    pub(super) fn check_optional(&mut self, path: &Path<'_>, value: &str, rule: Rule) {
        if !value.is_empty() {
            self.check(path, value, rule);
        }
    }

    /// Checks an optional enumeration: absent, or one of the supported values.
    pub(super) fn one_of(&mut self, path: &Path<'_>, value: Option<&str>, supported: &[&str]) {
        if let Some(value) = value
            && !supported.contains(&value)
        {
            self.unsupported(path, value, supported);
        }
    }

    /// Checks that a number is not negative.
    pub(super) fn non_negative(&mut self, path: &Path<'_>, value: Option<i64>) {
        if let Some(value) = value
            && value < 0
        {
            self.invalid_raw(path, value, "must be greater than or equal to 0");
        }
    }
}

/// The value in quotes, truncated, with control characters escaped.
fn quoted(value: &str) -> String {
    format!("\"{}\"", escaped(value))
}

fn escaped(value: &str) -> String {
    let mut text: String = value
        .chars()
        .take(MAX_VALUE_CHARS)
        .flat_map(|c| {
            if c.is_control() || c == '"' {
                c.escape_default().collect::<Vec<_>>()
            } else {
                vec![c]
            }
        })
        .collect();
    if value.chars().nth(MAX_VALUE_CHARS).is_some() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_the_api_server_writes_them() {
        let spec = Path::root("spec");
        let containers = spec.child("containers");
        let first = containers.index(0);
        let mut errors = Errors::default();
        errors.required(&first.child("image"), "");
        errors.invalid(&first.child("name"), "A", "must be lower case");
        errors.invalid_raw(&first.child("ports"), 0, "must be between 1 and 65535, inclusive");
        errors.unsupported(&first.child("protocol"), "X", &["TCP", "UDP"]);
        errors.duplicate(&first, "a");
        errors.forbidden(&first, "no");
        errors.not_found(&first, "v");
        errors.too_many(&spec, 4, 3);
        errors.too_long(&spec, 10);
        let text: Vec<String> = errors.into_vec().iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "spec.containers[0].image: Required value",
                "spec.containers[0].name: Invalid value: \"A\": must be lower case",
                "spec.containers[0].ports: Invalid value: 0: must be between 1 and 65535, inclusive",
                "spec.containers[0].protocol: Unsupported value: \"X\": supported values: \"TCP\", \"UDP\"",
                "spec.containers[0]: Duplicate value: \"a\"",
                "spec.containers[0]: Forbidden: no",
                "spec.containers[0]: Not found: \"v\"",
                "spec: Too many: 4: must have at most 3 items",
                "spec: Too long: may not be more than 10 bytes",
            ]
        );
    }

    #[test]
    fn hostile_values_are_cut_and_escaped() {
        let mut errors = Errors::default();
        errors.invalid(&Path::root("x"), &format!("\n\"{}", "é".repeat(1000)), "");
        let text = errors.into_vec()[0].to_string();
        assert!(text.starts_with("x: Invalid value: \"\\n\\\"éé"), "{text}");
        assert!(text.chars().count() < 140);
    }

    #[test]
    fn the_number_of_errors_is_bounded() {
        let mut errors = Errors::default();
        (0..1000).for_each(|_| errors.required(&Path::root("x"), ""));
        assert_eq!(errors.into_vec().len(), MAX_ERRORS);
    }
}
