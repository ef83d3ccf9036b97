//! A log cannot be made to be another file.

use super::fixture::{WAIT_LIMIT, take};
use crate::runtime::logs::{LogOptions, Logs, tail};
use futures::StreamExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io};

const LINE: &str = "2026-01-02T03:04:05Z stdout F mine\n";
const SECRET: &str = "2026-01-02T03:04:05Z stdout F secret\n";

/// `DIR/logs/pod/main/0.log`, and `DIR/host/pod/main/0.log`, which belongs to no container.
fn bed() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let [log, host] = ["logs", "host"].map(|root| dir.path().join(root).join("pod/main/0.log"));
    for (path, line) in [(&log, LINE), (&host, SECRET)] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, line).unwrap();
    }
    (dir, log, host)
}

fn options(follow: bool) -> LogOptions {
    LogOptions { follow, ..LogOptions::default() }
}

async fn read(log: &Path, follow: bool) -> io::Result<String> {
    let logs = Logs::new();
    let opened = logs.open(log.to_owned(), options(follow), async {});
    let opened = tokio::time::timeout(WAIT_LIMIT, opened).await.unwrap();
    let mut stream = opened?;
    let mut got = Vec::new();
    while let Some(piece) = tokio::time::timeout(WAIT_LIMIT, stream.next()).await.unwrap() {
        got.extend_from_slice(&piece?);
    }
    Ok(String::from_utf8(got).unwrap())
}

#[tokio::test]
async fn a_link_in_place_of_a_log_or_its_directories_is_not_read_through() {
    // The log, its container's directory, its pod's directory.
    for level in 0..3 {
        let (_dir, log, host) = bed();
        let ours = log.ancestors().nth(level).unwrap();
        let theirs = host.ancestors().nth(level).unwrap();
        match level {
            0 => fs::remove_file(ours).unwrap(),
            _ => fs::remove_dir_all(ours).unwrap(),
        }
        symlink(theirs, ours).unwrap();
        for follow in [false, true] {
            let refused = read(&log, follow).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{level}: {refused}");
        }
        assert!(tail::of_log(&log, tail::TERMINATION).is_err());
    }
}

#[tokio::test]
async fn what_is_no_file_in_place_of_a_log_is_not_even_opened() {
    let (_dir, log, _) = bed();
    fs::remove_file(&log).unwrap();
    // To open it is an error of its own, as to open a device without a driver is.
    let _socket = std::os::unix::net::UnixListener::bind(&log).unwrap();
    let refused = read(&log, false).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{refused}");
}

#[tokio::test]
async fn a_link_in_place_of_a_rotated_file_is_left_out() {
    let (_dir, log, host) = bed();
    symlink(&host, log.with_file_name("0.log.20260101-000000")).unwrap();
    assert_eq!(read(&log, false).await.unwrap(), "mine\n");
}

#[tokio::test]
async fn a_link_that_takes_the_place_of_a_followed_log_is_not_read() {
    let (_dir, log, host) = bed();
    let mut stream =
        Logs::new().open(log.clone(), options(true), std::future::pending()).await.unwrap();
    assert_eq!(take(&mut stream, 5).await, "mine\n");
    fs::rename(&log, log.with_file_name("0.log.20260101-000000")).unwrap();
    symlink(&host, &log).unwrap();
    let next = tokio::time::timeout(WAIT_LIMIT, stream.next()).await.unwrap();
    let refused = next.expect("it is told").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
}

#[tokio::test]
async fn the_root_of_all_logs_may_be_reached_by_a_link() {
    let (dir, _, _) = bed();
    symlink(dir.path().join("logs"), dir.path().join("link")).unwrap();
    let log = dir.path().join("link/pod/main/0.log");
    assert_eq!(read(&log, false).await.unwrap(), "mine\n");
    assert_eq!(read(&log, true).await.unwrap(), "mine\n");
}
