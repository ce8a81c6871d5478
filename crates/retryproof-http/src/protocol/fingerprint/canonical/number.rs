// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes numbers as ECMAScript does (RFC 8785 section 3.2.2.3), and checks whether a double
//! represents a number exactly.
//!
//! A client chooses the input, so no step takes more than constant time per digit. The shortest
//! form of a double never has more than 17 significant digits. A number with more digits is refused
//! before anything is computed.

/// The maximum number of significant digits in the shortest form of a double.
const MOST_DIGITS: usize = 17;

/// A decimal number without its sign: its significant digits, and the power of ten by which
/// `0.digits` is multiplied.
#[derive(PartialEq, Eq)]
pub(super) struct Decimal {
    /// The digits, padded with zeros at the end.
    digits: [u8; MOST_DIGITS],
    count: usize,
    point: i64,
}

impl Decimal {
    /// Parses a JSON number. Returns `None` if the number has more digits than any double needs, or
    /// an exponent far beyond that of any double.
    fn read(number: &str) -> Option<Self> {
        let (mantissa, exponent) = match number.bytes().position(|b| matches!(b, b'e' | b'E')) {
            Some(at) => (&number[..at], number[at + 1..].parse::<i32>().ok()?),
            None => (number, 0),
        };
        let mut decimal = Self { digits: [0; MOST_DIGITS], count: 0, point: 0 };
        // `zeros` counts the zeros since the last nonzero digit. These zeros are stored only if
        // another nonzero digit follows.
        let (mut zeros, mut whole) = (0_usize, None);
        for (at, byte) in mantissa.trim_start_matches('-').bytes().enumerate() {
            match byte {
                b'.' => whole = Some(at),
                b'0' if decimal.count == 0 => decimal.point -= 1,
                b'0' => zeros += 1,
                digit => {
                    let place = decimal.count + zeros;
                    decimal.digits.get_mut(decimal.count..place)?.fill(b'0');
                    *decimal.digits.get_mut(place)? = digit;
                    (decimal.count, zeros) = (place + 1, 0);
                }
            }
        }
        if decimal.count == 0 {
            decimal.point = 0;
        } else {
            let whole = whole.unwrap_or_else(|| mantissa.trim_start_matches('-').len());
            decimal.point += i64::try_from(whole).ok()? + i64::from(exponent);
        }
        Some(decimal)
    }

    /// Whether this is certainly the shortest decimal of its double. Two decimals of up to 15
    /// digits have different doubles, unless the exponent is too large or too small for full
    /// precision.
    fn is_certain(&self) -> bool {
        self.count == 0 || (self.count <= 15 && (-300..=300).contains(&self.point))
    }

    /// Returns the nearest finite double; `None` if the number is out of range.
    fn to_double(&self) -> Option<f64> {
        // Every finite double is within this range. The check also keeps `text` short, even if the
        // exponent is large.
        if !(-400..400).contains(&self.point) {
            return None;
        }
        let mut text = [0; MOST_DIGITS + 8];
        let mut end = self.count;
        text[..end].copy_from_slice(self.digits());
        end += write_exponent(self.point - i64::try_from(self.count).ok()?, &mut text[end..]);
        let double = str::from_utf8(&text[..end]).ok()?.parse::<f64>().ok()?;
        double.is_finite().then_some(double)
    }

    fn digits(&self) -> &[u8] {
        &self.digits[..self.count]
    }
}

/// Writes `e` and a decimal exponent with a sign and up to three digits. Returns the number of
/// bytes written.
fn write_exponent(exponent: i64, out: &mut [u8]) -> usize {
    let power = exponent.unsigned_abs();
    out[0] = b'e';
    out[1] = if exponent < 0 { b'-' } else { b'+' };
    let mut end = 2;
    for unit in [100, 10, 1] {
        if power >= unit || unit == 1 {
            out[end] = b"0123456789"[usize::try_from(power / unit % 10).unwrap_or(0)];
            end += 1;
        }
    }
    end
}

/// Writes a number as ECMAScript does (RFC 8785 section 3.2.2.3). Returns `None` if a double does
/// not represent the number exactly.
pub(super) fn write_number(number: &str, out: &mut Vec<u8>) -> Option<()> {
    let decimal = Decimal::read(number)?;
    if !decimal.is_certain() && shortest(decimal.to_double()?)? != decimal {
        return None;
    }
    if decimal.count > 0 && number.starts_with('-') {
        out.push(b'-');
    }
    write_decimal(&decimal, out);
    Some(())
}

/// Returns the shortest digits that parse to this double. If two decimals are equally near, chooses
/// the one whose last digit is even, like Ryu (RFC 8785 appendix B, `1424953923781206.2`). The
/// standard library would round up.
pub(super) fn shortest(double: f64) -> Option<Decimal> {
    Decimal::read(ryu::Buffer::new().format_finite(double))
}

pub(super) fn write_decimal(decimal: &Decimal, out: &mut Vec<u8>) {
    let (digits, count, point) = (decimal.digits(), decimal.count, decimal.point);
    let zeros = |n: usize| std::iter::repeat_n(b'0', n);
    match usize::try_from(point) {
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
        _ if -6 < point && point <= 0 => {
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
            let mut exponent = [0; 5];
            let end = write_exponent(point - 1, &mut exponent);
            out.extend_from_slice(&exponent[..end]);
        }
    }
}
