//! The sampling of traces that start in this process. Pure.

/// Samples by trace ID. Components with the same rate make the same decision for a trace: this is OpenTelemetry's
/// `TraceIDRatioBased`, which upstream uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ratio {
    /// Trace IDs whose 63 bits are a smaller number are sampled.
    bound: u64,
}

impl Ratio {
    /// From a rate per million; higher rates sample all traces.
    pub(super) fn per_million(rate: u32) -> Ratio {
        let bound = (u128::from(rate.min(1_000_000)) << 63) / 1_000_000;
        Ratio { bound: u64::try_from(bound).unwrap_or(1 << 63) }
    }

    /// Whether a trace is sampled.
    pub(super) fn takes(self, trace: u128) -> bool {
        let low = u64::try_from(trace & u128::from(u64::MAX)).unwrap_or(u64::MAX);
        low >> 1 < self.bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_of_zero_all_of_a_million_and_the_share_of_the_rest() {
        let step = u128::from(u64::MAX) / 1000;
        let number = |part: u128| part * step + step / 2;
        for (rate, taken) in
            [(0, 0), (1000, 1), (250_000, 250), (1_000_000, 1000), (u32::MAX, 1000)]
        {
            let ratio = Ratio::per_million(rate);
            let found = (0..1000).filter(|part| ratio.takes(number(*part))).count();
            assert_eq!(found, taken, "{rate}");
        }
        assert!(Ratio::per_million(1_000_000).takes(u128::MAX));
        assert!(!Ratio::per_million(0).takes(1 << 100));
    }

    #[test]
    fn the_upper_half_of_the_number_does_not_matter() {
        let ratio = Ratio::per_million(500_000);
        for high in [0, 1, u128::from(u64::MAX)] {
            assert!(ratio.takes(high << 64 | 0x7fff_ffff_ffff_ffff));
            assert!(!ratio.takes(high << 64 | 0x8000_0000_0000_0000));
        }
    }
}
