//! Converts OpenMetrics text, as written by the metric library, to Prometheus text format 0.0.4. Pure.

use std::borrow::Cow;
use std::collections::HashMap;

/// Converts `open_metrics`: removes the end marker and units, renames counters by `names` (registry name to exposed
/// name) in all lines, and writes bounds of buckets as Go does. The kubelet's metrics have neither exemplars nor types
/// unknown to 0.0.4.
pub(super) fn from_open_metrics(
    open_metrics: &str,
    names: &HashMap<String, &'static str>,
) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    // The counter whose samples follow: their name in the input, and the exposed name.
    let mut counter: Option<(String, &str)> = None;
    // What a line of the histogram whose samples follow has before a bound. The library writes `le` first.
    let mut bucket: Option<String> = None;
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
            bucket = (kind == "histogram").then(|| format!("{name}_bucket{{le=\""));
        } else if line.starts_with('#') || line.is_empty() {
            // `# UNIT` and `# EOF` do not exist in 0.0.4.
        } else if let Some((from, shown)) = &counter
            && let Some(rest) = line.strip_prefix(from)
        {
            push(&mut out, &[shown, rest]);
        } else if let Some(before) = &bucket
            && let Some(rest) = line.strip_prefix(before)
            && let Some((bound, rest)) = rest.split_once('"')
        {
            push(&mut out, &[before, &go_bound(bound), "\"", rest]);
        } else {
            push(&mut out, &[line]);
        }
    }
    out
}

/// A bound as Go's `strconv` writes it: `1`, `0.005`, `1e+06`. Prometheus before 3.0 compares bounds as text, so another
/// spelling would be another bucket beside those of Go kubelets and of a node's past.
fn go_bound(bound: &str) -> Cow<'_, str> {
    let Some(number) = bound.parse::<f64>().ok().filter(|number| number.is_finite()) else {
        return Cow::Borrowed(bound);
    };
    let scientific = format!("{number:e}");
    match scientific.split_once('e') {
        Some((digits, exponent)) => match exponent.parse::<i32>() {
            Ok(power) if !(-4..6).contains(&power) && number != 0.0 => {
                let sign = if power < 0 { '-' } else { '+' };
                Cow::Owned(format!("{digits}e{sign}{:02}", power.unsigned_abs()))
            }
            _ => Cow::Owned(number.to_string()),
        },
        None => Cow::Borrowed(bound),
    }
}

fn push(out: &mut String, parts: &[&str]) {
    for part in parts {
        out.push_str(part);
    }
    out.push('\n');
}
