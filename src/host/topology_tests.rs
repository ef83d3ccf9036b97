use super::{CpuPlace, MachineTopology, NumaNode};
use std::fs;
use std::path::Path;

/// A directory that looks like `/sys`.
struct Sys(tempfile::TempDir);

impl Sys {
    fn new(online: &str) -> Self {
        let sys = Self(tempfile::tempdir().unwrap());
        sys.file("devices/system/cpu/online", online)
    }

    fn file(self, path: &str, text: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    /// A CPU, and its entry in a NUMA node if there is one.
    fn cpu(self, cpu: u32, core: u32, socket: u32, node: Option<u32>) -> Self {
        let topology = format!("devices/system/cpu/cpu{cpu}/topology");
        let sys = self
            .file(&format!("{topology}/core_id"), &core.to_string())
            .file(&format!("{topology}/physical_package_id"), &socket.to_string());
        match node {
            Some(node) => sys.file(&format!("devices/system/node/node{node}/cpu{cpu}/x"), ""),
            None => sys,
        }
    }

    fn cache(self, cpu: u32, index: u32, id: u32, level: u32, shared: &str) -> Self {
        let dir = format!("devices/system/cpu/cpu{cpu}/cache/index{index}");
        self.file(&format!("{dir}/id"), &id.to_string())
            .file(&format!("{dir}/level"), &level.to_string())
            .file(&format!("{dir}/shared_cpu_list"), shared)
    }

    fn read(&self) -> std::io::Result<MachineTopology> {
        MachineTopology::read(self.0.path())
    }
}

fn place(cpu: u32, core: u32, socket: u32, uncore: u32) -> CpuPlace {
    CpuPlace { cpu, core, socket, uncore }
}

#[test]
fn one_socket_without_threads() {
    let sys = Sys::new("0-1")
        .cpu(0, 0, 0, Some(0))
        .cpu(1, 1, 0, Some(0))
        .file(
            "devices/system/node/node0/meminfo",
            "Node 0 MemTotal:       1024 kB\nNode 0 MemFree:  1 kB",
        )
        .file("devices/system/node/node0/distance", "10")
        .file("devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "3")
        .file("devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages", "0");
    let expected = NumaNode {
        id: 0,
        memory_bytes: 1024 * 1024,
        huge_pages: vec![(2 << 20, 3), (1 << 30, 0)],
        distances: vec![10],
        cpus: vec![place(0, 0, 0, 0), place(1, 1, 0, 0)],
    };
    assert_eq!(sys.read().unwrap().nodes, [expected]);
}

#[test]
fn two_sockets_with_threads_whose_kernel_ids_repeat() {
    let mut sys = Sys::new("0-7");
    for (cpu, core, socket) in
        [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 0, 0), (5, 0, 1), (6, 1, 0), (7, 1, 1)]
    {
        sys = sys.cpu(cpu, core, socket, Some(socket));
    }
    let nodes = sys.read().unwrap().nodes;
    let cpus: Vec<_> = nodes.iter().map(|node| node.cpus.clone()).collect();
    let of = |cpus: [(u32, u32); 4], socket| {
        cpus.map(|(cpu, core)| place(cpu, core, socket, socket)).to_vec()
    };
    assert_eq!(
        cpus,
        [of([(0, 0), (2, 2), (4, 0), (6, 2)], 0), of([(1, 1), (3, 3), (5, 1), (7, 3)], 1),]
    );
}

#[test]
fn cpus_that_are_offline_or_unplaced_do_not_count() {
    let sys = Sys::new("0,2")
        .cpu(0, 0, 0, Some(0))
        .cpu(1, 0, 0, Some(0))
        .cpu(2, 1, 0, Some(0))
        .file("devices/system/node/node0/cpu3/x", "")
        .file("devices/system/node/node0/cpulist", "0-3")
        .file("devices/system/node/possible", "0");
    let nodes = sys.read().unwrap().nodes;
    assert_eq!(nodes.len(), 1);
    assert_eq!(nodes[0].cpus, [place(0, 0, 0, 0), place(2, 2, 0, 0)]);
}

#[test]
fn a_node_may_have_memory_only_and_a_machine_no_nodes() {
    let sys = Sys::new("0")
        .cpu(0, 0, 0, Some(0))
        .file("devices/system/node/node1/meminfo", "Node 1 MemTotal: 8 kB");
    let nodes = sys.read().unwrap().nodes;
    assert_eq!((nodes[1].id, nodes[1].memory_bytes), (1, 8192));
    assert_eq!(nodes[1].cpus, []);

    let sys = Sys::new("0-1").cpu(0, 0, 0, None).cpu(1, 0, 1, None);
    let nodes = sys.read().unwrap().nodes;
    let places: Vec<_> = nodes.iter().map(|node| (node.id, node.cpus[0])).collect();
    assert_eq!(places, [(0, place(0, 0, 0, 0)), (1, place(1, 1, 1, 1))]);
}

#[test]
fn a_last_level_cache_of_a_part_of_the_node_is_told_from_one_of_all() {
    let cpus = |caches: &[(u32, &str)]| {
        let mut sys = Sys::new("0-3");
        for (cpu, (id, shared)) in (0..).zip(caches) {
            sys = sys
                .cpu(cpu, cpu, 0, Some(0))
                .cache(cpu, 0, cpu, 1, &cpu.to_string())
                .cache(cpu, 3, *id, 3, shared);
        }
        let places = sys.read().unwrap().nodes[0].cpus.clone();
        places.iter().map(|place| place.uncore).collect::<Vec<_>>()
    };
    let split = [(7, "0-1"), (7, "0-1"), (9, "2-3"), (9, "2-3")];
    assert_eq!(cpus(&split), [7, 7, 9, 9]);
    assert_eq!(cpus(&[(7, "0-3"); 4]), [0; 4]);
}

#[test]
fn bad_files_are_named_in_the_error() {
    let error = |sys: Sys| sys.read().unwrap_err().to_string();
    assert!(error(Sys::new("none")).contains("cpu/online: \"none\""));
    assert!(error(Sys::new("0")).contains("no CPU is available in"));
    let cpu = || Sys::new("0").cpu(0, 0, 0, Some(0));
    for (file, text) in [
        ("devices/system/cpu/cpu0/topology/core_id", "x"),
        ("devices/system/cpu/cpu0/topology/physical_package_id", ""),
        ("devices/system/node/node0/meminfo", "Node 0 MemTotal: much"),
        ("devices/system/node/node0/hugepages/hugepages-4kB/nr_hugepages", "-1"),
        ("devices/system/node/node0/distance", "10 far"),
    ] {
        let error = error(cpu().file(file, text));
        assert!(error.contains("cannot parse") && error.contains(file), "{error}");
    }
    let unknown = cpu().file("devices/system/cpu/cpu0/topology/physical_package_id", "-1");
    assert_eq!(unknown.read().unwrap().nodes[0].cpus[0].socket, 0);
    assert!(MachineTopology::read(Path::new("/does/not/exist")).is_err());
}

#[test]
fn this_machine_can_be_read() {
    let read = MachineTopology::read(Path::new("/sys")).unwrap();
    assert!(read.nodes.iter().any(|node| !node.cpus.is_empty()));
}
