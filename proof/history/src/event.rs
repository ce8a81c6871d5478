// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Event`]: one line of a history, and [`Manifest`], what the run was started with.

use serde::{Deserialize, Serialize};

/// What an event tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fun {
    /// Store call.
    Acquire,
    /// Store call.
    Look,
    /// Store call: sleeps until something has changed.
    Wait,
    /// Store call.
    Extend,
    /// Store call.
    Complete,
    /// Store call.
    Release,
    /// Store call of an operator (OPS-4).
    ForceRelease,
    /// Store call of an operator.
    ForceResolve,
    /// Store call of an operator.
    ForceForget,
    /// Store call of an operator.
    ForceErase,
    /// Store call, without an identity.
    Purge,
    /// A call of the engine: its beginning, and what it was answered.
    Respond,
    /// The action's first poll.
    ActStart,
    /// The action's end, however it ended.
    ActEnd,
    /// The action's effect on a resource outside of the store, or the resource's refusal.
    Effect,
    /// The hook of a refused completion got the value (CMP-2).
    Fenced,
    /// An observer was told.
    Told,
    /// The process did not run from `since_ns` to `mono_ns`.
    Lag,
    /// What an operator sees of the record when all is over.
    Dump,
    /// A process began (`invoke`) or ended by itself (`ok`).
    Proc,
    /// A fault began (`invoke`) and ended (`ok`).
    Fault,
    /// The last fault is over; from here on everything settles.
    Settle,
}

impl Fun {
    /// Whether an operator sends it.
    #[must_use]
    pub fn is_force(self) -> bool {
        matches!(
            self,
            Self::ForceRelease | Self::ForceResolve | Self::ForceForget | Self::ForceErase
        )
    }
}

/// Where in its life the event's call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Before it was sent.
    Invoke,
    /// It was answered.
    Ok,
    /// It failed, and nothing happened.
    Fail,
    /// It is unknown whether it happened.
    Info,
}

/// Answers, ends and tellings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// Acquire: the lease is the caller's.
    Granted,
    /// Acquire: it is, and it was another's (ACQ-12).
    TookOver,
    /// Acquire, look: another holds it. An operator's call: refused, because the lease runs.
    Busy,
    /// Acquire, look: done, and here is the value.
    Complete,
    /// Acquire, look: done, and not to be replayed.
    Tombstone,
    /// Look, an operator's call: no record.
    Absent,
    /// Extend, complete, release, an operator's call: it took effect.
    Done,
    /// Complete, release: it had been done before.
    AlreadyDone,
    /// Extend, complete, release: refused.
    Lost,
    /// An operator's call: refused, because the work has no result.
    Unfinished,
    /// An operator's call: refused, because the work has a result.
    Finished,
    /// An operator's call: refused, because the key was granted again.
    AnotherToken,
    /// Wait: it has ended.
    Woken,
    /// Any store call: the record cannot be read (CMP-8).
    Corrupt,
    /// Respond: the action ran in this call.
    Executed,
    /// Respond: the stored result.
    Replayed,
    /// Respond: another is at work.
    InFlight,
    /// Respond: another fingerprint.
    Mismatch,
    /// Respond: a tombstone.
    NotReplayable,
    /// Respond: the action's own error.
    ActionError,
    /// Respond: the action's panic.
    Panicked,
    /// Respond: the store failed, nothing ran.
    StoreError,
    /// Respond: the completion failed.
    CompletionError,
    /// Respond: released by the caller, who held the lease.
    Released,
    /// Respond: the caller gave it up on purpose, and the lease runs out.
    Held,
    /// Respond, act_end: the caller went away.
    Dropped,
    /// Act_end: returned a value.
    Returned,
    /// Act_end: returned an error.
    Err,
    /// Act_end: panicked.
    Panic,
    /// Act_end: held on purpose.
    Hold,
    /// Told: the lease is lost while the action runs.
    LossNoticed,
    /// Told, terminal.
    Completed,
    /// Told, terminal.
    Failed,
    /// Told, terminal: the completion was refused.
    LeaseLost,
    /// Effect: it happened.
    Applied,
    /// Effect: the resource refused an older token.
    Refused,
    /// Dump: a record without a value.
    InProgress,
}

/// One line. What an event has no use for is left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the README has a table of the fields")]
pub struct Event {
    pub proc: u32,
    pub incarnation: u32,
    /// Joins the events of one call; unique in its incarnation.
    pub op: u64,
    #[serde(rename = "fn")]
    pub fun: Fun,
    pub phase: Phase,
    /// The machine's monotonic clock, the same for all processes.
    pub mono_ns: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<Said>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The engine's call in whose task it happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<u64>,
    /// 32 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// [`hash`](crate::hash) of the value's bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_hash: Option<u64>,
    /// Whose value it says that it is: every value names its identity and its token, so a leak
    /// shows in itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bears: Option<(String, String, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp_hash: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_us: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_us: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_us: Option<u64>,
    /// What the answer says is left of the lease: the end of the lease by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_us: Option<u64>,
    /// Respond: what the caller was told of the record (CMP-4): yes, no or a tombstone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
    /// Respond: the completion was refused (CMP-2).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fenced: bool,
    /// Respond: under the policy `propagate` (CMP-4).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub propagate: bool,
    /// An operator's call: whether it may end a live lease.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub even_if_live: bool,
    /// Lag: since when. An operator's call: when the operator saw the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ns: Option<u64>,
    /// Fault: which process it struck; none for the store and the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub victim: Option<u32>,
    /// Fault: acknowledged writes may be lost in its window.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lossy: bool,
    /// Fault: its name. Dump: bytes of the value. Failed calls: the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Event {
    /// An event with nothing but its place.
    #[must_use]
    pub fn new(
        (proc, incarnation): (u32, u32),
        op: u64,
        fun: Fun,
        phase: Phase,
        mono_ns: u64,
    ) -> Self {
        Self {
            proc,
            incarnation,
            op,
            fun,
            phase,
            mono_ns,
            said: None,
            scope: None,
            key: None,
            call: None,
            owner: None,
            token: None,
            value_hash: None,
            bears: None,
            fp_hash: None,
            lease_us: None,
            ttl_us: None,
            wait_us: None,
            remaining_us: None,
            recorded: None,
            fenced: false,
            propagate: false,
            even_if_live: false,
            since_ns: None,
            victim: None,
            lossy: false,
            note: None,
        }
    }
}

/// `run.json` of a history's folder: what the run was started with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The run's name.
    pub run: String,
    /// What repeats its choices.
    pub seed: u64,
    /// The source's revision.
    pub revision: String,
    /// Which store.
    pub store: String,
    /// How long faults were made.
    pub secs: u64,
    /// Worker processes.
    pub workers: u32,
    /// Shortest and longest lease, in milliseconds.
    pub lease_ms: (u64, u64),
    /// Which faults were asked for.
    pub faults: Vec<String>,
    /// `operation-timeout` of the engines, in milliseconds.
    pub operation_timeout_ms: u64,
    /// What a shared machine may add to every bound of time, in milliseconds.
    pub slack_ms: u64,
    /// Which part of the minimum counts is asked for: 1 for a machine of its own, less for one that
    /// is shared.
    pub share: f64,
    /// The longest pause between two reads of a waiter that is not notified, in milliseconds (ACQ-4).
    pub poll_ms: u64,
    /// What half of the waiters that are notified wait at most after the completion, in milliseconds.
    pub wake_ms: u64,
    /// Whether the store notifies other processes; in one process, every store does.
    pub pushes: bool,
    /// How many interventions of operators have to meet other calls for their keys.
    #[serde(default)]
    pub races: u64,
    /// What guards the effects outside of the store: `token`, `lease`, or `none` when there are
    /// none.
    pub guard: String,
    /// The planted defect, if one is.
    pub planted: Option<String>,
}
