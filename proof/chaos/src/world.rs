// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which identities there are, and what a value says of itself.

use retryproof::{Identity, Scope};

use crate::mono::{self, MS};
use crate::random::Random;

/// A key is asked for by all for this long; then only now and then. So each identity's story stays
/// short.
const HOT_MS: u64 = 1_500;
/// How many are asked for at once.
const HOT: u64 = 40;

/// The identities of a run, by number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World {
    /// When the run began.
    pub(crate) began: u64,
}

impl World {
    /// The number of the newest identity.
    pub(crate) fn newest(self) -> u64 {
        mono::now().saturating_sub(self.began) / MS * HOT / HOT_MS + HOT
    }

    /// One that is hot, or an old one.
    pub(crate) fn pick(self, random: &mut Random) -> u64 {
        let newest = self.newest();
        if random.percent(12) { random.within(0..newest) } else { newest - random.within(0..HOT) }
    }
}

/// Scope and key of a number. Neighbours are hostile pairs: a separator in one or the other,
/// letters that only differ in case, in composition, in a blank at the end or in the last of 255
/// bytes.
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

/// The identity of a number.
pub(crate) fn identity(number: u64) -> retryproof::Result<Identity> {
    let (scope, key) = name(number);
    Identity::of(Scope::new(scope)?, key)
}

/// A value that names its identity and its token, so that a leak shows in itself.
pub(crate) fn value(identity: &Identity, token: u64, by: &str, padding: u64) -> Vec<u8> {
    let padding = ".".repeat(usize::try_from(padding).unwrap_or(0));
    let whole = (identity.scope().as_str(), identity.key().expose(), token, by, padding);
    serde_json::to_vec(&whole).unwrap_or_default()
}

/// What a value says that it is.
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
