//! Converts cgroup settings to properties of a systemd slice. Pure.

use super::settings::{CgroupSettings, cpu_weight};
use crate::host::parse_cpu_list;
use crate::host::systemd::{PropertyValue, UnitProperty};

/// The first systemd version with `CPUQuotaPeriodUSec`.
const QUOTA_PERIOD_SINCE: u32 = 242;
/// The first systemd version with `AllowedCPUs`.
const ALLOWED_CPUS_SINCE: u32 = 244;
const DEFAULT_PERIOD: u64 = 100_000;
/// systemd stores quotas in hundredths of a CPU.
const QUOTA_STEP: u64 = 10_000;

impl CgroupSettings {
    /// The equivalent properties for this version of systemd; also rounds the quota up as systemd does.
    pub fn slice_properties(&mut self, v2: bool, systemd: u32) -> Vec<UnitProperty> {
        let mut properties = Vec::new();
        let mut add =
            |name, value| properties.push(UnitProperty(name, PropertyValue::Number(value)));
        if let Some(bytes) = self.memory.filter(|bytes| *bytes != 0) {
            let name = if v2 { "MemoryMax" } else { "MemoryLimit" };
            add(name, or_infinity(bytes));
        }
        if let Some(shares) = self.cpu_shares.filter(|shares| *shares != 0) {
            if v2 {
                add("CPUWeight", cpu_weight(shares));
            } else {
                add("CPUShares", shares);
            }
        }
        let period = self.cpu_period.filter(|period| *period != 0);
        if let Some(period) = period.filter(|_| systemd >= QUOTA_PERIOD_SINCE) {
            add("CPUQuotaPeriodUSec", period);
        }
        let quota = self.cpu_quota.filter(|quota| *quota != 0);
        if quota.is_some() || period.is_some() {
            let period = period.unwrap_or(DEFAULT_PERIOD);
            let per_second = match quota.and_then(|quota| u64::try_from(quota).ok()) {
                None => u64::MAX,
                Some(quota) => {
                    let exact = quota.saturating_mul(1_000_000) / period;
                    let rounded = exact.div_ceil(QUOTA_STEP) * QUOTA_STEP;
                    if rounded != exact {
                        let quota = rounded.saturating_mul(period) / 1_000_000;
                        self.cpu_quota = i64::try_from(quota).ok();
                    }
                    rounded
                }
            };
            add("CPUQuotaPerSecUSec", per_second);
        }
        if let Some(limit) = self.pids {
            // systemd rejects 0.
            add("TasksMax", if limit == 0 { 1 } else { or_infinity(limit) });
        }
        for (file, value) in &self.unified {
            let number = match value.as_str() {
                "max" => Some(u64::MAX),
                value => value.parse().ok(),
            };
            if let (Some(name), Some(number)) = (memory_property(file), number) {
                add(name, number);
            }
        }
        let cpus = self.cpus.as_deref().filter(|_| systemd >= ALLOWED_CPUS_SINCE);
        if let Some(bits) = cpus.and_then(cpu_bits) {
            properties.push(UnitProperty("AllowedCPUs", PropertyValue::Bytes(bits)));
        }
        properties
    }
}

fn or_infinity(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn memory_property(file: &str) -> Option<&'static str> {
    Some(match file {
        "memory.high" => "MemoryHigh",
        "memory.low" => "MemoryLow",
        "memory.min" => "MemoryMin",
        "memory.swap.max" => "MemorySwapMax",
        _ => return None,
    })
}

/// A CPU list as bit mask, the lowest eight CPUs in the first byte; `None` if it is empty or invalid.
fn cpu_bits(list: &str) -> Option<Vec<u8>> {
    let mut bits = Vec::new();
    for cpu in parse_cpu_list(list)? {
        let byte = usize::try_from(cpu / 8).ok()?;
        if bits.len() <= byte {
            bits.resize(byte + 1, 0);
        }
        *bits.get_mut(byte)? |= 1 << (cpu % 8);
    }
    (!bits.is_empty()).then_some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(settings: &mut CgroupSettings, v2: bool, systemd: u32) -> String {
        let properties = settings.slice_properties(v2, systemd).into_iter();
        let texts = properties.map(|UnitProperty(name, value)| match value {
            PropertyValue::Number(u64::MAX) => format!("{name}=infinity"),
            PropertyValue::Number(number) => format!("{name}={number}"),
            value => format!("{name}={value:?}"),
        });
        texts.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_limit_has_its_property_in_both_versions() {
        let settings = CgroupSettings {
            cpu_shares: Some(1024),
            cpu_quota: Some(50_000),
            cpu_period: Some(100_000),
            cpus: Some("0-1,9".into()),
            memory: Some(1 << 30),
            pids: Some(512),
            huge_pages: [("2MB".to_owned(), 4 << 20)].into(),
            unified: [
                ("memory.min", "7".to_owned()),
                ("memory.high", "max".to_owned()),
                ("memory.oom.group", "1".to_owned()),
            ]
            .into(),
        };
        assert_eq!(
            shown(&mut settings.clone(), true, 252),
            "MemoryMax=1073741824 CPUWeight=39 CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=500000 TasksMax=512 \
             MemoryHigh=infinity MemoryMin=7 AllowedCPUs=Bytes([3, 2])"
        );
        let v1 = CgroupSettings { unified: Default::default(), ..settings };
        assert_eq!(
            shown(&mut v1.clone(), false, 252),
            "MemoryLimit=1073741824 CPUShares=1024 CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=500000 TasksMax=512 \
             AllowedCPUs=Bytes([3, 2])"
        );
        assert_eq!(
            shown(&mut v1.clone(), true, 241),
            "MemoryMax=1073741824 CPUWeight=39 CPUQuotaPerSecUSec=500000 TasksMax=512"
        );
    }

    #[test]
    fn a_quota_is_rounded_up_to_what_systemd_keeps() {
        for (quota, period, property, written) in [
            (1_500, 100_000, "CPUQuotaPerSecUSec=20000", 2_000),
            (1_000, 100_000, "CPUQuotaPerSecUSec=10000", 1_000),
            (250_000, 100_000, "CPUQuotaPerSecUSec=2500000", 250_000),
            (33_333, 50_000, "CPUQuotaPerSecUSec=670000", 33_500),
            (-1, 100_000, "CPUQuotaPerSecUSec=infinity", -1),
        ] {
            let mut settings = CgroupSettings {
                cpu_quota: Some(quota),
                cpu_period: Some(period),
                ..CgroupSettings::default()
            };
            let shown = shown(&mut settings, true, 252);
            assert_eq!(shown, format!("CPUQuotaPeriodUSec={period} {property}"));
            assert_eq!(settings.cpu_quota, Some(written), "{quota}");
        }
        let mut none = CgroupSettings::default();
        assert_eq!(shown(&mut none, true, 252), "");
        let mut zero =
            CgroupSettings { memory: Some(0), pids: Some(0), ..CgroupSettings::default() };
        assert_eq!(shown(&mut zero, true, 252), "TasksMax=1");
    }

    #[test]
    fn cpus_are_a_mask_from_the_lowest() {
        for (list, bits) in [
            ("0", Some(vec![1])),
            ("0-7", Some(vec![0xff])),
            ("1,3-5", Some(vec![0b11_1010])),
            ("64", Some(vec![0, 0, 0, 0, 0, 0, 0, 0, 1])),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(cpu_bits(list), bits, "{list}");
        }
    }
}
