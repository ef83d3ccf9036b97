use super::*;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// Each write waits until it is read.
struct Unread(SyncSender<String>);

impl Write for Unread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8(bytes.to_vec()).unwrap();
        self.0.send(line).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn unread() -> (LogQueue, Receiver<String>) {
    let (out, lines) = sync_channel(0);
    let report = |count| format!("{count} dropped\n");
    (LogQueue::start(Unread(out), report).unwrap(), lines)
}

#[test]
fn lines_are_written_one_by_one_in_their_order_and_flushed() {
    let (mut queue, lines) = unread();
    let reader = std::thread::spawn(move || lines.iter().take(100).collect::<Vec<_>>());
    for number in 0..100 {
        queue.write_all(format!("{number}\n").as_bytes()).unwrap();
    }
    LogQueue::flush(&queue, WAIT_LIMIT);
    assert_eq!(queue.shared.0.lock().waiting.len(), 0);
    let expected: Vec<_> = (0..100).map(|number| format!("{number}\n")).collect();
    assert_eq!(reader.join().unwrap(), expected);
    assert_eq!(queue.dropped(), 0);
}

#[test]
fn what_does_not_fit_is_dropped_and_told_in_its_place() {
    let (mut queue, lines) = unread();
    let line = |letter: &str, size: usize| letter.repeat(size - 1) + "\n";
    // The writer has this one and waits for a reader.
    queue.write_all(line("a", 10).as_bytes()).unwrap();
    assert_eq!(lines.recv_timeout(WAIT_LIMIT).unwrap().len(), 10);
    queue.write_all(line("b", 10).as_bytes()).unwrap();
    while !queue.shared.0.lock().waiting.is_empty() {
        std::thread::yield_now();
    }
    for (letter, size) in [("c", MAX_BYTES - 1), ("d", 2), ("e", 2), ("f", 1)] {
        queue.write_all(line(letter, size).as_bytes()).unwrap();
    }
    assert_eq!(queue.dropped(), 3);
    LogQueue::flush(&queue, Duration::from_millis(10));
    let next = || lines.recv_timeout(WAIT_LIMIT).unwrap();
    assert_eq!(next(), line("b", 10));
    assert_eq!(next().len(), MAX_BYTES - 1);
    assert_eq!(next(), "3 dropped\n");
    queue.write_all(b"g\n").unwrap();
    assert_eq!(next(), "g\n");
    assert_eq!(queue.dropped(), 3);
}
