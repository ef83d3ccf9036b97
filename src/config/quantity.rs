//! Resource quantities in configuration values: `10Mi`, `1.5G`, `500m`, `12e6`.

/// Why a text is not a usable quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ParseQuantityError {
    /// Not a number with a known suffix.
    #[error("not a quantity: write for example \"10Mi\", \"1G\" or \"500m\"")]
    Invalid,
    /// Too large for 64 bits.
    #[error("quantity too large")]
    Overflow,
}

/// Powers of ten and of two that a suffix stands for.
fn suffix_scale(suffix: &str) -> Option<(i32, u32)> {
    Some(match suffix {
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "" => (0, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        _ => {
            return suffix
                .strip_prefix(['e', 'E'])
                .and_then(exponent)
                .map(|power| (power, 0));
        }
    })
}

fn exponent(text: &str) -> Option<i32> {
    text.parse().ok().filter(|power: &i32| power.abs() <= 18)
}

/// The whole units (bytes, cores) of a quantity, rounded up as Kubernetes rounds.
///
/// # Errors
/// The text is not a quantity, or does not fit 64 bits.
pub(super) fn parse_quantity(text: &str) -> Result<i64, ParseQuantityError> {
    use ParseQuantityError::{Invalid, Overflow};
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at_checked(end).ok_or(Invalid)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(Invalid);
    }
    let (ten, two) = suffix_scale(suffix).ok_or(Invalid)?;
    let digits = format!("{whole}{fraction}");
    if digits.len() > 30 {
        return Err(Overflow);
    }
    let mantissa: i128 = digits.parse().map_err(|_| Invalid)?;
    let power = ten - i32::try_from(fraction.len()).map_err(|_| Overflow)?;
    let scaled = mantissa.checked_mul(1i128 << two).ok_or(Overflow)?;
    let ten_power = 10i128.checked_pow(power.unsigned_abs()).ok_or(Overflow)?;
    let value = if power >= 0 {
        scaled.checked_mul(ten_power).ok_or(Overflow)?
    } else if negative {
        scaled / ten_power
    } else {
        scaled / ten_power + i128::from(scaled % ten_power != 0)
    };
    i64::try_from(if negative { -value } else { value }).map_err(|_| Overflow)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::ParseQuantityError::{Invalid, Overflow};
    use super::*;

    #[test]
    fn quantities_parse_to_whole_units_rounded_up() {
        let cases = [
            ("10Mi", Ok(10 << 20)),
            ("1.5Gi", Ok(3 << 29)),
            ("5k", Ok(5_000)),
            ("0", Ok(0)),
            ("500m", Ok(1)),
            ("-500m", Ok(0)),
            ("1e3", Ok(1_000)),
            ("12E6", Ok(12_000_000)),
            ("1E", Ok(1_000_000_000_000_000_000)),
            (".5M", Ok(500_000)),
            ("1Zi", Err(Invalid)),
            ("", Err(Invalid)),
            ("Mi", Err(Invalid)),
            ("1.2.3", Err(Invalid)),
            ("10 Mi", Err(Invalid)),
            ("ten", Err(Invalid)),
            ("16Ei", Err(Overflow)),
            ("99999999999999999999999999999999999999999", Err(Overflow)),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_quantity(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[-+0-9.eEkMGiTPm]{0,45}") {
            let _ = parse_quantity(&text);
        }
    }
}
