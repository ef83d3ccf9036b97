//! Counters and statistics in `/proc`. The parsers are pure; functions that read files block.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

/// `/proc/meminfo`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// `MemTotal`.
    pub total: u64,
    /// `MemFree`.
    pub free: u64,
    /// `AnonPages`.
    pub anonymous: u64,
    /// `SwapTotal`.
    pub swap_total: u64,
    /// `SwapFree`.
    pub swap_free: u64,
    /// `Inactive(file)`: page cache that is reclaimed first.
    pub inactive_file: u64,
    /// `KReclaimable`: kernel memory, such as cached directory entries, that is reclaimed like page cache.
    pub reclaimable: u64,
    /// `Hugetlb`: huge pages of all sizes, in use or not.
    pub huge_pages: u64,
}

impl MemInfo {
    /// Memory in use, with page cache. Huge pages are not in it, because they are a resource of their own, nor is kernel
    /// memory that is reclaimed like page cache. All other memory is, because use that neither a cgroup nor a list
    /// of known uses shows would otherwise fill the machine unnoticed.
    pub fn used(&self) -> u64 {
        self.ordinary().saturating_sub(self.free).saturating_sub(self.reclaimable)
    }

    /// All memory but huge pages, which no other use can have.
    pub fn ordinary(&self) -> u64 {
        self.total.saturating_sub(self.huge_pages)
    }

    /// The working set: memory in use without the inactive page cache.
    pub fn working_set(&self) -> u64 {
        self.used().saturating_sub(self.inactive_file)
    }
}

/// Parses `/proc/meminfo`; missing fields are zero.
pub fn parse_meminfo(text: &str) -> MemInfo {
    let mut info = MemInfo::default();
    for line in text.lines() {
        let Some((key, rest)) = line.split_once(':') else {
            continue;
        };
        let kib = rest.trim().trim_end_matches("kB").trim().parse::<u64>();
        let bytes = kib.unwrap_or_default().saturating_mul(1024);
        match key {
            "MemTotal" => info.total = bytes,
            "MemFree" => info.free = bytes,
            "AnonPages" => info.anonymous = bytes,
            "SwapTotal" => info.swap_total = bytes,
            "SwapFree" => info.swap_free = bytes,
            "Inactive(file)" => info.inactive_file = bytes,
            "KReclaimable" => info.reclaimable = bytes,
            "Hugetlb" => info.huge_pages = bytes,
            _ => {}
        }
    }
    info
}

/// Counters of one network interface since its creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkInterface {
    /// The interface's name.
    pub name: String,
    /// Received bytes, packets, errors and dropped packets.
    pub received: [u64; 4],
    /// Sent bytes, packets, errors and dropped packets.
    pub sent: [u64; 4],
}

/// Prefixes of interface names that are ignored, as in cAdvisor.
const NOT_SHOWN: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// Parses `/proc/net/dev`, without loopback and the host ends of pods' veth pairs.
pub fn parse_net_dev(text: &str) -> Vec<NetworkInterface> {
    let line = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let name = name.trim();
        let lower = name.to_ascii_lowercase();
        if NOT_SHOWN.iter().any(|prefix| lower.starts_with(prefix)) {
            return None;
        }
        let mut numbers = rest.split_ascii_whitespace().map(|word| word.parse().ok());
        let mut four =
            || Some([numbers.next()??, numbers.next()??, numbers.next()??, numbers.next()??]);
        let received = four()?;
        // Skips fifo, frame, compressed, multicast.
        four()?;
        let sent = four()?;
        Some(NetworkInterface { name: name.to_owned(), received, sent })
    };
    text.lines().filter_map(line).collect()
}

/// Parses the names of block devices by device number from `/proc/diskstats`.
pub fn parse_disk_names(text: &str) -> HashMap<(u32, u32), String> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let device = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some((device, format!("/dev/{}", words.next()?)))
    };
    text.lines().filter_map(line).collect()
}

/// The PID of the process that listens on a Unix socket. Does not wait: a listener with a full backlog is an error.
pub fn peer_of(socket: &Path) -> io::Result<u32> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(socket)?)?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    u32::try_from(peer.pid.as_raw_nonzero().get()).map_err(io::Error::other)
}

/// Parses the boot time, in seconds since the epoch, from `/proc/stat`.
pub fn parse_boot_time(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

/// Parses the number of threads from `/proc/loadavg`.
pub fn parse_thread_count(text: &str) -> Option<u64> {
    let running_and_all = text.split_ascii_whitespace().nth(3)?;
    running_and_all.split_once('/')?.1.parse().ok()
}

/// The number of threads on the machine, and the maximum.
pub fn thread_counts() -> (Option<u64>, Option<u64>) {
    let number = |path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let most = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    let most = most.into_iter().filter_map(number).min();
    let now = fs::read_to_string("/proc/loadavg").ok();
    (now.and_then(|text| parse_thread_count(&text)), most)
}

/// Resource usage of this process, in the units of its metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnProcess {
    /// CPU time in seconds.
    pub cpu_seconds: f64,
    /// Resident memory in bytes.
    pub resident: u64,
    /// Address space in bytes.
    pub virtual_bytes: u64,
    /// Open file descriptors.
    pub open_files: u64,
    /// The limit of open file descriptors.
    pub max_files: u64,
    /// The limit of the address space in bytes; the largest number without one.
    pub max_virtual: u64,
    /// Bytes that the network namespace of the process has received and sent over IP.
    pub network: [u64; 2],
    /// Start time in seconds since the epoch.
    pub started: f64,
    /// Seconds from the start of the machine to that of the process.
    pub after_boot: f64,
}

/// Clock ticks per second in `/proc/<pid>/stat`.
const TICKS: f64 = 100.0;

/// Reads `/proc/self`; values that cannot be read are zero.
pub fn own_process() -> OwnProcess {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let boot = parse_boot_time(&text("/proc/stat")).unwrap_or_default();
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    let mut own = parse_own_stat(&text("/proc/self/stat"), boot, page).unwrap_or_default();
    let limits = text("/proc/self/limits");
    own.max_files = parse_limit(&limits, "Max open files").unwrap_or_default();
    own.max_virtual = parse_limit(&limits, "Max address space").unwrap_or(u64::MAX);
    own.network = parse_ip_octets(&text("/proc/self/net/netstat")).unwrap_or_default();
    let open = fs::read_dir(Path::new("/proc/self/fd")).map(Iterator::count);
    // Without the descriptor that lists the directory.
    own.open_files = u64::try_from(open.unwrap_or(1).saturating_sub(1)).unwrap_or_default();
    own
}

/// How long after the machine this process started, and how long ago that was.
pub fn process_start() -> [Duration; 2] {
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime = uptime.split(' ').next().and_then(|text| text.parse().ok());
    let after_boot = own_process().after_boot;
    let age = uptime.unwrap_or(after_boot) - after_boot;
    [after_boot, age].map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

fn parse_own_stat(text: &str, boot: u64, page: u64) -> Option<OwnProcess> {
    // The process name in parentheses may contain any characters.
    let (_, rest) = text.rsplit_once(')')?;
    let words: Vec<&str> = rest.split_ascii_whitespace().collect();
    // `words` starts with the third field of the file.
    let field = |number: usize| words.get(number.checked_sub(3)?)?.parse::<u64>().ok();
    let seconds = |ticks: u64| ticks as f64 / TICKS;
    Some(OwnProcess {
        cpu_seconds: seconds(field(14)?.saturating_add(field(15)?)),
        started: boot as f64 + seconds(field(22)?),
        after_boot: seconds(field(22)?),
        virtual_bytes: field(23)?,
        resident: field(24)?.saturating_mul(page),
        ..OwnProcess::default()
    })
}

/// The soft limit of a line; `None` without one.
fn parse_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// `InOctets` and `OutOctets` of `IpExt`, whose names and values are two lines.
fn parse_ip_octets(netstat: &str) -> Option<[u64; 2]> {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |wanted: &str| {
        let at = names.split(' ').position(|name| name == wanted)?;
        values.split(' ').nth(at)?.parse().ok()
    };
    Some([value("InOctets")?, value("OutOctets")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_bytes_of_the_network_are_read_by_their_names() {
        let limits = "Max open files   1024   4096   files\nMax address space   unlimited   unlimited   bytes\n";
        assert_eq!(parse_limit(limits, "Max open files"), Some(1024));
        assert_eq!(parse_limit(limits, "Max address space"), None);
        let netstat =
            "TcpExt: A InOctets\nTcpExt: 1 2\nIpExt: A InOctets OutOctets\nIpExt: 3 4 5\n";
        assert_eq!(parse_ip_octets(netstat), Some([4, 5]));
        assert_eq!(parse_ip_octets("IpExt: A\nIpExt: 1\n"), None);
    }

    #[test]
    fn memory_is_in_bytes_and_what_is_missing_is_zero() {
        let info = parse_meminfo("MemTotal:  2048 kB\nMemFree: 1 kB\nOdd\nSwapFree: x kB\n");
        assert_eq!((info.total, info.free, info.swap_free), (2048 * 1024, 1024, 0));
        let huge = format!("MemTotal: {} kB", u64::MAX);
        assert_eq!(parse_meminfo(&huge).total, u64::MAX);
    }

    #[test]
    fn what_can_be_reclaimed_and_huge_pages_are_not_in_use() {
        // Of 16 GiB, 4 GiB are huge pages. Page cache 5 GiB, of which 3 GiB are inactive; anonymous 2 GiB;
        // slabs 2 GiB, of which 1.5 GiB can be reclaimed; 1 GiB that a driver holds.
        let text = "MemTotal: 16777216 kB\nMemFree: 2097152 kB\nCached: 5242880 kB\nAnonPages: 2097152 kB\n\
             Active(file): 2097152 kB\nInactive(file): 3145728 kB\nKReclaimable: 1572864 kB\n\
             SReclaimable: 1572864 kB\nSUnreclaim: 524288 kB\nHugePages_Total: 2048\nHugetlb: 4194304 kB\n";
        let info = parse_meminfo(text);
        let mib = |bytes: u64| bytes >> 20;
        assert_eq!(mib(info.ordinary()), 12 << 10);
        // Page cache, anonymous memory, unreclaimable slabs and the driver's.
        assert_eq!(mib(info.used()), (5 << 10) + (2 << 10) + 512 + (1 << 10));
        assert_eq!(info.working_set(), info.used() - info.inactive_file);
        let odd = MemInfo { huge_pages: u64::MAX, ..info };
        assert_eq!((odd.used(), odd.working_set()), (0, 0));
    }

    #[test]
    fn interfaces_are_read_without_loopback_and_cables_of_others() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes\n\
             lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n\
             eth0: 10 11 12 13 0 0 0 0 20 21 22 23 0 0 0 0\n\
             vethab: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n\
             broken: 1 2\n  eth1:-1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n";
        let eth0 = NetworkInterface {
            name: "eth0".into(),
            received: [10, 11, 12, 13],
            sent: [20, 21, 22, 23],
        };
        assert_eq!(parse_net_dev(text), [eth0]);
    }

    #[test]
    fn a_process_name_with_brackets_and_blanks_does_not_shift_the_fields() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 15 16 17 18 300 4096 2 21";
        let own = parse_own_stat(&format!("7 (a) b) {tail}"), 1000, 4096).unwrap();
        assert_eq!((own.cpu_seconds, own.started), (2.0, 1003.0));
        assert_eq!((own.virtual_bytes, own.resident), (4096, 8192));
        assert_eq!(parse_own_stat("7 (a", 0, 1), None);
        assert_eq!(
            parse_limit("Max open files   1024  4096 files\n", "Max open files"),
            Some(1024)
        );
    }

    #[test]
    fn counts_of_the_machine_are_found() {
        assert_eq!(parse_boot_time("cpu 1\nbtime 1700000000\n"), Some(1_700_000_000));
        assert_eq!(parse_thread_count("0.1 0.2 0.3 2/345 999\n"), Some(345));
        assert_eq!(parse_thread_count("0.1 0.2"), None);
        let names = parse_disk_names("   8       1 sda1 1 2 3\nbad\n");
        assert_eq!(names.get(&(8, 1)).map(String::as_str), Some("/dev/sda1"));
    }

    #[test]
    fn who_listens_on_a_socket_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        assert!(peer_of(&path).is_err());
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(peer_of(&path).unwrap(), std::process::id());
    }

    #[test]
    fn this_process_is_seen() {
        let own = own_process();
        assert!(own.resident > 0 && own.open_files > 0 && own.max_files > 0, "{own:?}");
        assert!(own.started > 1.0e9 && own.virtual_bytes >= own.resident, "{own:?}");
    }
}
