//! Which drivers may register: their names and versions; texts as upstream's. Pure.

use super::identity::is_driver_name;
use crate::base::go_quote;
use crate::resources::plugin_manager::RegisteredPlugin;
use std::cmp::Ordering;
use std::fmt;

/// A version of CSI: numbers, of which missing ones are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CsiVersion {
    numbers: Vec<u64>,
}

impl CsiVersion {
    /// Reads `1.8.0`, `v1.8` and the like; what follows the numbers does not count.
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim_start();
        let text = text.strip_prefix('v').unwrap_or(text);
        let is_part = |c: char| c.is_ascii_digit() || c == '.';
        let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
        let mut numbers = Vec::new();
        for part in text.get(..end)?.trim_end_matches('.').split('.') {
            let is_padded = part.len() > 1 && part.starts_with('0');
            let number = part.parse().ok().filter(|_| !is_padded)?;
            numbers.push(number);
        }
        Some(Self { numbers })
    }

    fn is_supported(&self) -> bool {
        self.numbers.first().is_some_and(|major| *major <= 1)
    }

    fn without_zeros(&self) -> &[u64] {
        let end = self.numbers.iter().rposition(|number| *number != 0);
        let end = end.map_or(0, |last| last + 1);
        self.numbers.get(..end).unwrap_or_default()
    }
}

impl Ord for CsiVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        self.without_zeros().cmp(other.without_zeros())
    }
}

impl PartialOrd for CsiVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for CsiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.numbers.iter().map(u64::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

/// The highest version of a plugin that is supported. `caller` is the operation that the text names.
///
/// # Errors
/// The name, the socket or all versions are invalid.
pub(super) fn highest_version(
    caller: &str,
    plugin: &RegisteredPlugin,
) -> Result<CsiVersion, String> {
    let RegisteredPlugin { name, endpoint, versions } = plugin;
    let quoted = go_quote(name);
    if !is_driver_name(name) {
        return Err(format!(
            "kubernetes.io/csi: {caller} for CSI driver {quoted} failed. The name is invalid"
        ));
    }
    if !endpoint.is_absolute() {
        return Err(format!(
            "kubernetes.io/csi: {caller} for CSI driver {quoted} failed. The endpoint is not an absolute path"
        ));
    }
    if versions.is_empty() {
        return Err(format!(
            "kubernetes.io/csi: {caller} for CSI driver {quoted} failed. Plugin returned an empty list for supported versions"
        ));
    }
    let parsed = versions.iter().filter_map(|text| CsiVersion::parse(text));
    let highest = parsed.filter(CsiVersion::is_supported).max();
    highest.ok_or_else(|| {
        let versions: Vec<_> = versions.iter().map(|version| go_quote(version)).collect();
        format!(
            "kubernetes.io/csi: {caller} for CSI driver {quoted} failed. None of the versions specified [{}] are supported. err=only versions 0.x and 1.x are supported",
            versions.join(" ")
        )
    })
}

/// Checks that a driver that is registered may be replaced by a version of it. The same version may: it is the driver
/// after an update of anything else, and upstream refuses it.
///
/// # Errors
/// The registered version is higher.
pub(super) fn check_replacement(
    caller: &str,
    name: &str,
    registered: &CsiVersion,
    new: &CsiVersion,
) -> Result<(), String> {
    if new >= registered {
        return Ok(());
    }
    Err(format!(
        "kubernetes.io/csi: {caller} for CSI driver {} failed. Another driver with the same name is already registered with a higher supported version: {}",
        go_quote(name),
        go_quote(&registered.to_string())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(name: &str, versions: &[&str]) -> RegisteredPlugin {
        RegisteredPlugin {
            name: name.into(),
            endpoint: "/plugins/csi.sock".into(),
            versions: versions.iter().map(|one| (*one).to_owned()).collect(),
        }
    }

    #[test]
    fn names_are_those_of_the_specification() {
        let longest = "a".repeat(63);
        for name in ["a", "Hostpath.csi.k8s.io", "9-a", "a..b", &longest] {
            assert!(is_driver_name(name), "{name}");
        }
        let too_long = "a".repeat(64);
        for name in
            ["", ".", "..", "-a", "a-", "a.", ".a", "a/b", "a_b", "a b", "é", "a\n", &too_long]
        {
            assert!(!is_driver_name(name), "{name}");
        }
    }

    #[test]
    fn the_highest_version_below_two_counts() {
        for (versions, highest) in [
            (&["1.0.0"][..], Some("1.0.0")),
            (&["0.3", "1.2", "1.10"], Some("1.10")),
            (&["v1.2.3-rc1"], Some("1.2.3")),
            (&["2.0.0", "1.1"], Some("1.1")),
            (&["0.3.0"], Some("0.3.0")),
            (&["1"], Some("1")),
            (&["2.0.0"], None),
            (&["one", "", "01.0", "1..0", "99999999999999999999.0"], None),
            (&[], None),
        ] {
            let found = highest_version("RegisterPlugin", &plugin("a", versions));
            let found = found.ok().map(|version| version.to_string());
            assert_eq!(found.as_deref(), highest, "{versions:?}");
        }
    }

    #[test]
    fn versions_compare_as_numbers() {
        let version = |text| CsiVersion::parse(text).unwrap();
        assert!(version("1.10") > version("1.9.9"));
        assert_eq!(version("1.0").cmp(&version("1.0.0")), Ordering::Equal);
        let check =
            |old, new| check_replacement("RegisterPlugin", "a", &version(old), &version(new));
        assert_eq!(check("1.0.0", "1.0"), Ok(()));
        assert_eq!(check("1.0.0", "1.1.0"), Ok(()));
        assert_eq!(
            check("1.1.0", "1.0.0").unwrap_err(),
            "kubernetes.io/csi: RegisterPlugin for CSI driver \"a\" failed. Another driver with the same name is already registered with a higher supported version: \"1.1.0\""
        );
    }

    #[test]
    fn a_plugin_without_a_valid_name_endpoint_or_version_is_refused() {
        let error =
            |plugin: &RegisteredPlugin| highest_version("ValidatePlugin", plugin).unwrap_err();
        assert!(error(&plugin("../a", &["1.0.0"])).contains("name is invalid"));
        let relative = RegisteredPlugin { endpoint: "csi.sock".into(), ..plugin("a", &["1.0.0"]) };
        assert!(error(&relative).contains("not an absolute path"));
        assert!(error(&plugin("a", &[])).contains("empty list for supported versions"));
        assert!(error(&plugin("a", &["2.0", "x"])).contains("[\"2.0\" \"x\"] are supported"));
    }
}
