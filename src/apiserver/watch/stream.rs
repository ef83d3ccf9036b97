//! The response to a watch, read by lines.

use crate::apiserver::ApiError;
use crate::apiserver::transport::WatchSlot;
use crate::base::clock::{self, Instant};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use kube::client::Body;
use std::time::Duration;
use tokio::time::timeout_at;

/// How long after its requested duration a watch that has not ended is aborted.
const WATCH_GRACE: Duration = Duration::from_secs(30);
/// Maximum length of a watch event, bytes: several times what the API server stores.
const MAX_EVENT: usize = 32 * 1024 * 1024;

/// The response to a watch.
pub(super) struct WatchStream {
    body: Body,
    buffer: BytesMut,
    /// Number of bytes at the start of the buffer that are known to have no newline.
    searched: usize,
    pub(super) opened: Instant,
    until: Instant,
    /// It had a line.
    pub(super) has_events: bool,
    _slot: WatchSlot,
}

impl WatchStream {
    /// `lasts` is its requested duration.
    pub(super) fn new(body: Body, lasts: Duration, slot: WatchSlot) -> Self {
        let opened = clock::instant();
        Self {
            body,
            buffer: BytesMut::new(),
            searched: 0,
            opened,
            until: opened + lasts + WATCH_GRACE,
            has_events: false,
            _slot: slot,
        }
    }

    /// Reads the next line; `None` at the end of the response. Cancel safe.
    pub(super) async fn line(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            let rest = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + at + 1);
                self.searched = 0;
                if self.buffer.is_empty() {
                    // Releases the memory of a large event while the watch continues.
                    self.buffer = BytesMut::new();
                }
                return Ok(Some(line.freeze()));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_EVENT {
                return Err(ApiError::Unreadable("an event of a watch is too long".into()));
            }
            let frame = timeout_at(self.until, self.body.frame()).await;
            let Ok(frame) = frame else {
                return Ok(None);
            };
            match frame {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
                Some(Err(error)) => return Err(ApiError::Unreachable(error.into())),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(ApiError::Unreachable("a watch ended in an event".into())),
            }
        }
    }
}
