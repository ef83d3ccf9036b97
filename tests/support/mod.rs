//! What the black-box tests share: a fake runtime, the kubelet as a process, HTTP, manifests, waiting.

pub mod bridge;
pub mod dead_fs;
pub mod fake_runtime;
pub mod http;
pub mod kubelet_process;
pub mod manifests;
pub mod raw;
pub mod wait;
