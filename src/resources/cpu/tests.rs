use super::take_tests::machine;
use super::*;
use crate::resources::topology::TopologyPolicy;
use std::collections::BTreeMap;

const ALL: OptionGates = OptionGates { alpha: true, beta: true };

fn parse(options: &[&str], gates: OptionGates) -> Result<CpuOptions, String> {
    let options = options.iter().map(|option| {
        let (name, value) = option.split_once('=').unwrap_or((option, "true"));
        (name.to_owned(), value.to_owned())
    });
    CpuOptions::parse(&options.collect(), gates)
}

#[test]
fn options_are_read_and_checked() {
    let none = OptionGates { alpha: false, beta: false };
    let stable =
        ["full-pcpus-only", "strict-cpu-reservation=1", "prefer-align-cpus-by-uncorecache=T"];
    let options = parse(&stable, none).unwrap();
    assert!(
        options.full_pcpus_only
            && options.strict_reservation
            && options.prefer_align_by_uncore_cache
    );
    for (option, group) in [
        ("distribute-cpus-across-numa", "Beta"),
        ("align-by-socket", "Alpha"),
        ("distribute-cpus-across-cores", "Alpha"),
    ] {
        assert!(parse(&[option], ALL).is_ok());
        assert_eq!(
            parse(&[option], none).unwrap_err(),
            format!(
                "CPU Manager Policy {group}-level Options not enabled, but option {option:?} provided"
            )
        );
    }
    assert_eq!(parse(&["x"], ALL).unwrap_err(), "unknown CPU Manager Policy option: \"x\"");
    assert_eq!(
        parse(&["align-by-socket=yes"], ALL).unwrap_err(),
        "bad value for option \"align-by-socket\": strconv.ParseBool: parsing \"yes\": invalid syntax"
    );
    for (one, other) in [
        ("full-pcpus-only", "distribute-cpus-across-cores"),
        ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
        ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
        ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
    ] {
        assert_eq!(
            parse(&[one, other], ALL).unwrap_err(),
            format!("static policy options {one} and {other} can not be used at the same time")
        );
    }
}

fn policy(options: &[&str], milli_cpu: i64, cpus: &str) -> Result<StaticCpuPolicy, String> {
    let reserved = ReservedCpus { milli_cpu, cpus: CpuSet::parse(cpus).unwrap() };
    // Two sockets of two cores with two threads each.
    let topology = CpuTopology::new(&machine([2, 2, 4, 2, 0], false));
    StaticCpuPolicy::new(topology, parse(options, ALL)?, &reserved, TopologyPolicy::None)
}

#[test]
fn reserved_cpus_are_those_given_or_the_first_cores() {
    let reserved = |milli, cpus| policy(&[], milli, cpus).map(|policy| policy.reserved.to_string());
    assert_eq!(reserved(1, "").unwrap(), "0");
    assert_eq!(reserved(1001, "").unwrap(), "0,4");
    assert_eq!(reserved(2000, "3,7").unwrap(), "3,7");
    assert_eq!(
        reserved(0, "").unwrap_err(),
        "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
    );
    assert_eq!(
        reserved(9000, "").unwrap_err(),
        "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of  did not equal 9)"
    );
    assert_eq!(
        reserved(1000, "8").unwrap_err(),
        "new static policy error: [cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: 8"
    );
}

#[test]
fn align_by_socket_needs_a_machine_and_a_policy_that_suit_it() {
    let of = |numbers, policy| {
        let topology = CpuTopology::new(&machine(numbers, false));
        let reserved = ReservedCpus { milli_cpu: 1000, ..ReservedCpus::default() };
        let options = parse(&["align-by-socket"], ALL).unwrap();
        StaticCpuPolicy::new(topology, options, &reserved, policy).map(drop)
    };
    assert_eq!(of([2, 4, 8, 1, 0], TopologyPolicy::Restricted), Ok(()));
    assert!(
        of([2, 4, 8, 1, 0], TopologyPolicy::SingleNumaNode)
            .unwrap_err()
            .contains("single-numa-node policy is incompatible with CPUManager align-by-socket")
    );
    assert!(
        of([4, 2, 8, 1, 0], TopologyPolicy::None)
            .unwrap_err()
            .contains("number of sockets are more than number of NUMA")
    );
}

fn state(shared: &str, assigned: &[(&str, &str, &str)]) -> CpuState {
    let mut state = CpuState { shared: CpuSet::parse(shared).unwrap(), ..CpuState::default() };
    for (pod, container, cpus) in assigned {
        let pod: &mut BTreeMap<_, _> = state.assigned.entry((*pod).to_owned()).or_default();
        pod.insert((*container).to_owned(), CpuSet::parse(cpus).unwrap());
    }
    state
}

#[test]
fn a_state_that_does_not_suit_the_machine_is_an_error() {
    let start = |options: &[&str], mut state: CpuState| {
        let started = policy(options, 2000, "0,4").unwrap().start(&mut state);
        started.map(|()| state.shared.to_string())
    };
    let strict = &["strict-cpu-reservation"];
    assert_eq!(start(&[], state("", &[])).unwrap(), "0-7");
    assert_eq!(start(strict, state("", &[])).unwrap(), "1-3,5-7");
    let one = &[("u", "c", "1")];
    assert_eq!(start(&[], state("0,2-7", one)).unwrap(), "0,2-7");
    assert_eq!(start(strict, state("2-3,5-7", one)).unwrap(), "2-3,5-7");
    for (options, state, error) in [
        (&[][..], state("", one), "default cpuset cannot be empty"),
        (
            &[],
            state("2-7", one),
            "not all reserved cpus: \"0,4\" are present in defaultCpuSet: \"2-7\"",
        ),
        (
            strict,
            state("0-7", &[]),
            "some of strictly reserved cpus: \"0,4\" are present in defaultCpuSet: \"0-7\"",
        ),
        (
            &[],
            state("0-7", one),
            "pod: u, container: c cpuset: \"1\" overlaps with default cpuset \"0-7\"",
        ),
        (
            &[],
            state("0,2-8", one),
            "current set of available CPUs \"0-7\" doesn't match with CPUs in state \"0-8\"",
        ),
    ] {
        assert_eq!(start(options, state).unwrap_err(), error);
    }
}

/// Files that the Go kubelet wrote.
const NONE: &str = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
const STATIC: &str = r#"{"policyName":"static","defaultCpuSet":"0-3,8","entries":{"a-uid":{"c":"9"},"b-uid":{"one":"4,6-7","two":"5"}},"checksum":1561498674}"#;

#[test]
fn files_of_the_go_kubelet_are_read_and_written() {
    assert_eq!(from_checkpoint("none", NONE), Ok(CpuState::default()));
    assert_eq!(to_checkpoint("none", &CpuState::default()), NONE);
    let expected =
        state("0-3,8", &[("a-uid", "c", "9"), ("b-uid", "one", "4,6-7"), ("b-uid", "two", "5")]);
    assert_eq!(from_checkpoint("static", STATIC), Ok(expected.clone()));
    assert_eq!(to_checkpoint("static", &expected), STATIC);
    let without = STATIC.replace(",\"checksum\":1561498674", "");
    assert_eq!(from_checkpoint("static", &without), Ok(expected));
}

#[test]
fn a_damaged_file_is_an_error() {
    let read = |text: &str| from_checkpoint("static", text).unwrap_err();
    assert_eq!(read(&STATIC.replace("\"5\"", "\"6\"")), "checkpoint is corrupted");
    for text in ["", "{", "{\"entries\":{\"a\":\"b\"}}", "\0"] {
        assert!(read(text).starts_with("checkpoint is corrupted: "), "{text:?}");
    }
    assert_eq!(
        read(NONE),
        "configured policy \"static\" differs from state checkpoint policy \"none\""
    );
    assert_eq!(
        read(r#"{"policyName":"static","defaultCpuSet":"3-1"}"#),
        "could not parse default cpu set \"3-1\": invalid range \"3-1\" (3 > 1)"
    );
    assert_eq!(
        read(r#"{"policyName":"static","defaultCpuSet":"1","entries":{"u":{"c":"x"}}}"#),
        "could not parse cpuset \"x\" for container \"c\" in pod \"u\": strconv.Atoi: parsing \"x\": invalid syntax"
    );
}
