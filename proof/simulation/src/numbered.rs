// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Tokens`]: the store's tokens, numbered from 1 for each identity.

use std::collections::HashMap;

use parking_lot::Mutex;
use retryproof::{FencingToken, Identity};

/// The tokens that the store has granted. They begin with the time of day, so without numbers of
/// their own no two runs would be alike.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Mutex<HashMap<Identity, Vec<FencingToken>>>);

impl Tokens {
    /// The number of a token. A token that is smaller than an earlier one gets zero, so that the
    /// judge sees that it did not grow.
    pub(crate) fn number(&self, id: &Identity, token: FencingToken) -> FencingToken {
        let mut all = self.0.lock();
        let known = all.entry(id.clone()).or_default();
        if known.last().is_none_or(|last| *last < token) {
            known.push(token);
        }
        let at = known.iter().position(|seen| *seen == token);
        FencingToken::new(at.map_or(0, |at| at as u64 + 1))
    }

    /// The store's token of a number.
    pub(crate) fn token(&self, id: &Identity, number: FencingToken) -> FencingToken {
        let at = usize::try_from(number.get().wrapping_sub(1)).unwrap_or(usize::MAX);
        self.0.lock().get(id).and_then(|known| known.get(at).copied()).unwrap_or(number)
    }
}
