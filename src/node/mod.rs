//! The node as a whole: its object at the API server, its lease, its events, its certificates, and the usage of it
//! and its pods.

pub mod stats;
pub mod certificates;
pub mod node_status;
pub mod registration;
pub mod runtime_facts;
pub mod node_manager;
pub mod lease;
pub mod event_sink;
pub mod reclaim;
pub mod eviction;
