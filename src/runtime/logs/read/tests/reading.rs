use super::fixture::Log;
use crate::base::clock;
use crate::runtime::logs::{LogOptions, Logs, since};
use futures::StreamExt as _;
use jiff::Timestamp;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;
use std::{fs, io};

fn all() -> LogOptions {
    LogOptions::default()
}

fn tail(lines: u64) -> LogOptions {
    LogOptions { tail_lines: Some(lines), ..all() }
}

/// Five files of ten lines each: three compressed, one plain, the current one.
fn rotated_log() -> Log {
    let mut log = Log::new();
    for _ in 0..4 {
        log.lines(10);
        log.rotate();
    }
    log.lines(10);
    assert_eq!(
        log.names(),
        [
            "0.log",
            "0.log.20260102-030405.gz",
            "0.log.20260102-030406.gz",
            "0.log.20260102-030407.gz",
            "0.log.20260102-030408"
        ]
    );
    log
}

#[tokio::test]
async fn a_log_is_read_from_its_first_rotated_file_on() {
    let log = rotated_log();
    assert_eq!(log.read(all()).await, log.expected);
}

#[tokio::test]
async fn a_tail_reaches_back_as_far_as_it_must() {
    let log = rotated_log();
    for lines in 0..=52 {
        assert_eq!(log.read(tail(lines)).await, log.last(lines as usize), "{lines}");
    }
    assert_eq!(log.read(tail(u64::MAX)).await, log.expected);
}

#[tokio::test]
async fn a_tail_counts_lines_and_not_the_pieces_that_the_runtime_split_them_into() {
    let mut log = Log::new();
    for lengths in
        [[10, 350, 20, 1000], [200, 10, 250, 500], [700, 10, 20, 900], [10, 450, 120, 10]]
    {
        lengths.into_iter().for_each(|length| log.line(length));
        log.rotate();
    }
    [300, 10, 20, 800].into_iter().for_each(|length| log.line(length));
    for timestamps in [false, true] {
        for lines in 0..=21 {
            let options = LogOptions { timestamps, ..tail(lines) };
            let text = log.read(options).await;
            let without: String = if timestamps {
                let lines = text.split_inclusive('\n');
                lines.map(|line| line.split_once(' ').unwrap().1).collect()
            } else {
                text
            };
            assert_eq!(without, log.last(lines as usize), "{lines}");
        }
    }
}

#[tokio::test]
async fn a_line_whose_pieces_are_in_two_files_is_one_line() {
    for compressed in [false, true] {
        let mut log = Log::new();
        log.lines(2);
        log.piece("P", "begun ");
        log.rotate();
        log.piece("P", "in one file, ");
        log.rotate();
        if compressed {
            log.rotate();
        }
        log.piece("F", "ended in another\n");
        log.lines(1);
        for lines in 0..=5 {
            let text = log.read(tail(lines)).await;
            assert_eq!(text, log.last(lines as usize), "{lines}, {compressed}");
        }
    }
}

#[tokio::test]
async fn a_line_has_the_time_of_its_first_piece() {
    let mut log = Log::new();
    log.lines(1);
    log.piece("P", "begun ");
    let begun = log.time();
    log.piece("F", "and ended\n");
    let next = log.time();
    log.lines(1);
    let since = |time| LogOptions { since: Some(time), ..all() };
    assert_eq!(log.read(since(begun)).await, log.last(2));
    assert_eq!(log.read(since(next)).await, log.last(1));
}

#[tokio::test]
async fn since_leaves_out_what_is_older_in_whichever_file() {
    let log = rotated_log();
    let hour: Timestamp = "2026-01-02T03:00:00Z".parse().unwrap();
    for second in 0..=50 {
        let options = LogOptions { since: Some(hour + Duration::from_secs(second + 1)), ..all() };
        let expected = log.last(50 - second as usize);
        assert_eq!(log.read(options).await, expected, "{second}");
    }
}

#[tokio::test]
async fn files_that_ended_before_the_instant_are_not_opened() {
    let mut log = Log::new();
    log.lines(3);
    log.rotate();
    log.lines(3);
    let old = fs::File::options()
        .write(true)
        .open(log.path.with_file_name("0.log.20260102-030405"))
        .unwrap();
    let written = clock::system_time() - Duration::from_secs(3600);
    old.set_times(fs::FileTimes::new().set_modified(written)).unwrap();
    // Its lines say 2026, so only its time can keep them out.
    let options =
        LogOptions { since: Some(clock::timestamp() - Duration::from_secs(1800)), ..all() };
    log.lines(0);
    let start = super::super::history::start(&log.path, None, 0, &options).unwrap();
    assert!(start.older.is_empty());
    let options =
        LogOptions { since: Some(clock::timestamp() - Duration::from_secs(5400)), ..all() };
    let start = super::super::history::start(&log.path, None, 0, &options).unwrap();
    assert_eq!(start.older.len(), 1);
}

#[test]
fn of_since_seconds_and_since_time_the_later_counts() {
    let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
    let minute_ago = at("2026-01-02T03:03:05Z");
    assert_eq!(since(now, None, None), None);
    assert_eq!(since(now, Some(60), None), minute_ago);
    assert_eq!(since(now, Some(60), at("2026-01-02T00:00:00Z")), minute_ago);
    let later = at("2026-01-02T03:03:06Z");
    assert_eq!(since(now, Some(60), later), later);
    assert_eq!(since(now, Some(i64::MAX), None), Some(Timestamp::MIN));
}

#[tokio::test]
async fn a_limit_ends_the_stream() {
    let log = rotated_log();
    for limit in [0, 1, 100, 500, 1_000_000] {
        let options = LogOptions { limit_bytes: Some(limit), ..all() };
        let most = log.expected.len().min(limit as usize);
        assert_eq!(log.read(options).await, log.expected[..most]);
    }
}

#[tokio::test]
async fn what_is_written_after_the_opening_is_not_read_without_follow() {
    let mut log = Log::new();
    log.lines(1000);
    let before = log.expected.clone();
    let opened = Logs::new().open(log.path.clone(), all(), async {}).await;
    log.lines(1000);
    assert_eq!(super::fixture::text(opened.unwrap()).await, before);
}

#[tokio::test]
async fn a_log_that_is_not_there_is_not_found() {
    let log = Log::new();
    let read = |path| async { Logs::new().open(path, all(), async {}).await.err().unwrap() };
    let missing = log.path.with_file_name("1.log");
    assert_eq!(read(missing).await.kind(), io::ErrorKind::NotFound);
    let nowhere = log.path.with_file_name("nowhere").join("0.log");
    assert_eq!(read(nowhere).await.kind(), io::ErrorKind::NotFound);
    let directory = log.path.with_file_name("2.log");
    fs::create_dir(&directory).unwrap();
    assert_eq!(read(directory).await.kind(), io::ErrorKind::InvalidInput);
}

#[tokio::test]
async fn in_the_middle_of_a_rotation_the_renamed_file_is_the_log() {
    let mut log = Log::new();
    log.lines(5);
    log.rotate();
    log.lines(5);
    log.rename();
    log.lines(5);
    assert_eq!(log.read(all()).await, log.expected);
    assert_eq!(log.read(tail(7)).await, log.last(7));
}

#[tokio::test]
async fn with_nothing_but_compressed_files_those_are_the_log() {
    let log = rotated_log();
    let (_, plan) = log.rename();
    log.compress(&plan);
    let last = log.path.with_file_name("0.log.20260102-030409");
    crate::runtime::logs::rotation::rotate::compress_file(&last, &Default::default()).unwrap();
    assert!(log.names().iter().all(|name| name.ends_with(".gz")));
    assert_eq!(log.read(all()).await, log.expected);
    assert_eq!(log.read(tail(13)).await, log.last(13));
}

#[tokio::test]
async fn a_rotated_file_that_is_broken_costs_its_own_lines_only() {
    let log = rotated_log();
    let broken = log.path.with_file_name("0.log.20260102-030406.gz");
    fs::write(&broken, "\x1f\x08rubbish").unwrap();
    let lines: Vec<_> = log.expected.split_inclusive('\n').collect();
    let without = lines[..10].concat() + &lines[20..].concat();
    assert_eq!(log.read(all()).await, without);
    let half = fs::read(log.path.with_file_name("0.log.20260102-030405.gz")).unwrap();
    fs::write(&broken, &half[..half.len() / 2]).unwrap();
    let text = log.read(all()).await;
    assert!(text.starts_with(&lines[..10].concat()) && text.ends_with(&lines[20..].concat()));
}

#[tokio::test]
async fn a_huge_line_comes_in_pieces() {
    const HUGE: u64 = 48 << 20;
    let log = Log::new();
    let mut file = fs::File::options().append(true).open(&log.path).unwrap();
    write!(file, "{} stdout F ", log.time()).unwrap();
    let head = file.metadata().unwrap().len();
    let file = fs::File::options().write(true).open(&log.path).unwrap();
    file.write_at(b"\n", head + HUGE).unwrap();
    let mut stream = Logs::new().open(log.path.clone(), all(), async {}).await.unwrap();
    let (mut got, mut largest) = (0, 0);
    while let Some(piece) = stream.next().await {
        let piece = piece.unwrap();
        largest = largest.max(piece.len());
        got += piece.len() as u64;
    }
    assert_eq!(got, HUGE + 1);
    assert!(largest <= 256 * 1024, "{largest}");
}
