// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which identities there are, and what a value says of itself.

use retryproof::{Identity, Scope};

use crate::mono;
use crate::random::Random;

/// The identities of a run, by number. All callers ask for the newest few; then others take their
/// place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World {
    /// So many are asked for at once.
    pub(crate) hot: u64,
    /// For so many ms.
    pub(crate) hot_ms: u64,
}

impl World {
    /// The number of the newest identity.
    pub(crate) fn newest(self) -> u64 {
        (mono::elapsed_ms() / self.hot_ms + 1) * self.hot - 1
    }

    /// One that is hot, or an old one. Half of the calls for hot ones ask for the same.
    pub(crate) fn pick(self, random: &mut Random) -> u64 {
        let newest = self.newest();
        match random.within(0..100) {
            0..50 => newest,
            50..90 => newest - random.within(0..self.hot),
            _ => random.within(0..newest + 1),
        }
    }
}

/// The identity of a number. Neighbours share a scope or a key.
pub(crate) fn identity(number: u64) -> retryproof::Result<Identity> {
    Identity::of(Scope::new(format!("scope-{}", number / 2))?, format!("key-{}", number % 2))
}

/// A value that names its identity and its token, so that a leak shows in itself.
pub(crate) fn value(identity: &Identity, token: u64, by: &str, padding: u64) -> Vec<u8> {
    let whole = (identity.scope().as_str(), identity.key().expose(), token, by, padding);
    serde_json::to_vec(&whole).unwrap_or_default()
}

/// What a value says that it is.
pub(crate) fn bears(value: &[u8]) -> Option<(String, String, u64)> {
    let (scope, key, token, _, _) =
        serde_json::from_slice::<(String, String, u64, String, u64)>(value).ok()?;
    Some((scope, key, token))
}
