// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Seals`]: the sealer of an engine, on a table of keys and a provider of master keys.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::seal::{DataSubject, SealFuture, Sealer, SealingKey, SubjectKey, Unsealed};
use retryproof_core::{Error, Result};
use tokio::time::Instant;

use crate::cache::{ForgetsKeys, KeyCache, Known};
use crate::cipher::DataKey;
use crate::master::KeyProvider;
use crate::table::{KeyId, KeyRow, KeyTable};

/// How long a process keeps a plain key by default.
const CACHED_FOR: Duration = Duration::from_secs(60);
/// How many keys a rotation reads in one step.
const BATCH: usize = 100;

/// Seals results with AES-256-GCM-SIV, under one data key for each subject (SEAL-3, SEAL-5). Pass it
/// to [`SharedStore::sealed_by`](retryproof_core::SharedStore::sealed_by). Clones share their cache.
#[derive(Clone)]
pub struct Seals(Arc<Inner>);

struct Inner {
    table: Box<dyn KeyTable>,
    provider: Box<dyn KeyProvider>,
    cache: Arc<KeyCache>,
}

/// What [`Seals::destroy`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destruction {
    /// The key was destroyed by this call.
    Destroyed,
    /// The key had been destroyed before.
    Already,
    /// The subject has no key: no result was sealed for it.
    Absent,
}

impl Seals {
    /// Creates a sealer that keeps plain keys for 60 s.
    #[must_use]
    pub fn new(table: impl KeyTable, provider: impl KeyProvider) -> Self {
        Self::caching(table, provider, CACHED_FOR)
    }

    /// Creates a sealer that keeps a plain key for `keeps` after its look-up, and overwrites it
    /// within a second afterwards. A running call keeps its key until the call ends. This sealer
    /// notices within `keeps` that another sealer has destroyed a key (SEAL-4). With zero, every
    /// call looks up its keys.
    #[must_use]
    pub fn caching(table: impl KeyTable, provider: impl KeyProvider, keeps: Duration) -> Self {
        let cache = Arc::new(KeyCache::new(keeps));
        Self(Arc::new(Inner { table: Box::new(table), provider: Box::new(provider), cache }))
    }

    /// Destroys the key of a subject permanently (SEAL-4). This sealer and its clones notice the
    /// destruction immediately. Every other sealer, also one in this process, notices it when its
    /// cached copy of the key expires. The call can be repeated.
    ///
    /// Copies of the table of keys still contain the wrapped key. If there may be such copies,
    /// rotate the master key afterwards, and destroy the old master key.
    ///
    /// # Errors
    /// The errors of the table.
    ///
    /// # Cancel safety
    /// A dropped call took effect either completely or not at all.
    pub async fn destroy(&self, subject: &DataSubject) -> Result<Destruction> {
        // Forget the keys even after an error or if this call is dropped, because the key may have
        // been destroyed.
        let _forgets = ForgetsKeys(&self.0.cache);
        let Some(row) = self.0.table.destroy(subject).await? else {
            return Ok(Destruction::Absent);
        };
        Ok(if row.wrapped.is_some() { Destruction::Destroyed } else { Destruction::Already })
    }

    /// Rewraps, with the current master key, every data key that an older master key wraps, and
    /// returns how many data keys it rewrapped (SEAL-7). Results stay unchanged. Programs can keep
    /// running if the current master key is the first of theirs too. A program with another first
    /// key would go on wrapping new data keys with it. The call can be repeated, even after an
    /// error.
    ///
    /// # Errors
    /// The errors of the table and of the provider. The keys that were rewrapped before the error
    /// stay rewrapped.
    ///
    /// # Cancel safety
    /// A dropped call may have rewrapped some of the keys.
    pub async fn rotate(&self) -> Result<usize> {
        let Inner { table, provider, .. } = &*self.0;
        let (mut count, mut after) = (0, None);
        loop {
            let rows = table.not_under(provider.current(), after, BATCH).await?;
            let Some(last) = rows.last() else { return Ok(count) };
            after = Some(last.id);
            for row in &rows {
                let Some(old) = &row.wrapped else { continue };
                let bound = row.bound();
                let key = provider.unwrap(old, &bound).await?;
                let new = provider.wrap(&key, &bound).await?;
                if table.replace(row.id, old, &new).await? {
                    count += 1;
                }
            }
        }
    }
}

impl Inner {
    async fn of_subject(&self, subject: &DataSubject) -> Result<Known> {
        if let Some(known) = self.cache.of_subject(subject) {
            return Ok(known);
        }
        let began = Instant::now();
        let row = match self.table.of_subject(subject).await? {
            Some(row) => row,
            None => self.table.add(self.new_row(subject).await?).await?,
        };
        let known = self.known(&row).await?;
        self.cache.add(known.clone(), Some(subject), began);
        Ok(known)
    }

    async fn by_id(&self, id: KeyId) -> Result<Known> {
        if let Some(known) = self.cache.by_id(id) {
            return Ok(known);
        }
        let began = Instant::now();
        let row = self.table.by_id(id).await?.ok_or_else(|| {
            Error::corrupt(
                "the stored value cannot be opened, because it was sealed with a key that is not \
                 in the table of keys; check which table `seal.keys` names",
            )
        })?;
        let known = self.known(&row).await?;
        self.cache.add(known.clone(), None, began);
        Ok(known)
    }

    async fn new_row(&self, subject: &DataSubject) -> Result<KeyRow> {
        let (id, key) = (DataKey::random()?, DataKey::random()?);
        let mut row = KeyRow { id: KeyId([0; 16]), subject: *subject.digest(), wrapped: None };
        row.id.0.copy_from_slice(&id.expose()[..16]);
        row.wrapped = Some(self.provider.wrap(&key, &row.bound()).await?);
        Ok(row)
    }

    async fn known(&self, row: &KeyRow) -> Result<Known> {
        let key = match &row.wrapped {
            Some(wrapped) => Some(Arc::new(self.provider.unwrap(wrapped, &row.bound()).await?)),
            None => None,
        };
        Ok(Known { id: row.id, key })
    }
}

impl Sealer for Seals {
    fn key_for<'a>(&'a self, subject: &'a DataSubject) -> SealFuture<'a, SubjectKey> {
        Box::pin(async move {
            let Known { id, key } = self.0.of_subject(subject).await?;
            Ok(match key {
                Some(key) => SubjectKey::Key(Arc::new(SealsKey { id, key })),
                None => SubjectKey::Destroyed,
            })
        })
    }

    fn open<'a>(&'a self, sealed: &'a [u8], binding: &'a [u8]) -> SealFuture<'a, Unsealed> {
        Box::pin(async move {
            let damaged = || {
                Error::corrupt(
                    "the sealed value cannot be opened: it was changed, or it was sealed for \
                     another record",
                )
            };
            let (id, sealed) = sealed.split_first_chunk().ok_or_else(damaged)?;
            match self.0.by_id(KeyId(*id)).await?.key {
                Some(key) => key.open(sealed, binding).map(Unsealed::Result).ok_or_else(damaged),
                None => Ok(Unsealed::Destroyed),
            }
        })
    }
}

/// A data key with its id. Each result that it seals begins with the id.
struct SealsKey {
    id: KeyId,
    key: Arc<DataKey>,
}

impl SealingKey for SealsKey {
    fn seal(&self, result: &[u8], binding: &[u8]) -> Result<Vec<u8>> {
        Ok([&self.id.0[..], &self.key.seal(result, binding)?].concat())
    }
}

impl fmt::Debug for Seals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seals")
            .field("table", &self.0.table)
            .field("provider", &self.0.provider)
            .finish_non_exhaustive()
    }
}
