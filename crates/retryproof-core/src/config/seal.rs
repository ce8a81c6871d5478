// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SealSettings`]: the settings of sealed results (SEAL-8).

use std::fmt;
use std::time::Duration;

use super::{IdempotencyConfig, OutOfBounds, WAIT_BOUNDS, within};
use crate::error::{Error, ErrorKind, Result};

/// `seal.*`: the settings of sealed results (SEAL-8). Results are sealed if `keys` is set.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SealSettings {
    /// `seal.keys`: the URL of the table of keys, such as `sqlite:/var/lib/pay/keys.db` or
    /// `postgres://pay@db.internal/keys`. Keep it apart from the store, with backups of its own.
    /// Default: none, so results are not sealed.
    pub keys: Option<String>,
    /// `seal.master`: the file with the master keys, or `env:NAME` for the environment variable
    /// that contains them. Required with `keys`.
    pub master: Option<String>,
    /// `seal.cache`: how long a process keeps an unwrapped key in memory, up to 24 h. A process
    /// notices within this time that a key was destroyed (SEAL-4). Default: 60 s.
    pub cache: Duration,
}

impl Default for SealSettings {
    fn default() -> Self {
        Self { keys: None, master: None, cache: Duration::from_secs(60) }
    }
}

impl SealSettings {
    pub(super) fn check(&self) -> Result<(), OutOfBounds> {
        within("seal.cache", self.cache, &WAIT_BOUNDS)
    }

    /// Checks that the settings are complete and fit together.
    pub(super) fn agrees_with(&self, config: &IdempotencyConfig) -> Result<()> {
        let message = match (&self.keys, &self.master) {
            (None, None) => return Ok(()),
            (Some(_), None) => {
                "idempotency.seal.keys is set, but idempotency.seal.master is missing; set \
                 idempotency.seal.master to a file of master keys, or to `env:NAME`"
            }
            (None, Some(_)) => {
                "idempotency.seal.master is set, but idempotency.seal.keys is missing; set \
                 idempotency.seal.keys to the URL of the table of keys"
            }
            (Some(_), Some(_)) if config.identity_secret.is_none() => {
                "idempotency.seal.keys is set, but idempotency.identity-secret is missing; sealed \
                 results need the secret, because their records contain hashes instead of keys"
            }
            (Some(keys), Some(_)) if config.store.as_ref() == Some(keys) => {
                "idempotency.seal.keys and idempotency.store name the same database; keep the \
                 table of keys apart from the store, because a backup that contains both can be \
                 read even after a key was destroyed"
            }
            (Some(_), Some(_)) => return Ok(()),
        };
        Err(Error::new(ErrorKind::Config, message))
    }
}

/// Prints neither the URL nor where the master keys are.
impl fmt::Debug for SealSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |text: &Option<String>| text.as_ref().map(|_| "(hidden)");
        f.debug_struct("SealSettings")
            .field("keys", &hidden(&self.keys))
            .field("master", &hidden(&self.master))
            .field("cache", &self.cache)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::IdentitySecret;

    #[test]
    fn seal_8_the_settings_need_each_other() {
        let mut config = IdempotencyConfig::default();
        let refused = |config: &IdempotencyConfig, part: &str| {
            let error = config.validate().and_then(|()| config.check_seal()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(part), "{error}");
        };
        config.seal.master = Some("canary".to_owned());
        refused(&config, "idempotency.seal.keys is missing");
        config.seal.keys = Some("sqlite:canary".to_owned());
        refused(&config, "idempotency.identity-secret is missing");
        config.identity_secret = Some(IdentitySecret::new("s".repeat(32)).unwrap());
        assert!(config.check_seal().is_ok());
        config.store = config.seal.keys.clone();
        refused(&config, "apart from the store");
        config.seal.master = None;
        refused(&config, "idempotency.seal.master is missing");
        assert!(!format!("{config:?}").contains("canary"), "ID-4");
        config = IdempotencyConfig::default();
        config.seal.cache = Duration::from_secs(86_401);
        refused(&config, "idempotency.seal.cache = P1DT1S");
    }
}
