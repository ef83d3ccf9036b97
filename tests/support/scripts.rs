//! The scripts in `hack`, which make what the tests run on.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo builds this; the scripts keep images and tools there.
pub fn target() -> PathBuf {
    // The test binary is in <target>/<profile>/deps.
    let own = std::env::current_exe().unwrap();
    own.ancestors().nth(3).unwrap().to_owned()
}

/// A script with the directory that this was built in.
pub fn script(name: &str) -> Command {
    let mut command = Command::new(root().join("hack").join(name));
    command.env("CARGO_TARGET_DIR", target()).stdin(Stdio::null());
    command
}

pub fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// What a command prints; `Err` has what it prints about its failure.
pub fn printed(command: &mut Command) -> Result<String, String> {
    let output = run(command);
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// Checks that scenarios can run at all and builds the images once.
pub fn prepare() -> Result<(), String> {
    let id = run(Command::new("id").arg("-u"));
    if String::from_utf8_lossy(&id.stdout).trim() != "0" {
        return Err("they need root".to_owned());
    }
    check("install-deps.sh", &[])?;
    if !target().join("images/busybox.tar").exists() || !target().join("images/pause.tar").exists()
    {
        build("build-images.sh")?;
    }
    Ok(())
}

/// Checks with a script whether its output exists.
pub fn check(name: &str, args: &[&str]) -> Result<(), String> {
    installed(name, args).map_err(|missing| missing.why)
}

/// Why something is not there.
#[derive(Debug)]
pub struct Missing {
    pub why: String,
    /// It need not be there even where `CI=true`, because this machine cannot make it or because it is optional.
    pub excused: bool,
}

/// What a script's `--check` reports: an exit code of 2 excuses the machine.
pub fn installed(name: &str, args: &[&str]) -> Result<(), Missing> {
    let check = run(script(name).arg("--check").args(args));
    if check.status.success() {
        return Ok(());
    }
    Err(Missing {
        why: String::from_utf8_lossy(&check.stderr).trim().to_owned(),
        excused: check.status.code() == Some(2),
    })
}

/// Has a script make what it makes.
pub fn build(name: &str) -> Result<(), String> {
    printed(&mut script(name)).map(drop)
}
