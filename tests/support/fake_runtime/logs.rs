//! Container logs as a runtime writes them: `TIME STREAM TAG LINE`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// One container's open log.
pub struct LogFile {
    path: PathBuf,
    file: Option<File>,
}

impl LogFile {
    /// Opens the file; a failure is remembered as "nothing to write to".
    pub fn open(path: PathBuf) -> Self {
        let file = Self::open_file(&path);
        LogFile { path, file }
    }

    fn open_file(path: &Path) -> Option<File> {
        OpenOptions::new().create(true).append(true).open(path).ok()
    }

    /// The effect of ReopenContainerLog: write to whatever has the path now.
    pub fn reopen(&mut self) {
        self.file = Self::open_file(&self.path);
    }

    /// Appends a full line.
    pub fn line(&mut self, nanos: i64, stream: &str, line: &str) {
        let Ok(time) = jiff::Timestamp::from_nanosecond(i128::from(nanos)) else {
            return;
        };
        if let Some(file) = &mut self.file {
            let _ = writeln!(file, "{time:.9} {stream} F {line}");
        }
    }
}
