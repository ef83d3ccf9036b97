//! Parses the command line to a subcommand with its arguments. Pure.

use super::manual;
use super::verbs::{ConfigAction, Shell, details, left_column, own_args};
use crate::config::{
    ArgsError, Flags, Invocation, SUBCOMMANDS, closest, local_socket, parse_args,
    parse_subcommand_args,
};
use clap::ArgMatches;
use std::ffi::OsString;
use std::path::PathBuf;

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
        "completion" => return completion(rest),
        // For packages, which bring the page.
        "man" => return page(),
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
            Err(ArgsError(vec![format!("--output: {other:?} is not known, there is {known}")]))
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

/// The value with this name, of a named enumeration.
fn known<T: Copy>(
    name: &str,
    parse: fn(&str) -> Option<T>,
    (all, name_of): (&[T], fn(T) -> &'static str),
) -> Result<T, ArgsError> {
    parse(name).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|one| name_of(*one)).collect();
        let names = names.join(", ");
        ArgsError(vec![format!("{name:?} is not known; there are {names}")])
    })
}

fn validate(args: Vec<OsString>) -> Result<Validate, ArgsError> {
    let (flags, matches) = parse_subcommand_args(args, own_args("validate"))?;
    let files: Vec<PathBuf> = words(&matches, "FILE").into_iter().map(Into::into).collect();
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
    let (flags, matches) = parse_subcommand_args(args, own_args("config"))?;
    let name = one(&matches, "ACTION")?;
    let all = (ConfigAction::ALL, ConfigAction::as_str as _);
    let action = known(&name, ConfigAction::parse, all)?;
    Ok(ConfigArgs { action, output: output_of(&matches, false)?, flags: Box::new(flags) })
}

fn preflight(args: Vec<OsString>) -> Result<Preflight, ArgsError> {
    let (flags, matches) = parse_subcommand_args(args, own_args("preflight"))?;
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
    let (flags, matches) = parse_subcommand_args(args, own_args("pods"))?;
    Ok(Pods {
        namespace: text(&matches, "namespace"),
        watch: matches.get_flag("watch"),
        output: output_of(&matches, true)?,
        socket: socket_of(&matches, &flags),
    })
}

fn explain(args: Vec<OsString>) -> Result<Explain, ArgsError> {
    let (flags, matches) = parse_subcommand_args(args, own_args("explain"))?;
    Ok(Explain {
        pod: one(&matches, "POD")?,
        namespace: text(&matches, "namespace"),
        output: output_of(&matches, false)?,
        socket: socket_of(&matches, &flags),
    })
}

fn completion(args: Vec<OsString>) -> Result<Command, ArgsError> {
    let (_, matches) = parse_subcommand_args(args, own_args("completion"))?;
    let name = one(&matches, "SHELL")?;
    let shell = known(&name, Shell::parse, (Shell::ALL, Shell::as_str as _))?;
    Ok(Command::Print(manual::completion(shell)))
}

fn page() -> Result<Command, ArgsError> {
    let page = manual::page().map_err(|error| ArgsError(vec![error.to_string()]))?;
    Ok(Command::Print(page))
}

// -- help -------------------------------------------------------------------------------------------

fn help(verb: Option<&str>) -> Result<Command, ArgsError> {
    let Some(verb) = verb.filter(|verb| *verb != "help") else {
        return parse(["--help".into()]);
    };
    let known = SUBCOMMANDS.iter().find(|(name, ..)| *name == verb);
    let (name, arguments, what) = known.ok_or_else(|| unknown(verb))?;
    let more = details(name);
    let usage = format!("kubelet {name} {arguments}");
    let mut text = format!("{what}.\n\nUsage: {} [FLAGS]\n\n{more}\n\n", usage.trim_end());
    for arg in own_args(name) {
        if let Some(help) = arg.get_help() {
            text += &format!("  {:<26}{help}\n", left_column(&arg));
        }
    }
    text += "\nThe flags of the kubelet are accepted too (see kubelet --help).";
    Ok(Command::Print(text))
}

#[cfg(test)]
mod tests;
