//! `kubelet preflight`: what would happen if this kubelet replaced the one that runs here.

mod render;

use super::args::{Output, Preflight};
use super::term::{Term, json, print, print_error};
use crate::app::{PreflightRequest, Verdict, preflight};
use crate::base::error_chain;
use std::process::ExitCode;

/// Something could not be found out.
const NOT_KNOWN: u8 = 2;

pub(super) async fn run(args: Preflight) -> anyhow::Result<ExitCode> {
    let request = PreflightRequest { process: args.process, flags: args.flags.map(|flags| *flags) };
    let report = match preflight(request).await {
        Ok(report) => report,
        Err(error) => {
            print_error(&error_chain(error.as_ref()));
            return Ok(ExitCode::from(NOT_KNOWN));
        }
    };
    print(&match args.output {
        Output::Json => json(&report, true)?,
        Output::Text | Output::Wide => render::text(&report, Term::of_stdout().paint),
    })?;
    Ok(ExitCode::from(exit_code(report.verdict)))
}

fn exit_code(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Safe => 0,
        Verdict::NotSafe => 1,
        Verdict::NotKnown => NOT_KNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_that_is_safe_has_exit_code_0() {
        let codes = [Verdict::Safe, Verdict::NotSafe, Verdict::NotKnown].map(exit_code);
        assert_eq!(codes, [0, 1, 2]);
    }
}
