//! What the black-box tests share: a fake runtime, the kubelet as a process, HTTP, manifests, waiting,
//! scenarios with a runner and scripts of their own.

pub mod bridge;
pub mod fake_runtime;
pub mod http;
pub mod kubelet_process;
pub mod manifests;
pub mod panics;
pub mod raw;
pub mod runner;
pub mod scripts;
pub mod wait;
