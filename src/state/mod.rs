//! The kubelet's in-memory state, one store per subject. Each store has one writer, except where its module says
//! otherwise, and cheap readers; it lies below every area that reads it.

pub mod device_capacity;
pub mod events;
pub mod node_object;
pub mod node_pressure;
pub mod node_shutdown;
pub mod volumes_in_use;
pub mod pod_history;
pub mod pod_state_store;
pub mod pod_cache;
pub mod pod_manager;
pub mod probe_results;
mod store_sizes;
mod area;

pub use area::{Config, Stores, Writers, open};
pub use store_sizes::StoreSizes;
