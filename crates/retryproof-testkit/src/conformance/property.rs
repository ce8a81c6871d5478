// SPDX-License-Identifier: MIT OR Apache-2.0
//! Three owners take random steps on two identities. A sequential model checks every answer.

use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Completion, IdempotencyStore, LiveLease, Peeked, SharedStore,
};
use retryproof_core::{Error, Identity, OwnerId, StoredResult};

use super::caller::{DAY, LONG, MS, body, envelope, fingerprint};
use crate::model::{Answer, Ask, Model};
use crate::random::Random;
use crate::subject::Subject;

const STEPS: usize = 40;

/// One step, in the model's terms.
#[derive(Debug, Clone, Copy)]
enum Step {
    Acquire { owner: usize, lease: Duration, ttl: Duration, fingerprint: Option<u8> },
    Look,
    Extend { owner: usize, lease: Duration },
    Complete { owner: usize, value: u32, ttl: Duration, fingerprint: Option<u8> },
    Release { owner: usize },
    Pass(Duration),
    Purge,
}

/// Returns a random step. On the host's clock, each duration either lasts for the whole test, or
/// the test immediately waits until it is over. The model therefore always knows what has expired.
fn draw(random: &mut Random, s: &Subject, value: u32) -> Step {
    let exact = s.is_exact();
    let owner = random.below(3);
    let fingerprint = random.pick(&[None, Some(1), Some(2)]);
    let lease = if exact {
        random.pick(&[10 * MS, 1_000 * MS, 1_001 * MS, 3_000 * MS, LONG])
    } else {
        random.pick(&[10 * MS, LONG, LONG])
    };
    let lease = s.kept(lease);
    let ttl = if exact {
        random.pick(&[MS, 1_000 * MS, 3_000 * MS, LONG, DAY])
    } else {
        random.pick(&[MS, DAY, DAY])
    };
    let ttl = s.kept(ttl);
    match random.below(if exact { 20 } else { 17 }) {
        0..=5 => Step::Acquire { owner, lease, ttl, fingerprint },
        6..=8 => Step::Look,
        9..=10 => Step::Extend { owner, lease },
        11..=13 => Step::Complete { owner, value, ttl, fingerprint },
        14..=15 => Step::Release { owner },
        16 => Step::Purge,
        _ => Step::Pass(random.pick(&[MS, 999 * MS, 1_000 * MS, 1_001 * MS, 5_000 * MS, 2 * LONG])),
    }
}

fn read(stored: &StoredResult) -> Answer {
    let body = body(stored);
    let value =
        body.get(..4).and_then(|head| head.try_into().ok()).map_or(u32::MAX, u32::from_le_bytes);
    let whole = body == value_of(value);
    let fingerprint = stored.fingerprint().map(|fingerprint| fingerprint.as_bytes()[1]);
    Answer::Complete { value: if whole { value } else { u32::MAX }, fingerprint }
}

/// Returns a value that contains the number `value`. The values have many different lengths.
fn value_of(value: u32) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.resize(4 + (value as usize * 37) % 300, 0xa5);
    bytes
}

struct Run<'s> {
    subject: &'s Subject,
    owners: [OwnerId; 3],
    identities: [Identity; 2],
    models: [Model; 2],
    handles: Vec<SharedStore>,
    exact: bool,
}

impl Run<'_> {
    /// Returns `remaining`, or zero on a running clock, where the model does not know the remaining
    /// time.
    fn remaining(&self, remaining: Duration) -> Duration {
        if self.exact { remaining } else { Duration::ZERO }
    }

    async fn step(&mut self, at: usize, handle: usize, step: Step) -> Result<(), String> {
        let store = &self.handles[handle];
        let id = &self.identities[at];
        let failed = |error: Error| format!("{error}");
        let fingerprint = |byte: Option<u8>| byte.map(fingerprint);
        match step {
            Step::Acquire { owner, lease, ttl, fingerprint: fp } => {
                let request = AcquireRequest::new(self.owners[owner], lease, ttl)
                    .with_fingerprint(fingerprint(fp));
                let answer = match store.acquire(id, &request).await.map_err(failed)? {
                    Acquired::Granted(grant) => {
                        Answer::Granted { token: grant.token, took_over: grant.took_over }
                    }
                    Acquired::Busy(LiveLease { remaining, token, .. }) => {
                        Answer::Busy { token, remaining: self.remaining(remaining) }
                    }
                    Acquired::Complete(stored) => read(&stored),
                };
                self.models[at].acquire(&Ask { owner, lease, ttl, fingerprint: fp }, answer)?;
                if matches!(answer, Answer::Granted { .. }) {
                    self.wait_out(at, lease).await;
                }
            }
            Step::Look => {
                let answer = match store.peek(id).await.map_err(failed)? {
                    Peeked::Absent => Answer::Absent,
                    Peeked::Busy(LiveLease { remaining, token, .. }) => {
                        Answer::Busy { token, remaining: self.remaining(remaining) }
                    }
                    Peeked::Complete(stored) => read(&stored),
                };
                self.models[at].peek(answer)?;
            }
            Step::Extend { owner, lease } => {
                let answer = store.extend(id, self.owners[owner], lease).await.map_err(failed)?;
                self.models[at].extend(owner, lease, Answer::Fenced(answer))?;
                if answer == retryproof_core::store::FencedWrite::Applied {
                    self.wait_out(at, lease).await;
                }
            }
            Step::Complete { owner, value, ttl, fingerprint: fp } => {
                let done = Completion::new(envelope(&value_of(value)), ttl, fingerprint(fp));
                let answer = store.complete(id, self.owners[owner], &done).await.map_err(failed)?;
                self.models[at].complete(owner, (value, ttl, fp), Answer::Fenced(answer))?;
                if answer == retryproof_core::store::FencedWrite::Applied {
                    self.wait_out(at, ttl).await;
                }
            }
            Step::Release { owner } => {
                let answer = store.release(id, self.owners[owner]).await.map_err(failed)?;
                self.models[at].release(owner, Answer::Fenced(answer))?;
            }
            Step::Pass(by) => {
                self.subject.pass(by).await;
                self.models.iter_mut().for_each(|model| model.pass(by));
            }
            Step::Purge => {
                if self.subject.store().can_purge() {
                    self.subject.purge_all().await;
                    // If the clock keeps running during the test, the store might not have purged
                    // an expired record yet, so the model keeps the record.
                    if self.exact {
                        self.models.iter_mut().for_each(Model::purge);
                    }
                }
            }
        }
        Ok(())
    }

    /// On the host's clock, waits until a short duration is over, and advances the models by the
    /// same time.
    async fn wait_out(&mut self, at: usize, length: Duration) {
        if self.exact || length >= LONG {
            return;
        }
        self.subject.expire(&self.identities[at], length).await;
        self.models.iter_mut().for_each(|model| model.pass(length));
    }
}

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// In any sequence of steps, the store gives only answers that the contract allows. A failure names
/// the seed: `RETRYPROOF_SEED` repeats only that seed, and `RETRYPROOF_SEQUENCES` sets the number
/// of seeds.
pub async fn sto_2_random_steps_agree_with_the_model(s: &Subject) {
    let sequences = from_env("RETRYPROOF_SEQUENCES").unwrap_or_else(|| u64::from(s.sequences()));
    let seeds = from_env("RETRYPROOF_SEED").map_or(0..sequences, |seed| seed..seed + 1);
    let mut handles = vec![s.store().clone()];
    handles.extend(s.another().await);
    for seed in seeds {
        let mut random = Random::new(seed);
        let mut run = Run {
            subject: s,
            owners: std::array::from_fn(|_| OwnerId::new()),
            identities: [s.identity("a", &format!("k{seed}")), s.identity("ak", &seed.to_string())],
            models: Default::default(),
            handles: handles.clone(),
            exact: s.is_exact(),
        };
        let mut log = Vec::new();
        for value in 0..STEPS {
            let at = random.below(2);
            let handle = random.below(run.handles.len());
            let step = draw(&mut random, s, u32::try_from(value).unwrap_or(0));
            log.push(format!("  identity {at}, handle {handle}: {step:?}"));
            if let Err(wrong) = run.step(at, handle, step).await {
                panic!(
                    "with RETRYPROOF_SEED={seed}, after\n{}\nthe store answered {wrong}",
                    log.join("\n")
                );
            }
        }
    }
}
