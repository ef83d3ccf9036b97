use super::fixture::{Log, WAIT_LIMIT, take, text};
use crate::base::clock;
use crate::runtime::logs::{LogOptions, LogStream, Logs};
use futures::StreamExt as _;
use futures::future::pending;
use std::fs;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

fn follow() -> LogOptions {
    LogOptions { follow: true, ..LogOptions::default() }
}

async fn open(logs: &Logs, log: &Log, options: LogOptions) -> LogStream {
    let opened = logs.open(log.path.clone(), options, pending());
    opened.await.unwrap()
}

/// Nothing comes for a while.
async fn is_silent(stream: &mut LogStream) -> bool {
    timeout(Duration::from_millis(150), stream.next()).await.is_err()
}

#[tokio::test]
async fn lines_come_as_they_are_written() {
    let (logs, mut log) = (Logs::new(), Log::new());
    log.lines(3);
    let mut stream = open(&logs, &log, follow()).await;
    let mut got = take(&mut stream, log.expected.len()).await;
    for _ in 0..5 {
        assert!(is_silent(&mut stream).await);
        log.lines(2);
        got += &take(&mut stream, log.expected.len() - got.len()).await;
        assert_eq!(got, log.expected);
    }
}

#[tokio::test]
async fn a_new_line_comes_at_once_and_not_with_a_poll() {
    let (logs, mut log) = (Logs::new(), Log::new());
    let mut stream = open(&logs, &log, follow()).await;
    let mut quickest = Duration::MAX;
    for _ in 0..10 {
        assert!(is_silent(&mut stream).await);
        let start = clock::instant();
        log.lines(1);
        take(&mut stream, 18).await;
        quickest = quickest.min(clock::since(start));
    }
    // A follower that polls finds each line a second after the one before.
    assert!(quickest < Duration::from_millis(500), "{quickest:?}");
}

#[tokio::test]
async fn following_goes_on_over_rotations() {
    let (logs, mut log) = (Logs::new(), Log::new());
    let mut stream = open(&logs, &log, follow()).await;
    let mut got = String::new();
    for _ in 0..5 {
        log.lines(10);
        log.rotate();
        log.lines(10);
        got += &take(&mut stream, log.expected.len() - got.len()).await;
    }
    assert_eq!(got, log.expected);
    assert!(is_silent(&mut stream).await);
}

#[tokio::test]
async fn what_is_written_to_the_old_file_around_the_rename_is_not_lost() {
    let (logs, mut log) = (Logs::new(), Log::new());
    let mut stream = open(&logs, &log, follow()).await;
    log.lines(2);
    let (_, _) = log.rename();
    log.lines(2);
    let mut got = take(&mut stream, log.expected.len()).await;
    let mut old = log.reopen();
    assert!(is_silent(&mut stream).await);
    // What the runtime still had buffered, though the new file exists.
    let late = format!("{} stdout F late\n", log.time());
    std::io::Write::write_all(&mut old, late.as_bytes()).unwrap();
    log.expected += "late\n";
    drop(old);
    log.lines(2);
    got += &take(&mut stream, log.expected.len() - got.len()).await;
    assert_eq!(got, log.expected);
}

#[tokio::test]
async fn a_log_that_was_put_back_after_a_failed_rotation_is_read_on() {
    let (logs, mut log) = (Logs::new(), Log::new());
    let mut stream = open(&logs, &log, follow()).await;
    log.lines(2);
    let (rotated, _) = log.rename();
    log.lines(2);
    fs::rename(rotated, &log.path).unwrap();
    log.lines(2);
    log.rotate();
    log.lines(2);
    assert_eq!(take(&mut stream, log.expected.len()).await, log.expected);
    assert!(is_silent(&mut stream).await);
}

#[tokio::test]
async fn a_follower_held_up_for_several_rotations_reads_what_was_compressed_meanwhile() {
    let (logs, mut log) = (Logs::new(), Log::new());
    log.lines(10);
    let mut stream = open(&logs, &log, follow()).await;
    let got = take(&mut stream, log.expected.len()).await;
    let before = log.expected.len();
    for _ in 0..6 {
        log.lines(10);
        log.rotate();
    }
    log.lines(10);
    let rest = take(&mut stream, log.expected.len() - before).await;
    assert_eq!(got + &rest, log.expected);
}

#[tokio::test]
async fn history_and_tail_go_over_into_following() {
    let (logs, mut log) = (Logs::new(), Log::new());
    for _ in 0..3 {
        log.lines(10);
        log.rotate();
    }
    log.lines(5);
    let mut whole = open(&logs, &log, follow()).await;
    let last = LogOptions { tail_lines: Some(12), ..follow() };
    let mut last = open(&logs, &log, last).await;
    let none = LogOptions { tail_lines: Some(0), ..follow() };
    let mut none = open(&logs, &log, none).await;
    let expected = log.last(12);
    log.rotate();
    let before = log.expected.len();
    log.lines(5);
    let new = log.expected[before..].to_owned();
    assert_eq!(take(&mut whole, log.expected.len()).await, log.expected);
    let expected = expected + &new;
    assert_eq!(take(&mut last, expected.len()).await, expected);
    assert_eq!(take(&mut none, new.len()).await, new);
}

#[tokio::test]
async fn following_ends_after_the_last_line_of_a_container_that_has_ended() {
    let (logs, mut log) = (Logs::new(), Log::new());
    let (end, ended) = oneshot::channel::<()>();
    log.lines(3);
    let ended = async {
        let _ = ended.await;
    };
    let mut stream = logs.open(log.path.clone(), follow(), ended).await.unwrap();
    let got = take(&mut stream, log.expected.len()).await;
    assert!(is_silent(&mut stream).await);
    // The last lines and the end come at the same moment, and one more a little later.
    log.lines(2);
    log.rotate();
    log.lines(2);
    end.send(()).unwrap();
    let late = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        log.lines(1);
        log
    });
    let rest = text(stream).await;
    assert_eq!(got + &rest, late.await.unwrap().expected);
}

#[tokio::test]
async fn following_a_container_that_ended_long_ago_gives_all_and_ends() {
    let mut log = Log::new();
    log.lines(3);
    log.rotate();
    log.lines(3);
    let stream = Logs::new().open(log.path.clone(), follow(), async {}).await;
    assert_eq!(text(stream.unwrap()).await, log.expected);
}

#[tokio::test]
async fn a_log_that_is_not_there_yet_is_waited_for_until_the_container_has_ended() {
    let logs = Logs::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c/0.log");
    let mut stream = tokio::spawn({
        let (logs, path) = (logs.clone(), path.clone());
        async move { logs.open(path, follow(), pending()).await.unwrap() }
    });
    assert!(timeout(Duration::from_millis(100), &mut stream).await.is_err());
    fs::create_dir(dir.path().join("c")).unwrap();
    let mut stream = stream.await.unwrap();
    assert!(is_silent(&mut stream).await);
    fs::write(&path, "2026-01-02T03:04:05Z stdout F here\n").unwrap();
    assert_eq!(take(&mut stream, 5).await, "here\n");

    let never = dir.path().join("c/1.log");
    let stream = logs.open(never, follow(), async {}).await.unwrap();
    assert_eq!(text(stream).await, "");
    let nowhere = dir.path().join("d/1.log");
    let error = logs.open(nowhere, follow(), async {}).await.err().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[tokio::test]
async fn a_log_that_was_taken_away_is_read_on_and_so_is_the_one_made_in_its_place() {
    let (logs, mut log) = (Logs::new(), Log::new());
    let mut stream = open(&logs, &log, follow()).await;
    log.lines(1);
    fs::remove_file(&log.path).unwrap();
    log.lines(1);
    let got = take(&mut stream, log.expected.len()).await;
    drop(log.reopen());
    log.lines(1);
    // There is no event for the close of a file without a name.
    let rest = take(&mut stream, log.expected.len() - got.len()).await;
    assert_eq!(got + &rest, log.expected);
}

#[tokio::test]
async fn a_log_that_was_cut_is_read_from_its_beginning() {
    let (logs, mut log) = (Logs::new(), Log::new());
    let mut stream = open(&logs, &log, follow()).await;
    log.lines(10);
    let got = take(&mut stream, log.expected.len()).await;
    fs::File::options().write(true).open(&log.path).unwrap().set_len(0).unwrap();
    log.lines(2);
    let rest = take(&mut stream, log.expected.len() - got.len()).await;
    assert_eq!(got + &rest, log.expected);
}

#[tokio::test]
async fn a_line_is_given_while_it_is_being_written() {
    let (logs, log) = (Logs::new(), Log::new());
    let mut stream = open(&logs, &log, follow()).await;
    let mut file = fs::File::options().append(true).open(&log.path).unwrap();
    for piece in ["2026-01-02T03:", "04:05Z stdout F one ", "and ", "two\n"] {
        std::io::Write::write_all(&mut file, piece.as_bytes()).unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(take(&mut stream, 12).await, "one and two\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_followers_all_get_everything() {
    let (logs, mut log) = (Logs::new(), Log::new());
    log.lines(5);
    let mut readers = Vec::new();
    for _ in 0..300 {
        let (logs, path) = (logs.clone(), log.path.clone());
        let (begun, begin) = oneshot::channel();
        let mut stream = logs.open(path, follow(), pending()).await.unwrap();
        let first = log.expected.len();
        let reader = tokio::spawn(async move {
            let mut got = take(&mut stream, first).await;
            let total = begin.await.unwrap();
            got += &take(&mut stream, total - got.len()).await;
            got
        });
        readers.push((begun, reader));
    }
    for _ in 0..20 {
        log.lines(5);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    log.rotate();
    log.lines(5);
    for (begun, reader) in readers {
        begun.send(log.expected.len()).unwrap();
        let got = timeout(WAIT_LIMIT, reader).await.expect("every follower reaches the end");
        assert_eq!(got.unwrap(), log.expected);
    }
}

#[tokio::test]
async fn a_follower_that_reads_slowly_gets_everything_and_holds_nobody_up() {
    let (logs, mut log) = (Logs::new(), Log::new());
    let mut slow = open(&logs, &log, follow()).await;
    let mut fast = open(&logs, &log, follow()).await;
    let mut got = String::new();
    for _ in 0..6 {
        // More than is held in memory.
        (0..100).for_each(|_| log.line(5000));
        log.rotate();
        got += &take(&mut fast, log.expected.len() - got.len()).await;
    }
    assert!(got == log.expected);
    assert!(take(&mut slow, log.expected.len()).await == log.expected);
}

#[tokio::test]
async fn a_follower_that_does_not_read_holds_one_file_and_goes_on_with_what_is_left() {
    let (logs, mut log) = (Logs::new(), Log::new());
    log.lines(1);
    let mut stuck = open(&logs, &log, follow()).await;
    let mut fast = open(&logs, &log, follow()).await;
    let begun = log.expected.len();
    take(&mut stuck, begun).await;
    let mut got = 0;
    for _ in 0..20 {
        log.lines(10);
        log.rotate();
        got += take(&mut fast, log.expected.len() - got).await.len();
    }
    let open_files = || {
        let fds = fs::read_dir("/proc/self/fd").unwrap();
        let links = fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
        links.filter(|link| link.starts_with(log.dir().canonicalize().unwrap())).count()
    };
    // The writer's, and one of each follower.
    assert!(open_files() <= 3, "{}", open_files());
    // Rotation removes the oldest files; the stuck follower still has the one that it opened.
    let mut names = log.names();
    names.retain(|name| name != "0.log");
    for name in &names[..15] {
        fs::remove_file(log.dir().join(name)).unwrap();
    }
    let lines: Vec<&str> = log.expected.split_inclusive('\n').collect();
    let left = [&lines[1..11], &lines[151..]].concat().concat();
    assert_eq!(take(&mut stuck, left.len()).await, left);
    assert!(is_silent(&mut stuck).await);
}

#[tokio::test]
async fn nothing_is_left_when_nobody_follows_any_more() {
    let (logs, log) = (Logs::new(), Log::new());
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = open(&logs, &log, follow()).await;
        assert!(is_silent(&mut stream).await);
        streams.push(stream);
    }
    assert_eq!(logs.watched(), 1);
    drop(streams);
    assert_eq!(logs.watched(), 0);
    let mut again = open(&logs, &log, follow()).await;
    assert!(is_silent(&mut again).await);
    assert_eq!(logs.watched(), 1);
}
