//! What the black-box tests share: a fake runtime, an API server, a client of the runtime, the kubelet as a process, faults, HTTP, manifests, waiting, scenarios with a runner and scripts of their own.

pub mod api_server;
pub mod bridge;
pub mod cri_client;
pub mod faults;
pub mod dead_fs;
pub mod fake_runtime;
pub mod http;
pub mod kubelet_process;
pub mod log;
pub mod manifests;
pub mod metric_facts;
pub mod panics;
pub mod prometheus;
pub mod raw;
pub mod report;
pub mod runner;
pub mod scripts;
pub mod wait;
