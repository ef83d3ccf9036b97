//! One line of a CRI log: `2016-10-06T00:17:09.669794202Z stdout F text`.

/// Which of the container's two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A parsed line, borrowing from the file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLine<'a> {
    /// RFC 3339 with up to nanoseconds, as it was written.
    pub timestamp: &'a [u8],
    /// The instant that it names.
    pub time: jiff::Timestamp,
    /// The stream.
    pub stream: OutputStream,
    /// The line goes on in the next one (tag `P`).
    pub partial: bool,
    /// What the container wrote, without the newline.
    pub content: &'a [u8],
}

impl<'a> LogLine<'a> {
    /// Reads one line (without its newline); `None` for one that is not of this format. Of the tags,
    /// separated by colons, only the first is defined.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let (timestamp, rest) = word(line)?;
        let (stream, rest) = word(rest)?;
        // An empty line may have been written without the space after the tag.
        let (tags, content) = word(rest).unwrap_or((rest, b""));
        let stream = match stream {
            b"stdout" => OutputStream::Stdout,
            b"stderr" => OutputStream::Stderr,
            _ => return None,
        };
        let partial = match tags.split(|byte| *byte == b':').next()? {
            b"P" => true,
            b"F" => false,
            _ => return None,
        };
        Some(Self {
            timestamp,
            time: std::str::from_utf8(timestamp).ok()?.parse().ok()?,
            stream,
            partial,
            content,
        })
    }
}

/// Longest head (timestamp, stream, tags) of a line; one with a longer head is not of the format.
pub(super) const MAX_HEAD: usize = 256;

/// Whether a line goes on in the next one, by its first [`MAX_HEAD`] bytes.
pub(super) fn is_partial(head: &[u8]) -> bool {
    LogLine::parse(head).is_some_and(|line| line.partial)
}

fn word(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    Some((bytes.get(..space)?, bytes.get(space + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: &str = "2016-10-06T00:17:09.669794202Z";

    fn parsed(rest: &str) -> Option<(OutputStream, bool, String)> {
        let line = format!("{T} {rest}");
        let line = LogLine::parse(line.as_bytes())?;
        assert_eq!(line.timestamp, T.as_bytes());
        let content = String::from_utf8_lossy(line.content).into_owned();
        Some((line.stream, line.partial, content))
    }

    #[test]
    fn lines_of_the_format_are_read() {
        let rows = [
            ("stdout F text", OutputStream::Stdout, false, "text"),
            ("stderr F text", OutputStream::Stderr, false, "text"),
            ("stdout P begin", OutputStream::Stdout, true, "begin"),
            ("stdout P:x:y begin", OutputStream::Stdout, true, "begin"),
            ("stdout F  two  spaces ", OutputStream::Stdout, false, " two  spaces "),
            ("stdout F ", OutputStream::Stdout, false, ""),
            ("stdout F", OutputStream::Stdout, false, ""),
        ];
        for (rest, stream, partial, content) in rows {
            assert_eq!(parsed(rest), Some((stream, partial, content.into())), "{rest:?}");
        }
    }

    #[test]
    fn a_timestamp_may_have_an_offset() {
        assert!(LogLine::parse(b"2016-10-06T00:17:09.669794202+02:00 stdout F x").is_some());
    }

    #[test]
    fn other_lines_are_refused() {
        for rest in ["", "stdout", "stdin F x", "stdout X x", "stdout  x", "STDOUT F x"] {
            assert_eq!(parsed(rest), None, "{rest:?}");
        }
        for line in ["", " ", "{\"log\":\"x\"}", "yesterday stdout F x", "\u{fffd} stdout F x"] {
            assert_eq!(LogLine::parse(line.as_bytes()), None, "{line:?}");
        }
        assert_eq!(LogLine::parse(b"\xff\xfe stdout F x"), None);
    }
}
