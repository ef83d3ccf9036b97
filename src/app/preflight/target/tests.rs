//! Tests of the choice of a kubelet and its flags.

use super::*;
use crate::app::Level;
use crate::app::preflight::unit::Place;

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
        place: Place { path: "/u".into(), line: 4 },
        variables: [("HTTPS_PROXY".to_owned(), "http://p".to_owned())].into(),
        directory: "/w".into(),
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
            processes: has_process.then(|| process(7, "--root-dir=/p")).into_iter().collect(),
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
    let with = |processes| choose(Found { processes, ..Found::default() }, None);
    let two = with(vec![process(1, "--v=1"), process(2, "--v=2")]);
    assert_eq!(levels(&two, "process"), [Level::Error, Level::Ok]);
    assert_eq!(levels(&two, "unit"), [Level::Warning]);
    let mut moved = process(1, "");
    moved.program = Some("/usr/bin/kubelet (deleted)".into());
    assert_eq!(levels(&with(vec![moved]), "process"), [Level::Warning]);
    let mut hidden = process(1, "");
    hidden.unreadable = vec!["its environment cannot be read".to_owned()];
    let hidden = with(vec![hidden]);
    assert_eq!(levels(&hidden, "process"), [Level::Unknown, Level::Ok]);
    // One was chosen: what has the same root directory cannot stay.
    for (other, level) in [
        ("--v=2", Level::Error),
        ("--root-dir=/other", Level::Warning),
        ("--root-dir=/other --max-pods=many", Level::Error),
    ] {
        let found = Found {
            processes: vec![process(1, "--v=1")],
            others: vec![process(2, other)],
            ..Found::default()
        };
        assert_eq!(levels(&choose(found, None), "process"), [level, Level::Ok]);
    }
}

#[test]
fn proxies_are_those_of_the_process_and_a_unit_with_others_is_reported() {
    let url: http::Uri = "https://api.example".parse().unwrap();
    let proxy = |target: &Target| {
        let proxies = target.proxies.as_ref()?;
        let proxy = proxies.proxy_of(&url).unwrap()?;
        Some(proxy.to_string())
    };
    let unit = || unit("/usr/bin/kubelet", "");
    for (of_process, has_unit, expected, levels_expected) in [
        (None, false, None, &[][..]),
        (Some("http://p"), true, Some("http://p"), &[Level::Ok]),
        (Some("http://q"), false, Some("http://q"), &[Level::Ok]),
        (Some("http://q"), true, Some("http://q"), &[Level::Ok, Level::Unknown]),
        (None, true, None, &[Level::Unknown]),
    ] {
        let mut process = process(7, "");
        let value = of_process.map(|value| ("HTTPS_PROXY".to_owned(), value.into()));
        process.proxies = value.into_iter().collect();
        let found =
            Found { processes: vec![process], unit: has_unit.then(unit), ..Found::default() };
        let target = choose(found, None);
        assert_eq!(proxy(&target).as_deref(), expected);
        assert_eq!(levels(&target, "proxies"), levels_expected, "{target:?}");
    }
    // No kubelet runs.
    let found = Found { unit: Some(unit()), ..Found::default() };
    let target = choose(found, None);
    assert_eq!(proxy(&target).as_deref(), Some("http://p"));
    assert_eq!(target.directory.as_deref(), Some(Path::new("/w")));
    // The manager of units has set one.
    let mut process = process(7, "");
    process.proxies = [("no_proxy".to_owned(), "x".into())].into();
    let found =
        proxy_findings(Some(&process), Some(&UnitCommand { variables: [].into(), ..unit() }));
    assert_eq!(found.last().unwrap().level, Level::Warning);
}

#[test]
fn credentials_in_flags_are_not_shown() {
    let args = words("--manifest-url=https://u:p@h --manifest_url_header A:b --v=2");
    let shown = without_secrets(&args).join(" ");
    assert_eq!(shown, "--manifest-url=<masked> --manifest_url_header <masked> --v=2");
}

#[test]
fn a_unit_that_would_start_other_flags_than_the_process_has_is_not_safe() {
    for (program, args, level, said) in [
        ("/usr/bin/kubelet", "--v=1 --a=b", Level::Ok, "starts the flags of process 7"),
        (
            "/usr/bin/kubelet",
            "--v=2 --a=b",
            Level::Error,
            "only the unit: --v=2; only the process: --v=1",
        ),
        ("/bin/sh", "-c kubelet", Level::Warning, "is not known"),
    ] {
        let found = differences(&unit(program, args), &process(7, "--v=1 --a=b"));
        let found = found.last().unwrap();
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
        assert_eq!((flags.as_deref(), found.len()), (root, problems), "{args}: {found:?}");
    }
}
