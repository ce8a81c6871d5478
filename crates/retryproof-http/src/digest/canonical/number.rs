// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers as ECMAScript writes them (RFC 8785 section 3.2.2.3), and the test that a double carries one in full.

/// A decimal number without its sign: the significant digits, and the power of ten behind `0.digits`.
#[derive(PartialEq, Eq)]
pub(super) struct Decimal {
    digits: Vec<u8>,
    point: i64,
}

impl Decimal {
    /// Reads JSON's number grammar; `None` when the exponent is beyond any double.
    fn read(number: &str) -> Option<Self> {
        let (mantissa, exponent) = match number.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (number, 0),
        };
        let (whole, fraction) = mantissa
            .trim_start_matches('-')
            .split_once('.')
            .unwrap_or_else(|| (mantissa.trim_start_matches('-'), ""));
        let all = whole.bytes().chain(fraction.bytes());
        let leading = all.clone().take_while(|d| *d == b'0').count();
        let mut digits: Vec<u8> = all.skip(leading).collect();
        digits.truncate(digits.iter().rposition(|d| *d != b'0').map_or(0, |last| last + 1));
        let point = if digits.is_empty() {
            0
        } else {
            i64::try_from(whole.len()).ok()? - i64::try_from(leading).ok()? + i64::from(exponent)
        };
        Some(Self { digits, point })
    }

    fn read_back(&self) -> Option<f64> {
        format!("0.{}e{}", str::from_utf8(&self.digits).ok()?, self.point).parse().ok()
    }
}

/// Writes a number as ECMAScript does (RFC 8785 section 3.2.2.3); `None` when a double does not carry it in full.
pub(super) fn write_number(number: &str, out: &mut Vec<u8>) -> Option<()> {
    let double: f64 = number.parse().ok()?;
    if !double.is_finite() {
        return None;
    }
    let shortest = shortest(double)?;
    if shortest != Decimal::read(number)? {
        return None;
    }
    if double < 0.0 {
        out.push(b'-');
    }
    write_decimal(&shortest, out);
    Some(())
}

/// The shortest digits that read back as this double; of two that are equally near, the even one.
pub(super) fn shortest(double: f64) -> Option<Decimal> {
    let mut shortest = Decimal::read(&format!("{double:e}"))?;
    // The standard library rounds a tie up, ECMAScript to even (RFC 8785 appendix B, `1424953923781206.2`).
    if shortest.digits.last().is_some_and(|last| last % 2 == 1) {
        let mut even = Decimal { digits: shortest.digits.clone(), point: shortest.point };
        *even.digits.last_mut()? -= 1;
        let is_tie = || {
            // No double has more than 767 significant digits, so this is its exact value.
            let exact = Decimal::read(&format!("{double:.767e}"));
            exact.is_some_and(|exact| {
                exact.point == even.point && exact.digits.strip_prefix(&even.digits[..]) == Some(b"5")
            })
        };
        if even.read_back() == Some(double.abs()) && is_tie() {
            shortest = even;
        }
    }
    Some(shortest)
}

pub(super) fn write_decimal(Decimal { digits, point }: &Decimal, out: &mut Vec<u8>) {
    let count = digits.len();
    let zeros = |n: usize| std::iter::repeat_n(b'0', n);
    match usize::try_from(*point) {
        _ if count == 0 => out.push(b'0'),
        Ok(point) if count <= point && point <= 21 => {
            out.extend_from_slice(digits);
            out.extend(zeros(point - count));
        }
        Ok(point @ 1..=21) => {
            out.extend_from_slice(&digits[..point]);
            out.push(b'.');
            out.extend_from_slice(&digits[point..]);
        }
        _ if -6 < *point && *point <= 0 => {
            out.extend_from_slice(b"0.");
            out.extend(zeros(usize::try_from(-point).unwrap_or(0)));
            out.extend_from_slice(digits);
        }
        _ => {
            out.push(digits[0]);
            if count > 1 {
                out.push(b'.');
                out.extend_from_slice(&digits[1..]);
            }
            out.extend_from_slice(format!("e{:+}", point - 1).as_bytes());
        }
    }
}
