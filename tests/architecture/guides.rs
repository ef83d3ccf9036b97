//! The tour and the how-tos name files and names of the code; these exist. Links between documents lead to files.

use super::read;
use crate::text::is_word;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders whose files a guide names by their path.
const FOLDERS: &[&str] =
    &["benches/", "deploy/", "docs/", "examples/", "hack/", "proto/", "src/", "tests/"];

/// The files of the repository that a guide may name.
struct Repository {
    root: PathBuf,
    /// The words of each Rust file, by its path.
    words: BTreeMap<String, BTreeSet<String>>,
}

impl Repository {
    fn new(root: &Path, files: &[(String, String)]) -> Self {
        let words = files.iter().map(|(path, text)| (path.clone(), words(text)));
        Self { root: root.to_owned(), words: words.collect() }
    }

    /// Whether a Rust file has the last part of `name`; without a file, whether any has.
    fn has(&self, file: Option<&str>, name: &str) -> bool {
        let name = name.rsplit("::").next().unwrap_or(name);
        match file {
            Some(file) => self.words.get(file).is_some_and(|words| words.contains(name)),
            None => self.words.values().any(|words| words.contains(name)),
        }
    }
}

fn words(text: &str) -> BTreeSet<String> {
    let words = text.split(|c| !is_word(c)).filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

/// Whether a text is a name of the code, such as `PodSync`, `sync_pod` or `Stats::read`.
fn is_name(text: &str) -> bool {
    let starts = |part: &str| part.starts_with(|c: char| c.is_alphabetic() || c == '_');
    text.split("::").all(|part| starts(part) && part.chars().all(is_word))
}

/// What is wrong with the paths and names in backticks. Names in parentheses after a path belong to that file; others
/// may be anywhere in the code.
fn faults(repository: &Repository, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut file: Option<&str> = None;
    let text = without_code_blocks(text);
    let parts: Vec<&str> = text.split('`').collect();
    for pair in parts.chunks(2) {
        let [before, quoted] = pair else { continue };
        let continues = *before == " (" || *before == ", ";
        if !continues {
            file = None;
        }
        if FOLDERS.iter().any(|folder| quoted.starts_with(folder)) {
            if !repository.root.join(quoted).exists() {
                faults.push(format!("{quoted} does not exist"));
            }
            file = Some(*quoted);
        } else if is_name(quoted) && !repository.has(file, quoted) {
            faults.push(match file {
                Some(file) => format!("{file} has no {quoted}"),
                None => format!("nothing is called {quoted}"),
            });
        }
    }
    faults
}

/// The text in one line, without the parts between lines of three backticks.
fn without_code_blocks(text: &str) -> String {
    let prose = text.split("```").step_by(2).collect::<Vec<_>>().join(" ");
    prose.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The targets of links to files, without anchors.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split([')', ' ']).next());
    let files = targets.filter(|target| !target.contains("://"));
    let files = files.filter_map(|target| target.split('#').next());
    files.filter(|file| !file.is_empty()).collect()
}

/// The documents in a folder and below it, sorted.
fn documents(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut entries: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    let mut found = Vec::new();
    for path in entries {
        if path.is_dir() {
            found.extend(documents(&path));
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path);
        }
    }
    found
}

#[test]
fn paths_and_names_in_the_guides_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "tests"] {
        read(&root.join(folder), folder, &mut files);
    }
    let repository = Repository::new(root, &files);
    let mut guides = documents(&root.join("docs/howto"));
    guides.push(root.join("docs/tour.md"));
    assert!(guides.len() > 5, "the guides were not found");
    for guide in guides {
        let text = fs::read_to_string(&guide).unwrap();
        assert_eq!(faults(&repository, &text), [""; 0], "{}", guide.display());
    }
}

#[test]
fn links_lead_to_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = documents(&root.join("docs"));
    let at_the_top = fs::read_dir(root).unwrap();
    let at_the_top = at_the_top.map(|entry| entry.unwrap().path());
    all.extend(at_the_top.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    let mut count = 0;
    for document in all {
        let text = fs::read_to_string(&document).unwrap();
        for link in links(&text) {
            let target = document.with_file_name(link);
            assert!(target.exists(), "{}: {link}", document.display());
            count += 1;
        }
    }
    assert!(count > 30, "the links were not found");
}

// -- the check can fail ----------------------------------------------------------------------------

#[test]
fn a_guide_with_a_wrong_path_or_name_is_found() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let repository = Repository::new(
        root,
        &[
            file("src/lib.rs", "pub struct Here; fn done() {}"),
            file("src/main.rs", "pub struct Elsewhere;"),
        ],
    );
    let good = "See `src/lib.rs` (`Here`,\n`Here::done`) and `Elsewhere`; `--flag`.\n```\nx `Nothing`\n```\n";
    assert_eq!(faults(&repository, good), [""; 0]);
    for (text, fault) in [
        ("`src/none.rs`", "src/none.rs does not exist"),
        ("`src/lib.rs` (`Elsewhere`)", "src/lib.rs has no Elsewhere"),
        ("`src/lib.rs` (`Here`, `Nothing`)", "src/lib.rs has no Nothing"),
        ("`src/lib.rs` has `Nothing`", "nothing is called Nothing"),
    ] {
        assert_eq!(faults(&repository, text), [fault], "{text}");
    }
    let text = "[a](b.md#c), [d](#e), [f](https://g/h), [i](../j.md)";
    assert_eq!(links(text), ["b.md", "../j.md"]);
}
