//! Kernel limits of this process.

use super::ProcDir;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Sets the kubelet's `oom_score_adj`; a failure is logged.
pub fn set_oom_score_adj(value: i32) {
    let set = ProcDir::default().set_oom_score_adj(std::process::id(), value);
    if let Err(error) = set {
        tracing::warn!(value, err = %error, "Failed to set the kubelet's oom_score_adj");
    }
}

/// Sets the limit of open files (`maxOpenFiles`), at most to the hard limit if it cannot be raised. Zero leaves it
/// unchanged.
pub fn allow_open_files(wanted: u64) {
    if wanted == 0 {
        return;
    }
    let before = getrlimit(Resource::Nofile);
    let set = |limit| setrlimit(Resource::Nofile, limit);
    if let Err(error) = set(raised(before.maximum, wanted)) {
        let maximum = before.maximum.unwrap_or(u64::MAX);
        tracing::warn!(wanted, maximum, err = %error, "Failed to set RLIMIT_NOFILE to maxOpenFiles; using the allowed maximum");
        let most = before.maximum.map_or(wanted, |most| most.min(wanted));
        if let Err(error) = set(raised(before.maximum, most)) {
            tracing::warn!(err = %error, "Failed to raise RLIMIT_NOFILE");
        }
    }
}

/// The limits for `wanted` files. The hard limit, which child processes inherit, is not lowered.
fn raised(maximum: Option<u64>, wanted: u64) -> Rlimit {
    Rlimit { current: Some(wanted), maximum: maximum.map(|most| most.max(wanted)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_raised_and_the_hard_limit_never_lowered() {
        let rows = [
            (Some(4096), 1024, (1024, Some(4096))),
            (Some(4096), 8192, (8192, Some(8192))),
            (None, 8192, (8192, None)),
        ];
        for (maximum, wanted, (current, most)) in rows {
            let limit = raised(maximum, wanted);
            assert_eq!((limit.current, limit.maximum), (Some(current), most));
        }
    }
}
