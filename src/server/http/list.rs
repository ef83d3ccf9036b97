//! JSON lists, serialized while they are sent.

use super::response::Body;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde::Serialize;

/// Minimum size of a chunk, except for the last one.
const MIN_CHUNK: usize = 16 * 1024;

/// A `v1` list. Its items are serialized one by one as the client reads, so that only one chunk of text is in memory.
pub(in crate::server) fn body<T: Serialize>(
    kind: &str,
    items: impl Iterator<Item = T> + Send + 'static,
) -> Body {
    let head = format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"v1\",\"metadata\":{{}},\"items\":[");
    array(head, items)
}

/// Any object that ends with an array: `head` is the text up to the opening bracket.
pub(in crate::server) fn array<T: Serialize>(
    head: String,
    items: impl Iterator<Item = T> + Send + 'static,
) -> Body {
    let mut writer = ListWriter { items, buffer: head.into_bytes(), first: true, done: false };
    let chunks = stream::iter(std::iter::from_fn(move || writer.next_chunk()));
    let frames = chunks.then(|chunk| async {
        // With a fast client this loop never waits, so it yields to not starve other tasks.
        tokio::task::yield_now().await;
        chunk.map(Frame::data).map_err(Into::into)
    });
    StreamBody::new(frames).boxed_unsync()
}

struct ListWriter<I> {
    items: I,
    buffer: Vec<u8>,
    first: bool,
    done: bool,
}

impl<T: Serialize, I: Iterator<Item = T>> ListWriter<I> {
    fn next_chunk(&mut self) -> Option<Result<Bytes, serde_json::Error>> {
        if self.done {
            return None;
        }
        while self.buffer.len() < MIN_CHUNK {
            let Some(item) = self.items.next() else {
                self.buffer.extend_from_slice(b"]}\n");
                self.done = true;
                break;
            };
            if !self.first {
                self.buffer.push(b',');
            }
            self.first = false;
            if let Err(error) = serde_json::to_writer(&mut self.buffer, &item) {
                tracing::error!(err = %error, "Serializing an item of a list failed");
                self.done = true;
                return Some(Err(error));
            }
        }
        let chunk = std::mem::replace(&mut self.buffer, Vec::with_capacity(MIN_CHUNK * 5 / 4));
        Some(Ok(Bytes::from(chunk)))
    }
}
