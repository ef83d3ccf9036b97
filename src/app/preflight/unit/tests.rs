//! Tests of units and environment files.

use super::*;
use crate::app::Level;

fn file(path: &str, text: &str) -> UnitFile {
    UnitFile { path: path.into(), text: text.to_owned() }
}

fn command(files: &[(&str, &str)], environment: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
    let files: Vec<_> = files.iter().map(|(path, text)| file(path, text)).collect();
    let mut service = Service::of(&files);
    for (path, text) in environment {
        service.add_environment_file(&file(path, text));
    }
    let command = service.command("host1");
    let problems = service.problems.into_iter();
    let mut problems: Vec<_> = problems.map(|problem| problem.message).collect();
    match command {
        Some(Ok(command)) => {
            let all = [command.program].into_iter().chain(command.args).collect();
            (all, problems)
        }
        Some(Err(why)) => {
            problems.push(why);
            (Vec::new(), problems)
        }
        None => (Vec::new(), problems),
    }
}

const UNIT: &str =
    "[Unit]\nDescription=kubelet\n[Service]\nExecStart=/usr/bin/kubelet\nRestart=always\n";
const KUBEADM: &str = "# kubeadm's\n[Service]\n\
    Environment=\"KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/b --kubeconfig=/k\"\n\
    Environment=\"KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml\"\n\
    EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env\n\
    ExecStart=\n\
    ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS\n";

#[test]
fn the_unit_of_kubeadm_gives_its_command_line() {
    let flags = "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.1 --pod-infra-container-image=p:1\"\n";
    let (args, problems) = command(
        &[("/u", UNIT), ("/u.d/10-kubeadm.conf", KUBEADM)],
        &[("/var/lib/kubelet/kubeadm-flags.env", flags)],
    );
    let expected = "/usr/bin/kubelet --bootstrap-kubeconfig=/b --kubeconfig=/k \
        --config=/var/lib/kubelet/config.yaml --node-ip=10.0.0.1 --pod-infra-container-image=p:1";
    assert_eq!(args.join(" "), expected);
    assert_eq!(problems, [""; 0]);
    let service = Service::of(&[file("/u", KUBEADM)]);
    assert!(service.environment_files[0].is_optional);
    assert_eq!(service.environment_files[0].place.to_string(), "/u:5");
}

#[test]
fn words_quotes_variables_and_specifiers_are_as_systemd_reads_them() {
    for (line, expected) in [
        ("/k a  b", &["a", "b"][..]),
        ("-/k a", &["a"]),
        ("@/k name a", &["a"]),
        ("/k \"a b\" 'c \"d\"'", &["a b", "c \"d\""]),
        ("/k a\"b c\"d", &["ab cd"]),
        ("/k --x=\"\" ''", &["--x=", ""]),
        ("/k $TWO", &["1", "2"]),
        ("/k ${TWO}", &["1 2"]),
        ("/k --x=${ONE}y", &["--x=1y"]),
        ("/k --x=$ONE", &["--x=$ONE"]),
        ("/k '$TWO'", &["1", "2"]),
        ("/k $QUOTED", &["a b", "c"]),
        ("/k $NONE ${NONE}", &[""]),
        ("/k $$ONE", &["$ONE"]),
        (":/k $ONE", &["$ONE"]),
        ("/k %% %H %n", &["%", "host1", "kubelet.service"]),
        ("/k a\\\n  b", &["a", "b"]),
        ("/k a\\\n# c\n b", &["a", "b"]),
        ("/k a\\sb \\\"", &["a b", "\""]),
    ] {
        let unit = format!(
            "[Service]\nEnvironment=ONE=1 \"TWO=1 2\" 'QUOTED=\"a b\" c'\nExecStart={line}\n"
        );
        let (args, problems) = command(&[("/u", &unit)], &[]);
        assert_eq!(problems, [""; 0], "{line}");
        assert_eq!(args[1..], *expected, "{line}");
    }
}

#[test]
fn what_cannot_be_interpreted_is_said_with_file_and_line() {
    for (text, expected) in [
        ("[Service]\nExecStart=/k \"a\n", "/u:2: ExecStart=: a quote is not closed"),
        (
            "[Service]\n\nExecStart=/k %t/x\n",
            "/u:3: ExecStart=: the specifier %t is not interpreted",
        ),
        ("[Service]\nExecStart=/k a\\qb\n", "/u:2: ExecStart=: the escape \\q is not interpreted"),
        ("[Service]\nExecStart=-\n", "/u:2: ExecStart=: there is no program"),
        ("[Service]\nEnvironment='A=b\n", "/u:2: Environment=: a quote is not closed"),
        ("[Service]\nEnvironment=A\n", "/u:2: Environment=: a word is no assignment"),
        ("[Service]\nRootDirectory=/r\n", "/u:2: RootDirectory= is not interpreted"),
        (
            "[Service]\nEnvironmentFile=-/etc/kubelet/*.env\n",
            "/u:2: EnvironmentFile= is not interpreted",
        ),
        ("[Service]\nWorkingDirectory=~\n", "/u:2: WorkingDirectory= is not interpreted"),
        ("[Service]\nwords\n", "/u:2: the line is no setting, and systemd ignores it"),
        (
            "[Service]\nExecStart=/k\nExecStart=/l\n",
            "/u:3: ExecStart= is given here and at /u:2; systemd refuses the unit",
        ),
    ] {
        let (_, problems) = command(&[("/u", text)], &[]);
        assert_eq!(problems, [expected], "{text}");
    }
    let broken = [("/e", "A='b\n"), ("/f", "export\n")];
    let (_, problems) = command(&[("/u", UNIT)], &broken);
    assert_eq!(problems, ["/e:1: a quote is not closed", "/f:1: the line is no assignment"]);
}

#[test]
fn drop_ins_that_contradict_one_another_are_said_and_the_last_one_counts() {
    let set = |value: &str| format!("[Service]\nEnvironment=EXTRA=--v={value}\n");
    let unit = "[Service]\nExecStart=/k $EXTRA\n";
    let files = [("/u", unit), ("/u.d/1.conf", &set("1")), ("/u.d/2.conf", &set("2"))];
    let (args, problems) = command(&files, &[]);
    assert_eq!(args, ["/k", "--v=2"]);
    assert_eq!(
        problems,
        ["/u.d/2.conf:2: EXTRA is given here and at /u.d/1.conf:2; this one counts"]
    );
    // Other sections, and what resets a list.
    let reset =
        "[Install]\nExecStart=/x\n[Service]\nEnvironment=\nExecStart=\nExecStart=/k $EXTRA a\n";
    let (args, problems) = command(&[files[0], files[1], ("/u.d/3.conf", reset)], &[]);
    assert_eq!((args.join(" ").as_str(), problems.len()), ("/k a", 0));
    assert!(Service::of(&[file("/u", "[Service]\n")]).command("h").is_none());
}

#[test]
fn values_of_environment_files_may_be_quoted() {
    for (line, expected) in [
        ("A=b c", &["b", "c"][..]),
        ("A=\"b c\"", &["b", "c"]),
        ("A='--x=1'", &["--x=1"]),
        ("A=", &[]),
        ("A=b\\\nc", &["bc"]),
        ("# A=x\n; A=y\n\nA=b", &["b"]),
    ] {
        let unit = "[Service]\nEnvironment=A=old\nExecStart=/k $A\n";
        let (args, _) = command(&[("/u", unit)], &[("/e", line)]);
        assert_eq!(args[1..], *expected, "{line}");
    }
}

#[test]
fn a_kubelet_is_known_by_the_name_of_its_program() {
    for (path, is) in [
        ("/usr/bin/kubelet", true),
        ("/usr/bin/kubelet.go", true),
        ("kubelet", true),
        ("/usr/bin/kubelet-wrapper", false),
        ("/bin/sh", false),
        ("/", false),
    ] {
        assert_eq!(is_kubelet(Path::new(path)), is, "{path}");
    }
}

#[test]
fn what_keeps_systemd_from_a_start_is_an_error_and_what_is_not_known_is_said() {
    for (setting, level) in [
        ("ExecStart=/k\nExecStart=/l", Level::Error),
        ("PassEnvironment=A", Level::Unknown),
        ("words", Level::Warning),
    ] {
        let service = Service::of(&[file("/u", &format!("[Service]\n{setting}\n"))]);
        let levels: Vec<_> = service.problems.iter().map(|one| one.level).collect();
        assert_eq!(levels, [level], "{setting}");
    }
}

#[test]
fn the_working_directory_is_the_root_unless_it_is_set() {
    for (setting, expected) in [
        ("", "/"),
        ("WorkingDirectory=-/var/lib/kubelet", "/var/lib/kubelet"),
        ("WorkingDirectory=/x\nWorkingDirectory=", "/"),
    ] {
        let unit = file("/u", &format!("[Service]\n{setting}\nExecStart=/k\n"));
        let command = Service::of(&[unit]).command("h").unwrap().unwrap();
        assert_eq!(command.directory, Path::new(expected), "{setting}");
    }
}
