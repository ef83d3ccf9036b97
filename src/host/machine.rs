//! Properties of the machine.

use std::fs;
use std::path::Path;

/// Properties of the machine that do not change while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostMachine {
    /// `MemTotal` in bytes.
    pub memory_bytes: u64,
    /// Number of online CPUs.
    pub cpus: u32,
    /// Online CPUs as a kernel list, such as `0-3,8`.
    pub online_cpus: String,
    /// The kernel's host name.
    pub hostname: String,
    /// Random ID of this boot; empty if not available.
    pub boot_id: String,
    /// Supported huge page sizes in bytes, ascending.
    pub hugepage_sizes: Vec<u64>,
    /// Paths of per-CPU thermal throttling counters, which containers must not see because they leak the load of
    /// others.
    pub thermal_paths: Vec<String>,
    /// Whether only cgroup v2 is mounted.
    pub cgroup_v2: bool,
    /// Whether cgroup v2 has swap accounting, so that swap can be limited.
    pub limits_swap: bool,
    /// Whether a swap device or file is in use.
    pub swap_on: bool,
    /// Total swap in bytes.
    pub swap_bytes: u64,
    /// The kernel release, such as `6.1.0-13-amd64`.
    pub kernel_release: String,
    /// Whether AppArmor is enabled.
    pub app_armor: bool,
    /// Whether SELinux is enabled.
    pub selinux: bool,
    /// The SELinux context of files of containers, if SELinux is enabled and its policy has one.
    pub selinux_file_context: Option<String>,
}

/// The architecture, in Go's spelling.
pub fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The number of online CPUs according to this `/sys`. Blocking.
pub fn online_cpus(sys: &Path) -> Option<u32> {
    let text = fs::read_to_string(sys.join("devices/system/cpu/online")).ok()?;
    u32::try_from(parse_cpu_list(&text)?.len()).ok()
}

impl HostMachine {
    /// Reads the properties. Blocking. Fails without memory size or CPU count; others may be empty.
    pub fn read() -> anyhow::Result<Self> {
        use anyhow::Context as _;
        let meminfo = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
        let memory_bytes =
            parse_mem_total(&meminfo).context("/proc/meminfo has no readable MemTotal")?;
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let selinux = is_selinux(Path::new("/sys/fs/selinux"));
        let online_cpus = text("/sys/devices/system/cpu/online").trim().to_owned();
        let online = parse_cpu_list(&online_cpus).unwrap_or_default();
        let cpus = match online.len() {
            0 => std::thread::available_parallelism().context("cannot count CPUs")?.get(),
            n => n,
        };
        let possible =
            parse_cpu_list(&text("/sys/devices/system/cpu/possible")).unwrap_or(online.clone());
        Ok(Self {
            memory_bytes,
            cpus: u32::try_from(cpus).unwrap_or(u32::MAX),
            online_cpus,
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            boot_id: text("/proc/sys/kernel/random/boot_id").trim().to_string(),
            hugepage_sizes: hugepage_sizes(Path::new("/sys/kernel/mm/hugepages")),
            thermal_paths: possible
                .iter()
                .map(|cpu| format!("/sys/devices/system/cpu/cpu{cpu}/thermal_throttle"))
                .filter(|path| Path::new(path).exists())
                .collect(),
            cgroup_v2: is_cgroup_v2(Path::new("/sys/fs/cgroup")),
            limits_swap: limits_swap(Path::new("/sys/fs/cgroup")),
            swap_on: has_swap(&text("/proc/swaps")),
            swap_bytes: parse_meminfo(&meminfo, "SwapTotal").unwrap_or_default(),
            kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
            app_armor: Path::new("/sys/kernel/security/apparmor").exists()
                && text("/sys/module/apparmor/parameters/enabled").starts_with('Y'),
            selinux,
            selinux_file_context: selinux
                .then(|| selinux_file_context(Path::new("/etc/selinux")))
                .flatten(),
        })
    }
}

/// The root cgroup of version 2 has no swap limit file; with a cgroup namespace, the root here is another cgroup, which
/// has one.
fn limits_swap(root: &Path) -> bool {
    if !is_cgroup_v2(root) {
        return root.join("memory/memory.memsw.limit_in_bytes").exists();
    }
    let below = fs::read_dir(root).into_iter().flatten().flatten();
    let mut all = std::iter::once(root.to_path_buf()).chain(below.map(|entry| entry.path()));
    all.any(|path| path.join("memory.swap.max").exists())
}

/// Whether `/proc/swaps` lists a device; its first line is a header.
fn has_swap(swaps: &str) -> bool {
    swaps.lines().skip(1).any(|line| !line.trim().is_empty())
}

/// Usage of a file system, in bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesystemUsage {
    /// Total size.
    pub capacity: u64,
    /// Available to unprivileged users.
    pub available: u64,
    /// Used; blocks reserved for root count as free.
    pub used: u64,
    /// Number of inodes; zero if the file system allocates them dynamically, as is `inodes_free`.
    pub inodes: u64,
    /// Number of free inodes.
    pub inodes_free: u64,
}

/// The usage of the file system of a path. Blocking; may hang if the device does not respond.
pub fn filesystem_usage(path: &Path) -> std::io::Result<FilesystemUsage> {
    let stat = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(FilesystemUsage {
        capacity: bytes(stat.f_blocks),
        available: bytes(stat.f_bavail),
        used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        inodes: stat.f_files,
        inodes_free: stat.f_ffree,
    })
}

/// Parses `MemTotal` of `/proc/meminfo`, in bytes.
pub fn parse_mem_total(meminfo: &str) -> Option<u64> {
    parse_meminfo(meminfo, "MemTotal")
}

/// Parses a field of `/proc/meminfo`, or of a NUMA node's file, whose lines start with the node; in bytes.
fn parse_meminfo(meminfo: &str, field: &str) -> Option<u64> {
    let mut pairs = meminfo.lines().filter_map(|line| line.split_once(':'));
    let is_wanted = |name: &str| name.split_whitespace().next_back() == Some(field);
    let (_, amount) = pairs.find(|(name, _)| is_wanted(name))?;
    let kib: u64 = amount.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Parses a kernel CPU list such as `0-3,8,10-11`; `None` if it is invalid.
pub fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    /// More than any kernel supports.
    const MAX: usize = 1 << 16;
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let count = usize::try_from(last.checked_sub(first)?).ok()?;
        if cpus.len().saturating_add(count) >= MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

fn hugepage_sizes(directory: &Path) -> Vec<u64> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut sizes: Vec<u64> =
        entries.filter_map(|entry| parse_hugepage_name(entry.file_name().to_str()?)).collect();
    sizes.sort_unstable();
    sizes
}

/// The page size and total bytes of huge pages, for each supported size. Blocking.
pub fn huge_pages() -> Vec<(u64, u64)> {
    let root = Path::new("/sys/kernel/mm/hugepages");
    let pages = |size: u64| {
        let path = root.join(format!("hugepages-{}kB/nr_hugepages", size / 1024));
        let number = fs::read_to_string(path).unwrap_or_default();
        number.trim().parse().unwrap_or(0_u64)
    };
    let sizes = hugepage_sizes(root).into_iter();
    sizes.map(|size| (size, size.saturating_mul(pages(size)))).collect()
}

/// Parses a directory name: `hugepages-2048kB` is 2 MiB.
pub(super) fn parse_hugepage_name(name: &str) -> Option<u64> {
    let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

fn is_cgroup_v2(root: &Path) -> bool {
    /// `CGROUP2_SUPER_MAGIC` of linux/magic.h.
    const CGROUP2: u64 = 0x6367_7270;
    rustix::fs::statfs(root).is_ok_and(|stat| stat.f_type as u64 == CGROUP2)
}

/// SELinux is enabled if its file system is mounted; enforcing or permissive does not matter for labels.
fn is_selinux(root: &Path) -> bool {
    /// `SELINUX_MAGIC` of linux/magic.h.
    const SELINUX: u64 = 0xf97c_ff8c;
    rustix::fs::statfs(root).is_ok_and(|stat| stat.f_type as u64 & 0xffff_ffff == SELINUX)
}

/// The context of files of containers in the policy that is configured.
fn selinux_file_context(configuration: &Path) -> Option<String> {
    let value = |text: &str, key: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        let (_, value) = lines.find(|(name, _)| name.trim() == key)?;
        let value = value.trim().trim_matches('"');
        (!value.is_empty()).then(|| value.to_owned())
    };
    let config = fs::read_to_string(configuration.join("config")).ok()?;
    let policy = value(&config, "SELINUXTYPE").unwrap_or_else(|| "targeted".to_owned());
    let contexts = configuration.join(policy).join("contexts/lxc_contexts");
    value(&fs::read_to_string(contexts).ok()?, "file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_of_files_is_in_the_configured_policy() {
        let directory = tempfile::tempdir().unwrap();
        let found = || selinux_file_context(directory.path());
        assert_eq!(found(), None);
        let contexts = directory.path().join("strict/contexts");
        fs::create_dir_all(&contexts).unwrap();
        let config = "# SELINUXTYPE=other\nSELINUX=enforcing\nSELINUXTYPE=strict\n";
        fs::write(directory.path().join("config"), config).unwrap();
        assert_eq!(found(), None);
        let text = "process = \"system_u:system_r:container_t:s0\"\nfile = \"system_u:object_r:container_file_t:s0\"\n";
        fs::write(contexts.join("lxc_contexts"), text).unwrap();
        let context = "system_u:object_r:container_file_t:s0";
        assert_eq!(found().as_deref(), Some(context));
    }

    #[test]
    fn a_heading_alone_is_no_swap() {
        let heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(!has_swap(""));
        assert!(!has_swap(heading));
        assert!(has_swap(&format!("{heading}/dev/vdb partition 1048572 0 -2\n")));
    }
}
