//! Names of sysctls, and their namespaces. Upstream: `k8s.io/component-helpers/node/util/sysctl` and its
//! rules for sysctl names and patterns.

use crate::base::named_enum;
use std::borrow::Cow;

/// The API's rule for names, as in its error messages.
pub const NAME_RULE: &str = "must have at most 253 characters and match regex \
     ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

/// The rule for patterns of `allowedUnsafeSysctls`.
pub const PATTERN_RULE: &str = "must have at most 253 characters and match regex \
     ([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]";

const MAX_LENGTH: usize = 253;

named_enum! {
    /// The namespace of a sysctl. Printed as in upstream's messages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Namespace {
        /// System V IPC and POSIX message queues.
        Ipc = "IPC",
        /// The network.
        Net = "Net",
    }
}

/// The name with dots as separators: `net/ipv4/conf/eth0.1/forwarding` becomes `net.ipv4.conf.eth0/1.forwarding`. A
/// name whose first separator is a dot is returned unchanged (sysctl(8)).
pub fn dotted(name: &str) -> Cow<'_, str> {
    let first = name.find(['.', '/']).and_then(|at| name.get(at..));
    if !first.is_some_and(|rest| rest.starts_with('/')) {
        return Cow::Borrowed(name);
    }
    let swapped = name.chars().map(|c| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    });
    Cow::Owned(swapped.collect())
}

/// Whether this is a valid sysctl name, with either separator.
pub fn is_name(name: &str) -> bool {
    name.len() <= MAX_LENGTH && name.split(['.', '/']).all(is_segment)
}

/// Whether this is a valid name, or a prefix followed by `*`.
pub fn is_pattern(pattern: &str) -> bool {
    let (head, last) = match pattern.rfind(['.', '/']) {
        Some(at) => (pattern.get(..at), pattern.get(at + 1..).unwrap_or_default()),
        None => (None, pattern),
    };
    let last = match last.strip_suffix('*') {
        Some("") => true,
        Some(rest) => rest.starts_with(is_inner) && rest.chars().all(is_segment_char),
        None => is_segment(last),
    };
    pattern.len() <= MAX_LENGTH
        && last
        && head.is_none_or(|head| head.split(['.', '/']).all(is_segment))
}

fn is_inner(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

fn is_segment_char(c: char) -> bool {
    is_inner(c) || matches!(c, '-' | '_')
}

fn is_segment(part: &str) -> bool {
    part.starts_with(is_inner) && part.ends_with(is_inner) && part.chars().all(is_segment_char)
}

/// The namespace of a sysctl, pattern or prefix in dotted form; `None` if it is not known to be namespaced, so that
/// setting it would affect the whole node.
pub fn namespace_of(name: &str) -> Option<Namespace> {
    let known = name.split_once('*').map_or(name, |(head, _)| head);
    match known {
        "kernel.sem"
        | "kernel.shmall"
        | "kernel.shmmax"
        | "kernel.shmmni"
        | "kernel.shm_rmid_forced"
        | "kernel.shm"
        | "kernel.msgmax"
        | "kernel.msgmnb"
        | "kernel.msgmni"
        | "kernel.msg" => Some(Namespace::Ipc),
        _ if known.starts_with("net.") => Some(Namespace::Net),
        _ if known.starts_with("fs.mqueue.") => Some(Namespace::Ipc),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_separator_decides_which_one_separates() {
        for (name, expected) in [
            ("", ""),
            ("net", "net"),
            ("net.ipv4.tcp_syncookies", "net.ipv4.tcp_syncookies"),
            ("net/ipv4/tcp_syncookies", "net.ipv4.tcp_syncookies"),
            ("net.ipv4.conf.eth0/1.rp_filter", "net.ipv4.conf.eth0/1.rp_filter"),
            ("net/ipv4/conf/eth0.1/rp_filter", "net.ipv4.conf.eth0/1.rp_filter"),
        ] {
            assert_eq!(dotted(name), expected);
        }
    }

    #[test]
    fn names_and_patterns() {
        let long = format!("a{}", ".a".repeat(126));
        for (text, name, pattern) in [
            ("net.ipv4.ip_forward", true, true),
            ("net/ipv4/ip_forward", true, true),
            ("kernel.shm_rmid_forced", true, true),
            ("a", true, true),
            (&long, true, true),
            ("net.*", false, true),
            ("net.ipv4.route.*", false, true),
            ("kernel.msg*", false, true),
            ("*", false, true),
            ("net.-*", false, false),
            ("net.*.x", false, false),
            ("net.**", false, false),
            ("", false, false),
            ("net.", false, false),
            (".net", false, false),
            ("net..x", false, false),
            ("NET.x", false, false),
            ("net.x_", false, false),
            ("net.é", false, false),
            ("net. x", false, false),
            (&format!("{long}.a"), false, false),
        ] {
            assert_eq!(is_name(text), name, "{text}");
            assert_eq!(is_pattern(text), pattern, "{text}");
        }
    }

    #[test]
    fn namespaces_are_known_by_name_and_by_prefix() {
        use Namespace::{Ipc, Net};
        for (name, namespace) in [
            ("net.core.somaxconn", Some(Net)),
            ("net.*", Some(Net)),
            ("net*", None),
            ("network.x", None),
            ("kernel.shmmax", Some(Ipc)),
            ("kernel.shm*", Some(Ipc)),
            ("kernel.msg*", Some(Ipc)),
            ("kernel.sem", Some(Ipc)),
            ("kernel.*", None),
            ("kernel.pid_max", None),
            ("fs.mqueue.msg_max", Some(Ipc)),
            ("fs.file-max", None),
            ("vm.swappiness", None),
            ("", None),
        ] {
            assert_eq!(namespace_of(name), namespace, "{name}");
        }
    }
}
