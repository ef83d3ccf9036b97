//! The open connections of one port: how many, which one is closed for a new one, and how long one may be idle.
//!
//! Connections of unauthenticated clients have a budget of their own, so that they take nothing from
//! authenticated ones. The rules are in `state.rs`; the deadlines of a single connection in `progress.rs`.

mod progress;
mod state;

pub(super) use progress::ConnectionProgress;
pub use state::ConnectionLimits;
pub(super) use state::{ConnectionSource, Full};

use parking_lot::Mutex;
use state::{Id, PortConnections};
use std::{collections::HashMap, sync::Arc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The connections of one port; clones share them.
#[derive(Clone)]
pub(super) struct Connections {
    table: Arc<Mutex<Table>>,
}

struct Table {
    state: PortConnections,
    /// Cancelled to close the connection.
    closing: HashMap<Id, CancellationToken>,
}

impl Table {
    fn close(&self, ids: impl IntoIterator<Item = Id>) {
        for id in ids {
            if let Some(closing) = self.closing.get(&id) {
                closing.cancel();
            }
        }
    }
}

impl Connections {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        let table = Table {
            state: PortConnections::new(limits),
            closing: HashMap::new(),
        };
        Self {
            table: Arc::new(Mutex::new(table)),
        }
    }

    /// Adds a connection; others may be closed for it.
    ///
    /// # Errors
    /// There is no room, because every connection of its kind has a request in progress.
    pub(super) fn open(&self, source: ConnectionSource) -> Result<ConnectionSlot, Full> {
        let mut table = self.table.lock();
        let (id, closed) = table.state.open(source, Instant::now())?;
        table.close(closed);
        let closing = CancellationToken::new();
        table.closing.insert(id, closing.clone());
        Ok(ConnectionSlot {
            id,
            closing,
            table: self.table.clone(),
        })
    }
}

/// The place of one connection, given back when this is dropped.
pub(super) struct ConnectionSlot {
    id: Id,
    closing: CancellationToken,
    table: Arc<Mutex<Table>>,
}

impl ConnectionSlot {
    /// Ends when the connection must close for another one.
    pub(super) async fn evicted(&self) {
        self.closing.cancelled().await;
    }

    pub(super) fn begin(&self) {
        self.table.lock().state.begin(self.id);
    }

    pub(super) fn end(&self) {
        self.table.lock().state.end(self.id, Instant::now());
    }

    ///
    /// # Errors
    /// The budget of authenticated clients is used up, and each of them has a request in progress.
    pub(super) fn authenticated(&self) -> Result<(), Full> {
        let mut table = self.table.lock();
        let closed = table.state.authenticated(self.id)?;
        table.close(closed);
        Ok(())
    }

    /// The connection counts no longer: its handler has a limit of its own.
    pub(super) fn leave(&self) {
        let mut table = self.table.lock();
        table.state.remove(self.id);
        table.closing.remove(&self.id);
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.leave();
    }
}
