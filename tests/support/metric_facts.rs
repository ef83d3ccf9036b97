//! What the Go kubelet's pages of metrics are like: names, types, labels and buckets of their families.
//!
//! `tests/metrics/go-kubelet.txt` has them, one family a line: page, name, type, labels, bounds of buckets (`-` for
//! none). The scenario `metrics::families_are_those_of_the_go_kubelet` renews it (see CONTRIBUTING.md).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

/// The pages, by their paths.
pub const PAGES: [&str; 5] =
    ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/metrics/slis"];

/// A family: what does not change from one scrape to another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Family {
    pub kind: String,
    /// Of all samples, without `le`.
    pub labels: BTreeSet<String>,
    /// The texts of the bounds, in their order.
    pub bounds: Vec<String>,
    /// Whether there is a sample.
    pub sampled: bool,
}

/// By page and name.
pub type Facts = BTreeMap<(String, String), Family>;

/// The file of facts.
pub fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/metrics/go-kubelet.txt")
}

/// The facts of the file.
pub fn recorded() -> Facts {
    let text = std::fs::read_to_string(path()).expect("the facts from the Go kubelet");
    text.lines().map(parse_fact).collect()
}

fn parse_fact(line: &str) -> ((String, String), Family) {
    let fields: Vec<_> = line.split(' ').collect();
    let [page, name, kind, labels, bounds] = fields[..] else {
        panic!("{line:?} is no fact");
    };
    let list = |text: &str| -> Vec<String> {
        let words = text.split(',').filter(|word| *word != "-");
        words.map(str::to_owned).collect()
    };
    let family = Family {
        kind: kind.to_owned(),
        labels: list(labels).into_iter().collect(),
        bounds: list(bounds),
        sampled: true,
    };
    ((page.to_owned(), name.to_owned()), family)
}

/// The text of the file.
pub fn written(facts: &Facts) -> String {
    let list = |words: Vec<&str>| match words.join(",") {
        none if none.is_empty() => "-".to_owned(),
        some => some,
    };
    let mut text = String::new();
    for ((page, name), family) in facts {
        let labels = list(family.labels.iter().map(String::as_str).collect());
        let bounds = list(family.bounds.iter().map(String::as_str).collect());
        writeln!(text, "{page} {name} {} {labels} {bounds}", family.kind).unwrap();
    }
    text
}

/// The families of a page of metrics; those of Go's own runtime (`go_`) are none of a kubelet.
pub fn of_page(page: &str, text: &str) -> Facts {
    let mut facts = Facts::new();
    let mut name = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (family, kind) = rest.split_once(' ').expect("a type");
            name = family;
            let family = Family { kind: kind.to_owned(), ..Family::default() };
            facts.insert((page.to_owned(), name.to_owned()), family);
        } else if !line.starts_with('#') && !line.is_empty() {
            let key = (page.to_owned(), name.to_owned());
            let family = facts.get_mut(&key).expect("a type before its samples");
            family.sampled = true;
            for (label, value) in labels(line) {
                if label != "le" || family.kind != "histogram" {
                    family.labels.insert(label.to_owned());
                } else if !family.bounds.iter().any(|bound| bound == value) {
                    family.bounds.push(value.to_owned());
                }
            }
        }
    }
    facts.retain(|(_, name), _| !name.starts_with("go_"));
    facts
}

/// The labels of a sample, with values as they are written.
fn labels(sample: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let Some((_, mut rest)) = sample.split_once('{') else {
        return found;
    };
    while let Some((label, after)) = rest.split_once("=\"") {
        let mut escaped = false;
        let end = after.find(|c| {
            let is_end = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            is_end
        });
        let end = end.expect("a quoted value");
        found.push((label.trim_start_matches(','), &after[..end]));
        rest = &after[end + 1..];
        if rest.starts_with('}') {
            break;
        }
    }
    found
}

/// How families that are served differ from recorded ones of the same names.
pub fn differences(served: &Facts, recorded: &Facts) -> Vec<String> {
    let mut found = Vec::new();
    for ((page, name), ours) in served {
        let Some(theirs) = recorded.get(&(page.clone(), name.clone())) else {
            continue;
        };
        let mut compare = |what: &str, ours: &dyn std::fmt::Debug, theirs: &dyn std::fmt::Debug| {
            let (ours, theirs) = (format!("{ours:?}"), format!("{theirs:?}"));
            if ours != theirs {
                found.push(format!("{page} {name}: {what} {ours}, the Go kubelet has {theirs}"));
            }
        };
        compare("type", &ours.kind, &theirs.kind);
        if ours.sampled {
            compare("labels", &ours.labels, &theirs.labels);
            compare("buckets", &ours.bounds, &theirs.bounds);
        }
    }
    found
}

/// The families of `docs/metrics-not-served.md`: names, or beginnings that end with `*`.
pub struct Deviations(Vec<String>);

impl Deviations {
    pub fn read() -> Self {
        let names = kubelet::app::families_not_served();
        Self(names.into_iter().map(str::to_owned).collect())
    }

    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// Whether a name of the document means this family.
    pub fn means(name: &str, family: &str) -> bool {
        match name.strip_suffix('*') {
            Some(first) => family.starts_with(first),
            None => family == name,
        }
    }

    pub fn have(&self, family: &str) -> bool {
        self.0.iter().any(|name| Self::means(name, family))
    }
}
