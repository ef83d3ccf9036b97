//! The manual page `kubelet(8)`, and what completes the command line in a shell. Pure.

use super::verbs::{ConfigAction, Shell, details, left_column, own_args};
use crate::config::{NODE_VERSION, SUBCOMMANDS, described_command};
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_mangen::Man;
use roff::{Roff, bold, roman};
use std::io;

/// Files that the units of packages use, with what they are.
const FILES: [(&str, &str); 5] = [
    (
        "/etc/kubelet/config.yaml",
        "The configuration of a node without kubeadm; kubelet config default prints all fields.",
    ),
    ("/var/lib/kubelet/config.yaml", "The configuration that kubeadm writes."),
    (
        "/etc/default/kubelet, /etc/sysconfig/kubelet",
        "KUBELET_EXTRA_ARGS: flags of this node beside those of kubeadm.",
    ),
    (
        "/var/lib/kubelet",
        "The root directory: volumes of pods, certificates, and the kubelet's state.",
    ),
    ("/var/lib/kubelet/kubelet.sock", "The socket that the subcommands read from."),
];

/// The manual page, in the language of roff, without a trailing newline.
///
/// # Errors
/// Never in practice: it is written into memory.
pub(super) fn page() -> io::Result<String> {
    let man = Man::new(described_command(true))
        .title("KUBELET")
        .section("8")
        .source(NODE_VERSION)
        .manual("System Administration");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    synopsis().to_writer(&mut out)?;
    man.render_description_section(&mut out)?;
    subcommands().to_writer(&mut out)?;
    man.render_options_section(&mut out)?;
    files().to_writer(&mut out)?;
    Ok(String::from_utf8_lossy(&out).trim_end().to_owned())
}

fn synopsis() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold("kubelet"), roman(" [FLAGS]")]);
    roff.control("br", []);
    roff.text([bold("kubelet"), roman(" COMMAND [ARGUMENTS] [FLAGS]")]);
    roff
}

fn subcommands() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SUBCOMMANDS"]);
    roff.text([roman("They change nothing, and accept the flags of the kubelet, too.")]);
    for (verb, arguments, what) in SUBCOMMANDS {
        let usage = format!("kubelet {verb}");
        roff.control("SS", [format!("{usage} {arguments}").trim_end()]);
        roff.text([roman(format!("{what}."))]);
        // As it is in the help: there are tables in it.
        roff.control("PP", []).control("nf", []);
        for line in details(verb).lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
        for arg in own_args(verb) {
            if let Some(help) = arg.get_help() {
                roff.control("TP", []);
                roff.text([bold(left_column(&arg))]);
                roff.text([roman(help.to_string())]);
            }
        }
    }
    roff
}

fn files() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["FILES"]);
    for (path, what) in FILES {
        roff.control("TP", []);
        roff.text([bold(path)]);
        roff.text([roman(what)]);
    }
    roff
}

/// The script that completes the kubelet's command line in that shell, without a trailing newline.
pub(super) fn completion(shell: Shell) -> String {
    let mut command = command();
    let mut out = Vec::new();
    let generator = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    clap_complete::generate(generator, &mut command, "kubelet", &mut out);
    String::from_utf8_lossy(&out).trim_end().to_owned()
}

fn one_of(arg: Arg, names: impl Iterator<Item = &'static str>) -> Arg {
    arg.value_parser(PossibleValuesParser::new(names))
}

/// The command line with its subcommands, which take the flags that say where files are.
fn command() -> Command {
    let command = described_command(false).disable_help_subcommand(true);
    let shared: Vec<_> = command
        .get_arguments()
        .filter(|arg| {
            matches!(arg.get_long(), Some("config" | "config-dir" | "strict" | "root-dir"))
        })
        .cloned()
        .collect();
    let subcommands = SUBCOMMANDS.iter().map(|(verb, _, what)| {
        let operand = |arg: Arg| match arg.get_id().as_str() {
            "FILE" => arg.value_hint(ValueHint::AnyPath),
            "ACTION" => one_of(arg, ConfigAction::ALL.iter().map(|action| action.as_str())),
            "SHELL" => one_of(arg, Shell::ALL.iter().map(|shell| shell.as_str())),
            _ => arg,
        };
        let shared = shared.iter().filter(|_| *verb != "completion" && *verb != "help");
        Command::new(*verb).about(*what).args(own_args(verb).into_iter().map(operand)).args(shared)
    });
    command.subcommands(subcommands)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::flag_names;

    #[test]
    fn the_manual_page_names_every_flag_and_every_subcommand_with_its_own() {
        let page = page().unwrap().replace("\\-", "-");
        for (name, _) in flag_names() {
            assert!(page.contains(&format!("--{name}\\fR")), "--{name}");
        }
        for (verb, ..) in SUBCOMMANDS {
            assert!(page.contains(&format!(".SS \"kubelet {verb}")), "{verb}");
            for line in details(verb).lines() {
                let words = line.replace('\'', "\\*(Aq");
                assert!(page.contains(words.trim_start()), "{verb}: {line}");
            }
            for arg in own_args(verb).iter().filter_map(Arg::get_long) {
                assert!(page.contains(&format!("--{arg}")), "{verb} --{arg}");
            }
        }
        assert!(page.starts_with(".ie") || page.starts_with(".TH KUBELET 8"), "{page:.80}");
        assert!(page.contains(NODE_VERSION));
    }

    #[test]
    fn every_shell_completes_subcommands_and_every_flag_with_an_effect() {
        for shell in Shell::ALL {
            let script = completion(*shell);
            let has = |name: &str| match shell {
                Shell::Bash | Shell::Zsh => {
                    let after = [" ", "=", "[", "+"];
                    after.iter().any(|end| script.contains(&format!("--{name}{end}")))
                }
                Shell::Fish => script.contains(&format!("-l {name} ")),
            };
            for (name, has_effect) in flag_names() {
                assert_eq!(has(name), has_effect, "{shell}: --{name}");
            }
            for name in ["version", "help", "watch", "socket", "output", "url"] {
                assert!(has(name), "{shell}: --{name}");
            }
            for (verb, ..) in SUBCOMMANDS {
                assert!(script.contains(verb), "{shell}: {verb}");
            }
            for action in ConfigAction::ALL {
                assert!(script.contains(action.as_str()), "{shell}: {action}");
            }
        }
    }
}
