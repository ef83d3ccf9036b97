//! A kubelet: the node agent that makes a container runtime run the pods it is given.
//!
//! The modules are declared bottom to top; a module uses only modules declared above its own line
//! (`tests/architecture.rs` keeps it so). Data goes down through calls, facts come back up through
//! boards and dirty sets:
//!
//! ```text
//!  file   http                                            server -- reads boards only
//!    \     |                                                |
//!    pod_config -- PodUpdate --> sync_loop -- UpdatePod --> pod_workers --> pod_sync --> kuberuntime --> cri
//!                                  ^   ^                       ^             |   |         actions  \
//!                                  |   '--- dirty UIDs --------+-----.   volumes  status    (pure)   kill/start
//!                            probe results                     |     |
//!                                  ^                       pod cache |
//!                                  |                           ^     |
//!                                prober ---------------------- pleg--'  <---- runtime events, relist
//! ```

// Ground: knows nothing of Kubernetes.
pub mod base;
pub mod metrics;

// Nouns: data only.
pub mod model;
pub mod validation;

// Wires: one protocol or kernel interface each.
pub mod host;
pub mod traces;
pub mod cri;
pub mod apiserver;

// Boards.
pub mod events;
pub mod decisions;
pub mod journal;
pub mod pod_cache;
pub mod pod_manager;
pub mod probe_results;

// Machines: each changes one kind of thing.
pub mod logs;
pub mod images;
pub mod lifecycle;
pub mod resources;
pub mod objects;
pub mod volumes;
pub mod kuberuntime;

// Watchers: observe and report.
pub mod pleg;
pub mod prober;
pub mod status;
pub mod stats;

// Flow: desired becomes actual.
pub mod pod_config;
pub mod pod_sync;
pub mod pod_workers;
pub mod sync_loop;

// Surface.
pub mod explain;
pub mod server;

// Roof: wiring only.
pub mod config;
pub mod app;
pub mod cli;
