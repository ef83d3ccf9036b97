//! The open connections of one port: their limits, which one is closed to make room for a new one, and idle timeouts.
//!
//! Unauthenticated clients have a limit of their own, so that they cannot take the connections of authenticated clients.
//! The rules are in `state.rs`; the deadlines of a single connection are in `progress.rs`.

mod progress;
mod state;

pub(super) use progress::ConnectionProgress;
pub use state::ConnectionLimits;
pub(super) use state::{ConnectionSource, NoFreeConnection};

use crate::base::clock;
use parking_lot::Mutex;
use state::{ConnectionId, PortConnections};
use std::collections::HashMap;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The connections of one port; clones share them.
#[derive(Clone)]
pub(super) struct Connections {
    table: Arc<Mutex<Table>>,
}

struct Table {
    state: PortConnections,
    /// The tokens that close connections.
    closing: HashMap<ConnectionId, CancellationToken>,
}

impl Table {
    fn close(&self, ids: impl IntoIterator<Item = ConnectionId>) {
        for id in ids {
            if let Some(closing) = self.closing.get(&id) {
                closing.cancel();
            }
        }
    }
}

impl Connections {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        let table = Table { state: PortConnections::new(limits), closing: HashMap::new() };
        Self { table: Arc::new(Mutex::new(table)) }
    }

    /// Adds a connection; others may be closed for it.
    ///
    /// # Errors
    /// The limit of authenticated connections is reached and none is idle; only for the local socket.
    pub(super) fn open(
        &self,
        source: ConnectionSource,
    ) -> Result<ConnectionSlot, NoFreeConnection> {
        let mut table = self.table.lock();
        let (id, closed) = table.state.open(source, clock::instant())?;
        table.close(closed);
        let closing = CancellationToken::new();
        table.closing.insert(id, closing.clone());
        Ok(ConnectionSlot { id, closing, table: self.table.clone() })
    }
}

/// One connection in the table; removed when this is dropped.
pub(super) struct ConnectionSlot {
    id: ConnectionId,
    closing: CancellationToken,
    table: Arc<Mutex<Table>>,
}

impl ConnectionSlot {
    /// Waits until the connection has to be closed to make room for another one.
    pub(super) async fn evicted(&self) {
        self.closing.cancelled().await;
    }

    /// Marks the connection as busy: it is closed for another one only if there is no idle one.
    pub(super) fn begin_request(&self) {
        self.table.lock().state.begin_request(self.id);
    }

    /// The response was sent or dropped.
    pub(super) fn end_request(&self) {
        self.table.lock().state.end_request(self.id, clock::instant());
    }

    /// Moves the connection to the limit of authenticated clients.
    ///
    /// # Errors
    /// That limit is reached, and each of those connections has a request in progress.
    pub(super) fn mark_authenticated(&self) -> Result<(), NoFreeConnection> {
        let mut table = self.table.lock();
        let closed = table.state.mark_authenticated(self.id)?;
        table.close(closed);
        Ok(())
    }

    /// Stops counting the connection, because its handler (a stream or a followed log) has a limit of its own.
    pub(super) fn untrack(&self) {
        let mut table = self.table.lock();
        table.state.remove(self.id);
        table.closing.remove(&self.id);
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.untrack();
    }
}
