//! Reads the last lines of a log.
//!
//! Everything here blocks: call it from `spawn_blocking`.

use super::{LogLine, files};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Limits of the part of a log that replaces a termination message (`FallbackToLogsOnError`).
pub const TERMINATION: TailLimits = TailLimits { lines: 80, bytes: 2048 };

/// Maximum number of bytes that are read from the end of a file. Runtimes cut lines at 16 KiB, so this is
/// many lines.
const MAX_READ: u64 = 256 * 1024;

/// The limits of a tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailLimits {
    /// Lines, counted from the end of the file. The pieces that the runtime split a line into are one line.
    pub lines: usize,
    /// Bytes of what the container wrote, counted from the end.
    pub bytes: usize,
}

/// The end of the output of a container, both streams in the order of the file: partial lines are joined,
/// lines of another format are left out, bytes that are not UTF-8 are replaced. Blocks.
///
/// # Errors
/// The file cannot be opened or read, or is not a regular file.
pub fn of_log(path: &Path, limits: TailLimits) -> io::Result<String> {
    let (file, metadata) = files::open(path)?;
    let size = metadata.len();
    let start = size.saturating_sub(MAX_READ);
    let mut window = vec![0; usize::try_from(size - start).map_err(io::Error::other)?];
    file.read_exact_at(&mut window, start)?;
    let content = content(&window, start == 0, limits.lines);
    Ok(lossy_end(&content, limits.bytes))
}

/// The content of the last lines in a window that ends at the file's end. The bytes before the first newline of the
/// window are a complete line only if the window starts at the beginning of the file.
fn content(window: &[u8], whole_file: bool, max_lines: usize) -> Vec<u8> {
    let body = window.strip_suffix(b"\n").unwrap_or(window);
    let (mut pieces, mut lines, mut is_cut) = (Vec::new(), 0, !whole_file);
    for piece in body.rsplit(|byte| *byte == b'\n') {
        let parsed = LogLine::parse(piece);
        // The pieces of a line are one line, also while its end is not written yet.
        lines += usize::from(pieces.is_empty() || parsed.is_none_or(|piece| !piece.partial));
        if lines > max_lines {
            is_cut = false;
            break;
        }
        pieces.push(parsed);
    }
    if is_cut {
        pieces.pop();
    }
    let mut content = Vec::new();
    for piece in pieces.into_iter().rev().flatten() {
        content.extend_from_slice(piece.content);
        if !piece.partial {
            content.push(b'\n');
        }
    }
    content
}

/// At most the last `limit` bytes as text, starting at a character boundary. Bytes that reach the limit count as the
/// end of longer ones.
pub fn lossy_end(content: &[u8], limit: usize) -> String {
    let cut = content.len().saturating_sub(limit);
    let rest = content.get(cut..).unwrap_or_default();
    let continues = |byte: &&u8| *byte & 0b1100_0000 == 0b1000_0000;
    let inside =
        if rest.len() == limit { rest.iter().take(3).take_while(continues).count() } else { 0 };
    String::from_utf8_lossy(rest.get(inside..).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const T: &str = "2016-10-06T00:17:09.669794202Z";
    const AMPLE: TailLimits = TailLimits { lines: 1000, bytes: 1_000_000 };

    fn tail(content: impl AsRef<[u8]>, lines: usize, bytes: usize) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        fs::write(&path, content).unwrap();
        of_log(&path, TailLimits { lines, bytes }).unwrap()
    }

    fn log(lines: impl IntoIterator<Item = String>) -> String {
        lines.into_iter().map(|line| format!("{T} stdout {line}\n")).collect()
    }

    #[test]
    fn the_last_lines_come_in_order_without_their_heads() {
        let content = log((0..100).map(|i| format!("F line {i}")));
        assert_eq!(tail(&content, 3, 1000), "line 97\nline 98\nline 99\n");
    }

    #[test]
    fn both_streams_are_read() {
        let content = format!("{T} stdout F out\n{T} stderr F err\n");
        assert_eq!(tail(content, 80, 2048), "out\nerr\n");
    }

    #[test]
    fn partial_lines_are_joined() {
        let content = log(["P one ".into(), "P and ".into(), "F two".into(), "F three".into()]);
        assert_eq!(tail(content, 80, 2048), "one and two\nthree\n");
    }

    #[test]
    fn pieces_of_a_line_count_as_one() {
        let pieces = (0..50).map(|i| format!("P {i} "));
        let content = log(std::iter::once("F before".to_owned())
            .chain(pieces)
            .chain(["F end".to_owned(), "F last".to_owned()]));
        let text = tail(&content, 2, 2048);
        assert!(text.starts_with("0 1 2 ") && text.ends_with("49 end\nlast\n"), "{text}");
    }

    #[test]
    fn a_last_line_without_a_newline_counts() {
        let content = format!("{T} stdout F whole\n{T} stdout F cut");
        assert_eq!(tail(content, 1, 2048), "cut\n");
    }

    #[test]
    fn the_end_is_kept_when_there_are_too_many_bytes() {
        let content = log((0..100).map(|i| format!("F {i:0>99}")));
        let text = tail(&content, 80, 2048);
        assert_eq!(text.len(), 2048);
        assert!(text.ends_with(&format!("{:0>99}\n", 99)));
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        let content = log(["F éééé".into()]);
        assert_eq!(tail(content, 80, 4), "é\n", "four bytes would begin inside a character");
    }

    #[test]
    fn lines_of_another_format_are_left_out() {
        let content = format!("rubbish\n{T} stdout F kept\n\n{{\"log\":\"x\"}}\n");
        assert_eq!(tail(content, 80, 2048), "kept\n");
    }

    #[test]
    fn an_empty_file_gives_nothing() {
        assert_eq!(tail("", 80, 2048), "");
        assert_eq!(tail("\n", 80, 2048), "");
    }

    #[test]
    fn bytes_that_are_not_text_are_replaced() {
        let mut content = format!("{T} stdout F ").into_bytes();
        content.extend_from_slice(b"a\xff\xfeb\0c\n");
        assert_eq!(tail(content, 80, 2048), "a\u{fffd}\u{fffd}b\0c\n");
    }

    #[test]
    fn of_a_long_log_the_last_lines_are_read() {
        let long = "x".repeat(10_000);
        let content = log((0..200).map(|i| format!("F {i} {long}")));
        let text = tail(&content, 5, 1_000_000);
        assert_eq!(text.lines().count(), 5);
        assert!(text.starts_with("195 x") && text.ends_with("x\n"));
    }

    #[test]
    fn a_hostile_file_costs_a_window_and_no_more() {
        let endless = vec![b'x'; 5 << 20];
        assert_eq!(tail(&endless, 80, 2048), "");
        let newlines = vec![b'\n'; 5 << 20];
        assert_eq!(tail(&newlines, 80, 2048), "");
        let zeros = vec![0; 5 << 20];
        assert_eq!(tail(&zeros, usize::MAX, usize::MAX), "");
    }

    #[test]
    fn whatever_the_limits_the_end_agrees_with_reading_it_all() {
        let content =
            log((0..300).map(|i| format!("{} {i:->97}", if i % 3 == 0 { 'P' } else { 'F' })));
        let all = tail(&content, AMPLE.lines, AMPLE.bytes);
        for bytes in [1, 10, 97, 98, 5000, 29_000] {
            let text = tail(&content, AMPLE.lines, bytes);
            assert_eq!(text.len(), bytes.min(all.len()));
            assert!(all.ends_with(&text), "{bytes}");
        }
    }

    #[test]
    fn a_pipe_or_a_directory_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let error = of_log(dir.path(), TERMINATION).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let error = of_log(&pipe, TERMINATION).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_missing_file_is_not_found() {
        let error = of_log(Path::new("/nonexistent/0.log"), TERMINATION).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
