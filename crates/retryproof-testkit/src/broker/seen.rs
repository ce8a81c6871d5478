// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Seen`]: the results of a test's messages. A message is identified by its body.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use retryproof_core::listener::{Reason, Verdict};

/// The results of a test's messages. Cheap to clone: all clones share one list.
#[derive(Debug, Clone, Default)]
pub struct Seen(Arc<Mutex<BTreeMap<String, MessageFate>>>);

/// The results of one message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageFate {
    /// How many times the message's work ran.
    pub runs: u32,
    /// The results of the message's deliveries, in order.
    pub ends: Vec<Reason>,
}

impl Seen {
    /// Records one run of a message's work.
    pub fn ran(&self, body: &str) {
        self.0.lock().entry(body.to_owned()).or_default().runs += 1;
    }

    /// Records how a delivery of a message ended.
    pub fn ended(&self, body: &str, verdict: &Verdict) {
        self.0.lock().entry(body.to_owned()).or_default().ends.push(verdict.reason());
    }

    /// Returns the results of one message so far.
    #[must_use]
    pub fn of(&self, body: &str) -> MessageFate {
        self.0.lock().get(body).cloned().unwrap_or_default()
    }

    /// Returns the number of messages whose work has run at least once.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.0.lock().values().filter(|fate| fate.runs > 0).count()
    }

    /// Returns the number of messages with at least one finished delivery.
    #[must_use]
    pub fn ends(&self) -> usize {
        self.0.lock().values().filter(|fate| !fate.ends.is_empty()).count()
    }
}

impl MessageFate {
    /// Returns whether the first delivery ran the message's work and every later delivery replayed
    /// the result.
    #[must_use]
    pub fn is_once(&self) -> bool {
        let mut ends = self.ends.iter();
        self.runs == 1
            && ends.next() == Some(&Reason::Executed)
            && ends.all(|why| *why == Reason::Replayed)
    }
}
