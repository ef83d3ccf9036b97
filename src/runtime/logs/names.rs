//! Names of rotated log files: `0.log.20260102-030405`, with `.gz` once compressed. Pure.

use jiff::ToSpan as _;
use jiff::civil::DateTime;
use std::cmp::Reverse;
use std::fmt;

const FORMAT: &str = "%Y%m%d-%H%M%S";
const LENGTH: usize = "20260102-030405".len();
/// What a compressed file's name ends in.
pub(super) const GZIP: &str = ".gz";
/// What the name of a file that is being made ends in.
pub(super) const UNFINISHED: &str = ".tmp";

/// When a file was rotated, in the kubelet's local time. Stamps of one log only ever grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RotationStamp(DateTime);

impl RotationStamp {
    fn parse(text: &str) -> Option<Self> {
        let shaped = text.len() == LENGTH
            && text.bytes().enumerate().all(|(at, byte)| match at {
                8 => byte == b'-',
                _ => byte.is_ascii_digit(),
            });
        if shaped { DateTime::strptime(FORMAT, text).ok().map(Self) } else { None }
    }

    /// The stamp of a rotation at `now` (local time): a second past the newest there is if the clock
    /// has not got there, so that no file is overwritten and names sort as things happened. `None` at
    /// the end of the calendar.
    pub(super) fn next(now: DateTime, newest: Option<RotationStamp>) -> Option<Self> {
        let now = now.with().subsec_nanosecond(0).build().ok()?;
        match newest {
            Some(RotationStamp(newest)) if newest >= now => {
                newest.checked_add(1.second()).ok().map(Self)
            }
            _ => Some(Self(now)),
        }
    }
}

impl fmt::Display for RotationStamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.strftime(FORMAT))
    }
}

/// What has become of a rotated file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RotatedForm {
    /// As the runtime wrote it.
    Plain,
    /// Compressed.
    Gzip,
    /// The remains of a compression that was interrupted.
    DetachedWork,
}

/// A rotated file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rotated {
    pub(super) stamp: RotationStamp,
    pub(super) form: RotatedForm,
    /// Of the file, without its directory.
    pub(super) name: String,
}

impl Rotated {
    /// Reads a name in the directory of the log named `log`; `None` for anything else, which is left
    /// alone.
    pub(super) fn parse(log: &str, name: &str) -> Option<Self> {
        let rest = name.strip_prefix(log)?.strip_prefix('.')?;
        let (stamp, ending) = rest.split_at_checked(LENGTH)?;
        let form = match ending {
            "" => RotatedForm::Plain,
            GZIP => RotatedForm::Gzip,
            UNFINISHED => RotatedForm::DetachedWork,
            _ => return None,
        };
        Some(Self { stamp: RotationStamp::parse(stamp)?, form, name: name.to_owned() })
    }
}

/// Of all rotated files those that hold something, oldest first and one for each rotation: a plain
/// file is of no use any more beside its compressed form, and unfinished ones never are.
pub(super) fn in_use(mut files: Vec<Rotated>) -> Vec<Rotated> {
    files.retain(|file| file.form != RotatedForm::DetachedWork);
    files.sort_by_key(|file| Reverse((file.stamp, file.form)));
    files.dedup_by_key(|file| file.stamp);
    files.reverse();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(text: &str) -> RotationStamp {
        RotationStamp::parse(text).unwrap()
    }

    #[test]
    fn rotated_files_are_known_by_their_names() {
        let parse = |name| Rotated::parse("0.log", name).map(|file| (file.stamp, file.form));
        let at = stamp("20260102-030405");
        assert_eq!(at.to_string(), "20260102-030405");
        assert_eq!(parse("0.log.20260102-030405"), Some((at, RotatedForm::Plain)));
        assert_eq!(parse("0.log.20260102-030405.gz"), Some((at, RotatedForm::Gzip)));
        assert_eq!(parse("0.log.20260102-030405.tmp"), Some((at, RotatedForm::DetachedWork)));
        for other in [
            "0.log",
            "0.log.",
            "0.log.bak",
            "1.log.20260102-030405",
            "10.log.20260102-030405",
            "0.log.20261302-030405",
            "0.log.20260102-030405.gz.gz",
            "0.log.20260102-030405x",
            "0.log.2026010é-03040",
            "0.log.+2260102-030405",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_new_stamp_is_newer_than_all_there_are() {
        let now: DateTime = "2026-01-02T03:04:05.6".parse().unwrap();
        let rows = [
            (None, "20260102-030405"),
            (Some("20260102-030404"), "20260102-030405"),
            (Some("20260102-030405"), "20260102-030406"),
            (Some("20270101-000000"), "20270101-000001"),
        ];
        for (newest, next) in rows {
            assert_eq!(RotationStamp::next(now, newest.map(stamp)), Some(stamp(next)));
        }
        assert_eq!(RotationStamp::next(now, Some(stamp("99991231-235959"))), None);
    }

    #[test]
    fn of_one_rotation_the_compressed_file_is_the_one_in_use() {
        let names = [
            "0.log.20260102-030406",
            "0.log.20260102-030405",
            "0.log.20260102-030405.gz",
            "0.log.20260102-030404.gz",
            "0.log.20260102-030407.tmp",
        ];
        let files = names.map(|name| Rotated::parse("0.log", name).unwrap());
        let used: Vec<_> = in_use(files.into()).into_iter().map(|f| f.name).collect();
        assert_eq!(
            used,
            ["0.log.20260102-030404.gz", "0.log.20260102-030405.gz", "0.log.20260102-030406"]
        );
    }
}
