//! Formats times for users. Pure.

use jiff::Timestamp;
use jiff::tz::TimeZone;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// The duration in its two largest units, as `kubectl` prints it.
pub fn span(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.as_second().saturating_sub(from.as_second()).max(0);
    let two = |whole: i64, large: &str, rest: i64, small: &str| match rest {
        0 => format!("{whole}{large}"),
        rest => format!("{whole}{large}{rest}{small}"),
    };
    match seconds {
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(s / MINUTE, "m", s % MINUTE, "s"),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(s / HOUR, "h", s % HOUR / MINUTE, "m"),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(s / DAY, "d", s % DAY / HOUR, "h"),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => two(s / YEAR, "y", s % YEAR / DAY, "d"),
        s => format!("{}y", s / YEAR),
    }
}

/// A time and its distance from now: `12:00:40 (in 23s)`. Has a date if that is not today.
pub fn clock(at: Timestamp, now: Timestamp, zone: &TimeZone) -> String {
    let (then, today) = (at.to_zoned(zone.clone()), now.to_zoned(zone.clone()));
    let form = if then.date() == today.date() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    let distance = match at.as_second().cmp(&now.as_second()) {
        std::cmp::Ordering::Greater => format!("in {}", span(now, at)),
        std::cmp::Ordering::Equal => "now".into(),
        std::cmp::Ordering::Less => format!("{} ago", span(at, now)),
    };
    format!("{} ({distance})", then.strftime(form))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + seconds).unwrap()
    }

    #[test]
    fn durations_have_their_two_largest_units() {
        for (seconds, expected) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (155, "2m35s"),
            (10 * MINUTE, "10m"),
            (179 * MINUTE + 59, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 61, "3h1m"),
            (8 * HOUR + 59, "8h"),
            (47 * HOUR, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + 5 * HOUR, "2d5h"),
            (8 * DAY + 5 * HOUR, "8d"),
            (2 * YEAR + 3 * DAY, "2y3d"),
            (9 * YEAR, "9y"),
        ] {
            assert_eq!(span(t(0), t(seconds)), expected, "{seconds}");
        }
    }

    #[test]
    fn a_time_is_shown_with_its_distance_and_with_its_date_on_another_day() {
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        assert_eq!(clock(t(23), t(0), &zone), "01:00:23 (in 23s)");
        assert_eq!(clock(t(0), t(0), &zone), "01:00:00 (now)");
        assert_eq!(clock(t(-90 * MINUTE), t(0), &zone), "2025-12-31 23:30:00 (90m ago)");
    }
}
