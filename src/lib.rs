//! A kubelet: the node agent that makes a container runtime run the pods it is given.
//!
//! The crate is a list of areas, declared bottom to top. An area uses only areas declared above its own
//! line, and so do the modules inside an area; `tests/architecture` holds both tables. Calls go down;
//! facts come back up through stores and dirty sets:
//!
//! ```text
//!  file  http  api  posted                                server -- reads stores, forwards streams
//!    \    |    |    /                                       |
//!    pod_config -- PodUpdate --> sync_loop - UpdatePodOptions-> pod_workers --> pod_sync --> kuberuntime --> cri
//!                                  ^   ^                       ^             |   |         actions  \
//!                                  |   '--- dirty UIDs --------+-----.   volumes  status    (pure)   kill/start
//!                            probe results                     |     |
//!                                  ^                       pod cache |
//!                                  |                           ^     |
//!                                prober ---------------------- pleg--'  <---- runtime events, relist
//! ```

pub mod base;
pub mod model;
pub mod host;
pub mod cri;
pub mod apiserver;
pub mod state;
pub mod resources;
pub mod images;
pub mod volumes;
pub mod runtime;
pub mod pods;
pub mod node;
pub mod server;
pub mod config;
pub mod app;
pub mod cli;
