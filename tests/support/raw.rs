//! HTTP as bytes, for what a well-behaved client would not do, or would hide.

use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Longer than any honest answer takes, also where the machine has much else to do.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The head of an answer, in lower case but for the values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    pub status: u16,
    /// Name and value, in order.
    pub headers: Vec<(String, String)>,
}

impl Head {
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut of_it = self.headers.iter().filter(|(known, _)| known == name);
        of_it.next().map(|(_, value)| value.as_str())
    }
}

/// Connects to a local socket and sends a request; lines are separated by `\n`, its end is added.
pub async fn send(socket: &Path, request: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.expect("a socket");
    let text = request.trim().replace('\n', "\r\n") + "\r\n\r\n";
    stream.write_all(text.as_bytes()).await.expect("it is sent");
    stream
}

/// Reads a head, byte by byte, so that nothing behind it is taken.
pub async fn read_head<S: AsyncRead + Unpin>(stream: &mut S) -> Head {
    let read = async {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let byte = stream.read_u8().await;
            bytes.push(byte.unwrap_or_else(|error| {
                panic!("{error} in {:?}", String::from_utf8_lossy(&bytes))
            }));
        }
        String::from_utf8(bytes).expect("a head is text")
    };
    let text = timeout(TIMEOUT, read).await.expect("a head in time");
    let mut lines = text.trim_end().split("\r\n");
    let first = lines.next().expect("a first line");
    let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(':').expect("a header");
        (name.to_ascii_lowercase(), value.trim().to_owned())
    });
    Head { status: status.unwrap_or_default(), headers: headers.collect() }
}

/// All that comes until the other side closes.
pub async fn read_rest<S: AsyncRead + Unpin>(stream: &mut S) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let read = timeout(TIMEOUT, read).await.expect("the end in time");
    // A side that breaks off has said what it has said.
    drop(read);
    bytes
}

/// Head and body of one answer on a connection of its own.
pub async fn exchange(socket: &Path, request: &str) -> (Head, String) {
    let mut stream = send(socket, &format!("{}\nConnection: close", request.trim())).await;
    let head = read_head(&mut stream).await;
    let bytes = read_rest(&mut stream).await;
    let body = match head.get("transfer-encoding") {
        Some(_) => dechunked(&bytes),
        None => bytes,
    };
    (head, String::from_utf8(body).expect("text"))
}

/// A chunked body without its framing; one that was broken off is an error.
pub fn dechunked(bytes: &[u8]) -> Vec<u8> {
    let (mut bytes, mut body) = (bytes.to_vec(), Vec::new());
    assert!(take_chunks(&mut bytes, &mut body), "the body breaks off");
    body
}

/// Moves the content of whole chunks to the body, and leaves what comes after them; true when that was
/// the end.
pub fn take_chunks(bytes: &mut Vec<u8>, body: &mut Vec<u8>) -> bool {
    let mut at = 0;
    let ended = loop {
        let rest = &bytes[at..];
        let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else {
            break false;
        };
        let size = std::str::from_utf8(&rest[..end]).expect("a size is text");
        let size = usize::from_str_radix(size, 16).expect("a size is a number");
        if size == 0 {
            break true;
        }
        let Some(chunk) = rest.get(end + 2..end + 4 + size) else {
            break false;
        };
        body.extend_from_slice(&chunk[..size]);
        at += end + 4 + size;
    };
    bytes.drain(..at);
    ended
}
