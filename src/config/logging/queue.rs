//! The queue between logging code and the log's writer, so that logging never blocks on the output.

use parking_lot::{Condvar, Mutex};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

/// Maximum size of queued lines in bytes. Lines that do not fit are dropped and counted.
const MAX_BYTES: usize = 1024 * 1024;

/// A bounded queue of log lines. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct LogQueue {
    shared: Arc<(Mutex<QueueState>, Condvar)>,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Complete lines with their line breaks.
    waiting: Vec<u8>,
    /// Lines dropped since the start of the process.
    dropped: u64,
    /// Lines dropped and not yet reported in the log.
    unreported: u64,
    /// The writer thread is writing lines that it took from `waiting`.
    writing: bool,
}

impl LogQueue {
    /// Starts a thread that writes the lines, each with one `write`. `report` formats the line that is written in
    /// place of that many dropped ones.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(
        out: impl Write + Send + 'static,
        report: impl Fn(u64) -> String + Send + 'static,
    ) -> io::Result<Self> {
        let queue = Self::default();
        let own = queue.clone();
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || own.write_out(out, &report))?;
        Ok(queue)
    }

    /// Number of lines dropped because the output was too slow.
    pub(super) fn dropped(&self) -> u64 {
        self.shared.0.lock().dropped
    }

    /// Waits until all queued lines are written, at most for `limit`. Blocking.
    #[expect(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "locks and condition variables wait by the standard library's clock"
    )]
    pub(super) fn flush(&self, limit: Duration) {
        let end = std::time::Instant::now() + limit;
        let (state, changed) = &*self.shared;
        // With a timeout, because this thread may have panicked while it held the lock.
        let Some(mut state) = state.try_lock_until(end) else {
            return;
        };
        while state.writing || !state.waiting.is_empty() || state.unreported > 0 {
            if changed.wait_until(&mut state, end).timed_out() {
                return;
            }
        }
    }

    fn write_out(&self, mut out: impl Write, report: &impl Fn(u64) -> String) {
        let (state, changed) = &*self.shared;
        let mut lines = Vec::new();
        loop {
            let dropped = {
                let mut state = state.lock();
                state.writing = false;
                changed.notify_all();
                while state.waiting.is_empty() && state.unreported == 0 {
                    changed.wait(&mut state);
                }
                state.writing = true;
                lines.clear();
                std::mem::swap(&mut state.waiting, &mut lines);
                std::mem::take(&mut state.unreported)
            };
            // A write error cannot be reported anywhere.
            for line in lines.split_inclusive(|byte| *byte == b'\n') {
                let _ = out.write_all(line);
            }
            // Lines are dropped while the queue is full, so the dropped ones came right after those just written.
            if dropped > 0 {
                let _ = out.write_all(report(dropped).as_bytes());
            }
            // Frees the memory after a burst.
            lines.clear();
            lines.shrink_to(MAX_BYTES / 16);
        }
    }
}

/// Queues one line per `write`; never fails or blocks.
impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let (state, changed) = &*self.shared;
        let mut state = state.lock();
        // After a line was dropped, all lines are dropped until that is reported, so that the report stands where
        // they are missing.
        if state.unreported > 0 || state.waiting.len() + line.len() > MAX_BYTES {
            state.dropped += 1;
            state.unreported += 1;
        } else {
            state.waiting.extend_from_slice(line);
        }
        changed.notify_all();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
