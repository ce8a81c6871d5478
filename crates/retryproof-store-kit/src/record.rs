// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Record`]: the row of a record, as read by a statement.

use std::time::Duration;

use retryproof_core::store::{LiveLease, Peeked};
use retryproof_core::{FencingToken, OwnerId, StoredResult};

/// The row of a record, judged by the store's clock when it was read (ACQ-7).
#[derive(Debug)]
pub struct Record {
    /// The owner of the last grant.
    pub owner: OwnerId,
    /// The token of the last grant.
    pub token: FencingToken,
    /// What the record means now.
    pub phase: RecordPhase,
}

/// What a record meant when it was read.
#[derive(Debug)]
pub enum RecordPhase {
    /// In progress, with what is left of the lease; `None` once the lease has ended.
    InProgress(Option<Duration>),
    /// Complete, with the value and what is left of the ttl; `None` once the ttl has ended, or if
    /// the statement does not read the value.
    Complete(Option<(StoredResult, Duration)>),
    /// Released: the record counts as absent and keeps its token (ACQ-10).
    Released,
}

impl Record {
    /// What a peek returns for this row, or for a missing row.
    pub fn peeked(found: Option<Self>) -> Peeked {
        match found {
            Some(Self { phase: RecordPhase::Complete(Some((stored, _))), .. }) => {
                Peeked::Complete(stored)
            }
            Some(Self { token, phase: RecordPhase::InProgress(Some(remaining)), .. }) => {
                Peeked::Busy(LiveLease::new(remaining, token))
            }
            _ => Peeked::Absent,
        }
    }

    /// The time left in the lease with token `seen`; `None` once the lease is over, or its holder
    /// has completed or released the record (ACQ-4).
    #[must_use]
    pub fn remaining_lease(&self, seen: FencingToken) -> Option<Duration> {
        match self.phase {
            RecordPhase::InProgress(remaining) if self.token == seen => remaining,
            _ => None,
        }
    }
}
