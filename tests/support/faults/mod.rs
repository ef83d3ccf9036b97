//! Faults at random moments while pods come, change, crash and go, and an independent count of the harm.
//!
//! An episode is a node of its own: some pods that stay untouched, some that churn, and faults. Everything
//! random comes from one seed and the episode's number, so a failed episode can be lived again, as far as
//! timing allows: `FAULTS_SEED=... FAULTS_EPISODE=...`.
//!
//! What is counted comes from the runtime alone (`oracle.rs`) and from what the harness itself did
//! (`ledger.rs`); only "ready" and "right" are what the kubelet shows.

mod churn;
mod episode;
mod findings;
mod ledger;
pub mod oracle;
pub mod pods;
mod settings;
mod summary;

pub use episode::{Episode, HookRun, Side};
pub use findings::{Finding, Goal, Sum};
pub use ledger::Ledger;
pub use settings::{Fault, Plan, Settings};
pub use summary::summarize;
