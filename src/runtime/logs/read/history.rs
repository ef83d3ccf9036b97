//! The chain of a log's files at one moment, and where in it to begin. Everything here blocks.

use super::LogOptions;
use super::segment::{Cursor, Segment, TailStart, tail_start};
use crate::base::if_exists;
use crate::runtime::logs::files;
use crate::runtime::logs::names::{GZIP, Rotated, RotatedForm, RotationStamp};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// How often the chain is read again because a rotation changed it meanwhile.
const TRIES: usize = 10;
/// Most rotated files that one reader opens.
const MAX_FILES: usize = 100;
/// File systems take modification times from a clock that lags by some milliseconds.
const TIME_SLACK: SignedDuration = SignedDuration::from_secs(1);

/// A file that the runtime writes to, or did when it was opened.
#[derive(Debug)]
pub(super) struct LiveLog {
    pub(super) segment: Arc<Segment>,
    /// The newest rotated file before it; it will itself be rotated to a later stamp.
    pub(super) after: Option<RotationStamp>,
    /// What it was rotated to, as far as was seen.
    pub(super) own: Mutex<Option<RotationStamp>>,
}

/// Opens what the runtime writes to. In the moment of a rotation in which the log has no file of its
/// name, that is the newest rotated file. `None` when there is neither.
pub(super) fn open_live(log: &Path) -> io::Result<Option<LiveLog>> {
    let mut before = files::history(log)?;
    let mut tries = 0;
    loop {
        let opened = if_exists(files::open(log))?;
        let after = files::history(log)?;
        tries += 1;
        // Equal lists before and after: nothing was rotated in between.
        if stamps(&before) != stamps(&after) && tries < TRIES {
            before = after;
            continue;
        }
        if let Some((file, metadata)) = opened {
            return Ok(Some(LiveLog {
                segment: Segment::new(file, &metadata, false),
                after: after.last().map(|newest| newest.stamp),
                own: Mutex::default(),
            }));
        }
        let Some((newest, older)) = after.split_last() else {
            return Ok(None);
        };
        if newest.form != RotatedForm::Plain {
            return Ok(None);
        }
        match if_exists(files::open(&log.with_file_name(&newest.name)))? {
            Some((file, metadata)) => {
                return Ok(Some(LiveLog {
                    segment: Segment::new(file, &metadata, false),
                    after: older.last().map(|older| older.stamp),
                    own: Mutex::new(Some(newest.stamp)),
                }));
            }
            None if tries < TRIES => before = after,
            None => return Ok(None),
        }
    }
}

fn stamps(files: &[Rotated]) -> Vec<RotationStamp> {
    files.iter().map(|file| file.stamp).collect()
}

/// A file to read before the live one.
pub(super) struct Older {
    pub(super) name: String,
    pub(super) cursor: Cursor,
}

/// Where reading begins.
pub(super) struct ReadStart {
    /// Files to be read first, oldest first.
    pub(super) older: VecDeque<Older>,
    /// Where to go on in the live file.
    pub(super) offset: u64,
}

/// Finds where the requested part begins: in the first `length` bytes of the live file, or in one
/// of those before it.
pub(super) fn start(
    log: &Path,
    live: Option<&LiveLog>,
    length: u64,
    options: &LogOptions,
) -> io::Result<ReadStart> {
    let mut tail = options.tail_lines.map(|missing| MissingLines { missing, goes_on: false });
    let mut offset = 0;
    if let (Some(live), Some(tail)) = (live, &mut tail) {
        offset = tail.start_in(&live.segment.file, length)?;
    }
    let mut rotated = files::history(log)?;
    rotated.retain(|file| live.is_none_or(|live| live.after.is_some_and(|at| file.stamp <= at)));
    let mut older = VecDeque::new();
    for file in rotated.into_iter().rev().take(MAX_FILES) {
        if tail.as_ref().is_some_and(|tail| tail.missing == 0) {
            break;
        }
        let cursor = match open_rotated(log, &file) {
            // It was removed for its age, and with it all before it.
            Ok(None) => break,
            Ok(Some((_, metadata))) if ended_before(&metadata, options.since) => break,
            Ok(Some((segment, metadata))) => from_tail(segment, &metadata, tail.as_mut()),
            Err(error) => Err(error),
        };
        match cursor {
            Ok(cursor) => older.push_front(Older { name: file.name, cursor }),
            Err(error) => tracing::warn!(
                log = %log.display(),
                file = file.name,
                err = %error,
                "Failed to read a rotated log, skipping it"
            ),
        }
    }
    Ok(ReadStart { older, offset })
}

/// Opens a rotated file, or what it was compressed to meanwhile.
pub(super) fn open_rotated(
    log: &Path,
    file: &Rotated,
) -> io::Result<Option<(Arc<Segment>, Metadata)>> {
    let mut gzip = file.form == RotatedForm::Gzip;
    let mut opened = if_exists(files::open(&log.with_file_name(&file.name)))?;
    if opened.is_none() && !gzip {
        gzip = true;
        let name = format!("{}{GZIP}", file.name);
        opened = if_exists(files::open(&log.with_file_name(name)))?;
    }
    Ok(opened.map(|(file, metadata)| (Segment::new(file, &metadata, gzip), metadata)))
}

/// Whether all of a rotated file is older than what is wanted.
fn ended_before(metadata: &Metadata, since: Option<Timestamp>) -> bool {
    let modified = metadata.modified().ok().map(Timestamp::try_from);
    let (Some(since), Some(Ok(modified))) = (since, modified) else {
        return false;
    };
    modified.checked_add(TIME_SLACK).is_ok_and(|end| end < since)
}

/// The lines of a tail that were not found yet.
struct MissingLines {
    missing: u64,
    /// There is a newer file, which begins with a line or the rest of one.
    goes_on: bool,
}

impl MissingLines {
    /// Where the missing lines begin in a file; at 0 if some are in older ones.
    fn start_in(&mut self, file: &File, length: u64) -> io::Result<u64> {
        let start = tail_start(file, length, self.missing, self.goes_on)?;
        self.goes_on |= length > 0;
        Ok(match start {
            TailStart::At(offset) => {
                self.missing = 0;
                offset
            }
            TailStart::Before(found) => {
                self.missing = self.missing.saturating_sub(found);
                0
            }
        })
    }

    /// How many lines of a compressed file are before the missing ones.
    fn skipped_of(&mut self, ended: u64, is_open: bool) -> u64 {
        let lines = ended + u64::from(is_open || self.goes_on);
        self.goes_on |= lines > 0;
        let skipped = lines.saturating_sub(self.missing);
        // The first line may begin in an older file.
        self.missing = self.missing.saturating_sub(lines.saturating_sub(1));
        skipped
    }
}

/// A cursor at the beginning of a file, or at the last lines of it that are still missing.
fn from_tail(
    segment: Arc<Segment>,
    metadata: &Metadata,
    tail: Option<&mut MissingLines>,
) -> io::Result<Cursor> {
    let Some(tail) = tail else {
        return Ok(Cursor::new(segment));
    };
    if segment.gzip {
        let (ended, is_open) = Cursor::new(segment.clone()).count_lines()?;
        let mut cursor = Cursor::new(segment);
        cursor.skip_lines(tail.skipped_of(ended, is_open))?;
        return Ok(cursor);
    }
    let offset = tail.start_in(&segment.file, metadata.len())?;
    Ok(Cursor::Plain { segment, offset, end: u64::MAX })
}
