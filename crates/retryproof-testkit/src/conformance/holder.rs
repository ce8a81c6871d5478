// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each grant writes a note about its holder, and every answer about the record returns this note
//! (REC-2).

use std::time::Duration;

use retryproof_core::store::{
    Acquired, FencedWrite, HolderNote, LiveLease, Peeked, RecordState, RecordSummary, TraceContext,
};
use retryproof_core::{Identity, OwnerId};

use super::caller::{LONG, MS, StoreCaller, busy, completed, granted, is_complete};
use crate::subject::Subject;

const TRACE: TraceContext =
    TraceContext { trace_id: [0xa5; 16], span_id: [0x5a; 8], sampled: true };

impl Subject {
    /// Returns the note of a record that is in progress or complete. An acquire and a peek by
    /// another owner must return the same note.
    async fn note(&self, id: &Identity) -> Option<HolderNote> {
        let stranger = self.caller(id);
        let acquired = match stranger.acquire(LONG).await {
            Acquired::Busy(LiveLease { holder, .. }) => holder,
            Acquired::Complete(stored) => stored.holder().cloned(),
            Acquired::Granted(grant) => panic!("expected a holder or a result, got {grant:?}"),
        };
        let peeked = match stranger.peek().await {
            Peeked::Busy(LiveLease { holder, .. }) => holder,
            Peeked::Complete(stored) => stored.holder().cloned(),
            Peeked::Absent => panic!("expected a holder or a result, got no record"),
        };
        assert_eq!(acquired, peeked, "an acquire and a peek returned different holders");
        acquired
    }

    async fn shows(&self, caller: &StoreCaller) {
        assert_eq!(self.note(&caller.id).await, caller.note);
    }

    async fn seen(&self, id: &Identity) -> RecordSummary {
        let seen = self.store().get(id).await.expect("the inspection should succeed");
        seen.expect("the record should exist")
    }
}

/// A busy answer shows the holder's note, whether or not the other caller has a note of its own.
pub async fn rec_2_busy_answers_show_the_holders_note(s: &Subject) {
    let (noted, plain) = (s.id("noted"), s.id("plain"));
    let holder = s.caller(&noted).called("payments-7f9c:4711");
    granted(holder.acquire(LONG).await);
    granted(s.caller(&plain).acquire(LONG).await);
    for _ in 0..3 {
        s.shows(&holder).await;
        assert_eq!(s.note(&plain).await, None);
        for id in [&noted, &plain] {
            busy(s.caller(id).called("a stranger").acquire(LONG).await);
        }
    }
}

/// The shortest note, the longest note and a note of a later version come back byte for byte.
pub async fn rec_2_notes_of_every_length_are_kept(s: &Subject) {
    let owner = OwnerId::new();
    let long = "pod-".repeat(30);
    let mut notes: Vec<HolderNote> = [(None, ""), (Some(TRACE), ""), (None, "h:1")]
        .into_iter()
        .chain([(None, &*long), (Some(TRACE), &*long)])
        .map(|(trace, label)| HolderNote::new(owner, LONG, trace, label))
        .collect();
    let lengths: Vec<_> = notes.iter().map(|note| note.as_bytes().len()).collect();
    assert_eq!(lengths, [10, 34, 13, HolderNote::MAX_BYTES, HolderNote::MAX_BYTES]);
    let mut later: Vec<u8> = (0..64).map(|at: u8| at.wrapping_mul(4).wrapping_sub(7)).collect();
    later[0] = 2;
    later[2..6].copy_from_slice(&notes[0].as_bytes()[2..6]);
    notes.extend(HolderNote::of_owner(&later, owner));
    assert_eq!(notes.len(), 6);
    for (at, note) in notes.into_iter().enumerate() {
        let holder = StoreCaller { owner, note: Some(note), ..s.caller(&s.id(&format!("k{at}"))) };
        granted(holder.acquire(LONG).await);
        s.shows(&holder).await;
        assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
        s.shows(&holder).await;
    }
}

/// A heartbeat leaves the note unchanged.
pub async fn rec_2_a_beat_leaves_the_note(s: &Subject) {
    let holder = s.caller(&s.id("k")).called("a");
    granted(holder.acquire(LONG).await);
    for _ in 0..2 {
        assert_eq!(holder.extend(LONG).await, FencedWrite::Applied);
        s.shows(&holder).await;
    }
}

/// A completion keeps the note, so that a replay shows which process did the work.
pub async fn rec_2_a_completion_keeps_the_note(s: &Subject) {
    let noted = s.caller(&s.id("noted")).with_fingerprint(1).called("a");
    let plain = s.caller(&s.id("plain"));
    for holder in [&noted, &plain] {
        granted(holder.acquire(LONG).await);
        assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
        s.shows(holder).await;
        assert_eq!(completed(holder.acquire(LONG).await).holder(), holder.note.as_ref());
        assert_eq!(holder.complete(b"again").await, FencedWrite::AlreadyApplied);
        assert_eq!(is_complete(holder.peek().await).holder(), holder.note.as_ref());
    }
}

/// A completion after the end of the lease keeps the note too.
pub async fn rec_2_a_late_completion_keeps_the_note(s: &Subject) {
    let holder = s.caller(&s.id("k")).called("late");
    granted(holder.acquire(s.short()).await);
    s.expire(&holder.id, s.short()).await;
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    s.shows(&holder).await;
}

/// A takeover replaces the dead holder's note with the new holder's note. If the new holder has no
/// note, the old note is removed.
pub async fn rec_2_a_takeover_replaces_the_note(s: &Subject) {
    let id = s.id("k");
    let holders = [
        s.caller(&id).called("the first, with a long name"),
        s.caller(&id).called("b"),
        s.caller(&id),
        s.caller(&id).called("d"),
    ];
    for holder in &holders {
        granted(holder.acquire(LONG).await);
        s.shows(holder).await;
        // Another caller's heartbeat or completion does not change the holder's note.
        for zombie in holders.iter().filter(|zombie| zombie.owner != holder.owner) {
            assert_eq!(zombie.extend(LONG).await, FencedWrite::NotOwner);
            assert_eq!(zombie.complete(b"late").await, FencedWrite::NotOwner);
        }
        s.shows(holder).await;
        assert_eq!(holder.extend(s.short()).await, FencedWrite::Applied);
        s.expire(&id, s.short()).await;
    }
    assert_eq!(holders[3].complete(b"done").await, FencedWrite::Applied);
    s.shows(&holders[3]).await;
}

/// A key that was released has no note until the next grant writes one.
pub async fn rec_2_a_released_key_has_no_note(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).called("a");
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.release().await, FencedWrite::Applied);
    let next = s.caller(&id);
    granted(next.acquire(LONG).await);
    s.shows(&next).await;
    assert_eq!(next.complete(b"done").await, FencedWrite::Applied);
    s.shows(&next).await;
}

/// A result past its ttl leaves no note for the next grant.
pub async fn rec_2_an_expired_result_leaves_no_note(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).with_ttl(s.short()).called("a");
    granted(holder.acquire(LONG).await);
    assert_eq!(holder.complete(b"old").await, FencedWrite::Applied);
    s.expire(&id, s.short()).await;
    let next = s.caller(&id);
    granted(next.acquire(LONG).await);
    s.shows(&next).await;
    assert_eq!(next.complete(b"new").await, FencedWrite::Applied);
    s.shows(&next).await;
}

/// If an owner repeats its acquire, the record keeps the note of the last request, even if the
/// lease ran out in between.
pub async fn rec_2_the_same_owner_renews_its_note(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).called("a");
    granted(holder.acquire(LONG).await);
    for again in [holder.clone(), holder.clone().called("b"), holder.clone().without_note()] {
        granted(again.acquire(LONG).await);
        s.shows(&again).await;
    }
    let last = holder.called("the last, after the end");
    granted(last.acquire(s.short()).await);
    s.expire(&id, s.short()).await;
    granted(last.acquire(LONG).await);
    s.shows(&last).await;
    assert_eq!(last.complete(b"done").await, FencedWrite::Applied);
    s.shows(&last).await;
}

/// If many callers acquire at the instant of expiry, the winner's note is kept.
pub async fn rec_2_of_racing_takers_the_winners_note_stays(s: &Subject) {
    for round in 0..8 {
        let id = s.id(&format!("k{round}"));
        granted(s.caller(&id).called("the dead holder").acquire(s.short()).await);
        s.expire(&id, s.short()).await;
        let takers: Vec<_> = (0..16)
            .map(|at| {
                // Every fourth taker has no note.
                let taker = s.caller(&id);
                let taker = if at % 4 == 3 { taker } else { taker.called(&format!("taker {at}")) };
                tokio::spawn(async move { (taker.acquire(LONG).await, taker) })
            })
            .collect();
        let (mut winner, mut seen) = (None, Vec::new());
        for taker in takers {
            match taker.await.expect("the competing caller should not panic") {
                (Acquired::Granted(_), taker) => assert!(winner.replace(taker).is_none()),
                (Acquired::Busy(lease), _) => seen.extend(lease.holder),
                (Acquired::Complete(_), _) => panic!("no caller completed"),
            }
        }
        let winner = winner.expect("one caller should win");
        // `seen` contains the notes of the busy answers. A busy answer can lack the note if the
        // store gave the answer because of a locked row.
        assert!(
            seen.iter().all(|note| Some(note) == winner.note.as_ref()),
            "round {round}: the losers should see the note of the winner, got {seen:?}"
        );
        s.shows(&winner).await;
        assert_eq!(winner.complete(b"done").await, FencedWrite::Applied);
        s.shows(&winner).await;
    }
}

/// An operator sees the holder of a live lease, a dead lease and a result, and the time since the
/// grant.
pub async fn rec_2_an_operator_sees_the_holder(s: &Subject) {
    let id = s.id("k");
    let holder = s.caller(&id).called("a");
    granted(holder.acquire(LONG).await);
    let passed = if s.is_exact() { Duration::from_secs(5) } else { 30 * MS };
    s.pass(passed).await;
    let seen = s.seen(&id).await;
    assert_eq!(seen.holder, holder.note);
    let tolerance = if s.is_exact() { (MS, MS) } else { (5 * MS, LONG) };
    let is_near = |seen: &RecordSummary| {
        let ago = seen.granted_ago.expect("the store should know when the lease was granted");
        assert!(
            ago + tolerance.0 >= passed && ago <= passed + tolerance.1,
            "the store says that the lease was granted {ago:?} ago, but {passed:?} have passed"
        );
    };
    is_near(&seen);
    // A repeated acquire gets the same grant, with the same token (ACQ-9).
    granted(holder.acquire(LONG).await);
    is_near(&s.seen(&id).await);

    assert_eq!(holder.extend(s.short()).await, FencedWrite::Applied);
    s.expire(&id, s.short()).await;
    assert_eq!(s.seen(&id).await.holder, holder.note, "a dead holder's note should be kept");
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    let seen = s.seen(&id).await;
    assert_eq!((seen.state, seen.holder), (RecordState::Complete, holder.note));
    let plain = s.id("plain");
    granted(s.caller(&plain).acquire(LONG).await);
    assert_eq!(s.seen(&plain).await.holder, None);
}

/// An operator sees how often a key was taken over since it was last free. A repeated acquire, a
/// heartbeat and the completion leave the count unchanged.
pub async fn rec_2_an_operator_sees_takeovers(s: &Subject) {
    let id = s.id("k");
    let mut holder = s.caller(&id);
    granted(holder.acquire(LONG).await);
    for takeovers in 0..4 {
        assert_eq!(s.seen(&id).await.takeovers, Some(takeovers));
        assert_eq!(granted(holder.acquire(LONG).await).took_over, takeovers > 0);
        assert_eq!(holder.extend(s.short()).await, FencedWrite::Applied);
        assert_eq!(s.seen(&id).await.takeovers, Some(takeovers));
        s.expire(&id, s.short()).await;
        holder = s.caller(&id);
        assert!(granted(holder.acquire(LONG).await).took_over);
    }
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    assert_eq!(
        s.seen(&id).await.takeovers,
        Some(4),
        "a complete record should keep its takeover count"
    );
}

/// The count starts again when a key is granted after its release or after its result's ttl.
pub async fn rec_2_takeovers_count_from_the_last_time_a_key_was_free(s: &Subject) {
    for (key, released) in [("released", true), ("past its ttl", false)] {
        let id = s.id(key);
        granted(s.caller(&id).acquire(s.short()).await);
        s.expire(&id, s.short()).await;
        let taker = s.caller(&id).with_ttl(s.short());
        granted(taker.acquire(LONG).await);
        assert_eq!(s.seen(&id).await.takeovers, Some(1));
        if released {
            assert_eq!(taker.release().await, FencedWrite::Applied);
        } else {
            assert_eq!(taker.complete(b"old").await, FencedWrite::Applied);
            s.expire(&id, s.short()).await;
        }
        let next = s.caller(&id);
        granted(next.acquire(LONG).await);
        assert_eq!(
            s.seen(&id).await.takeovers,
            Some(0),
            "the grant after {key} should start the count of takeovers again"
        );
        assert_eq!(next.complete(b"new").await, FencedWrite::Applied);
        assert_eq!(
            s.seen(&id).await.takeovers,
            Some(0),
            "the grant after {key} should start the count of takeovers again"
        );
    }
}
