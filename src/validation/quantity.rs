//! Quantities (`500m`, `1Gi`, `1e3`) as exact integers.

const NANO: i128 = 1_000_000_000;
const MAX: i128 = i64::MAX as i128 * NANO;

/// Parses a quantity into billionths of its unit, rounded away from zero below that and capped at
/// 2⁶³-1 units, as the API does. `None` when the text is not a quantity.
pub(super) fn nanos(text: &str) -> Option<i128> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let value = magnitude(whole, fraction, scale(suffix)?);
    Some(if negative { -value } else { value })
}

/// What a suffix multiplies with: 2ⁿ or 10ⁿ.
enum Scale {
    Binary(u32),
    Decimal(i32),
}

fn scale(suffix: &str) -> Option<Scale> {
    Some(match suffix {
        "Ki" => Scale::Binary(10),
        "Mi" => Scale::Binary(20),
        "Gi" => Scale::Binary(30),
        "Ti" => Scale::Binary(40),
        "Pi" => Scale::Binary(50),
        "Ei" => Scale::Binary(60),
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
        _ => Scale::Decimal(exponent(suffix)?),
    })
}

fn exponent(suffix: &str) -> Option<i32> {
    let digits = suffix.strip_prefix(['e', 'E'])?;
    let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    if unsigned.is_empty() || !unsigned.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value = unsigned.parse::<i32>().unwrap_or(i32::MAX).min(1000);
    Some(if digits.starts_with('-') {
        -value
    } else {
        value
    })
}

/// `whole.fraction × scale` in billionths, rounded up and capped.
fn magnitude(whole: &str, fraction: &str, scale: Scale) -> i128 {
    let mut digits: i128 = 0;
    let mut dropped = false;
    // Exponent of ten of the last digit kept. 30 digits are more than any value below the cap has
    // in billionths with a binary suffix's share left to multiply.
    let mut power: i32 = 0;
    let whole = whole.trim_start_matches('0');
    for (index, byte) in whole.bytes().chain(fraction.bytes()).enumerate() {
        let after_point = index >= whole.len();
        if digits < 10_i128.pow(18) {
            digits = digits * 10 + i128::from(byte - b'0');
            power -= i32::from(after_point);
        } else {
            dropped |= byte != b'0';
            power += i32::from(!after_point);
        }
    }
    if digits == 0 {
        return 0;
    }
    let (factor, power) = match scale {
        Scale::Binary(bits) => (1_i128 << bits, power),
        Scale::Decimal(exponent) => (1, power.saturating_add(exponent)),
    };
    let value = digits
        .checked_mul(factor)
        .map(|v| scaled(v, power.saturating_add(9), dropped));
    value.unwrap_or(MAX).min(MAX)
}

/// `value × 10^power`, rounded up.
fn scaled(value: i128, power: i32, dropped: bool) -> i128 {
    match u32::try_from(power) {
        Ok(up) => 10_i128
            .checked_pow(up)
            .and_then(|p| value.checked_mul(p))
            .and_then(|v| v.checked_add(i128::from(dropped)))
            .unwrap_or(MAX),
        Err(_) => match 10_i128.checked_pow(power.unsigned_abs()) {
            Some(p) => value / p + i128::from(value % p != 0 || dropped),
            None => 1,
        },
    }
}

/// Whether the value is a whole number of units.
pub(super) fn is_whole(nanos: i128) -> bool {
    nanos % NANO == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_exact() {
        for (text, expected) in [
            ("0", 0),
            ("1", NANO),
            ("500m", NANO / 2),
            ("0.5", NANO / 2),
            (".5", NANO / 2),
            ("1.", NANO),
            ("+1", NANO),
            ("-1", -NANO),
            ("1n", 1),
            ("0.1n", 1),
            ("1u", 1000),
            ("1k", 1000 * NANO),
            ("1Ki", 1024 * NANO),
            ("1.5Gi", 1536 * 1024 * 1024 * NANO),
            ("1e3", 1000 * NANO),
            ("1E3", 1000 * NANO),
            ("1e-3", NANO / 1000),
            ("12E", 9_223_372_036_854_775_807 * NANO),
            ("128974848", 128_974_848 * NANO),
            ("1000000000000000000000000", MAX),
            ("0.0000000000000000000000000000000000001", 1),
            ("1e1000000", MAX),
            ("000000000000000000000000000001", NANO),
            ("1Ei", (1 << 60) * NANO),
        ] {
            assert_eq!(nanos(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in [
            "", " ", "1 ", " 1", "a", "1K", "1kb", "1KiB", "1.2.3", "-", "+", "1e", "1e+", "e3",
            ".", "1,5", "0x10", "1_000", "--1", "1µ", "NaN",
        ] {
            assert_eq!(nanos(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[-+0-9.eEkKMGTPinum]{0,60}") {
            if let Some(value) = nanos(&text) {
                prop_assert!(value.abs() <= MAX);
            }
        }

        #[test]
        fn integers_are_themselves(value in 0_i64..i64::MAX) {
            let nanos = nanos(&value.to_string()).unwrap();
            prop_assert_eq!(nanos, i128::from(value) * NANO);
            prop_assert!(is_whole(nanos));
        }
    }
}
