//! Verbs: what people ask of a kubelet on its own command line.
//!
//! * Owns: the verbs `validate`, `pods` and `explain`: their arguments and what they print.
//! * Woken by: the command line, once; `pods --watch` also by the kubelet that it asks.
//! * Publishes: text for people and JSON for programs on standard output, and an exit code.
//! * Must never change anything: files and the runtime are only read, the running kubelet is only
//!   asked, over its local socket. Must never print what may be a secret.
//! * Upstream has no counterpart; columns and words of `pods` are those of `kubectl get pods`.
//!
//! What is printed is made by pure functions from data (`render.rs` of each verb, [`table`],
//! [`crate::server::explain::times`]); the rest fetches the data and writes.

mod args;
mod client;
mod explain;
mod pods;
pub mod table;
mod term;
mod validate;

pub use args::{Command, Verb, parse};

use crate::base::chain;
use std::process::ExitCode;

/// Says on standard error what is wrong, as text and nothing else.
pub fn print_error(text: &str) {
    term::print_error(text);
}

/// Does what a verb says. Starts a runtime of its own.
pub fn run(verb: Verb) -> ExitCode {
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            runtime.block_on(async {
                match verb {
                    Verb::Validate(asked) => validate::run(*asked).await,
                    Verb::Pods(asked) => pods::run(asked).await,
                    Verb::Explain(asked) => explain::run(asked).await,
                }
            })
        });
    match done {
        Ok(code) => code,
        Err(error) => {
            print_error(&chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}
