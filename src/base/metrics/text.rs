//! Converts OpenMetrics text, as written by the metric library, to Prometheus text format 0.0.4. Pure.

use std::collections::HashMap;

/// Converts `open_metrics`: removes the end marker and units, replaces types unknown to 0.0.4, and renames counters
/// by `names` (registry name to exposed name) in all lines.
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
            push(&mut out, &["# TYPE ", shown, " ", prometheus_type(kind)]);
            counter = (kind == "counter").then(|| (format!("{name}_total"), shown));
        } else if line.starts_with('#') || line.is_empty() {
            // `# UNIT` and `# EOF` do not exist in 0.0.4.
        } else {
            let sample = without_exemplar(line);
            match counter
                .as_ref()
                .and_then(|(from, to)| Some((sample.strip_prefix(from.as_str())?, to)))
            {
                Some((rest, shown)) => push(&mut out, &[shown, rest]),
                None => push(&mut out, &[sample]),
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

fn prometheus_type(open_metrics: &str) -> &str {
    match open_metrics {
        "info" | "stateset" => "gauge",
        "unknown" => "untyped",
        "gaugehistogram" => "histogram",
        known => known,
    }
}

/// Removes an exemplar, which starts with ` # {` outside of quotes.
fn without_exemplar(line: &str) -> &str {
    let mut quoted = false;
    let mut escaped = false;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'#' if !quoted => return line.get(..at).unwrap_or(line).trim_end(),
            _ => {}
        }
    }
    line
}
