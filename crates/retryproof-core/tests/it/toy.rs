// SPDX-License-Identifier: MIT OR Apache-2.0
//! The toy store of the contract's page, word for word, under the conformance kit (STO-2).

use retryproof_testkit::{Subject, conformance};

use page::ToyStore;

#[expect(unreachable_pub, reason = "as the page shows it")]
mod page {
    // The page begins here.
    use std::collections::HashMap;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    use retryproof_core::clock::Instant;
    use retryproof_core::store::{
        AcquireRequest, Acquired, Completion, FencedWrite, Grant, Peeked, StoreProfile,
    };
    use retryproof_core::{
        Blob, FencingToken, Fingerprint, IdempotencyStore, Identity, OwnerId, Result, StoredResult,
    };

    #[derive(Debug, Default)]
    pub struct ToyStore(Mutex<State>);

    #[derive(Debug, Default)]
    struct State {
        records: HashMap<Identity, Record>,
        last_token: u64,
    }

    #[derive(Debug)]
    struct Record {
        owner: OwnerId,
        token: FencingToken,
        took_over: bool,     // from a dead holder (ACQ-12)
        until: Instant,      // the end of the lease; of the ttl, once there is a value
        value: Option<Blob>, // none while in progress
        fingerprint: Option<Fingerprint>,
    }

    impl State {
        fn standing(&self, id: &Identity, now: Instant) -> Peeked {
            match self.records.get(id).filter(|record| record.until > now) {
                None => Peeked::Absent,
                Some(Record { value: None, token, until, .. }) => {
                    Peeked::Busy { remaining: *until - now, token: *token }
                }
                Some(Record { value: Some(value), fingerprint, .. }) => {
                    Peeked::Complete(StoredResult::new(value.clone(), *fingerprint))
                }
            }
        }

        /// The record, if `owner` is at work on it: its lease may be over (CMP-2).
        fn running(&mut self, id: &Identity, owner: OwnerId) -> Option<&mut Record> {
            self.records
                .get_mut(id)
                .filter(|record| record.owner == owner && record.value.is_none())
        }
    }

    impl ToyStore {
        fn state(&self) -> MutexGuard<'_, State> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl IdempotencyStore for ToyStore {
        async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
            let (mut state, now) = (self.state(), Instant::now());
            let own = state.running(id, req.owner).map(|record| (record.token, record.took_over));
            let (token, took_over) = match (own, state.standing(id, now)) {
                (Some(granted), _) => granted, // its answer was lost (ACQ-9)
                (None, Peeked::Complete(stored)) => return Ok(Acquired::Complete(stored)),
                (None, Peeked::Busy { remaining, token }) => {
                    return Ok(Acquired::Busy { remaining, token });
                }
                (None, Peeked::Absent) => {
                    state.last_token += 1; // under the lock that grants (ACQ-10)
                    let expired =
                        state.records.get(id).is_some_and(|record| record.value.is_none());
                    (FencingToken::new(state.last_token), expired)
                }
            };
            let AcquireRequest { owner, lease, fingerprint, .. } = *req;
            let record =
                Record { owner, token, took_over, until: now + lease, value: None, fingerprint };
            state.records.insert(id.clone(), record);
            Ok(Acquired::Granted(Grant::new(token, lease, took_over)))
        }

        async fn peek(&self, id: &Identity) -> Result<Peeked> {
            Ok(self.state().standing(id, Instant::now()))
        }

        async fn wait_for_change(
            &self,
            id: &Identity,
            seen: FencingToken,
            at_most: Duration,
        ) -> Result<()> {
            let standing = self.peek(id).await?;
            if matches!(standing, Peeked::Busy { token, .. } if token == seen) {
                tokio::time::sleep(at_most.min(Duration::from_millis(50))).await; // nothing to subscribe to
            }
            Ok(())
        }

        async fn extend(
            &self,
            id: &Identity,
            owner: OwnerId,
            lease: Duration,
        ) -> Result<FencedWrite> {
            let mut state = self.state();
            let Some(record) = state.running(id, owner) else { return Ok(FencedWrite::NotOwner) };
            record.until = Instant::now() + lease;
            Ok(FencedWrite::Applied)
        }

        async fn complete(
            &self,
            id: &Identity,
            owner: OwnerId,
            done: &Completion,
        ) -> Result<FencedWrite> {
            let mut state = self.state();
            if let Some(record) = state.running(id, owner) {
                record.value = Some(done.value.clone());
                record.fingerprint = done.fingerprint;
                record.until = Instant::now() + done.ttl; // the ttl runs from completion (CMP-6)
                return Ok(FencedWrite::Applied);
            }
            let done_before = state.records.get(id).is_some_and(|record| record.owner == owner);
            Ok(if done_before { FencedWrite::AlreadyApplied } else { FencedWrite::NotOwner })
        }

        async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
            let mut state = self.state();
            if state.running(id, owner).is_some() {
                state.records.remove(id);
                return Ok(FencedWrite::Applied);
            }
            Ok(if state.records.contains_key(id) {
                FencedWrite::NotOwner
            } else {
                FencedWrite::AlreadyApplied
            })
        }

        fn profile(&self) -> StoreProfile {
            StoreProfile::new("toy")
        }
    }
    // The page ends here.
}

async fn subject() -> Subject {
    Subject::of(ToyStore::default()).build()
}

conformance! { time = paused, factory = subject }

#[test]
fn sto_2_the_page_shows_the_store_that_was_judged() {
    let lines = |text: &str, from: &str, to: &str| -> Vec<String> {
        let inside = text.lines().skip_while(|line| line.trim() != from).skip(1);
        inside.take_while(|line| line.trim() != to).map(|line| line.trim().to_owned()).collect()
    };
    let judged =
        lines(include_str!("toy.rs"), "// The page begins here.", "// The page ends here.");
    let shown = lines(include_str!("../../src/store/toy.md"), "```", "```");
    assert!(judged.len() > 60);
    assert_eq!(shown, judged);
}
