//! The queue between the code that logs and the writer of the log: logging never waits for the log to be read.

use parking_lot::{Condvar, Mutex};
use std::{
    io::{self, Write},
    sync::Arc,
    time::{Duration, Instant},
};

/// Lines that wait to be written, in bytes. What does not fit is dropped and counted.
const MAX_BYTES: usize = 1024 * 1024;

/// A bounded queue of lines. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct LogQueue {
    shared: Arc<(Mutex<QueueState>, Condvar)>,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Whole lines, each with its line break.
    waiting: Vec<u8>,
    /// Lines dropped since the start.
    dropped: u64,
    /// Lines dropped and not yet reported in the log.
    unreported: u64,
    /// The writer has taken lines that are not written yet.
    writing: bool,
}

impl LogQueue {
    /// Starts a thread that writes the lines, each with one call. `report` makes the line that stands where
    /// so many lines were dropped.
    ///
    /// # Errors
    /// No thread can be started.
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

    /// Lines that were dropped because the log was not read fast enough.
    pub(super) fn dropped(&self) -> u64 {
        self.shared.0.lock().dropped
    }

    /// Waits until everything that was queued is written, but no longer than this. Blocking.
    pub(super) fn flush(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let (state, changed) = &*self.shared;
        // A panic of this thread may have happened while it held the lock.
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
            // There is nowhere to report that the log cannot be written.
            for line in lines.split_inclusive(|byte| *byte == b'\n') {
                let _ = out.write_all(line);
            }
            // Lines are dropped while the queue is full, so they were to follow those just written.
            if dropped > 0 {
                let _ = out.write_all(report(dropped).as_bytes());
            }
            // A burst must not cost its memory for ever.
            lines.clear();
            lines.shrink_to(MAX_BYTES / 16);
        }
    }
}

/// Takes one line with each `write`, and never fails or waits for the writer.
impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let (state, changed) = &*self.shared;
        let mut state = state.lock();
        // After a line was dropped, none is taken until that is reported, so that the report stands in the gap.
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
