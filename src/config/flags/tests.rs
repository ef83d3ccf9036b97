use std::collections::BTreeSet;

use super::*;
use crate::base::GoDuration;

fn args(list: &[&str]) -> Vec<OsString> {
    list.iter().map(OsString::from).collect()
}

fn run(list: &[&str]) -> Flags {
    match parse_args(args(list)) {
        Ok(Invocation::Run(flags)) => *flags,
        other => panic!("{list:?}: {other:?}"),
    }
}

fn refused(list: &[&str]) -> String {
    parse_args(args(list)).unwrap_err().0.join("\n")
}

/// What a flag set its field to, as JSON would show it.
fn field(flags: &Flags, path: &str) -> String {
    fn show(value: &DocumentValue) -> String {
        match value {
            DocumentValue::Bool(value) => value.to_string(),
            DocumentValue::Int(value) => value.to_string(),
            DocumentValue::String(text) => format!("{text:?}"),
            DocumentValue::List(items) => {
                let items: Vec<_> = items.iter().map(|item| show(&item.value)).collect();
                format!("[{}]", items.join(" "))
            }
            DocumentValue::Map(entries) => {
                let entries: Vec<_> = entries
                    .iter()
                    .map(|entry| format!("{}:{}", entry.key, show(&entry.node.value)))
                    .collect();
                format!("{{{}}}", entries.join(" "))
            }
            other => format!("{other:?}"),
        }
    }
    let found: Vec<_> = flags.fields.0.iter().filter(|(field, _)| *field == path).collect();
    assert_eq!(found.len(), 1, "{path}");
    show(&found[0].1.value)
}

#[test]
fn values_are_read_by_kind_as_go_reads_them() {
    let cases: &[(&[&str], &str, &str)] = &[
        (&["--pod-manifest-path", "/etc/pods"], "staticPodPath", "\"/etc/pods\""),
        (&["--pod_manifest_path=/a_b"], "staticPodPath", "\"/a_b\""),
        (&["--max-pods=0x10"], "maxPods", "16"),
        (&["--max-pods", "010"], "maxPods", "8"),
        (&["--max-pods=1", "--max-pods=2"], "maxPods", "2"),
        (&["--oom-score-adj", "-998"], "oomScoreAdj", "-998"),
        (&["--fail-swap-on"], "failSwapOn", "true"),
        (&["--fail-swap-on=f"], "failSwapOn", "false"),
        (&["--sync-frequency=90s"], "syncFrequency", "\"1m30s\""),
        (&["--cluster-dns=10.0.0.1,10.0.0.2"], "clusterDNS", "[\"10.0.0.1\" \"10.0.0.2\"]"),
        (&["--cluster-dns=1.1.1.1", "--cluster-dns", "::1"], "clusterDNS", "[\"1.1.1.1\" \"::1\"]"),
        (&["--cluster-dns="], "clusterDNS", "[]"),
        (
            &["--eviction-hard=memory.available<1Gi,nodefs.available<10%"],
            "evictionHard",
            "{memory.available:\"1Gi\" nodefs.available:\"10%\"}",
        ),
        (&["--eviction-hard="], "evictionHard", "{}"),
        (
            &["--system-reserved=cpu=100m", "--system-reserved=memory=1Gi,cpu=2"],
            "systemReserved",
            "{memory:\"1Gi\" cpu:\"2\"}",
        ),
        (
            &["--feature-gates=A=true,B=false", "--feature-gates=A=False"],
            "featureGates",
            "{B:false A:false}",
        ),
        (
            &["--manifest-url-header=a:1,b:x:y", "--manifest-url-header=a: 2"],
            "staticPodURLHeader",
            "{b:[\"x:y\"] a:[\"1\" \"2\"]}",
        ),
        (
            &["--register-with-taints=k=v:NoSchedule,j:NoExecute"],
            "registerWithTaints",
            "[{key:\"k\" value:\"v\" effect:\"NoSchedule\"} \
             {key:\"j\" value:\"\" effect:\"NoExecute\"}]",
        ),
        (
            &["--reserved-memory=0:memory=1Gi,hugepages-2Mi=2Mi;1:memory=2Gi"],
            "reservedMemory",
            "[{numaNode:0 limits:{memory:\"1Gi\" hugepages-2Mi:\"2Mi\"}} \
             {numaNode:1 limits:{memory:\"2Gi\"}}]",
        ),
        (&["-v", "4"], "logging.verbosity", "4"),
        (&["-v=5"], "logging.verbosity", "5"),
        (&["-v6"], "logging.verbosity", "6"),
        (&["--v=2"], "logging.verbosity", "2"),
        (
            &["--vmodule=pleg*=4,file=6"],
            "logging.vmodule",
            "[{filePattern:\"pleg*\" verbosity:4} {filePattern:\"file\" verbosity:6}]",
        ),
        (&["--logging-format=json"], "logging.format", "\"json\""),
        (&["--image-service-endpoint=unix:///i"], "imageServiceEndpoint", "\"unix:///i\""),
    ];
    for (list, path, expected) in cases {
        assert_eq!(field(&run(list), path), *expected, "{list:?}");
    }
}

#[test]
fn every_flag_is_accepted_and_reaches_its_place() {
    let sample = |kind| match kind {
        FlagKind::Bool => "=true",
        FlagKind::Int32 | FlagKind::Int64 => "=7",
        FlagKind::Duration => "=7s",
        FlagKind::Map => "=k=v",
        FlagKind::Thresholds => "=k<v",
        FlagKind::BoolMap => "=k=true",
        FlagKind::Headers => "=k:v",
        FlagKind::Taints => "=k=v:NoExecute",
        FlagKind::ReservedMemory => "=0:memory=1Gi",
        FlagKind::VModule => "=k=1",
        FlagKind::Text | FlagKind::Path | FlagKind::List => "=x",
    };
    for spec in all_flags() {
        let flags = run(&[&format!("--{}{}", spec.name, sample(spec.kind))]);
        let changed = Flags { deprecated: Vec::new(), obsolete: Vec::new(), ..flags.clone() }
            != Flags::default();
        assert_eq!(changed, spec.target != FlagTarget::Ignored, "--{}", spec.name);
        for (group, given) in
            [(FlagGroup::Mirrors, &flags.deprecated), (FlagGroup::Obsolete, &flags.obsolete)]
        {
            let listed = given.contains(&spec.name);
            assert_eq!(listed, spec.group == group, "--{}", spec.name);
        }
    }
    let names: Vec<_> = all_flags().map(|spec| spec.name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "a flag is listed twice");
}

#[test]
fn flags_without_a_field_are_kept_apart() {
    let flags = run(&[
        "--config=/k.yaml",
        "--root-dir=/r",
        "--hostname-override=N",
        "--node-labels=a=b,c=d",
        "--lock-file=/l",
        "--exit-on-lock-contention",
        "--maximum-dead-containers=5",
        "--maximum-dead-containers-per-container=-1",
        "--minimum-container-ttl-duration=1m",
    ]);
    let expected = Flags {
        config: Some("/k.yaml".into()),
        root_dir: "/r".into(),
        hostname_override: Some("N".to_owned()),
        node_labels: [("a", "b"), ("c", "d")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        lock_file: Some("/l".into()),
        exit_on_lock_contention: true,
        maximum_dead_containers: 5,
        maximum_dead_containers_per_container: -1,
        minimum_container_ttl: GoDuration::from_secs(60),
        ..Flags::default()
    };
    assert_eq!(flags, expected);
}

#[test]
fn a_wrong_command_line_names_the_flag() {
    let cases: &[(&[&str], &str)] = &[
        (&["--no-such-flag"], "unknown flag: --no-such-flag"),
        (&["--confg=/x"], "unknown flag: --confg; did you mean --config?"),
        (&["--max_podz=1"], "unknown flag: --max-podz; did you mean --max-pods?"),
        // A name that has little in common is no suggestion.
        (&["--boot-file"], "unknown flag: --boot-file"),
        (&["-x"], "unknown flag: -x"),
        (
            &["start"],
            "unexpected argument \"start\": the kubelet takes only flags, or a subcommand before them",
        ),
        (
            &["--fail-swap-on", "true"],
            "unexpected argument \"true\": the kubelet takes only flags, or a subcommand before them",
        ),
        (&["--config"], "--config: needs a value"),
        (
            &["--max-pods=many", "--sync-frequency=5", "--fail-swap-on=maybe"],
            "--sync-frequency: \"5\" has no unit: write for example \"30s\" or \"2m\"\n\
             --fail-swap-on: \"maybe\" is neither true nor false\n\
             --max-pods: \"many\" is not an integer",
        ),
        (
            &["--max-pods=3000000000"],
            "--max-pods: 3000000000 is out of range: must be between -2147483648 and 2147483647",
        ),
        (&["--feature-gates=A"], "--feature-gates: \"A\" is not of the form key=value"),
        (&["--eviction-hard=a=b"], "--eviction-hard: \"a=b\" is not of the form key<value"),
        (
            &["--manifest-url-header=secret"],
            "--manifest-url-header: a header is not of the form name:value",
        ),
        (&["--vmodule=x"], "--vmodule: \"x\" is not of the form pattern=N"),
    ];
    for (list, expected) in cases {
        let mut lines: Vec<_> = expected.lines().collect();
        let refusal = refused(list);
        let mut found: Vec<_> = refusal.lines().collect();
        lines.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, lines, "{list:?}");
    }
}

#[test]
fn arguments_that_are_not_text_are_refused() {
    use std::os::unix::ffi::OsStringExt;
    let broken = OsString::from_vec(b"--config=\xff".to_vec());
    assert!(parse_args([broken]).unwrap_err().to_string().contains("UTF-8"));
}

#[test]
fn help_shows_every_flag_under_its_group_within_the_width() {
    let Ok(Invocation::Help(text)) = parse_args(args(&["--v=2", "--help"])) else { panic!() };
    assert_eq!(parse_args(args(&["-h"])), Ok(Invocation::Help(text.clone())));
    for group in FlagGroup::ALL {
        assert!(text.contains(&format!("\n{group}:\n")), "{group:?}");
    }
    for spec in all_flags() {
        let start = text.find(&format!("--{} ", spec.name));
        let bool_start = text.find(&format!("--{}[=BOOL]", spec.name));
        assert!(start.or(bool_start).is_some(), "--{}", spec.name);
    }
    assert!(text.contains("[default: unix:///run/containerd/containerd.sock]"));
    let essential = text.find("--config <PATH>").unwrap();
    let mirror = text.find("--max-pods <N>").unwrap();
    assert!(essential < mirror);
    for line in text.lines().filter(|line| !line.contains("[default:") && !line.contains(':')) {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn version_is_what_kubeadm_parses() {
    let expected = Invocation::Version(version());
    assert_eq!(parse_args(args(&["--version"])), Ok(expected.clone()));
    assert_eq!(parse_args(args(&["--version=raw"])), Ok(expected));
    let version = version();
    let number = version.strip_prefix("Kubernetes v1.36.").expect(&version);
    let (patch, own) = number.split_once("+rs").expect(number);
    assert!(patch.parse::<u32>().is_ok(), "{version}");
    assert_eq!(own, env!("CARGO_PKG_VERSION"));
    // The release that the tests of the cluster run.
    let pinned = include_str!("../../../hack/kubernetes/go.mod");
    let release = format!("\tk8s.io/kubernetes v1.36.{patch} ");
    assert!(pinned.contains(&release), "{release}");
}

#[test]
fn secrets_in_headers_stay_out_of_debug_output() {
    let flags = run(&["--manifest-url-header=Authorization:Bearer hunter2"]);
    assert!(!format!("{flags:?}").contains("hunter2"));
}
