//! Kubernetes quantities (`500m`, `1.5Gi`, `2e3`) in exact integer arithmetic.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

/// Nano units per unit: the resolution of a quantity.
const NANO: i128 = 1_000_000_000;
/// Maximum magnitude in units; as upstream, larger values are capped.
const MAX_UNITS: i128 = i64::MAX as i128;
/// Maximum length of a text, against hostile manifests.
const MAX_LEN: usize = 128;

/// An exact amount in nano units. As upstream, finer fractions are rounded away from zero when parsed, and magnitudes
/// over `i64::MAX` are capped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity(i128);

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Neither a number nor a number with a known suffix.
    #[error("{0:?} is not a quantity (a number such as 2, 1.5, 500m, 1Gi or 2e3)")]
    Malformed(String),
    /// Longer than any valid quantity needs to be.
    #[error("a quantity of {0} characters is too long")]
    TooLong(usize),
}

/// The multiplier of a suffix.
#[derive(Clone, Copy)]
enum Scale {
    /// 10 to this power.
    Decimal(i64),
    /// 2 to this power.
    Binary(u32),
}

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// A whole number of units.
    pub const fn from_units(units: i64) -> Self {
        Self(units as i128 * NANO)
    }

    /// From thousandths of a unit.
    pub const fn from_milli(milli: i64) -> Self {
        Self(milli as i128 * (NANO / 1000))
    }

    /// Parses any form that the API accepts.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        if text.len() > MAX_LEN {
            return Err(QuantityError::TooLong(text.len()));
        }
        parse_nanos(text).map(Self).ok_or_else(|| QuantityError::Malformed(text.to_string()))
    }

    /// Parses an API quantity.
    pub fn from_api(quantity: &ApiQuantity) -> Result<Self, QuantityError> {
        Self::parse(&quantity.0)
    }

    /// Whole units, rounded away from zero (upstream's `Value`).
    pub fn value(self) -> i64 {
        to_i64(div_away(self.0, NANO))
    }

    /// Thousandths, rounded away from zero (upstream's `MilliValue`); capped at `i64::MAX`.
    pub fn milli_value(self) -> i64 {
        to_i64(div_away(self.0, NANO / 1000))
    }

    /// In nano units.
    pub(super) fn nanos(self) -> i128 {
        self.0
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Whether it is greater than zero.
    pub fn is_positive(self) -> bool {
        self.0 > 0
    }

    /// Whether it is less than zero.
    pub fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Whether it is a whole number of units.
    pub fn is_whole(self) -> bool {
        self.0 % NANO == 0
    }

    /// The sum, capped at the maximum magnitude.
    pub fn plus(self, other: Self) -> Self {
        let cap = MAX_UNITS * NANO;
        Self(self.0.saturating_add(other.0).clamp(-cap, cap))
    }

    /// This quantity divided by `divisor`, both in thousandths, rounded up; 0 for a divisor of zero.
    pub fn milli_quotient(self, divisor: Self) -> i64 {
        quotient(self.milli_value(), divisor.milli_value())
    }

    /// Like [`Self::milli_quotient`], with both in whole units.
    pub fn unit_quotient(self, divisor: Self) -> i64 {
        quotient(self.value(), divisor.value())
    }
}

fn quotient(amount: i64, divisor: i64) -> i64 {
    match divisor {
        0 => 0,
        _ => to_i64(
            i128::from(amount).div_euclid(i128::from(divisor))
                + i128::from(i128::from(amount).rem_euclid(i128::from(divisor)) != 0),
        ),
    }
}

fn to_i64(wide: i128) -> i64 {
    i64::try_from(wide).unwrap_or(if wide < 0 { i64::MIN } else { i64::MAX })
}

fn div_away(amount: i128, by: i128) -> i128 {
    let whole = amount / by;
    match amount % by {
        0 => whole,
        rest => whole + rest.signum(),
    }
}

fn parse_nanos(text: &str) -> Option<i128> {
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, rest) = take_digits(rest);
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => take_digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let magnitude = match parse_scale(suffix)? {
        Scale::Binary(power) => magnitude(whole.bytes(), fraction.bytes(), NANO << power),
        Scale::Decimal(power) => decimal_magnitude(whole, fraction, power),
    };
    Some(if negative { -magnitude } else { magnitude })
}

fn take_digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn parse_scale(suffix: &str) -> Option<Scale> {
    Some(match suffix {
        "n" => Scale::Decimal(-9),
        "u" => Scale::Decimal(-6),
        "m" => Scale::Decimal(-3),
        "" => Scale::Decimal(0),
        "k" => Scale::Decimal(3),
        "M" => Scale::Decimal(6),
        "G" => Scale::Decimal(9),
        "T" => Scale::Decimal(12),
        "P" => Scale::Decimal(15),
        "E" => Scale::Decimal(18),
        "Ki" => Scale::Binary(10),
        "Mi" => Scale::Binary(20),
        "Gi" => Scale::Binary(30),
        "Ti" => Scale::Binary(40),
        "Pi" => Scale::Binary(50),
        "Ei" => Scale::Binary(60),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
            if unsigned.is_empty() || !unsigned.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            Scale::Decimal(digits.parse().ok()?)
        }
    })
}

/// `whole.fraction * 10^power`, computed by moving the decimal point.
fn decimal_magnitude(whole: &str, fraction: &str, power: i64) -> i128 {
    // With larger exponents every amount is either capped or rounded to the smallest one.
    let limit = 2 * MAX_LEN as i64;
    let point = (whole.len() as i64).saturating_add(power.clamp(-limit, limit));
    let digits = || whole.bytes().chain(fraction.bytes());
    let count = whole.len() + fraction.len();
    let zeros = |n: i64| std::iter::repeat_n(b'0', usize::try_from(n).unwrap_or(0));
    let before = usize::try_from(point).unwrap_or(0);
    magnitude(
        digits().take(before).chain(zeros(before as i64 - count as i64)),
        zeros(-point).chain(digits().skip(before)).collect::<Vec<_>>(),
        NANO,
    )
}

/// `whole.fraction * (scale / NANO)` in nano units, rounded up and capped. Exact for any number of digits: the
/// fraction is accumulated from its last digit, and any remainder is remembered.
fn magnitude(
    whole: impl Iterator<Item = u8>,
    fraction: impl IntoIterator<Item = u8, IntoIter: DoubleEndedIterator>,
    scale: i128,
) -> i128 {
    let cap = MAX_UNITS * NANO;
    let units =
        whole.fold(0_i128, |sum, digit| (sum * 10 + i128::from(digit - b'0')).min(MAX_UNITS));
    let (part, cut) = fraction.into_iter().rev().fold((0_i128, false), |(sum, cut), digit| {
        let sum = sum + i128::from(digit - b'0') * scale;
        (sum / 10, cut || sum % 10 != 0)
    });
    units.saturating_mul(scale).saturating_add(part + i128::from(cut)).min(cap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn q(text: &str) -> Quantity {
        Quantity::parse(text).unwrap()
    }

    #[test]
    fn every_suffix_means_what_it_means_in_the_api() {
        for (text, value) in [
            ("0", 0),
            ("12", 12),
            ("+3", 3),
            ("-3", -3),
            ("1k", 1_000),
            ("1M", 1_000_000),
            ("1G", 1_000_000_000),
            ("2T", 2_000_000_000_000),
            ("1P", 1_000_000_000_000_000),
            ("1E", 1_000_000_000_000_000_000),
            ("1Ki", 1024),
            ("1.5Gi", 1_610_612_736),
            ("1Ti", 1 << 40),
            ("1Pi", 1 << 50),
            ("1Ei", 1 << 60),
            ("0.5Ei", 1 << 59),
            ("1e3", 1000),
            ("1E3", 1000),
            ("1e+3", 1000),
            ("1500e-3", 2),
            (".5", 1),
            ("5.", 5),
            ("64Mi", 67_108_864),
            ("007", 7),
            ("-500m", -1),
        ] {
            assert_eq!(q(text).value(), value, "{text}");
        }
    }

    #[test]
    fn milli_values_round_up() {
        for (text, milli) in [
            ("1", 1000),
            ("500m", 500),
            ("0.1", 100),
            ("100u", 1),
            ("1n", 1),
            ("1.0005", 1001),
            ("+1", 1000),
            ("1.", 1000),
            ("128974848", 128_974_848_000),
            ("000000000000000000000000000001", 1000),
            ("-1u", -1),
        ] {
            assert_eq!(q(text).milli_value(), milli, "{text}");
        }
    }

    #[test]
    fn what_is_finer_than_a_nano_becomes_a_nano() {
        assert_eq!(q("0.00000000001"), q("1n"));
        assert_eq!(q("1e-300"), q("1n"));
        assert_eq!(q("0e-300"), Quantity::ZERO);
        assert_eq!(q("0.5n"), q("1n"));
    }

    #[test]
    fn what_is_too_large_is_capped() {
        for text in ["12E", "100E", "16Ei", "1e100", "99999999999999999999999999"] {
            assert_eq!(q(text).value(), i64::MAX, "{text}");
        }
        assert_eq!(q("1e9223372036854775807").value(), i64::MAX);
        assert_eq!(q("0e1000").value(), 0);
    }

    #[test]
    fn garbage_is_refused() {
        for text in [
            "",
            ".",
            "+",
            "-",
            "m",
            "Gi",
            "1 Gi",
            " 1",
            "1gi",
            "1KI",
            "1ki",
            "1K",
            "1kb",
            "1KiB",
            "1Zi",
            "ten",
            "1,5",
            "1_000",
            "1µ",
            "1.2.3",
            "1e",
            "1e+",
            "1e1.5",
            "0x10",
            "--1",
            "1mm",
            "NaN",
            "inf",
            "1e99999999999999999999",
            "١",
        ] {
            assert!(matches!(Quantity::parse(text), Err(QuantityError::Malformed(_))), "{text}");
        }
        assert_eq!(Quantity::parse(&"1".repeat(1000)), Err(QuantityError::TooLong(1000)));
    }

    #[test]
    fn signs_and_fractions_are_recognised() {
        for (text, positive, negative, whole) in [
            ("0", false, false, true),
            ("-0", false, false, true),
            ("1n", true, false, false),
            ("-1n", false, true, false),
            ("1000m", true, false, true),
            ("1.5", true, false, false),
            ("-2", false, true, true),
        ] {
            let parsed = (q(text).is_positive(), q(text).is_negative(), q(text).is_whole());
            assert_eq!(parsed, (positive, negative, whole), "{text}");
        }
    }

    #[test]
    fn quotients_round_up_and_survive_a_zero_divisor() {
        assert_eq!(q("1500m").milli_quotient(q("1")), 2);
        assert_eq!(q("1500m").milli_quotient(q("1m")), 1500);
        assert_eq!(q("1Gi").unit_quotient(q("1Mi")), 1024);
        assert_eq!(q("1").unit_quotient(Quantity::ZERO), 0);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "\\PC{0,40}") {
            let _ = Quantity::parse(&text);
        }

        #[test]
        fn numbers_like_text_are_read_or_refused_without_a_panic(
            text in "[+-]?[0-9]{0,60}\\.?[0-9]{0,40}([eE][+-]?[0-9]{0,20}|[KMGTPE]i?|[numk])?"
        ) {
            let _ = Quantity::parse(&text);
        }

        #[test]
        fn whole_numbers_survive(n in any::<i64>()) {
            prop_assume!(n != i64::MIN);
            prop_assert_eq!(q(&n.to_string()).value(), n);
            prop_assert!(q(&n.to_string()).is_whole());
        }

        #[test]
        fn a_suffix_is_the_same_as_writing_the_number_out(n in 0i64..1_000_000) {
            prop_assert_eq!(q(&format!("{n}Ki")), Quantity::from_units(n * 1024));
            prop_assert_eq!(q(&format!("{n}m")), Quantity::from_milli(n));
            prop_assert_eq!(q(&format!("{n}e3")), q(&format!("{n}k")));
        }

        #[test]
        fn order_follows_the_numbers(a in any::<u32>(), b in any::<u32>()) {
            prop_assert_eq!(q(&format!("{a}m")).cmp(&q(&format!("{b}m"))), a.cmp(&b));
        }

        #[test]
        fn moving_the_point_changes_nothing(n in 0u64..1_000_000_000_000, places in 0usize..12) {
            let digits = format!("{n:013}");
            let (whole, fraction) = digits.split_at(13 - places);
            prop_assert_eq!(q(&format!("{whole}.{fraction}e{places}")), q(&n.to_string()));
        }
    }
}
