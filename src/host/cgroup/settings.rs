//! The settings of a cgroup, and the files they are written to. Pure.

use std::collections::BTreeMap;

/// The settings of a cgroup; `None` leaves a value unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupSettings {
    /// CPU shares in the units of cgroup v1, 2 to 262144.
    pub cpu_shares: Option<u64>,
    /// CPU quota in microseconds per period; -1 for no limit, 0 for no change.
    pub cpu_quota: Option<i64>,
    /// The period in microseconds.
    pub cpu_period: Option<u64>,
    /// CPUs as a kernel list.
    pub cpus: Option<String>,
    /// Memory limit in bytes; 0 for no change.
    pub memory: Option<i64>,
    /// Maximum number of processes and threads; 0 counts as 1, a negative value as no limit.
    pub pids: Option<i64>,
    /// Limits in bytes by page size in the kernel's form, such as `2MB`.
    pub huge_pages: BTreeMap<String, u64>,
    /// Additional files of cgroup v2 with their content.
    pub unified: BTreeMap<&'static str, String>,
}

/// One file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) controller: &'static str,
    pub(super) file: String,
    pub(super) value: String,
    /// How to handle an error.
    pub(super) refused: OnRefusal,
}

/// How to handle an error of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnRefusal {
    Fails,
    /// Ignore it if the file does not exist, as on older kernels.
    UnlessMissing,
    /// Retry at the end: quota and period are validated against each other.
    Again,
}

fn write(controller: &'static str, file: impl Into<String>, value: impl ToString) -> Write {
    Write { controller, file: file.into(), value: value.to_string(), refused: OnRefusal::Fails }
}

impl CgroupSettings {
    /// The files to write, in order.
    pub(super) fn writes(&self, v2: bool) -> Vec<Write> {
        let mut writes = Vec::new();
        let cpus = self.cpus.as_ref().filter(|cpus| !cpus.is_empty());
        writes.extend(cpus.map(|cpus| write("cpuset", "cpuset.cpus", cpus)));
        let memory_file = if v2 { "memory.max" } else { "memory.limit_in_bytes" };
        let memory = self.memory.filter(|bytes| *bytes != 0);
        writes.extend(memory.map(|bytes| write("memory", memory_file, bytes)));
        if v2 {
            self.cpu_v2(&mut writes);
        } else {
            self.cpu_v1(&mut writes);
        }
        writes.extend(self.pids.map(|limit| match limit {
            0 => write("pids", "pids.max", 1),
            limit if limit < 0 => write("pids", "pids.max", "max"),
            limit => write("pids", "pids.max", limit),
        }));
        let suffix = if v2 { "max" } else { "limit_in_bytes" };
        for (size, bytes) in &self.huge_pages {
            writes.push(write("hugetlb", format!("hugetlb.{size}.{suffix}"), bytes));
            let reserved = format!("hugetlb.{size}.rsvd.{suffix}");
            writes.push(Write {
                refused: OnRefusal::UnlessMissing,
                ..write("hugetlb", reserved, bytes)
            });
        }
        if v2 {
            let unified = self.unified.iter();
            writes.extend(unified.map(|(file, value)| write("memory", *file, value)));
        }
        writes
    }

    fn cpu_v1(&self, writes: &mut Vec<Write>) {
        let shares = self.cpu_shares.filter(|shares| *shares != 0);
        writes.extend(shares.map(|shares| write("cpu", "cpu.shares", shares)));
        let quota = self.cpu_quota.filter(|quota| *quota != 0);
        let period = self.cpu_period.filter(|period| *period != 0);
        writes.extend(period.map(|period| Write {
            refused: if quota.is_some() { OnRefusal::Again } else { OnRefusal::Fails },
            ..write("cpu", "cpu.cfs_period_us", period)
        }));
        writes.extend(quota.map(|quota| write("cpu", "cpu.cfs_quota_us", quota)));
    }

    fn cpu_v2(&self, writes: &mut Vec<Write>) {
        let shares = self.cpu_shares.filter(|shares| *shares != 0);
        writes.extend(shares.map(|shares| write("cpu", "cpu.weight", cpu_weight(shares))));
        let quota = self.cpu_quota.unwrap_or_default();
        let period = self.cpu_period.unwrap_or_default();
        if quota == 0 && period == 0 {
            return;
        }
        let quota = if quota > 0 { quota.to_string() } else { "max".to_owned() };
        let period = if period == 0 { 100_000 } else { period };
        writes.push(write("cpu", "cpu.max", format_args!("{quota} {period}")));
    }
}

/// The v2 weight for CPU shares, by the kubelet's formula. Runtimes may use a newer one for containers.
pub fn cpu_weight(shares: u64) -> u64 {
    match shares {
        262_144.. => 10_000,
        _ => 1 + shares.saturating_sub(2) * 9999 / 262_142,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(settings: &CgroupSettings, v2: bool) -> Vec<String> {
        let writes = settings.writes(v2).into_iter();
        writes.map(|write| format!("{}:{}={}", write.controller, write.file, write.value)).collect()
    }

    #[test]
    fn every_setting_has_its_files_in_both_versions() {
        let settings = CgroupSettings {
            cpu_shares: Some(1024),
            cpu_quota: Some(50_000),
            cpu_period: Some(100_000),
            cpus: Some("0-1".into()),
            memory: Some(1 << 30),
            pids: Some(512),
            huge_pages: [("2MB".to_owned(), 4 << 20)].into(),
            unified: [("memory.min", "7".to_owned())].into(),
        };
        assert_eq!(
            shown(&settings, false),
            [
                "cpuset:cpuset.cpus=0-1",
                "memory:memory.limit_in_bytes=1073741824",
                "cpu:cpu.shares=1024",
                "cpu:cpu.cfs_period_us=100000",
                "cpu:cpu.cfs_quota_us=50000",
                "pids:pids.max=512",
                "hugetlb:hugetlb.2MB.limit_in_bytes=4194304",
                "hugetlb:hugetlb.2MB.rsvd.limit_in_bytes=4194304",
            ]
        );
        assert_eq!(
            shown(&settings, true),
            [
                "cpuset:cpuset.cpus=0-1",
                "memory:memory.max=1073741824",
                "cpu:cpu.weight=39",
                "cpu:cpu.max=50000 100000",
                "pids:pids.max=512",
                "hugetlb:hugetlb.2MB.max=4194304",
                "hugetlb:hugetlb.2MB.rsvd.max=4194304",
                "memory:memory.min=7",
            ]
        );
    }

    #[test]
    fn what_is_not_given_is_not_written() {
        assert!(shown(&CgroupSettings::default(), false).is_empty());
        assert!(shown(&CgroupSettings::default(), true).is_empty());
        let of = |cpu_quota, cpu_period, memory, pids| CgroupSettings {
            cpu_quota,
            cpu_period,
            memory,
            pids,
            ..CgroupSettings::default()
        };
        for (settings, v1, v2) in [
            (of(Some(0), None, Some(0), None), "", ""),
            (
                of(Some(-1), Some(100_000), None, Some(-1)),
                "cpu:cpu.cfs_period_us=100000 cpu:cpu.cfs_quota_us=-1 pids:pids.max=max",
                "cpu:cpu.max=max 100000 pids:pids.max=max",
            ),
            (
                of(Some(0), Some(5_000), None, Some(0)),
                "cpu:cpu.cfs_period_us=5000 pids:pids.max=1",
                "cpu:cpu.max=max 5000 pids:pids.max=1",
            ),
            (
                of(Some(20_000), None, None, None),
                "cpu:cpu.cfs_quota_us=20000",
                "cpu:cpu.max=20000 100000",
            ),
        ] {
            assert_eq!(shown(&settings, false).join(" "), v1);
            assert_eq!(shown(&settings, true).join(" "), v2);
        }
    }

    #[test]
    fn weights_are_those_of_upstreams_formula() {
        for (shares, weight) in [
            (2, 1),
            (51, 2),
            (102, 4),
            (1024, 39),
            (2048, 79),
            (262_143, 9999),
            (262_144, 10_000),
            (300_000, 10_000),
        ] {
            assert_eq!(cpu_weight(shares), weight, "{shares}");
        }
    }
}
