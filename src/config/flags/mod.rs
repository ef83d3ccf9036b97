//! The command line.
//!
//! - **Owns**: the table of all flags of the v1.36 kubelet and of this one's own, their parser, `--help`,
//!   `--version`.
//! - **Woken by**: one call of [`parse_args`] at start.
//! - **Publishes**: [`Flags`]: the settings without a configuration field, and a layer of configuration fields that
//!   is merged over the file and its drop-ins.
//! - **Must never**: read a file, apply a configuration default, or print.
//! - **Upstream**: `cmd/kubelet/app/options`.

mod help;
mod spec;
mod table;
#[cfg(test)]
mod tests;
mod values;

use std::borrow::Cow;
use std::ffi::OsString;
use std::sync::LazyLock;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use serde_json::Value;

use self::spec::{FieldLayer, FlagGroup, FlagSpec, FlagTarget};
pub use self::table::Flags;
pub(super) use self::values::{flag_text, value_of_field};
use super::decode::{closest, decode};
use super::defaults::default_configuration;
use super::fields::{FieldSpec, FlagKind};
use super::kubelet_configuration::all_fields;
use crate::base::document::{DocumentNode, DocumentOrigin, DocumentValue};

/// What the command line requests.
#[derive(Debug, Clone, PartialEq)]
pub enum Invocation {
    /// Run with these flags.
    Run(Box<Flags>),
    /// Print this help text (no trailing newline) and exit with success.
    Help(String),
    /// Print this version line (no trailing newline) and exit with success.
    Version(String),
}

/// The command line is invalid; one line per problem, each with its flag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}\nRun kubelet --help for the list of flags.", .0.join("\n"))]
pub struct ArgsError(pub Vec<String>);

/// Every flag, in help order: the deprecated ones last, by name.
fn all_flags() -> impl Iterator<Item = &'static FlagSpec> {
    static ALL: LazyLock<Vec<FlagSpec>> = LazyLock::new(|| {
        let defaults = serde_json::to_value(default_configuration()).unwrap_or_default();
        let mut mirrors: Vec<_> =
            all_fields().filter_map(|(path, field)| mirror(path, field, &defaults)).collect();
        mirrors.sort_by_key(|spec| spec.name);
        table::FLAGS.iter().cloned().chain(mirrors).collect()
    });
    ALL.iter()
}

/// The deprecated flag that sets a field, if there is one.
fn mirror(path: &'static str, field: &FieldSpec, defaults: &Value) -> Option<FlagSpec> {
    let (kind, name, help) = field.flag?;
    let default = match field.shown_default {
        Some(text) => Cow::Borrowed(text),
        None => Cow::Owned(value_of_field(defaults, path)),
    };
    let (target, group) = (FlagTarget::Field(path), FlagGroup::Mirrors);
    Some(FlagSpec { name, kind, target, group, default, help })
}

/// Name, field and printed default of each flag that mirrors a field and has a printed default.
#[cfg(test)]
pub(super) fn shown_defaults() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    all_flags().filter(|spec| !spec.default.is_empty()).filter_map(|spec| match spec.target {
        FlagTarget::Field(path) => Some((spec.name, path, spec.default.as_ref())),
        FlagTarget::Process | FlagTarget::Ignored => None,
    })
}

/// The Kubernetes release that this kubelet implements.
pub const KUBERNETES_VERSION: &str = "v1.36";

/// The version that the Node object, `--version`, the metrics and `/statusz` show: the pinned release of Kubernetes,
/// which version skew policies and scanners use, with this program's version as build metadata.
pub const NODE_VERSION: &str = concat!("v1.36.3+rs", env!("CARGO_PKG_VERSION"));

/// The commit that this program was built from, if the build knew it.
pub const COMMIT: Option<&str> = option_env!("KUBELET_COMMIT");

/// The output of `--version`. kubeadm expects two words, the second a semantic version.
pub fn version() -> String {
    format!("Kubernetes {NODE_VERSION}")
}

/// The subcommands of `kubelet`: name, arguments, and description.
pub const SUBCOMMANDS: &[(&str, &str, &str)] = &[
    (
        "validate",
        "FILE...",
        "Validate manifests as the running kubelet would; \"-\" is standard input",
    ),
    (
        "config",
        "check|show|default",
        "Check the configuration and the node without starting, or show the effective or the default settings",
    ),
    (
        "preflight",
        "",
        "Report what would happen if this kubelet replaced the one that runs here, pod by pod",
    ),
    ("pods", "", "Show the pods of the kubelet that runs here; --watch follows them"),
    ("explain", "POD", "Explain a pod's state, what it waits for and what comes next"),
    ("completion", "bash|zsh|fish", "Print what completes the command line in a shell"),
    ("help", "[COMMAND]", "Show this text, or that of a subcommand"),
];

/// Parses the arguments of a subcommand: its own, and every flag of the kubelet, so that a subcommand accepts the
/// command line of the kubelet that it queries.
///
/// # Errors
/// As of [`parse_args`].
pub fn parse_subcommand_args(
    args: impl IntoIterator<Item = OsString>,
    own: impl IntoIterator<Item = Arg>,
) -> Result<(Flags, ArgMatches), ArgsError> {
    let mut command = command().args(own);
    let matches = command
        .try_get_matches_from_mut(args.into_iter().map(normalize))
        .map_err(|error| ArgsError(vec![describe(&error, &command)]))?;
    let flags = Flags::from_matches(&matches)?;
    Ok((flags, matches))
}

/// Parses the arguments that follow the program's name.
///
/// # Errors
/// An unknown flag (with a suggestion), a missing value, an unexpected argument, or all invalid values.
pub fn parse_args(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, ArgsError> {
    let args: Vec<OsString> = args.into_iter().map(normalize).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        return Ok(Invocation::Help(help::text()));
    }
    let mut command = command();
    let matches = command.try_get_matches_from_mut(args).map_err(|error| {
        let problem = describe(&error, &command);
        let only_flags = match error.kind() {
            ErrorKind::UnknownArgument if !problem.starts_with("unknown flag") => {
                ": the kubelet takes only flags, or a subcommand before them"
            }
            _ => "",
        };
        ArgsError(vec![problem + only_flags])
    })?;
    if matches.get_many::<String>("version").is_some() {
        return Ok(Invocation::Version(version()));
    }
    Flags::from_matches(&matches).map(|flags| Invocation::Run(Box::new(flags)))
}

/// Replaces underscores in a flag's name by dashes.
fn normalize(arg: OsString) -> OsString {
    match arg.to_str() {
        Some(text) if text.starts_with("--") && text.contains('_') => {
            let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
            OsString::from(name.replace('_', "-") + value)
        }
        _ => arg,
    }
}

fn command() -> Command {
    command_with(all_flags())
}

fn command_with(flags: impl Iterator<Item = &'static FlagSpec>) -> Command {
    let mut command = Command::new("kubelet")
        .no_binary_name(true)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .arg(
            Arg::new("version")
                .long("version")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .action(ArgAction::Append),
        );
    for spec in flags {
        let mut arg = Arg::new(spec.name).long(spec.name).action(ArgAction::Append);
        if spec.name == "v" {
            arg = arg.short('v');
        }
        arg = match spec.kind {
            FlagKind::Bool => {
                arg.num_args(0..=1).require_equals(true).default_missing_value("true")
            }
            FlagKind::Int32 | FlagKind::Int64 | FlagKind::Duration => {
                arg.num_args(1).allow_hyphen_values(true)
            }
            _ => arg.num_args(1),
        };
        command = command.arg(arg);
    }
    command
}

/// The command line with what `--help` says of it, for the manual page and for completion: never parsed.
pub fn described_command(with_obsolete: bool) -> Command {
    let version = Arg::new("version").long("version").action(ArgAction::SetTrue);
    let help = Arg::new("help").short('h').long("help").global(true);
    let flags =
        || all_flags().filter(move |spec| with_obsolete || spec.group != FlagGroup::Obsolete);
    let mut described = command_with(flags())
        .about("the Kubernetes node agent")
        .long_about(format!("{}\n\n{}", help::ABOUT, help::SETTINGS))
        .mut_arg("version", |_| version.help("Print the version"))
        .arg(help.action(ArgAction::SetTrue).help("Print the help"));
    for spec in flags() {
        described = described.mut_arg(spec.name, |arg| {
            let default = match spec.default.as_ref() {
                "" => String::new(),
                default => format!(" [default: {default}]"),
            };
            let placeholder = spec.kind.placeholder().trim_matches(['<', '>']);
            let arg = arg.help(format!("{}{default}", spec.help)).help_heading(spec.group.as_str());
            match spec.kind {
                FlagKind::Bool => arg.value_name("BOOL"),
                FlagKind::Path => arg.value_name(placeholder).value_hint(ValueHint::AnyPath),
                _ => arg.value_name(placeholder),
            }
        });
    }
    described
}

/// The names of the flags, and whether they have an effect.
#[cfg(test)]
pub fn flag_names() -> impl Iterator<Item = (&'static str, bool)> {
    all_flags().map(|spec| (spec.name, spec.group != FlagGroup::Obsolete))
}

/// The message for an error of clap, as one line.
fn describe(error: &clap::Error, command: &Command) -> String {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    };
    let argument = context(ContextKind::InvalidArg).unwrap_or_default();
    let name = argument.split([' ', '=', '[']).next().unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            // Not clap's suggestion, which may be as unlike as --client-ca-file is to --boot-id-file.
            let known: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
            match closest(name.trim_start_matches('-'), &known) {
                Some(near) => format!("unknown flag: {name}; did you mean --{near}?"),
                None => format!("unknown flag: {name}"),
            }
        }
        ErrorKind::UnknownArgument => {
            format!("unexpected argument {argument:?}")
        }
        ErrorKind::InvalidValue | ErrorKind::NoEquals | ErrorKind::WrongNumberOfValues => {
            format!("{name}: needs a value")
        }
        ErrorKind::InvalidUtf8 => "an argument is not valid UTF-8".to_owned(),
        _ => error.to_string().lines().next().unwrap_or("unusable arguments").to_owned(),
    }
}

impl Flags {
    /// The flags that set a field of the configuration.
    pub(super) fn given_fields(&self) -> impl Iterator<Item = &'static str> {
        let origins = self.fields.0.iter().map(|(_, node)| &node.origin);
        origins.filter_map(|origin| match origin {
            DocumentOrigin::Flag(name) => Some(*name),
            DocumentOrigin::File { .. } => None,
        })
    }

    fn from_matches(matches: &ArgMatches) -> Result<Self, ArgsError> {
        let (mut deprecated, mut obsolete) = (Vec::new(), Vec::new());
        let mut fields = FieldLayer::default();
        let mut process = DocumentNode::empty(DocumentOrigin::Flag(""));
        let mut problems = Vec::new();
        for spec in all_flags() {
            let Some(texts) = matches.get_many::<String>(spec.name) else {
                continue;
            };
            let texts: Vec<String> = texts.cloned().collect();
            match spec.group {
                FlagGroup::Mirrors => deprecated.push(spec.name),
                FlagGroup::Obsolete => obsolete.push(spec.name),
                _ => {}
            }
            let value = match values::convert(spec.kind, spec.name, &texts) {
                Ok(value) => value,
                Err(problem) => {
                    problems.push(format!("--{}: {problem}", spec.name));
                    continue;
                }
            };
            // An empty text means "not set".
            let not_set = value == DocumentValue::String(String::new());
            let origin = DocumentOrigin::Flag(spec.name);
            let node = DocumentNode { value, origin };
            match spec.target {
                FlagTarget::Field(path) => fields.0.push((path, node)),
                FlagTarget::Process if !not_set => process.set(spec.name, node),
                FlagTarget::Process | FlagTarget::Ignored => {}
            }
        }
        if !problems.is_empty() {
            return Err(ArgsError(problems));
        }
        let (flags, _) = decode::<Flags>(&process);
        let flags = flags
            .map_err(|problems| ArgsError(problems.iter().map(ToString::to_string).collect()))?;
        Ok(Self { deprecated, obsolete, fields, ..flags })
    }
}

/// All flags with an effect, with the path of the configuration field if they have one.
pub(super) fn in_force() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    all_flags().filter_map(|spec| match spec.target {
        FlagTarget::Field(path) => Some((spec.name, Some(path))),
        FlagTarget::Process => Some((spec.name, None)),
        FlagTarget::Ignored => None,
    })
}
