//! The files that assign projects to directories, `/etc/projects` and `/etc/projid`. Pure.
//!
//! A line of the first is `ID:DIRECTORY`, one of the second `NAME:ID`. The kubelet's names are `volumeID`, as
//! upstream's (`pkg/volume/util/fsquota/project.go`). All other lines are preserved byte by byte.

use super::paths::VolumePlugin;
use crate::model::ProjectId;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};
use std::str;

/// The first project ID for volumes; upstream's.
const FIRST: u32 = 1_048_577;

/// Why an entry is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EntryError {
    /// Two projects have the same directory.
    #[error("the directory has more than one project there")]
    Ambiguous,
    /// The project has other directories too, so its usage is not that of this directory.
    #[error("the project of the directory has another one there")]
    Shared,
    /// The path contains a line break.
    #[error("the path of the directory has a line break")]
    LineBreak,
}

/// The contents of both files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProjectFiles {
    /// `/etc/projects`.
    pub(super) projects: Vec<u8>,
    /// `/etc/projid`.
    pub(super) names: Vec<u8>,
}

impl ProjectFiles {
    /// The project of a directory, if it has one of its own.
    pub(super) fn project_of(&self, directory: &Path) -> Result<Option<ProjectId>, EntryError> {
        let mut found = self.entries().filter(|(_, path)| *path == directory);
        let first = found.next().map(|(project, _)| project);
        if found.any(|(project, _)| Some(project) != first) {
            return Err(EntryError::Ambiguous);
        }
        let mut of_others = self.entries().filter(|(_, path)| *path != directory);
        if of_others.any(|(project, _)| Some(project) == first) {
            return Err(EntryError::Shared);
        }
        Ok(first)
    }

    /// The unused IDs, in ascending order.
    pub(super) fn free(&self) -> impl Iterator<Item = ProjectId> + use<> {
        let names = lines(&self.names).filter_map(parse_name);
        let used: BTreeSet<_> = names.map(|(_, project)| project).collect();
        let used = &used | &self.entries().map(|(project, _)| project).collect();
        let all = (FIRST..=i32::MAX.unsigned_abs()).map(ProjectId);
        all.filter(move |project| !used.contains(project))
    }

    /// Adds an entry for a directory, and the project's name.
    pub(super) fn with(&self, directory: &Path, project: ProjectId) -> Result<Self, EntryError> {
        let path = directory.as_os_str().as_bytes();
        if path.contains(&b'\n') {
            return Err(EntryError::LineBreak);
        }
        let mut files = self.clone();
        if !self.entries().any(|entry| entry == (project, directory)) {
            let entry = [project.0.to_string().as_bytes(), b":", path].concat();
            add(&mut files.projects, &entry);
        }
        let name = name_of(project);
        if !lines(&self.names).any(|line| line == name) {
            add(&mut files.names, &name);
        }
        Ok(files)
    }

    /// Removes directories that no longer exist, and projects that have no other. The kubelet's names without a
    /// directory are removed too: an earlier kubelet was killed between writing the two files.
    pub(super) fn without(&self, is_gone: impl Fn(&Path) -> bool) -> (Self, BTreeSet<ProjectId>) {
        let goes = |line: &[u8]| parse_entry(line).is_some_and(|(_, path)| is_gone(path));
        let (gone, projects) = partition(&self.projects, goes);
        let mut released: BTreeSet<_> =
            lines(&gone).filter_map(parse_entry).map(|(project, _)| project).collect();
        let mut files = Self { projects, names: Vec::new() };
        let used: BTreeSet<_> = files.entries().map(|(project, _)| project).collect();
        let is_released = |line: &[u8]| {
            let project = parse_name(line).map(|(_, project)| project);
            let own = project.filter(|project| project.0 >= FIRST && line == name_of(*project));
            own.is_some_and(|project| !used.contains(&project))
        };
        (_, files.names) = partition(&self.names, is_released);
        released.retain(|project| !used.contains(project));
        (files, released)
    }

    fn entries(&self) -> impl Iterator<Item = (ProjectId, &Path)> {
        lines(&self.projects).filter_map(parse_entry)
    }
}

/// Whether a path is that of an emptyDir volume below `pods`.
pub(super) fn is_empty_dir(path: &Path, pods: &Path) -> bool {
    let Ok(below) = path.strip_prefix(pods) else {
        return false;
    };
    let plugin = VolumePlugin::EMPTY_DIR.directory();
    let mut parts = below.components();
    let [_, volumes, kind, name, rest] = [(); 5].map(|()| parts.next());
    let is = |part: Option<Component<'_>>, name: &str| {
        part.is_some_and(|part| part.as_os_str() == OsStr::new(name))
    };
    is(volumes, "volumes") && is(kind, &plugin) && name.is_some() && rest.is_none()
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
}

/// `ID:DIRECTORY`
fn parse_entry(line: &[u8]) -> Option<(ProjectId, &Path)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (id, path) = line.split_at_checked(colon)?;
    let path = path.get(1..).filter(|path| !path.is_empty())?;
    Some((parse_id(id)?, Path::new(OsStr::from_bytes(path))))
}

/// `NAME:ID`
fn parse_name(line: &[u8]) -> Option<(&[u8], ProjectId)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, id) = line.split_at_checked(colon)?;
    let is_name = !name.is_empty() && !name.starts_with(b"#");
    Some((name, parse_id(id.get(1..)?)?)).filter(|_| is_name)
}

fn parse_id(text: &[u8]) -> Option<ProjectId> {
    // `parse` would accept a sign.
    let digits = text.iter().all(u8::is_ascii_digit).then_some(text)?;
    let id = str::from_utf8(digits).ok()?.parse().ok()?;
    Some(ProjectId(id)).filter(|project| project.0 != 0)
}

fn name_of(project: ProjectId) -> Vec<u8> {
    format!("volume{0}:{0}", project.0).into_bytes()
}

fn add(text: &mut Vec<u8>, line: &[u8]) {
    if text.last().is_some_and(|last| *last != b'\n') {
        text.push(b'\n');
    }
    text.extend_from_slice(line);
    text.push(b'\n');
}

/// Splits the lines by a predicate: those that satisfy it, and the others.
fn partition(text: &[u8], holds: impl Fn(&[u8]) -> bool) -> (Vec<u8>, Vec<u8>) {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    let (with, without): (Vec<_>, Vec<_>) =
        lines.partition(|line| holds(line.strip_suffix(b"\n").unwrap_or(line)));
    (with.concat(), without.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(projects: &str, names: &str) -> ProjectFiles {
        ProjectFiles { projects: projects.into(), names: names.into() }
    }

    #[test]
    fn a_directory_has_the_project_of_its_line() {
        for (projects, expected) in [
            ("", Ok(None)),
            ("7:/a\n", Ok(Some(ProjectId(7)))),
            ("7:/a", Ok(Some(ProjectId(7)))),
            ("garbage\n#7:/a\n0:/a\n-7:/a\n+7:/a\n 7:/a\n7 :/a\n", Ok(None)),
            ("99999999999999999999:/a\n4294967296:/a\n:/a\n7:\n", Ok(None)),
            ("7:/a/b\n8:/\n", Ok(None)),
            ("7:/a\n7:/a\n", Ok(Some(ProjectId(7)))),
            ("7:/a\n8:/a\n", Err(EntryError::Ambiguous)),
            ("7:/a\n7:/b\n", Err(EntryError::Shared)),
            ("\u{0}\n4294967295:/a\n", Ok(Some(ProjectId(u32::MAX)))),
        ] {
            let found = files(projects, "").project_of(Path::new("/a"));
            assert_eq!(found, expected, "{projects:?}");
        }
    }

    #[test]
    fn the_lowest_id_that_neither_file_has_is_free() {
        for (projects, names, expected) in [
            ("", "", 1_048_577),
            ("7:/a\n", "seven:7\n", 1_048_577),
            ("1048577:/a\n", "", 1_048_578),
            ("", "other:1048577\n", 1_048_578),
            ("", "#other:1048577\n:1048577\nother:x\n", 1_048_577),
            ("1048577:/a\n1048579:/a\n", "x:1048578\n", 1_048_580),
        ] {
            let free = files(projects, names).free().next();
            assert_eq!(free, Some(ProjectId(expected)), "{projects:?} {names:?}");
        }
    }

    #[test]
    fn lines_of_others_and_garbage_stay_to_the_byte() {
        let before = files("# mine\n7:/home\n\u{7f}\n\nno end", "seven:7\r\nx");
        let project = ProjectId(1_048_577);
        let with = before.with(Path::new("/v"), project).unwrap();
        let projects = "# mine\n7:/home\n\u{7f}\n\nno end\n1048577:/v\n";
        let names = "seven:7\r\nx\nvolume1048577:1048577\n";
        assert_eq!(with, files(projects, names));
        assert_eq!(with.with(Path::new("/v"), project).unwrap(), with);
        let (without, released) = with.without(|path| path == Path::new("/v"));
        assert_eq!(released, BTreeSet::from([project]));
        let projects = "# mine\n7:/home\n\u{7f}\n\nno end\n";
        assert_eq!(without, files(projects, "seven:7\r\nx\n"));
        let broken = before.with(Path::new("/v\n8:/"), project);
        assert_eq!(broken, Err(EntryError::LineBreak));
    }

    #[test]
    fn a_project_goes_with_its_last_directory_and_a_name_only_if_it_is_the_kubelets() {
        let first = ProjectId(1_048_577);
        for (projects, names, left, names_left, released) in [
            (
                "1048577:/gone\n1048577:/b\n",
                "volume1048577:1048577\n",
                "1048577:/b\n",
                "volume1048577:1048577\n",
                vec![],
            ),
            (
                "1048577:/gone\n",
                "other:1048577\nvolume1048577:1048577\n",
                "",
                "other:1048577\n",
                vec![first],
            ),
            // A kubelet ended between the two files.
            ("", "volume1048577:1048577\n", "", "", vec![]),
            ("", "volume7:7\nvolume07:1048577\n", "", "volume7:7\nvolume07:1048577\n", vec![]),
            ("7:/gone", "volume7:7", "", "volume7:7", vec![ProjectId(7)]),
        ] {
            let (files_left, ids) =
                files(projects, names).without(|path| path == Path::new("/gone"));
            assert_eq!(files_left, files(left, names_left), "{projects:?}");
            assert!(ids.into_iter().eq(released), "{projects:?}");
        }
    }

    #[test]
    fn only_empty_dirs_of_this_kubelet_are_its_own() {
        let own = "/k/pods/u/volumes/kubernetes.io~empty-dir/v";
        for (path, expected) in [
            (own, true),
            ("/k/pods/u/volumes/kubernetes.io~empty-dir", false),
            ("/k/pods/u/volumes/kubernetes.io~empty-dir/v/w", false),
            ("/k/pods/u/volumes/kubernetes.io~csi/v", false),
            ("/other/pods/u/volumes/kubernetes.io~empty-dir/v", false),
            ("/k/pods", false),
        ] {
            assert_eq!(is_empty_dir(Path::new(path), Path::new("/k/pods")), expected, "{path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_the_files_hold_other_lines_stay(
            projects in "([0-9]{0,8}:/[a-c]{1,2}\n|[0-9a-z:#]{0,6}\n|.){0,8}",
            names in "([a-z#]{0,3}:[0-9]{0,8}\n|[0-9a-z:]{0,6}\n|.){0,8}",
        ) {
            let before = files(&projects, &names);
            let volume = Path::new("/v");
            let project = before.free().next().unwrap();
            let with = before.with(volume, project).unwrap();
            assert_eq!(with.project_of(volume), Ok(Some(project)));
            assert_ne!(with.free().next(), Some(project));
            let (after, released) = with.without(|path| path == volume);
            assert_eq!(released, BTreeSet::from([project]));
            let full = |text: &[u8]| {
                let mut text = text.to_vec();
                if text.last().is_some_and(|last| *last != b'\n') {
                    text.push(b'\n');
                }
                text
            };
            assert_eq!(after.projects, full(&before.projects));
            assert_eq!(after.names, full(&before.names));
        }
    }
}
