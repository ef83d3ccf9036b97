//! The API's name formats. Each check returns an error message, or `None` for a valid name.

const LABEL: &str = "must be a lower-case RFC 1123 label: letters, digits and '-', starting and \
                     ending with a letter or digit, at most 63 characters";
const SUBDOMAIN: &str = "must be a lower-case RFC 1123 subdomain: letters, digits, '-' and '.', \
                         each part starting and ending with a letter or digit, at most 253 \
                         characters";
const QUALIFIED: &str = "must be a qualified name: an optional DNS subdomain and '/', then at most \
                         63 letters, digits, '-', '_' and '.', starting and ending with a letter \
                         or digit";
const LABEL_VALUE: &str = "must be empty or at most 63 letters, digits, '-', '_' and '.', starting \
                           and ending with a letter or digit";
const PORT_NAME: &str = "must be at most 15 lower-case letters, digits and '-', with at least one \
                         letter, no leading, trailing or doubled '-'";
const ENV_NAME: &str = "must consist of printable ASCII characters other than '='";
const OBJECT_KEY: &str = "must be at most 253 letters, digits, '-', '_' and '.', and neither '.' nor \
                          begin with '..'";
const UID: &str = "must be at most 63 letters, digits and '-', starting with a letter or digit";

fn lower_alnum(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

fn is_label(text: &str, max: usize) -> bool {
    !text.is_empty()
        && text.len() <= max
        && text.chars().all(|c| lower_alnum(c) || c == '-')
        && text.starts_with(lower_alnum)
        && text.ends_with(lower_alnum)
}

/// DNS-1123 label: container, volume and namespace names.
pub(super) fn dns_label(text: &str) -> Option<&'static str> {
    (!is_label(text, 63)).then_some(LABEL)
}

/// DNS-1123 subdomain: pod names.
pub(super) fn dns_subdomain(text: &str) -> Option<&'static str> {
    let good = text.len() <= 253 && text.split('.').all(|part| is_label(part, 253));
    (!good).then_some(SUBDOMAIN)
}

/// DNS-1123 subdomain of a DNS search list, which may also have a trailing dot or underscores, or be a single dot.
pub(super) fn dns_search(text: &str) -> Option<&'static str> {
    if text == "." {
        return None;
    }
    let text = text.strip_suffix('.').unwrap_or(text);
    dns_subdomain(&text.replace('_', "a"))
}

fn is_name_part(text: &str) -> bool {
    let alnum = |c: char| c.is_ascii_alphanumeric();
    !text.is_empty()
        && text.len() <= 63
        && text.starts_with(alnum)
        && text.ends_with(alnum)
        && text.chars().all(|c| alnum(c) || matches!(c, '-' | '_' | '.'))
}

/// Qualified name: label keys, and (in lower case) annotation keys.
pub fn qualified(text: &str) -> Option<&'static str> {
    let good = match text.split_once('/') {
        Some((prefix, name)) => dns_subdomain(prefix).is_none() && is_name_part(name),
        None => is_name_part(text),
    };
    (!good).then_some(QUALIFIED)
}

/// Label value; may be empty.
pub fn label_value(text: &str) -> Option<&'static str> {
    (!text.is_empty() && !is_name_part(text)).then_some(LABEL_VALUE)
}

/// IANA service name: port names.
pub(super) fn port_name(text: &str) -> Option<&'static str> {
    let good =
        is_label(text, 15) && text.chars().any(|c| c.is_ascii_lowercase()) && !text.contains("--");
    (!good).then_some(PORT_NAME)
}

/// Environment variable name, by the relaxed rule (GA in 1.34).
pub(super) fn env_name(text: &str) -> Option<&'static str> {
    let good = text.chars().all(|c| matches!(c, ' '..='~') && c != '=');
    (!good).then_some(ENV_NAME)
}

/// Key of a ConfigMap or Secret.
pub(super) fn object_key(text: &str) -> Option<&'static str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = !text.is_empty() && text.len() <= 253 && text.chars().all(allowed);
    (!good || text == "." || text.starts_with("..")).then_some(OBJECT_KEY)
}

/// UID given in a manifest. It is used in paths and cgroup names, so it is restricted to characters that are safe
/// there (upstream has no check).
pub(super) fn uid(text: &str) -> Option<&'static str> {
    let good = text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    (!good).then_some(UID)
}

/// Whether a relative or absolute path has a `..` component.
pub(super) fn has_backstep(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: fn(&str) -> Option<&'static str>, good: &[&str], bad: &[&str]) {
        for text in good {
            assert_eq!(rule(text), None, "{text:?} should be accepted");
        }
        for text in bad {
            assert!(rule(text).is_some(), "{text:?} should be refused");
        }
    }

    #[test]
    fn dns_labels() {
        let long = "a".repeat(64);
        check(
            dns_label,
            &["a", "0", "a-b", &long[..63]],
            &["", "-a", "a-", "A", "a.b", "a_b", "é", &long, "a\n"],
        );
    }

    #[test]
    fn dns_subdomains() {
        let long = "a".repeat(254);
        check(
            dns_subdomain,
            &["a", "a.b", "1.2-3.x", &long[..253]],
            &["", ".", "a.", ".a", "a..b", "a.-b", "A", &long],
        );
    }

    #[test]
    fn dns_search_entries() {
        check(dns_search, &[".", "a.b", "a.b.", "_tcp.x"], &["", "..", "a..b", "A"]);
    }

    #[test]
    fn qualified_names_and_label_values() {
        check(
            qualified,
            &["a", "a.b/c", "A_b.C-d", "kubernetes.io/x"],
            &["", "/a", "a/", "a/b/c", "-a", "A/b", &"a".repeat(64)],
        );
        check(label_value, &["", "a", "A.b_c"], &["-", "a/b", "a "]);
    }

    #[test]
    fn port_names() {
        check(
            port_name,
            &["http", "h2-c", "1a"],
            &["", "80", "a--b", "-a", "HTTP", "sixteen-letters-"],
        );
    }

    #[test]
    fn env_names_are_relaxed() {
        check(env_name, &["A", "a.b-c", "1", "a b"], &["a=b", "é", "\t"]);
    }

    #[test]
    fn keys_of_objects() {
        check(
            object_key,
            &["a", ".dockerconfigjson", "A_b-c.d", "a..b"],
            &["", ".", "..", "..a", "a/b", "a b", "é", &"a".repeat(254)],
        );
    }

    #[test]
    fn uids_cannot_leave_their_directory() {
        check(
            uid,
            &["0123456789abcdef", "a-b"],
            &["", "..", "a/b", "../x", "-a", "a_b", &"a".repeat(64)],
        );
    }
}
