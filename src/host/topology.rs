//! CPU topology: sockets, cores, CPUs and NUMA nodes, and the memory of each node.
//!
//! The kernel's core IDs are unique only within a socket; here a core is identified by its lowest CPU.

use super::machine::{parse_cpu_list, parse_hugepage_name, parse_mem_total};
use crate::base::if_exists;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The hardware topology. Only online CPUs are included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineTopology {
    /// The NUMA nodes, ascending. Without NUMA, one per socket.
    pub nodes: Vec<NumaNode>,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// The node's number.
    pub id: u32,
    /// Memory in bytes, including huge pages; 0 if not available.
    pub memory_bytes: u64,
    /// Huge pages: page size in bytes, and number of pages; ascending.
    pub huge_pages: Vec<(u64, u64)>,
    /// Distances to all nodes; empty if not available.
    pub distances: Vec<u64>,
    /// The node's CPUs, ascending; may be empty.
    pub cpus: Vec<CpuPlace>,
}

/// The position of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuPlace {
    /// The CPU's number.
    pub cpu: u32,
    /// The lowest CPU of its core.
    pub core: u32,
    /// Its socket.
    pub socket: u32,
    /// The last-level cache, if it is shared by only a part of the node; else the socket.
    pub uncore: u32,
}

impl MachineTopology {
    /// Reads the topology from `sys` (`/sys`). Blocking.
    ///
    /// # Errors
    /// A file has an invalid number, or there are no CPUs; the text has the file's path.
    pub fn read(sys: &Path) -> io::Result<Self> {
        let cpu_dir = sys.join("devices/system/cpu");
        let online = match read_text(&cpu_dir.join("online"))? {
            Some(text) => Some(parse(&cpu_dir.join("online"), &text, parse_cpu_list)?),
            None => None,
        };
        let online: Option<BTreeSet<u32>> = online.map(|list| list.into_iter().collect());
        let node_dirs = numbered(&sys.join("devices/system/node"), "node")?;
        let mut nodes = Vec::new();
        for (id, dir) in &node_dirs {
            let cpus = places(&cpu_dir, &numbered(dir, "cpu")?, online.as_ref())?;
            nodes.push(NumaNode {
                id: *id,
                memory_bytes: memory(&dir.join("meminfo"))?,
                huge_pages: huge_pages(&dir.join("hugepages"))?,
                distances: distances(&dir.join("distance"))?,
                cpus,
            });
        }
        if node_dirs.is_empty() {
            nodes = without_numa(places(&cpu_dir, &numbered(&cpu_dir, "cpu")?, online.as_ref())?);
        }
        if nodes.iter().all(|node| node.cpus.is_empty()) {
            let text = format!("no CPU is available in {}", cpu_dir.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        Ok(Self { nodes })
    }
}

fn without_numa(cpus: Vec<CpuPlace>) -> Vec<NumaNode> {
    let mut sockets = BTreeMap::<u32, Vec<CpuPlace>>::new();
    for place in cpus {
        sockets.entry(place.socket).or_default().push(place);
    }
    let node = |(id, cpus)| NumaNode { id, cpus, ..NumaNode::default() };
    sockets.into_iter().map(node).collect()
}

/// The positions of a node's CPUs. Offline CPUs, and those without topology, are skipped.
fn places(
    cpu_dir: &Path,
    cpus: &[(u32, PathBuf)],
    online: Option<&BTreeSet<u32>>,
) -> io::Result<Vec<CpuPlace>> {
    let mut cores = BTreeMap::<(u32, u32), Vec<u32>>::new();
    for (cpu, _) in cpus {
        if online.is_some_and(|online| !online.contains(cpu)) {
            continue;
        }
        let topology = cpu_dir.join(format!("cpu{cpu}/topology"));
        let core = read_id(&topology.join("core_id"), *cpu)?;
        let socket = read_id(&topology.join("physical_package_id"), 0)?;
        if let (Some(core), Some(socket)) = (core, socket) {
            cores.entry((socket, core)).or_default().push(*cpu);
        }
    }
    let mut caches_known = true;
    let mut found = Vec::new();
    for ((socket, _), threads) in &cores {
        let Some(first) = threads.first() else {
            continue;
        };
        let mut uncore = None;
        if caches_known {
            let caches = cpu_dir.join(format!("cpu{first}/cache"));
            match partial_cache(&caches, cores.len() * threads.len()) {
                Ok(cache) => uncore = cache,
                Err(_) => caches_known = false,
            }
        }
        found.extend(threads.iter().map(|cpu| CpuPlace {
            cpu: *cpu,
            core: *first,
            socket: *socket,
            uncore: uncore.unwrap_or(*socket),
        }));
    }
    found.sort_by_key(|place| place.cpu);
    Ok(found)
}

/// The first cache above level 2 that is not shared by exactly as many CPUs as the node has, if there is one.
fn partial_cache(caches: &Path, node_cpus: usize) -> io::Result<Option<u32>> {
    for (_, dir) in numbered(caches, "index")? {
        let number = |name: &str| {
            let path = dir.join(name);
            read_id(&path, 0)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        };
        let (id, level) = (number("id")?, number("level")?);
        let path = dir.join("shared_cpu_list");
        let shared = read_text(&path)?.unwrap_or_default();
        let shared = parse(&path, &shared, parse_cpu_list)?;
        if level > 2 && shared.len() != node_cpus {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Parses `MemTotal` of a node's `meminfo`: `Node 0 MemTotal:  16318484 kB`.
fn memory(path: &Path) -> io::Result<u64> {
    let Some(text) = read_text(path)? else {
        return Ok(0);
    };
    parse(path, &text, parse_mem_total)
}

fn huge_pages(dir: &Path) -> io::Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    for name in names(dir)? {
        let Some(size) = parse_hugepage_name(&name) else {
            continue;
        };
        let path = dir.join(&name).join("nr_hugepages");
        if let Some(text) = read_text(&path)? {
            found.push((size, parse(&path, &text, |text| text.trim().parse().ok())?));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn distances(path: &Path) -> io::Result<Vec<u64>> {
    let Some(text) = read_text(path)? else {
        return Ok(Vec::new());
    };
    parse(path, &text, |text| {
        let numbers = text.split_whitespace().map(|number| number.parse().ok());
        numbers.collect()
    })
}

/// The directory entries with a prefix and a number as name, by number. A missing directory has none.
fn numbered(dir: &Path, prefix: &str) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found: Vec<_> = names(dir)?
        .into_iter()
        .filter_map(|name| {
            let number = name.strip_prefix(prefix)?;
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            let number = number.parse().ok().filter(|_| digits)?;
            Some((number, dir.join(name)))
        })
        .collect();
    found.sort_unstable();
    Ok(found)
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = if_exists(fs::read_dir(dir)).map_err(|error| named(dir, &error))?;
    let mut found = Vec::new();
    for entry in entries.into_iter().flatten() {
        let name = entry.map_err(|error| named(dir, &error))?.file_name();
        found.extend(name.into_string());
    }
    Ok(found)
}

/// The number in a file, or `unknown` for the kernel's -1; `None` if the file does not exist.
fn read_id(path: &Path, unknown: u32) -> io::Result<Option<u32>> {
    let Some(text) = read_text(path)? else {
        return Ok(None);
    };
    if text.trim() == "-1" {
        return Ok(Some(unknown));
    }
    parse(path, &text, |text| text.trim().parse().ok()).map(Some)
}

fn read_text(path: &Path) -> io::Result<Option<String>> {
    if_exists(fs::read_to_string(path)).map_err(|error| named(path, &error))
}

fn parse<T>(path: &Path, text: &str, parser: impl Fn(&str) -> Option<T>) -> io::Result<T> {
    parser(text).ok_or_else(|| {
        let shown: String = text.trim().chars().take(40).collect();
        let text = format!("cannot parse {}: {shown:?}", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
