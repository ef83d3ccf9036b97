//! What a pod's network identity is made of: names and resolver configuration. Pure.

pub mod dns;
pub mod hostname;
