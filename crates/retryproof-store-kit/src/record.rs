// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Record`]: the row of a record, as a statement reads it.

use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, ForceRequest, Forced, HolderNote, LiveLease, Peeked, RecordState,
    RecordSummary,
};
use retryproof_core::{FencingToken, Fingerprint, OwnerId, StoredResult};

/// The row of a record. When the row was read, the store's clock decided the record's phase
/// (ACQ-7).
#[derive(Debug)]
pub struct Record {
    /// The owner of the last grant.
    pub owner: OwnerId,
    /// The token of the last grant.
    pub token: FencingToken,
    /// How often the key has been taken over since it was last free; 0 if the statement does not
    /// read the count.
    pub takeovers: u16,
    /// The note about the holder of the last grant; `None` if there is no note, or if the statement
    /// does not read it (REC-2).
    pub holder: Option<HolderNote>,
    /// The fingerprint of the last grant, for a record in progress; `None` if the grant has no
    /// fingerprint, or if the statement does not read it (FP-6).
    pub fingerprint: Option<Fingerprint>,
    /// The record's phase when the row was read.
    pub phase: RecordPhase,
}

/// The phase of a record when its row was read.
#[derive(Debug)]
pub enum RecordPhase {
    /// In progress, with the time left in the lease; `None` if the lease has ended.
    InProgress(Option<Duration>),
    /// Complete, with the value and the time until the ttl ends; `None` if the ttl has ended, or if
    /// the statement does not read the value.
    Complete(Option<(StoredResult, Duration)>),
    /// Released: every call treats the record as absent. The row can still hold its token (ACQ-10),
    /// or a log that a newer version wrote (REC-3).
    Released,
}

/// Returns the time left in a lease or a ttl that has this many microseconds left; `None` if it has
/// ended.
#[must_use]
pub fn time_left(micros_left: i64) -> Option<Duration> {
    u64::try_from(micros_left).ok().filter(|&us| us > 0).map(Duration::from_micros)
}

/// Returns the time since the end of a lease or a ttl that has this many microseconds left; `None`
/// if it has not ended.
#[must_use]
pub fn time_since_end(micros_left: i64) -> Option<Duration> {
    (micros_left <= 0).then(|| Duration::from_micros(micros_left.unsigned_abs()))
}

impl Record {
    /// Returns the answer to a peek that finds this row, or no row.
    pub fn peeked(found: Option<Self>) -> Peeked {
        let Some(Self { token, holder, phase, .. }) = found else { return Peeked::Absent };
        match phase {
            RecordPhase::Complete(Some((stored, _))) => {
                Peeked::Complete(stored.with_holder(holder))
            }
            RecordPhase::InProgress(Some(remaining)) => {
                Peeked::Busy(LiveLease::new(remaining, token).with_holder(holder))
            }
            RecordPhase::Complete(None) | RecordPhase::InProgress(None) | RecordPhase::Released => {
                Peeked::Absent
            }
        }
    }

    /// Returns the answer to an acquire that finds this row and must not change it; `None` if there
    /// is no row, or if the record counts as absent. The acquire then has to be granted.
    pub fn acquired(found: Option<Self>, req: &AcquireRequest) -> Option<Acquired> {
        let held = found.as_ref().and_then(|record| record.fingerprint.as_ref());
        let mismatch = req.differs_from(held);
        match Self::peeked(found) {
            Peeked::Complete(stored) => Some(Acquired::Complete(stored)),
            Peeked::Busy(lease) => Some(Acquired::Busy(lease.with_mismatch(mismatch))),
            Peeked::Absent => None,
        }
    }

    /// Returns the answer to an intervention that finds no row or must not change the row; `None`
    /// if the intervention applies to the record (OPS-3).
    #[must_use]
    pub fn refusal(found: Option<Self>, req: &ForceRequest) -> Option<Forced> {
        let Some(Self { owner, token, holder, phase, .. }) = found else {
            return Some(Forced::Absent);
        };
        let (state, remaining) = match phase {
            RecordPhase::Released => return Some(Forced::Absent),
            RecordPhase::InProgress(remaining) => (RecordState::InProgress, remaining),
            RecordPhase::Complete(_) => (RecordState::Complete, None),
        };
        let found = RecordSummary::new(state, token, remaining, 0, false);
        req.refusal(owner, &found.with_grant(None, None, holder))
    }

    /// Returns whether the record is in progress and held by `owner`, even if the lease has ended.
    /// If so, another acquire by `owner` gets the same lease again (ACQ-9).
    #[must_use]
    pub fn is_held_by(&self, owner: OwnerId) -> bool {
        self.owner == owner && matches!(self.phase, RecordPhase::InProgress(_))
    }

    /// Returns the time left in the lease with token `seen`; `None` if that lease is over, or if
    /// its holder has completed or released the record (ACQ-4).
    #[must_use]
    pub fn remaining_lease(&self, seen: FencingToken) -> Option<Duration> {
        match self.phase {
            RecordPhase::InProgress(remaining) if self.token == seen => remaining,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use retryproof_core::{CodecId, Payload};

    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn record(owner: OwnerId, phase: RecordPhase) -> Record {
        let holder = Some(HolderNote::new(owner, LEASE, None, "host:1"));
        Record {
            owner,
            token: FencingToken::new(7),
            takeovers: 0,
            holder,
            fingerprint: Fingerprint::new(&[1, 2]).ok(),
            phase,
        }
    }

    fn complete() -> RecordPhase {
        let value = Payload::new(CodecId::BYTES, 0, b"done").into_envelope();
        RecordPhase::Complete(Some((StoredResult::new(value, None), LEASE)))
    }

    #[test]
    fn rec_2_answers_carry_the_note_about_the_holder() {
        let owner = OwnerId::new();
        let holder = match Record::peeked(Some(record(owner, complete()))) {
            Peeked::Complete(stored) => stored.holder().cloned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(holder.as_ref().and_then(HolderNote::label), Some("host:1"));
        let running = RecordPhase::InProgress(Some(LEASE));
        match Record::peeked(Some(record(owner, running))) {
            Peeked::Busy(lease) => assert_eq!(lease.holder, holder),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn fp_6_an_acquire_is_compared_with_a_record_in_progress() {
        let request = |fingerprint: &[u8], compares| {
            let req = AcquireRequest::new(OwnerId::new(), LEASE, LEASE)
                .with_fingerprint(Fingerprint::new(fingerprint).ok());
            if compares { req.comparing_in_flight() } else { req }
        };
        let mismatch = |req: &AcquireRequest| {
            let found = record(OwnerId::new(), RecordPhase::InProgress(Some(LEASE)));
            match Record::acquired(Some(found), req) {
                Some(Acquired::Busy(lease)) => lease.mismatch,
                other => panic!("{other:?}"),
            }
        };
        assert!(mismatch(&request(&[1, 3], true)));
        for req in [request(&[1, 2], true), request(&[2, 3], true), request(&[1, 3], false)] {
            assert!(!mismatch(&req), "{req:?}");
        }
        assert!(Record::acquired(None, &request(&[1, 3], true)).is_none());
        let done = Record::acquired(Some(record(OwnerId::new(), complete())), &request(&[1], true));
        assert!(matches!(done, Some(Acquired::Complete(_))), "{done:?}");
    }

    #[test]
    fn ops_3_a_released_record_is_absent_to_an_operator() {
        let release = ForceRequest::release(FencingToken::new(7));
        let refusal = |phase| Record::refusal(Some(record(OwnerId::new(), phase)), &release);
        assert!(matches!(Record::refusal(None, &release), Some(Forced::Absent)));
        assert!(matches!(refusal(RecordPhase::Released), Some(Forced::Absent)));
        assert!(matches!(refusal(complete()), Some(Forced::Finished)));
        assert!(refusal(RecordPhase::InProgress(None)).is_none());
        match refusal(RecordPhase::InProgress(Some(LEASE))) {
            Some(Forced::Live(lease)) => {
                assert_eq!(lease.holder.as_ref().and_then(HolderNote::label), Some("host:1"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn acq_9_a_record_is_held_by_its_owner_until_it_ends() {
        let owner = OwnerId::new();
        for left in [Some(LEASE), None] {
            let record = record(owner, RecordPhase::InProgress(left));
            assert!(record.is_held_by(owner) && !record.is_held_by(OwnerId::new()));
        }
        for phase in [complete(), RecordPhase::Complete(None), RecordPhase::Released] {
            assert!(!record(owner, phase).is_held_by(owner));
        }
    }

    #[test]
    fn rec_3_a_released_record_is_absent() {
        let owner = OwnerId::new();
        let absent =
            [RecordPhase::Released, RecordPhase::InProgress(None), RecordPhase::Complete(None)];
        for phase in absent {
            assert!(matches!(Record::peeked(Some(record(owner, phase))), Peeked::Absent));
        }
        assert!(matches!(Record::peeked(None), Peeked::Absent));
    }
}
