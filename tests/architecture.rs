//! The law of the house, kept by reading the sources: who may use whom, and where nothing may happen.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "architecture/documents.rs"]
mod documents;

use std::fs;
use std::path::Path;

/// The modules bottom to top; one uses only those before it. A new arrow is an edit of this table.
#[rustfmt::skip]
const FLOORS: &[&str] = &[
    "base", "metrics", // ground
    "model", "validation", // nouns
    "host", "traces", "cri", "apiserver", // wires
    "events", "decisions", "journal", "pod_cache", "pod_manager", "probe_results", // boards
    "logs", "images", "lifecycle", "resources", "objects", "volumes", "kuberuntime", // machines
    "pleg", "prober", "status", "stats", // watchers
    "pod_config", "pod_sync", "pod_workers", "sync_loop", // flow
    "explain", "server", // surface
    "config", "app", "cli", // roof
];

/// Files of these names decide; they do nothing.
#[rustfmt::skip]
const DECISIONS: &[&str] = &[
    "state.rs", "plan.rs", "actions.rs", "diff.rs", "merge.rs", "rank.rs", "generate.rs",
    "dispatch.rs", "route.rs",
];

/// What doing something looks like.
#[rustfmt::skip]
const EFFECTS: &[&str] = &[
    ".await", "async ", "spawn(", "spawn_blocking(", "tracing::", "trace!(", "debug!(", "info!(",
    "warn!(", "error!(", "println!(", "SystemTime", "Instant::now", "Timestamp::now",
    "Zoned::now", "std::fs", "tokio::fs", "std::env", "env::var",
];

#[rustfmt::skip]
const UNBOUNDED: &[&str] = &[
    "unbounded", "unbounded_channel", "UnboundedSender", "UnboundedReceiver",
    "std::sync::mpsc",
];

const MOST_LINES: usize = 500;

#[test]
fn the_sources_keep_the_law() {
    let mut files = Vec::new();
    read(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        "src",
        &mut files,
    );
    assert!(files.len() > FLOORS.len(), "the sources were not found");
    let broken = check(FLOORS, &files);
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

fn read(dir: &Path, name: &str, files: &mut Vec<(String, String)>) {
    let mut entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect::<Vec<_>>();
    entries.sort();
    for path in entries {
        let name = format!("{name}/{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            read(&path, &name, files);
        } else if name.ends_with(".rs") {
            files.push((name, fs::read_to_string(path).unwrap()));
        }
    }
}

/// Every breach, as `file:line: what`.
fn check(floors: &[&str], files: &[(String, String)]) -> Vec<String> {
    let mut broken = Vec::new();
    for (name, text) in files {
        let code = without_comments_and_strings(text);
        let parts = name.split('/').skip(1).collect::<Vec<_>>();
        let file = parts[parts.len() - 1];
        let is_test = file.ends_with("tests.rs") || parts.contains(&"tests");
        let mut breach = |at: usize, what: String| {
            broken.push(format!(
                "{name}:{}: {what}",
                1 + code[..at].matches('\n').count()
            ));
        };
        if name == "src/lib.rs" {
            let declared = words_after(&code, "pub mod ")
                .map(|(_, module)| module)
                .collect::<Vec<_>>();
            if declared != floors {
                breach(
                    0,
                    format!("its modules are not those of the table in order: {declared:?}"),
                );
            }
        }
        if text.lines().count() > MOST_LINES && !is_test {
            breach(0, format!("longer than {MOST_LINES} lines"));
        }
        for at in find_words(&code, "unsafe").filter(|_| parts[0] != "host") {
            breach(at, "unsafe outside of host".to_owned());
        }
        for word in UNBOUNDED.iter().filter(|_| !is_test) {
            find_words(&code, word)
                .for_each(|at| breach(at, format!("an unbounded channel: {word}")));
        }
        let production = &code[..code.find("#[cfg(test)]\nmod ").unwrap_or(code.len())];
        let decides = DECISIONS.contains(&file) && !is_test;
        for effect in EFFECTS.iter().filter(|_| decides) {
            let places = production.match_indices(effect);
            places.for_each(|(at, _)| {
                breach(
                    at,
                    format!("an effect where things are only decided: {effect}"),
                )
            });
        }
        if parts.len() > 1 {
            let own = floors.iter().position(|floor| *floor == parts[0]);
            for (at, module) in crate_paths(&code) {
                match floors.iter().position(|floor| *floor == module) {
                    Some(floor) if own.is_none_or(|own| floor <= own) => {}
                    Some(_) => breach(
                        at,
                        format!("{} may not use {module}, which is above it", parts[0]),
                    ),
                    None => breach(at, format!("crate::{module} is not in the table")),
                }
            }
            let depth = parts.len() - usize::from(file == "mod.rs");
            for (at, climbs) in super_paths(&code) {
                if climbs >= depth + inline_modules_around(&code, at) {
                    breach(at, "super:: leaves the module; say crate::".to_owned());
                }
            }
        }
    }
    broken
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where `word` stands alone.
fn find_words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| {
            !code[..*at].ends_with(is_word) && !code[at + word.len()..].starts_with(is_word)
        })
}

/// The word that follows each `prefix`.
fn words_after<'a>(code: &'a str, prefix: &'a str) -> impl Iterator<Item = (usize, &'a str)> + 'a {
    code.match_indices(prefix)
        .filter(|(at, _)| !code[..*at].ends_with(is_word))
        .map(move |(at, _)| {
            let rest = &code[at + prefix.len()..];
            (
                at,
                &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())],
            )
        })
}

/// The first names of `crate::a::b` and of `crate::{a::b, c::{d, e}}`.
fn crate_paths(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (at, word) in words_after(code, "crate::") {
        let rest = &code[at + "crate::".len()..];
        if !rest.starts_with('{') {
            found.push((at, word));
            continue;
        }
        let (mut depth, mut start) = (0, 0);
        for (i, c) in rest.char_indices() {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if depth == 0 || (depth == 1 && (c == '{' || c == ',')) {
                let name = rest[start..i].trim_start_matches(['{', ',']).trim();
                let name = &name[..name.find(|c| !is_word(c)).unwrap_or(name.len())];
                found.extend((!name.is_empty()).then_some((at + start, name)));
                start = i;
            }
            if depth == 0 {
                break;
            }
        }
    }
    found
}

/// Each chain of `super::super::` with its length.
fn super_paths(code: &str) -> Vec<(usize, usize)> {
    let starts = code
        .match_indices("super::")
        .map(|(at, _)| at)
        .filter(|at| !code[..*at].ends_with("super::"));
    starts
        .map(|at| {
            (
                at,
                code[at..]
                    .split("::")
                    .take_while(|part| *part == "super")
                    .count(),
            )
        })
        .collect()
}

/// How many `mod x {` are open at a place.
fn inline_modules_around(code: &str, at: usize) -> usize {
    let opens = words_after(code, "mod ").filter(|(start, module)| {
        let body = start + "mod ".len() + module.len();
        if *start >= at || !code[body..].trim_start().starts_with('{') {
            return false;
        }
        let depth = |text: &str| {
            text.matches('{').count() - text.matches('}').count().min(text.matches('{').count())
        };
        depth(&code[body..at]) > 0
    });
    opens.count()
}

/// The text with comments, strings and character literals blanked, line by line the same.
fn without_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let raw = rest
            .trim_start_matches(['b', 'c'])
            .strip_prefix('r')
            .map(|r| r.len() - r.trim_start_matches('#').len());
        let hashes = "#".repeat(raw.unwrap_or(0));
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if raw.is_some()
            && !code.ends_with(is_word)
            && rest
                .trim_start_matches(['b', 'c', 'r', '#'])
                .starts_with('"')
        {
            let open = rest.find('"').unwrap() + 1;
            rest[open..]
                .find(&format!("\"{hashes}"))
                .map_or(rest.len(), |end| open + end + 1 + hashes.len())
        } else if c == '"' {
            let mut escaped = true;
            let end = rest.find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            end.map_or(rest.len(), |end| end + 1)
        } else if c == '\'' && rest[1..].starts_with('\\') {
            rest[3..].find('\'').map_or(rest.len(), |end| end + 4)
        } else if c == '\'' && rest.chars().nth(2) == Some('\'') {
            2 + rest.chars().nth(1).map_or(0, char::len_utf8)
        } else {
            code.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        code.extend(rest[..length].chars().filter(|c| *c == '\n'));
        code.push(' ');
        rest = &rest[length..];
    }
    code
}

// -- each check can fail ---------------------------------------------------------------------------

fn breaches(path: &str, text: &str) -> Vec<String> {
    check(
        &["low", "host", "high"],
        &[(path.to_owned(), text.to_owned())],
    )
}

#[track_caller]
fn assert_breach(path: &str, text: &str, what: &str) {
    let broken = breaches(path, text);
    assert!(
        broken.len() == 1 && broken[0].contains(what),
        "{broken:?} for {text}"
    );
}

#[test]
fn an_upward_path_is_a_breach() {
    assert_breach(
        "src/low/mod.rs",
        "\nuse crate::high::X;",
        "src/low/mod.rs:2: low may not use high",
    );
    assert_breach("src/low/a.rs", "fn f() { crate::high::x() }", "above it");
    assert_breach(
        "src/low/a.rs",
        "use crate::{low::a, high::{b, c}};",
        "low may not use high",
    );
    assert_breach(
        "src/low/a.rs",
        "use crate::other::X;",
        "crate::other is not in the table",
    );
    assert!(
        breaches(
            "src/high/mod.rs",
            "use crate::{low::{a, b}, host}; use crate::high::c;"
        )
        .is_empty()
    );
    assert!(
        breaches(
            "src/low/mod.rs",
            "// see crate::high\nconst A: &str = \"crate::high\";"
        )
        .is_empty()
    );
}

#[test]
fn super_may_not_leave_its_module() {
    assert_breach("src/low/mod.rs", "use super::high;", "super:: leaves");
    assert_breach("src/low/a.rs", "use super::super::high;", "super:: leaves");
    assert_breach(
        "src/low/a.rs",
        "mod t { } use super::super::high;",
        "super:: leaves",
    );
    assert!(
        breaches(
            "src/low/a.rs",
            "use super::b; mod t { use super::super::b; }"
        )
        .is_empty()
    );
}

#[test]
fn the_modules_are_those_of_the_table_in_order() {
    assert_breach(
        "src/lib.rs",
        "pub mod low; pub mod host;",
        "not those of the table",
    );
    assert_breach(
        "src/lib.rs",
        "pub mod host; pub mod low; pub mod high;",
        "not those of the table",
    );
    assert!(
        breaches(
            "src/lib.rs",
            "pub mod low;\n// pub mod x;\npub mod host;\npub mod high;"
        )
        .is_empty()
    );
}

#[test]
fn a_decision_file_does_nothing() {
    let effects = [
        "f().await",
        "warn!(x)",
        "Instant::now()",
        "std::fs::read(p)",
        "tokio::spawn(f)",
        "std::env::args()",
    ];
    for effect in effects {
        assert!(
            !breaches("src/low/plan.rs", &format!("fn f() {{ {effect}; }}")).is_empty(),
            "{effect}"
        );
        assert!(
            breaches("src/low/task.rs", &format!("fn f() {{ {effect}; }}")).is_empty(),
            "{effect}"
        );
    }
    assert!(
        breaches(
            "src/low/plan.rs",
            "fn f() {}\n#[cfg(test)]\nmod tests { fn g() { std::fs::read(p); } }"
        )
        .is_empty()
    );
    assert!(
        breaches("src/low/tests/plan.rs", "fn f() { Instant::now(); }").is_empty(),
        "tests of a decision file may do things"
    );
}

#[test]
fn tests_may_have_effects_and_queues() {
    let (effect, queue) = ("Instant::now();", "mpsc::unbounded_channel();");
    for text in [effect, queue] {
        assert!(breaches("src/low/tests/state.rs", text).is_empty());
    }
    assert_breach("src/low/state.rs", effect, "an effect");
    assert_breach("src/low/state.rs", queue, "unbounded");
}

#[test]
fn length_unsafe_and_unbounded_queues_are_breaches() {
    let long = "\n".repeat(MOST_LINES + 1);
    assert_breach("src/low/a.rs", &long, "longer than");
    assert!(breaches("src/low/tests.rs", &long).is_empty());
    assert_breach(
        "src/low/a.rs",
        "fn f() { unsafe { g() } }",
        "unsafe outside",
    );
    assert!(
        breaches(
            "src/host/a.rs",
            "#![allow(unsafe_code)] fn f() { unsafe { g() } }"
        )
        .is_empty()
    );
    assert_breach(
        "src/low/a.rs",
        "let (a, b) = mpsc::unbounded_channel();",
        "unbounded channel",
    );
}

#[test]
fn comments_strings_and_characters_are_not_code() {
    let code = without_comments_and_strings(
        "a(\"x\\\"y\", r#\"un\"safe\"#, '\"', '\\'', 'é') /* b\n */ + 'a T // c\n+ d",
    );
    assert_eq!(code.split_whitespace().collect::<String>(), "a(,,,,)+'aT+d");
    assert_eq!(code.matches('\n').count(), 2);
}

/// The profiles of a manifest in which a panic ends the process.
fn aborting_profiles(manifest: &str) -> Vec<&str> {
    let (mut section, mut found) = ("", Vec::new());
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if let Some((key, value)) = line.split_once('=') {
            let aborts = key.trim() == "panic" && value.contains("abort");
            if aborts && section.starts_with("[profile.") {
                found.push(section);
            }
        }
    }
    found
}

#[test]
fn a_panic_ends_the_process_in_no_profile() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    assert_eq!(aborting_profiles(&manifest), <[&str; 0]>::default());
    let aborts =
        "[profile.dev]\npanic = \"unwind\"\n[profile.release]\nlto = true\npanic = \"abort\"\n";
    assert_eq!(aborting_profiles(aborts), ["[profile.release]"]);
}
