// SPDX-License-Identifier: MIT OR Apache-2.0
//! The identities of a run, and the values that name them.

use retryproof::{Identity, Scope};

use crate::mono;
use crate::random::Random;

/// The identities of a run, by number. All callers use the newest few, until newer identities
/// replace these.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World {
    /// How many identities are in use at once.
    pub(crate) hot: u64,
    /// For how many ms an identity stays in use.
    pub(crate) hot_ms: u64,
}

impl World {
    /// Returns the number of the newest identity.
    pub(crate) fn newest(self) -> u64 {
        (mono::elapsed_ms() / self.hot_ms + 1) * self.hot - 1
    }

    /// Picks an identity that is in use, or an old one. Half of the calls use the newest identity.
    pub(crate) fn pick(self, random: &mut Random) -> u64 {
        let newest = self.newest();
        match random.within(0..100) {
            0..50 => newest,
            50..90 => newest - random.within(0..self.hot),
            _ => random.within(0..newest + 1),
        }
    }
}

/// Returns the identity with this number. Neighbours share a scope or a key.
pub(crate) fn identity(number: u64) -> retryproof::Result<Identity> {
    Identity::of(Scope::new(format!("scope-{}", number / 2))?, format!("key-{}", number % 2))
}

/// Returns a value that names its identity and its token, so that a value of another identity is
/// recognised.
pub(crate) fn value(identity: &Identity, token: u64, by: &str, padding: u64) -> Vec<u8> {
    let whole = (identity.scope().as_str(), identity.key().expose(), token, by, padding);
    serde_json::to_vec(&whole).unwrap_or_default()
}

/// Returns the identity and the token that a value names.
pub(crate) fn bears(value: &[u8]) -> Option<(String, String, u64)> {
    let (scope, key, token, _, _) =
        serde_json::from_slice::<(String, String, u64, String, u64)>(value).ok()?;
    Some((scope, key, token))
}
