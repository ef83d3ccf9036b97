//! Durations as Go prints them, which users know from events. Pure.

use std::time::Duration;

/// `1.2s`, `345ms`, `1m2.5s`, `1h0m0s`, `0s`; precise to the millisecond, the rest is cut off.
pub fn go_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    match ms {
        0 => "0s".to_owned(),
        1..1000 => format!("{ms}ms"),
        _ => {
            let (seconds, ms) = (ms / 1000, ms % 1000);
            let fraction = format!(".{ms:03}");
            let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
            match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
                (0, 0, s) => format!("{s}{fraction}s"),
                (0, m, s) => format!("{m}m{s}{fraction}s"),
                (h, m, s) => format!("{h}h{m}m{s}{fraction}s"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_look_like_gos() {
        let table = [
            (0, "0s"),
            (7, "7ms"),
            (345, "345ms"),
            (1000, "1s"),
            (1200, "1.2s"),
            (15_981, "15.981s"),
            (60_000, "1m0s"),
            (62_500, "1m2.5s"),
            (3_600_000, "1h0m0s"),
            (3_661_010, "1h1m1.01s"),
        ];
        for (ms, expected) in table {
            assert_eq!(go_duration(Duration::from_millis(ms)), expected);
        }
        assert_eq!(go_duration(Duration::from_micros(999)), "0s");
    }
}
