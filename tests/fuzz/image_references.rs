//! Image references, as users and runtimes write them.

use crate::engine::{Target, fuzz, path};
use kubelet::images::ImageName;

const SEEDS: &[&str] = &[
    "nginx",
    "nginx:1.27",
    "library/nginx",
    "localhost/busybox:dev",
    "registry.example.com:5000/team/app_one/app-two:v1.2-rc.3_x",
    "index.docker.io/library/nginx",
    "[fd00::1]:5000/app@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "app:v1@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "",
];

const WORDS: &[&str] = &[
    "docker.io/",
    "localhost/",
    "library/",
    ":latest",
    "@sha256:",
    "@sha512:",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "/",
    ":",
    "@",
    ".",
    "__",
    "--",
    "[::1]",
    ":65536",
];

fn run(input: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(input);
    let name = match ImageName::parse(&text) {
        Ok(name) => name,
        Err(error) => {
            let message = error.to_string();
            assert!(message.starts_with("couldn't parse image name "));
            let (_, problem) = message.rsplit_once(": ").unwrap();
            return path(&(problem.len(), text.len().min(20)));
        }
    };
    assert!(name.repo.len() <= 255 && name.repo.contains('/'));
    assert!(!name.tag.is_empty() || !name.digest.is_empty());
    // In full it is the same image.
    let mut full = name.repo.clone();
    if !name.tag.is_empty() {
        full = format!("{full}:{}", name.tag);
    }
    if !name.digest.is_empty() {
        full = format!("{full}@{}", name.digest);
    }
    assert_eq!(ImageName::parse(&full).as_ref(), Ok(&name), "{full}");
    let completed = name.complete(&text);
    assert_eq!(ImageName::parse(&completed).as_ref(), Ok(&name), "{completed}");
    let components = name.repo.split('/').count();
    path(&(components, name.tag.len(), name.digest.len(), name.repo.len()))
}

#[test]
fn image_references() {
    fuzz(&Target {
        name: "image references",
        seeds: SEEDS.iter().map(|seed| seed.as_bytes().to_vec()).collect(),
        words: WORDS,
        run: &run,
    });
}
