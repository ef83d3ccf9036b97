//! The target of probes: a server that succeeds and records the time of each request by path.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type RequestTimes = Arc<Mutex<HashMap<Vec<u8>, Vec<Instant>>>>;

pub struct Probed {
    port: u16,
    requests: RequestTimes,
}

impl Probed {
    /// Answers on a thread of its own, so that nothing else that is measured delays it.
    pub fn start() -> Probed {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = RequestTimes::default();
        let seen = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let at = Instant::now();
                if let Some(path) = answer(stream) {
                    seen.lock().unwrap().entry(path).or_default().push(at);
                }
            }
        });
        Probed { port, requests }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn forget(&self) {
        self.requests.lock().unwrap().clear();
    }

    /// Seconds between each probe and the next one of the same pod.
    pub fn intervals(&self) -> Vec<f64> {
        let requests = self.requests.lock().unwrap();
        let pairs = requests.values().flat_map(|times| times.windows(2));
        pairs.map(|pair| pair[1].duration_since(pair[0]).as_secs_f64()).collect()
    }
}

/// The requested path.
fn answer(mut stream: TcpStream) -> Option<Vec<u8>> {
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut chunk) {
            Ok(read) if read > 0 => head.extend_from_slice(&chunk[..read]),
            _ => return None,
        }
    }
    let yes = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    stream.write_all(yes).ok()?;
    head.split(|byte| *byte == b' ').nth(1).map(<[u8]>::to_vec)
}
