//! Bytes from outside, mangled: whatever they are, what reads them must neither panic, nor hang, nor
//! break the rules that each target states.
//!
//! `FUZZ_SECONDS` (2 unless given) is how long each target runs, `FUZZ_SEED` chooses other mutations
//! than the usual ones. A finding prints the shortest input found that shows it; put that among the
//! seeds of its target, so that it is tried first ever after.
//!
//! A new target is a file with one test that calls [`engine::fuzz`], and a line here.
// What it observes happens in real time, so it reads the real clock.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types
)]

mod cri_log;
mod engine;
mod image_references;
mod manifests;
mod requests;
mod routes;
mod spoken;
mod volume_files;
mod written;
