//! `kubelet config`: checks the configuration and the node as a start would, or shows the configuration.

mod check;
mod show;
mod yaml;

use super::args::{ConfigArgs, Output};
use super::term::{Term, json, print};
use super::verbs::ConfigAction;
use crate::base::spawn_blocking;
use crate::config::{Flags, HostFacts, load_with_origins};
use crate::host::HostMachine;
use show::ShownConfig;
use std::process::ExitCode;

pub(super) async fn run(args: ConfigArgs) -> anyhow::Result<ExitCode> {
    let ConfigArgs { action, output, flags } = args;
    let mut code = ExitCode::SUCCESS;
    let text = match (action, output) {
        (ConfigAction::Default, Output::Json) => json(&show::default_value(), true)?,
        (ConfigAction::Default, _) => show::default_text(),
        (ConfigAction::Show, output) => {
            let shown = spawn_blocking(move || shown(&flags)).await??;
            match output {
                Output::Json => json(&shown, true)?,
                _ => shown.text(),
            }
        }
        (ConfigAction::Check, output) => {
            let report = check::check(&flags).await?;
            if report.has_failed(flags.strict) {
                code = ExitCode::FAILURE;
            }
            match output {
                Output::Json => json(&report, true)?,
                _ => report.text(Term::of_stdout().paint),
            }
        }
    };
    print(&text)?;
    Ok(code)
}

/// Blocking.
fn host_facts() -> anyhow::Result<HostFacts> {
    Ok(HostFacts { hostname: HostMachine::read()?.hostname })
}

/// Blocking.
fn shown(flags: &Flags) -> anyhow::Result<ShownConfig> {
    let (config, origins) = load_with_origins(flags, &host_facts()?)?;
    Ok(ShownConfig::new(config, &origins, flags))
}
