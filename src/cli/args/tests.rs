//! Tests of the command line.

use super::*;

fn parsed(line: &str) -> Result<Command, String> {
    parse(line.split_whitespace().map(Into::into)).map_err(|error| error.0.join("; "))
}

fn pods(line: &str) -> Pods {
    match parsed(line) {
        Ok(Command::Subcommand(Subcommand::Pods(pods))) => pods,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn without_a_verb_the_arguments_are_the_node_agents() {
    assert!(matches!(parsed(""), Ok(Command::Run(flags)) if *flags == Flags::default()));
    let run = parsed("--root-dir /r -v 4");
    assert!(matches!(run, Ok(Command::Run(flags)) if flags.root_dir.as_os_str() == "/r"));
    assert!(matches!(parsed("--version"), Ok(Command::Print(text)) if text.contains("v1.36")));
}

#[test]
fn a_preflight_has_the_flags_that_are_given_or_none() {
    let preflight = |line: &str| match parsed(line) {
        Ok(Command::Subcommand(Subcommand::Preflight(preflight))) => *preflight,
        other => panic!("{line}: {other:?}"),
    };
    let bare = preflight("preflight --pid 7 -o json");
    assert_eq!((bare.process, bare.flags), (Some(7), None));
    let given = preflight("preflight --root-dir /r");
    assert_eq!(given.flags.unwrap().root_dir.as_os_str(), "/r");
    assert!(parsed("preflight --pid x").is_err());
    assert!(parsed("preflight now").is_err());
}

#[test]
fn a_verb_knows_its_own_flags_and_the_kubelets() {
    let expected = Pods {
        namespace: Some("shop".into()),
        watch: true,
        output: Output::Wide,
        socket: "/r/kubelet.sock".into(),
    };
    assert_eq!(pods("pods -n shop -w -o wide --root-dir=/r --v=2"), expected);
    assert_eq!(pods("pods --socket /s").socket, PathBuf::from("/s"));
    assert_eq!(pods("pods").socket, PathBuf::from("/var/lib/kubelet/kubelet.sock"));
    let Ok(Command::Subcommand(Subcommand::Validate(validate))) =
        parsed("validate a.yaml --hostname-override n1 - --url -o json")
    else {
        panic!();
    };
    assert_eq!(validate.files, [PathBuf::from("a.yaml"), PathBuf::from("-")]);
    assert_eq!(validate.flags.hostname_override.as_deref(), Some("n1"));
    assert!(validate.url && validate.output == Output::Json);
    let Ok(Command::Subcommand(Subcommand::Config(config))) =
        parsed("config --strict check --config /c -o json")
    else {
        panic!();
    };
    assert_eq!((config.action, config.output), (ConfigAction::Check, Output::Json));
    assert!(config.flags.strict && config.flags.config.is_some());
    let Ok(Command::Subcommand(Subcommand::Explain(explain))) = parsed("explain shop/web") else {
        panic!();
    };
    assert_eq!(explain.pod, "shop/web");
}

#[test]
fn invalid_arguments_are_named() {
    for (line, expected) in [
        ("valdate x", "unknown subcommand \"valdate\"; did you mean validate?"),
        ("completion tcsh", "\"tcsh\" is not known; there are bash, zsh, fish"),
        ("completion", "SHELL is missing"),
        (
            "frob",
            "unknown subcommand \"frob\"; there are validate, config, preflight, pods, explain, completion, help",
        ),
        (
            "help frob",
            "unknown subcommand \"frob\"; there are validate, config, preflight, pods, explain, completion, help",
        ),
        ("validate", "FILE is missing"),
        ("explain", "POD is missing"),
        ("config", "ACTION is missing"),
        ("config lint", "\"lint\" is not known; there are check, show, default"),
        ("explain a b", "unexpected argument \"b\""),
        ("pods x", "unexpected argument \"x\""),
        ("pods -o yaml", "--output: \"yaml\" is not known, there is json or wide"),
        ("explain a -o wide", "--output: \"wide\" is not known, there is json"),
        ("pods --wath", "unknown flag: --wath; did you mean --watch?"),
        ("pods --socket", "--socket: needs a value"),
    ] {
        assert_eq!(parsed(line).unwrap_err(), expected, "{line}");
    }
}

#[test]
fn help_names_every_verb_and_each_verb_has_its_own() {
    let Ok(Command::Print(all)) = parsed("help") else {
        panic!();
    };
    assert_eq!(parsed("--help"), Ok(Command::Print(all.clone())));
    for (verb, _, what) in SUBCOMMANDS {
        assert!(all.contains(&format!("\n  {verb}")), "{verb}");
        let Ok(Command::Print(own)) = parsed(&format!("help {verb}")) else {
            panic!("{verb}");
        };
        assert_eq!(parsed(&format!("{verb} --help")), Ok(Command::Print(own.clone())));
        assert!(*verb == "help" || own.starts_with(what), "{verb}");
    }
}
