// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Model`]: the contract as a sequential program. A test compares each answer of a store with the
//! model's answer. Times are measured from the start of the sequence of calls. A store can delete
//! a result past its ttl, or a lease past both its end and its ttl, at any moment (STO-4). Some
//! calls then have two correct answers, and the model follows the store's answer.

use std::time::Duration;

use retryproof_core::FencingToken;
use retryproof_core::store::FencedWrite;

/// The number of an owner. The model also uses numbers for fingerprints and values.
pub(crate) type Owner = usize;

#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    now: Duration,
    record: Option<Record>,
    last_token: Option<FencingToken>,
}

#[derive(Debug, Clone)]
struct Record {
    owner: Owner,
    token: FencingToken,
    took_over: bool,
    fingerprint: Option<u8>,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Running { until: Duration, ttl_until: Duration },
    Complete { value: u32, until: Duration },
}

/// An answer in a form that the store and the model share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted { token: FencingToken, took_over: bool },
    Busy { token: FencingToken, remaining: Duration },
    Complete { value: u32, fingerprint: Option<u8> },
    Absent,
    Fenced(FencedWrite),
}

pub(crate) struct Ask {
    pub(crate) owner: Owner,
    pub(crate) lease: Duration,
    pub(crate) ttl: Duration,
    pub(crate) fingerprint: Option<u8>,
}

/// The state of a record at the current time.
enum Standing<'a> {
    Absent,
    /// A lease past both its end and its ttl. The store may have deleted the record.
    Forgotten(&'a Record),
    Expired(&'a Record),
    Running(&'a Record, Duration),
    /// A result past its ttl. The store may have deleted the record.
    Stale(&'a Record),
    Complete(&'a Record, u32),
}

/// Returns the correct answers to a write that takes effect only if the record is in progress for
/// `owner`.
fn while_in_progress(standing: &Standing<'_>, owner: Owner) -> &'static [FencedWrite] {
    match standing {
        Standing::Running(record, _) | Standing::Expired(record) if record.owner == owner => {
            &[FencedWrite::Applied]
        }
        Standing::Forgotten(record) if record.owner == owner => {
            &[FencedWrite::Applied, FencedWrite::NotOwner]
        }
        _ => &[FencedWrite::NotOwner],
    }
}

impl Model {
    pub(crate) fn pass(&mut self, by: Duration) {
        self.now += by;
    }

    fn standing(&self) -> Standing<'_> {
        let Some(record) = &self.record else { return Standing::Absent };
        match record.state {
            State::Running { until, .. } if until > self.now => {
                Standing::Running(record, until - self.now)
            }
            State::Running { ttl_until, .. } if ttl_until > self.now => Standing::Expired(record),
            State::Running { .. } => Standing::Forgotten(record),
            State::Complete { value, until } if until > self.now => {
                Standing::Complete(record, value)
            }
            State::Complete { .. } => Standing::Stale(record),
        }
    }

    /// Checks the answer to a peek.
    pub(crate) fn peek(&self, answer: Answer) -> Result<(), String> {
        let right = match self.standing() {
            Standing::Running(record, remaining) => Answer::Busy { token: record.token, remaining },
            Standing::Complete(record, value) => {
                Answer::Complete { value, fingerprint: record.fingerprint }
            }
            _ => Answer::Absent,
        };
        self.is(answer, &[right])
    }

    /// Checks the answer to an acquire, and updates the model from it.
    pub(crate) fn acquire(&mut self, ask: &Ask, answer: Answer) -> Result<(), String> {
        let granted = match answer {
            Answer::Granted { token, took_over } => Some((token, took_over)),
            _ => None,
        };
        // `grants` lists all correct grants. Each entry contains the token that the grant must
        // keep, if any, and says whether the grant is a takeover.
        let fresh = (None, false);
        let grants: Vec<(Option<FencingToken>, bool)> = match self.standing() {
            Standing::Running(record, _) | Standing::Expired(record)
                if record.owner == ask.owner =>
            {
                vec![(Some(record.token), record.took_over)]
            }
            Standing::Running(record, remaining) => {
                return self.is(answer, &[Answer::Busy { token: record.token, remaining }]);
            }
            Standing::Complete(record, value) => {
                return self
                    .is(answer, &[Answer::Complete { value, fingerprint: record.fingerprint }]);
            }
            Standing::Expired(_) => vec![(None, true)],
            Standing::Forgotten(record) if record.owner == ask.owner => {
                vec![(Some(record.token), record.took_over), fresh]
            }
            Standing::Forgotten(_) => vec![(None, true), fresh],
            Standing::Stale(_) | Standing::Absent => vec![fresh],
        };
        let Some((token, took_over)) = granted else {
            return Err(format!("{answer:?}, but should have answered with a grant"));
        };
        let last = self.last_token;
        let fits = |(kept, over): &(Option<FencingToken>, bool)| {
            *over == took_over
                && match kept {
                    Some(kept) => token == *kept,
                    None => last.is_none_or(|last| token > last),
                }
        };
        if !grants.iter().any(fits) {
            return Err(format!(
                "{answer:?}, but should have granted one of {grants:?} (token, takeover); the last \
                 token was {last:?}"
            ));
        }
        self.last_token = Some(token);
        self.record = Some(Record {
            owner: ask.owner,
            token,
            took_over,
            fingerprint: ask.fingerprint,
            state: State::Running { until: self.now + ask.lease, ttl_until: self.now + ask.ttl },
        });
        Ok(())
    }

    /// Checks the answer to an extend, and updates the model from it.
    pub(crate) fn extend(
        &mut self,
        owner: Owner,
        lease: Duration,
        answer: Answer,
    ) -> Result<(), String> {
        self.is_fenced(answer, while_in_progress(&self.standing(), owner))?;
        if answer == Answer::Fenced(FencedWrite::Applied)
            && let Some(Record { state: State::Running { until, .. }, .. }) = &mut self.record
        {
            *until = self.now + lease;
        }
        Ok(())
    }

    /// Checks the answer to a completion, and updates the model from it.
    pub(crate) fn complete(
        &mut self,
        owner: Owner,
        (value, ttl, fingerprint): (u32, Duration, Option<u8>),
        answer: Answer,
    ) -> Result<(), String> {
        let right: &[FencedWrite] = match self.standing() {
            Standing::Complete(record, _) if record.owner == owner => {
                &[FencedWrite::AlreadyApplied]
            }
            Standing::Stale(record) if record.owner == owner => {
                &[FencedWrite::AlreadyApplied, FencedWrite::NotOwner]
            }
            standing => while_in_progress(&standing, owner),
        };
        self.is_fenced(answer, right)?;
        if answer == Answer::Fenced(FencedWrite::Applied)
            && let Some(record) = &mut self.record
        {
            record.fingerprint = fingerprint;
            record.state = State::Complete { value, until: self.now + ttl };
        }
        Ok(())
    }

    /// Checks the answer to a release, and updates the model from it.
    pub(crate) fn release(&mut self, owner: Owner, answer: Answer) -> Result<(), String> {
        let right: &[FencedWrite] = match self.standing() {
            Standing::Running(record, _) | Standing::Expired(record) if record.owner == owner => {
                &[FencedWrite::Applied]
            }
            Standing::Forgotten(record) if record.owner == owner => {
                &[FencedWrite::Applied, FencedWrite::AlreadyApplied]
            }
            Standing::Forgotten(_) | Standing::Stale(_) => {
                &[FencedWrite::NotOwner, FencedWrite::AlreadyApplied]
            }
            Standing::Absent => &[FencedWrite::AlreadyApplied],
            _ => &[FencedWrite::NotOwner],
        };
        self.is_fenced(answer, right)?;
        if !matches!(self.standing(), Standing::Complete(..))
            && matches!(answer, Answer::Fenced(FencedWrite::Applied | FencedWrite::AlreadyApplied))
        {
            self.record = None;
        }
        Ok(())
    }

    /// Removes the record if it is a lease past both its end and its ttl, or a result past its ttl.
    pub(crate) fn purge(&mut self) {
        if matches!(self.standing(), Standing::Forgotten(_) | Standing::Stale(_)) {
            self.record = None;
        }
    }

    fn is_fenced(&self, answer: Answer, right: &[FencedWrite]) -> Result<(), String> {
        let right: Vec<_> = right.iter().copied().map(Answer::Fenced).collect();
        self.is(answer, &right)
    }

    fn is(&self, answer: Answer, right: &[Answer]) -> Result<(), String> {
        let fits = |right: &Answer| match (*right, answer) {
            // If the clock keeps running during a test, the model does not know the remaining time.
            // The caller then passes zero, and this function compares only the tokens.
            (Answer::Busy { token, .. }, Answer::Busy { token: said, remaining })
                if remaining.is_zero() =>
            {
                token == said
            }
            (right, answer) => right == answer,
        };
        if right.iter().any(fits) {
            return Ok(());
        }
        Err(format!(
            "{answer:?}, but should have answered {right:?}; the record was {:?}, and the time \
             {:?}",
            self.record, self.now
        ))
    }
}
