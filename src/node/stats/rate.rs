//! CPU usage rate from two samples. Pure.

/// Preferred minimum window of a rate, nanoseconds; several clients may scrape at different times.
const WINDOW: i64 = 10_000_000_000;
/// Minimum window, nanoseconds; a shorter one yields no rate.
const MIN_WINDOW: i64 = 100_000_000;

/// The start sample of the current window, and the last rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuRate {
    /// Time of the start sample, nanoseconds since the epoch.
    at: i64,
    /// Cumulative CPU time at the start sample, nanoseconds.
    used: u64,
    /// The last rate: nanoseconds of CPU time per second.
    per_second: Option<u64>,
}

impl CpuRate {
    /// State after the first sample, without a rate.
    pub(super) fn first(at: i64, used: u64) -> Self {
        Self { at, used, per_second: None }
    }

    /// State and rate after one more sample. Starts again if the counter or the clock went backwards.
    pub(super) fn next(self, at: i64, used: u64) -> (Self, Option<u64>) {
        let (Some(more), Some(elapsed)) = (used.checked_sub(self.used), at.checked_sub(self.at))
        else {
            return (Self::first(at, used), None);
        };
        if elapsed < 0 {
            return (Self::first(at, used), None);
        }
        if elapsed < WINDOW && self.per_second.is_some() || elapsed < MIN_WINDOW {
            return (self, self.per_second);
        }
        let per_second =
            u128::from(more) * 1_000_000_000 / u128::from(elapsed.unsigned_abs().max(1));
        let per_second = Some(u64::try_from(per_second).unwrap_or(u64::MAX));
        let next = if elapsed < WINDOW {
            // The window is too short: keep its start, so that it grows with the next samples.
            self
        } else {
            Self { at, used, per_second }
        };
        (next, per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    #[test]
    fn a_rate_takes_two_samples_and_the_window_moves_only_when_it_is_long_enough() {
        // Seconds, CPU nanoseconds used until then, and the rate.
        let table: &[(i64, u64, Option<u64>)] = &[
            (0, 1_000, None),
            (2, 1_000 + 2_000, Some(1_000)),
            (10, 1_000 + 20_000, Some(2_000)),
            (15, 1_000 + 90_000, Some(2_000)),
            (20, 1_000 + 120_000, Some(10_000)),
            (19, 1_000 + 130_000, None),
            (40, 1_000 + 5, None),
            (50, 1_000 + 5, Some(0)),
        ];
        let mut rate: Option<CpuRate> = None;
        for (at, used, expected) in table {
            let reported = match rate {
                None => {
                    rate = Some(CpuRate::first(at * S, *used));
                    None
                }
                Some(before) => {
                    let (next, reported) = before.next(at * S, *used);
                    rate = Some(next);
                    reported
                }
            };
            assert_eq!(reported, *expected, "at {at} s");
        }
    }

    #[test]
    fn samples_at_the_same_moment_and_absurd_counters_do_no_harm() {
        let (rate, reported) = CpuRate::first(0, 0).next(0, u64::MAX);
        assert_eq!((rate, reported), (CpuRate::first(0, 0), None));
        let (_, reported) = CpuRate::first(0, 0).next(20 * S, u64::MAX);
        assert_eq!(reported, Some(u64::MAX / 20));
        let (rate, reported) = CpuRate::first(i64::MIN, 0).next(i64::MAX, 1);
        assert_eq!((rate, reported), (CpuRate::first(i64::MAX, 1), None));
    }
}
