//! (under construction)

pub mod actions;
pub mod gc;
pub mod kill;
