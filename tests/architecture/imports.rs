//! Which file uses which: the paths of a file, resolved through the tree of modules.

use crate::text::{is_word, words_after};
use std::collections::{BTreeMap, BTreeSet};

/// A module as its path from the crate's root: `["pods", "pleg", "inspector"]`.
pub(crate) type Module = Vec<String>;

/// The module that a source file is, `None` for the roots of the crate.
pub(crate) fn module_of(file: &str) -> Option<Module> {
    let path = file.strip_prefix("src/")?.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    (!["lib", "main"].contains(&path)).then(|| path.split('/').map(str::to_owned).collect())
}

/// One use of another module.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Import {
    /// Offset in the code of the using file.
    pub(crate) at: usize,
    /// The deepest module of the path.
    pub(crate) module: Module,
}

/// A path of an expression or of a `use`.
#[derive(Debug)]
pub(crate) struct UsedPath {
    /// Offset in the code.
    pub(crate) at: usize,
    /// From the crate's root.
    pub(crate) path: Vec<String>,
    /// What a `use` names it, `None` where it takes all names of a module.
    pub(crate) name: Option<String>,
}

/// The imports of a file: paths that begin with `crate`, `self` or `super`, each with the module that `resolve`
/// finds for it.
pub(crate) fn imports(
    own: &Module,
    code: &str,
    resolve: impl Fn(&[String]) -> Module,
) -> Vec<Import> {
    let mut found = Vec::new();
    for UsedPath { at, path, .. } in absolute_paths(own, code) {
        let module = resolve(&path);
        if !module.is_empty() && module != *own {
            found.push(Import { at, module });
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The deepest module of a path.
pub(crate) fn deepest(path: &[String], all: &BTreeSet<Module>) -> Module {
    let mut depths = (1..=path.len()).rev();
    let depth = depths.find(|depth| all.contains(&path[..*depth]));
    path[..depth.unwrap_or(0)].to_vec()
}

fn absolute_paths(own: &Module, code: &str) -> Vec<UsedPath> {
    let roots = ["crate", "self", "super"].into_iter().flat_map(|root| {
        let places = words_after(code, root).map(move |(at, _)| (at, root));
        places.filter(|(at, root)| code[at + root.len()..].starts_with("::"))
    });
    let mut roots = roots.collect::<Vec<_>>();
    roots.sort_unstable();
    let (mut found, mut group_end) = (Vec::new(), 0);
    for (at, root) in roots {
        // Paths in a group belong to the root of the group.
        if at < group_end || code[..at].ends_with("::") {
            continue;
        }
        let base = match root {
            "crate" => &[],
            "self" => &own[..],
            _ => &own[..own.len() - 1],
        };
        let rest = &code[at + root.len() + 2..];
        if let Some(group) = rest.strip_prefix('{') {
            let length = parts(group).iter().map(|part| part.len() + 1).sum::<usize>();
            group_end = code.len() - group.len() + length;
        }
        expand(base, rest, at, &mut found);
    }
    found
}

/// Adds each path that `text` begins with: `a::b`, or `{a::b, c::{d, e}}`.
pub(crate) fn expand(base: &[String], text: &str, at: usize, found: &mut Vec<UsedPath>) {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        for part in parts(group) {
            expand(base, part, at, found);
        }
        return;
    }
    let name = &text[..text.find(|c| !is_word(c)).unwrap_or(text.len())];
    if name.is_empty() {
        return;
    }
    let mut path = base.to_vec();
    match name {
        "self" => {}
        "super" => drop(path.pop()),
        name => path.push(name.to_owned()),
    }
    match text[name.len()..].strip_prefix("::") {
        Some(rest) if rest.starts_with('{') || rest.starts_with(is_word) => {
            expand(&path, rest, at, found);
        }
        Some(rest) => {
            let name = (!rest.starts_with('*')).then(|| name.to_owned());
            found.push(UsedPath { at, path, name });
        }
        None => {
            let alias = text[name.len()..].trim_start().strip_prefix("as ");
            let alias = alias.map(|rest| rest.trim_matches(|c| !is_word(c)).to_owned());
            let name = alias.or_else(|| path.last().cloned());
            found.push(UsedPath { at, path, name });
        }
    }
}

/// The parts of a group at its own depth, up to the brace that ends it.
fn parts(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (i, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.push(&group[start..i]);
                return found;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&group[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    found
}

/// Groups of files that use one another in a circle. A module and what lies below it may use each other.
pub(crate) fn circles(uses: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<BTreeSet<Module>> {
    let related = |a: &Module, b: &Module| a.starts_with(b) || b.starts_with(a);
    let mut reach = BTreeMap::<&Module, BTreeSet<&Module>>::new();
    for start in uses.keys() {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(at) = open.pop() {
            for next in uses.get(at).into_iter().flatten() {
                if !related(at, next) && seen.insert(next) {
                    open.push(next);
                }
            }
        }
        reach.insert(start, seen);
    }
    let mut found = Vec::<BTreeSet<Module>>::new();
    for (module, reached) in &reach {
        if !reached.contains(module) || found.iter().any(|circle| circle.contains(*module)) {
            continue;
        }
        let back = |other: &&&Module| reach.get(**other).is_some_and(|r| r.contains(module));
        found.push(reached.iter().filter(back).map(|m| (*m).clone()).collect());
    }
    found
}
