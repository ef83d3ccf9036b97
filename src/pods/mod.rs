//! Pods: sources, sync loop, workers, syncs, probes and statuses.

pub mod pleg;
pub mod status;
pub mod prober;
pub mod pod_config;
pub mod pod_sync;
pub mod pod_workers;
pub mod mirror;
pub mod status_writer;
pub mod sync_loop;
mod area;

pub use area::{Config, PodsDeps, PodsHandles, PodsReader, PodsTasks, PodsWriters, build, open};
