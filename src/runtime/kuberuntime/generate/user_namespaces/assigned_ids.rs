//! The host IDs available to pods' user namespaces: the subordinate IDs of the user `kubelet`, else all above the
//! node's own.

use super::ranges::IdSpace;
use crate::base::{if_exists, run_file_io};
use anyhow::{Context as _, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;

/// Settings of the user namespaces of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserNamespacesConfig {
    /// Ids of one pod; a multiple of 65536.
    pub ids_per_pod: u32,
    /// Maximum number of pods with a user namespace.
    pub max_pods: u32,
}

/// The user with the subordinate IDs.
const USER: &str = "kubelet";
/// Prints them, also from NSS; part of shadow-utils.
const TOOL: &str = "getsubids";
/// The tool may query a remote NSS service.
const TIMEOUT: Duration = Duration::from_secs(30);

/// First id, and how many.
type Ids = (u32, u32);

/// The IDs from which the ranges of pods are allocated. If the user exists and `getsubids` is installed, the
/// user must have subordinate IDs: the NSS service may be unavailable, and a guess might assign IDs of other
/// users to pods.
pub(super) async fn space(config: &UserNamespacesConfig) -> anyhow::Result<IdSpace> {
    let assigned = assigned(Path::new("/etc"), tool_on_path()).await;
    let ids = assigned.context("kubelet mappings")?;
    let whole = || IdSpace::whole(config.ids_per_pod);
    let ids = ids.unwrap_or_else(whole);
    IdSpace::new(ids, config.ids_per_pod, config.max_pods)
}

/// The ids of the user; `None` without the user, or without subordinate IDs if `getsubids` is not installed.
async fn assigned(etc: &Path, tool: Option<PathBuf>) -> anyhow::Result<Option<Ids>> {
    let passwd = read(&etc.join("passwd")).await?;
    let Some(uid) = uid_of_user(&passwd) else {
        return Ok(None);
    };
    if let Some(tool) = tool {
        let users = run(&tool, &[USER]).await;
        let users =
            users.with_context(|| format!("error retrieving additional uids for user {USER:?}"))?;
        let groups = run(&tool, &["-g", USER]).await;
        let groups = groups
            .with_context(|| format!("error retrieving additional gids for user {USER:?}"))?;
        ensure!(users == groups, "mismatched subuids and subgids for user {USER:?}");
        return parse_tool_output(&users).map(Some);
    }
    let users = ids_in_file(&read(&etc.join("subuid")).await?, &uid).context("/etc/subuid")?;
    let groups = ids_in_file(&read(&etc.join("subgid")).await?, &uid).context("/etc/subgid")?;
    ensure!(users == groups, "mismatched subuids and subgids for user {USER:?}");
    Ok(users)
}

fn tool_on_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let places = std::env::split_paths(&path);
    places.map(|dir| dir.join(TOOL)).find(|file| file.is_file())
}

async fn read(path: &Path) -> anyhow::Result<String> {
    let file = path.to_owned();
    let read = if_exists(run_file_io(move || fs::read(file)).await?);
    let bytes = read.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned())
}

async fn run(tool: &Path, args: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(tool);
    command.args(args).kill_on_drop(true);
    let output = tokio::time::timeout(TIMEOUT, command.output())
        .await
        .with_context(|| format!("{TOOL} timed out after {} s", TIMEOUT.as_secs()))??;
    ensure!(output.status.success(), "{TOOL} failed: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The user's number in `/etc/passwd`.
fn uid_of_user(passwd: &str) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(USER)).then(|| fields.nth(1).unwrap_or_default().to_string())
    })
}

/// `0: kubelet 65536 2147483648`: one line, or it is not clear which ids are meant.
fn parse_tool_output(output: &str) -> anyhow::Result<Ids> {
    let line = output.trim_matches('\n');
    ensure!(!line.contains('\n'), "error parsing line {output:?}: it must contain only one line");
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, _, first, count] = fields.as_slice() else {
        bail!("invalid line {output:?}");
    };
    parse_ids(first, count).with_context(|| format!("error parsing line {output:?}"))
}

/// The user's line in `/etc/subuid` or `/etc/subgid`, by name or by number; `None` without one.
fn ids_in_file(text: &str, uid: &str) -> anyhow::Result<Option<Ids>> {
    let mut found = None;
    for line in text.lines() {
        let fields: Vec<&str> = line.trim().split(':').collect();
        let [owner, first, count] = fields.as_slice() else {
            continue;
        };
        if *owner != USER && (uid.is_empty() || *owner != uid) {
            continue;
        }
        let ids = parse_ids(first, count).with_context(|| format!("invalid line {line:?}"))?;
        ensure!(found.replace(ids).is_none(), "it must contain only one line for user {USER:?}");
    }
    Ok(found)
}

fn parse_ids(first: &str, count: &str) -> anyhow::Result<Ids> {
    Ok((first.parse()?, count.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nkubelet:x:998:998::/:/sbin/nologin\n";

    /// An `/etc` with these files, and a tool that prints this.
    fn machine(files: &[(&str, &str)], tool: Option<&str>) -> (tempfile::TempDir, Option<PathBuf>) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let tool = tool.map(|script| {
            let path = dir.path().join(TOOL);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        });
        (dir, tool)
    }

    async fn ids(files: &[(&str, &str)], tool: Option<&str>) -> Result<Option<Ids>, String> {
        let (dir, tool) = machine(files, tool);
        let found = assigned(dir.path(), tool).await;
        found.map_err(|error| crate::base::error_chain(error.as_ref()))
    }

    #[tokio::test]
    async fn without_the_user_nothing_is_set_aside() {
        let subuid = ("subuid", "kubelet:65536:65536\n");
        assert_eq!(ids(&[subuid], None).await, Ok(None));
        let other = ("passwd", "kubelet2:x:5:5::/:/bin/sh\n");
        assert_eq!(ids(&[other, subuid], Some("exit 1")).await, Ok(None));
    }

    #[tokio::test]
    async fn the_tool_knows_best_and_must_answer() {
        let user = ("passwd", PASSWD);
        let good = "echo '0: kubelet 65536 2147483648'";
        assert_eq!(ids(&[user], Some(good)).await, Ok(Some((65536, 2_147_483_648))));
        for (script, expected) in [
            ("exit 3", "error retrieving additional uids for user \"kubelet\""),
            (
                "[ \"$1\" = -g ] && exit 1; echo '0: kubelet 65536 65536'",
                "error retrieving additional gids for user \"kubelet\"",
            ),
            (
                "echo \"0: kubelet 65536 ${#1}\"",
                "mismatched subuids and subgids for user \"kubelet\"",
            ),
            ("echo '0: kubelet 1 2'; echo '1: kubelet 3 4'", "it must contain only one line"),
            ("echo nonsense", "invalid line \"nonsense\\n\""),
            ("true", "invalid line \"\""),
            ("echo '0: kubelet x 65536'", "error parsing line"),
            ("echo '0: kubelet 65536 4294967296'", "error parsing line"),
        ] {
            let error = ids(&[user], Some(script)).await.unwrap_err();
            assert!(error.contains(expected), "{script}: {error}");
        }
    }

    #[tokio::test]
    async fn without_the_tool_the_files_are_read() {
        let files = |subuid: &'static str, subgid: &'static str| {
            [("passwd", PASSWD), ("subuid", subuid), ("subgid", subgid)]
        };
        let one = "bob:100000:65536\nkubelet:65536:7208960\n";
        for (files, expected) in [
            (files(one, one), Ok(Some((65536, 7_208_960)))),
            (files("998:1:2\n", "kubelet:1:2\n"), Ok(Some((1, 2)))),
            (files("", ""), Ok(None)),
            (files("# kubelet\nbob:1:2:3\n", ""), Ok(None)),
            (files(one, ""), Err("mismatched subuids and subgids")),
            (files("kubelet:1:2\nkubelet:3:4\n", one), Err("only one line")),
            (files("kubelet:a:2\n", one), Err("invalid line")),
        ] {
            match (ids(&files, None).await, expected) {
                (Ok(ids), Ok(expected)) => assert_eq!(ids, expected),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            }
        }
        assert_eq!(ids(&[("passwd", PASSWD)], None).await, Ok(None));
    }
}
