//! A static pod directory as people and tools use it: files appear whole, by rename.

use std::path::{Path, PathBuf};

pub struct Manifests {
    dir: PathBuf,
    aside: PathBuf,
}

impl Manifests {
    /// `dir` is watched; files are written to `aside` on the same file system first.
    pub fn new(dir: &Path, aside: &Path) -> Self {
        std::fs::create_dir_all(dir).expect("the manifest directory");
        std::fs::create_dir_all(aside).expect("a directory beside it");
        Manifests { dir: dir.to_owned(), aside: aside.to_owned() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Puts or replaces `name` in one step.
    pub fn put(&self, name: &str, text: &str) {
        let aside = self.aside.join(name);
        std::fs::write(&aside, text).expect("write a manifest");
        std::fs::rename(&aside, self.dir.join(name)).expect("rename a manifest into place");
    }

    pub fn remove(&self, name: &str) {
        std::fs::remove_file(self.dir.join(name)).expect("remove a manifest");
    }
}
