//! The subcommands.
//!
//! * Owns: `validate`, `config`, `preflight`, `pods` and `explain`: their arguments and their output; the manual page
//!   and what completes the command line in a shell.
//! * Woken by: the command line, once; `pods --watch` also by changes in the kubelet.
//! * Publishes: text or JSON on standard output, and an exit code.
//! * Must never change anything: files and the runtime are only read, and the running kubelet only gets GET
//!   requests on its local socket. Must never print what may be a secret.
//! * Upstream has no counterpart; the columns of `pods` are those of `kubectl get pods`.
//!
//! Output is made from data by pure functions (`render.rs` of each subcommand, [`table`],
//! [`crate::server::explain::times`]); the rest fetches the data and writes.

mod verbs;
mod manual;
mod args;
mod client;
pub mod table;
mod term;
mod explain;
mod pods;
mod validate;
mod config;
mod preflight;

pub use args::{Command, Subcommand, parse};

use crate::base::error_chain;
use std::process::ExitCode;

/// Prints an error to standard error, as plain text.
pub fn print_error(text: &str) {
    term::print_error(text);
}

/// Runs a subcommand, on a tokio runtime of its own.
pub fn run(subcommand: Subcommand) -> ExitCode {
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            let done = runtime.block_on(async {
                match subcommand {
                    Subcommand::Validate(args) => validate::run(*args).await,
                    Subcommand::Config(args) => config::run(args).await,
                    Subcommand::Preflight(args) => preflight::run(*args).await,
                    Subcommand::Pods(args) => pods::run(args).await,
                    Subcommand::Explain(args) => explain::run(args).await,
                }
            });
            // A read from a file system that does not respond may never return.
            runtime.shutdown_background();
            done
        });
    match done {
        Ok(code) => code,
        Err(error) => {
            print_error(&error_chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}
