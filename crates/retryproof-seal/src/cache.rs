// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KeyCache`]: the plain keys of a process, for a limited time (SEAL-4).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::seal::DataSubject;
use tokio::time::Instant;

use crate::cipher::DataKey;
use crate::table::KeyId;

/// How many keys a process keeps at most.
const MOST: usize = 10_000;

/// A key as the table has it.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) id: KeyId,
    /// `None` if the key was destroyed.
    pub(crate) key: Option<Arc<DataKey>>,
}

/// Keys that were looked up. An entry ends a fixed time after its look-up began.
#[derive(Debug)]
pub(crate) struct KeyCache {
    keeps: Duration,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_id: HashMap<KeyId, (Known, Instant)>,
    of_subject: HashMap<DataSubject, KeyId>,
}

impl KeyCache {
    pub(crate) fn new(keeps: Duration) -> Self {
        Self { keeps, entries: Mutex::default() }
    }

    pub(crate) fn by_id(&self, id: KeyId) -> Option<Known> {
        self.entries.lock().live(id, self.keeps)
    }

    pub(crate) fn of_subject(&self, subject: &DataSubject) -> Option<Known> {
        let entries = self.entries.lock();
        let id = *entries.of_subject.get(subject)?;
        entries.live(id, self.keeps)
    }

    /// Adds a key whose look-up began at `began`, and drops the keys whose time is over.
    pub(crate) fn add(&self, known: Known, subject: Option<&DataSubject>, began: Instant) {
        let mut entries = self.entries.lock();
        let keeps = self.keeps;
        entries.by_id.retain(|_, (_, began)| began.elapsed() < keeps);
        if entries.by_id.len() >= MOST {
            entries.by_id.clear();
        }
        let id = known.id;
        // Do not overwrite the result of a look-up that began later, because it is more recent. For
        // example, it may have found that the key was destroyed.
        if entries.by_id.get(&id).is_none_or(|(_, other)| *other <= began) {
            entries.by_id.insert(id, (known, began));
        }
        let Entries { by_id, of_subject } = &mut *entries;
        of_subject.retain(|_, id| by_id.contains_key(id));
        if let Some(subject) = subject {
            of_subject.insert(*subject, id);
        }
    }

    /// Drops the key of a subject, so that this process looks it up again.
    pub(crate) fn forget(&self, subject: &DataSubject, id: KeyId) {
        let mut entries = self.entries.lock();
        entries.of_subject.remove(subject);
        entries.by_id.remove(&id);
    }
}

impl Entries {
    fn live(&self, id: KeyId, keeps: Duration) -> Option<Known> {
        let (known, began) = self.by_id.get(&id)?;
        (began.elapsed() < keeps).then(|| known.clone())
    }
}
