//! The CRI log format: any file can lie where a log should be.

use crate::engine::{Target, fuzz, path};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::StreamExt as _;
use jiff::Timestamp;
use kubelet::runtime::logs::{Decoder, LogLine, LogOptions, Logs, SelectedStreams, tail};
use std::io::Write as _;
use std::path::Path;

const SEEDS: &[&str] = &[
    "",
    "2026-01-02T03:04:05.678901234Z stdout F a line\n",
    "2026-01-02T03:04:05.6Z stdout P half \n2026-01-02T03:04:06Z stdout F a line\n",
    "2026-01-02T05:04:05+02:00 stderr F \n2026-01-02T05:04:05-00:00 stderr P:x:y \n",
    "2026-01-02T03:04:05Z stdout F\n\n2026-01-02T03:04:05Z stderr F cut",
    "{\"log\":\"another format\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-02T03:04:05Z\"}\n",
    "2026-01-02T03:04:05Z stdout F dos\r\n2026-01-02T03:04:05Z stdin F x\n",
];

const WORDS: &[&str] = &[
    "2026-01-02T03:04:05.678901234Z",
    "0000-01-01T00:00:00Z",
    "9999-12-31T23:59:60.999999999+23:59",
    " stdout F ",
    " stdout P ",
    " stderr F ",
    " stderr P ",
    "\n",
    " ",
    "stdout",
    "F",
    "P",
];

/// The options that the first byte chooses.
fn options(choice: u8) -> LogOptions {
    let bit = |n: u8| choice & (1 << n) != 0;
    LogOptions {
        timestamps: bit(0),
        since: bit(1).then(|| "2026-01-02T03:04:06Z".parse::<Timestamp>().unwrap()),
        streams: match (bit(2), bit(3)) {
            (true, false) => SelectedStreams::Stdout,
            (false, true) => SelectedStreams::Stderr,
            _ => SelectedStreams::All,
        },
        limit_bytes: bit(4).then_some(u64::from(choice)),
        ..LogOptions::default()
    }
}

fn decode(options: &LogOptions, log: &[u8], piece: usize) -> Vec<u8> {
    let mut decoder = Decoder::new(options);
    let mut out = Vec::new();
    for piece in log.chunks(piece.max(1)) {
        decoder.feed(piece, &mut out);
    }
    out
}

/// The same as [`Decoder`], line by line and with everything in memory.
fn decode_simply(options: &LogOptions, log: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::new();
    // By stream, whether the line that goes on is wanted: as its first piece was.
    let mut wanted_lines = std::collections::HashMap::new();
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        let whole = line.strip_suffix(b"\n");
        let Some(parsed) = LogLine::parse(whole.unwrap_or(line)) else {
            continue;
        };
        let stream = match options.streams {
            SelectedStreams::All => true,
            SelectedStreams::Stdout => {
                parsed.stream == kubelet::runtime::logs::OutputStream::Stdout
            }
            SelectedStreams::Stderr => {
                parsed.stream == kubelet::runtime::logs::OutputStream::Stderr
            }
        };
        // A head that may yet become another one is not given.
        let spaces = line.iter().filter(|byte| **byte == b' ').count();
        let complete = whole.is_some() || spaces >= 3;
        if !complete {
            continue;
        }
        let wanted = stream && options.since.is_none_or(|since| parsed.time >= since);
        let wanted = wanted_lines.remove(&(parsed.stream as u8)).unwrap_or(wanted);
        if parsed.partial {
            wanted_lines.insert(parsed.stream as u8, wanted);
        }
        if wanted {
            out.extend_from_slice(parsed.content);
            out.extend((whole.is_some() && !parsed.partial).then_some(b'\n'));
        }
    }
    out
}

fn decoding_is_the_same_in_pieces_and_never_grows(choice: u8, log: &[u8]) -> u64 {
    let options = options(choice);
    let whole = decode(&options, log, usize::MAX);
    for piece in [1, 3, 61] {
        assert_eq!(decode(&options, log, piece), whole, "in pieces of {piece}");
    }
    let lines = log.split(|byte| *byte == b'\n').count();
    assert!(whole.len() <= log.len() + 64 * lines);
    let unlimited = LogOptions { limit_bytes: None, ..options.clone() };
    let all = decode(&unlimited, log, usize::MAX);
    let most = options.limit_bytes.map_or(all.len(), |limit| all.len().min(limit as usize));
    assert_eq!(whole, all[..most], "a limit only cuts");
    // A head is of limited length; beyond it a line is another format.
    let short_heads = log.split(|byte| *byte == b'\n').all(|line| {
        line.split(|byte| *byte == b' ').take(3).map(|word| word.len() + 1).sum::<usize>() < 200
    });
    if !options.timestamps && short_heads {
        assert_eq!(all, decode_simply(&unlimited, log));
    }
    let shape = |line: &[u8]| {
        LogLine::parse(line).map(|line| (line.stream as u8, line.partial, line.content.is_empty()))
    };
    let shapes: Vec<_> = log.split(|byte| *byte == b'\n').take(4).map(shape).collect();
    path(&(choice & 31, shapes, whole.len().min(8)))
}

/// Reads files: the log, and before it a compressed one.
fn files_read_as_their_bytes(
    runtime: &tokio::runtime::Runtime,
    directory: &Path,
    choice: u8,
    log: &[u8],
) {
    let (older, newer) = log.split_at(log.len() * usize::from(choice) / 256);
    let path = directory.join("0.log");
    std::fs::write(&path, newer).unwrap();
    let rotated = std::fs::File::create(directory.join("0.log.20260102-030405.gz")).unwrap();
    let mut encoder = GzEncoder::new(rotated, Compression::fast());
    encoder.write_all(older).unwrap();
    encoder.finish().unwrap();
    let read = |options: LogOptions| {
        let stream = async {
            let logs = Logs::new();
            let stream = logs.open(path.clone(), options, async {}).await.unwrap();
            let pieces: Vec<_> = stream.map(Result::unwrap).collect().await;
            pieces.concat()
        };
        runtime.block_on(stream)
    };
    let plain = LogOptions::default();
    let in_two = |parts: [&[u8]; 2]| {
        let mut decoder = Decoder::new(&plain);
        let mut out = Vec::new();
        decoder.feed(parts[0], &mut out);
        decoder.end_file(&mut out);
        decoder.feed(parts[1], &mut out);
        out
    };
    assert_eq!(read(plain.clone()), in_two([older, newer]));
    // The same lines as counted by hand.
    let lines = |part: &[u8]| -> Vec<Vec<u8>> {
        let lines = part.split_inclusive(|byte| *byte == b'\n');
        lines.map(<[u8]>::to_vec).collect()
    };
    let (before, after) = (lines(older), lines(newer));
    let pieces = [before.as_slice(), after.as_slice()].concat();
    // The pieces of a split line are one line, also where the file ends between them.
    let goes_on = |piece: &Vec<u8>| {
        let head = piece.strip_suffix(b"\n").unwrap_or(piece);
        LogLine::parse(&head[..head.len().min(256)]).is_some_and(|line| line.partial)
    };
    let begins = |at: &usize| *at == 0 || !goes_on(&pieces[*at - 1]);
    let starts: Vec<_> = (0..pieces.len()).filter(begins).collect();
    let wanted = usize::from(choice % 7);
    let first = match wanted {
        0 => pieces.len(),
        _ => starts[starts.len().saturating_sub(wanted)..].first().copied().unwrap_or(0),
    };
    let parts = [
        before[first.min(before.len())..].concat(),
        after[first.saturating_sub(before.len())..].concat(),
    ];
    let tail = LogOptions { tail_lines: Some(wanted as u64), ..plain.clone() };
    assert_eq!(read(tail), in_two([&parts[0], &parts[1]]), "the last {wanted} lines");
    let limits = tail::TailLimits { lines: wanted, bytes: usize::from(choice) };
    let words = tail::of_log(&path, limits).unwrap();
    assert!(words.len() <= 3 * limits.bytes, "what is replaced takes three bytes");
}

#[test]
fn cri_logs() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let run = |input: &[u8]| {
        let Some((choice, log)) = input.split_first() else {
            return 0;
        };
        // Files are slow, so they are for some inputs only.
        if input.len().is_multiple_of(16) {
            files_read_as_their_bytes(&runtime, directory.path(), *choice, log);
        }
        decoding_is_the_same_in_pieces_and_never_grows(*choice, log)
    };
    let seeds = SEEDS
        .iter()
        .flat_map(|seed| [0_u8, 3, 21, 200].map(|choice| [&[choice], seed.as_bytes()].concat()));
    fuzz(&Target { name: "CRI logs", seeds: seeds.collect(), words: WORDS, run: &run });
}
