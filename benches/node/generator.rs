//! Requests that come when they come, however long the answers take.

use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Connections that stand, for each path.
const CONNECTIONS: u32 = 8;
/// What is requested, in equal parts.
const PATHS: [&str; 2] = ["/pods", "/metrics"];

/// What came of the requests for one path.
#[derive(Default)]
pub struct Tally {
    /// Requests that were due.
    pub requested: u64,
    /// From when one was due to its whole answer, in seconds.
    pub latencies: Vec<f64>,
    /// Answers that were another than 200.
    pub refused: u64,
    pub bytes: u64,
    pub took: Duration,
}

pub struct Load(JoinHandle<Vec<(&'static str, Tally)>>);

impl Load {
    /// So many requests a second for so long, from a thread of its own.
    pub fn start(port: u16, rate: u32, time: Duration) -> Load {
        Load(std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(all(port, rate, time))
        }))
    }

    pub fn join(self) -> Vec<(&'static str, Tally)> {
        self.0.join().unwrap()
    }
}

async fn all(port: u16, rate: u32, time: Duration) -> Vec<(&'static str, Tally)> {
    let (begun, connections) = (Instant::now(), CONNECTIONS * PATHS.len() as u32);
    let apart = Duration::from_secs(1) * connections / rate;
    let mut clients = JoinSet::new();
    for client in 0..connections {
        let path = client as usize % PATHS.len();
        let first = begun + apart * client / connections;
        let client = client_of(port, PATHS[path], first, apart, begun + time);
        clients.spawn(async move { (path, client.await) });
    }
    let mut tallies = PATHS.map(|path| (path, Tally::default()));
    while let Some(done) = clients.join_next().await {
        let (path, tally) = done.unwrap();
        let sum = &mut tallies[path].1;
        sum.requested += tally.requested;
        sum.refused += tally.refused;
        sum.bytes += tally.bytes;
        sum.latencies.extend(tally.latencies);
        sum.took = time;
    }
    tallies.into()
}

/// One request each time one is due, or as soon as the answer to the one before is there. Those that are
/// never answered count as requested.
async fn client_of(port: u16, path: &str, first: Instant, apart: Duration, end: Instant) -> Tally {
    let mut tally = Tally::default();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: node1\r\n\r\n");
    let mut due = first;
    let mut buffer = Vec::with_capacity(1 << 20);
    while due < end {
        sleep_until(due).await;
        if Instant::now() < end {
            let answer = async {
                stream.write_all(request.as_bytes()).await.unwrap();
                read_answer(&mut stream, &mut buffer).await
            };
            let Ok((well, bytes)) = timeout_at(end, answer).await else {
                // It would have to be read to its end before the next; nothing more is counted here.
                tally.requested += remaining(due, end, apart);
                return tally;
            };
            tally.bytes += bytes;
            if well {
                tally.latencies.push((Instant::now() - due).as_secs_f64())
            } else {
                tally.refused += 1
            }
        }
        tally.requested += 1;
        due += apart;
    }
    tally
}

fn remaining(due: Instant, end: Instant, apart: Duration) -> u64 {
    ((end - due).as_secs_f64() / apart.as_secs_f64()).ceil() as u64
}

/// Whether the answer is 200, and its size in bytes. It is parsed only as far as finding its end needs.
async fn read_answer(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> (bool, u64) {
    buffer.clear();
    let mut end = None;
    let mut read = 0;
    let mut well = false;
    loop {
        let more = stream.read_buf(buffer).await.unwrap();
        assert!(more > 0, "the connection was closed");
        read += more as u64;
        if end.is_none() {
            let Some(head) = buffer.windows(4).position(|four| four == b"\r\n\r\n") else {
                continue;
            };
            let text = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length = length.map(|length| length.parse::<u64>().unwrap() + head as u64 + 4);
            well = text.contains(" 200 ");
            end = Some(length);
        }
        let done = match end {
            Some(Some(length)) => read >= length,
            _ => buffer.ends_with(b"\r\n0\r\n\r\n"),
        };
        if done {
            return (well, read);
        }
        if buffer.len() > 1 << 19 {
            let kept = buffer.len() - 16;
            buffer.drain(..kept);
        }
    }
}
