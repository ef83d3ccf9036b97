//! Assigns quota projects to emptyDir volumes, so that the file system counts their usage. Blocking.
//!
//! The projects are recorded in `/etc/projects` and `/etc/projid`, as the Go kubelet does (upstream's
//! `pkg/volume/util/fsquota`).

use super::project_files::{EntryError, ProjectFiles, is_empty_dir};
use crate::base::{atomic_file, error_chain, if_exists};
use crate::host::{DiskUsage, limit_project, project_of, project_usage, set_project};
use crate::model::ProjectId;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// How many project IDs are tried.
const MAX_TRIED: usize = 1024;
/// Maximum size of the files, in bytes.
const MAX_SIZE: u64 = 4 << 20;

/// Why a volume has no project.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProjectError {
    #[error("the file system has no project quotas")]
    Unsupported(#[source] io::Error),
    #[error("it was made without a project")]
    NotAssigned,
    #[error("files are in it already")]
    NotEmpty,
    #[error("the directory is not in project {}, which is recorded for it", .0.0)]
    Differs(ProjectId),
    #[error("no project ID is free")]
    NoneFree,
    #[error("cannot {action} {path}", path = path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot use {path}", path = path.display())]
    Entry { path: PathBuf, source: EntryError },
}

/// The projects of emptyDir volumes.
pub struct ProjectQuotas {
    projects: PathBuf,
    names: PathBuf,
    /// Held while the files are changed.
    changes: Mutex<()>,
    /// Whether the missing support of the file system was already logged.
    is_logged: AtomicBool,
}

/// The open files; they stay locked until this is dropped.
struct LockedFiles {
    projects: LockedFile,
    names: LockedFile,
    content: ProjectFiles,
}

struct LockedFile {
    path: PathBuf,
    /// The file's permissions.
    mode: u32,
    _file: File,
}

impl ProjectQuotas {
    /// Uses the files in this directory; `/etc` on a node.
    pub fn recorded_in(directory: &Path) -> Self {
        Self {
            projects: directory.join("projects"),
            names: directory.join("projid"),
            changes: Mutex::default(),
            is_logged: AtomicBool::default(),
        }
    }

    /// Assigns a project to a newly created volume, with this limit in bytes if there is one. `None`, after logging
    /// why, if that is not possible: the usage is then measured by walking the directory. `pods` is the directory of
    /// all pods.
    pub(super) fn assign(
        &self,
        volume: &Path,
        pods: &Path,
        limit: Option<u64>,
    ) -> Option<ProjectId> {
        self.logged(volume, self.try_assign(volume, pods, limit))
    }

    /// The project of an existing volume; `None` as for `assign`.
    pub(super) fn recorded(&self, volume: &Path) -> Option<ProjectId> {
        self.logged(volume, self.try_recorded(volume))
    }

    /// Removes the entries of volumes that no longer exist. A failure is logged, and the next change retries it.
    pub(super) fn release(&self, pods: &Path) {
        if let Err(error) = self.try_release(pods) {
            let err = error_chain(&error);
            tracing::warn!(err, "Failed to release project IDs of emptyDir volumes");
        }
    }

    fn logged(&self, volume: &Path, found: Result<ProjectId, ProjectError>) -> Option<ProjectId> {
        let error = match found {
            Ok(project) => return Some(project),
            Err(error) => error,
        };
        let is_unsupported = matches!(error, ProjectError::Unsupported(_));
        if !is_unsupported || !self.is_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                path = %volume.display(),
                err = error_chain(&error),
                "Failed to assign a project quota to an emptyDir; its usage is determined by walking"
            );
        }
        None
    }

    fn try_recorded(&self, volume: &Path) -> Result<ProjectId, ProjectError> {
        let opened = if_exists(open(&self.projects, OFlags::empty()));
        let text = opened.and_then(|opened| opened.map_or(Ok(Vec::new()), |(file, _)| read(&file)));
        let files = ProjectFiles {
            projects: text.map_err(io_error("read", &self.projects))?,
            names: Vec::new(),
        };
        let Some(project) = self.project_in(&files, volume)? else {
            check_support(volume)?;
            return Err(ProjectError::NotAssigned);
        };
        let actual = project_of(volume).map_err(io_error("read the project of", volume))?;
        if actual == Some(project.0) { Ok(project) } else { Err(ProjectError::Differs(project)) }
    }

    fn try_assign(
        &self,
        volume: &Path,
        pods: &Path,
        limit: Option<u64>,
    ) -> Result<ProjectId, ProjectError> {
        check_support(volume)?;
        let mut entries = fs::read_dir(volume).map_err(io_error("list", volume))?;
        if entries.next().is_some() {
            return Err(ProjectError::NotEmpty);
        }
        let _changes = self.changes.lock();
        let files = self.lock()?;
        let (left, released) = files.content.without(|path| is_gone(path, pods));
        let project = match self.project_in(&left, volume)? {
            Some(project) => project,
            None => free(&left, volume)?,
        };
        let with = left.with(volume, project);
        let with = with.map_err(|source| self.entry_error(source))?;
        files.replace(&files.content, &with)?;
        unlimit(pods, released);
        let set =
            limit_project(volume, project.0, limit).and_then(|()| set_project(volume, project.0));
        if let Err(source) = set {
            files.replace(&with, &left)?;
            return Err(io_error("set the project ID of", volume)(source));
        }
        Ok(project)
    }

    fn try_release(&self, pods: &Path) -> Result<(), ProjectError> {
        if !self.projects.exists() {
            return Ok(());
        }
        let _changes = self.changes.lock();
        let files = self.lock()?;
        let (left, released) = files.content.without(|path| is_gone(path, pods));
        files.replace(&files.content, &left)?;
        unlimit(pods, released);
        Ok(())
    }

    fn project_in(
        &self,
        files: &ProjectFiles,
        volume: &Path,
    ) -> Result<Option<ProjectId>, ProjectError> {
        let project = files.project_of(volume);
        project.map_err(|source| self.entry_error(source))
    }

    fn entry_error(&self, source: EntryError) -> ProjectError {
        ProjectError::Entry { path: self.projects.clone(), source }
    }

    fn lock(&self) -> Result<LockedFiles, ProjectError> {
        let lock = |path: &Path| lock(path).map_err(io_error("lock", path));
        let (projects, projects_text) = lock(&self.projects)?;
        let (names, names_text) = lock(&self.names)?;
        Ok(LockedFiles {
            projects,
            names,
            content: ProjectFiles { projects: projects_text, names: names_text },
        })
    }
}

impl LockedFiles {
    /// Writes the files that changed. After a failure the first file may be changed and the second not: a name
    /// without a directory, or a directory without a name, is harmless and removed with the volume.
    fn replace(&self, old: &ProjectFiles, new: &ProjectFiles) -> Result<(), ProjectError> {
        if new.projects != old.projects {
            self.projects.replace(&new.projects)?;
        }
        if new.names != old.names {
            self.names.replace(&new.names)?;
        }
        Ok(())
    }
}

impl LockedFile {
    fn replace(&self, text: &[u8]) -> Result<(), ProjectError> {
        let written = atomic_file::write_synced(&self.path, text, self.mode);
        written.map_err(io_error("write", &self.path))
    }
}

fn check_support(volume: &Path) -> Result<(), ProjectError> {
    let usage = project_usage(volume, 0);
    usage.map(drop).map_err(ProjectError::Unsupported)
}

fn is_gone(path: &Path, pods: &Path) -> bool {
    is_empty_dir(path, pods) && matches!(if_exists(path.symlink_metadata()), Ok(None))
}

/// A project ID that is used neither in the files nor in the volume's file system.
fn free(files: &ProjectFiles, volume: &Path) -> Result<ProjectId, ProjectError> {
    for project in files.free().take(MAX_TRIED) {
        let usage = project_usage(volume, project.0).map_err(io_error("read quotas of", volume))?;
        if usage == DiskUsage::default() {
            return Ok(project);
        }
    }
    Err(ProjectError::NoneFree)
}

/// Removes the limits of unused projects. If that fails, the next volume with the project is not affected.
fn unlimit(pods: &Path, projects: BTreeSet<ProjectId>) {
    for project in projects {
        let _ = limit_project(pods, project.0, None);
    }
}

/// Opens and locks a file, and reads it.
fn lock(path: &Path) -> io::Result<(LockedFile, Vec<u8>)> {
    let (file, metadata) = open(path, OFlags::CREATE)?;
    // Other processes hold the lock only briefly; if one does not, the assignment fails instead of waiting.
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    if fs::symlink_metadata(path)?.ino() != metadata.ino() {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    let text = read(&file)?;
    let locked = LockedFile { path: path.to_owned(), mode: metadata.mode() & 0o777, _file: file };
    Ok((locked, text))
}

/// Opens a regular file without following links.
fn open(path: &Path, more: OFlags) -> io::Result<(File, Metadata)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | more;
    let file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?);
    let metadata = file.metadata()?;
    if metadata.is_file() {
        Ok((file, metadata))
    } else {
        let text = "not a regular file";
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }
}

fn read(file: &File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(MAX_SIZE + 1).read_to_end(&mut text)?;
    if u64::try_from(text.len()).is_ok_and(|length| length <= MAX_SIZE) {
        Ok(text)
    } else {
        Err(io::ErrorKind::FileTooLarge.into())
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ProjectError {
    let path = path.to_owned();
    move |source| ProjectError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    const ENTRIES: &str = "7:/home\n1048577:/k/pods/u/volumes/kubernetes.io~empty-dir/v\n";

    fn directory() -> (tempfile::TempDir, ProjectQuotas) {
        let directory = tempfile::tempdir().unwrap();
        let quotas = ProjectQuotas::recorded_in(directory.path());
        (directory, quotas)
    }

    #[test]
    fn volumes_that_are_gone_are_forgotten_and_nothing_else_changes() {
        let (directory, quotas) = directory();
        let pods = Path::new("/k/pods");
        quotas.try_release(pods).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        fs::write(&quotas.projects, ENTRIES).unwrap();
        fs::write(&quotas.names, "home:7\nvolume1048577:1048577\n").unwrap();
        fs::set_permissions(&quotas.projects, fs::Permissions::from_mode(0o640)).unwrap();
        let inode = || fs::metadata(&quotas.projects).unwrap().ino();
        let before = inode();
        quotas.try_release(Path::new("/other/pods")).unwrap();
        assert_eq!(inode(), before, "what does not change is not written");
        quotas.try_release(pods).unwrap();
        let text = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!(text(&quotas.projects), "7:/home\n");
        assert_eq!(text(&quotas.names), "home:7\n");
        let mode = fs::metadata(&quotas.projects).unwrap().mode();
        assert_eq!(mode & 0o777, 0o640);
    }

    #[test]
    fn files_that_are_not_plain_or_too_large_or_in_use_are_left_alone() {
        type Spoil = fn(&Path) -> Option<File>;
        let spoils: [(Spoil, &str); 4] = [
            (
                |path| {
                    let target = path.with_file_name("target");
                    fs::write(&target, ENTRIES).unwrap();
                    symlink(&target, path).unwrap();
                    None
                },
                "Too many levels of symbolic links",
            ),
            (
                |path| {
                    fs::create_dir(path).unwrap();
                    None
                },
                "Is a directory",
            ),
            (
                |path| {
                    fs::write(path, ENTRIES).unwrap();
                    let file = File::options().append(true).open(path).unwrap();
                    file.set_len(MAX_SIZE + 1).unwrap();
                    None
                },
                "file too large",
            ),
            (
                |path| {
                    fs::write(path, ENTRIES).unwrap();
                    let file = File::open(path).unwrap();
                    flock(&file, FlockOperation::LockExclusive).unwrap();
                    Some(file)
                },
                "Resource temporarily unavailable",
            ),
        ];
        for (spoil, expected) in spoils {
            let (directory, quotas) = directory();
            let held = spoil(&quotas.projects);
            let error = error_chain(&quotas.try_release(Path::new("/k/pods")).unwrap_err());
            assert!(error.contains(expected), "{error}");
            assert!(error.contains(quotas.projects.to_str().unwrap()), "{error}");
            drop((held, directory));
        }
    }

    #[test]
    fn a_file_system_without_project_quotas_is_logged_once_and_changes_no_file() {
        let (directory, quotas) = directory();
        let volume = directory.path().join("v");
        fs::create_dir(&volume).unwrap();
        if check_support(&volume).is_ok() {
            eprintln!("SKIPPED, the directory for temporary files has project quotas");
            return;
        }
        assert_eq!(quotas.assign(&volume, directory.path(), None), None);
        assert!(quotas.is_logged.load(Ordering::Relaxed));
        assert_eq!(quotas.recorded(&volume), None);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
