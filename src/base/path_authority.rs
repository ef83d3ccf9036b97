//! Accepts HTTP/2 requests of Go clients on Unix sockets.
//!
//! Such a client may send the socket's path as `:authority`, and the HTTP/2 library rejects an authority with `/` or
//! `%`. These characters are replaced while the request is read, by others whose Huffman codes have the same length,
//! so that the header block keeps its size.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::{Connected, UdsConnectInfo};

/// A connection whose requests may have a path as `:authority`.
#[derive(Debug)]
pub struct PathAuthority {
    inner: UnixStream,
    rewriter: Rewriter,
    /// Rewritten bytes that were not read yet.
    out: Vec<u8>,
}

impl PathAuthority {
    /// Wraps a connection from which nothing was read yet.
    pub fn new(inner: UnixStream) -> Self {
        Self { inner, rewriter: Rewriter::default(), out: Vec::new() }
    }
}

impl Connected for PathAuthority {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.inner.connect_info()
    }
}

impl AsyncRead for PathAuthority {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.out.is_empty() {
            let mut bytes = [0; 4096];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                // End of the stream, possibly within a frame.
                this.out.append(&mut this.rewriter.held);
                break;
            }
            this.rewriter.feed(read.filled(), &mut this.out);
        }
        let taken = this.out.len().min(buffer.remaining());
        buffer.put_slice(this.out.get(..taken).unwrap_or_default());
        this.out.drain(..taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PathAuthority {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// Length of the client preface, which precedes the first frame.
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
/// Maximum size of a HEADERS frame that is rewritten: the size that every server has to accept (RFC 9113).
const MAX_FRAME: usize = 1 << 14;
const HEADERS: u8 = 1;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// Parses the client's frames. Only HEADERS frames are buffered until they are complete.
#[derive(Debug)]
struct Rewriter {
    held: Vec<u8>,
    /// Number of bytes to pass through unchanged.
    pass: usize,
}

impl Default for Rewriter {
    fn default() -> Self {
        Self { held: Vec::new(), pass: PREFACE }
    }
}

impl Rewriter {
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.held.extend_from_slice(bytes);
        loop {
            let now = self.pass.min(self.held.len());
            out.extend(self.held.drain(..now));
            self.pass -= now;
            let &[a, b, c, kind, flags, ..] = self.held.as_slice() else {
                return;
            };
            if self.pass > 0 || self.held.len() < FRAME_HEAD {
                return;
            }
            let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            let end = FRAME_HEAD + length;
            if kind == HEADERS && length <= MAX_FRAME {
                let Some(block) = self.held.get_mut(FRAME_HEAD..end) else {
                    return;
                };
                let before = if flags & PRIORITY == 0 { 0 } else { 5 };
                let before = before + usize::from(flags & PADDED != 0);
                if let Some(fields) = block.get_mut(before..) {
                    // The library rejects a malformed header block.
                    let _ = rewrite(fields);
                }
            }
            self.pass = end;
        }
    }
}

/// Iterates over the fields of a header block (RFC 7541); `None` if it is truncated.
fn rewrite(block: &mut [u8]) -> Option<()> {
    let mut at = 0;
    while let Some(&first) = block.get(at) {
        if first & 0x80 != 0 {
            integer(block, &mut at, 7)?;
        } else if first & 0xe0 == 0x20 {
            integer(block, &mut at, 5)?;
        } else {
            let prefix = if first & 0x40 == 0 { 4 } else { 6 };
            let name = integer(block, &mut at, prefix)?;
            if name == 0 {
                string(block, &mut at)?;
            }
            let (huffman, value) = string(block, &mut at)?;
            // Index 1 of HPACK's static table is `:authority`.
            if name == 1 {
                replace(block.get_mut(value)?, huffman);
            }
        }
    }
    Some(())
}

fn integer(block: &[u8], at: &mut usize, prefix: u32) -> Option<usize> {
    let mask = (1_u8 << prefix) - 1;
    let mut value = usize::from(block.get(*at)? & mask);
    *at += 1;
    if value < usize::from(mask) {
        return Some(value);
    }
    for shift in [0, 7, 14] {
        let byte = *block.get(*at)?;
        *at += 1;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Whether a string is Huffman-coded, and its range.
fn string(block: &[u8], at: &mut usize) -> Option<(bool, Range<usize>)> {
    let huffman = block.get(*at)? & 0x80 != 0;
    let length = integer(block, at, 7)?;
    let range = *at..at.checked_add(length)?;
    block.get(range.clone())?;
    *at = range.end;
    Some((huffman, range))
}

fn replace(value: &mut [u8], huffman: bool) {
    if !huffman {
        for byte in value {
            match *byte {
                b'/' => *byte = b'.',
                b'%' => *byte = b'-',
                _ => {}
            }
        }
        return;
    }
    let mut at = 0;
    while let Some(length) = code_length(value, at) {
        match (length, bits(value, at, length)) {
            // Codes of six bits: `%` is replaced by `-`, `/` by `.`.
            (6, Some(0b01_0101)) => set(value, at, 0b01_0110),
            (6, Some(0b01_1000)) => set(value, at, 0b01_0111),
            _ => {}
        }
        at += length;
    }
}

/// The number of bits of the Huffman code at this position, for characters of paths; shorter codes have smaller
/// values.
fn code_length(value: &[u8], at: usize) -> Option<usize> {
    let ends = [(5, 9), (6, 45), (7, 123), (8, 253)];
    let mut fitting = ends
        .iter()
        .filter(|(length, last)| bits(value, at, *length).is_some_and(|code| code <= *last));
    fitting.next().map(|(length, _)| *length)
}

fn bits(value: &[u8], at: usize, count: usize) -> Option<u32> {
    (at..at + count).try_fold(0, |code, bit| {
        let byte = value.get(bit / 8)?;
        Some(code << 1 | u32::from(byte >> (7 - bit % 8) & 1))
    })
}

fn set(value: &mut [u8], at: usize, code: u8) {
    for index in 0..6 {
        let (bit, one) = (at + index, code >> (5 - index) & 1);
        if let Some(byte) = value.get_mut(bit / 8) {
            let mask = 1 << (7 - bit % 8);
            *byte = if one == 0 { *byte & !mask } else { *byte | mask };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn a_path_as_authority_is_replaced_and_nothing_else() {
        let (method, plain) = (&[0x83][..], &[0x41, 5][..]);
        // `:path` is `/a%2F`, too, and a name is spelt out.
        let rest = [&[0x44, 5][..], b"/a%2F", &[0x40, 1, b'x', 1, b'/']].concat();
        let huffman = |value: [u8; 3]| [&[0x41, 0x83][..], &value[..]].concat();
        for (block, flags, expected) in [
            (
                [method, plain, b"/a%2F", &rest].concat(),
                4,
                [method, plain, b".a-2F", &rest].concat(),
            ),
            // `/a%`, and `.a-`, compressed.
            (huffman([0x60, 0x6a, 0xff]), 4, huffman([0x5c, 0x6b, 0x7f])),
            (
                [&[0, 0, 0, 0, 0, 9][..], plain, b"/a%2F"].concat(),
                PADDED | PRIORITY,
                [&[0, 0, 0, 0, 0, 9][..], plain, b".a-2F"].concat(),
            ),
            (vec![0x41, 9, b'/'], 4, vec![0x41, 9, b'/']),
        ] {
            let whole = |block: &[u8]| {
                let preface = [b'p'; PREFACE];
                let (headers, data) = (frame(HEADERS, flags, block), frame(0, 0, b"A\x05/a%2F"));
                [&preface[..], &headers, &data, &headers].concat()
            };
            let (sent, expected) = (whole(&block), whole(&expected));
            // In one piece, and byte by byte.
            for size in [sent.len(), 1] {
                let (mut rewriter, mut out) = (Rewriter::default(), Vec::new());
                for part in sent.chunks(size) {
                    rewriter.feed(part, &mut out);
                }
                assert_eq!(out, expected);
            }
        }
    }
}
