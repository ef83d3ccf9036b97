//! (wip)
pub mod document;
pub mod duration;
pub mod kubelet_configuration;
