// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every interleaving of a few threads on the memory store, checked by loom.
//!
//! Run it with `RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p retryproof-memory
//! --release --test loom`. With that flag, the store uses loom's mutex and atomics and a model of
//! `Notify` (`src/sync.rs`). Sleeps have no time limit in this model, so a lost wake-up is a
//! deadlock, and loom reports it with the schedule that leads to it.
#![cfg(loom)]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use loom::future::block_on;
use loom::thread;
use retryproof_core::clock::ManualClock;
use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, FencedWrite, Inspect, LiveLease, Peeked, Purge,
};
use retryproof_core::{Blob, ErrorKind, IdempotencyStore, Identity, OwnerId};
use retryproof_memory::MemoryStore;

const LEASE: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(3_600);

/// A store with a clock that the test moves, and the identity that the threads use.
#[derive(Clone)]
struct World {
    store: Arc<MemoryStore>,
    clock: ManualClock,
    id: Identity,
}

impl World {
    fn new(records: usize) -> Self {
        let clock = ManualClock::new();
        let store =
            MemoryStore::builder().max_records(records).clock(Arc::new(clock.clone())).build();
        Self { store: Arc::new(store), clock, id: identity("a") }
    }

    fn acquire(&self, owner: OwnerId) -> Result<Acquired, ErrorKind> {
        let request = AcquireRequest::new(owner, LEASE, LEASE);
        ready(self.store.acquire(&self.id, &request)).map_err(|error| error.kind())
    }

    fn held(&self) -> (OwnerId, retryproof_core::FencingToken) {
        let owner = OwnerId::new();
        match self.acquire(owner) {
            Ok(Acquired::Granted(grant)) => (owner, grant.token),
            other => panic!("{other:?}"),
        }
    }

    fn complete(&self, owner: OwnerId, value: u8) -> FencedWrite {
        let done = Completion::new(Blob::from(vec![value]), LONG, None);
        ready(self.store.complete(&self.id, owner, &done)).unwrap()
    }

    /// Acts as a waiting caller: acquires the key, and sleeps while another caller holds it. After
    /// a grant, completes the key and returns `true`; returns `false` if the key was already
    /// complete.
    fn wait_and_take(&self) -> bool {
        let owner = OwnerId::new();
        loop {
            match self.acquire(owner).unwrap() {
                Acquired::Busy(LiveLease { token, .. }) => {
                    block_on(self.store.wait_for_change(&self.id, token, LONG)).unwrap()
                }
                Acquired::Complete(_) => return false,
                Acquired::Granted(_) => {
                    assert_eq!(self.complete(owner, 2), FencedWrite::Applied);
                    return true;
                }
            }
        }
    }

    /// A point at which loom may switch threads. (Moving the clock is not such a point.)
    fn let_others_run(&self) {
        assert!(matches!(ready(self.store.peek(&self.id)), Ok(Peeked::Busy(_))));
    }

    /// Runs `work` in a separate thread.
    fn spawn<T: 'static>(&self, work: impl FnOnce(World) -> T + 'static) -> thread::JoinHandle<T> {
        let world = self.clone();
        thread::spawn(move || work(world))
    }

    fn other(&self, key: &str) -> World {
        World { id: identity(key), ..self.clone() }
    }
}

fn identity(key: &str) -> Identity {
    Identity::of("loom", key).unwrap()
}

/// Returns the result of a call that never waits.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("this call does not wait"),
    }
}

/// Runs every schedule with at most `preemptions` switches away from a thread that could have
/// continued.
fn every_schedule(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(test);
}

#[test]
fn acq_2_of_three_at_the_instant_of_expiry_one_takes_over() {
    every_schedule(3, || {
        let world = World::new(9);
        let (_, first) = world.held();
        world.clock.advance(LEASE);
        let contend = move |world: World| match world.acquire(OwnerId::new()).unwrap() {
            Acquired::Granted(grant) => {
                assert!(grant.took_over && grant.token > first);
                (1, grant.token)
            }
            Acquired::Busy(LiveLease { token, .. }) => (0, token),
            Acquired::Complete(_) => panic!("no caller has completed"),
        };
        let others = [world.spawn(contend), world.spawn(contend)];
        let mine = contend(world);
        let all = others.map(|other| other.join().unwrap());
        assert_eq!(mine.0 + all[0].0 + all[1].0, 1);
        assert!(all.iter().all(|(_, token)| *token == mine.1), "the others see the winner's token");
    });
}

#[test]
fn acq_4_a_completion_wakes_whoever_waits_or_is_about_to() {
    every_schedule(4, || {
        let world = World::new(9);
        let (owner, _) = world.held();
        let waiters = [
            world.spawn(|world| world.wait_and_take()),
            world.spawn(|world| world.wait_and_take()),
        ];
        assert_eq!(world.complete(owner, 1), FencedWrite::Applied);
        for waiter in waiters {
            assert!(!waiter.join().unwrap(), "the result was there");
        }
    });
}

#[test]
fn acq_3_a_release_wakes_the_waiters_and_one_is_granted() {
    every_schedule(3, || {
        let world = World::new(9);
        let (owner, _) = world.held();
        let waiters = [
            world.spawn(|world| world.wait_and_take()),
            world.spawn(|world| world.wait_and_take()),
        ];
        assert_eq!(ready(world.store.release(&world.id, owner)).unwrap(), FencedWrite::Applied);
        let granted: usize =
            waiters.into_iter().map(|waiter| usize::from(waiter.join().unwrap())).sum();
        assert_eq!(granted, 1);
    });
}

#[test]
fn acq_4_a_takeover_wakes_who_waits_for_the_old_holder() {
    every_schedule(4, || {
        let world = World::new(9);
        let (_, seen) = world.held();
        let waiter = world.spawn(move |world| {
            block_on(world.store.wait_for_change(&world.id, seen, LONG)).unwrap()
        });
        world.let_others_run();
        world.clock.advance(LEASE);
        assert!(
            matches!(world.acquire(OwnerId::new()), Ok(Acquired::Granted(grant)) if grant.took_over)
        );
        waiter.join().unwrap();
    });
}

#[test]
fn acq_4_a_purge_of_a_dead_holder_wakes_who_waits_for_it() {
    every_schedule(4, || {
        let world = World::new(9);
        let (_, seen) = world.held();
        let waiter = world.spawn(move |world| {
            block_on(world.store.wait_for_change(&world.id, seen, LONG)).unwrap()
        });
        world.let_others_run();
        world.clock.advance(LEASE);
        assert_eq!(ready(world.store.purge(9)).unwrap(), 1);
        waiter.join().unwrap();
    });
}

#[test]
fn acq_11_a_waiter_that_is_dropped_leaves_the_others_in_order() {
    every_schedule(4, || {
        let world = World::new(9);
        let (owner, seen) = world.held();
        let dropped = world.spawn(move |world| {
            let mut waiting = pin!(world.store.wait_for_change(&world.id, seen, LONG));
            let _ = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        });
        let waiter = world.spawn(|world| world.wait_and_take());
        assert_eq!(world.complete(owner, 1), FencedWrite::Applied);
        dropped.join().unwrap();
        assert!(!waiter.join().unwrap());
    });
}

#[test]
fn run_3_a_beat_beside_the_completion_revives_nothing() {
    every_schedule(5, || {
        let world = World::new(9);
        let (owner, _) = world.held();
        let beat =
            world.spawn(move |world| ready(world.store.extend(&world.id, owner, LEASE)).unwrap());
        assert_eq!(world.complete(owner, 1), FencedWrite::Applied);
        assert!(matches!(beat.join().unwrap(), FencedWrite::Applied | FencedWrite::NotOwner));
        assert!(matches!(ready(world.store.peek(&world.id)).unwrap(), Peeked::Complete(_)));
        assert_eq!(
            ready(world.store.extend(&world.id, owner, LEASE)).unwrap(),
            FencedWrite::NotOwner
        );
    });
}

#[test]
fn cmp_2_a_late_owner_and_a_taker_never_both_have_it() {
    every_schedule(5, || {
        let world = World::new(9);
        let (owner, _) = world.held();
        world.clock.advance(LEASE);
        let late = world.spawn(move |world| {
            let beat = ready(world.store.extend(&world.id, owner, LEASE)).unwrap();
            (beat, world.complete(owner, 1))
        });
        let taker = OwnerId::new();
        let taken = world.acquire(taker).unwrap();
        let completed = matches!(taken, Acquired::Granted(_)).then(|| world.complete(taker, 2));
        let (beat, late) = late.join().unwrap();
        match taken {
            Acquired::Granted(_) => {
                assert_eq!(
                    (late, completed),
                    (FencedWrite::NotOwner, Some(FencedWrite::Applied)),
                    "the beat was {beat:?}"
                );
                assert_eq!(beat, FencedWrite::NotOwner);
            }
            _ => assert_eq!((beat, late), (FencedWrite::Applied, FencedWrite::Applied)),
        }
    });
}

#[test]
fn sto_4_a_purge_beside_an_acquire_takes_the_old_record_and_never_the_new_one() {
    every_schedule(5, || {
        let world = World::new(9);
        let (owner, first) = world.held();
        assert_eq!(world.complete(owner, 1), FencedWrite::Applied);
        world.clock.advance(LONG);
        let purge = world.spawn(|world| ready(world.store.purge(9)).unwrap());
        let next = OwnerId::new();
        let grant = match world.acquire(next) {
            Ok(Acquired::Granted(grant)) => grant,
            other => panic!("{other:?}"),
        };
        assert!(!grant.took_over && grant.token > first);
        assert_eq!(world.complete(next, 2), FencedWrite::Applied);
        assert!(purge.join().unwrap() <= 1);
        assert!(matches!(ready(world.store.peek(&world.id)).unwrap(), Peeked::Complete(_)));
        assert_eq!(ready(world.store.stats()).unwrap().records, 1);
    });
}

#[test]
fn sto_1_the_last_place_goes_to_one_and_is_free_again_after_it() {
    every_schedule(4, || {
        let world = World::new(1);
        let take = |world: World| {
            let owner = OwnerId::new();
            match world.acquire(owner) {
                Ok(Acquired::Granted(_)) => {
                    assert_eq!(
                        ready(world.store.release(&world.id, owner)).unwrap(),
                        FencedWrite::Applied
                    );
                    true
                }
                Err(ErrorKind::Full) => false,
                other => panic!("{other:?}"),
            }
        };
        let other = world.other("b").spawn(take);
        let mine = take(world.clone());
        assert!(other.join().unwrap() || mine);
        assert!(take(world.other("c")), "the place is not lost");
        assert_eq!(ready(world.store.stats()).unwrap().records, 0);
    });
}

#[test]
fn sto_1_who_searched_for_room_looks_the_record_up_again() {
    every_schedule(4, || {
        let world = World::new(1);
        let expired = world.other("expired");
        let (owner, _) = expired.held();
        assert_eq!(expired.complete(owner, 1), FencedWrite::Applied);
        world.clock.advance(LONG);
        let other = world.spawn(|world| world.wait_and_take());
        let mine = world.wait_and_take();
        assert!(other.join().unwrap() != mine, "one of the two has run");
    });
}
