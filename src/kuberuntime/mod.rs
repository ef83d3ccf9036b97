//! (under construction)

pub mod container_config;
pub mod container_files;
pub mod dns;
pub mod env;
pub mod expansion;
#[cfg(test)]
mod fixtures;
pub mod hostname;
pub mod labels;
pub mod log_paths;
pub mod mounts;
pub mod sandbox_config;
pub mod security_context;
pub mod settings;
pub mod termination;
pub mod translate;

#[cfg(test)]
mod spec_tests;
