//! Where a name comes from that a module only passes on: `use` declarations followed to the file that defines it.

use crate::imports::{Module, deepest, expand};
use crate::text::{find_words, words_after};
use std::collections::{BTreeMap, BTreeSet};

/// What each module takes from others by `use`. Every such name is a re-export: at least for the modules below.
#[derive(Default)]
pub(crate) struct Reexports {
    all: BTreeSet<Module>,
    names: BTreeMap<Module, BTreeMap<String, Module>>,
    globs: BTreeMap<Module, Vec<Module>>,
    defined: BTreeSet<(Module, String)>,
}

impl Reexports {
    pub(crate) fn new(all: BTreeSet<Module>) -> Self {
        Self { all, ..Self::default() }
    }

    /// Adds the declarations of a module, in code without comments, strings and tests.
    pub(crate) fn add(&mut self, own: &Module, code: &str) {
        for at in find_words(code, "use") {
            let Some((tree, _)) = code[at + "use".len()..].split_once(';') else {
                continue;
            };
            let (mut paths, tree) = (Vec::new(), tree.trim());
            let first = tree.split("::").next().unwrap_or_default();
            let child = [own.as_slice(), &[first.to_owned()]].concat();
            let (base, tree) = match first {
                "crate" => (&[][..], &tree["crate::".len()..]),
                _ if first == "self" || first == "super" || self.all.contains(&child) => {
                    (&own[..], tree)
                }
                _ => continue,
            };
            expand(base, tree, at, &mut paths);
            for path in paths {
                if let Some(name) = path.name {
                    let names = self.names.entry(own.clone()).or_default();
                    names.insert(name, path.path);
                } else {
                    self.globs.entry(own.clone()).or_default().push(path.path);
                }
            }
        }
        for kind in ["fn ", "struct ", "enum ", "trait ", "type ", "const ", "static "] {
            for (_, name) in words_after(code, kind) {
                self.defined.insert((own.clone(), name.to_owned()));
            }
        }
    }

    /// The module that defines what a path names.
    pub(crate) fn resolve(&self, path: &[String]) -> Module {
        self.follow(path, 8)
    }

    fn follow(&self, path: &[String], hops: usize) -> Module {
        let module = deepest(path, &self.all);
        let rest = &path[module.len()..];
        let Some((name, rest)) = rest.split_first().filter(|_| hops > 0) else {
            return module;
        };
        if let Some(target) = self.names.get(&module).and_then(|names| names.get(name)) {
            return self.follow(&[target.as_slice(), rest].concat(), hops - 1);
        }
        for target in self.globs.get(&module).into_iter().flatten() {
            let path = [target.as_slice(), std::slice::from_ref(name)].concat();
            let found = self.follow(&path, hops - 1);
            if self.defined.contains(&(found.clone(), name.clone())) {
                return found;
            }
        }
        module
    }
}
