//! Parses the command line to a subcommand with its arguments. Pure.

use crate::config::{
    ArgsError, Flags, Invocation, SUBCOMMANDS, closest, local_socket, parse_args,
    parse_subcommand_args,
};
use clap::{Arg, ArgAction, ArgMatches};
use std::{ffi::OsString, path::PathBuf};

/// The parsed command line.
#[derive(Debug, PartialEq)]
pub enum Command {
    /// Run the node agent with these flags.
    Run(Box<Flags>),
    /// Print this text (without a trailing newline).
    Print(String),
    /// Run this subcommand.
    Subcommand(Subcommand),
}

/// A subcommand with its arguments.
#[derive(Debug, PartialEq)]
pub enum Subcommand {
    /// `kubelet validate`.
    Validate(Box<Validate>),
    /// `kubelet config`.
    Config(ConfigArgs),
    /// `kubelet preflight`.
    Preflight(Box<Preflight>),
    /// `kubelet pods`.
    Pods(Pods),
    /// `kubelet explain`.
    Explain(Explain),
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Text.
    Text,
    /// Text with more columns.
    Wide,
    /// JSON.
    Json,
}

/// Arguments of `kubelet validate`.
#[derive(Debug, PartialEq)]
pub struct Validate {
    /// Files, directories, or `-`.
    pub files: Vec<PathBuf>,
    /// Validate as the content of a manifest URL.
    pub url: bool,
    /// Output format.
    pub output: Output,
    /// The kubelet's flags.
    pub flags: Box<Flags>,
}

/// Arguments of `kubelet config`.
#[derive(Debug, PartialEq)]
pub struct ConfigArgs {
    /// What to do.
    pub action: ConfigAction,
    /// Output format.
    pub output: Output,
    /// The kubelet's flags.
    pub flags: Box<Flags>,
}

/// The subcommands of `kubelet config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigAction {
    /// Check the configuration and the node.
    Check,
    /// Print the effective configuration with the origins of its values.
    Show,
    /// Print a configuration file with the defaults.
    Default,
}

/// Arguments of `kubelet preflight`.
#[derive(Debug, PartialEq)]
pub struct Preflight {
    /// The process of the kubelet that is to be replaced.
    pub process: Option<u32>,
    /// Output format.
    pub output: Output,
    /// The kubelet's flags; `None` if none are given.
    pub flags: Option<Box<Flags>>,
}

/// Arguments of `kubelet pods`.
#[derive(Debug, PartialEq)]
pub struct Pods {
    /// Only this namespace.
    pub namespace: Option<String>,
    /// Follow changes.
    pub watch: bool,
    /// Output format.
    pub output: Output,
    /// The kubelet's socket.
    pub socket: PathBuf,
}

/// Arguments of `kubelet explain`.
#[derive(Debug, PartialEq)]
pub struct Explain {
    /// Name, namespace/name or UID.
    pub pod: String,
    /// The namespace of a bare name.
    pub namespace: Option<String>,
    /// Output format.
    pub output: Output,
    /// The kubelet's socket.
    pub socket: PathBuf,
}

/// Parses the arguments after the program's name. A first argument that is not a flag is a subcommand; without
/// one, the flags are the node agent's.
///
/// # Errors
/// An unknown subcommand or flag, or a value of the wrong form.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, ArgsError> {
    let mut args = args.into_iter().peekable();
    let verb = args.next_if(|first| !first.as_encoded_bytes().starts_with(b"-"));
    let Some(verb) = verb else {
        return Ok(match parse_args(args)? {
            Invocation::Run(flags) => Command::Run(flags),
            Invocation::Help(text) | Invocation::Version(text) => Command::Print(text),
        });
    };
    let rest: Vec<OsString> = args.collect();
    let verb = verb.to_string_lossy().into_owned();
    if rest.iter().any(|arg| arg == "--help" || arg == "-h") {
        return help(Some(&verb));
    }
    Ok(Command::Subcommand(match verb.as_str() {
        "help" => return help(rest.first().map(|arg| arg.to_string_lossy()).as_deref()),
        "validate" => Subcommand::Validate(Box::new(validate(rest)?)),
        "config" => Subcommand::Config(config(rest)?),
        "preflight" => Subcommand::Preflight(Box::new(preflight(rest)?)),
        "pods" => Subcommand::Pods(pods(rest)?),
        "explain" => Subcommand::Explain(explain(rest)?),
        _ => return Err(unknown(&verb)),
    }))
}

fn unknown(verb: &str) -> ArgsError {
    let names: Vec<&str> = SUBCOMMANDS.iter().map(|(name, ..)| *name).collect();
    let near = match closest(verb, &names) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("there are {}", names.join(", ")),
    };
    ArgsError(vec![format!("unknown subcommand {verb:?}; {near}")])
}

fn output() -> Arg {
    Arg::new("output").short('o').long("output").num_args(1)
}

fn socket() -> Arg {
    Arg::new("socket").long("socket").num_args(1)
}

fn namespace() -> Arg {
    Arg::new("namespace")
        .short('n')
        .long("namespace")
        .num_args(1)
}

fn switch(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}

fn operands(name: &'static str) -> Arg {
    Arg::new(name).num_args(0..).action(ArgAction::Append)
}

fn text(matches: &ArgMatches, name: &str) -> Option<String> {
    matches.get_one::<String>(name).cloned()
}

fn output_of(matches: &ArgMatches, wide: bool) -> Result<Output, ArgsError> {
    match (text(matches, "output").as_deref(), wide) {
        (None, _) => Ok(Output::Text),
        (Some("json"), _) => Ok(Output::Json),
        (Some("wide"), true) => Ok(Output::Wide),
        (Some(other), wide) => {
            let known = if wide { "json or wide" } else { "json" };
            Err(ArgsError(vec![format!(
                "--output: {other:?} is not known, there is {known}"
            )]))
        }
    }
}

fn socket_of(matches: &ArgMatches, flags: &Flags) -> PathBuf {
    match text(matches, "socket") {
        Some(path) => path.into(),
        None => local_socket(&flags.root_dir),
    }
}

fn words(matches: &ArgMatches, name: &str) -> Vec<String> {
    let words = matches.get_many::<String>(name);
    words.into_iter().flatten().cloned().collect()
}

/// The value of a required argument.
fn one(matches: &ArgMatches, name: &'static str) -> Result<String, ArgsError> {
    let mut words = words(matches, name).into_iter();
    match (words.next(), words.next()) {
        (Some(word), None) => Ok(word),
        (Some(_), Some(more)) => Err(ArgsError(vec![format!("unexpected argument {more:?}")])),
        (None, _) => Err(ArgsError(vec![format!("{name} is missing")])),
    }
}

fn validate(args: Vec<OsString>) -> Result<Validate, ArgsError> {
    let own = [output(), switch("url"), operands("FILE")];
    let (flags, matches) = parse_subcommand_args(args, own)?;
    let files: Vec<PathBuf> = words(&matches, "FILE")
        .into_iter()
        .map(Into::into)
        .collect();
    if files.is_empty() {
        return Err(ArgsError(vec!["FILE is missing".into()]));
    }
    Ok(Validate {
        files,
        url: matches.get_flag("url"),
        output: output_of(&matches, false)?,
        flags: Box::new(flags),
    })
}

fn config(args: Vec<OsString>) -> Result<ConfigArgs, ArgsError> {
    let (flags, matches) = parse_subcommand_args(args, [output(), operands("ACTION")])?;
    let action = match one(&matches, "ACTION")?.as_str() {
        "check" => ConfigAction::Check,
        "show" => ConfigAction::Show,
        "default" => ConfigAction::Default,
        other => {
            let text = format!("{other:?} is not known; there are check, show, default");
            return Err(ArgsError(vec![text]));
        }
    };
    Ok(ConfigArgs {
        action,
        output: output_of(&matches, false)?,
        flags: Box::new(flags),
    })
}

fn preflight(args: Vec<OsString>) -> Result<Preflight, ArgsError> {
    let pid = Arg::new("pid").long("pid").num_args(1);
    let (flags, matches) = parse_subcommand_args(args, [output(), pid])?;
    let process = text(&matches, "pid").map(|id| {
        let id = id.parse::<u32>();
        id.map_err(|error| ArgsError(vec![format!("--pid: {error}")]))
    });
    Ok(Preflight {
        process: process.transpose()?,
        output: output_of(&matches, false)?,
        flags: (flags != Flags::default()).then(|| Box::new(flags)),
    })
}

fn pods(args: Vec<OsString>) -> Result<Pods, ArgsError> {
    let watch = switch("watch").short('w');
    let (flags, matches) = parse_subcommand_args(args, [output(), socket(), namespace(), watch])?;
    Ok(Pods {
        namespace: text(&matches, "namespace"),
        watch: matches.get_flag("watch"),
        output: output_of(&matches, true)?,
        socket: socket_of(&matches, &flags),
    })
}

fn explain(args: Vec<OsString>) -> Result<Explain, ArgsError> {
    let own = [output(), socket(), namespace(), operands("POD")];
    let (flags, matches) = parse_subcommand_args(args, own)?;
    Ok(Explain {
        pod: one(&matches, "POD")?,
        namespace: text(&matches, "namespace"),
        output: output_of(&matches, false)?,
        socket: socket_of(&matches, &flags),
    })
}

// -- help -------------------------------------------------------------------------------------------

const OUTPUT: (&str, &str) = ("-o, --output json", "Print JSON");
const SOCKET: (&str, &str) = (
    "--socket PATH",
    "The kubelet's socket [default: kubelet.sock in --root-dir]",
);

fn help(verb: Option<&str>) -> Result<Command, ArgsError> {
    let Some(verb) = verb.filter(|verb| *verb != "help") else {
        return parse(["--help".into()]);
    };
    let known = SUBCOMMANDS.iter().find(|(name, ..)| *name == verb);
    let (name, arguments, what) = known.ok_or_else(|| unknown(verb))?;
    let (more, own): (&str, &[(&str, &str)]) = match *name {
        "validate" => (
            "Every error and warning is printed with file, line, column and field; the exit code is 1 when\n\
             there is an error. Of a directory, the files that the kubelet would read are validated.",
            &[
                OUTPUT,
                (
                    "--url",
                    "Validate as the content of --manifest-url: a Pod or a PodList",
                ),
            ],
        ),
        "config" => (
            "check    validates the configuration file, the drop-ins and the flags, as a start does, and what the node\n\
             \x20        needs: runtime, ports, certificates, API server, directories. Nothing is changed. The exit code\n\
             \x20        is 1 when there is an error, with --strict also when there is a warning.\n\
             show     prints the effective configuration, with the file and line or the flag that each value is from.\n\
             default  prints a configuration file with all fields, their documentation and their defaults.",
            &[OUTPUT],
        ),
        "preflight" => (
            "Checks the kubelet that runs here, its unit, configuration, checkpoints and pods, and reports what this kubelet\n\
             would do in its place: per pod, whether it is kept, restarted or refused, and why. Without flags of the\n\
             kubelet, they are those of the process, or of the unit if none runs. Nothing is changed.\n\n\
             The exit code is 0 if the node can be moved and nothing that runs stops, 1 if not, and 2 if something could\n\
             not be found out: no API server, no permission, a damaged checkpoint. Run it as root.",
            &[
                OUTPUT,
                ("--pid NUMBER", "The process of the kubelet, if several run"),
            ],
        ),
        "pods" => (
            "With --watch the table is redrawn after each change; where the output is not a terminal, changed\n\
             rows are appended.",
            &[
                ("-n, --namespace NAME", "Only pods of this namespace"),
                ("-w, --watch", "Follow changes"),
                ("-o, --output json|wide", "Print JSON, or more columns"),
                SOCKET,
            ],
        ),
        _ => (
            "POD is a name (with or without the node's suffix), namespace/name, or a UID.",
            &[
                ("-n, --namespace NAME", "Namespace of the pod"),
                OUTPUT,
                SOCKET,
            ],
        ),
    };
    let usage = format!("kubelet {name} {arguments}");
    let mut text = format!(
        "{what}.\n\nUsage: {} [FLAGS]\n\n{more}\n\n",
        usage.trim_end()
    );
    for (left, right) in own {
        text += &format!("  {left:<26}{right}\n");
    }
    text += "\nThe flags of the kubelet are accepted too (see kubelet --help).";
    Ok(Command::Print(text))
}

#[cfg(test)]
mod tests;
