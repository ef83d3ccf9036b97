//! One file of a log's chain, and reading it from a place on. Everything here blocks.

use crate::runtime::logs::files::FileId;
use crate::runtime::logs::line::{MAX_HEAD, is_partial};
use flate2::bufread::MultiGzDecoder;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

/// Bytes read at a time.
pub(super) const BLOCK: usize = 64 * 1024;

/// An open file, shared by all who read it.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) file: File,
    pub(super) id: FileId,
    pub(super) gzip: bool,
}

impl Segment {
    pub(super) fn new(file: File, metadata: &Metadata, gzip: bool) -> Arc<Self> {
        Arc::new(Self { file, id: FileId::of(metadata), gzip })
    }
}

/// Where the last lines of a file begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TailStart {
    /// At this byte.
    At(u64),
    /// In an older file, because only so many lines are known to begin in this one.
    Before(u64),
}

/// Finds where the last `lines` of the first `length` bytes begin. A last line without a newline counts. The pieces that
/// the runtime split a line into are one line; the first one may be the rest of a line of an older file. Where a file
/// `goes_on` in a newer one, the line that begins behind its end counts as well, unless it begins in this file.
pub(super) fn tail_start(
    file: &File,
    length: u64,
    lines: u64,
    goes_on: bool,
) -> io::Result<TailStart> {
    if lines == 0 {
        return Ok(TailStart::At(length));
    }
    let mut buffer = vec![0; BLOCK];
    let (mut end, mut found) = (length, 0);
    // The end of the piece whose beginning is searched.
    let mut piece_end = length;
    while end > 0 {
        let begin = end.saturating_sub(BLOCK as u64);
        let size = usize::try_from(end - begin).map_err(io::Error::other)?;
        let block = buffer.get_mut(..size).unwrap_or_default();
        file.read_exact_at(block, begin)?;
        let newlines = block.iter().enumerate().rev();
        let newlines = newlines.filter_map(|(at, byte)| (*byte == b'\n').then_some(at + 1));
        let starts = newlines.chain((begin == 0).then_some(0));
        for start in starts {
            let piece_start = begin + start as u64;
            // The newline at the very end begins no piece.
            if piece_start == length {
                continue;
            }
            let ends_line = piece_end < length || goes_on;
            if ends_line && !is_partial(&head(file, block, start, piece_start..piece_end)?) {
                found += 1;
                if found == lines {
                    return Ok(TailStart::At(piece_end));
                }
            }
            piece_end = piece_start;
        }
        end = begin;
    }
    Ok(TailStart::Before(found))
}

/// The head of a piece, which is in the block read last or goes on behind it.
fn head(file: &File, block: &[u8], start: usize, piece: Range<u64>) -> io::Result<Vec<u8>> {
    let length = (piece.end - piece.start).min(MAX_HEAD as u64);
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let mut head = match block.get(start..start + length) {
        Some(head) => head.to_vec(),
        None => {
            let mut head = vec![0; length];
            file.read_exact_at(&mut head, piece.start)?;
            head
        }
    };
    if head.last() == Some(&b'\n') {
        head.pop();
    }
    Ok(head)
}

/// Passes over lines until so many have ended, or to the end. Returns how many ended, and whether pieces of one more
/// followed.
fn pass_lines(reader: &mut impl BufRead, most: u64) -> io::Result<(u64, bool)> {
    let (mut ended, mut is_open, mut head) = (0, false, Vec::new());
    while ended < most {
        let bytes = reader.fill_buf()?;
        let newline = bytes.iter().position(|byte| *byte == b'\n');
        let piece = bytes.get(..newline.unwrap_or(bytes.len()));
        let free = MAX_HEAD.saturating_sub(head.len());
        head.extend(piece.unwrap_or_default().iter().take(free));
        let is_end = bytes.is_empty();
        let passed = newline.map_or(bytes.len(), |at| at + 1);
        reader.consume(passed);
        if newline.is_some() || is_end && !head.is_empty() {
            is_open = is_partial(&head);
            ended += u64::from(!is_open);
            head.clear();
        }
        if is_end {
            break;
        }
    }
    Ok((ended, is_open))
}

/// A place in a segment, from which it is read on.
pub(super) enum Cursor {
    /// In a file as the runtime wrote it.
    Plain {
        segment: Arc<Segment>,
        offset: u64,
        /// Nothing is read from here on.
        end: u64,
    },
    /// In a compressed file.
    Gzip(Box<BufReader<MultiGzDecoder<BufReader<ReadAt>>>>),
}

/// A file read from its beginning, without moving the place of others.
pub(super) struct ReadAt {
    segment: Arc<Segment>,
    offset: u64,
}

impl Read for ReadAt {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.segment.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Cursor {
    /// From the beginning of a segment to its end.
    pub(super) fn new(segment: Arc<Segment>) -> Self {
        if segment.gzip {
            let file = ReadAt { segment, offset: 0 };
            let decoder = MultiGzDecoder::new(BufReader::new(file));
            Self::Gzip(Box::new(BufReader::with_capacity(BLOCK, decoder)))
        } else {
            Self::Plain { segment, offset: 0, end: u64::MAX }
        }
    }

    /// Reads on; empty at the end. At most [`BLOCK`] bytes.
    pub(super) fn read(&mut self) -> io::Result<Vec<u8>> {
        match self {
            Self::Plain { segment, offset, end } => {
                let left = end.saturating_sub(*offset).min(BLOCK as u64);
                let mut bytes = vec![0; usize::try_from(left).map_err(io::Error::other)?];
                let read = segment.file.read_at(&mut bytes, *offset)?;
                bytes.truncate(read);
                *offset += read as u64;
                Ok(bytes)
            }
            Self::Gzip(reader) => {
                let bytes = reader.fill_buf()?.to_vec();
                reader.consume(bytes.len());
                Ok(bytes)
            }
        }
    }

    /// Passes over so many lines.
    pub(super) fn skip_lines(&mut self, lines: u64) -> io::Result<()> {
        let Self::Gzip(reader) = self else {
            return Err(io::Error::other("lines of a plain file are not skipped"));
        };
        pass_lines(reader, lines).map(drop)
    }

    /// How many lines are left, and whether the pieces of one more follow; reads to the end.
    pub(super) fn count_lines(self) -> io::Result<(u64, bool)> {
        let Self::Gzip(mut reader) = self else {
            return Err(io::Error::other("lines of a plain file are not counted"));
        };
        pass_lines(&mut reader, u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn file(content: &[u8]) -> Arc<Segment> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        let metadata = file.metadata().unwrap();
        Segment::new(file, &metadata, false)
    }

    fn gzip(content: &[u8]) -> Arc<Segment> {
        let mut file = tempfile::tempfile().unwrap();
        let mut encoder = flate2::write::GzEncoder::new(&mut file, flate2::Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap();
        let metadata = file.metadata().unwrap();
        Segment::new(file, &metadata, true)
    }

    fn rest(mut cursor: Cursor) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let bytes = cursor.read().unwrap();
            if bytes.is_empty() {
                return all;
            }
            all.extend(bytes);
        }
    }

    /// A piece of a line in the runtime's format, of 45 bytes.
    fn piece(tag: char) -> String {
        format!("2026-01-02T03:04:05.000000006Z stdout {tag} text\n")
    }

    #[test]
    fn the_last_lines_begin_where_they_begin() {
        use TailStart::{At, Before};
        let (whole, begun) = (piece('F'), piece('P'));
        let size = whole.len() as u64;
        let split = format!("{whole}{begun}{begun}{whole}{whole}{begun}");
        for (content, lines, goes_on, start) in [
            ("a\nb\nc\n", 0, false, At(6)),
            ("a\nb\nc\n", 1, false, At(4)),
            ("a\nb\nc\n", 2, false, At(2)),
            ("a\nb\nc\n", 3, false, Before(2)),
            ("a\nb\ncut", 1, false, At(4)),
            ("a\nb\ncut", 3, false, Before(2)),
            ("\n\n\n", 2, false, At(1)),
            ("", 0, false, At(0)),
            ("", 1, false, Before(0)),
            ("\n", 1, false, Before(0)),
            ("x", 1, false, Before(0)),
            ("a\nb\n", 1, true, At(4)),
            ("a\nb", 1, true, At(3)),
            ("a\nb\n", 2, true, At(2)),
            ("a\nb\n", 3, true, Before(2)),
            ("", 1, true, Before(0)),
            (&split, 1, false, At(5 * size)),
            (&split, 2, false, At(4 * size)),
            (&split, 3, false, At(size)),
            (&split, 4, false, Before(3)),
            (&split, 1, true, At(5 * size)),
        ] {
            let segment = file(content.as_bytes());
            let found = tail_start(&segment.file, content.len() as u64, lines, goes_on).unwrap();
            assert_eq!(found, start, "{lines} of {content:?}");
        }
    }

    #[test]
    fn lines_of_a_compressed_file_are_counted_and_skipped() {
        let (whole, begun) = (piece('F'), piece('P'));
        for (content, count) in [
            (String::new(), (0, false)),
            ("a\nb\n".to_owned(), (2, false)),
            ("a\n\ncut".to_owned(), (3, false)),
            (format!("{whole}{begun}{begun}{whole}"), (2, false)),
            (format!("{whole}{begun}"), (1, true)),
            (format!("{whole}{}", begun.trim_end()), (1, true)),
        ] {
            let counted = Cursor::new(gzip(content.as_bytes())).count_lines();
            assert_eq!(counted.unwrap(), count, "{content:?}");
        }
        let content = format!("{whole}{begun}{begun}{whole}{begun}");
        for (lines, pieces) in [(0, 5), (1, 4), (2, 1), (3, 0)] {
            let mut cursor = Cursor::new(gzip(content.as_bytes()));
            cursor.skip_lines(lines).unwrap();
            assert_eq!(rest(cursor).len(), pieces * whole.len(), "{lines}");
        }
    }

    #[test]
    fn lines_at_the_edges_of_blocks_are_found() {
        for length in BLOCK - 2..BLOCK + 3 {
            let content = [vec![b'x'; length], b"\nlast\n".to_vec()].concat();
            let segment = file(&content);
            let start = tail_start(&segment.file, content.len() as u64, 1, false).unwrap();
            assert_eq!(start, TailStart::At(length as u64 + 1));
            // The head of the piece before goes on in the next block.
            let content = [vec![b'x'; length], format!("\n{}last", piece('P')).into()].concat();
            let segment = file(&content);
            let start = tail_start(&segment.file, content.len() as u64, 1, false).unwrap();
            assert_eq!(start, TailStart::At(length as u64 + 1));
        }
    }

    #[test]
    fn compressed_and_plain_files_read_the_same() {
        let content: Vec<u8> = (0..200_000_u32).flat_map(|n| n.to_le_bytes()).collect();
        assert!(rest(Cursor::new(file(&content))) == content);
        assert!(rest(Cursor::new(gzip(&content))) == content);
    }

    #[test]
    fn a_compressed_file_that_is_cut_or_broken_is_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"\x1f\x8b\x08rubbish").unwrap();
        let metadata = file.metadata().unwrap();
        let mut cursor = Cursor::new(Segment::new(file, &metadata, true));
        assert!(cursor.read().is_err());
    }
}
