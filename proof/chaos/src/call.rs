// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Caller`]: makes calls with one key after another, in every way that the engine offers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use history::{Event, Fun, Phase, Said, hash};
use retryproof::__private::Acquiring;
use retryproof::{
    Acquisition, Codec, CodecId, CompletionFailurePolicy, CompletionResult, Error, ErrorKind,
    ExecuteError, Fingerprint, HeldLease, IdempotencyContext, IdempotencyEngine, Identity, Opened,
    Outcome, Payload, Recorded, Report, Scope, StoredResult, Tombstone,
};

use crate::act::{Action, Failed, Fate, UNENCODABLE};
use crate::log::Log;
use crate::random::Random;
use crate::recording::CALL;
use crate::resource::{Guard, Resource};
use crate::world::{self, World};

/// One of a worker's callers.
pub(crate) struct Caller {
    pub(crate) log: Arc<Log>,
    pub(crate) engine: IdempotencyEngine,
    pub(crate) resource: Arc<Resource>,
    pub(crate) guard: Guard,
    pub(crate) world: World,
    pub(crate) lease_ms: (u64, u64),
    pub(crate) random: Random,
    /// The caller's name in values and errors.
    pub(crate) by: String,
}

/// A codec for bytes that refuses one value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Picky;

impl Codec<Vec<u8>> for Picky {
    fn id(&self) -> CodecId {
        CodecId::BYTES
    }

    fn encode(&self, value: &Vec<u8>, into: &mut Vec<u8>) -> retryproof::Result<()> {
        if value == UNENCODABLE {
            return Err(Error::new(ErrorKind::Codec, "this codec refuses the value on purpose"));
        }
        into.extend_from_slice(value);
        Ok(())
    }

    fn decode(&self, payload: &Payload) -> retryproof::Result<Vec<u8>> {
        Ok(payload.body().to_vec())
    }
}

type Answer = Result<Report<Vec<u8>>, ExecuteError<Failed>>;

impl Caller {
    /// Makes calls until the run is over.
    pub(crate) async fn run(mut self, over: Arc<AtomicBool>) {
        while !over.load(Ordering::Relaxed) {
            let think = self.random.within(0..40);
            tokio::time::sleep(Duration::from_millis(think)).await;
            let number = self.world.pick(&mut self.random);
            if let Ok(identity) = world::identity(number) {
                self.call(identity).await;
            }
            if self.random.percent(3) {
                self.call_alone().await;
            }
        }
    }

    /// Calls with a key that no other caller uses. If the lease ends, no other caller takes over,
    /// so the late completion counts (CMP-2).
    async fn call_alone(&mut self) {
        let key = format!("{}-{}", self.by, self.log.number());
        let scope = Scope::new("alone");
        if let Ok(identity) = scope.and_then(|scope| Identity::of(scope, key)) {
            self.call(identity).await;
        }
    }

    async fn call(&mut self, identity: Identity) {
        let op = self.log.number();
        let Some(asked) = self.ask(&identity) else { return };
        let Asked { ctx, wait, lease_ms } = asked;
        let (style, policy) = match self.random.within(0..100) {
            0..45 => (Style::Report, CompletionFailurePolicy::LogAndReturn),
            45..60 => (Style::Report, CompletionFailurePolicy::Propagate),
            60..75 => (Style::Spawn, CompletionFailurePolicy::LogAndReturn),
            75..90 => (Style::Held, CompletionFailurePolicy::LogAndReturn),
            _ => (Style::Dropped, CompletionFailurePolicy::LogAndReturn),
        };
        let action = self.action(op, identity.clone(), lease_ms);
        self.log.write(&Event {
            propagate: policy == CompletionFailurePolicy::Propagate,
            wait_us: u64::try_from(wait.as_micros()).ok(),
            fp_hash: crate::recording::print(ctx.fingerprint()),
            note: Some(format!("{style:?}").to_lowercase()),
            ..self.log.of(op, Fun::Respond, Phase::Invoke, &identity)
        });
        let fenced = Arc::new(AtomicBool::new(false));
        let hook = hook(Arc::clone(&self.log), op, Arc::clone(&fenced));
        let call = self.engine.call(ctx.clone()).codec(Picky).completion(policy).on_fenced(hook);
        let mut event = match style {
            // Run the call in a separate task, so that a panic of the action ends that task and not
            // the caller.
            Style::Report => {
                let task =
                    tokio::spawn(CALL.scope(op, call.report(move |lease| action.run(lease))));
                answered(task.await.ok())
            }
            Style::Spawn => {
                let work = call.spawn_with(move |lease| action.run(lease));
                // This style of call does not report whether the result was recorded.
                let report = |outcome| (outcome, None, false);
                tokio::spawn(CALL.scope(op, work))
                    .await
                    .map_or_else(|_| said(Said::Panicked), |answer| told(answer.map(report)))
            }
            Style::Held => {
                let engine = self.engine.clone();
                let end = self.random.within(0..100);
                CALL.scope(op, by_hand(engine, ctx, action, end)).await
            }
            Style::Dropped => {
                let patience = Duration::from_millis(self.random.spread(1..lease_ms * 2));
                let work = CALL.scope(op, call.report(move |lease| action.run(lease)));
                // The timeout and the call are in one task, so the timeout can drop the call at any
                // of its await points.
                match tokio::spawn(tokio::time::timeout(patience, work)).await {
                    Ok(Ok(answer)) => answered(Some(answer)),
                    Ok(Err(_)) => said(Said::Dropped),
                    Err(_) => answered(None),
                }
            }
        };
        event.fenced |= fenced.load(Ordering::Relaxed);
        self.log.write(&Event {
            said: event.said,
            recorded: event.recorded,
            fenced: event.fenced,
            value_hash: event.value.as_deref().map(hash),
            bears: event.value.as_deref().and_then(world::bears),
            note: event.note,
            ..self.log.of(op, Fun::Respond, Phase::Ok, &identity)
        });
    }

    /// Chooses the settings of the next call at random.
    fn ask(&mut self, identity: &Identity) -> Option<Asked> {
        let random = &mut self.random;
        let lease_ms = random.spread(self.lease_ms.0..self.lease_ms.1);
        let ttl = match random.within(0..100) {
            0..70 => Duration::from_secs(3_600),
            // This ttl is so short that the same identity is executed again.
            _ => Duration::from_millis(random.spread(150..2_000)),
        };
        let wait = match random.within(0..100) {
            0..25 => Duration::ZERO,
            25..85 => Duration::from_millis(random.spread(10..1_500)),
            _ => Duration::from_millis(self.lease_ms.1 + 1_000),
        };
        let fingerprint = match random.within(0..100) {
            0..40 => None,
            40..95 => Some([1, 1]),
            _ => Some([1, 2]),
        };
        let scope = identity.scope().clone();
        let builder = IdempotencyContext::builder(scope, identity.key().expose());
        let mut builder =
            builder.lease(Duration::from_millis(lease_ms)).ttl(ttl).wait_timeout(wait);
        if let Some(bytes) = fingerprint {
            builder = builder.fingerprint(Fingerprint::new(&bytes).ok()?);
        }
        Some(Asked { ctx: builder.build().ok()?, wait, lease_ms })
    }

    fn action(&mut self, call: u64, identity: Identity, lease_ms: u64) -> Action {
        let random = &mut self.random;
        let fate = match random.within(0..100) {
            0..86 => Fate::Value,
            86..95 => Fate::Error,
            95..98 => Fate::Panic,
            _ => Fate::Unencodable,
        };
        let takes = match random.within(0..100) {
            0..15 => 0,
            15..70 => random.within(1..25),
            // If the action takes longer than its lease, heartbeats have to extend the lease.
            70..85 => (lease_ms * random.within(5..30) / 10).min(1_200),
            // Here, heartbeats have to extend the lease several times.
            85..92 => (lease_ms * random.within(30..60) / 10).min(1_500),
            _ => random.within(25..200),
        };
        Action {
            log: Arc::clone(&self.log),
            resource: Arc::clone(&self.resource),
            guard: self.guard,
            call,
            identity,
            fate,
            takes: Duration::from_millis(takes),
            padding: random.spread(1..400),
            by: self.by.clone(),
        }
    }
}

/// The ways to call.
#[derive(Debug, Clone, Copy)]
enum Style {
    Report,
    Spawn,
    Held,
    Dropped,
}

struct Asked {
    ctx: IdempotencyContext,
    wait: Duration,
    lease_ms: u64,
}

/// The answer to a call, in the form of the history.
struct Told {
    said: Option<Said>,
    recorded: Option<String>,
    fenced: bool,
    value: Option<Vec<u8>>,
    note: Option<String>,
}

fn said(said: Said) -> Told {
    Told { said: Some(said), recorded: None, fenced: false, value: None, note: None }
}

fn failed(what: Said, error: &Error) -> Told {
    Told { note: Some(error.to_string()), ..said(what) }
}

/// Returns the hook that the engine calls if a completion is refused.
fn hook(
    log: Arc<Log>,
    call: u64,
    fenced: Arc<AtomicBool>,
) -> impl FnOnce(Vec<u8>) + Send + 'static {
    move |_| {
        fenced.store(true, Ordering::Relaxed);
        log.write(&Event { call: Some(call), ..log.event(0, Fun::Fenced, Phase::Ok) });
    }
}

/// Converts the answer to a call; `None` means that the action panicked.
fn answered(answer: Option<Answer>) -> Told {
    match answer {
        None => said(Said::Panicked),
        Some(answer) => {
            told(answer.map(|report| (report.outcome, Some(report.recorded), report.fenced)))
        }
    }
}

type Reported = (Outcome<Vec<u8>>, Option<Recorded>, bool);

fn told(answer: Result<Reported, ExecuteError<Failed>>) -> Told {
    let (outcome, recorded, fenced) = match answer {
        Ok(reported) => reported,
        Err(ExecuteError::Action(error)) => {
            return Told { note: Some(error.0), ..said(Said::ActionError) };
        }
        Err(ExecuteError::Store(error) | ExecuteError::Codec(error)) => {
            return failed(Said::StoreError, &error);
        }
        Err(ExecuteError::Completion(failure)) => {
            return failed(Said::CompletionError, &failure.error);
        }
        Err(ExecuteError::Mismatch) => return said(Said::Mismatch),
        Err(ExecuteError::NotReplayable(_)) => return said(Said::NotReplayable),
        Err(_) => return said(Said::Lost),
    };
    let recorded = recorded.map(|recorded| {
        match recorded {
            Recorded::Yes => "yes",
            Recorded::Tombstone => "tombstone",
            _ => "no",
        }
        .to_owned()
    });
    let (what, value) = match outcome {
        Outcome::Executed(value) => (Said::Executed, Some(value)),
        Outcome::Replayed(value) => (Said::Replayed, Some(value)),
        Outcome::InFlight(_) => (Said::InFlight, None),
    };
    Told { recorded, fenced, value, ..said(what) }
}

/// Acquires a lease with `try_acquire`, and ends it in one of the possible ways.
async fn by_hand(
    engine: IdempotencyEngine,
    ctx: IdempotencyContext,
    action: Action,
    end: u64,
) -> Told {
    // Start half of the acquires with `begin_acquire`, as the HTTP adapters do: it creates a future
    // only if it has to wait.
    let acquired = if end.is_multiple_of(2) {
        match engine.begin_acquire(&ctx) {
            Acquiring::Done(ended) => ended.acquired,
            Acquiring::Waiting(rest) => rest.await.acquired,
        }
    } else {
        engine.try_acquire(&ctx).await
    };
    match acquired {
        Ok(Acquisition::Granted(held)) => hold(held, action, end).await,
        Ok(Acquisition::Complete(stored)) => open(&stored, &ctx),
        Ok(Acquisition::InFlight(_)) => said(Said::InFlight),
        Ok(Acquisition::Mismatch) => said(Said::Mismatch),
        Err(error) => failed(Said::StoreError, &error),
    }
}

fn open(stored: &StoredResult, ctx: &IdempotencyContext) -> Told {
    match stored.open(ctx.fingerprint()) {
        Ok(Opened::Value(payload)) => {
            Told { value: Some(payload.body().to_vec()), ..said(Said::Replayed) }
        }
        Ok(Opened::Tombstone(_)) => said(Said::NotReplayable),
        Ok(Opened::Mismatch) => said(Said::Mismatch),
        Err(error) => failed(Said::StoreError, &error),
    }
}

async fn hold(held: HeldLease, action: Action, end: u64) -> Told {
    let token = held.lease().token().get();
    let mut running = action.begin(token);
    tokio::time::sleep(action.takes).await;
    let finished = match end {
        0..70 => {
            running.end(Said::Returned, None);
            let value = action.value(token);
            (held.complete(Payload::new(CodecId::BYTES, 0, &value)).await, Some(value))
        }
        70..78 => {
            running.end(Said::Returned, None);
            (held.complete_tombstone(Tombstone::new()).await, None)
        }
        78..90 => {
            running.end(Said::Err, None);
            return match held.release().await {
                Ok(()) => said(Said::Released),
                Err(error) => failed(Said::Released, &error),
            };
        }
        _ => {
            running.end(Said::Hold, None);
            held.hold();
            return said(Said::Held);
        }
    };
    match finished {
        (CompletionResult::Recorded, Some(value)) => {
            Told { recorded: Some("yes".into()), value: Some(value), ..said(Said::Executed) }
        }
        (CompletionResult::Recorded | CompletionResult::Tombstoned(_), _) => {
            Told { recorded: Some("tombstone".into()), ..said(Said::Executed) }
        }
        (CompletionResult::NotOwner, _) => said(Said::Lost),
        (CompletionResult::Unconfirmed(error), _) => failed(Said::CompletionError, &error),
        (_, _) => said(Said::Lost),
    }
}
