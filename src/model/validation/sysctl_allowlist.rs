//! The sysctls that pods may set. Pure. Upstream: `pkg/kubelet/sysctl`.

use super::sysctl::{self, Namespace, PATTERN_RULE, namespace_of};

/// Safe sysctls, with the first kernel version in which they are namespaced.
const SAFE: [(&str, (u32, u32)); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

/// Why a pattern is not allowed; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Invalid syntax.
    #[error("sysctl {0:?} {PATTERN_RULE}")]
    Syntax(String),
    /// It is not namespaced, so it would affect the whole node.
    #[error("the sysctls {0:?} are not known to be namespaced")]
    NotNamespaced(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct AllowedPattern {
    /// The name, or the prefix.
    text: String,
    prefix: bool,
    namespace: Namespace,
}

impl AllowedPattern {
    fn of(pattern: &str) -> Result<Self, PatternError> {
        if !sysctl::is_pattern(pattern) {
            return Err(PatternError::Syntax(pattern.to_string()));
        }
        let dotted = sysctl::dotted(pattern);
        let (text, prefix) = match dotted.split_once('*') {
            Some((head, _)) => (head, true),
            None => (&*dotted, false),
        };
        let namespace =
            namespace_of(text).ok_or_else(|| PatternError::NotNamespaced(text.to_string()))?;
        Ok(Self { text: text.to_string(), prefix, namespace })
    }

    fn covers(&self, name: &str) -> bool {
        if self.prefix { name.starts_with(&self.text) } else { name == self.text }
    }
}

/// The sysctls that pods may set on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowlist(Vec<AllowedPattern>);

impl Allowlist {
    /// The safe sysctls on this kernel (`major.minor…`; for an unknown version, those safe on every kernel), and
    /// those in `allowedUnsafeSysctls`.
    ///
    /// # Errors
    /// The first pattern that is not allowed.
    pub fn new(kernel_release: &str, unsafe_patterns: &[String]) -> Result<Self, PatternError> {
        let kernel = version(kernel_release);
        let safe = SAFE
            .iter()
            .filter(|(_, since)| *since == (0, 0) || kernel.is_some_and(|kernel| kernel >= *since))
            .map(|(name, _)| *name);
        let patterns = safe.chain(unsafe_patterns.iter().map(String::as_str));
        Ok(Self(patterns.map(AllowedPattern::of).collect::<Result<_, _>>()?))
    }

    /// Checks whether a pod with these shared namespaces may set the sysctl.
    ///
    /// # Errors
    /// The reason why it may not.
    pub fn check(&self, name: &str, host_network: bool, host_ipc: bool) -> Result<(), String> {
        let name = sysctl::dotted(name);
        // An exact entry takes precedence over prefixes.
        let exact = self.0.iter().find(|e| !e.prefix && e.covers(&name));
        let entry = exact.or_else(|| self.0.iter().find(|e| e.prefix && e.covers(&name)));
        let Some(entry) = entry else {
            return Err(format!("{name:?} not allowlisted"));
        };
        let shared = match entry.namespace {
            Namespace::Ipc => host_ipc,
            Namespace::Net => host_network,
        };
        if shared {
            Err(format!("{name:?} not allowed with host {} enabled", entry.namespace))
        } else {
            Ok(())
        }
    }
}

/// Parses `6.1.0-13-amd64` as 6.1.
fn version(release: &str) -> Option<(u32, u32)> {
    let digits = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text.get(..end)?.parse().ok()
    };
    let (major, rest) = release.split_once('.')?;
    Some((digits(major)?, digits(rest)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(kernel: &str, patterns: &[&str]) -> Allowlist {
        let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
        Allowlist::new(kernel, &patterns).unwrap()
    }

    #[test]
    fn what_is_safe_depends_on_the_kernel() {
        for (kernel, name, expected) in [
            ("6.1.0-13-amd64", "net.ipv4.tcp_rmem", true),
            ("4.15", "net.ipv4.tcp_rmem", true),
            ("4.14.9", "net.ipv4.tcp_rmem", false),
            ("10.0", "net.ipv4.tcp_rmem", true),
            ("", "net.ipv4.tcp_rmem", false),
            ("nonsense", "net.ipv4.tcp_keepalive_time", false),
            ("nonsense", "net.ipv4.tcp_syncookies", true),
            ("3.10.0-1160.el7", "kernel.shm_rmid_forced", true),
            ("3.10.0-1160.el7", "net.ipv4.ip_local_reserved_ports", false),
            ("6.1", "net.ipv4.tcp_fin_timeout", true),
            ("6.1", "net.core.somaxconn", false),
        ] {
            let checked = allowed(kernel, &[]).check(name, false, false);
            assert_eq!(checked.is_ok(), expected, "{kernel} {name}: {checked:?}");
        }
    }

    #[test]
    fn more_can_be_allowed_by_name_and_by_pattern() {
        let list = allowed("6.1", &["net.core.*", "kernel.msg*", "net/ipv6/conf/all/x"]);
        for (name, expected) in [
            ("net.core.somaxconn", true),
            ("net/core/somaxconn", true),
            ("net.corex", false),
            ("kernel.msgmax", true),
            ("kernel.shmmax", false),
            ("net.ipv6.conf.all.x", true),
            ("net.ipv6.conf.all.xy", false),
            ("vm.swappiness", false),
        ] {
            let checked = list.check(name, false, false);
            assert_eq!(checked.is_ok(), expected, "{name}: {checked:?}");
        }
        assert_eq!(
            list.check("vm/swappiness", false, false),
            Err(r#""vm.swappiness" not allowlisted"#.to_string())
        );
    }

    #[test]
    fn a_shared_namespace_is_not_the_pods_to_set() {
        let list = allowed("6.1", &["net.core.*"]);
        for (name, host_network, host_ipc, expected) in [
            ("net.core.somaxconn", true, false, "Net"),
            ("net.ipv4.tcp_syncookies", true, false, "Net"),
            ("kernel.shm_rmid_forced", false, true, "IPC"),
        ] {
            assert_eq!(
                list.check(name, host_network, host_ipc),
                Err(format!("{name:?} not allowed with host {expected} enabled"))
            );
            assert_eq!(list.check(name, !host_network, !host_ipc), Ok(()));
        }
    }

    #[test]
    fn patterns_that_reach_beyond_a_namespace_are_refused() {
        let refused =
            |pattern: &str| Allowlist::new("6.1", &[pattern.to_string()]).unwrap_err().to_string();
        assert_eq!(refused("kernel.*"), r#"the sysctls "kernel." are not known to be namespaced"#);
        assert_eq!(
            refused("vm.swappiness"),
            r#"the sysctls "vm.swappiness" are not known to be namespaced"#
        );
        assert!(
            refused("Net.*").starts_with(
                r#"sysctl "Net.*" must have at most 253 characters and match regex ("#
            )
        );
    }
}
