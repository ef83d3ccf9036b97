//! The families of the Go kubelet's metrics that this kubelet does not serve. Pure.
//!
//! The document is the only list. Tests compare it with the families that the Go kubelet and this kubelet serve.

use crate::app::Finding;

const NOT_SERVED: &str = include_str!("../../../docs/metrics-not-served.md");

/// The names; `*` at the end of a name matches any suffix.
pub fn families_not_served() -> Vec<&'static str> {
    let rows = NOT_SERVED.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.flat_map(|row| {
        let cell = row.split(" | ").next().unwrap_or_default();
        // Every second part is outside of backticks.
        cell.split('`').step_by(2).filter(|name| !name.is_empty())
    });
    names.collect()
}

/// The finding for those who have dashboards.
pub(super) fn finding() -> Finding {
    let message = format!(
        "families that the Go kubelet serves and this kubelet does not, which dashboards lose: go_* {}",
        families_not_served().join(" ")
    );
    Finding::ok("metrics", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_in_the_first_column() {
        let names = families_not_served();
        assert!(names.len() > 20, "{names:?}");
        for name in ["aggregator_*", "hidden_metrics_total", "workqueue_*"] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        // It is named in the second column, as what is served instead.
        assert!(!names.contains(&"kubelet_working_pods"), "{names:?}");
        assert!(finding().message.contains(" workqueue_*"));
    }
}
