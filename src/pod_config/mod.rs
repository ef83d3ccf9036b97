//! x
pub mod merge;
pub mod static_pod;
