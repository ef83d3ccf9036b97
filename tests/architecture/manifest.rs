//! What `Cargo.toml` promises is kept.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

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

/// The value of a key in a section of a manifest, as it is written.
fn value<'a>(manifest: &'a str, section: &str, key: &str) -> Option<&'a str> {
    let mut lines = manifest.lines().skip_while(|line| *line != section).skip(1);
    let mut lines = lines.by_ref().take_while(|line| !line.starts_with('['));
    lines.find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == key).then(|| value.trim().trim_matches('"'))
    })
}

fn version(text: &str) -> Vec<u32> {
    let parts = text.split('.').map(|part| part.parse().unwrap());
    let mut version = parts.collect::<Vec<_>>();
    version.resize(3, 0);
    version
}

/// The packages of the build for this machine, by cargo.
fn packages() -> Vec<Value> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .args(["--filter-platform", &platform])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

#[test]
fn the_stated_rust_version_is_enough_for_the_code_and_its_crates() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let stated = value(&manifest, "[package]", "rust-version").expect("rust-version");
    // The compiler's check of the code against it.
    let lint = value(&manifest, "[lints.clippy]", "incompatible_msrv");
    assert_eq!(lint, Some("deny"));
    let packages = packages();
    assert!(packages.len() > 100, "{}", packages.len());
    for package in packages {
        if let Some(wanted) = package["rust_version"].as_str() {
            let name = &package["name"];
            let is_enough = version(stated) >= version(wanted);
            assert!(is_enough, "{stated}: {name} needs {wanted}");
        }
    }
}
