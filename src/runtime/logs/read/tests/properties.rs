//! Whatever happens to a log and whenever somebody begins to follow it, each line comes exactly once.

use super::fixture::{Log, text};
use crate::runtime::logs::{LogOptions, Logs};
use proptest::prelude::*;
use std::fs;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// So many lines of such a length.
    Write(usize, usize),
    /// A whole rotation.
    Rotate,
    /// A rotation with lines between its halves.
    RotateSlowly(usize),
    /// A rotation that failed half-way, with lines before it was put back.
    FailToRotate(usize),
    /// Somebody begins to follow, with or without a limit of lines.
    Follow(Option<u64>),
    /// So many milliseconds pass.
    Wait(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        5 => (1_usize..30, 0_usize..400).prop_map(|(lines, length)| Event::Write(lines, length)),
        2 => Just(Event::Rotate),
        1 => (0_usize..5).prop_map(Event::RotateSlowly),
        1 => (0_usize..5).prop_map(Event::FailToRotate),
        2 => proptest::option::of(0_u64..60).prop_map(Event::Follow),
        2 => (0_u64..15).prop_map(Event::Wait),
    ];
    proptest::collection::vec(event, 1..30)
}

struct Following {
    /// What the reader has to get.
    from: usize,
    task: JoinHandle<String>,
}

async fn happen(events: Vec<Event>) {
    let (logs, mut log) = (Logs::new(), Log::new());
    let (end, ended) = watch::channel(false);
    let mut all: Vec<Following> = Vec::new();
    // A stuck reader is cut off after some files; this many are held.
    let mut rotations = 0;
    for event in events {
        match event {
            Event::Write(lines, length) => (0..lines).for_each(|_| log.line(length)),
            Event::Rotate | Event::RotateSlowly(_) if rotations == 7 => {}
            Event::Rotate => {
                rotations += 1;
                log.rotate();
            }
            Event::RotateSlowly(lines) => {
                rotations += 1;
                let (_, plan) = log.rename();
                log.lines(lines);
                tokio::task::yield_now().await;
                drop(log.reopen());
                log.compress(&plan);
            }
            Event::FailToRotate(lines) => {
                let (rotated, _) = log.rename();
                log.lines(lines);
                tokio::task::yield_now().await;
                fs::rename(rotated, &log.path).unwrap();
            }
            Event::Follow(tail_lines) => {
                // Lines of the file are counted, so the lines are not split here.
                let tail_lines =
                    tail_lines.filter(|_| !log.expected.lines().any(|l| l.len() > 100));
                let from = match tail_lines {
                    None => 0,
                    Some(lines) => log.expected.len() - log.last(lines as usize).len(),
                };
                let options = LogOptions { tail_lines, follow: true, ..LogOptions::default() };
                let mut ended = ended.clone();
                let over = async move {
                    let _ = ended.wait_for(|ended| *ended).await;
                };
                let stream = logs.open(log.path.clone(), options, over).await.unwrap();
                let task = tokio::spawn(text(stream));
                all.push(Following { from, task });
            }
            Event::Wait(milliseconds) => {
                tokio::time::sleep(Duration::from_millis(milliseconds)).await;
            }
        }
    }
    end.send(true).unwrap();
    for Following { from, task } in all {
        assert_eq!(task.await.unwrap(), log.expected[from..]);
    }
    assert_eq!(log.read(LogOptions::default()).await, log.expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_follower_gets_every_line_exactly_once(events in events()) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(happen(events));
    }
}
