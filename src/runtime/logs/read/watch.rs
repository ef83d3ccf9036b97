//! Watching directories of logs: one inotify instance for all of them.
//!
//! An event means "check again". Only one kind says more: that a writer closed a file, and which.

use crate::base::panics::PanicScope;
use crate::base::spawn;
use futures::{FutureExt as _, StreamExt as _};
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Minimum interval between wake-ups, so that a busy container does not wake its followers for each write.
const GATHER: Duration = Duration::from_millis(5);
/// How many closed files of a directory are remembered.
const CLOSED: usize = 16;

/// The watches. Nothing is opened before the first.
#[derive(Default)]
pub(super) struct LogWatcher {
    shared: Arc<Mutex<WatchState>>,
}

#[derive(Default)]
struct WatchState {
    watches: Option<Watches>,
    directories: HashMap<WatchDescriptor, Weak<WatchedDirectory>>,
    /// Ends the task when the watcher goes.
    task: Option<DropGuard>,
}

/// A watched directory. The watch ends with the last clone of the `Arc`.
pub(super) struct WatchedDirectory {
    version: watch::Sender<u64>,
    closed: Mutex<VecDeque<String>>,
    /// Events come.
    alive: AtomicBool,
    watch: Option<WatchDescriptor>,
    /// Keeps the events coming.
    watcher: Arc<Mutex<WatchState>>,
}

impl WatchedDirectory {
    /// A number that grows with each event.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Names of the files that writers closed last.
    pub(super) fn closed(&self) -> Vec<String> {
        self.closed.lock().iter().cloned().collect()
    }

    /// Whether events can be relied on.
    pub(super) fn is_watched(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    fn take(&self, event: &EventOwned) {
        if event.mask.contains(EventMask::IGNORED) {
            self.alive.store(false, Ordering::Relaxed);
        }
        let name = event.name.as_ref().and_then(|name| name.to_str());
        if event.mask.contains(EventMask::CLOSE_WRITE)
            && let Some(name) = name
        {
            let mut closed = self.closed.lock();
            closed.retain(|known| known != name);
            closed.push_back(name.to_owned());
            if closed.len() > CLOSED {
                closed.pop_front();
            }
        }
        self.changed();
    }
}

impl Drop for WatchedDirectory {
    fn drop(&mut self) {
        let Some(watch) = self.watch.take() else {
            return;
        };
        let mut state = self.watcher.lock();
        let state = &mut *state;
        // Another instance may watch the same directory by now.
        let own = |entry: &Weak<WatchedDirectory>| std::ptr::eq(entry.as_ptr(), self);
        if state.directories.get(&watch).is_some_and(own) {
            state.directories.remove(&watch);
            if let Some(watches) = &mut state.watches {
                // It fails for a directory that is gone; its watch went with it.
                let _ = watches.remove(watch);
            }
        }
    }
}

impl LogWatcher {
    /// Watches a directory. Where the system does not allow it, the directory's `is_watched` is false.
    /// Blocks for a moment; wants to be within a runtime.
    pub(super) fn watch(&self, path: &Path) -> Arc<WatchedDirectory> {
        // Dropping a directory takes the lock, so what `add` releases is dropped after it.
        let mut dead = None;
        let added = self.add(&mut self.shared.lock(), path, &mut dead);
        match added {
            Ok(directory) => directory,
            Err(error) => {
                tracing::warn!(
                    path = %path.display(),
                    err = %error,
                    "Failed to watch a log directory, polling its followed logs"
                );
                Arc::new(self.directory(None))
            }
        }
    }

    fn add(
        &self,
        state: &mut WatchState,
        path: &Path,
        dead: &mut Option<Arc<WatchedDirectory>>,
    ) -> io::Result<Arc<WatchedDirectory>> {
        if state.watches.is_none() {
            let events = Inotify::init()?.into_event_stream([0; 4096])?;
            let token = CancellationToken::new();
            state.watches = Some(events.watches());
            state.task = Some(token.clone().drop_guard());
            let delivering = deliver(events, Arc::downgrade(&self.shared), token);
            spawn(PanicScope::Other, delivering);
        }
        let Some(watches) = &mut state.watches else {
            return Err(io::Error::other("no watches"));
        };
        let mask = WatchMask::MODIFY
            | WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::ONLYDIR
            | WatchMask::DONT_FOLLOW;
        let watch = watches.add(path, mask)?;
        let known = state.directories.get(&watch).and_then(Weak::upgrade);
        match known {
            Some(known) if known.is_watched() => return Ok(known),
            known => *dead = known,
        }
        let directory = Arc::new(self.directory(Some(watch.clone())));
        state.directories.insert(watch, Arc::downgrade(&directory));
        Ok(directory)
    }

    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.shared.lock().directories.len()
    }

    fn directory(&self, watch: Option<WatchDescriptor>) -> WatchedDirectory {
        WatchedDirectory {
            version: watch::Sender::new(0),
            closed: Mutex::default(),
            alive: AtomicBool::new(watch.is_some()),
            watch,
            watcher: self.shared.clone(),
        }
    }
}

/// Hands events to their directories for as long as there is a watcher.
async fn deliver(
    mut events: EventStream<[u8; 4096]>,
    shared: Weak<Mutex<WatchState>>,
    token: CancellationToken,
) {
    loop {
        let event = tokio::select! {
            () = token.cancelled() => return,
            event = events.next() => event,
        };
        let mut next = Some(event);
        while let Some(event) = next {
            let Some(state) = shared.upgrade() else {
                return;
            };
            match event {
                Some(Ok(event)) => hand_over(&state, &event),
                failed => return give_up(&state, failed.and_then(Result::err)),
            }
            next = events.next().now_or_never();
        }
        tokio::time::sleep(GATHER).await;
    }
}

fn hand_over(state: &Mutex<WatchState>, event: &EventOwned) {
    let overflow = event.mask.contains(EventMask::Q_OVERFLOW);
    // Dropped after the lock, which their drop may take.
    let affected: Vec<Arc<WatchedDirectory>> = {
        let state = state.lock();
        if overflow {
            state.directories.values().filter_map(Weak::upgrade).collect()
        } else {
            state.directories.get(&event.wd).and_then(Weak::upgrade).into_iter().collect()
        }
    };
    for directory in affected {
        if overflow { directory.changed() } else { directory.take(event) }
    }
}

/// No more events will come; the next watch opens another instance.
fn give_up(state: &Mutex<WatchState>, error: Option<io::Error>) {
    if let Some(error) = error {
        tracing::warn!(err = %error, "Failed to watch log directories");
    }
    let orphans: Vec<Weak<WatchedDirectory>> = {
        let mut state = state.lock();
        let old = std::mem::take(&mut *state);
        old.directories.into_values().collect()
    };
    for directory in orphans.iter().filter_map(Weak::upgrade) {
        directory.alive.store(false, Ordering::Relaxed);
        directory.changed();
    }
}
