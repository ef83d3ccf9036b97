//! Converts OpenMetrics text, as written by the metric library, to Prometheus text format 0.0.4. Pure.

use std::collections::HashMap;

/// Converts `open_metrics`: removes the end marker and units, and renames counters by `names` (registry name to
/// exposed name) in all lines. The kubelet's metrics have neither exemplars nor types unknown to 0.0.4.
pub(super) fn from_open_metrics(
    open_metrics: &str,
    names: &HashMap<String, &'static str>,
) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    // The counter whose samples follow: their name in the input, and the exposed name.
    let mut counter: Option<(String, &str)> = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            let shown = names.get(name).copied().unwrap_or(name);
            push(&mut out, &["# HELP ", shown, " ", help]);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
            let shown = names.get(name).copied().unwrap_or(name);
            push(&mut out, &["# TYPE ", shown, " ", kind]);
            counter = (kind == "counter").then(|| (format!("{name}_total"), shown));
        } else if line.starts_with('#') || line.is_empty() {
            // `# UNIT` and `# EOF` do not exist in 0.0.4.
        } else {
            match counter
                .as_ref()
                .and_then(|(from, to)| Some((line.strip_prefix(from.as_str())?, to)))
            {
                Some((rest, shown)) => push(&mut out, &[shown, rest]),
                None => push(&mut out, &[line]),
            }
        }
    }
    out
}

fn push(out: &mut String, parts: &[&str]) {
    for part in parts {
        out.push_str(part);
    }
    out.push('\n');
}
