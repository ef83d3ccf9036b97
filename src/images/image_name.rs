//! Parses, validates and normalizes image references as users write them. Pure.

/// The registry of references without one.
const DEFAULT_DOMAIN: &str = "docker.io";
/// The legacy name of the default registry.
const LEGACY_DEFAULT_DOMAIN: &str = "index.docker.io";
/// The namespace of the official images of the default registry.
const OFFICIAL: &str = "library";
const LATEST: &str = "latest";
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// A normalized reference: `nginx` becomes `docker.io/library/nginx` with the tag `latest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageName {
    /// Registry and path, `docker.io/library/nginx`; credentials are looked up by it.
    pub repo: String,
    /// The tag; `latest` when neither tag nor digest was given, empty with only a digest.
    pub tag: String,
    /// The digest, `sha256:…`; empty when none was given.
    pub digest: String,
}

/// An invalid image reference; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("couldn't parse image name {image:?}: {problem}")]
pub struct InvalidImageName {
    image: String,
    problem: String,
}

impl ImageName {
    /// Parses and normalizes a reference.
    pub fn parse(image: &str) -> Result<ImageName, InvalidImageName> {
        parse(image).map_err(|problem| InvalidImageName { image: image.to_owned(), problem })
    }

    /// The reference for CRI requests: `image`, from which this was parsed, with the default tag if it has neither
    /// tag nor digest. The registry is not added; the runtime chooses it.
    pub fn complete(&self, image: &str) -> String {
        let complete = !self.digest.is_empty() || image.ends_with(&format!(":{}", self.tag));
        if complete { image.to_owned() } else { format!("{image}:{}", self.tag) }
    }

    /// The full reference as runtimes return it: with the digest, else with the tag.
    pub fn full(&self) -> String {
        if self.digest.is_empty() {
            format!("{}:{}", self.repo, self.tag)
        } else {
            format!("{}@{}", self.repo, self.digest)
        }
    }

    /// The reference as written, without tag and digest; `None` if it cannot be parsed.
    pub fn without_tag_and_digest(image: &str) -> Option<String> {
        let name = ImageName::parse(image).ok()?;
        let rest = if name.digest.is_empty() {
            image
        } else {
            image.strip_suffix(name.digest.as_str())?.strip_suffix('@')?
        };
        // A colon in the last path component starts a tag, not a port.
        let tag =
            rest.rfind(':').filter(|colon| !rest.get(*colon..).is_some_and(|t| t.contains('/')));
        Some(tag.and_then(|tag| rest.get(..tag)).unwrap_or(rest).to_owned())
    }
}

const BAD_FORMAT: &str = "invalid reference format";

fn parse(image: &str) -> Result<ImageName, String> {
    if image.is_empty() {
        return Err(format!("{BAD_FORMAT}: empty reference"));
    }
    if image.len() == 64 && image.bytes().all(is_lower_hex) {
        return Err(format!(
            "invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
        ));
    }
    let (domain, remainder) = split_domain(image);
    let path_only = remainder.split(':').next().unwrap_or_default();
    if path_only.chars().any(char::is_uppercase) {
        return Err(format!("{BAD_FORMAT}: repository name ({path_only}) must be lowercase"));
    }
    let (rest, digest) = match remainder.split_once('@') {
        Some((rest, digest)) => (rest, digest),
        None => (remainder.as_str(), ""),
    };
    let (path, tag) = match rest.split_once(':') {
        Some((path, tag)) if is_tag(tag) => (path, tag),
        Some(_) => return Err(BAD_FORMAT.to_owned()),
        None => (rest, ""),
    };
    if !is_domain(domain) || !path.split('/').all(is_path_component) {
        return Err(BAD_FORMAT.to_owned());
    }
    if remainder.contains('@') {
        check_digest(digest)?;
    }
    let repo = format!("{domain}/{path}");
    if repo.len() > MAX_NAME {
        return Err(format!("repository name must not be more than {MAX_NAME} characters"));
    }
    let tag = match (tag, digest) {
        ("", "") => LATEST,
        (tag, _) => tag,
    };
    Ok(ImageName { repo, tag: tag.to_owned(), digest: digest.to_owned() })
}

/// Splits a reference into registry and remainder, both normalized. The first component is a registry only if it
/// contains a dot, a port or an upper-case letter, or is `localhost`.
fn split_domain(image: &str) -> (&str, String) {
    let (domain, remainder) = match image.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.chars().any(char::is_uppercase) =>
        {
            (first, rest)
        }
        _ => (DEFAULT_DOMAIN, image),
    };
    let domain = match domain {
        LEGACY_DEFAULT_DOMAIN => DEFAULT_DOMAIN,
        other => other,
    };
    let remainder = if domain == DEFAULT_DOMAIN && !remainder.contains('/') {
        format!("{OFFICIAL}/{remainder}")
    } else {
        remainder.to_owned()
    };
    (domain, remainder)
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) => {
                let address_ok = !address.is_empty()
                    && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
                match (address_ok, port.strip_prefix(':'), port.is_empty()) {
                    (true, Some(port), _) => return is_port(port),
                    (true, None, true) => return true,
                    _ => return false,
                }
            }
            None => return false,
        },
        None => match domain.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (domain, None),
        },
    };
    host.split('.').all(is_domain_component) && port.is_none_or(is_port)
}

fn is_port(port: &str) -> bool {
    !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit())
}

fn is_domain_component(component: &str) -> bool {
    let bytes = component.as_bytes();
    let alnum_at = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    alnum_at(bytes.first())
        && alnum_at(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
}

/// Lower-case letters and digits, separated by a single `.` or `_`, by `__`, or by any number of `-`.
fn is_path_component(component: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let mut rest = component;
    loop {
        let word = rest.bytes().take_while(|b| is_word(*b)).count();
        if word == 0 {
            return false;
        }
        rest = rest.get(word..).unwrap_or_default();
        if rest.is_empty() {
            return true;
        }
        let separator = rest.bytes().take_while(|b| !is_word(*b)).count();
        let text = rest.get(..separator).unwrap_or_default();
        if !(matches!(text, "." | "_" | "__") || text.bytes().all(|b| b == b'-')) {
            return false;
        }
        rest = rest.get(separator..).unwrap_or_default();
    }
}

fn is_tag(tag: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= MAX_TAG
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|b| is_word(b) || b == b'.' || b == b'-')
}

fn check_digest(digest: &str) -> Result<(), String> {
    let (algorithm, hex) = digest.split_once(':').ok_or(BAD_FORMAT)?;
    let component_ok = |c: &str| {
        c.starts_with(|c: char| c.is_ascii_alphabetic())
            && c.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    if !algorithm.split(['+', '.', '-', '_']).all(component_ok)
        || hex.len() < 32
        || !hex.bytes().all(|b| b.is_ascii_hexdigit())
    {
        return Err(BAD_FORMAT.to_owned());
    }
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return Err("unsupported digest algorithm".to_owned()),
    };
    match (hex.len() == length, hex.bytes().all(is_lower_hex)) {
        (true, true) => Ok(()),
        (false, _) => Err("invalid checksum digest length".to_owned()),
        (true, false) => Err("invalid checksum digest format".to_owned()),
    }
}

fn is_lower_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHA: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn references_are_completed() {
        let at = |name: &str| format!("{name}@{SHA}");
        let table = [
            ("nginx".to_owned(), "docker.io/library/nginx", "latest", ""),
            ("nginx:1.27".to_owned(), "docker.io/library/nginx", "1.27", ""),
            ("team/app".to_owned(), "docker.io/team/app", "latest", ""),
            ("index.docker.io/nginx".to_owned(), "docker.io/library/nginx", "latest", ""),
            ("docker.io/nginx".to_owned(), "docker.io/library/nginx", "latest", ""),
            ("localhost/pause:dev".to_owned(), "localhost/pause", "dev", ""),
            ("localhost:5000/a".to_owned(), "localhost:5000/a", "latest", ""),
            ("registry.k8s.io/a/b/c:v1".to_owned(), "registry.k8s.io/a/b/c", "v1", ""),
            ("REGISTRY/app".to_owned(), "REGISTRY/app", "latest", ""),
            ("[2001:db8::1]:5000/app".to_owned(), "[2001:db8::1]:5000/app", "latest", ""),
            ("[::1]/app".to_owned(), "[::1]/app", "latest", ""),
            ("10.0.0.1:5000/app".to_owned(), "10.0.0.1:5000/app", "latest", ""),
            (at("nginx"), "docker.io/library/nginx", "", SHA),
            (at("nginx:1.27"), "docker.io/library/nginx", "1.27", SHA),
            ("a/b__c/d--e.f_g".to_owned(), "docker.io/a/b__c/d--e.f_g", "latest", ""),
        ];
        for (image, repo, tag, digest) in table {
            let name = ImageName::parse(&image).unwrap();
            assert_eq!((&*name.repo, &*name.tag, &*name.digest), (repo, tag, digest), "{image}");
        }
    }

    #[test]
    fn the_runtime_is_asked_for_what_was_written_plus_a_tag_if_none_was() {
        let digest = format!("nginx@{SHA}");
        let table = [
            ("nginx", "nginx:latest"),
            ("nginx:latest", "nginx:latest"),
            ("nginx:1", "nginx:1"),
            ("localhost:5000/a", "localhost:5000/a:latest"),
            (digest.as_str(), digest.as_str()),
        ];
        for (image, expected) in table {
            let name = ImageName::parse(image).unwrap();
            assert_eq!(name.complete(image), expected, "{image}");
        }
    }

    #[test]
    fn a_reference_can_be_had_in_full_and_without_its_end() {
        let both = format!("localhost:5000/a:1@{SHA}");
        let table = [
            ("nginx", "docker.io/library/nginx:latest", "nginx"),
            ("r.io/team/a:1", "r.io/team/a:1", "r.io/team/a"),
            ("localhost:5000/a", "localhost:5000/a:latest", "localhost:5000/a"),
            (&both, &format!("localhost:5000/a@{SHA}"), "localhost:5000/a"),
        ];
        for (image, full, plain) in table {
            assert_eq!(ImageName::parse(image).unwrap().full(), full);
            assert_eq!(ImageName::without_tag_and_digest(image).as_deref(), Some(plain));
        }
        assert_eq!(ImageName::without_tag_and_digest("a:b:c"), None);
    }

    #[test]
    fn bad_references_are_named_in_the_words_users_know() {
        let hex64 = "a".repeat(64);
        let long = "a".repeat(300);
        let long_tag = format!("nginx:{}", "a".repeat(129));
        let short = format!("nginx@{}", &SHA[..SHA.len() - 1]);
        let upper = format!("nginx@{}", SHA.replace(":a", ":A"));
        let odd = format!("nginx@md5:{}", "a".repeat(32));
        let table = [
            ("", "invalid reference format: empty reference"),
            (
                "Nginx",
                "invalid reference format: repository name (library/Nginx) must be lowercase",
            ),
            ("foo:bar:baz", "invalid reference format"),
            ("foo:", "invalid reference format"),
            ("foo bar", "invalid reference format"),
            (":v1", "invalid reference format"),
            ("a//b", "invalid reference format"),
            ("a/", "invalid reference format"),
            ("/a", "invalid reference format"),
            ("a.-b", "invalid reference format"),
            ("a___b", "invalid reference format"),
            ("-a", "invalid reference format"),
            ("a-", "invalid reference format"),
            ("nginx:.x", "invalid reference format"),
            ("ngin\u{fc}", "invalid reference format"),
            ("-x.y/a", "invalid reference format"),
            ("x:port/a", "invalid reference format"),
            ("[::1/a", "invalid reference format"),
            ("nginx@", "invalid reference format"),
            ("nginx@sha256:zz", "invalid reference format"),
            (long_tag.as_str(), "invalid reference format"),
            (short.as_str(), "invalid checksum digest length"),
            (upper.as_str(), "invalid checksum digest format"),
            (odd.as_str(), "unsupported digest algorithm"),
            (long.as_str(), "repository name must not be more than 255 characters"),
        ];
        for (image, problem) in table {
            let error = ImageName::parse(image).unwrap_err();
            assert_eq!(error.problem, problem, "{image}");
        }
        let error = ImageName::parse(&hex64).unwrap_err();
        assert!(error.problem.ends_with("cannot specify 64-byte hexadecimal strings"));
        assert_eq!(
            ImageName::parse("a b").unwrap_err().to_string(),
            "couldn't parse image name \"a b\": invalid reference format"
        );
    }

    proptest! {
        #[test]
        fn anything_is_either_refused_or_completed_stably(image in ".{0,80}") {
            if let Ok(name) = ImageName::parse(&image) {
                let full = name.complete(&image);
                prop_assert_eq!(ImageName::parse(&full).unwrap().complete(&full), full);
            }
        }

        #[test]
        fn plausible_references_never_panic(image in "[a-zA-Z0-9.:/@_\\[\\]-]{0,60}") {
            let _ = ImageName::parse(&image);
        }
    }
}
