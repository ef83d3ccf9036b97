//! A log that is not read, and one that is read late.

use std::io::{BufRead as _, BufReader};
use std::sync::mpsc;

use tonic::Code;

use crate::node::{WAIT_LIMIT, full, put, wait_runs};
use crate::pods::simple;
use crate::support::fake_runtime::{FakeRuntime, Fault, Options, Rpc};
use crate::support::http;
use crate::support::kubelet_process::{KubeletProcess, Settings};

const DROPPED: &str = "kubelet_log_lines_dropped_total";

/// A kubelet that logs all it can into a small pipe.
async fn talkative(fake: &FakeRuntime, dir: &std::path::Path) -> KubeletProcess {
    let mut settings = Settings::new(dir, &fake.endpoint());
    settings.piped_log = true;
    settings.args.push("--v=10".to_owned());
    KubeletProcess::start(settings).await
}

async fn dropped(kubelet: &KubeletProcess) -> f64 {
    let (_, text) = http::get(kubelet.read_only_port, "/metrics").await.unwrap();
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(DROPPED));
    line.map_or(0.0, |number| number.trim().parse().unwrap())
}

#[tokio::test]
async fn a_log_that_is_not_read_stops_nothing_and_what_it_lost_is_reported_once_it_is() {
    let fake = FakeRuntime::start(Options::default()).await;
    let dir = tempfile::tempdir().unwrap();
    let mut kubelet = talkative(&fake, dir.path()).await;
    let mut number = 0;
    while dropped(&kubelet).await < 1.0 {
        assert!(number < 500, "nothing is dropped");
        let names: Vec<_> = (number..number + 20).map(|n| format!("web{n}")).collect();
        names.iter().for_each(|name| put(&kubelet.manifests, &simple(name)));
        for name in &names {
            wait_runs(&fake, name).await;
        }
        number += 20;
    }
    let pipe = kubelet.take_log_pipe();
    let (found, is_found) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(pipe).lines().map_while(Result::ok);
        for line in lines.filter(|line| line.contains("Log lines were dropped")) {
            let _ = found.send(line);
        }
    });
    let reported = tokio::task::spawn_blocking(move || is_found.recv_timeout(WAIT_LIMIT)).await;
    let reported = reported.unwrap().expect("what was dropped is reported");
    assert!(reported.starts_with('W') && reported.contains("count="), "{reported}");
    assert!(kubelet.terminate(WAIT_LIMIT).await.success());
    reader.join().unwrap();
}

#[tokio::test]
async fn what_was_logged_last_is_written_before_the_process_ends() {
    let fake = FakeRuntime::start(Options::default()).await;
    let dir = tempfile::tempdir().unwrap();
    let mut kubelet = talkative(&fake, dir.path()).await;
    put(&kubelet.manifests, &simple("web"));
    wait_runs(&fake, "web").await;
    // Far less than a pipe and the queue hold; nothing is read until it stops.
    let pipe = kubelet.take_log_pipe();
    let reader = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        let lines = BufReader::new(pipe).lines().map_while(Result::ok);
        lines.collect::<Vec<_>>()
    });
    assert!(kubelet.terminate(WAIT_LIMIT).await.success());
    let lines = reader.join().unwrap();
    let said = |text: &str| lines.iter().any(|line| line.contains(text));
    assert!(said("Started kubelet") && said("Stopping; pods are left"), "{lines:#?}");
}

#[tokio::test]
async fn a_line_about_the_sync_of_a_pod_names_the_pod() {
    let fake = FakeRuntime::start(Options::default()).await;
    fake.inject(Fault::fail(Rpc::RunPodSandbox, Code::Internal, "not now"));
    let dir = tempfile::tempdir().unwrap();
    let mut kubelet = talkative(&fake, dir.path()).await;
    let pipe = kubelet.take_log_pipe();
    put(&kubelet.manifests, &simple("web"));
    let failed = tokio::task::spawn_blocking(|| {
        let mut lines = BufReader::new(pipe).lines().map_while(Result::ok);
        lines.find(|line| line.contains("\"Error syncing pod"))
    });
    let line = failed.await.unwrap().expect("the sync fails");
    let names = format!(" pod=\"default/{}\" podUID=\"", full("web"));
    assert!(line.contains(&names), "{line}");
}
