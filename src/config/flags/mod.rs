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
mod mirrors;
mod spec;
mod table;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};

use self::spec::{FlagGroup, FlagKind, FlagSpec, FlagTarget};
use super::defaults::ROOT_DIR;
use crate::base::GoDuration;
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

/// The parsed flags.
#[derive(Debug, Clone, PartialEq)]
pub struct Flags {
    /// `--config`: the configuration file.
    pub config: Option<PathBuf>,
    /// `--config-dir`: its drop-ins.
    pub config_dir: Option<PathBuf>,
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// `--hostname-override`.
    pub hostname_override: Option<String>,
    /// `--node-ip`, as given.
    pub node_ip: Option<String>,
    /// `--local-objects-dir`.
    pub local_objects_dir: Option<PathBuf>,
    /// `--allow-posted-pods`.
    pub allow_posted_pods: bool,
    /// `--kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `--bootstrap-kubeconfig`.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// `--cert-dir`.
    pub cert_dir: Option<PathBuf>,
    /// `--node-labels`.
    pub node_labels: BTreeMap<String, String>,
    /// `--cloud-provider`.
    pub cloud_provider: Option<String>,
    /// `--lock-file`.
    pub lock_file: Option<PathBuf>,
    /// `--exit-on-lock-contention`.
    pub exit_on_lock_contention: bool,
    /// `--minimum-container-ttl-duration`.
    pub minimum_container_ttl: GoDuration,
    /// `--maximum-dead-containers-per-container`; negative means no limit.
    pub maximum_dead_containers_per_container: i32,
    /// `--maximum-dead-containers`; negative means no limit.
    pub maximum_dead_containers: i32,
    /// `--runtime-cgroups`.
    pub runtime_cgroups: Option<String>,
    /// `--image-credential-provider-config`.
    pub image_credential_provider_config: Option<PathBuf>,
    /// `--image-credential-provider-bin-dir`.
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// Deprecated or obsolete flags that were given, by name without dashes.
    pub deprecated: Vec<&'static str>,
    /// The configuration fields that flags set.
    pub(super) fields: FieldLayer,
}

/// Configuration fields by dotted path. Values may be secret, so `Debug` prints only the fields' names.
#[derive(Clone, Default, PartialEq)]
pub(super) struct FieldLayer(pub(super) Vec<(&'static str, DocumentNode)>);

impl std::fmt::Debug for FieldLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set()
            .entries(self.0.iter().map(|(path, _)| path))
            .finish()
    }
}

/// Every flag, in help order.
fn all_flags() -> impl Iterator<Item = &'static FlagSpec> {
    table::FLAGS.iter().chain(mirrors::MIRRORS)
}

/// Name, field and printed default of each flag that mirrors a field and has a printed default.
#[cfg(test)]
pub(super) fn shown_defaults() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    all_flags()
        .filter(|spec| !spec.default.is_empty())
        .filter_map(|spec| match spec.target {
            FlagTarget::Field(path) => Some((spec.name, path, spec.default)),
            FlagTarget::Process | FlagTarget::Ignored => None,
        })
}

/// The Kubernetes release that this kubelet implements.
pub const KUBERNETES_VERSION: &str = "v1.36";

/// The version in the Node object: that of Kubernetes, which version skew policies use, with this program's as build
/// metadata.
pub const NODE_VERSION: &str = concat!("v1.36.0+rs", env!("CARGO_PKG_VERSION"));

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
        "pods",
        "",
        "Show the pods of the kubelet that runs here; --watch follows them",
    ),
    (
        "explain",
        "POD",
        "Explain a pod's state, what it waits for and what comes next",
    ),
    (
        "help",
        "[COMMAND]",
        "Show this text, or that of a subcommand",
    ),
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
    let matches = command()
        .args(own)
        .try_get_matches_from(args.into_iter().map(normalize))
        .map_err(|error| ArgsError(vec![describe(&error)]))?;
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
    let matches = command().try_get_matches_from(args).map_err(|error| {
        let only_flags = match error.kind() {
            ErrorKind::UnknownArgument if !describe(&error).starts_with("unknown flag") => {
                ": the kubelet takes only flags, or a subcommand before them"
            }
            _ => "",
        };
        ArgsError(vec![describe(&error) + only_flags])
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
    for spec in all_flags() {
        let mut arg = Arg::new(spec.name)
            .long(spec.name)
            .action(ArgAction::Append);
        if spec.name == "v" {
            arg = arg.short('v');
        }
        arg = match spec.kind {
            FlagKind::Bool => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
            FlagKind::Int32 | FlagKind::Int64 | FlagKind::Duration => {
                arg.num_args(1).allow_hyphen_values(true)
            }
            _ => arg.num_args(1),
        };
        command = command.arg(arg);
    }
    command
}

/// The message for an error of clap, as one line.
fn describe(error: &clap::Error) -> String {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    };
    let argument = context(ContextKind::InvalidArg).unwrap_or_default();
    let name = argument.split([' ', '=', '[']).next().unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            match context(ContextKind::SuggestedArg) {
                Some(near) => format!("unknown flag: {name}; did you mean {near}?"),
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
        _ => error
            .to_string()
            .lines()
            .next()
            .unwrap_or("unusable arguments")
            .to_owned(),
    }
}

impl Default for Flags {
    /// An empty command line.
    fn default() -> Self {
        Self {
            config: None,
            config_dir: None,
            root_dir: PathBuf::from(ROOT_DIR),
            hostname_override: None,
            node_ip: None,
            local_objects_dir: None,
            allow_posted_pods: false,
            kubeconfig: None,
            bootstrap_kubeconfig: None,
            cert_dir: None,
            node_labels: BTreeMap::new(),
            cloud_provider: None,
            lock_file: None,
            exit_on_lock_contention: false,
            minimum_container_ttl: GoDuration::default(),
            maximum_dead_containers_per_container: 1,
            maximum_dead_containers: -1,
            runtime_cgroups: None,
            image_credential_provider_config: None,
            image_credential_provider_bin_dir: None,
            deprecated: Vec::new(),
            fields: FieldLayer::default(),
        }
    }
}

impl Flags {
    fn from_matches(matches: &ArgMatches) -> Result<Self, ArgsError> {
        let mut flags = Self::default();
        let mut problems = Vec::new();
        for spec in all_flags() {
            let Some(texts) = matches.get_many::<String>(spec.name) else {
                continue;
            };
            let texts: Vec<String> = texts.cloned().collect();
            if matches!(spec.group, FlagGroup::Mirrors | FlagGroup::Obsolete) {
                flags.deprecated.push(spec.name);
            }
            match values::convert(spec.kind, spec.name, &texts) {
                Ok(value) => flags.take(spec, value),
                Err(problem) => problems.push(format!("--{}: {problem}", spec.name)),
            }
        }
        if problems.is_empty() {
            Ok(flags)
        } else {
            Err(ArgsError(problems))
        }
    }

    fn take(&mut self, spec: &FlagSpec, value: DocumentValue) {
        match spec.target {
            FlagTarget::Field(path) => {
                self.fields.0.push((
                    path,
                    DocumentNode {
                        value,
                        origin: DocumentOrigin::Flag(spec.name),
                    },
                ));
            }
            FlagTarget::Process => self.take_process_flag(spec.name, value),
            FlagTarget::Ignored => {}
        }
    }

    /// Stores a flag without a configuration field. An empty text means "not set".
    fn take_process_flag(&mut self, name: &str, value: DocumentValue) {
        match value {
            DocumentValue::Bool(value) if name == "allow-posted-pods" => {
                self.allow_posted_pods = value
            }
            DocumentValue::Bool(value) => self.exit_on_lock_contention = value,
            DocumentValue::Int(number) => {
                let number = i32::try_from(number).unwrap_or(-1);
                if name == "maximum-dead-containers" {
                    self.maximum_dead_containers = number;
                } else {
                    self.maximum_dead_containers_per_container = number;
                }
            }
            DocumentValue::Map(entries) => {
                for entry in entries {
                    if let DocumentValue::String(text) = entry.node.value {
                        self.node_labels.insert(entry.key, text);
                    }
                }
            }
            DocumentValue::String(text) if !text.is_empty() => self.take_process_text(name, text),
            _ => {}
        }
    }

    fn take_process_text(&mut self, name: &str, text: String) {
        match name {
            "config" => self.config = Some(text.into()),
            "config-dir" => self.config_dir = Some(text.into()),
            "root-dir" => self.root_dir = text.into(),
            "hostname-override" => self.hostname_override = Some(text),
            "node-ip" => self.node_ip = Some(text),
            "local-objects-dir" => self.local_objects_dir = Some(text.into()),
            "kubeconfig" => self.kubeconfig = Some(text.into()),
            "bootstrap-kubeconfig" => self.bootstrap_kubeconfig = Some(text.into()),
            "cert-dir" => self.cert_dir = Some(text.into()),
            "cloud-provider" => self.cloud_provider = Some(text),
            "lock-file" => self.lock_file = Some(text.into()),
            "runtime-cgroups" => self.runtime_cgroups = Some(text),
            "image-credential-provider-config" => {
                self.image_credential_provider_config = Some(text.into());
            }
            "image-credential-provider-bin-dir" => {
                self.image_credential_provider_bin_dir = Some(text.into());
            }
            "minimum-container-ttl-duration" => {
                self.minimum_container_ttl = text.parse().unwrap_or_default();
            }
            _ => {}
        }
    }
}

/// All flags with an effect, with their values; `field` returns the value of a configuration field.
pub(super) fn in_force(flags: &Flags, field: impl Fn(&str) -> String) -> Vec<(String, String)> {
    all_flags()
        .filter_map(|spec| {
            let value = match spec.target {
                FlagTarget::Field(path) => field(path),
                FlagTarget::Process => flags.process_flag(spec.name),
                FlagTarget::Ignored => return None,
            };
            Some((spec.name.to_owned(), value))
        })
        .collect()
}

impl Flags {
    /// The value of a flag that has no configuration field.
    fn process_flag(&self, name: &str) -> String {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let path = |path: &Option<PathBuf>| {
            let shown = path.as_ref().map(|path| path.display().to_string());
            shown.unwrap_or_default()
        };
        match name {
            "config" => path(&self.config),
            "config-dir" => path(&self.config_dir),
            "root-dir" => self.root_dir.display().to_string(),
            "hostname-override" => text(&self.hostname_override),
            "node-ip" => text(&self.node_ip),
            "local-objects-dir" => path(&self.local_objects_dir),
            "kubeconfig" => path(&self.kubeconfig),
            "bootstrap-kubeconfig" => path(&self.bootstrap_kubeconfig),
            "cert-dir" => path(&self.cert_dir),
            "cloud-provider" => text(&self.cloud_provider),
            "lock-file" => path(&self.lock_file),
            "allow-posted-pods" => self.allow_posted_pods.to_string(),
            "exit-on-lock-contention" => self.exit_on_lock_contention.to_string(),
            "runtime-cgroups" => text(&self.runtime_cgroups),
            "image-credential-provider-config" => path(&self.image_credential_provider_config),
            "image-credential-provider-bin-dir" => path(&self.image_credential_provider_bin_dir),
            "minimum-container-ttl-duration" => self.minimum_container_ttl.to_string(),
            "maximum-dead-containers" => self.maximum_dead_containers.to_string(),
            "maximum-dead-containers-per-container" => {
                self.maximum_dead_containers_per_container.to_string()
            }
            "node-labels" => {
                let pairs = self.node_labels.iter().map(|(k, v)| format!("{k}={v}"));
                pairs.collect::<Vec<_>>().join(",")
            }
            _ => String::new(),
        }
    }
}
