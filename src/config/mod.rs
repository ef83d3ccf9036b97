//! Configuration: flags, the `KubeletConfiguration` file and its drop-ins, resolved to one validated struct; and the
//! kubelet's own log.
//!
//! - **Owns**: the command line ([`flags`]), the file format ([`kubelet_configuration`]), defaults and validation,
//!   and the log output ([`logging`]). Flag names, file keys and defaults are known only here.
//! - **Woken by**: [`parse_args`] and [`load`], once, before the async runtime starts.
//! - **Publishes**: [`KubeletConfig`], and [`logging::LogControl`], which changes the verbosity at run time.
//! - **Must never**: start anything, read the environment, accept an unknown flag, or ignore an unknown field without a
//!   warning. A known setting that has no effect yet is listed in [`KubeletConfig::unsupported`].
//! - **Upstream**: `cmd/kubelet/app/options`, `pkg/kubelet/apis/config`, `k8s.io/kubelet/config/v1beta1`,
//!   `k8s.io/component-base/logs`.
//!
//! ```text
//!  --config file    --config-dir *.conf    flags
//!       | read             | read            | parse_args
//!       '------> tree <----'---- merge ------'      every value knows its file:line or flag
//!                  | decode, defaults, validate     all problems at once
//!            KubeletConfig
//! ```

mod document;
mod decode;
mod known_gates;
mod feature_gates;
mod fields;
pub mod kubelet_configuration;
mod defaults;
mod files;
pub mod flags;
pub mod logging;
mod resolved;
mod redacted;
mod supported;
mod values;
mod cgroups;
mod managers;
mod server;
mod node;
mod validate;
mod resolve;
mod origins;
#[cfg(test)]
mod decode_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod validate_tests;

pub use decode::closest;
pub use defaults::default_configuration;
pub use document::{ConfigProblem, Layers, Problems};
pub use feature_gates::FeatureGate;
pub use fields::FieldSpec;
#[cfg(test)]
pub use flags::flag_names;
pub use flags::{
    ArgsError, COMMIT, Flags, Invocation, KUBERNETES_VERSION, NODE_VERSION, SUBCOMMANDS,
    described_command, parse_args, parse_subcommand_args, version,
};
use kubelet_configuration::Decoding;
pub use origins::Origins;
pub use redacted::{command_line, given_flags};
pub use resolve::resolve;
pub use resolved::*;

use std::path::{Path, PathBuf};

/// Facts about the host that the configuration depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// The kernel's hostname.
    pub hostname: String,
}

/// The path of the socket on which the kubelet with this root directory serves its subcommands.
pub fn local_socket(root_dir: &Path) -> PathBuf {
    root_dir.join("kubelet.sock")
}

/// Reads the files that the flags name and resolves the configuration. Reads files: call it before the async runtime
/// starts.
///
/// # Errors
/// An unreadable file, or [`Problems`]: all mistyped or invalid settings (with `--strict` also unknown and duplicate
/// ones), with where they were given.
pub fn load(flags: &Flags, facts: &HostFacts) -> anyhow::Result<KubeletConfig> {
    let (layers, warnings) = read(flags)?;
    resolved(flags, layers, warnings, facts)
}

/// [`load`], with where each value was given.
///
/// # Errors
/// As [`load`].
pub fn load_with_origins(
    flags: &Flags,
    facts: &HostFacts,
) -> anyhow::Result<(KubeletConfig, Origins)> {
    let (layers, warnings) = read(flags)?;
    let origins = Origins::new(resolve::merge(flags, layers.clone()));
    Ok((resolved(flags, layers, warnings, facts)?, origins))
}

fn read(flags: &Flags) -> anyhow::Result<(Layers, Vec<String>)> {
    let decoding = if flags.strict { Decoding::Strict } else { Decoding::Lenient };
    files::read_layers(flags.config.as_deref(), flags.config_dir.as_deref(), decoding)
}

fn resolved(
    flags: &Flags,
    layers: Layers,
    warnings: Vec<String>,
    facts: &HostFacts,
) -> anyhow::Result<KubeletConfig> {
    let mut config = resolve(flags, layers, facts)?;
    config.warnings.extend(warnings);
    Ok(config)
}
