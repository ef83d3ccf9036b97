//! Which kubelet is to be replaced, and the flags that a start in its place has. Pure.

use super::unit::{UnitCommand, is_kubelet};
use crate::{
    app::Finding,
    config::{Flags, Invocation, parse_args},
};
use std::path::{Path, PathBuf};

/// The environment variables from which Go programs take a proxy.
const PROXIES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

/// A kubelet that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KubeletProcess {
    pub(super) id: u32,
    /// The flags.
    pub(super) args: Vec<String>,
    /// Its program, if this process may see it.
    pub(super) program: Option<PathBuf>,
    pub(super) directory: Option<PathBuf>,
    /// The names of the variables in its environment that name a proxy.
    pub(super) proxies: Vec<String>,
    /// What of it cannot be read.
    pub(super) unreadable: Vec<String>,
}

/// What is found of the kubelet of this node.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) processes: Vec<KubeletProcess>,
    /// The command line of its unit; `None` if there is no unit, or it cannot be interpreted.
    pub(super) unit: Option<UnitCommand>,
    /// What is wrong with the unit.
    pub(super) unit_problems: Vec<Finding>,
}

/// The flags of a start, and what is said about them.
#[derive(Debug, Default)]
pub(super) struct Target {
    /// `None` if no flags are known.
    pub(super) flags: Option<Flags>,
    /// The process that is replaced, if one runs.
    pub(super) process: Option<u32>,
    pub(super) findings: Vec<Finding>,
}

/// Whether a variable names a proxy.
pub(super) fn is_proxy(name: &str) -> bool {
    PROXIES.contains(&name.to_ascii_uppercase().as_str())
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
    let mut target = Target {
        findings: found.unit_problems,
        ..Target::default()
    };
    if found.processes.len() > 1 {
        let ids: Vec<_> = found
            .processes
            .iter()
            .map(|one| one.id.to_string())
            .collect();
        let message = format!(
            "{} kubelets run on this node (processes {}); choose the one to replace with --pid and stop the others",
            ids.len(),
            ids.join(", ")
        );
        target.findings.push(Finding::error("process", message));
    }
    let process = found.processes.first();
    if let Some(process) = process {
        target.findings.extend(process_findings(process));
        target.process = Some(process.id);
        target.proxies(&format!("process {}", process.id), &process.proxies);
        if found.unit.is_none() && target.findings.iter().all(|one| one.subject != "unit") {
            let message = format!(
                "there is no {}: what starts the kubelet again has to start it with the flags of process {}",
                super::UNIT,
                process.id
            );
            target.findings.push(Finding::warning("unit", message));
        }
    } else if let Some(unit) = &found.unit {
        let names = unit.variables.iter();
        let proxies = names.filter(|(name, value)| is_proxy(name) && !value.is_empty());
        let proxies: Vec<_> = proxies.map(|(name, _)| name.clone()).collect();
        target.proxies(super::UNIT, &proxies);
    }
    let (args, source) = match (given, process, &found.unit) {
        (Some(flags), ..) => {
            let message = "the flags are those of this command line";
            target.findings.push(Finding::ok("flags", message));
            target.flags = Some(flags);
            return target;
        }
        (None, Some(process), unit) => {
            let unit = unit.as_ref();
            target
                .findings
                .extend(unit.and_then(|unit| difference(unit, process)));
            (&process.args, format!("process {}", process.id))
        }
        (None, None, Some(unit)) => (&unit.args, format!("{}, no kubelet runs", unit.place)),
        (None, None, None) => {
            let message = "no kubelet runs, and there is no unit of one that can be read; give its flags after \"preflight\"";
            target.findings.push(Finding::unknown("process", message));
            return target;
        }
    };
    let (flags, problems) = lenient_flags(args);
    target.findings.push(Finding::ok(
        "flags",
        format!("the flags are those of {source}"),
    ));
    let problems = problems.into_iter();
    target
        .findings
        .extend(problems.map(|why| Finding::error("flags", why)));
    target.flags = flags;
    target
}

impl Target {
    fn proxies(&mut self, whose: &str, names: &[String]) {
        if !names.is_empty() {
            let message = format!(
                "{} in the environment of {whose}: this kubelet uses no proxy of the environment",
                names.join(", ")
            );
            self.findings.push(Finding::warning("proxies", message));
        }
    }
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
    let relative = process.args.iter().filter(|arg| is_relative_path(arg));
    for arg in relative {
        let directory = process.directory.as_deref().unwrap_or(Path::new("?"));
        let message = format!(
            "{arg} is relative to {}; run preflight in that directory, with the flags given",
            directory.display()
        );
        findings.push(Finding::unknown("flags", message));
    }
    findings
}

fn is_relative_path(arg: &str) -> bool {
    let value = arg.split_once('=').map_or(arg, |(_, value)| value);
    ["./", "../"].iter().any(|prefix| value.starts_with(prefix))
}

/// The finding about a unit that would start other flags than those of the process. A unit that starts another program, such
/// as a shell, cannot be compared.
fn difference(unit: &UnitCommand, process: &KubeletProcess) -> Option<Finding> {
    let place = &unit.place;
    if !is_kubelet(Path::new(&unit.program)) {
        let message = format!(
            "{place}: the unit starts {}, so whether it starts the flags of process {} is not known",
            unit.program, process.id
        );
        return Some(Finding::warning("unit", message));
    }
    if unit.args == process.args {
        let message = format!("{place}: starts the flags of process {}", process.id);
        return Some(Finding::ok("unit", message));
    }
    let less = |one: &[String], other: &[String]| {
        let only: Vec<_> = one
            .iter()
            .filter(|arg| !other.contains(arg))
            .cloned()
            .collect();
        if only.is_empty() {
            "none".to_owned()
        } else {
            only.join(" ")
        }
    };
    let message = format!(
        "{place}: a restart of the unit starts other flags than process {} has; only the unit: {}; only the process: {}",
        process.id,
        less(&unit.args, &process.args),
        less(&process.args, &unit.args)
    );
    Some(Finding::error("unit", message))
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
        let problem = alone
            .0
            .into_iter()
            .find(|why| why.starts_with("unknown flag"))?;
        let value = args.get(index + 1).filter(|next| !next.starts_with('-'));
        let end = if arg.contains('=') || value.is_none() {
            index + 1
        } else {
            index + 2
        };
        Some((index..end, problem))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::{Level, preflight::unit::Place};

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn process(id: u32, args: &str) -> KubeletProcess {
        KubeletProcess {
            id,
            args: words(args),
            program: Some("/usr/bin/kubelet".into()),
            directory: Some("/".into()),
            ..KubeletProcess::default()
        }
    }

    fn unit(program: &str, args: &str) -> UnitCommand {
        UnitCommand {
            program: program.to_owned(),
            args: words(args),
            place: Place {
                path: "/u".into(),
                line: 4,
            },
            variables: [("HTTPS_PROXY".to_owned(), "http://p".to_owned())].into(),
        }
    }

    fn levels(target: &Target, subject: &str) -> Vec<Level> {
        let of = target.findings.iter().filter(|one| one.subject == subject);
        of.map(|one| one.level).collect()
    }

    #[test]
    fn a_process_is_a_kubelet_by_its_program_or_its_name_and_no_subcommand() {
        for (program, line, is) in [
            (Some("/usr/bin/kubelet"), "/usr/bin/kubelet --v=2", true),
            (Some("/usr/bin/kubelet (deleted)"), "x --v=2", true),
            (Some("/opt/run"), "kubelet", true),
            (None, "/usr/bin/kubelet.go -v 2", true),
            (Some("/usr/bin/kubelet"), "kubelet pods --watch", false),
            (Some("/usr/bin/kubelet"), "kubelet --version", false),
            (Some("/bin/sh"), "sh -c kubelet", false),
            (Some("/bin/sh"), "", false),
        ] {
            let found = is_node_agent(program.map(Path::new), &words(line));
            assert_eq!(found, is, "{program:?} {line}");
        }
    }

    #[test]
    fn the_flags_are_those_given_else_those_of_the_process_else_those_of_the_unit() {
        let mut given = Flags::default();
        given.root_dir = "/given".into();
        let root = |target: &Target| {
            let flags = target.flags.as_ref();
            flags.map(|flags| flags.root_dir.display().to_string())
        };
        for (has_process, has_unit, is_given, expected) in [
            (true, true, true, Some("/given")),
            (true, true, false, Some("/p")),
            (false, true, false, Some("/u")),
            (false, false, false, None),
        ] {
            let found = Found {
                processes: has_process
                    .then(|| process(7, "--root-dir=/p"))
                    .into_iter()
                    .collect(),
                unit: has_unit.then(|| unit("/usr/bin/kubelet", "--root-dir=/u")),
                ..Found::default()
            };
            let target = choose(found, is_given.then(|| given.clone()));
            assert_eq!(root(&target).as_deref(), expected);
            let is_unknown = levels(&target, "process") == [Level::Unknown];
            assert_eq!(is_unknown, expected.is_none());
        }
    }

    #[test]
    fn two_kubelets_are_not_safe_and_one_that_was_replaced_or_cannot_be_read_is_said() {
        let with = |processes| {
            choose(
                Found {
                    processes,
                    ..Found::default()
                },
                None,
            )
        };
        let two = with(vec![process(1, "--v=1"), process(2, "--v=2")]);
        assert_eq!(levels(&two, "process"), [Level::Error, Level::Ok]);
        assert_eq!(levels(&two, "unit"), [Level::Warning]);
        let mut moved = process(1, "");
        moved.program = Some("/usr/bin/kubelet (deleted)".into());
        assert_eq!(levels(&with(vec![moved]), "process"), [Level::Warning]);
        let mut hidden = process(1, "--config=./c");
        hidden.unreadable = vec!["its environment cannot be read".to_owned()];
        hidden.proxies = vec!["no_proxy".to_owned()];
        let hidden = with(vec![hidden]);
        assert_eq!(levels(&hidden, "process"), [Level::Unknown, Level::Ok]);
        assert_eq!(levels(&hidden, "flags"), [Level::Unknown, Level::Ok]);
        assert_eq!(levels(&hidden, "proxies"), [Level::Warning]);
    }

    #[test]
    fn a_unit_that_would_start_other_flags_than_the_process_has_is_not_safe() {
        for (program, args, level, said) in [
            (
                "/usr/bin/kubelet",
                "--v=1 --a=b",
                Level::Ok,
                "starts the flags of process 7",
            ),
            (
                "/usr/bin/kubelet",
                "--v=2 --a=b",
                Level::Error,
                "only the unit: --v=2; only the process: --v=1",
            ),
            ("/bin/sh", "-c kubelet", Level::Warning, "is not known"),
        ] {
            let found = difference(&unit(program, args), &process(7, "--v=1 --a=b")).unwrap();
            assert_eq!(found.level, level, "{found:?}");
            assert!(found.message.starts_with("/u:4: "), "{found:?}");
            assert!(found.message.contains(said), "{found:?}");
        }
    }

    #[test]
    fn unknown_flags_are_left_out_and_said() {
        for (args, root, problems) in [
            ("--root-dir /r", Some("/r"), 0),
            ("--gone=1 --root-dir=/r", Some("/r"), 1),
            ("--gone 1 --root-dir=/r --lost", Some("/r"), 2),
            ("--root-dir", None, 1),
            ("--max-pods=many", None, 1),
            ("--version", None, 1),
        ] {
            let (flags, found) = lenient_flags(&words(args));
            let flags = flags.map(|flags| flags.root_dir.display().to_string());
            assert_eq!(
                (flags.as_deref(), found.len()),
                (root, problems),
                "{args}: {found:?}"
            );
        }
    }

    #[test]
    fn variables_name_proxies_in_either_case() {
        for (name, is) in [("https_proxy", true), ("NO_PROXY", true), ("PROXY", false)] {
            assert_eq!(is_proxy(name), is);
        }
    }
}
