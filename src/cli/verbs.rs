//! What each subcommand takes and what help says of it. Pure.

use crate::base::named_enum;
use clap::{Arg, ArgAction};

named_enum! {
    /// What `kubelet config` can do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ConfigAction {
        /// Check the configuration and the node.
        Check = "check",
        /// Print the effective configuration with the origins of its values.
        Show = "show",
        /// Print a configuration file with the defaults.
        Default = "default",
    }
}

named_enum! {
    /// A shell whose command line can be completed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Shell {
        Bash = "bash",
        Zsh = "zsh",
        Fish = "fish",
    }
}

/// The arguments of a subcommand that the kubelet itself does not have.
pub(super) fn own_args(verb: &str) -> Vec<Arg> {
    match verb {
        "validate" => vec![
            output("json", "Print JSON"),
            switch("url", "Validate as the content of --manifest-url: a Pod or a PodList"),
            operands("FILE"),
        ],
        "config" => vec![output("json", "Print JSON"), operands("ACTION")],
        "preflight" => vec![
            output("json", "Print JSON"),
            option("pid", "NUMBER", "The process of the kubelet, if several run"),
        ],
        "pods" => vec![
            namespace("Only pods of this namespace"),
            switch("watch", "Follow changes").short('w'),
            output("json|wide", "Print JSON, or more columns"),
            socket(),
        ],
        "explain" => vec![
            namespace("Namespace of the pod"),
            output("json", "Print JSON"),
            socket(),
            operands("POD"),
        ],
        "completion" => vec![operands("SHELL")],
        _ => Vec::new(),
    }
}

fn option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).num_args(1).value_name(value).help(help)
}

fn output(known: &'static str, help: &'static str) -> Arg {
    option("output", known, help).short('o')
}

fn socket() -> Arg {
    let help = "The kubelet's socket [default: kubelet.sock in --root-dir]";
    option("socket", "PATH", help)
}

fn namespace(help: &'static str) -> Arg {
    option("namespace", "NAME", help).short('n')
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

fn operands(name: &'static str) -> Arg {
    Arg::new(name).num_args(0..).action(ArgAction::Append)
}

/// An argument as help shows it: `-o, --output json`.
pub(super) fn left_column(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("-{short}, "));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let value = arg.get_value_names().and_then(<[_]>::first);
    let value = value.map(|value| format!(" {value}"));
    [short, long, value].into_iter().flatten().collect()
}

/// What the help of a subcommand says beside its description and its arguments.
pub(super) fn details(verb: &str) -> &'static str {
    match verb {
        "validate" => {
            "Every error and warning is printed with file, line, column and field; the exit code is 1 when\n\
             there is an error. Of a directory, the files that the kubelet would read are validated."
        }
        "config" => {
            "check    validates the configuration file, the drop-ins and the flags, as a start does, and what the node\n\
             \x20        needs: runtime, ports, certificates, API server, directories. Nothing is changed. The exit code\n\
             \x20        is 1 when there is an error, with --strict also when there is a warning.\n\
             show     prints the effective configuration, with the file and line or the flag that each value is from.\n\
             default  prints a configuration file with all fields, their documentation and their defaults."
        }
        "preflight" => {
            "Checks the kubelet that runs here, its unit, configuration, checkpoints and pods, and reports what this kubelet\n\
             would do in its place: per pod, whether it is kept, restarted or refused, and why. Without flags of the\n\
             kubelet, they are those of the process, or of the unit if none runs. Nothing is changed.\n\n\
             The exit code is 0 if the node can be moved and nothing that runs stops, 1 if not, and 2 if something could\n\
             not be found out: no API server, no permission, a damaged checkpoint. Run it as root."
        }
        "pods" => {
            "With --watch the table is redrawn after each change; where the output is not a terminal, changed\n\
             rows are appended."
        }
        "explain" => "POD is a name (with or without the node's suffix), namespace/name, or a UID.",
        "completion" => {
            "Packages bring these already. For one shell: source <(kubelet completion bash)"
        }
        _ => "",
    }
}
