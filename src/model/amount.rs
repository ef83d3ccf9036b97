//! Quantities with their format: as in the API's libraries, a quantity is printed with the family of suffixes in
//! which it was written.

use super::{Quantity, QuantityError};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

/// Suffixes of powers of 1000, starting with 10^-9.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// Suffixes of powers of 1024.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Numbers with more digits take another code path in upstream, which does not cache the original text.
const MAX_CACHED_DIGITS: usize = 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SuffixFamily {
    /// `500m`, `2`, `3k`.
    Decimal,
    /// `64Mi`.
    Binary,
    /// `2e3`.
    Exponent,
}

/// A quantity that remembers its family of suffixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount {
    value: Quantity,
    family: SuffixFamily,
    /// The original text, if upstream would cache it.
    original: Option<String>,
}

impl Amount {
    /// Parses any form that the API accepts.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let value = Quantity::parse(text)?;
        let number = text.trim_start_matches(['+', '-']);
        let end = number.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, suffix) = number.split_at(end.unwrap_or(number.len()));
        let family = match suffix {
            binary if binary.ends_with('i') => SuffixFamily::Binary,
            exponent if exponent.len() > 1 => SuffixFamily::Exponent,
            _ => SuffixFamily::Decimal,
        };
        let below_one = value.is_positive() && value < Quantity::from_units(1);
        let original = is_cached_upstream(number, suffix, family).then(|| text.to_string());
        Ok(Self {
            value,
            family: match family {
                SuffixFamily::Binary if below_one => SuffixFamily::Decimal,
                family => family,
            },
            original,
        })
    }

    /// From thousandths, printed with decimal suffixes.
    pub fn of_milli(milli: i64) -> Self {
        Self::with_family(Quantity::from_milli(milli), SuffixFamily::Decimal)
    }

    /// From bytes, printed with binary suffixes.
    pub fn of_bytes(bytes: i64) -> Self {
        Self::with_family(Quantity::from_units(bytes), SuffixFamily::Binary)
    }

    fn with_family(value: Quantity, family: SuffixFamily) -> Self {
        Self { value, family, original: None }
    }

    /// The quantity without format.
    pub fn value(&self) -> Quantity {
        self.value
    }

    /// The sum, in this one's format unless it is zero.
    pub fn plus(&self, other: &Self) -> Self {
        let family = if self.value.is_zero() { other.family } else { self.family };
        Self::with_family(self.value.plus(other.value), family)
    }

    /// Rounded away from zero to whole thousandths.
    pub fn round_up_to_milli(self) -> Self {
        match self.value.nanos() % 1_000_000 {
            0 => self,
            _ => Self::with_family(Quantity::from_milli(self.value.milli_value()), self.family),
        }
    }

    /// In the canonical form of the API.
    pub fn to_api(&self) -> ApiQuantity {
        ApiQuantity(self.text())
    }

    fn text(&self) -> String {
        if let Some(original) = &self.original {
            return original.clone();
        }
        if self.value.is_zero() {
            return "0".into();
        }
        let small = self.value.nanos().abs() < Quantity::from_units(1024).nanos();
        match self.family {
            SuffixFamily::Binary if !small && self.value.is_whole() => binary(self.value),
            SuffixFamily::Exponent => decimal(self.value, |power| match power {
                0 => String::new(),
                power => format!("e{power}"),
            }),
            SuffixFamily::Binary | SuffixFamily::Decimal => decimal(self.value, |power| {
                let index = usize::try_from(power / 3 + 3).unwrap_or(3);
                DECIMAL.get(index).copied().unwrap_or_default().into()
            }),
        }
    }
}

/// The canonical form of a quantity; an invalid one is returned unchanged.
pub fn canonical(quantity: &ApiQuantity) -> ApiQuantity {
    Amount::parse(&quantity.0).map_or_else(|_| quantity.clone(), |amount| amount.to_api())
}

/// Whether upstream prints a number as it was written, which it does if a quick check finds it canonical.
fn is_cached_upstream(number: &str, suffix: &str, family: SuffixFamily) -> bool {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        whole => whole,
    };
    let digits = format!("{whole}{fraction}");
    match family {
        SuffixFamily::Binary => {
            let power = BINARY.iter().position(|known| *known == suffix);
            // As upstream estimates it: 3 digits per factor of 1024.
            let digits_of_suffix = power.unwrap_or_default() * 3;
            let odd = digits.parse::<i64>().is_ok_and(|value| value & 7 != 0);
            fraction.is_empty() && odd && digits.len() + digits_of_suffix <= 14
        }
        SuffixFamily::Decimal | SuffixFamily::Exponent => {
            let power = match suffix {
                "" => Some(0),
                suffix if family == SuffixFamily::Exponent => {
                    suffix.get(1..).and_then(|p| p.parse::<i64>().ok())
                }
                suffix => DECIMAL
                    .iter()
                    .position(|known| *known == suffix)
                    .and_then(|index| i64::try_from(index).ok())
                    .map(|index| (index - 3) * 3),
            };
            let places = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
            let scale = power.map(|power| power.saturating_sub(places));
            digits.len() <= MAX_CACHED_DIGITS
                && scale.is_some_and(|scale| scale >= -9 && scale % 3 == 0)
                && !digits.ends_with("000")
                && !digits.starts_with('0')
        }
    }
}

/// The shortest form with a binary suffix.
fn binary(value: Quantity) -> String {
    let mut units = value.value();
    let mut power = 0;
    while units % 1024 == 0 && power + 1 < BINARY.len() {
        units /= 1024;
        power += 1;
    }
    let suffix = BINARY.get(power).copied().unwrap_or_default();
    format!("{units}{suffix}")
}

/// The shortest form with a decimal suffix; `suffix` is called with the power of 10.
fn decimal(value: Quantity, suffix: impl Fn(i32) -> String) -> String {
    let mut nanos = value.nanos();
    let mut power = -9;
    while nanos % 1000 == 0 && power < 18 {
        nanos /= 1000;
        power += 3;
    }
    format!("{nanos}{}", suffix(power))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str) -> String {
        Amount::parse(text).unwrap().to_api().0
    }

    #[test]
    fn amounts_are_printed_as_the_api_prints_them() {
        for (written, expected) in [
            ("0", "0"),
            ("0m", "0"),
            ("0Mi", "0"),
            ("1", "1"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("1.5", "1500m"),
            ("100m", "100m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("2000", "2k"),
            ("2500", "2500"),
            ("1.234", "1.234"),
            ("1.500", "1.500"),
            ("0.1n", "1n"),
            ("128974848", "128974848"),
            ("64Mi", "64Mi"),
            ("1024Mi", "1Gi"),
            ("1536Mi", "1536Mi"),
            ("1.5Gi", "1536Mi"),
            ("8Ki", "8Ki"),
            ("1Ki", "1Ki"),
            ("0.5Ki", "512"),
            ("0.0001Ki", "102400u"),
            ("100M", "100M"),
            ("1000M", "1G"),
            ("1e3", "1e3"),
            ("1E3", "1E3"),
            ("2000e3", "2e6"),
            ("1e1", "10"),
            ("1E", "1E"),
            ("-1024Ki", "-1Mi"),
            ("-500m", "-500m"),
            ("+1", "+1"),
            ("001", "001"),
        ] {
            assert_eq!(shown(written), expected, "{written}");
        }
    }

    #[test]
    fn a_sum_is_printed_in_the_family_of_its_first_part() {
        for (first, second, expected) in [
            ("100m", "200m", "300m"),
            ("500m", "1.5", "2"),
            ("64Mi", "64Mi", "128Mi"),
            ("64Mi", "1024k", "66536Ki"),
            ("64Mi", "1M", "68108864"),
            ("1M", "64Mi", "68108864"),
            ("0", "64Mi", "64Mi"),
            ("64Mi", "0", "64Mi"),
            ("1e3", "1", "1001"),
        ] {
            let [first, second] = [first, second].map(|text| Amount::parse(text).unwrap());
            let sum = first.plus(&second);
            let exact = sum.value() == first.value().plus(second.value());
            assert_eq!((sum.to_api().0.as_str(), exact), (expected, true));
        }
    }

    #[test]
    fn thousandths_are_rounded_away_from_zero_and_anything_coarser_stays() {
        for (written, expected) in [
            ("100u", "1m"),
            ("1.0005", "1001m"),
            ("-100u", "-1m"),
            ("1.234", "1.234"),
            ("2Ki", "2Ki"),
            ("0", "0"),
        ] {
            let rounded = Amount::parse(written).unwrap().round_up_to_milli();
            assert_eq!(rounded.to_api().0, expected, "{written}");
        }
    }

    #[test]
    fn measured_amounts_have_the_families_of_their_kind() {
        assert_eq!(Amount::of_milli(250).to_api().0, "250m");
        assert_eq!(Amount::of_milli(2000).to_api().0, "2");
        assert_eq!(Amount::of_bytes(64 << 20).to_api().0, "64Mi");
        assert_eq!(Amount::of_bytes(100_000_000).to_api().0, "100000000");
    }

    proptest! {
        #[test]
        fn what_is_shown_is_worth_what_was_written(
            text in "[+-]?[0-9]{1,20}(\\.[0-9]{1,12})?([KMGTPE]i?|[numk]|[eE][+-]?[0-9]{1,2})?"
        ) {
            if let Ok(amount) = Amount::parse(&text) {
                let shown = amount.to_api().0;
                prop_assert_eq!(Quantity::parse(&shown), Ok(amount.value()), "{}", shown);
                let again = Amount::parse(&shown).unwrap();
                prop_assert_eq!(again.to_api().0, shown);
            }
        }
    }
}
