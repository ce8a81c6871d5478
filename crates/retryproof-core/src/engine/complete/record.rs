// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Record`]: what a completion writes. A value that cannot be stored becomes a tombstone (CMP-9).

use super::CompletionResult;
use crate::blob::Blob;
use crate::engine::lease::HeldLease;
use crate::engine::outcome_event::End;
use crate::error::{Error, ErrorKind};
use crate::identity::Identity;
use crate::outcome::Recorded;
use crate::payload::Tombstone;
use crate::seal::CallSeal;
use crate::store::Completion;

/// What a completion writes: a value or a tombstone.
pub(in crate::engine) struct Record {
    pub(in crate::engine) done: Completion,
    is_tombstone: bool,
    /// The reason why a tombstone replaced the value.
    refused: Option<Error>,
}

impl Record {
    pub(in crate::engine) fn new(lease: &HeldLease, envelope: Blob, is_tombstone: bool) -> Self {
        let done = Completion::new(envelope, lease.ttl, lease.fingerprint);
        let mut record = Self { done, is_tombstone, refused: None };
        if let Some(seal) = &lease.seal {
            record.seal(seal, lease.lease.identity());
            if !lease.lease.is_guarded() {
                // In shadow mode, no call fails because of its record (CTX-6).
                record.refused = None;
            }
        }
        record
    }

    /// Seals the value. If it cannot be sealed, a tombstone without detail replaces it, because the
    /// work is done (SEAL-4, CMP-9).
    #[cold]
    fn seal(&mut self, seal: &CallSeal, identity: &Identity) {
        match seal.seal(self.done.value.clone()) {
            Ok(sealed) => self.done.value = sealed,
            Err(error) => {
                self.shrink(error.during("complete").for_identity(identity), identity);
            }
        }
    }

    /// Returns what the store has after the record is written.
    pub(in crate::engine) fn recorded(&self) -> Recorded {
        if self.is_tombstone { Recorded::Tombstone } else { Recorded::Yes }
    }

    /// Returns how the lease ends after the record is written.
    pub(in crate::engine) fn end(&self) -> End {
        End::Completed(self.recorded(), self.done.value.len())
    }

    /// Returns the result of a completion that was written.
    pub(in crate::engine) fn written(self) -> CompletionResult {
        self.refused.map_or(CompletionResult::Recorded, CompletionResult::Tombstoned)
    }

    /// Replaces a value that is too large for the store with a tombstone. A tombstone that is too
    /// large loses its detail (CMP-9).
    pub(in crate::engine) fn fit(&mut self, limit: usize, identity: &Identity) {
        if self.exceeds(limit) {
            let error =
                Error::new(ErrorKind::TooLarge, "the value is larger than the store accepts")
                    .with("bytes", self.done.value.len())
                    .with("limit", limit)
                    .during("complete")
                    .for_identity(identity);
            self.shrink(error, identity);
        }
    }

    pub(super) fn exceeds(&self, limit: usize) -> bool {
        self.done.value.len() > limit && self.can_shrink()
    }

    pub(super) fn can_shrink(&self) -> bool {
        !self.is_tombstone || self.done.value.len() > Tombstone::new().envelope().len()
    }

    pub(super) fn shrink(&mut self, refused: Error, identity: &Identity) {
        tracing::warn!(identity = %identity, error = %refused,
            "the result cannot be stored; a tombstone is recorded instead, so a retry neither runs \
             the work again nor gets its result (CMP-9)");
        self.done.value = Tombstone::new().into_envelope();
        self.is_tombstone = true;
        self.refused = Some(refused);
    }
}
