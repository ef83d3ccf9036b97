//! The files of a volume, and validation of their paths. Pure.

use crate::volumes::error::{MAX_NAME, MAX_PATH, PathError};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;

/// The content and metadata of one file.
#[derive(Clone, PartialEq, Eq)]
pub struct FileContent {
    /// The content; may be a secret.
    pub data: Bytes,
    /// Permission bits.
    pub mode: u32,
    /// The owning user; `None` for the kubelet's.
    pub owner: Option<u32>,
}

/// Content may be a secret, so only its size is printed.
impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, mode {:o}", self.data.len(), self.mode)
    }
}

/// All files of a volume by path; paths are relative and normalized.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload(BTreeMap<String, FileContent>);

impl Payload {
    /// Adds a file. As upstream, a later file replaces an earlier one with the same path.
    ///
    /// # Errors
    /// The path is invalid in a volume.
    pub fn insert(&mut self, path: &str, data: Bytes, mode: u32) -> Result<(), PathError> {
        self.insert_owned(path, data, mode, None)
    }

    /// Adds a file with an owner.
    ///
    /// # Errors
    /// The path is invalid in a volume.
    pub fn insert_owned(
        &mut self,
        path: &str,
        data: Bytes,
        mode: u32,
        owner: Option<u32>,
    ) -> Result<(), PathError> {
        let path = clean(path)?;
        let mode = mode & 0o777;
        self.0.insert(path, FileContent { data, mode, owner });
        Ok(())
    }

    /// Adds all files of another payload.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Checks that no file is at the path of another file's directory.
    ///
    /// # Errors
    /// A path leads through another file.
    pub fn check(&self) -> Result<(), PathError> {
        for path in self.0.keys() {
            let runs_through = |(at, _)| path.get(..at).filter(|head| self.0.contains_key(*head));
            if let Some(head) = path.match_indices('/').find_map(runs_through) {
                return Err(PathError::FileAndDirectory(head.to_string()));
            }
        }
        Ok(())
    }

    /// The files in the order of their paths.
    pub fn files(&self) -> impl Iterator<Item = (&str, &FileContent)> {
        self.0.iter().map(|(path, content)| (path.as_str(), content))
    }

    /// One file.
    pub fn get(&self, path: &str) -> Option<&FileContent> {
        self.0.get(path)
    }

    /// How many files there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no files.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The normalized path, if it is valid in a volume.
fn clean(path: &str) -> Result<String, PathError> {
    if path.starts_with('/') {
        return Err(PathError::Absolute(path.to_string()));
    }
    if path.len() > MAX_PATH {
        return Err(PathError::TooLong);
    }
    if path.contains('\0') {
        return Err(PathError::Nul);
    }
    let names: Vec<&str> = path.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    if names.contains(&"..") {
        return Err(PathError::StepsBack(path.to_string()));
    }
    if names.iter().any(|name| name.len() > MAX_NAME) {
        return Err(PathError::NameTooLong);
    }
    match names.first() {
        None => Err(PathError::Empty(path.to_string())),
        Some(first) if first.starts_with("..") => Err(PathError::Reserved(path.to_string())),
        Some(_) => Ok(names.join("/")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn inserted(paths: &[&str]) -> Result<Payload, PathError> {
        let mut payload = Payload::default();
        for path in paths {
            payload.insert(path, Bytes::from_static(b"x"), 0o644)?;
        }
        payload.check().map(|()| payload)
    }

    #[test]
    fn good_paths_are_brought_to_their_shortest_form() {
        for (given, clean) in [
            ("a", "a"),
            ("a/b.txt", "a/b.txt"),
            ("./a//b/./c/", "a/b/c"),
            (".hidden", ".hidden"),
            ("a/..b", "a/..b"),
            ("é ü", "é ü"),
        ] {
            let payload = inserted(&[given]).unwrap();
            assert_eq!(payload.files().next().unwrap().0, clean);
        }
    }

    #[test]
    fn paths_that_could_leave_the_volume_or_meet_the_writers_own_are_refused() {
        let long_name = "n".repeat(256);
        let long_path = "p/".repeat(2049);
        for (path, text) in [
            ("", "invalid path: must not be empty: \"\""),
            ("./.", "invalid path: must not be empty: \"./.\""),
            ("/etc/x", "invalid path: must be relative path: /etc/x"),
            ("..", "invalid path: must not contain '..': .."),
            ("a/../b", "invalid path: must not contain '..': a/../b"),
            ("a/..", "invalid path: must not contain '..': a/.."),
            ("..data", "invalid path: must not start with '..': ..data"),
            ("...", "invalid path: must not start with '..': ..."),
            ("./..data/x", "invalid path: must not start with '..': ./..data/x"),
            ("a\0b", "invalid path: must not contain a NUL"),
            (&long_name, "invalid path: filenames must be less than or equal to 255 characters"),
            (&long_path, "invalid path: must be less than or equal to 4096 characters"),
        ] {
            assert_eq!(inserted(&[path]).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn a_later_file_replaces_one_of_the_same_path_and_none_lies_within_another() {
        assert_eq!(inserted(&["a/b", "a//b"]).unwrap().len(), 1);
        assert!(inserted(&["a", "ab/c", "a.b"]).is_ok());
        let error = inserted(&["a/b/c/d", "a/b"]).unwrap_err();
        assert_eq!(error, PathError::FileAndDirectory("a/b".into()));
    }

    #[test]
    fn what_a_file_says_is_not_shown() {
        let mut payload = Payload::default();
        let data = Bytes::from_static(b"hunter2");
        payload.insert("password", data, 0o400).unwrap();
        let shown = format!("{payload:?} {payload:#?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(!shown.contains("104, 117"), "{shown}");
        assert!(shown.contains("password"));
    }

    proptest! {
        #[test]
        fn what_is_accepted_has_plain_names_only(path in "[a./é\0]{0,12}") {
            if let Ok(payload) = inserted(&[&path]) {
                let (clean, _) = payload.files().next().unwrap();
                prop_assert!(!clean.is_empty() && clean.len() <= MAX_PATH);
                prop_assert!(!clean.starts_with(".."));
                for name in clean.split('/') {
                    prop_assert!(!matches!(name, "" | "." | ".."));
                    prop_assert!(name.len() <= MAX_NAME && !name.contains('\0'));
                }
            }
        }
    }
}
