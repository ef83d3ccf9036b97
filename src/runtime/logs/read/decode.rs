//! From the lines of a log file to what the container wrote. Pure.
//!
//! A line may be of any length: only its head is ever held.

use super::{LogOptions, SelectedStreams};
use crate::runtime::logs::line::MAX_HEAD;
use crate::runtime::logs::{LogLine, OutputStream};
use jiff::Timestamp;

/// Digits of a second's fraction in timestamps that are given out.
const FRACTION_DIGITS: usize = 9;

/// Decodes the bytes of log files in the order in which they are fed.
#[derive(Clone, Debug)]
pub struct Decoder {
    since: Option<Timestamp>,
    streams: SelectedStreams,
    timestamps: bool,
    /// Bytes that may still be given.
    remain: u64,
    at: At,
    /// Bytes of the current line's header read so far.
    head: Vec<u8>,
    /// What was given last did not end a line.
    inside_line: bool,
    /// Whether the line that goes on is wanted, for standard output and standard error.
    goes_on: [Option<bool>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In the head of a line, behind so many of its spaces.
    Head { spaces: u8 },
    /// In the content of a wanted line.
    Content { partial: bool },
    /// In a line that is not wanted.
    Passed,
}

const LINE_START: At = At::Head { spaces: 0 };

impl Decoder {
    /// A decoder for what the options select. The caller handles `tail_lines` and `follow`.
    pub fn new(options: &LogOptions) -> Self {
        Self {
            since: options.since,
            streams: options.streams,
            timestamps: options.timestamps,
            remain: options.limit_bytes.unwrap_or(u64::MAX),
            at: LINE_START,
            head: Vec::new(),
            inside_line: false,
            goes_on: [None; 2],
        }
    }

    /// Whether all that may be given has been given.
    pub fn is_done(&self) -> bool {
        self.remain == 0
    }

    /// Decodes `input` and appends the selected content to `out`: at most `input` and one timestamp per line. Malformed
    /// lines are skipped.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let mut rest = input;
        while !rest.is_empty() && !self.is_done() {
            rest = match self.at {
                At::Head { spaces } => self.read_head(rest, spaces, out),
                At::Content { partial } => self.read_content(rest, partial, out),
                At::Passed => self.pass(rest),
            };
        }
    }

    /// The file ended. What follows is the beginning of another one, so a line that has no end ends
    /// here.
    pub fn end_file(&mut self, out: &mut Vec<u8>) {
        if self.at == (At::Content { partial: false }) {
            self.end_line(out);
        }
        self.at = LINE_START;
        self.head.clear();
    }

    fn read_head<'i>(&mut self, input: &'i [u8], spaces: u8, out: &mut Vec<u8>) -> &'i [u8] {
        let mut spaces = spaces;
        for (index, byte) in input.iter().enumerate() {
            let rest = || input.get(index + 1..).unwrap_or_default();
            spaces += u8::from(*byte == b' ');
            if *byte == b'\n' || spaces == 3 {
                self.begin_line(out);
                if *byte == b'\n' {
                    self.pass_end(out);
                }
                return rest();
            }
            if self.head.len() == MAX_HEAD {
                self.head.clear();
                self.at = At::Passed;
                return rest();
            }
            self.head.push(*byte);
        }
        self.at = At::Head { spaces };
        &[]
    }

    /// The head is complete: decides what becomes of its line.
    fn begin_line(&mut self, out: &mut Vec<u8>) {
        let head = std::mem::take(&mut self.head);
        self.at = At::Passed;
        if let Some(line) = LogLine::parse(&head)
            && self.wants_piece(&line)
        {
            let partial = line.partial;
            self.at = At::Content { partial };
            if self.timestamps && !self.inside_line {
                self.give(&nine_digits(line.timestamp), out);
                self.give(b" ", out);
            }
        }
        self.head = head;
        self.head.clear();
    }

    /// Whether a piece of a line is wanted: as its first piece was, whose time is that of the line.
    fn wants_piece(&mut self, piece: &LogLine<'_>) -> bool {
        let [stdout, stderr] = self.goes_on;
        let before = match piece.stream {
            OutputStream::Stdout => stdout,
            OutputStream::Stderr => stderr,
        };
        let wanted = before.unwrap_or_else(|| self.wants(piece));
        let goes_on = piece.partial.then_some(wanted);
        self.goes_on = match piece.stream {
            OutputStream::Stdout => [goes_on, stderr],
            OutputStream::Stderr => [stdout, goes_on],
        };
        wanted
    }

    fn wants(&self, line: &LogLine<'_>) -> bool {
        let stream = match self.streams {
            SelectedStreams::All => true,
            SelectedStreams::Stdout => line.stream == OutputStream::Stdout,
            SelectedStreams::Stderr => line.stream == OutputStream::Stderr,
        };
        stream && self.since.is_none_or(|since| line.time >= since)
    }

    fn read_content<'i>(&mut self, input: &'i [u8], partial: bool, out: &mut Vec<u8>) -> &'i [u8] {
        let end = input.iter().position(|byte| *byte == b'\n');
        let (piece, rest) = input.split_at(end.unwrap_or(input.len()));
        self.give(piece, out);
        self.at = At::Content { partial };
        match end {
            Some(_) => {
                self.pass_end(out);
                rest.get(1..).unwrap_or_default()
            }
            None => rest,
        }
    }

    fn pass<'i>(&mut self, input: &'i [u8]) -> &'i [u8] {
        match input.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                self.at = LINE_START;
                input.get(end + 1..).unwrap_or_default()
            }
            None => &[],
        }
    }

    /// The newline of the line at hand.
    fn pass_end(&mut self, out: &mut Vec<u8>) {
        if self.at == (At::Content { partial: false }) {
            self.end_line(out);
        }
        self.at = LINE_START;
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        self.give(b"\n", out);
        self.inside_line = false;
    }

    fn give(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let most = usize::try_from(self.remain).unwrap_or(usize::MAX);
        let given = bytes.get(..most).unwrap_or(bytes);
        out.extend_from_slice(given);
        self.remain = self.remain.saturating_sub(given.len() as u64);
        self.inside_line |= !given.is_empty();
    }
}

/// The timestamp with exactly nine digits of a second's fraction, and `Z` for an offset of zero.
fn nine_digits(timestamp: &[u8]) -> Vec<u8> {
    let zone = timestamp
        .iter()
        .rposition(|byte| matches!(byte, b'Z' | b'z' | b'+' | b'-'))
        .unwrap_or(timestamp.len());
    let (time, zone) = timestamp.split_at(zone);
    let point = time.iter().position(|byte| *byte == b'.');
    let (seconds, fraction) = time.split_at(point.unwrap_or(time.len()));
    let digits = fraction.get(1..).unwrap_or_default();
    let zeros = std::iter::repeat_n(&b'0', FRACTION_DIGITS);
    let mut text = seconds.to_vec();
    text.push(b'.');
    text.extend(digits.iter().chain(zeros).take(FRACTION_DIGITS));
    text.extend_from_slice(match zone {
        b"+00:00" | b"-00:00" | b"z" => b"Z",
        zone => zone,
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: &str = "2026-01-02T03:04:05.000000006Z";

    /// What comes out, whatever the pieces that go in.
    fn decoded(options: &LogOptions, log: &str) -> String {
        let whole = decoded_in_pieces(options, log.as_bytes(), log.len().max(1));
        for size in [1, 2, 3, 7, 64] {
            let pieces = decoded_in_pieces(options, log.as_bytes(), size);
            assert_eq!(pieces, whole, "in pieces of {size}: {log:?}");
        }
        whole
    }

    fn decoded_in_pieces(options: &LogOptions, log: &[u8], size: usize) -> String {
        let mut decoder = Decoder::new(options);
        let mut out = Vec::new();
        for piece in log.chunks(size) {
            decoder.feed(piece, &mut out);
        }
        String::from_utf8(out).unwrap()
    }

    fn plain() -> LogOptions {
        LogOptions::default()
    }

    #[test]
    fn each_shape_of_line_gives_what_was_written() {
        let rows = [
            (format!("{T} stdout F text\n"), "text\n"),
            (format!("{T} stdout F \n"), "\n"),
            (format!("{T} stdout F\n"), "\n"),
            (format!("{T} stdout F  two  spaces \n"), " two  spaces \n"),
            (format!("{T} stdout F dos\r\n"), "dos\r\n"),
            (
                format!("{T} stdout P one \n{T} stdout P:x and \n{T} stdout F two\n"),
                "one and two\n",
            ),
            (format!("{T} stdout P \n{T} stdout F\n"), "\n"),
            (format!("{T} stdout F cut"), "cut"),
            (format!("{T} stdout F o\n{T} stderr F e\n"), "o\ne\n"),
            (format!("{T} stdin F x\n{T} stdout F y\n"), "y\n"),
            (format!("{{\"log\":\"x\"}}\n\n{T} stdout F y\n"), "y\n"),
            (format!("{}\n{T} stdout F y\n", "x".repeat(10 * MAX_HEAD)), "y\n"),
            (format!("a b c d\n{T} stdout F y\n"), "y\n"),
            (format!("{T} stdo"), ""),
            (String::new(), ""),
        ];
        for (log, text) in rows {
            assert_eq!(decoded(&plain(), &log), text, "{log:?}");
        }
    }

    #[test]
    fn timestamps_stand_once_before_each_line_with_nine_digits() {
        let options = LogOptions { timestamps: true, ..plain() };
        let log = format!(
            "{T} stdout P one \n2026-01-02T03:04:06Z stdout F two\n\
             2026-01-02T05:04:05.67+02:00 stdout F x\n2026-01-02T03:04:05.1+00:00 stdout F\n"
        );
        assert_eq!(
            decoded(&options, &log),
            format!(
                "{T} one two\n2026-01-02T05:04:05.670000000+02:00 x\n\
                 2026-01-02T03:04:05.100000000Z \n"
            )
        );
    }

    #[test]
    fn one_stream_alone_has_timestamps_of_its_own() {
        let log = format!("{T} stderr P part\n{T} stdout F out\n{T} stderr F end\n");
        let options = |streams| LogOptions { streams, timestamps: true, ..plain() };
        assert_eq!(decoded(&options(SelectedStreams::Stdout), &log), format!("{T} out\n"));
        assert_eq!(decoded(&options(SelectedStreams::Stderr), &log), format!("{T} partend\n"));
    }

    #[test]
    fn lines_before_an_instant_are_left_out() {
        let log = "2026-01-02T03:04:05Z stdout F old\n\
                   2026-01-02T05:04:05.999999999+02:00 stdout F old too\n\
                   2026-01-02T03:04:06Z stdout F new\n";
        let options =
            LogOptions { since: Some("2026-01-02T03:04:06Z".parse().unwrap()), ..plain() };
        assert_eq!(decoded(&options, log), "new\n");
    }

    #[test]
    fn a_limit_cuts_anywhere_and_counts_what_is_given() {
        let log = format!("{T} stdout F 12345\n{T} stderr F 6789\n");
        let whole = decoded(&plain(), &log);
        for limit in 0..=whole.len() {
            let options = LogOptions { limit_bytes: Some(limit as u64), ..plain() };
            assert_eq!(decoded(&options, &log), whole[..limit]);
        }
        let options = LogOptions { limit_bytes: Some(33), timestamps: true, ..plain() };
        assert_eq!(decoded(&options, &log), format!("{T} 12"));
    }

    #[test]
    fn a_line_cut_by_the_end_of_its_file_does_not_run_into_the_next_file() {
        let mut decoder = Decoder::new(&plain());
        let mut out = Vec::new();
        for file in [
            format!("{T} stdout F cut"),
            format!("{T} std"),
            format!("{T} stdout P begun here, "),
            format!("{T} stdout F ended there\n"),
        ] {
            decoder.feed(file.as_bytes(), &mut out);
            decoder.end_file(&mut out);
        }
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "cut\nbegun here, ended there\n");
    }

    #[test]
    fn a_line_of_any_length_is_never_held() {
        let mut decoder = Decoder::new(&plain());
        let block = vec![b'x'; 1 << 20];
        let mut given = 0;
        decoder.feed(format!("{T} stdout F ").as_bytes(), &mut Vec::new());
        for _ in 0..100 {
            let mut out = Vec::new();
            decoder.feed(&block, &mut out);
            given += out.len();
            assert!(decoder.head.capacity() <= 2 * MAX_HEAD);
        }
        assert_eq!(given, 100 << 20);
    }
}
