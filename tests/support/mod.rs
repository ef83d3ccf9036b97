//! What the black-box tests share: a fake runtime, a client of the runtime, the kubelet as a
//! process, faults, HTTP, manifests, waiting.

pub mod bridge;
pub mod cri_client;
pub mod faults;
pub mod dead_fs;
pub mod fake_runtime;
pub mod http;
pub mod kubelet_process;
pub mod manifests;
pub mod raw;
pub mod report;
pub mod wait;
