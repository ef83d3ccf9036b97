//! The cases in `take_cases.txt` are what the Go kubelet takes. A line `machine` begins cases of one machine: its
//! sockets, NUMA nodes, cores, threads of a core, cores of a cache (0 if there is one cache), and whether neighbours
//! are on different sockets. The other lines are how CPUs are taken, how many, from which, and the result.

use super::distribute::take;
use super::take::TakeOptions;
use super::{CpuSet, CpuTopology};
use crate::host::{CpuPlace, MachineTopology, NumaNode};

/// CPUs are numbered core by core, first threads first.
pub(super) fn machine(
    [sockets, nodes, cores, threads, cores_of_cache]: [u32; 5],
    interleaved: bool,
) -> MachineTopology {
    let mut machine = MachineTopology {
        nodes: (0..nodes)
            .map(|id| NumaNode {
                id,
                distances: vec![10; usize::try_from(nodes).unwrap()],
                ..NumaNode::default()
            })
            .collect(),
    };
    for cpu in 0..cores * threads {
        let core = cpu % cores;
        let of = |parts: u32| {
            if interleaved { core % parts } else { core * parts / cores }
        };
        let uncore = core.checked_div(cores_of_cache).map(|cache| 100 + cache);
        let node = machine.nodes.get_mut(usize::try_from(of(nodes)).unwrap());
        node.unwrap().cpus.push(CpuPlace {
            cpu,
            core,
            socket: of(sockets),
            uncore: uncore.unwrap_or(of(sockets)),
        });
    }
    machine
}

#[test]
fn the_same_cpus_are_taken_as_by_the_go_kubelet() {
    let mut topology = CpuTopology::default();
    let mut threads = 1;
    let mut cases = 0;
    for line in include_str!("take_cases.txt").lines() {
        if let Some(numbers) = line.strip_prefix("machine ") {
            let (numbers, interleaved) = numbers.rsplit_once(' ').unwrap();
            let numbers: Vec<u32> = numbers.split(' ').map(|n| n.parse().unwrap()).collect();
            let numbers: [u32; 5] = numbers.try_into().unwrap();
            threads = numbers[3];
            topology = CpuTopology::new(&machine(numbers, interleaved == "true"));
            continue;
        }
        let [how, count, available, expected] =
            line.split('|').collect::<Vec<_>>().try_into().unwrap();
        let options = TakeOptions {
            spread_over_cores: how.ends_with("spread"),
            by_uncore: how == "uncore",
            over_numa: how.starts_with("numa").then(|| {
                let group = if how == "numa-cores" { threads } else { 1 };
                usize::try_from(group).unwrap()
            }),
        };
        let available = CpuSet::parse(available).unwrap();
        let taken = take(&topology, &available, count.parse().unwrap(), options);
        let taken = taken.map_or_else(|error| format!("error {error}"), |set| set.to_string());
        assert_eq!(taken, expected, "{line}");
        cases += 1;
    }
    assert!(cases > 300);
}

#[test]
fn sets_are_written_as_the_kernel_does() {
    for text in ["", "0", "0-1", "0,2", "0-3,8,10-11"] {
        assert_eq!(CpuSet::parse(text).unwrap().to_string(), text);
    }
    assert_eq!(CpuSet::parse("3,1,2,2").unwrap().to_string(), "1-3");
    for (text, error) in [
        ("a", "strconv.Atoi: parsing \"a\": invalid syntax"),
        ("1,", "strconv.Atoi: parsing \"\": invalid syntax"),
        ("3-1", "invalid range \"3-1\" (3 > 1)"),
        ("0-4294967295", "strconv.Atoi: parsing \"4294967295\": value out of range"),
    ] {
        assert_eq!(CpuSet::parse(text).unwrap_err(), error);
    }
}
