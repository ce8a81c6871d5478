// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store that declares less than others passes the whole kit, is held to what it declares, and is
//! shown with it (STO-2).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, ExpiryClock, FencedWrite, IdempotencyStore, LiveLease,
    Peeked, StoreProfile,
};
use retryproof_core::{Error, ErrorKind, FencingToken, Identity, OwnerId, Result};
use retryproof_memory::MemoryStore;
use retryproof_testkit::Subject;
use retryproof_testkit::conformance::{Case, Time, cases, run, summary};

const SECOND: Duration = Duration::from_secs(1);
const MAX_VALUE: usize = 4_000;

/// How the store breaks its own profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Breach {
    Nothing,
    RoundsDown,
    PollsTooSeldom,
    OneTripMore,
    SmallerValues,
}

/// A store that keeps whole seconds, two at least, and small values. It sends no notifications, and
/// needs two round trips for an acquire.
#[derive(Debug)]
struct Modest {
    inner: MemoryStore,
    trips: Arc<AtomicU64>,
    breach: Breach,
}

impl Modest {
    fn subject(breach: Breach) -> Subject {
        let trips = Arc::<AtomicU64>::default();
        let store = Self { inner: MemoryStore::new(), trips: Arc::clone(&trips), breach };
        Subject::of(store)
            .with_sequences(16)
            .with_round_trips(move || trips.load(Ordering::SeqCst))
            .build()
    }

    fn trips(&self, trips: u64) {
        self.trips.fetch_add(trips, Ordering::SeqCst);
    }

    /// Returns the duration that the store keeps. A duration below the shortest is refused.
    fn kept(&self, duration: Duration) -> Result<Duration> {
        if duration < 2 * SECOND {
            return Err(Error::new(ErrorKind::Invalid, "shorter than the store's shortest"));
        }
        let whole = Duration::from_secs(duration.as_secs());
        let kept = self.profile().round_up(duration);
        Ok(if self.breach == Breach::RoundsDown { whole } else { kept })
    }
}

impl IdempotencyStore for Modest {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        self.trips(if self.breach == Breach::OneTripMore { 3 } else { 2 });
        let mut kept = req.clone();
        (kept.lease, kept.ttl) = (self.kept(req.lease)?, self.kept(req.ttl)?);
        self.inner.acquire(id, &kept).await
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        self.trips(1);
        self.inner.peek(id).await
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        limit: Duration,
    ) -> Result<()> {
        let held = |peeked: Peeked| matches!(peeked, Peeked::Busy(LiveLease { token, .. }) if token == seen);
        if held(self.peek(id).await?) {
            let poll = if self.breach == Breach::PollsTooSeldom { 60 } else { 7 };
            tokio::time::sleep(limit.min(poll * SECOND)).await;
        }
        Ok(())
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.trips(1);
        self.inner.extend(id, owner, self.kept(lease)?).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        self.trips(1);
        let limit = if self.breach == Breach::SmallerValues { MAX_VALUE - 1 } else { MAX_VALUE };
        if done.value.len() > limit {
            return Err(Error::new(ErrorKind::TooLarge, "too large").for_identity(id));
        }
        let mut kept = done.clone();
        kept.ttl = self.kept(done.ttl)?;
        self.inner.complete(id, owner, &kept).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.trips(1);
        self.inner.release(id, owner).await
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("modest")
            .with_max_value(MAX_VALUE)
            .with_durations(2 * SECOND, SECOND)
            .with_expiry_clock(ExpiryClock::Process)
            .with_max_poll(7 * SECOND)
            .with_max_round_trips(2)
    }
}

mod kit {
    use super::*;

    retryproof_testkit::conformance! {
        time = paused,
        factory = async || Modest::subject(Breach::Nothing),
    }
}

fn case(name: &str) -> Case {
    *cases().iter().find(|case| case.name == name).expect("the kit should have the case")
}

#[track_caller]
fn fails(breach: Breach, name: &str) {
    let judged = std::panic::catch_unwind(|| {
        run(case(name), Time::Paused, async || Modest::subject(breach));
    });
    assert!(judged.is_err(), "{breach:?} should fail the case {name}");
}

#[test]
fn sto_1_a_store_that_rounds_down_fails() {
    fails(Breach::RoundsDown, "sto_1_durations_between_two_steps_are_rounded_up");
}

#[test]
fn acq_4_a_store_that_polls_less_often_than_it_declares_fails() {
    fails(Breach::PollsTooSeldom, "acq_4_completion_wakes_a_waiter");
}

#[test]
fn acq_8_a_store_that_needs_more_round_trips_than_it_declares_fails() {
    fails(Breach::OneTripMore, "acq_8_no_call_costs_more_round_trips_than_declared");
}

#[test]
fn cmp_1_a_store_that_keeps_smaller_values_than_it_declares_fails() {
    fails(Breach::SmallerValues, "cmp_1_a_large_result_comes_back");
    fails(Breach::SmallerValues, "cmp_9_a_value_over_the_limit_is_refused");
}

#[test]
fn sto_2_the_summary_prints_the_profile_and_what_was_not_applicable() {
    let line = summary(&Modest::subject(Breach::Nothing));
    let profile = "; profile: values of up to 4000 bytes; leases and ttls from 2s to 315360000s in \
                   steps of 1s, judged by the process's own clock; a waiter reads again after 7s at \
                   the latest; up to 2 round trips for a call without contention";
    let not_applicable = "; not applicable because of the profile: leases and ttls shorter than \
                          2s, values of more than 4000 bytes";
    assert!(line.ends_with(&format!("{profile}{not_applicable}")), "{line}");
    let whole = summary(&Subject::of(MemoryStore::new()).build());
    assert!(whole.contains("; profile: ") && !whole.contains("not applicable"), "{whole}");
}
