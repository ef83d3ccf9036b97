//! The way of a pod through the kubelet: sources, sync loop, one worker per pod, its sync, its probes and its status.

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

pub use area::{Config, Pods, PodsDeps, PodsReader, PodsTasks, PodsWriters, build, open};
