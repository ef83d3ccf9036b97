//! How much there is to read: code lines and test lines, with a budget for each area; long functions, comments, and the
//! word "of". `make lines` prints the figures; `TREE=DIR make lines` those of another checkout.
//!
//! A line counts if something is on it besides blanks, comments and text. `src` has code and tests; what is below
//! `tests` counts as tests.

use super::{is_test, read};
use crate::text::{find_words, is_word, item_length, test_items, without_comments_and_strings};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The most code lines and test lines that each area may have. A change that needs more raises the row in the same
/// commit and says there why; a change that removes many lowers it.
#[rustfmt::skip]
const BUDGETS: &[(&str, usize, usize)] = &[
    ("base", 3800, 2100),
    ("model", 4600, 2900),
    ("host", 4700, 2450),
    ("cri", 2350, 1450),
    ("apiserver", 4650, 4150),
    ("state", 2550, 1300),
    ("resources", 10550, 5750),
    ("images", 3800, 3000),
    ("volumes", 15200, 13200),
    ("runtime", 10650, 7900),
    ("pods", 13400, 10150),
    ("node", 9150, 6650),
    ("server", 8250, 5800),
    ("config", 4300, 1950),
    ("app", 3900, 1100),
    ("cli", 2050, 1000),
    ("tests/architecture", 0, 1600),
    ("tests/cluster", 0, 3600),
    ("tests/containerd", 0, 4600),
    ("tests/fuzz", 0, 1750),
    ("tests/histories", 0, 1250),
    ("tests/simulated", 0, 15250),
    ("tests/support", 0, 5600),
];

/// A function with more code lines than this is long.
const LONG_FUNCTION: usize = 60;
/// Documents that are generated, or quote what others wrote.
const GENERATED: &[&str] =
    &["docs/conformance.md", "docs/metrics.md", "docs/metrics-not-served.md", "docs/routes.md"];

/// A file of the program or of its tests.
struct Source {
    name: String,
    text: String,
    /// The text without comments and strings, byte by byte the same length.
    code: String,
    /// Everything in it is a test.
    is_test: bool,
}

/// The lines of some files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    code: usize,
    tests: usize,
    /// Lines with only a comment, outside of tests.
    comments: usize,
}

impl Lines {
    fn add(&mut self, other: Self) {
        self.code += other.code;
        self.tests += other.tests;
        self.comments += other.comments;
    }

    fn of(source: &Source) -> Self {
        let Source { text, code, is_test, .. } = source;
        let tests = test_items(code);
        let (mut lines, mut start) = (Self::default(), 0);
        for (line, code) in text.lines().zip(code.lines()) {
            let at = start + (line.len() - line.trim_start().len());
            start += line.len() + 1;
            let in_test = *is_test || tests.iter().any(|item| item.contains(&at));
            let is_code = !code.trim().is_empty();
            lines.tests += usize::from(is_code && in_test);
            lines.code += usize::from(is_code && !in_test);
            lines.comments += usize::from(!in_test && line.trim_start().starts_with("//"));
        }
        lines
    }
}

#[test]
fn areas_stay_within_their_budgets() {
    let tree = std::env::var_os("TREE");
    let root = tree.as_ref().map_or(Path::new(env!("CARGO_MANIFEST_DIR")), Path::new);
    let mut files = Vec::new();
    for dir in ["src", "tests"] {
        read(&root.join(dir), dir, &mut files);
    }
    let sources = sources(files);
    let areas = count(&sources);
    print(&areas, &sources, root);
    let broken = over_budget(BUDGETS, &areas);
    assert!(tree.is_some() || broken.is_empty(), "\n{}\n", broken.join("\n"));
}

/// The lines by area; the sources outside all areas count for `app`, which starts them.
fn count(sources: &[Source]) -> BTreeMap<String, Lines> {
    let mut areas = BTreeMap::<String, Lines>::new();
    for source in sources {
        areas.entry(area(&source.name)).or_default().add(Lines::of(source));
    }
    areas
}

fn area(file: &str) -> String {
    let mut parts = file.split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("src"), Some(area), Some(_)) => area.to_owned(),
        (Some("src"), ..) => "app".to_owned(),
        (Some(tests), Some(area), Some(_)) => format!("{tests}/{area}"),
        _ => file.to_owned(),
    }
}

/// Tests are the files below `tests`, those named as tests, and the modules that are declared for tests only, with all
/// below them.
fn sources(files: Vec<(String, String)>) -> Vec<Source> {
    let (mut sources, mut modules) = (Vec::new(), Vec::new());
    for (name, text) in files {
        let code = without_comments_and_strings(&text);
        let dir = name.strip_suffix("/mod.rs").or(name.strip_suffix(".rs")).unwrap_or(&name);
        for item in test_items(&code) {
            let words = code[item].split(|c| !is_word(c)).filter(|word| !word.is_empty());
            if let [.., "mod", module] = words.collect::<Vec<_>>()[..] {
                modules.push(format!("{dir}/{module}"));
            }
        }
        let is_test = name.starts_with("tests/") || is_test(&name);
        sources.push(Source { name, text, code, is_test });
    }
    let below = |name: &str| {
        modules.iter().any(|module| {
            name.strip_prefix(module.as_str()).is_some_and(|rest| rest.starts_with(['/', '.']))
        })
    };
    for source in &mut sources {
        source.is_test |= below(&source.name);
    }
    sources
}

/// The budget of an area for code and for tests; an area without a row has none.
fn budget(budgets: &[(&str, usize, usize)], area: &str) -> (usize, usize) {
    let row = budgets.iter().find(|(name, ..)| *name == area);
    row.map_or((0, 0), |(_, code, tests)| (*code, *tests))
}

fn over_budget(budgets: &[(&str, usize, usize)], areas: &BTreeMap<String, Lines>) -> Vec<String> {
    let mut broken = Vec::new();
    for (area, lines) in areas {
        let (code, tests) = budget(budgets, area);
        for (what, lines, budget) in [("code", lines.code, code), ("tests", lines.tests, tests)] {
            if lines > budget {
                broken.push(format!(
                    "{area} has {lines} lines of {what}, {} over its budget: remove or share lines, or raise its row in \
                     tests/architecture/lines.rs in this commit, with the reason in the commit's message",
                    lines - budget
                ));
            }
        }
    }
    broken
}

fn print(areas: &BTreeMap<String, Lines>, sources: &[Source], root: &Path) {
    println!(
        "{:<20} {:>7} {:>7} {:>7} {:>7} {:>9}",
        "area", "code", "budget", "tests", "budget", "comments"
    );
    let (mut all, row) = (Lines::default(), |name: &str, lines: Lines, budget: (usize, usize)| {
        let Lines { code, tests, comments } = lines;
        println!("{name:<20} {code:>7} {:>7} {tests:>7} {:>7} {comments:>9}", budget.0, budget.1);
    });
    let mut budgets = (0, 0);
    for (area, lines) in areas {
        let (code, tests) = budget(BUDGETS, area);
        row(area, *lines, (code, tests));
        all.add(*lines);
        budgets = (budgets.0 + code, budgets.1 + tests);
    }
    row("all", all, budgets);
    let functions = functions(sources);
    let long = functions.iter().filter(|(lines, _)| *lines > LONG_FUNCTION).collect::<Vec<_>>();
    println!(
        "functions over {LONG_FUNCTION} lines: {} of {}, {:.2} % (goal: at most 0.4 %)",
        long.len(),
        functions.len(),
        100.0 * long.len() as f64 / functions.len() as f64
    );
    long.iter().for_each(|(lines, name)| println!("  {lines:>4} {name}"));
    println!("comments to code: {:.3}", all.comments as f64 / all.code as f64);
    let (of, words) = prose(sources, root);
    println!(
        "\"of\" in 10,000 words of comments and documents: {} (goal: at most 250)",
        of * 10_000 / words
    );
}

/// The functions outside tests with their code lines, the longest first.
fn functions(sources: &[Source]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for Source { name, code, .. } in sources.iter().filter(|source| !source.is_test) {
        let code = super::without_tests(code);
        for at in find_words(&code, "fn").filter(|at| code[at + 2..].starts_with(' ')) {
            let item = &code[at..at + item_length(&code[at..])];
            if item.ends_with('}') {
                let lines = item.lines().filter(|line| !line.trim().is_empty()).count();
                let function = item[3..].split(|c| !is_word(c)).next().unwrap_or_default();
                found.push((lines, format!("{name}: {function}")));
            }
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    found
}

/// How often "of" stands in comments and documents, and among how many words.
fn prose(sources: &[Source], root: &Path) -> (usize, usize) {
    let lines = sources.iter().flat_map(|source| source.text.lines().map(str::trim_start));
    let comments = lines.filter(|line| line.starts_with("//")).map(str::to_owned);
    let documents =
        documents(root, Path::new("")).into_iter().chain(documents(root, Path::new("docs")));
    let documents = documents.map(|file| fs::read_to_string(root.join(file)).unwrap());
    comments
        .chain(documents)
        .map(|text| words(&text))
        .fold((0, 0), |sum, (of, words)| (sum.0 + of, sum.1 + words))
}

/// How many times a text has "of", and how many words. What stands between back-quotes is code.
fn words(text: &str) -> (usize, usize) {
    let outside = text.split('`').step_by(2);
    let words = outside.flat_map(|part| part.split(|c: char| !c.is_alphabetic() && c != '\''));
    words.filter(|word| !word.is_empty()).fold((0, 0), |(of, words), word| {
        (of + usize::from(word.eq_ignore_ascii_case("of")), words + 1)
    })
}

/// The documents that people wrote.
fn documents(root: &Path, dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(dir)).unwrap().map(Result::unwrap) {
        let path = dir.join(entry.file_name());
        if dir != Path::new("") && entry.path().is_dir() {
            found.extend(documents(root, &path));
        } else if path.extension().is_some_and(|kind| kind == "md")
            && !GENERATED.iter().any(|generated| path == Path::new(generated))
        {
            found.push(path);
        }
    }
    found
}

#[test]
fn comments_blanks_and_text_are_no_lines_and_tests_count_apart() {
    let text = "//! A.\nfn a() {\n    // Why.\n\n    b(\"x\n y\");\n}\n#[cfg(test)]\nmod tests {\n    // T.\n}\n";
    let lines = |name: &str| Lines::of(&sources(vec![(name.to_owned(), text.to_owned())])[0]);
    assert_eq!(lines("src/a/b.rs"), Lines { code: 4, tests: 3, comments: 2 });
    assert_eq!(lines("tests/a/b.rs"), Lines { code: 0, tests: 7, comments: 0 });
}

#[test]
fn modules_for_tests_only_are_tests() {
    let file = |name: &str, text: &str| (format!("src/a/{name}.rs"), text.to_owned());
    let files = [
        file("mod", "#[cfg(test)]\nmod server;\nmod b;\n#[cfg(test)]\nmod tests {\nuse b::c;\n}"),
        file("server", "fn s() {}"),
        file("server/part", "fn p() {}"),
        file("b", "fn b() {}"),
        file("servers", "fn c() {}"),
    ];
    let sources = sources(files.into());
    let tests = sources.iter().filter(|source| source.is_test);
    let found = tests.map(|source| source.name.as_str()).collect::<Vec<_>>();
    assert_eq!(found, ["src/a/server.rs", "src/a/server/part.rs"]);
    let lines = count(&sources)["a"];
    assert_eq!((lines.code, lines.tests), (3, 8));
}

#[test]
fn an_area_over_its_budget_is_named_with_the_way_out() {
    let areas = BTreeMap::from([
        ("a".to_owned(), Lines { code: 10, tests: 5, comments: 1 }),
        ("new".to_owned(), Lines { code: 1, tests: 0, comments: 0 }),
    ]);
    let broken = over_budget(&[("a", 10, 4)], &areas);
    assert_eq!(broken.len(), 2, "{broken:?}");
    assert!(
        broken[0].starts_with("a has 5 lines of tests, 1 over its budget: remove"),
        "{broken:?}"
    );
    assert!(broken[1].starts_with("new has 1 lines of code, 1 over"), "{broken:?}");
    assert_eq!(over_budget(&[("a", 10, 5), ("new", 1, 0)], &areas), Vec::<String>::new());
}

#[test]
fn words_in_back_quotes_are_not_prose() {
    assert_eq!(words("// Of the pod's `list of x`, none."), (1, 4));
}
