use super::machine::{NodeReservation, ReservedMemory};
use super::*;
use crate::host::{MachineTopology, NumaNode};
use crate::model::Quantity;

pub(super) const GI: u64 = 1 << 30;

/// NUMA nodes with so many GiB, of which the number after them is in huge pages of 1 GiB.
pub(super) fn machine(nodes: &[(u64, u64)]) -> MachineTopology {
    let nodes = (0..).zip(nodes).map(|(id, (memory, huge))| NumaNode {
        id,
        memory_bytes: memory * GI,
        huge_pages: vec![(GI, *huge)],
        ..NumaNode::default()
    });
    MachineTopology { nodes: nodes.collect() }
}

pub(super) fn reserved(entries: &[(u32, &str, &str)]) -> ReservedMemory {
    let entry = |(node, resource, amount): &(u32, &str, &str)| {
        let amount = Quantity::parse(amount).unwrap();
        (*node, [((*resource).to_owned(), amount)].into())
    };
    entries.iter().map(entry).collect()
}

fn of_node(memory: &str) -> NodeReservation {
    [("memory".to_owned(), Quantity::parse(memory).unwrap())].into()
}

pub(super) fn policy(nodes: &[(u64, u64)]) -> StaticMemoryPolicy {
    let reserved = reserved(&[(0, "memory", "1Gi")]);
    StaticMemoryPolicy::new(&machine(nodes), &reserved, &of_node("1Gi")).unwrap()
}

#[test]
fn a_node_has_what_is_neither_reserved_nor_in_huge_pages() {
    let manager = MemoryManager::new(&policy(&[(8, 2), (4, 0)]), MemoryState::default()).unwrap();
    let table = |node: u32, resource: &str| manager.state().nodes[&node].memory_map[resource];
    let expected = |total, kept, free| MemoryTable {
        total: total * GI,
        system_reserved: kept * GI,
        allocatable: free * GI,
        reserved: 0,
        free: free * GI,
    };
    assert_eq!(table(0, "memory"), expected(8, 1, 5));
    assert_eq!(table(0, "hugepages-1Gi"), expected(2, 0, 2));
    assert_eq!(table(1, "memory"), expected(4, 0, 4));
    assert_eq!(manager.state().nodes[&1].cells, [1]);
}

#[test]
fn reservations_have_to_agree_with_each_other_and_the_machine() {
    let error = |entries: &[(u32, &str, &str)], node: &str| {
        let node = if node.is_empty() { NodeReservation::new() } else { of_node(node) };
        StaticMemoryPolicy::new(&machine(&[(2, 0)]), &reserved(entries), &node).unwrap_err()
    };
    assert_eq!(
        error(&[(0, "memory", "1Gi")], "1124Mi"),
        "the total amount \"1Gi\" of type \"memory\" is not equal to the value \"1124Mi\" determined by Node Allocatable feature"
    );
    assert_eq!(
        error(&[(1, "memory", "1Gi")], "1Gi"),
        "the reserved memory configuration references a NUMA node 1 that does not exist on this machine"
    );
    assert_eq!(error(&[], ""), "[memorymanager] you should specify the system reserved memory");
    assert_eq!(
        error(&[(0, "hugepages-1Gi", "1Gi")], ""),
        "the total amount \"1Gi\" of type \"hugepages-1Gi\" is not equal to the value \"0\" determined by Node Allocatable feature"
    );
    assert!(
        error(&[(0, "memory", "3Gi")], "3Gi").contains("are reserved on NUMA node 0, which has")
    );
}

fn block(nodes: &[u32], resource: &str, size: u64) -> MemoryBlock {
    MemoryBlock { nodes: nodes.to_vec(), resource: resource.to_owned(), size }
}

/// Files that the Go kubelet wrote.
const NONE: &str = r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#;
const STATIC: &str = r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":2,"memoryMap":{"hugepages-1Gi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,"free":0},"memory":{"total":10,"systemReserved":1,"allocatable":9,"reserved":4,"free":5}},"cells":[0,10]},"10":{"numberOfAssignments":2,"memoryMap":{"memory":{"total":10,"systemReserved":0,"allocatable":10,"reserved":0,"free":10}},"cells":[0,10]},"2":{"numberOfAssignments":0,"memoryMap":{},"cells":[2]}},"entries":{"uid":{"c":[{"numaAffinity":[0,10],"type":"memory","size":4},{"numaAffinity":[0,10],"type":"hugepages-1Gi","size":0}]}},"checksum":2084842852}"#;

#[test]
fn files_of_the_go_kubelet_are_read_and_written() {
    assert_eq!(from_checkpoint("None", NONE), Ok(MemoryState::default()));
    assert_eq!(to_checkpoint("None", &MemoryState::default()), NONE);
    let state = from_checkpoint("Static", STATIC).unwrap();
    let expected = [block(&[0, 10], "memory", 4), block(&[0, 10], "hugepages-1Gi", 0)];
    assert_eq!(state.assigned["uid"]["c"], expected);
    assert_eq!(state.nodes[&10].memory_map["memory"].free, 10);
    assert_eq!(to_checkpoint("Static", &state), STATIC);
}

#[test]
fn a_damaged_file_is_an_error() {
    let read = |text: &str| from_checkpoint("Static", text).unwrap_err();
    assert_eq!(read(&STATIC.replace("\"size\":4", "\"size\":5")), "checkpoint is corrupted");
    for text in ["", "{", "{\"machineState\":{\"x\":{}}}"] {
        assert!(read(text).starts_with("checkpoint is corrupted: "), "{text:?}");
    }
    assert_eq!(
        read(NONE),
        "[memorymanager] configured policy \"Static\" differs from state checkpoint policy \"None\""
    );
}

#[test]
fn a_state_that_does_not_suit_the_machine_is_an_error() {
    let start = |change: &dyn Fn(&mut MemoryState)| {
        let policy = policy(&[(8, 0), (8, 0)]);
        let mut state = MemoryState::default();
        policy.start(&mut state).unwrap();
        change(&mut state);
        policy.start(&mut state).map_err(|error| error.replace("[memorymanager] ", ""))
    };
    let assign = |state: &mut MemoryState, block: MemoryBlock| {
        state.assigned.entry("u".into()).or_default().insert("c".into(), vec![block]);
    };
    assert_eq!(start(&|_| ()), Ok(()));
    let both = block(&[0, 1], "memory", 9 * GI);
    assert_eq!(
        start(&|state| {
            policy::reserve(&mut state.nodes, &both, both.size);
            assign(state, both.clone());
        }),
        Ok(())
    );
    let different = "the expected machine state is different from the real one";
    assert_eq!(start(&|state| assign(state, both.clone())).unwrap_err(), different);
    assert_eq!(start(&|state| drop(state.nodes.remove(&1))).unwrap_err(), different);
    assert_eq!(
        start(&|state| assign(state, block(&[3], "memory", 1))).unwrap_err(),
        "(pod: u, container: c) the memory assignment uses the NUMA that does not exist"
    );
    assert_eq!(
        start(&|state| assign(state, block(&[1], "hugepages-2Mi", 1))).unwrap_err(),
        "(pod: u, container: c) the memory assignment uses memory resource that does not exist"
    );
    assert_eq!(
        start(&|state| {
            state.nodes.clear();
            assign(state, block(&[1], "memory", 1));
        })
        .unwrap_err(),
        "machine state can not be empty when it has memory assignments"
    );
}
