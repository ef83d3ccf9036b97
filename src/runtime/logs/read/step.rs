//! One check at the end of a followed log: is there more, has it been rotated, is the old file complete?
//! Everything here blocks.

use super::history::{LiveLog, open_live, open_rotated};
use super::segment::{BLOCK, Cursor, Segment};
use crate::base::{clock, if_exists};
use crate::runtime::logs::files::{self, FileId};
use crate::runtime::logs::names::{Rotated, RotatedForm, RotationStamp};
use bytes::Bytes;
use parking_lot::Mutex;
use std::fs::{self, File, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How long a rotated file must be unchanged before it counts as complete, if no close event arrived. The runtime may
/// still flush buffered lines after it has opened the new file.
const QUIET_BEFORE_COMPLETE: Duration = Duration::from_secs(1);
/// When to check again in the middle of a rotation.
const RETRY: Duration = Duration::from_millis(10);
/// Largest log that is unpacked for a follower.
const MAX_UNPACKED: u64 = 1 << 30;

/// What a check found.
#[derive(Debug)]
pub(super) enum ReadStep {
    /// More of the file.
    Data(Bytes),
    /// Nothing yet.
    Idle(Idle),
    /// The file is complete; this one comes after it.
    Next(LiveLog),
}

/// Nothing to read for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Idle {
    /// Nothing was written for so long.
    pub(super) quiet: Duration,
    /// Another file follows.
    pub(super) rotated: bool,
    /// Check again after so long even without an event.
    pub(super) again: Option<Duration>,
}

impl Idle {
    fn retry(quiet: Duration) -> ReadStep {
        ReadStep::Idle(Self { quiet, rotated: true, again: Some(RETRY) })
    }
}

/// Reads from a place in a file.
pub(super) fn read_at(segment: &Segment, offset: u64) -> io::Result<Bytes> {
    let mut bytes = vec![0; BLOCK];
    let read = segment.file.read_at(&mut bytes, offset)?;
    bytes.truncate(read);
    if read < BLOCK / 2 {
        bytes.shrink_to_fit();
    }
    Ok(bytes.into())
}

/// Checks the file of a log behind `offset`, where nothing has come for `idle_for`.
/// `closed` are the names of files that were closed by a writer.
pub(super) fn step(
    log: &Path,
    live: &LiveLog,
    offset: u64,
    idle_for: Duration,
    closed: &[String],
) -> io::Result<ReadStep> {
    let bytes = read_at(&live.segment, offset)?;
    if !bytes.is_empty() {
        return Ok(ReadStep::Data(bytes));
    }
    let metadata = live.segment.file.metadata()?;
    let quiet = idle_for.max(since_written(&metadata));
    if metadata.len() < offset {
        return restart_file(live, &metadata).map(ReadStep::Next);
    }
    let there = if_exists(fs::symlink_metadata(log))?;
    let idle = Idle { quiet, rotated: false, again: None };
    if there.is_none_or(|there| FileId::of(&there) == live.segment.id) {
        return Ok(ReadStep::Idle(idle));
    }
    let rotated = files::history(log)?;
    let own = own_stamp(log, live, &rotated, &metadata);
    let is_closed = |name: &String| rotated.iter().any(|f| Some(f.stamp) == own && f.name == *name);
    if quiet < QUIET_BEFORE_COMPLETE && !closed.iter().any(is_closed) {
        return Ok(ReadStep::Idle(Idle {
            rotated: true,
            again: Some(QUIET_BEFORE_COMPLETE.saturating_sub(quiet)),
            ..idle
        }));
    }
    // Bytes written before the file was complete are readable by now.
    let bytes = read_at(&live.segment, offset)?;
    if !bytes.is_empty() {
        return Ok(ReadStep::Data(bytes));
    }
    successor(log, own.max(live.after), &rotated, quiet)
}

/// The file was cut to less than what was read of it: everything in it is new.
fn restart_file(live: &LiveLog, metadata: &Metadata) -> io::Result<LiveLog> {
    Ok(LiveLog {
        segment: Segment::new(live.segment.file.try_clone()?, metadata, false),
        after: live.after,
        own: Mutex::new(*live.own.lock()),
    })
}

/// What the file was rotated to.
fn own_stamp(
    log: &Path,
    live: &LiveLog,
    rotated: &[Rotated],
    metadata: &Metadata,
) -> Option<RotationStamp> {
    let later = || {
        let after = live.after;
        rotated.iter().filter(move |file| after.is_none_or(|after| file.stamp > after))
    };
    let look = |file: &Rotated| fs::symlink_metadata(log.with_file_name(&file.name)).ok();
    let same = |file: &&Rotated| {
        file.form == RotatedForm::Plain
            && look(file).is_some_and(|there| FileId::of(&there) == live.segment.id)
    };
    // Compressing keeps the time of the last write.
    let compressed = |file: &&Rotated| {
        file.form == RotatedForm::Gzip
            && look(file).is_some_and(|there| there.modified().ok() == metadata.modified().ok())
    };
    let mut own = live.own.lock();
    let found = later().find(same).map(|file| file.stamp);
    *own = found.or(*own).or_else(|| later().find(compressed).map(|file| file.stamp));
    *own
}

/// The file that comes after the one rotated to `own`.
fn successor(
    log: &Path,
    own: Option<RotationStamp>,
    rotated: &[Rotated],
    quiet: Duration,
) -> io::Result<ReadStep> {
    let Some(next) = rotated.iter().find(|file| own.is_none_or(|own| file.stamp > own)) else {
        let live = open_live(log)?;
        // If it is not the very next file, something was rotated just now.
        let fits = |live: &LiveLog| live.after <= own && live.own.lock().is_none();
        return Ok(live.filter(fits).map_or(Idle::retry(quiet), ReadStep::Next));
    };
    let Some((segment, metadata)) = open_rotated(log, next)? else {
        return Ok(Idle::retry(quiet));
    };
    let segment = if segment.gzip {
        Segment::new(unpack(log, Cursor::new(segment))?, &metadata, false)
    } else {
        segment
    };
    Ok(ReadStep::Next(LiveLog { segment, after: own, own: Mutex::new(Some(next.stamp)) }))
}

/// Unpacks a compressed log into a file without a name. It takes followers that were held up for two
/// rotations to need this.
fn unpack(log: &Path, mut cursor: Cursor) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let directory = log.parent().unwrap_or(Path::new("/"));
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR)?);
    let mut size = 0;
    loop {
        let bytes = cursor.read()?;
        size += bytes.len() as u64;
        if bytes.is_empty() || size > MAX_UNPACKED {
            return Ok(file);
        } else {
            file.write_all(&bytes)?
        }
    }
}

fn since_written(metadata: &Metadata) -> Duration {
    let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    // A time in the future means that the clock was set back.
    clock::system_time().duration_since(written).unwrap_or_default()
}
