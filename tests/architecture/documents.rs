//! What the documents say is tested is tested: every test that they name exists.

use super::read;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The pains that the list counts.
const PAINS: usize = 44;

/// Everything that a document can name, with where it runs: `""` is anywhere.
#[derive(Default)]
struct Known {
    tests: BTreeSet<String>,
    /// Scenarios of `tests/containerd` and `tests/cluster` by name, with the flavours on which they run.
    scenarios: BTreeMap<String, Vec<&'static str>>,
}

impl Known {
    fn of(files: &[(String, String)]) -> Self {
        let mut known = Self::default();
        for (name, text) in files {
            let lists: &[List] = match name.as_str() {
                "tests/containerd/scenarios/mod.rs" => RUNTIMES,
                "tests/cluster/scenarios/mod.rs" => CLUSTERS,
                _ => &[],
            };
            for (scenario, on) in scenarios(lists, text) {
                known.scenarios.entry(scenario).or_default().extend(on);
            }
            known.tests.extend(tests(text));
        }
        known
    }

    /// Why a name as a document has it is none of a test.
    fn fault(&self, name: &str) -> Option<String> {
        let flavours: &[&str] = match name.split_once("::") {
            Some(("containerd", _)) => &["containerd"],
            Some(("containerd2", _)) => &["containerd2"],
            Some(("containerd{,2}", _)) => &["containerd", "containerd2"],
            Some(("crio", _)) => &["crio"],
            Some(("crio_events", _)) => &["crio_events"],
            Some(("cluster", _)) => &["cluster"],
            Some(_) => return Some(format!("{name}: nothing is called so")),
            None => &[],
        };
        let short = name.rsplit("::").next().unwrap_or(name);
        let runs_on = self.scenarios.get(short);
        let found = match flavours {
            [] => self.tests.contains(short) || runs_on.is_some(),
            _ => runs_on.is_some_and(|runs| flavours.iter().all(|flavour| runs.contains(flavour))),
        };
        (!found).then(|| format!("{name}: there is no such test"))
    }
}

/// The functions that are marked as tests.
fn tests(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut marked = false;
    for line in text.lines().map(str::trim) {
        let is_test = ["#[test]", "#[tokio::test"];
        if is_test.iter().any(|mark| line.starts_with(mark)) {
            marked = true;
        } else if let Some(name) = function(line) {
            if marked {
                found.push(name.to_owned());
            }
            marked = false;
        }
    }
    found
}

fn function(line: &str) -> Option<&str> {
    let rest = line
        .trim_start_matches("pub ")
        .trim_start_matches("pub(crate) ")
        .trim_start_matches("async ")
        .strip_prefix("fn ")?;
    rest.split(['(', '<']).next()
}

/// The name of a list of scenarios, and the flavours on which those run.
type List = (&'static str, &'static [&'static str]);

const RUNTIMES: &[List] = &[
    ("EVERYWHERE:", &["containerd", "containerd2", "crio"]),
    ("ON_CONTAINERD2:", &["containerd2"]),
    ("ON_CRIO:", &["crio"]),
    ("ON_CRIO_EVENTS:", &["crio_events"]),
];

/// Those that run with this kubelet.
const CLUSTERS: &[List] = &[
    ("EVERYWHERE:", &["cluster"]),
    ("RUST:", &["cluster"]),
    ("STORAGE:", &["cluster"]),
    ("STORAGE_EVERYWHERE:", &["cluster"]),
    ("MONITORING:", &["cluster"]),
];

/// The scenarios in the lists of a file.
fn scenarios(lists: &[List], text: &str) -> BTreeMap<String, Vec<&'static str>> {
    let mut found = BTreeMap::<String, Vec<&'static str>>::new();
    let mut flavours: &[&'static str] = &[];
    let left_out = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\","))
        .collect::<BTreeSet<_>>();
    for line in text.lines().map(str::trim) {
        if let Some((_, on)) = lists.iter().find(|(list, _)| *list == line) {
            flavours = on;
        } else if line == "}" {
            flavours = &[];
        } else if let Some((_, name)) = line.trim_end_matches(',').split_once("::")
            && !flavours.is_empty()
        {
            let here = flavours.iter();
            let here = here.filter(|on| **on != "crio" || !left_out.contains(name));
            found.entry(name.to_owned()).or_default().extend(here);
        }
    }
    found
}

/// The rows of all tables of a document, each with the number of its line. Heads and rules are none.
fn rows(text: &str) -> Vec<(usize, Vec<&str>)> {
    let lines = text.lines().collect::<Vec<_>>();
    let rule = |line: &str| line.starts_with("|---") || line.starts_with("| ---");
    let is_row = |at: usize| {
        lines[at].starts_with('|')
            && !rule(lines[at])
            && !lines.get(at + 1).is_some_and(|next| rule(next))
    };
    let cells = |at: usize| {
        let row = lines[at].trim().trim_matches('|');
        (at + 1, row.split('|').map(str::trim).collect())
    };
    (0..lines.len()).filter(|at| is_row(*at)).map(cells).collect()
}

/// Text inside backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// What is wrong with the tests that a document names in the last column of its tables. A row may do
/// without only if `excused` says so of the others.
fn faults(known: &Known, text: &str, excused: impl Fn(&[&str]) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (line, cells) in rows(text) {
        let (last, others) = cells.split_last().expect("a row has cells");
        let named = quoted(last);
        if named.is_empty() && !excused(others) {
            faults.push(format!("line {line}: no test is named"));
        }
        let missing = named.into_iter().filter_map(|name| known.fault(name));
        faults.extend(missing.map(|fault| format!("line {line}: {fault}")));
    }
    faults
}

fn document(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

fn known() -> Known {
    let mut files = Vec::new();
    for dir in ["src", "tests"] {
        read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), dir, &mut files);
    }
    Known::of(&files)
}

#[test]
fn every_test_that_a_document_names_exists() {
    let known = known();
    assert!(known.tests.len() > 100 && known.scenarios.len() > 10, "the tests were not found");
    let none = |_: &[&str]| false;
    let broken = faults(&known, &document("docs/pains.md"), none);
    assert_eq!(broken, [""; 0], "docs/pains.md");
    let not_there = |cells: &[&str]| cells.last().is_some_and(|state| state.starts_with("not"));
    let broken = faults(&known, &document("docs/features.md"), not_there);
    assert_eq!(broken, [""; 0], "docs/features.md");
}

#[test]
fn every_pain_is_answered() {
    let text = document("docs/pains.md");
    for number in 1..=PAINS {
        let pain = format!("P-{number:02}");
        let answers = text.matches(&format!("\n| {pain} ")).count();
        assert_eq!(answers, 1, "{pain}");
    }
}

// -- the check can fail ----------------------------------------------------------------------------

#[test]
fn names_are_found_as_documents_write_them() {
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let known = Known::of(&[
        file("src/a.rs", "#[test]\nfn one() {}\nfn helper() {}\n"),
        file(
            "tests/b.rs",
            "    #[tokio::test(start_paused = true)]\n    #[ignore]\n    async fn two() {}",
        ),
        file(
            "tests/containerd/scenarios/mod.rs",
            "scenarios! {\n    ON_CONTAINERD2:\n    a::four,\n}\nscenarios! {\n    EVERYWHERE:\n    a::three,\n}\nuse x::y;",
        ),
        file(
            "tests/cluster/scenarios/mod.rs",
            "scenarios! {\n    RUST:\n    a::six,\n}\nscenarios! {\n    GO:\n    a::seven,\n}",
        ),
    ]);
    for good in [
        "one",
        "two",
        "three",
        "containerd::three",
        "containerd{,2}::three",
        "containerd2::four",
        "cluster::six",
    ] {
        assert_eq!(known.fault(good), None, "{good}");
    }
    for bad in [
        "helper",
        "five",
        "y",
        "containerd::one",
        "containerd{,2}::four",
        "containerd::six",
        "cluster::three",
        "cluster::seven",
        "elsewhere::one",
    ] {
        assert!(known.fault(bad).is_some(), "{bad}");
    }
    let table = "| a | b |\n|---|---|\n| x | `one`, `five` |\n| not yet | - |\n| y | — |\n";
    let broken = faults(&known, table, |cells| cells[0].starts_with("not"));
    assert_eq!(broken, ["line 3: five: there is no such test", "line 5: no test is named"]);
}

/// The first parts of names of metric families.
const FAMILIES: &[&str] = &[
    "apiserver_",
    "authentication_",
    "cadvisor_",
    "container_",
    "csi_",
    "dra_grpc_",
    "dra_operations_",
    "dra_resource_",
    "force_cleaned_",
    "kubelet_",
    "kubernetes_",
    "machine_",
    "node_",
    "pod_",
    "prober_",
    "process_",
    "reconstruct_",
    "resource_",
    "rest_client_",
    "storage_",
    "volume_",
];

#[test]
fn every_metric_family_is_in_the_table_and_the_table_names_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    read(&root.join("src"), "src", &mut files);
    files.retain(|(name, _)| !name.contains("/tests"));
    let table = fs::read_to_string(root.join("docs/metrics.md")).unwrap();
    let rows: BTreeSet<&str> =
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let written: BTreeSet<&str> = files.iter().flat_map(|(_, text)| families(text)).collect();
    assert!(written.len() > 100, "the families were not found");
    let missing: Vec<_> = written.difference(&rows).collect();
    assert!(missing.is_empty(), "not in docs/metrics.md: {missing:?}");
    let gone: Vec<_> = rows.difference(&written).collect();
    assert!(gone.is_empty(), "only in docs/metrics.md: {gone:?}");
}

/// The names that are followed by what they mean, as a family is declared.
fn families(text: &str) -> Vec<&str> {
    let parts: Vec<&str> = text.split('"').collect();
    let mut found = Vec::new();
    for at in 0..parts.len().saturating_sub(2) {
        let (name, between, meaning) = (parts[at], parts[at + 1], parts[at + 2]);
        let is_name = FAMILIES.iter().any(|first| name.starts_with(first))
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        let between: Vec<&str> = between.split_whitespace().collect();
        let declares = matches!(between.join(" ").as_str(), "," | ", help:" | "; let help =");
        if is_name && declares && meaning.contains(' ') {
            found.push(name);
        }
    }
    found
}

#[test]
fn families_are_found_as_they_are_declared() {
    let text = "register(\n \"kubelet_a_total\",\n \"Some help\", x); Family { name: \"container_b\", help: \"H h\" }\n\
                let name = \"resource_c\";\n let help = \"H h\"; (\"pod_uid\", \"name\"); \"kubelet_x y\", \"a b\"";
    assert_eq!(families(text), ["kubelet_a_total", "container_b", "resource_c"]);
}
