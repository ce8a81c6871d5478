// SPDX-License-Identifier: MIT OR Apache-2.0
//! The identities of a run, and the values that name them.

use retryproof::{Identity, Scope};

use crate::mono::{self, MS};
use crate::random::Random;

/// How long a key is used by all callers; afterwards, it is used only now and then. This keeps each
/// identity's story short.
const HOT_MS: u64 = 1_500;
/// How many keys are in use at once.
pub(crate) const HOT: u64 = 40;

/// One key of this many is requested far more often than the others while it is new, so that some
/// callers wait for it even where a busy machine makes few calls.
const RUSH: u64 = 8;

/// The identities of a run, by number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World {
    /// When the run began.
    pub(crate) began: u64,
}

impl World {
    /// Returns the number of the newest identity.
    pub(crate) fn newest(self) -> u64 {
        mono::now().saturating_sub(self.began) / MS * HOT / HOT_MS + HOT
    }

    /// Picks an identity that is in use, or an old one.
    pub(crate) fn pick(self, random: &mut Random) -> u64 {
        let newest = self.newest();
        match random.within(0..100) {
            0..12 => random.within(0..newest),
            12..24 => newest - newest % RUSH,
            _ => newest - random.within(0..HOT),
        }
    }
}

/// Returns the scope and the key of a number. The identities of neighbouring numbers are easy to
/// confuse: they differ only in the place of a separator, in the case or composition of a letter,
/// in a trailing blank, or in the last of 255 bytes.
pub(crate) fn name(number: u64) -> (String, String) {
    let round = number / 12;
    let (scope, key) = match number % 12 {
        0 => ("chaos:a", format!("b:{round}")),
        1 => ("chaos", format!("a:b:{round}")),
        2 => ("chaos", format!("Key-{round}")),
        3 => ("chaos", format!("key-{round}")),
        4 => ("chaos", format!("key-{round} ")),
        5 => ("chaos", format!("k\u{e9}y-{round}")),
        6 => ("chaos", format!("ke\u{301}y-{round}")),
        7 => ("chaos", format!("{round:0>254}a")),
        8 => ("chaos", format!("{round:0>254}b")),
        9 => ("chaos", format!("stra\u{df}e-{round}")),
        10 => ("chaos", format!("strasse-{round}")),
        _ => ("Chaos", format!("key-{round}")),
    };
    (scope.into(), key)
}

/// Returns the identity with this number.
pub(crate) fn identity(number: u64) -> retryproof::Result<Identity> {
    let (scope, key) = name(number);
    Identity::of(Scope::new(scope)?, key)
}

/// Returns a value that names its identity and its token, so that a value of another identity is
/// recognised.
pub(crate) fn value(identity: &Identity, token: u64, by: &str, padding: u64) -> Vec<u8> {
    let padding = ".".repeat(usize::try_from(padding).unwrap_or(0));
    let whole = (identity.scope().as_str(), identity.key().expose(), token, by, padding);
    serde_json::to_vec(&whole).unwrap_or_default()
}

/// Returns the identity and the token that a value names.
pub(crate) fn bears(value: &[u8]) -> Option<(String, String, u64)> {
    let (scope, key, token, _, _) =
        serde_json::from_slice::<(String, String, u64, String, String)>(value).ok()?;
    Some((scope, key, token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_2_names_differ_and_are_valid() {
        let names: std::collections::HashSet<_> = (0..2_400).map(name).collect();
        assert_eq!(names.len(), 2_400);
        for number in 0..24 {
            let identity = identity(number).unwrap();
            let (scope, key, token) = bears(&value(&identity, 7, "p1", 3)).unwrap();
            assert_eq!(
                (scope.as_str(), key.as_str(), token),
                (identity.scope().as_str(), identity.key().expose(), 7)
            );
        }
    }
}
