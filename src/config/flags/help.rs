//! The `--help` text.

use std::fmt::Write;

use super::spec::{FlagGroup, FlagSpec};
use super::{KUBERNETES_VERSION, all_flags};
use crate::config::fields::FlagKind;

/// The column where descriptions start, and the maximum width.
const COLUMN: usize = 36;
const WIDTH: usize = 100;

/// What the program is and does.
pub(super) const ABOUT: &str = "The node agent: takes pods from an API server, files or a URL and has a container \
                                runtime run them.";

/// Where settings come from, and how flags are written.
pub(super) const SETTINGS: &str = "Settings come from the configuration file, its drop-ins and these flags; a flag wins over a\n\
     drop-in, a drop-in over the file, the file over the default. Underscores in flag names are\n\
     read as dashes. Durations are written like 300ms, 20s or 1h30m.";

/// All flags by group, with value placeholders and defaults.
pub(super) fn text() -> String {
    let mut out = format!(
        "Kubelet {} (behaves as Kubernetes {KUBERNETES_VERSION})\n\n\
         {ABOUT}\n\nUsage: kubelet [FLAGS]\n       kubelet COMMAND [ARGUMENTS]\n\n{SETTINGS}\n",
        env!("CARGO_PKG_VERSION")
    );
    out.push_str("\nSubcommands, which change nothing:\n");
    for (verb, arguments, help) in super::SUBCOMMANDS {
        let left = format!("  {verb} {arguments}");
        entry(&mut out, left.trim_end(), help, "");
    }
    for group in FlagGroup::ALL {
        let _ = write!(out, "\n{group}:\n");
        for spec in all_flags().filter(|spec| spec.group == *group) {
            entry(&mut out, &left_column(spec), spec.help, &spec.default);
        }
        if *group == FlagGroup::Essential {
            entry(&mut out, "  -h, --help", "Print this text", "");
            entry(&mut out, "      --version", "Print the version", "");
        }
    }
    out.truncate(out.trim_end().len());
    out
}

fn left_column(spec: &FlagSpec) -> String {
    let short = if spec.name == "v" { "  -v, " } else { "      " };
    match spec.kind {
        FlagKind::Bool => format!("{short}--{}[=BOOL]", spec.name),
        kind => format!("{short}--{} {}", spec.name, kind.placeholder()),
    }
}

fn entry(out: &mut String, left: &str, help: &str, default: &str) {
    out.push_str(left);
    let mut column = left.chars().count();
    if column + 2 > COLUMN {
        out.push('\n');
        column = 0;
    }
    let default = match default {
        "" => String::new(),
        default => format!("[default: {default}]"),
    };
    let words = help.split(' ').chain(Some(default.as_str()).filter(|text| !text.is_empty()));
    let mut first = true;
    for word in words {
        let length = word.chars().count();
        if !first && column + 1 + length > WIDTH {
            out.push('\n');
            (column, first) = (0, true);
        }
        let gap = if first { COLUMN - column } else { 1 };
        let _ = write!(out, "{:gap$}{word}", "");
        (column, first) = (column + gap + length, false);
    }
    out.push('\n');
}
