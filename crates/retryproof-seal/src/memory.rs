// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MemoryKeyTable`]: a table of keys in memory, for tests and for the memory store.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use parking_lot::Mutex;
use retryproof_core::seal::DataSubject;

use crate::master::WrappedKey;
use crate::table::{KeyId, KeyRow, KeyTable, TableFuture};

/// A table of keys in memory. Clones share the table. The keys are lost when the process ends, and
/// every result that they sealed then becomes unreadable, so use this table only with the memory
/// store and in tests.
#[derive(Debug, Clone, Default)]
pub struct MemoryKeyTable(Arc<Mutex<BTreeMap<KeyId, KeyRow>>>);

impl MemoryKeyTable {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn now<'a, T: Send + 'a>(
        &self,
        work: impl FnOnce(&mut BTreeMap<KeyId, KeyRow>) -> T,
    ) -> TableFuture<'a, T> {
        Box::pin(ready(Ok(work(&mut self.0.lock()))))
    }
}

impl KeyTable for MemoryKeyTable {
    fn of_subject<'a>(&'a self, subject: &'a DataSubject) -> TableFuture<'a, Option<KeyRow>> {
        self.now(|rows| rows.values().find(|row| row.subject == *subject.digest()).cloned())
    }

    fn by_id(&self, id: KeyId) -> TableFuture<'_, Option<KeyRow>> {
        self.now(|rows| rows.get(&id).cloned())
    }

    fn add(&self, row: KeyRow) -> TableFuture<'_, KeyRow> {
        self.now(|rows| {
            let known = rows.values().find(|known| known.subject == row.subject).cloned();
            known.unwrap_or_else(|| {
                rows.insert(row.id, row.clone());
                row
            })
        })
    }

    fn destroy<'a>(&'a self, subject: &'a DataSubject) -> TableFuture<'a, Option<KeyRow>> {
        self.now(|rows| {
            let row = rows.values_mut().find(|row| row.subject == *subject.digest())?;
            let before = row.clone();
            row.wrapped = None;
            Some(before)
        })
    }

    fn not_under<'a>(
        &'a self,
        master: &'a str,
        after: Option<KeyId>,
        limit: usize,
    ) -> TableFuture<'a, Vec<KeyRow>> {
        self.now(|rows| {
            let is_other = |row: &&KeyRow| {
                after.is_none_or(|after| row.id > after)
                    && row.wrapped.as_ref().is_some_and(|wrapped| wrapped.master != master)
            };
            rows.values().filter(is_other).take(limit).cloned().collect()
        })
    }

    fn replace<'a>(
        &'a self,
        id: KeyId,
        old: &'a WrappedKey,
        new: &'a WrappedKey,
    ) -> TableFuture<'a, bool> {
        self.now(|rows| match rows.get_mut(&id) {
            Some(row) if row.wrapped.as_ref() == Some(old) => {
                row.wrapped = Some(new.clone());
                true
            }
            _ => false,
        })
    }
}
