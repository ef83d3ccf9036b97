//! The ports and the local socket: bound early, served until shutdown, then drained.
//!
//! * Owns: the sockets, TLS handshakes, and the connections that are open.
//! * Woken by: connections, and by shutdown.
//! * Must never let one client exhaust what others need: [`ConnectionLimits`](super::ConnectionLimits) are enforced here.

pub(super) mod listen;
pub(super) mod ports;
