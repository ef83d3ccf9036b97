//! The path of a cgroup within its hierarchy. Pure.

use std::fmt;
use std::path::{Path, PathBuf};

/// An absolute path such as `/kubepods/burstable` that cannot lead out of the hierarchy; `/` is the root cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CgroupPath(Vec<String>);

/// An invalid cgroup path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the path of a cgroup")]
pub struct BadCgroupPath(String);

impl CgroupPath {
    /// Parses a path; leading, trailing and repeated slashes are ignored.
    ///
    /// # Errors
    /// A component is not a valid cgroup name.
    pub fn parse(text: &str) -> Result<Self, BadCgroupPath> {
        let parts = text.split('/').filter(|part| !part.is_empty());
        let valid = |part: &str| part != "." && part != ".." && !part.contains(char::is_control);
        let parts: Vec<String> = parts.map(str::to_owned).collect();
        if parts.iter().all(|part| valid(part)) {
            Ok(Self(parts))
        } else {
            Err(BadCgroupPath(text.to_owned()))
        }
    }

    /// Whether this is `other` or below it.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// The path below a mount point.
    pub(super) fn under(&self, mount: &Path) -> PathBuf {
        let mut path = mount.to_path_buf();
        path.extend(&self.0);
        path
    }

    /// The paths from `top` down to this one, both included; empty if `top` is not an ancestor.
    pub(super) fn steps_from(&self, top: &Self) -> Vec<Self> {
        if !self.is_within(top) {
            return Vec::new();
        }
        let lengths = top.0.len()..=self.0.len();
        let step = |length| Self(self.0.iter().take(length).cloned().collect());
        lengths.map(step).collect()
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_never_leads_out_of_its_hierarchy() {
        for (text, parsed) in [
            ("", Some("/")),
            ("/", Some("/")),
            ("kubepods", Some("/kubepods")),
            ("/a//b/", Some("/a/b")),
            ("/a/..b", Some("/a/..b")),
            ("/..", None),
            ("/a/../../b", None),
            ("/a/./b", None),
            ("/a\n/b", None),
            ("/a\0", None),
        ] {
            let path = CgroupPath::parse(text).map(|path| path.to_string());
            assert_eq!(path.ok().as_deref(), parsed, "{text:?}");
        }
        let path = |text| CgroupPath::parse(text).unwrap();
        assert!(path("/a/b").is_within(&path("/a")) && path("/a").is_within(&path("/a")));
        assert!(!path("/ab").is_within(&path("/a")) && !path("/").is_within(&path("/a")));
        let steps = |top| {
            let steps = path("/a/b").steps_from(&path(top)).into_iter();
            steps.map(|path| path.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(steps("/"), ["/", "/a", "/a/b"]);
        assert_eq!(steps("/a/b"), ["/a/b"]);
        assert!(steps("/b").is_empty());
        assert_eq!(path("/a/b").under(Path::new("/m")), Path::new("/m/a/b"));
    }
}
