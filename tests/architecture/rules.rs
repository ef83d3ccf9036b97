//! Each check can fail.

use super::{Areas, MAX_LINES, check, module_of};
use crate::imports::{circles, deepest, imports};
use crate::text::without_comments_and_strings;
use std::collections::{BTreeMap, BTreeSet};

const AREAS: Areas = &[("low", &["one", "two"]), ("host", &[]), ("high", &[])];

/// The breaches of one file among modules of every area.
fn breaches(path: &str, text: &str) -> Vec<String> {
    let others =
        ["low/mod.rs", "low/one.rs", "low/two.rs", "host/mod.rs", "high/mod.rs", "other/mod.rs"];
    let mut files = others.map(|name| (format!("src/{name}"), String::new())).to_vec();
    files.retain(|(name, _)| name != path && name != "src/low/mod.rs");
    files.push((path.to_owned(), text.to_owned()));
    check(AREAS, &files)
}

#[track_caller]
fn assert_breach(path: &str, text: &str, what: &str) {
    let broken = breaches(path, text);
    assert!(broken.len() == 1 && broken[0].contains(what), "{broken:?} for {text}");
}

#[track_caller]
fn assert_lawful(path: &str, text: &str) {
    assert_eq!(breaches(path, text), Vec::<String>::new(), "{text}");
}

#[test]
fn an_upward_path_is_a_breach() {
    let what = "src/low/a.rs:2: low may not use high";
    assert_breach("src/low/a.rs", "\nuse crate::high::X;", what);
    assert_breach("src/low/a.rs", "fn f() { crate::high::x() }", "above it");
    assert_breach("src/low/a.rs", "use crate::{low::one, high::{b, c}};", "low may not use high");
    assert_breach("src/low/a.rs", "use super::super::high;", "low may not use high");
    assert_breach("src/low/a.rs", "use crate::other::X;", "not an area of the table");
    assert_lawful("src/high/a.rs", "use crate::{low::{a, b}, host}; use crate::high::c;");
    assert_lawful("src/low/a.rs", "// see crate::high\nconst A: &str = \"crate::high\";");
}

#[test]
fn an_upward_path_within_an_area_is_a_breach() {
    assert_breach("src/low/one.rs", "use super::two::X;", "one may not use two");
    assert_breach("src/low/one.rs", "use crate::low::{two::X, one};", "one may not use two");
    assert_lawful("src/low/two.rs", "use super::one::X; use crate::low::Y;");
}

#[test]
fn a_reexport_does_not_hide_an_upward_path() {
    let file = |name: &str, text: &str| (format!("src/low/{name}.rs"), text.to_owned());
    let broken = |one: &str, two: &str| {
        let area = file("mod", "mod one;\nmod two;\npub use one::X;\npub use two::Y;");
        check(AREAS, &[area, file("one", one), file("two", two)])
    };
    let (x, y) = ("pub struct X;", "pub struct Y;");
    let upward = broken(&format!("use super::Y;\n{x}"), y);
    assert_eq!(upward, ["src/low/one.rs:1: one may not use two, which is above it"]);
    let in_a_test = format!("{x}\n#[cfg(test)]\nmod tests {{ use super::super::Y; }}");
    assert_eq!(broken(&in_a_test, y), Vec::<String>::new());
    assert_eq!(broken(x, &format!("use super::X;\n{y}")), Vec::<String>::new());
}

#[test]
fn modules_are_those_of_the_table_in_order() {
    let what = "not those of the table";
    assert_breach("src/lib.rs", "pub mod low; pub mod host;", what);
    assert_breach("src/lib.rs", "pub mod host; pub mod low; pub mod high;", what);
    assert_lawful("src/lib.rs", "pub mod low;\n// pub mod x;\npub(crate) mod host;\nmod high;");
    assert_breach("src/low/mod.rs", "mod two; mod one;", what);
    assert_lawful("src/low/mod.rs", "mod one; pub mod two; #[cfg(test)]\nmod tests;");
}

#[test]
fn files_that_use_one_another_are_a_circle() {
    let module = |name: &str| module_of(&format!("src/{name}.rs")).unwrap();
    let found = |uses: &[(&str, &str)]| {
        let mut graph = BTreeMap::<_, BTreeSet<_>>::new();
        for (from, to) in uses {
            graph.entry(module(from)).or_default().insert(module(to));
        }
        circles(&graph).len()
    };
    assert_eq!(found(&[("a/b", "a/c"), ("a/c", "a/d")]), 0);
    assert_eq!(found(&[("a/b", "a/c"), ("a/c", "a/d"), ("a/d", "a/b")]), 1);
    assert_eq!(found(&[("a/mod", "a/b"), ("a/b", "a/mod")]), 0, "a module and its child");
    assert_eq!(found(&[("a/b", "a/c"), ("a/c", "a/b"), ("x", "y"), ("y", "x")]), 2);
}

#[test]
fn imports_are_found_in_groups_and_relative_paths() {
    let all =
        ["a", "a/b", "a/b/c", "a/d", "e"].map(|name| module_of(&format!("src/{name}.rs")).unwrap());
    let all = BTreeSet::from(all);
    let own = module_of("src/a/b/mod.rs").unwrap();
    let used = |code: &str| {
        let found = imports(&own, code, |path| deepest(path, &all)).into_iter();
        found.map(|import| import.module.join("::")).collect::<Vec<_>>()
    };
    assert_eq!(used("use super::d::X; use self::c; use crate::e;"), ["a::d", "a::b::c", "e"]);
    assert_eq!(used("use crate::{a::{self, d::{Y, Z}}, e::W};"), ["a", "a::d", "e"]);
    assert_eq!(used("use super::{super::e, d};"), ["a::d", "e"]);
    assert_eq!(used("fn f() { super::super::e::g(crate::a::d::h()) }"), ["e", "a::d"]);
}

#[test]
fn a_pure_file_does_nothing() {
    let effects = [
        "f().await",
        "warn!(x)",
        "clock::instant()",
        "std::fs::read(p)",
        "self.spawn(f)",
        "std::env::args()",
    ];
    for effect in effects {
        let text = |header| format!("//! {header}\nfn f() {{ {effect}; }}");
        assert!(!breaches("src/low/a.rs", &text("Rules. Pure.")).is_empty(), "{effect}");
        assert!(!breaches("src/low/a.rs", &text("Rules: pure.")).is_empty(), "{effect}");
        assert_lawful("src/low/a.rs", &text("Carries out. Purely practical."));
    }
    let tests = "//! Pure.\nfn f() {}\n#[cfg(test)]\nmod tests { fn g() { std::fs::read(p); } }";
    assert_lawful("src/low/a.rs", tests);
}

#[test]
fn what_follows_a_test_item_is_production() {
    let items = [
        "mod tests { fn g() { {} } }",
        "#[path = \"\"] mod tests;",
        "pub(super) fn watched(&self) -> [u8; 2] { clock::instant() }",
        "use a::{b, c};",
        "static TURN: A = A { b: 1 };",
        "impl<'a> A<'a> { fn f() -> B<{ 1 }> { .. } }",
    ];
    for item in items {
        let text = |after| format!("//! Pure.\n#[cfg(test)]\n{item}\n{after}\n");
        assert_lawful("src/low/a.rs", &text("fn f() {}"));
        let what = "src/low/a.rs:4: an effect in a pure file: clock::instant";
        assert_breach("src/low/a.rs", &text("fn f() { clock::instant() }"), what);
    }
}

#[test]
fn tests_may_have_effects_and_queues() {
    let (effect, queue) = ("//! Pure.\nclock::instant();", "mpsc::unbounded_channel();");
    for text in [effect, queue] {
        assert_lawful("src/low/tests/state.rs", text);
    }
    assert_breach("src/low/state.rs", effect, "an effect");
    assert_breach("src/low/state.rs", queue, "unbounded");
}

#[test]
fn a_task_that_base_does_not_start_is_a_breach() {
    let text = "fn f() { tokio::spawn(work); }";
    assert_breach("src/low/a.rs", text, "a task that base does not start");
    assert_lawful("src/low/tests.rs", text);
    assert_lawful("src/low/a.rs", "#[cfg(test)]\nmod tests { fn f() { tokio::spawn(work); } }");
}

#[test]
fn length_and_unsafe_code_are_breaches() {
    let long = "\n".repeat(MAX_LINES + 1);
    assert_breach("src/low/a.rs", &long, "longer than");
    assert_lawful("src/low/tests.rs", &long);
    assert_breach("src/low/a.rs", "fn f() { unsafe { g() } }", "unsafe outside");
    assert_lawful("src/host/a.rs", "#![allow(unsafe_code)] fn f() { unsafe { g() } }");
}

#[test]
fn comments_strings_and_characters_are_not_code() {
    let code = without_comments_and_strings(
        "a(\"x\\\"y\", r#\"un\"safe\"#, '\"', '\\'', 'é') /* b\n */ + 'a T // c\n+ d",
    );
    assert_eq!(code.split_whitespace().collect::<String>(), "a(,,,,)+'aT+d");
    assert_eq!(code.matches('\n').count(), 2);
}
