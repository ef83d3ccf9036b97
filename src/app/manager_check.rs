//! Whether the CPU, memory and topology managers would start: the policies, what is reserved, the machine and the
//! checkpoints have to fit. Only reads.

use super::{Finding, settings};
use crate::base::{error_chain, spawn_blocking};
use crate::config::KubeletConfig;
use crate::host::{HostMachine, System};
use crate::resources::managers;

/// What keeps the managers from starting.
///
/// # Errors
/// The machine cannot be read.
pub async fn manager_findings(config: &KubeletConfig) -> anyhow::Result<Vec<Finding>> {
    let config = config.clone();
    let check = move || {
        let problems = manager_problems(&config, &HostMachine::read()?).into_iter();
        anyhow::Ok(problems.map(|why| Finding::error("resources", why)).collect())
    };
    spawn_blocking(check).await?
}

/// The same as text. Blocking.
pub(super) fn manager_problems(config: &KubeletConfig, machine: &HostMachine) -> Vec<String> {
    let resources = settings::resources(config, machine);
    let errors = managers::open_errors(
        &resources.managers,
        &resources.reserved,
        &System::default().sys,
        &config.root_dir,
    );
    let chains = errors.iter().map(|error| error_chain(error.as_ref()));
    chains.collect()
}
