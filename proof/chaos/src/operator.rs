// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Operator`]: looks at the records of the callers, and releases, resolves, forgets or erases
//! them, while holders work and others take over (OPS-3, OPS-4).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use history::{Event, Fun, Phase, Said, hash};
use retryproof::store::{Completion, ForceRequest, Forced, RecordState};
use retryproof::{CodecId, FencingToken, Identity, Payload, SharedStore};

use crate::log::Log;
use crate::mono;
use crate::planted;
use crate::random::Random;
use crate::recording::{failed, us};
use crate::world::{self, World};

/// How long a resolved result is kept. This time does not end during a run.
const TTL: Duration = Duration::from_secs(3_600);

/// One of a worker's operators.
pub(crate) struct Operator {
    pub(crate) log: Arc<Log>,
    pub(crate) store: SharedStore,
    pub(crate) world: World,
    pub(crate) random: Random,
    /// A planted defect: the store does not compare the token that the operator saw.
    pub(crate) is_unfenced: bool,
    /// The operator's name in the values that it gives.
    pub(crate) by: String,
}

impl Operator {
    /// Intervenes until the run is over.
    pub(crate) async fn run(mut self, over: Arc<AtomicBool>) {
        while !over.load(Ordering::Relaxed) {
            let think = self.random.within(0..30);
            tokio::time::sleep(Duration::from_millis(think)).await;
            // Choose recent keys. The work of old keys is finished, so no other call would compete
            // with the operator.
            let number = self.world.newest() - self.random.within(0..16);
            if let Ok(id) = world::identity(number) {
                self.intervene(&id).await;
            }
        }
    }

    async fn intervene(&mut self, id: &Identity) {
        let since = mono::now();
        // This read is not in the history, because no rule judges it.
        let Ok(Some(found)) = self.store.get(id).await else { return };
        // Pause, so that the action can end or another owner can take over its lease before the
        // intervention.
        if self.random.percent(60) {
            let hesitates = self.random.within(0..15);
            tokio::time::sleep(Duration::from_millis(hesitates)).await;
        }
        let op = self.log.number();
        let fitting = self.random.percent(85);
        let in_progress = (found.state == RecordState::InProgress) == fitting;
        let fun = match (in_progress, self.random.percent(50)) {
            (true, true) => Fun::ForceRelease,
            (true, false) => Fun::ForceResolve,
            (false, true) => Fun::ForceForget,
            (false, false) => Fun::ForceErase,
        };
        let (mut event, mut req) = self.request(op, fun, id, found.token);
        if self.random.percent(60) {
            (req, event.even_if_live) = (req.even_if_live(), true);
        }
        event.since_ns = Some(since);
        event.mono_ns = mono::now();
        self.log.write(&event);
        let answer = if self.is_unfenced {
            planted::unfenced(&self.store, id, &req).await
        } else {
            self.store.force(id, &req).await
        };
        let mut end = self.log.of(op, fun, Phase::Ok, id);
        match answer {
            Ok(forced) => told(&mut end, &forced),
            Err(error) => failed(&mut end, &error),
        }
        self.log.write(&end);
    }

    fn request(
        &mut self,
        op: u64,
        fun: Fun,
        id: &Identity,
        token: FencingToken,
    ) -> (Event, ForceRequest) {
        let place = self.log.of(op, fun, Phase::Invoke, id);
        let mut event = Event { token: Some(token.get()), ..place };
        let req = match fun {
            Fun::ForceRelease => ForceRequest::release(token),
            Fun::ForceForget => ForceRequest::forget(token),
            Fun::ForceErase => ForceRequest::erase(token),
            _ => {
                let by = format!("operator-{}-{op}", self.by);
                let padding = self.random.spread(1..400);
                let value = world::value(id, token.get(), &by, padding);
                (event.value_hash, event.ttl_us) = (Some(hash(&value)), us(TTL));
                event.bears = world::bears(&value);
                let value = Payload::new(CodecId::BYTES, 0, &value).into_envelope();
                ForceRequest::resolve(id, token, Completion::new(value, TTL, None))
            }
        };
        (event, req)
    }
}

fn told(event: &mut Event, forced: &Forced) {
    event.said = Some(match forced {
        Forced::Applied => Said::Done,
        Forced::Live(lease) => {
            (event.token, event.remaining_us) = (Some(lease.token.get()), us(lease.remaining));
            Said::Busy
        }
        Forced::Unfinished => Said::Unfinished,
        Forced::Finished => Said::Finished,
        Forced::AnotherToken(token) => {
            event.token = Some(token.get());
            Said::AnotherToken
        }
        Forced::Absent => Said::Absent,
    });
}
