//! The node as a whole: what it and its pods use.

pub mod stats;
