// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Seen`]: what came of a test's messages, told apart by their bodies.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use retryproof_core::listener::{Reason, Verdict};

/// What came of a test's messages. Cheap to clone: all clones are one list.
#[derive(Debug, Clone, Default)]
pub struct Seen(Arc<Mutex<BTreeMap<String, Fate>>>);

/// What came of one message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fate {
    /// How often its work ran.
    pub runs: u32,
    /// What its deliveries ended with, in their order.
    pub ends: Vec<Reason>,
}

impl Seen {
    /// The work of a message begins.
    pub fn ran(&self, body: &str) {
        self.0.lock().entry(body.to_owned()).or_default().runs += 1;
    }

    /// A delivery of it ends.
    pub fn ended(&self, body: &str, verdict: &Verdict) {
        self.0.lock().entry(body.to_owned()).or_default().ends.push(verdict.reason());
    }

    /// What came of one so far.
    #[must_use]
    pub fn of(&self, body: &str) -> Fate {
        self.0.lock().get(body).cloned().unwrap_or_default()
    }

    /// How many messages have run.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.0.lock().values().filter(|fate| fate.runs > 0).count()
    }

    /// How many messages have had a delivery that came to its end.
    #[must_use]
    pub fn ends(&self) -> usize {
        self.0.lock().values().filter(|fate| !fate.ends.is_empty()).count()
    }
}

impl Fate {
    /// Whether it ran once, and every other delivery found that.
    #[must_use]
    pub fn is_once(&self) -> bool {
        let mut ends = self.ends.iter();
        self.runs == 1
            && ends.next() == Some(&Reason::Executed)
            && ends.all(|why| *why == Reason::Replayed)
    }
}
