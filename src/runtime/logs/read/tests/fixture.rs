//! A log in a directory of its own, written and rotated as a runtime and a kubelet do.

use crate::runtime::logs::rotation::rotate::compress_file;
use crate::runtime::logs::rotation::{RotationPolicy, plan};
use crate::runtime::logs::{LogOptions, LogStream, Logs, files};
use futures::StreamExt as _;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Longer than anything takes.
pub(super) const WAIT_LIMIT: Duration = Duration::from_secs(60);

pub(super) struct Log {
    dir: tempfile::TempDir,
    pub(super) path: PathBuf,
    file: File,
    written: u64,
    /// What a reader of all of it has to get.
    pub(super) expected: String,
}

impl Log {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("0.log");
        Self { file: open(&path), dir, path, written: 0, expected: String::new() }
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a numbered line of about this length, split as a runtime splits long ones.
    pub(super) fn line(&mut self, length: usize) {
        let text = format!("{:06} {}", self.written, "x".repeat(length));
        self.written += 1;
        let mut entry = String::new();
        let mut rest = text.as_str();
        while rest.len() > 100 {
            let (piece, more) = rest.split_at(100);
            entry += &format!("{} stdout P {piece}\n", self.time());
            rest = more;
        }
        entry += &format!("{} stdout F {rest}\n", self.time());
        self.file.write_all(entry.as_bytes()).unwrap();
        self.expected += &text;
        self.expected.push('\n');
    }

    /// Writes a piece of a line.
    pub(super) fn piece(&mut self, tag: &str, text: &str) {
        self.written += 1;
        let time = self.time();
        let entry = format!("{time} stdout {tag} {}\n", text.trim_end_matches('\n'));
        self.file.write_all(entry.as_bytes()).unwrap();
        self.expected += text;
    }

    pub(super) fn lines(&mut self, count: usize) {
        (0..count).for_each(|_| self.line(10));
    }

    /// The timestamp of the next line: so many seconds after an hour.
    pub(super) fn time(&self) -> jiff::Timestamp {
        let hour: jiff::Timestamp = "2026-01-02T03:00:00Z".parse().unwrap();
        hour + Duration::from_secs(self.written)
    }

    /// The first half of a rotation. The runtime writes on to the renamed file.
    pub(super) fn rename(&self) -> (PathBuf, plan::RotationPlan) {
        let policy = RotationPolicy { max_size: 0, max_files: 1000 };
        let there = files::rotated(&self.path).unwrap();
        let now = "2026-01-02T03:04:05".parse().unwrap();
        let plan = plan::plan("0.log", &there, policy, now).unwrap();
        for name in &plan.leftovers {
            fs::remove_file(self.path.with_file_name(name)).unwrap();
        }
        let rotated = self.path.with_file_name(&plan.rotate_to);
        fs::rename(&self.path, &rotated).unwrap();
        (rotated, plan)
    }

    /// The second half: what ReopenContainerLog does. Returns the old file, still open.
    pub(super) fn reopen(&mut self) -> File {
        std::mem::replace(&mut self.file, open(&self.path))
    }

    pub(super) fn compress(&self, plan: &plan::RotationPlan) {
        for name in &plan.excess {
            fs::remove_file(self.path.with_file_name(name)).unwrap();
        }
        for name in &plan.compress {
            let file = self.path.with_file_name(name);
            compress_file(&file, &CancellationToken::new()).unwrap();
        }
    }

    /// A whole rotation.
    pub(super) fn rotate(&mut self) {
        let (_, plan) = self.rename();
        drop(self.reopen());
        self.compress(&plan);
    }

    /// The names beside the log.
    pub(super) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(super) async fn read(&self, options: LogOptions) -> String {
        let logs = Logs::new();
        let stream = logs.open(self.path.clone(), options, async {}).await;
        text(stream.unwrap()).await
    }

    /// The last lines of what is expected.
    pub(super) fn last(&self, lines: usize) -> String {
        let all: Vec<_> = self.expected.split_inclusive('\n').collect();
        all[all.len() - lines.min(all.len())..].concat()
    }
}

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.create(true).append(true).open(path).unwrap()
}

/// All of a stream, to its end.
pub(super) async fn text(stream: LogStream) -> String {
    let pieces = stream.map(Result::unwrap).collect::<Vec<_>>();
    let pieces = tokio::time::timeout(WAIT_LIMIT, pieces).await.expect("it ends");
    String::from_utf8(pieces.concat()).unwrap()
}

/// Reads until so many bytes have come.
pub(super) async fn take(stream: &mut LogStream, bytes: usize) -> String {
    let mut got = Vec::new();
    while got.len() < bytes {
        let piece = tokio::time::timeout(WAIT_LIMIT, stream.next()).await;
        let piece = piece.unwrap_or_else(|_| panic!("{} of {bytes} bytes came", got.len()));
        got.extend_from_slice(&piece.expect("it goes on").unwrap());
    }
    String::from_utf8(got).unwrap()
}
