//! One file of a log's chain, and reading it from a place on. Everything here blocks.

use crate::runtime::logs::files::FileId;
use flate2::bufread::MultiGzDecoder;
use std::{
    fs::{File, Metadata},
    io::{self, BufRead as _, BufReader, Read},
    os::unix::fs::FileExt as _,
    sync::Arc,
};

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
        Arc::new(Self {
            file,
            id: FileId::of(metadata),
            gzip,
        })
    }
}

/// Where the last lines of a file begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TailStart {
    /// At this byte.
    At(u64),
    /// Before the file, which has only so many.
    Before(u64),
}

/// Finds where the last `lines` of the first `length` bytes begin. A last line without a newline counts.
pub(super) fn tail_start(file: &File, length: u64, lines: u64) -> io::Result<TailStart> {
    if lines == 0 {
        return Ok(TailStart::At(length));
    }
    let mut buffer = vec![0; BLOCK];
    let (mut end, mut found) = (length, 0);
    while end > 0 {
        let begin = end.saturating_sub(BLOCK as u64);
        let size = usize::try_from(end - begin).map_err(io::Error::other)?;
        let block = buffer.get_mut(..size).unwrap_or_default();
        file.read_exact_at(block, begin)?;
        for (index, byte) in block.iter().enumerate().rev() {
            let next = begin + index as u64 + 1;
            // The newline at the very end begins no line.
            if *byte == b'\n' && next < length {
                found += 1;
                if found == lines {
                    return Ok(TailStart::At(next));
                }
            }
        }
        end = begin;
    }
    found += u64::from(length > 0);
    Ok(if found == lines {
        TailStart::At(0)
    } else {
        TailStart::Before(found)
    })
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
            Self::Plain {
                segment,
                offset: 0,
                end: u64::MAX,
            }
        }
    }

    /// Reads on; empty at the end. At most [`BLOCK`] bytes.
    pub(super) fn read(&mut self) -> io::Result<Vec<u8>> {
        match self {
            Self::Plain {
                segment,
                offset,
                end,
            } => {
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
        for _ in 0..lines {
            if reader.skip_until(b'\n')? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// How many lines are left; reads to the end.
    pub(super) fn count_lines(mut self) -> io::Result<u64> {
        let (mut lines, mut last) = (0, b'\n');
        loop {
            let bytes = self.read()?;
            let Some(byte) = bytes.last() else {
                return Ok(lines + u64::from(last != b'\n'));
            };
            last = *byte;
            lines += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        }
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

    #[test]
    fn the_last_lines_begin_where_they_begin() {
        use TailStart::{At, Before};
        for (content, lines, start) in [
            ("a\nb\nc\n", 0, At(6)),
            ("a\nb\nc\n", 1, At(4)),
            ("a\nb\nc\n", 3, At(0)),
            ("a\nb\nc\n", 4, Before(3)),
            ("a\nb\ncut", 1, At(4)),
            ("a\nb\ncut", 3, At(0)),
            ("a\nb\ncut", 4, Before(3)),
            ("\n\n\n", 2, At(1)),
            ("", 0, At(0)),
            ("", 1, Before(0)),
            ("\n", 1, At(0)),
            ("x", 1, At(0)),
        ] {
            let segment = file(content.as_bytes());
            let found = tail_start(&segment.file, content.len() as u64, lines).unwrap();
            assert_eq!(found, start, "{lines} of {content:?}");
            if let Before(count) = found {
                let counted = Cursor::new(gzip(content.as_bytes())).count_lines().unwrap();
                assert_eq!(counted, count, "{content:?}");
            }
        }
    }

    #[test]
    fn lines_at_the_edges_of_blocks_are_found() {
        for length in BLOCK - 2..BLOCK + 3 {
            let content = [vec![b'x'; length], b"\nlast\n".to_vec()].concat();
            let segment = file(&content);
            let start = tail_start(&segment.file, content.len() as u64, 1).unwrap();
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
    fn lines_of_a_compressed_file_can_be_skipped() {
        let mut cursor = Cursor::new(gzip(b"a\nb\nc\ncut"));
        cursor.skip_lines(2).unwrap();
        assert_eq!(rest(cursor), b"c\ncut");
        let mut cursor = Cursor::new(gzip(b"a\n"));
        cursor.skip_lines(9).unwrap();
        assert_eq!(rest(cursor), b"");
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
