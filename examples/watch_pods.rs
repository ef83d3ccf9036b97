//! Watches what a kubelet serves under `/pods` and prints when each pod is ready.
//!
//! `watch_pods --port PORT --count N [--timeout SECONDS]` ends with 0 once N pods are as expected, and
//! with 1 when that does not happen in time. A pod is expected to be Ready, or what its annotation
//! `demo/expect` says: a phase, or the reason for which a container waits.
// A program of one thread may sleep, and waits in real time.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;

struct Settings {
    port: u16,
    count: usize,
    timeout: Duration,
}

fn settings() -> anyhow::Result<Settings> {
    let mut settings = Settings { port: 10255, count: 1, timeout: Duration::from_secs(60) };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--port" => settings.port = value.parse().context("--port")?,
            "--count" => settings.count = value.parse().context("--count")?,
            "--timeout" => {
                settings.timeout = Duration::from_secs(value.parse().context("--timeout")?)
            }
            _ => bail!("unknown argument {name}"),
        }
    }
    Ok(settings)
}

fn pods(port: u16) -> anyhow::Result<Vec<Pod>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /pods HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    if !head.lines().next().unwrap_or_default().contains(" 200 ") {
        bail!("{}", head.lines().next().unwrap_or_default());
    }
    Ok(serde_json::from_str::<List<Pod>>(body)?.items)
}

/// What one can say about a pod in one word.
fn states(pod: &Pod) -> Vec<String> {
    let Some(status) = &pod.status else {
        return Vec::new();
    };
    let mut words: Vec<String> = status.phase.iter().cloned().collect();
    let conditions = status.conditions.iter().flatten();
    words.extend(conditions.filter(|c| c.status == "True").map(|c| c.type_.clone()));
    let containers =
        status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let waiting = containers.filter_map(|c| c.state.as_ref()?.waiting.as_ref()?.reason.clone());
    words.extend(waiting);
    words
}

fn expected(pod: &Pod) -> String {
    let annotations = pod.metadata.annotations.as_ref();
    annotations
        .and_then(|all| all.get("demo/expect").cloned())
        .unwrap_or_else(|| "Ready".to_owned())
}

fn watch(settings: &Settings) -> anyhow::Result<bool> {
    let start = Instant::now();
    let mut done = BTreeMap::new();
    println!("{:<28} {:<12} {:<18} {:>8}", "POD", "NAMESPACE", "IS", "AFTER");
    let mut last = String::from("nothing was served");
    while start.elapsed() < settings.timeout {
        match pods(settings.port) {
            Ok(pods) => {
                last = pods.iter().map(describe).collect::<Vec<_>>().join("\n");
                for pod in &pods {
                    let uid = pod.metadata.uid.clone().unwrap_or_default();
                    let wanted = expected(pod);
                    if !done.contains_key(&uid) && states(pod).contains(&wanted) {
                        let name = pod.metadata.name.as_deref().unwrap_or_default();
                        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                        let after = start.elapsed().as_secs_f64();
                        println!("{name:<28} {namespace:<12} {wanted:<18} {after:>6.2} s");
                        done.insert(uid, after);
                    }
                }
            }
            Err(error) => last = format!("{error:#}"),
        }
        if done.len() >= settings.count {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    eprintln!("only {} of {} pods are as expected; at last:\n{last}", done.len(), settings.count);
    Ok(false)
}

fn describe(pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    format!("{name}: wanted {}, is {:?}", expected(pod), states(pod))
}

fn main() -> ExitCode {
    match settings().and_then(|settings| watch(&settings)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("watch_pods: {error:#}");
            ExitCode::FAILURE
        }
    }
}
