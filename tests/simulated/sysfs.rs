//! The part of `/sys` from which the kubelet reads CPUs and NUMA nodes.

use std::fs;
use std::path::Path;

/// Four CPUs and 8 GiB of memory, spread over as many sockets, with one NUMA node each.
pub(crate) fn four_cpus(sys: &Path, sockets: u32) {
    let write = |path: String, text: String| {
        let path = sys.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("devices/system/cpu/online".into(), "0-3\n".into());
    for cpu in 0..4 {
        let socket = cpu * sockets / 4;
        let topology = format!("devices/system/cpu/cpu{cpu}/topology");
        write(format!("{topology}/core_id"), format!("{cpu}\n"));
        write(format!("{topology}/physical_package_id"), format!("{socket}\n"));
        let online = format!("devices/system/node/node{socket}/cpu{cpu}/online");
        write(online, "1\n".into());
    }
    for numa in 0..sockets {
        let memory = format!("Node {numa} MemTotal: {} kB\n", 8_388_608 / sockets);
        write(format!("devices/system/node/node{numa}/meminfo"), memory);
    }
}
