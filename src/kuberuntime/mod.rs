//! (under construction)

pub mod actions;
