//! Matches images with the registry patterns of credentials. Pure.

/// The key of the default registry's credentials.
pub(super) const DEFAULT_REGISTRY: &str = "index.docker.io";

/// Host and path of a URL without its scheme.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RegistryPath<'a> {
    pub(super) host: &'a str,
    pub(super) path: &'a str,
}

impl<'a> RegistryPath<'a> {
    /// Parses `registry.io:5000/team`. The query, the fragment and user information are dropped. `None` if it is not
    /// a valid URL.
    pub(super) fn parse(text: &'a str) -> Option<RegistryPath<'a>> {
        let end = text.find(['?', '#']).unwrap_or(text.len());
        let (text, _) = text.split_at_checked(end)?;
        let (authority, path) = match text.find('/') {
            Some(slash) => text.split_at_checked(slash)?,
            None => (text, ""),
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let host_may_have = |c: char| {
            c.is_ascii_alphanumeric() || !c.is_ascii() || "-_.~!$&'()*+,;=:[]".contains(c)
        };
        let valid = host.chars().all(host_may_have) && split_port(host).is_some();
        valid.then_some(RegistryPath { host, path })
    }
}

/// Splits host and port; the port is empty if there is none. `None` for a port that is not a number and for stray
/// colons.
fn split_port(host: &str) -> Option<(&str, &str)> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            match (port.is_empty(), port.strip_prefix(':')) {
                (true, _) => return Some((host, "")),
                (false, port) => (address, port?),
            }
        }
        None if host.contains(['[', ']']) => return None,
        None => match host.split_once(':') {
            Some((name, port)) => (name, port),
            None => return Some((host, "")),
        },
    };
    port.bytes().all(|b| b.is_ascii_digit()).then_some((name, port))
}

/// Whether `pattern`, which may have wildcards in its host name, matches `target`: same port, same number of host
/// name labels, each matching, and the pattern's path is a prefix (upstream's `URLsMatch`).
pub(super) fn covers(pattern: &str, target: &str) -> bool {
    let (Some(pattern), Some(target)) = (RegistryPath::parse(pattern), RegistryPath::parse(target))
    else {
        return false;
    };
    let (Some((glob, glob_port)), Some((host, port))) =
        (split_port(pattern.host), split_port(target.host))
    else {
        return false;
    };
    glob_port == port
        && glob.split('.').count() == host.split('.').count()
        && target.path.starts_with(pattern.path)
        && glob.split('.').zip(host.split('.')).all(|(glob, part)| part_matches(glob, part))
}

/// Whether the image (without tag) comes from the default registry.
pub(super) fn is_of_default_registry(image: &str) -> bool {
    match image.split_once('/') {
        None => !image.is_empty(),
        Some(("docker.io" | DEFAULT_REGISTRY, _)) => true,
        Some((first, _)) => !first.is_empty() && !first.contains(['.', ':']),
    }
}

/// Matches one label of a host name. `*` stands for any characters; other wildcards cannot occur in a host name.
fn part_matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(head) else {
        return false;
    };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        // The leftmost match is enough, because it leaves the longest rest.
        let Some((_, after)) = text.split_once(piece) else {
            return false;
        };
        text = after;
    }
    text.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_images_by_port_parts_of_the_host_and_a_prefix_of_the_path() {
        let table = [
            ("registry.io", "registry.io/team/app", true),
            ("registry.io/team", "registry.io/team/app", true),
            ("registry.io/te", "registry.io/team/app", true),
            ("registry.io/other", "registry.io/team/app", false),
            ("registry.io", "registry.io:5000/app", false),
            ("registry.io:5000", "registry.io:5000/app", true),
            ("registry.io:5000", "registry.io/app", false),
            ("127.0.0.1:5000", "127.0.0.1:5000/app", true),
            ("[::1]:5000", "[::1]:5000/app", true),
            ("*.io", "registry.io/app", true),
            ("*.io", "my.registry.io/app", false),
            ("*.*.io", "my.registry.io/app", true),
            ("app*.registry.io", "app-7.registry.io/x", true),
            ("*pp*.registry.io", "my-app.registry.io/x", true),
            ("registry.*", "registry.io/app", true),
            ("a*b*c.io", "a-b-b-c.io/app", true),
            ("a*b*c.io", "a-c-b.io/app", false),
            ("a*a.io", "a.io/app", false),
            ("regist?y.io", "registry.io/app", false),
            ("reg[a-j]stry.io", "registry.io/app", false),
            (r"\*.io", "registry.io/app", false),
            ("regis try.io", "regis try.io/app", false),
            ("registry.io/*/app", "registry.io/team/app", false),
            ("user@registry.io", "registry.io/app", true),
            ("registry.io:http", "registry.io:http/app", false),
            ("", "registry.io/app", false),
        ];
        for (pattern, image, expected) in table {
            assert_eq!(covers(pattern, image), expected, "{pattern} for {image}");
        }
    }

    #[test]
    fn names_without_a_registry_and_the_default_ones_own_are_of_the_default_registry() {
        for image in ["ubuntu", "team/app", "docker.io/library/x", "index.docker.io/x"] {
            assert!(is_of_default_registry(image), "{image}");
        }
        for image in ["", "/x", "registry.io/x", "host:5000/x"] {
            assert!(!is_of_default_registry(image), "{image}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = "*a".repeat(60);
        assert!(!part_matches(&pattern, &"b".repeat(200)));
        assert!(part_matches(&pattern, &"ab".repeat(200)[..399]));
    }
}
