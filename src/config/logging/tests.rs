use std::io::{self, Write};
use std::sync::Arc;

use jiff::tz::TimeZone;
use parking_lot::Mutex;
use tokio::runtime::Builder;
use tracing::{debug, error, info, info_span, trace, warn};
use tracing_subscriber::layer::SubscriberExt;

use super::*;
use crate::base::clock::SimulatedWallClock;

/// Remembers each `write` on its own.
#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<String>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().push(String::from_utf8(bytes.to_vec()).unwrap());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `work` under a log of its own; returns what each write said.
fn captured(config: &LoggingConfig, work: impl FnOnce(&LogControl)) -> Vec<String> {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    let now = "2021-11-21T03:04:05.678901Z".parse().unwrap();
    let _clock = SimulatedWallClock::start(runtime.handle(), now);
    let _entered = runtime.enter();
    let out = Captured::default();
    let (layer, control) = build(config, out.clone());
    let layer = layer.with_identity(TimeZone::fixed(jiff::tz::offset(1)), 1234);
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::with_default(subscriber, || work(&control));
    std::mem::take(&mut *out.0.lock())
}

fn config(format: LogFormat, verbosity: u32) -> LoggingConfig {
    LoggingConfig { format, verbosity, vmodule: Vec::new() }
}

#[test]
fn text_lines_are_klogs() {
    let mut first = 0;
    let lines = captured(&config(LogFormat::Text, 0), |_| {
        let pod = "default/web-0";
        first = line!() + 1;
        info!(pod, count = 3, ready = true, ratio = 0.5, "Pod started");
        warn!(name = %"x y", list = ?[1, 2], "Careful");
        error!(error = %"it broke", "Sync failed");
    });
    let header = |severity: char, line: u32| {
        format!("{severity}1121 04:04:05.678901    1234 logging/tests.rs:{line}] ")
    };
    let started = "\"Pod started\" pod=\"default/web-0\" count=3 ready=true ratio=0.5\n";
    assert_eq!(
        lines,
        [
            header('I', first) + started,
            header('W', first + 1) + "\"Careful\" name=\"x y\" list=\"[1, 2]\"\n",
            header('E', first + 2) + "\"Sync failed\" err=\"it broke\"\n",
        ]
    );
}

#[test]
fn json_lines_are_component_bases() {
    let mut first = 0;
    let cause = anyhow::anyhow!("refused").context("cannot connect");
    let lines = captured(&config(LogFormat::Json, 4), |_| {
        first = line!() + 1;
        info!(pod = "a\"b", count = -3, "Pod \u{1} started");
        debug!(big = u64::MAX, none = f64::NAN, "Detail");
        error!(error = cause.as_ref() as &(dyn std::error::Error + 'static), "Sync failed");
    });
    assert_eq!(
        lines,
        [
            format!(
                "{{\"ts\":1637463845678.901,\"caller\":\"logging/tests.rs:{first}\",\
                 \"msg\":\"Pod \\u0001 started\",\"v\":0,\"pod\":\"a\\\"b\",\"count\":-3}}\n"
            ),
            format!(
                "{{\"ts\":1637463845678.901,\"caller\":\"logging/tests.rs:{}\",\"msg\":\"Detail\",\
                 \"v\":4,\"big\":18446744073709551615,\"none\":\"NaN\"}}\n",
                first + 1
            ),
            format!(
                "{{\"ts\":1637463845678.901,\"caller\":\"logging/tests.rs:{}\",\
                 \"msg\":\"Sync failed\",\"err\":\"cannot connect: refused\"}}\n",
                first + 2
            ),
        ]
    );
    for line in lines {
        serde_json::from_str::<serde_json::Value>(&line).unwrap();
    }
}

#[test]
fn hostile_text_stays_on_its_line() {
    for format in [LogFormat::Text, LogFormat::Json] {
        let lines = captured(&config(format, 0), |_| {
            let hostile = "x\"\nE1121 fake] \u{1b}[31m\r\u{2028}";
            info!(value = hostile, debug = ?hostile, "message {hostile}");
        });
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].matches(['\n', '\r', '\u{1b}', '\u{2028}']).count(), 1);
        assert!(lines[0].ends_with('\n'));
    }
}

#[test]
fn verbosity_decides_what_is_shown() {
    let cases = [
        (0, 3), // error, warn, info
        (3, 3),
        (4, 5), // and our debug, and a library's info
        (6, 6), // and our trace
        (8, 7), // and a library's debug
    ];
    for (verbosity, shown) in cases {
        let lines = captured(&config(LogFormat::Text, verbosity), |_| {
            error!("e");
            warn!("w");
            info!("i");
            debug!("d");
            trace!("t");
            info!(target: "h2::codec", "library");
            debug!(target: "h2::codec", "library");
        });
        assert_eq!(lines.len(), shown, "-v {verbosity}: {lines:#?}");
    }
    let quiet = captured(&config(LogFormat::Text, 0), |_| {
        warn!(target: "hyper", "a library's warning");
    });
    assert_eq!(quiet.len(), 1);
}

#[test]
fn verbosity_changes_while_running_and_rules_raise_it() {
    fn chat() {
        debug!("again");
    }
    let lines = captured(&config(LogFormat::Text, 0), |control| {
        chat();
        control.set_verbosity(4);
        assert_eq!(control.verbosity(), 4);
        chat();
        control.set_verbosity(1);
        chat();
    });
    assert_eq!(lines.len(), 1, "{lines:#?}");
    for (pattern, count) in [("test*", 1), ("other", 0)] {
        let rule = VModule { pattern: pattern.to_owned(), verbosity: 5 };
        let config = LoggingConfig { vmodule: vec![rule], ..config(LogFormat::Text, 0) };
        let lines = captured(&config, |_| chat());
        assert_eq!(lines.len(), count, "{pattern}: {lines:#?}");
    }
}

#[test]
fn a_line_carries_the_fields_of_its_spans() {
    let work = |_: &LogControl| {
        let outer = info_span!("sync", pod = "a/b", late = tracing::field::Empty);
        outer.record("late", 7);
        let _outer = outer.enter();
        let _inner = info_span!("step", n = 1).entered();
        info!(last = "z", "Inside");
        info!(pod = "own", "Inside");
    };
    let text = captured(&config(LogFormat::Text, 0), work);
    assert!(text[0].ends_with("] \"Inside\" pod=\"a/b\" late=7 n=1 last=\"z\"\n"), "{text:?}");
    // A field of its own counts, not the span's.
    assert!(text[1].ends_with("] \"Inside\" late=7 n=1 pod=\"own\"\n"), "{text:?}");
    let json = captured(&config(LogFormat::Json, 0), work);
    let parsed: serde_json::Value = serde_json::from_str(&json[0]).unwrap();
    assert_eq!(
        (&parsed["pod"], &parsed["late"], &parsed["n"]),
        (&"a/b".into(), &7.into(), &1.into())
    );
}

#[test]
fn formats_have_names() {
    assert_eq!("json".parse(), Ok(LogFormat::Json));
    assert_eq!("text".parse(), Ok(LogFormat::Text));
    assert!("xml".parse::<LogFormat>().is_err());
}
