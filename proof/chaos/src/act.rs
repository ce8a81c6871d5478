// SPDX-License-Identifier: MIT OR Apache-2.0
//! The action of a call: how long it takes, how it ends, and which effects it has outside the
//! store.

use std::sync::Arc;
use std::time::Duration;

use history::{Event, Fun, Phase, Said};
use retryproof::{Identity, Lease};

use crate::log::Log;
use crate::resource::{Guard, Resource};
use crate::world;

/// How an action ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Value,
    Error,
    Panic,
    /// A value that the codec refuses.
    Unencodable,
}

/// The value that the codec refuses.
pub(crate) const UNENCODABLE: &[u8] = b"unencodable";

/// The action's own error.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) String);

/// One action.
#[derive(Debug, Clone)]
pub(crate) struct Action {
    pub(crate) log: Arc<Log>,
    pub(crate) resource: Arc<Resource>,
    pub(crate) guard: Guard,
    pub(crate) call: u64,
    pub(crate) identity: Identity,
    pub(crate) fate: Fate,
    pub(crate) takes: Duration,
    pub(crate) padding: u64,
    pub(crate) by: String,
}

/// Writes the end of an action. If this value is dropped before that, it writes that the action was
/// dropped.
pub(crate) struct Running {
    log: Arc<Log>,
    end: Event,
    ended: bool,
}

impl Running {
    pub(crate) fn end(&mut self, said: Said, note: Option<String>) {
        self.ended = true;
        self.end.mono_ns = crate::mono::now();
        (self.end.said, self.end.note) = (Some(said), note);
        self.log.write(&self.end);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.end(Said::Dropped, None);
        }
    }
}

impl Action {
    pub(crate) fn begin(&self, token: u64) -> Running {
        let event = |fun| {
            let mut event = self.log.of(0, fun, Phase::Ok, &self.identity);
            (event.call, event.token) = (Some(self.call), Some(token));
            event
        };
        self.log.write(&event(Fun::ActStart));
        Running { log: Arc::clone(&self.log), end: event(Fun::ActEnd), ended: false }
    }

    pub(crate) async fn run(self, lease: Lease) -> Result<Vec<u8>, Failed> {
        let token = lease.token().get();
        let mut running = self.begin(token);
        tokio::time::sleep(self.takes).await;
        if self.fate == Fate::Value {
            self.resource.touch(&self.log, self.guard, &self.identity, &lease).await;
        }
        match self.fate {
            Fate::Value => {
                running.end(Said::Returned, None);
                Ok(self.value(token))
            }
            Fate::Unencodable => {
                running.end(Said::Returned, None);
                Ok(UNENCODABLE.to_vec())
            }
            Fate::Error => {
                let code = format!("error-{}-{}", self.by, self.call);
                running.end(Said::Err, Some(code.clone()));
                Err(Failed(code))
            }
            Fate::Panic => {
                running.end(Said::Panic, None);
                panic!("an action that panics")
            }
        }
    }

    pub(crate) fn value(&self, token: u64) -> Vec<u8> {
        world::value(&self.identity, token, &format!("{}-{}", self.by, self.call), self.padding)
    }
}
