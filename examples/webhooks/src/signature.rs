// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signs and checks deliveries. A signature is an HMAC-SHA-256 of `timestamp.body`, in the header
//! `Webhook-Signature: t=1700000000,v1=5257a8...`.
//!
//! The timestamp is signed together with the body, so nobody can intercept a delivery and send it
//! again a week later. A sender that is changing its secret sends several `v1` parts.

use std::fmt;
use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// The largest difference between a delivery's timestamp and the receiver's clock. It covers the
/// difference between the two clocks and the time of transport.
pub const TOLERANCE: Duration = Duration::from_secs(300);

/// Why a delivery is refused. The reason is logged, but not sent to the unknown sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distrust {
    /// The signature is missing or cannot be parsed.
    Malformed,
    /// No signature was made with one of our secrets.
    Forged,
    /// The timestamp is too far in the past or in the future.
    Stale,
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "its signature cannot be read",
            Self::Forged => "it was not signed with our secret",
            Self::Stale => "its timestamp is too old or in the future",
        })
    }
}

/// The secret that sender and receiver share. Its `Debug` output does not show the secret.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

impl Secret {
    /// Creates a secret from the bytes that the sender issues. Returns `None` for fewer than 16
    /// bytes.
    #[must_use]
    pub fn new(secret: &[u8]) -> Option<Self> {
        (secret.len() >= 16).then(|| Hmac::new_from_slice(secret).ok().map(Self)).flatten()
    }

    fn over(&self, timestamp: u64, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(timestamp.to_string().as_bytes());
        mac.update(b".");
        mac.update(body);
        mac
    }

    /// Returns the header's value for a delivery. `timestamp` is in seconds since 1970.
    #[must_use]
    pub fn sign(&self, timestamp: u64, body: &[u8]) -> String {
        let mac = self.over(timestamp, body).finalize().into_bytes();
        let hex: String = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("t={timestamp},v1={hex}")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Checks the header of a delivery that arrives at `now`, in seconds since 1970. A signature with
/// any of the `secrets` is accepted, because there are two secrets while one replaces the other.
///
/// # Errors
/// If the delivery must be refused.
pub fn check(secrets: &[Secret], header: &str, body: &[u8], now: u64) -> Result<(), Distrust> {
    let (timestamp, signatures) = parse(header).ok_or(Distrust::Malformed)?;
    // The comparison takes the same time wherever the first difference is.
    let is_ours = |signature: &[u8; 32]| {
        secrets.iter().any(|secret| secret.over(timestamp, body).verify_slice(signature).is_ok())
    };
    if !signatures.iter().any(is_ours) {
        return Err(Distrust::Forged);
    }
    if now.abs_diff(timestamp) > TOLERANCE.as_secs() {
        return Err(Distrust::Stale);
    }
    Ok(())
}

/// Parses one `t` and one or more `v1`. Other parts belong to unknown schemes and are ignored.
fn parse(header: &str) -> Option<(u64, Vec<[u8; 32]>)> {
    let (mut timestamp, mut signatures) = (None, Vec::new());
    for part in header.split(',') {
        match part.trim().split_once('=')? {
            ("t", _) if timestamp.is_some() => return None,
            // Refuse other forms of the same number, such as `+1` or `01`, because the signature
            // covers the digits themselves.
            ("t", digits) => {
                timestamp =
                    Some(digits.parse().ok().filter(|time: &u64| time.to_string() == digits)?);
            }
            ("v1", hex) => signatures.push(unhex(hex)?),
            _ => {}
        }
    }
    // Limit the number of signatures, because checking each one takes an HMAC of the body. Eight
    // are enough for a change of secrets.
    let is_sane = (1..=8).contains(&signatures.len());
    Some((timestamp?, signatures)).filter(|_| is_sane)
}

fn unhex(hex: &str) -> Option<[u8; 32]> {
    let digits = hex.as_bytes();
    let mut bytes = [0; 32];
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit =
            |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;
    const BODY: &[u8] = br#"{"id":"evt_1"}"#;

    fn secret(text: &str) -> Secret {
        Secret::new(text.as_bytes()).expect("long enough")
    }

    #[test]
    fn a_signature_is_what_other_programs_make_of_it() {
        // `EXPECTED` is the output of: printf '1700000000.{"id":"evt_1"}' | openssl dgst -sha256
        // -hmac 'a secret of the sender'
        let header = format!("t=1700000000,v1={EXPECTED}");
        assert_eq!(secret("a secret of the sender").sign(NOW, BODY), header);
    }

    const EXPECTED: &str = "7fe2ea3eed8dc7e4516fd04fc1c0759f6add302df278308067d5bc8287ec7493";

    #[test]
    fn what_was_signed_is_believed_for_as_long_as_it_is_fresh() {
        let ours = [secret("a secret of the sender")];
        let header = ours[0].sign(NOW, BODY);
        for (now, expected) in [
            (NOW, Ok(())),
            (NOW + 300, Ok(())),
            (NOW - 300, Ok(())),
            (NOW + 301, Err(Distrust::Stale)),
            (NOW - 301, Err(Distrust::Stale)),
            (0, Err(Distrust::Stale)),
            (u64::MAX, Err(Distrust::Stale)),
        ] {
            assert_eq!(check(&ours, &header, BODY, now), expected, "{now}");
        }
    }

    #[test]
    fn nothing_that_was_changed_is_believed() {
        let ours = [secret("a secret of the sender")];
        let header = ours[0].sign(NOW, BODY);
        assert_eq!(check(&ours, &header, b"{\"id\":\"evt_2\"}", NOW), Err(Distrust::Forged));
        assert_eq!(check(&ours, &header, b"", NOW), Err(Distrust::Forged));
        let later = header.replace("t=1700000000", "t=1700000001");
        assert_eq!(check(&ours, &later, BODY, NOW), Err(Distrust::Forged));
        let other = secret("a secret of another sender").sign(NOW, BODY);
        assert_eq!(check(&ours, &other, BODY, NOW), Err(Distrust::Forged));
        assert_eq!(check(&[], &header, BODY, NOW), Err(Distrust::Forged));
        // The signature is wrong if any of its digits changes.
        for at in header.len() - 64..header.len() {
            let mut bytes = header.clone().into_bytes();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(bytes).expect("text");
            assert_eq!(check(&ours, &changed, BODY, NOW), Err(Distrust::Forged), "{changed}");
        }
    }

    #[test]
    fn while_a_secret_is_changed_either_will_do() {
        let (old, new) = (secret("the secret until today"), secret("the secret from today"));
        let both = [new.clone(), old.clone()];
        assert_eq!(check(&both, &old.sign(NOW, BODY), BODY, NOW), Ok(()));
        // During a change of secrets, a sender may sign with both.
        let two =
            format!("{},{}", old.sign(NOW, BODY), new.sign(NOW, BODY).replace("t=1700000000,", ""));
        assert_eq!(check(&[new], &two, BODY, NOW), Ok(()));
    }

    #[test]
    fn what_cannot_be_read_is_no_signature() {
        let ours = [secret("a secret of the sender")];
        let good = ours[0].sign(NOW, BODY);
        let (time, mac) = good.split_once(',').expect("two parts");
        for header in [
            "",
            "t=",
            "v1=",
            time,
            mac,
            &format!("{time},{time},{mac}"),
            &format!("t=+1700000000,{mac}"),
            &format!("t=01700000000,{mac}"),
            &format!("t=99999999999999999999999,{mac}"),
            &good[..good.len() - 1],
            &format!("{good}0"),
            &format!("{time},v1={}", "g".repeat(64)),
            &format!("{time},v1={}", "é".repeat(32)),
            &format!("{time}{}", format!(",{mac}").repeat(9)),
        ] {
            assert_eq!(check(&ours, header, BODY, NOW), Err(Distrust::Malformed), "{header}");
        }
        assert_eq!(check(&ours, &format!("{time}, {mac}, v0=old"), BODY, NOW), Ok(()));
    }

    #[test]
    fn id_4_a_secret_is_long_and_never_shown() {
        assert!(Secret::new(b"fifteen bytes !").is_none());
        assert_eq!(format!("{:?}", secret("a secret of the sender")), "Secret(..)");
    }
}
