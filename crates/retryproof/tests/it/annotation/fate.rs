// SPDX-License-Identifier: MIT OR Apache-2.0
//! RUN-4: errors of unknown effect, and the lease of the running call.

use std::sync::Mutex;
use std::time::Duration;

use retryproof::observe::{LeaseEvent, Observer, Phase};
use retryproof::{
    Attempt, IdempotencyContext, IdempotencyEngine, Lease, MemoryStore, Rejected, idempotent,
};

#[derive(Debug)]
enum PayError {
    /// The customer was not charged.
    Refused,
    /// The customer might have been charged.
    TimedOut,
    NotRun(Rejected),
}

impl From<Rejected> for PayError {
    fn from(rejected: Rejected) -> Self {
        Self::NotRun(rejected)
    }
}

impl PayError {
    fn is_unknown(&self) -> bool {
        matches!(self, Self::TimedOut)
    }

    fn is_in_flight(&self) -> bool {
        matches!(self, Self::NotRun(Rejected::InFlight { .. }))
    }
}

/// A payment provider with planned answers, which remembers the keys that it receives.
#[derive(Default)]
struct Provider {
    answers: Mutex<Vec<Result<u64, PayError>>>,
    keys: Mutex<Vec<String>>,
}

impl Provider {
    fn charge(&self, key: String) -> Result<u64, PayError> {
        self.keys.lock().unwrap().push(key);
        self.answers.lock().unwrap().remove(0)
    }
}

struct Till {
    engine: IdempotencyEngine,
    provider: Provider,
}

impl AsRef<IdempotencyEngine> for Till {
    fn as_ref(&self) -> &IdempotencyEngine {
        &self.engine
    }
}

impl Till {
    fn new(answers: impl IntoIterator<Item = Result<u64, PayError>>) -> Self {
        let answers = Mutex::new(answers.into_iter().collect());
        let provider = Provider { answers, keys: Mutex::default() };
        Self { engine: IdempotencyEngine::new(MemoryStore::new()), provider }
    }

    #[idempotent(key = order, scope = "charge", lease = "PT9S", wait_timeout = "PT0S", hold_when = PayError::is_unknown)]
    async fn charge(&self, #[lease] lease: &Lease, order: &str) -> Result<(u64, bool), PayError> {
        let charged = self.provider.charge(lease.downstream_key("charge"))?;
        std::future::ready(()).await;
        Ok((charged, lease.attempt() == Attempt::Takeover))
    }

    /// Sets `hold_on_error` before the request is sent, instead of judging the error afterwards.
    #[idempotent(key = order, scope = "careful", lease = "PT9S", wait_timeout = "PT0S")]
    async fn careful(&self, order: String, #[lease] lease: Lease) -> Result<u64, PayError> {
        if order.is_empty() {
            return Err(PayError::Refused);
        }
        lease.hold_on_error();
        self.provider.charge(order)
    }
}

#[tokio::test(start_paused = true)]
async fn run_4_ann_1_an_error_of_unknown_effect_leaves_the_key_to_the_lease() {
    let till = Till::new([Err(PayError::Refused), Err(PayError::TimedOut), Ok(7)]);
    assert!(matches!(till.charge("a").await, Err(PayError::Refused)), "and the key is free");
    assert!(matches!(till.charge("a").await, Err(PayError::TimedOut)));
    assert!(till.charge("a").await.unwrap_err().is_in_flight());
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(till.charge("a").await.unwrap(), (7, true), "the next grant is a takeover");
    assert_eq!(till.charge("a").await.unwrap(), (7, true));
    let keys = till.provider.keys.lock().unwrap();
    assert!(
        keys.len() == 3 && keys.iter().all(|key| *key == keys[0]),
        "one key downstream: {keys:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn run_4_ann_1_a_function_says_by_its_lease_that_nobody_knows() {
    #[derive(Default)]
    struct Ends(Mutex<Vec<Phase>>);
    impl Observer for Ends {
        fn failed(&self, _: LeaseEvent<'_>, phase: Phase) {
            self.0.lock().unwrap().push(phase);
        }
    }
    let ends = std::sync::Arc::new(Ends::default());
    let mut till = Till::new([Err(PayError::Refused), Ok(7)]);
    till.engine = IdempotencyEngine::builder(MemoryStore::new())
        .observer(std::sync::Arc::clone(&ends))
        .build()
        .unwrap();
    assert!(matches!(till.careful("a".to_owned()).await, Err(PayError::Refused)));
    assert!(till.careful("a".to_owned()).await.unwrap_err().is_in_flight());
    assert_eq!(*ends.0.lock().unwrap(), [Phase::Held]);
    // Calling the engine directly with the same scope and key finds the same record: neither the
    // lease argument nor the hold marker changes the key.
    let same = IdempotencyContext::builder("careful", "a")
        .wait_timeout(Duration::from_secs(20))
        .build()
        .unwrap();
    assert!(
        till.engine.execute(same, async || Ok::<u64, PayError>(8)).await.unwrap().is_executed()
    );
}

#[cfg(feature = "blocking")]
mod blocking {
    use retryproof::blocking::Engine;
    use retryproof::{Attempt, Lease, MemoryStore, idempotent};

    use super::PayError;

    #[idempotent(key = id, engine = engine, scope = "b", lease = "PT0.05S", hold_when = |error| error.is_unknown())]
    fn charge(
        engine: &Engine,
        id: u8,
        answer: fn() -> Result<(), PayError>,
        #[lease] lease: &Lease,
    ) -> Result<bool, PayError> {
        answer().map(|()| lease.attempt() == Attempt::Takeover)
    }

    #[test]
    fn run_4_ann_1_a_blocking_function_has_its_lease_and_its_errors_a_fate() {
        let engine = Engine::new(MemoryStore::new()).unwrap();
        assert!(matches!(charge(&engine, 1, || Err(PayError::TimedOut)), Err(PayError::TimedOut)));
        // This call waits until the held lease ends.
        assert!(charge(&engine, 1, || Ok(())).unwrap());
        assert!(matches!(charge(&engine, 2, || Err(PayError::Refused)), Err(PayError::Refused)));
        assert!(!charge(&engine, 2, || Ok(())).unwrap());
    }
}

/// The future stays `Send` although it contains the lease and the function that judges errors.
#[test]
fn run_4_ann_1_the_future_is_send() {
    fn send(_: impl Future + Send) {}
    let till = Till::new([]);
    send(till.charge("a"));
    send(till.careful("a".to_owned()));
}
