//! Verbosity per source file, `--vmodule`.

/// One rule of `--vmodule`: a verbosity for source files that match a pattern.
///
/// A pattern without a slash is matched with the file's name without extension and with its directory's name (`pleg`
/// matches all of `src/pleg/`); one with slashes is matched with as many trailing components of the path. `*` matches
/// any text and `?` one character, within one component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VModule {
    /// The pattern.
    pub pattern: String,
    /// Verbosity where it matches.
    pub verbosity: u32,
}

impl VModule {
    /// Whether the rule applies to the source file at `path`.
    pub(super) fn matches(&self, path: &str) -> bool {
        let stem = path.strip_suffix(".rs").unwrap_or(path);
        let pattern = self.pattern.trim_matches('/');
        if pattern.contains('/') {
            let mut parts = stem.rsplit('/');
            return pattern
                .rsplit('/')
                .all(|wanted| parts.next().is_some_and(|part| glob(wanted, part)));
        }
        stem.rsplit('/').take(2).any(|part| glob(pattern, part))
    }
}

/// The verbosity of the first rule that matches.
pub(super) fn verbosity_at(rules: &[VModule], path: Option<&str>) -> Option<u32> {
    let path = path?;
    rules.iter().find(|rule| rule.matches(path)).map(|rule| rule.verbosity)
}

/// Matches `*` and `?` without recursion; at most `pattern` times `text` steps.
fn glob(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some('?') => (p, t) = (p + 1, t + 1),
            Some(c) if text.get(t) == Some(c) => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((after, from)) => {
                    star = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_file_names_directories_and_trailing_paths() {
        let cases = [
            ("task", "src/pleg/task.rs", true),
            ("pleg", "src/pleg/task.rs", true),
            ("pleg*", "src/pleg/mod.rs", true),
            ("pl?g", "src/pleg/mod.rs", true),
            ("src", "src/pleg/mod.rs", false),
            ("tas", "src/pleg/task.rs", false),
            ("*", "src/main.rs", true),
            ("*a*k*", "src/pleg/task.rs", true),
            ("pleg/t*", "src/pleg/task.rs", true),
            ("pleg/t*", "src/plug/task.rs", false),
            ("a/b/c/d/e", "src/pleg/task.rs", false),
            ("task.rs", "src/pleg/task.rs", false),
        ];
        for (pattern, path, expected) in cases {
            let rule = VModule { pattern: pattern.to_owned(), verbosity: 1 };
            assert_eq!(rule.matches(path), expected, "{pattern} at {path}");
        }
    }

    #[test]
    fn the_first_matching_rule_counts() {
        let rules = [("task", 2), ("pleg", 5)]
            .map(|(pattern, verbosity)| VModule { pattern: pattern.to_owned(), verbosity });
        assert_eq!(verbosity_at(&rules, Some("src/pleg/task.rs")), Some(2));
        assert_eq!(verbosity_at(&rules, Some("src/pleg/diff.rs")), Some(5));
        assert_eq!(verbosity_at(&rules, Some("src/main.rs")), None);
        assert_eq!(verbosity_at(&rules, None), None);
    }
}
