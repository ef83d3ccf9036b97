//! Which kubelet is to be replaced, and the flags that a start in its place has. Pure.

use super::unit::{UNIT, UnitCommand, is_kubelet};
use crate::app::Finding;
use crate::base::SecretUrl;
use crate::base::proxy::ProxyEnvironment;
use crate::config::{Flags, Invocation, parse_args};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A kubelet that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KubeletProcess {
    pub(super) id: u32,
    /// The flags.
    pub(super) args: Vec<String>,
    /// Its program, if this process may see it.
    pub(super) program: Option<PathBuf>,
    pub(super) directory: Option<PathBuf>,
    /// The variables of its environment that name proxies.
    pub(super) proxies: BTreeMap<String, SecretUrl>,
    /// What of it cannot be read.
    pub(super) unreadable: Vec<String>,
}

/// What is found of the kubelet of this node.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The chosen process, or all kubelets if none was chosen.
    pub(super) processes: Vec<KubeletProcess>,
    /// Kubelets beside the chosen one.
    pub(super) others: Vec<KubeletProcess>,
    /// The command line of its unit; `None` if there is no unit, or it cannot be interpreted.
    pub(super) unit: Option<UnitCommand>,
    /// What of processes and the unit is wrong, or cannot be read.
    pub(super) problems: Vec<Finding>,
}

/// The flags of a start, and what is said about them.
#[derive(Debug, Default)]
pub(super) struct Target {
    /// `None` if no flags are known.
    pub(super) flags: Option<Flags>,
    /// What relative paths in the flags are relative to; `None` for the directory of this process.
    pub(super) directory: Option<PathBuf>,
    /// The environment of the kubelet that starts; `None` for the one of this process.
    pub(super) proxies: Option<ProxyEnvironment>,
    pub(super) findings: Vec<Finding>,
}

/// Whether a process with this program and command line is a kubelet that runs a node, and no subcommand of one.
pub(super) fn is_node_agent(program: Option<&Path>, command_line: &[String]) -> bool {
    let name = command_line.first().map(Path::new);
    let program = program.map(|program| without_deleted(program).0);
    let is_named = program.as_deref().is_some_and(is_kubelet) || name.is_some_and(is_kubelet);
    let first = command_line.get(1);
    is_named && first.is_none_or(|first| first.starts_with('-') && first != "--version")
}

/// The path of a program, and whether its file was removed or replaced.
fn without_deleted(program: &Path) -> (PathBuf, bool) {
    let text = program.to_string_lossy();
    match text.strip_suffix(" (deleted)") {
        Some(path) => (path.into(), true),
        None => (program.to_owned(), false),
    }
}

/// Chooses the flags: those `given` on the command line, else those of the one kubelet that runs, else those of the unit.
pub(super) fn choose(found: Found, given: Option<Flags>) -> Target {
    let mut target = Target { findings: found.problems, ..Target::default() };
    let process = found.processes.first();
    let unit = found.unit.as_ref();
    target.findings.extend(several(&found.processes));
    let conflicts = process.map(|process| conflicts(process, &found.others));
    target.findings.extend(conflicts.into_iter().flatten());
    if let Some(process) = process {
        target.findings.extend(process_findings(process));
        let is_unit_named = target.findings.iter().any(|one| one.subject == "unit");
        if unit.is_none() && !is_unit_named {
            let message = format!(
                "there is no {UNIT}: what starts the kubelet again has to start it with the flags of process {}",
                process.id
            );
            target.findings.push(Finding::warning("unit", message));
        }
    }
    target.proxies = proxies(process, unit);
    target.findings.extend(proxy_findings(process, unit));
    let (args, source, directory) = match (given, process, unit) {
        (Some(flags), ..) => {
            let message = "the flags are those of this command line";
            target.findings.push(Finding::ok("flags", message));
            target.flags = Some(flags);
            return target;
        }
        (None, Some(process), unit) => {
            let differences = unit.map(|unit| differences(unit, process));
            target.findings.extend(differences.into_iter().flatten());
            let source = format!("process {}", process.id);
            (&process.args, source, process.directory.clone())
        }
        (None, None, Some(unit)) => {
            let source = format!("{}, no kubelet runs", unit.place);
            (&unit.args, source, Some(unit.directory.clone()))
        }
        (None, None, None) => {
            let message = "no kubelet runs, and there is no unit of one that can be read; give its flags after \"preflight\"";
            target.findings.push(Finding::unknown("process", message));
            return target;
        }
    };
    target.directory = directory;
    let (flags, problems) = lenient_flags(args);
    target.findings.push(Finding::ok("flags", format!("the flags are those of {source}")));
    let problems = problems.into_iter();
    target.findings.extend(problems.map(|why| Finding::error("flags", why)));
    target.flags = flags;
    target
}

/// The finding about several kubelets of which none was chosen.
fn several(processes: &[KubeletProcess]) -> Option<Finding> {
    let ids: Vec<_> = processes.iter().map(|one| one.id.to_string()).collect();
    (ids.len() > 1).then(|| {
        let message = format!(
            "{} kubelets run on this node (processes {}); choose the one to replace with --pid and stop the others",
            ids.len(),
            ids.join(", ")
        );
        Finding::error("process", message)
    })
}

/// The findings about kubelets beside the chosen one. Only one that has a root directory of its own may be another node's.
fn conflicts(process: &KubeletProcess, others: &[KubeletProcess]) -> Vec<Finding> {
    let root = |process: &KubeletProcess| {
        let flags = lenient_flags(&process.args).0;
        flags.map(|flags| flags.root_dir)
    };
    let own = root(process);
    let others = others.iter().map(|other| {
        let id = other.id;
        match (root(other), &own) {
            (Some(root), Some(own)) if root != *own => {
                let message = format!(
                    "another kubelet runs here, process {id}, with the root directory {}; on the same runtime they undo each other's work",
                    root.display()
                );
                Finding::warning("process", message)
            }
            _ => {
                let message = format!(
                    "another kubelet runs on this node, process {id}; stop it"
                );
                Finding::error("process", message)
            }
        }
    });
    others.collect()
}

/// The proxies of the kubelet that starts.
fn proxies(
    process: Option<&KubeletProcess>,
    unit: Option<&UnitCommand>,
) -> Option<ProxyEnvironment> {
    match (process, unit) {
        (Some(process), _) => Some(ProxyEnvironment::of(&|name| {
            process.proxies.get(name).map(|value| (**value).to_owned())
        })),
        (None, Some(unit)) => Some(ProxyEnvironment::of(&|name| unit.variables.get(name).cloned())),
        (None, None) => None,
    }
}

/// The findings about variables that name proxies, without their values.
fn proxy_findings(process: Option<&KubeletProcess>, unit: Option<&UnitCommand>) -> Vec<Finding> {
    let of_process: BTreeMap<&str, &str> = process
        .iter()
        .flat_map(|process| &process.proxies)
        .map(|(name, value)| (name.as_str(), &**value))
        .collect();
    let of_unit: BTreeMap<&str, &str> = unit
        .iter()
        .flat_map(|unit| &unit.variables)
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .filter(|(name, value)| ProxyEnvironment::has(name) && !value.is_empty())
        .collect();
    let (whose, used) = match process {
        Some(process) => (format!("process {}", process.id), &of_process),
        None => (UNIT.to_owned(), &of_unit),
    };
    let mut findings = Vec::new();
    if !used.is_empty() {
        let names: Vec<_> = used.keys().copied().collect();
        let message = format!(
            "{} in the environment of {whose}: this kubelet uses them as the Go kubelet does",
            names.join(", ")
        );
        findings.push(Finding::ok("proxies", message));
    }
    let (Some(process), Some(unit)) = (process, unit) else {
        return findings;
    };
    let (id, place) = (process.id, &unit.place);
    for (name, value) in &of_unit {
        if of_process.get(name) != Some(value) {
            let message = format!(
                "{place}: the unit has another {name} than process {id}: what a restart reaches is not known"
            );
            findings.push(Finding::unknown("proxies", message));
        }
    }
    for name in of_process.keys().filter(|name| !of_unit.contains_key(*name)) {
        let message = format!(
            "{place}: {name} of process {id} is not from the unit; check that a restart has it, too"
        );
        findings.push(Finding::warning("proxies", message));
    }
    findings
}

fn process_findings(process: &KubeletProcess) -> Vec<Finding> {
    let mut findings = Vec::new();
    let id = process.id;
    for what in &process.unreadable {
        findings.push(Finding::unknown("process", format!("process {id}: {what}")));
    }
    match process.program.as_deref().map(without_deleted) {
        Some((path, true)) => {
            let message = format!(
                "process {id} runs a file that is no longer at {}: the program was replaced, and the kubelet not restarted since",
                path.display()
            );
            findings.push(Finding::warning("process", message));
        }
        Some((path, false)) => {
            let message = format!("process {id} runs {}", path.display());
            findings.push(Finding::ok("process", message));
        }
        None => {}
    }
    findings
}

/// The findings about a unit that would start another program or other flags than the process has. A unit that starts
/// something else, such as a shell, cannot be compared.
fn differences(unit: &UnitCommand, process: &KubeletProcess) -> Vec<Finding> {
    let (place, id) = (&unit.place, process.id);
    if !is_kubelet(Path::new(&unit.program)) {
        let message = format!(
            "{place}: the unit starts {}, so whether it starts the flags of process {id} is not known",
            unit.program
        );
        return vec![Finding::warning("unit", message)];
    }
    let mut findings = Vec::new();
    let program = process.program.as_deref().map(without_deleted);
    if let Some((path, _)) = program.filter(|(path, _)| *path != Path::new(&unit.program)) {
        let message = format!(
            "{place}: the unit starts {}, and process {id} runs {}: replace the file that the unit starts",
            unit.program,
            path.display()
        );
        findings.push(Finding::warning("unit", message));
    }
    if unit.args == process.args {
        let message = format!("{place}: starts the flags of process {id}");
        findings.push(Finding::ok("unit", message));
        return findings;
    }
    let (of_unit, of_process) = (without_secrets(&unit.args), without_secrets(&process.args));
    let less = |one: &[String], other: &[String]| {
        let only = one.iter().filter(|arg| !other.contains(arg));
        let only: Vec<_> = only.map(String::as_str).collect();
        if only.is_empty() { "none".to_owned() } else { only.join(" ") }
    };
    let message = format!(
        "{place}: a restart of the unit starts other flags than process {id} has; only the unit: {}; only the process: {}",
        less(&of_unit, &of_process),
        less(&of_process, &of_unit)
    );
    findings.push(Finding::error("unit", message));
    findings
}

/// The arguments, without the values of flags that may be credentials.
fn without_secrets(args: &[String]) -> Vec<String> {
    let is_secret = |name: &str| {
        let name = name.trim_start_matches('-').replace('_', "-");
        name.starts_with("manifest-url")
    };
    let mut is_value = false;
    let shown = args.iter().map(|arg| match arg.split_once('=') {
        _ if std::mem::take(&mut is_value) => "<masked>".to_owned(),
        Some((name, _)) if is_secret(name) => format!("{name}=<masked>"),
        _ => {
            is_value = arg.starts_with('-') && is_secret(arg);
            arg.clone()
        }
    });
    shown.collect()
}

/// Parses the flags of another kubelet. Flags that this kubelet does not know are left out and returned as problems, as is
/// what else keeps it from starting with them.
pub(super) fn lenient_flags(args: &[String]) -> (Option<Flags>, Vec<String>) {
    let mut args = args.to_vec();
    let mut problems = Vec::new();
    loop {
        match parse_args(args.iter().map(Into::into)) {
            Ok(Invocation::Run(flags)) => return (Some(*flags), problems),
            Ok(Invocation::Help(_) | Invocation::Version(_)) => {
                problems.push("with these flags a kubelet prints a text and ends".to_owned());
                return (None, problems);
            }
            Err(error) => match unknown_flag(&args) {
                Some((range, problem)) => {
                    args.drain(range);
                    problems.push(problem);
                }
                None => {
                    problems.extend(error.0);
                    return (None, problems);
                }
            },
        }
    }
}

/// The first argument with a flag that this kubelet does not know, with the flag's value, and the problem.
fn unknown_flag(args: &[String]) -> Option<(std::ops::Range<usize>, String)> {
    args.iter().enumerate().find_map(|(index, arg)| {
        let is_flag = arg.starts_with('-');
        let alone = parse_args([arg.into()]).err().filter(|_| is_flag)?;
        let problem = alone.0.into_iter().find(|why| why.starts_with("unknown flag"))?;
        let value = args.get(index + 1).filter(|next| !next.starts_with('-'));
        let end = if arg.contains('=') || value.is_none() { index + 1 } else { index + 2 };
        Some((index..end, problem))
    })
}

#[cfg(test)]
mod tests;
