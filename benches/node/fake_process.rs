//! The fake runtime as a process: one command per line on its input, one answer per line on its output.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::Instant;

use crate::support::fake_runtime::{Call, FakeRuntime, Features, Options, Rpc};

/// Enough for the record of the pods that are started one by one.
const KEEP: usize = 20_000;

const LONG: Duration = Duration::from_secs(600);

/// Seconds since 1970 of a moment on tokio's clock.
fn wall(at: Instant) -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    (now - Instant::now().duration_since(at)).as_secs_f64()
}

fn answered(call: &Call) -> Option<Instant> {
    call.took.filter(|_| call.succeeded()).map(|took| call.at + took)
}

/// The side of the fake.
pub async fn serve(socket: &Path, events: bool) {
    let features = Features { events, ..Features::default() };
    let options = Options {
        features,
        keep_calls: KEEP,
        // A kubelet rotates log files; without any it would call the runtime to reopen them.
        write_logs: true,
        ..Options::default()
    };
    let fake = FakeRuntime::start_at(socket, options);
    let (lines, mut input) = tokio::sync::mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    });
    while let Some(line) = input.recv().await {
        let words = line.split_whitespace().collect::<Vec<_>>();
        println!("{}", command(&fake, &words).await);
    }
}

async fn command(fake: &FakeRuntime, words: &[&str]) -> String {
    match words {
        ["counts"] => {
            let counts = fake.counts();
            counts.iter().map(|(rpc, n)| format!("{rpc}={n}")).collect::<Vec<_>>().join(" ")
        }
        // Waits for so many successful starts in all and says when the last was answered.
        ["starts", n] => {
            let n: u64 = n.parse().unwrap();
            let there = |fake: &FakeRuntime| fake.count(Rpc::StartContainer) >= n;
            if !fake.comes_true(LONG, there).await {
                return "late".to_owned();
            }
            let done = |fake: &FakeRuntime| {
                fake.calls_of(Rpc::StartContainer).last().and_then(answered).is_some()
            };
            fake.comes_true(LONG, done).await;
            let last = fake.calls_of(Rpc::StartContainer).iter().filter_map(answered).max();
            last.map_or("late".to_owned(), |at| wall(at).to_string())
        }
        // Waits for so many successful starts in all, the last of which is this pod's: when it was
        // answered, and the runtime's own time until then.
        ["started", pod, n] => {
            let n: u64 = n.parse().unwrap();
            // Only counted while it waits: to copy all calls would cost what is measured.
            let there = |fake: &FakeRuntime| fake.count(Rpc::StartContainer) >= n;
            if !fake.comes_true(LONG, there).await {
                return "late".to_owned();
            }
            let calls = |fake: &FakeRuntime| {
                fake.calls().into_iter().filter(|call| call.subject.pod == *pod).collect::<Vec<_>>()
            };
            let start = |fake: &FakeRuntime| {
                calls(fake).iter().find(|call| call.rpc == Rpc::StartContainer).and_then(answered)
            };
            if !fake.comes_true(LONG, |fake| start(fake).is_some()).await {
                return "late".to_owned();
            }
            let at = start(fake).unwrap();
            let own = calls(fake)
                .iter()
                .filter(|call| call.at <= at)
                .filter_map(|call| call.took)
                .sum::<Duration>();
            format!("{} {}", wall(at), own.as_secs_f64())
        }
        // Ends the pod's container and waits for the next start, while nothing else happens: seconds
        // in between.
        ["exit", word] => {
            let starts = fake.count(Rpc::StartContainer);
            fake.exit(word, 1);
            let died = Instant::now();
            let replaced = |fake: &FakeRuntime| fake.count(Rpc::StartContainer) > starts;
            if !fake.comes_true(LONG, replaced).await {
                return "late".to_owned();
            }
            let calls = fake.calls_of(Rpc::StartContainer);
            let at = calls.last().map_or_else(Instant::now, |call| call.at);
            at.saturating_duration_since(died).as_secs_f64().to_string()
        }
        other => panic!("unknown command {other:?}"),
    }
}

/// The side of the benchmark.
pub struct FakeProcess {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl FakeProcess {
    pub async fn start(socket: &Path, events: bool) -> FakeProcess {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("--fake-runtime").arg(socket).arg(if events { "events" } else { "no-events" });
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut fake = FakeProcess { _child: child, input, output: BufReader::new(output).lines() };
        fake.call("counts").await;
        fake
    }

    async fn call(&mut self, command: &str) -> String {
        self.input.write_all(format!("{command}\n").as_bytes()).await.unwrap();
        self.output.next_line().await.unwrap().expect("the fake runtime ended")
    }

    /// How often each call was made so far.
    pub async fn counts(&mut self) -> BTreeMap<String, u64> {
        let answer = self.call("counts").await;
        let pairs = answer.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, n)| (name.to_owned(), n.parse().unwrap())).collect()
    }

    /// When the n-th start was answered, in seconds since 1970.
    pub async fn starts(&mut self, n: usize) -> Option<f64> {
        self.call(&format!("starts {n}")).await.parse().ok()
    }

    /// When the pod, the n-th in all, was started, and the runtime's share of the time until then, in
    /// seconds.
    pub async fn started(&mut self, pod: &str, n: usize) -> Option<(f64, f64)> {
        let answer = self.call(&format!("started {pod} {n}")).await;
        let (at, own) = answer.split_once(' ')?;
        Some((at.parse().ok()?, own.parse().ok()?))
    }

    /// Seconds from the death of a container to its replacement's start.
    pub async fn exit(&mut self, word: &str) -> Option<f64> {
        self.call(&format!("exit {word}")).await.parse().ok()
    }
}
