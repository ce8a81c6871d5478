// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Event`]: one line of a history. [`Manifest`]: the settings of the run.

use serde::{Deserialize, Serialize};

/// The kind of an event.
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
    /// A call of the engine: its beginning and its answer.
    Respond,
    /// The first poll of the action.
    ActStart,
    /// The action's end, however it ended.
    ActEnd,
    /// The action's effect on a resource outside of the store, or the resource's refusal.
    Effect,
    /// The hook for refused completions got the value (CMP-2).
    Fenced,
    /// An observer was notified.
    Told,
    /// The process did not run from `since_ns` to `mono_ns`.
    Lag,
    /// The process `victim` was cut off from the server from `since_ns` to `mono_ns`, so nothing
    /// that it sent in that time arrived.
    Away,
    /// The slot of the identity moved between nodes of a cluster from `since_ns` to `mono_ns`. If
    /// `lossy`, a failover interrupted the move from `since_ns` on.
    Moved,
    /// The record as an operator sees it at the end of the run.
    Dump,
    /// A process began (`invoke`), or ended by itself (`ok`).
    Proc,
    /// A fault began (`invoke`) and ended (`ok`).
    Fault,
    /// The last fault is over; from here on, everything settles.
    Settle,
}

impl Fun {
    /// Returns whether this is a call of an operator.
    #[must_use]
    pub fn is_force(self) -> bool {
        matches!(
            self,
            Self::ForceRelease | Self::ForceResolve | Self::ForceForget | Self::ForceErase
        )
    }
}

/// The phase of the event's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The call is about to be sent.
    Invoke,
    /// The call was answered.
    Ok,
    /// The call failed, and nothing happened.
    Fail,
    /// It is unknown whether the call took effect.
    Info,
}

/// What an event says: an answer, an end or a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// Acquire: the caller got the lease.
    Granted,
    /// Acquire: the caller got the lease, which was another owner's before (ACQ-12).
    TookOver,
    /// Acquire or look: another owner holds the lease. An operator's call: refused, because the
    /// lease runs.
    Busy,
    /// Acquire or look: the work is done, and the answer has the value.
    Complete,
    /// Acquire or look: the work is done and cannot be replayed.
    Tombstone,
    /// Look or an operator's call: there is no record.
    Absent,
    /// Extend, complete, release or an operator's call: it took effect.
    Done,
    /// Complete or release: it had been done before.
    AlreadyDone,
    /// Extend, complete or release: refused.
    Lost,
    /// An operator's call: refused, because the work has no result.
    Unfinished,
    /// An operator's call: refused, because the work has a result.
    Finished,
    /// An operator's call: refused, because the key was granted again.
    AnotherToken,
    /// Wait: the wait has ended.
    Woken,
    /// Any store call: the record cannot be read (CMP-8).
    Corrupt,
    /// Respond: the action ran in this call.
    Executed,
    /// Respond: the caller got the stored result.
    Replayed,
    /// Respond: another caller is running the action.
    InFlight,
    /// Respond: the fingerprints differ.
    Mismatch,
    /// Respond: the record is a tombstone.
    NotReplayable,
    /// Respond: the action returned its own error.
    ActionError,
    /// Respond: the action panicked.
    Panicked,
    /// Respond: the store failed, and nothing ran.
    StoreError,
    /// Respond: the completion failed.
    CompletionError,
    /// Respond: the caller, which held the lease itself, released it.
    Released,
    /// Respond: the caller kept the lease on purpose, without a completion or a release, so the
    /// lease runs out.
    Held,
    /// Respond or act_end: the caller dropped the call.
    Dropped,
    /// Act_end: the action returned a value.
    Returned,
    /// Act_end: the action returned an error.
    Err,
    /// Act_end: the action panicked.
    Panic,
    /// Act_end: the lease is held on purpose.
    Hold,
    /// Told: the lease was lost while the action ran.
    LossNoticed,
    /// Told: the terminal event "completed".
    Completed,
    /// Told: the terminal event "failed".
    Failed,
    /// Told: the terminal event "lease lost", because the completion was refused.
    LeaseLost,
    /// Effect: the resource accepted it.
    Applied,
    /// Effect: the resource refused an older token.
    Refused,
    /// Dump: a record without a value.
    InProgress,
}

/// The `note` of an acquire that the engine sent without a future, to a store that answers at once.
pub const IN_PLACE: &str = "in place";

/// The `note` of an answer that was ready at the first poll of the call.
pub const AT_ONCE: &str = "at once";

/// The `note` of a process that saw its wall clock move.
pub const CLOCK_MOVED: &str = "clock moved";

/// The name of the fault that begins at the earliest acknowledgement of a write that a failover may
/// lose, and ends when the old primary is dead. Only the calls in this time may be undone, whenever
/// that shows.
pub const LOSS: &str = "loss";

/// One event, which is one line of a file. Fields that its kind does not use are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the README has a table of the fields")]
pub struct Event {
    pub proc: u32,
    pub incarnation: u32,
    /// A number that joins the events of one call. It is unique within one incarnation of a
    /// process.
    pub op: u64,
    #[serde(rename = "fn")]
    pub fun: Fun,
    pub phase: Phase,
    /// The time on the machine's monotonic clock, which all processes share.
    pub mono_ns: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<Said>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The call of the engine in whose task the event happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<u64>,
    /// The owner, as 32 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// [`hash`](crate::hash) of the value's bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_hash: Option<u64>,
    /// The identity and the token that the value names. Every value names them, so that a value of
    /// another identity is recognised.
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
    /// The remaining time of the lease that the answer states, by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_us: Option<u64>,
    /// Respond: whether the caller's result is recorded (CMP-4): yes, no or as a tombstone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
    /// Respond: the completion was refused (CMP-2).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fenced: bool,
    /// Respond: the call had the policy `propagate` (CMP-4).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub propagate: bool,
    /// An operator's call: whether it may end a live lease.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub even_if_live: bool,
    /// Lag: the time since which the process did not run. Moved: the time since which the slot
    /// moved. An operator's call: when the operator saw the token. A fault's end: the time since
    /// which something was really wrong; left out if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ns: Option<u64>,
    /// A fault's end: the time until which something was really wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ns: Option<u64>,
    /// Fault: the process that it hit, or whose connections it disturbed; none for a fault of the
    /// store or of the whole network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub victim: Option<u32>,
    /// Fault: acknowledged writes may be lost in its window. Moved: the whole record may be lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lossy: bool,
    /// Fault: by how much it moved the clock that decides expiry, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_us: Option<i64>,
    /// Fault: its name. Dump: the number of the value's bytes. Failed calls: the error. Acquire:
    /// how it was sent. Proc: the number of threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Event {
    /// Creates an event that contains only its process, its call and its time.
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
            until_ns: None,
            victim: None,
            lossy: false,
            moved_us: None,
            note: None,
        }
    }
}

/// The file `run.json` of a history's folder: the settings of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The run's name.
    pub run: String,
    /// The seed, which repeats the run's choices.
    pub seed: u64,
    /// The source's revision.
    pub revision: String,
    /// Which store.
    pub store: String,
    /// For how long faults were made.
    pub secs: u64,
    /// Worker processes.
    pub workers: u32,
    /// The shortest and the longest lease, in milliseconds.
    pub lease_ms: (u64, u64),
    /// The requested faults.
    pub faults: Vec<String>,
    /// `operation-timeout` of the engines, in milliseconds.
    pub operation_timeout_ms: u64,
    /// The time that a shared machine may add to every time bound, in milliseconds.
    pub slack_ms: u64,
    /// The part of the minimum counts that is required: 1 for a dedicated machine, less for a
    /// shared one.
    pub share: f64,
    /// The limit on the pause between two reads by a waiter that is not notified, in milliseconds
    /// (ACQ-4).
    pub poll_ms: u64,
    /// The time after the completion within which half of the notified waiters must have the
    /// result, in milliseconds. The median time of an answer of the store is added. Three quarters
    /// have one and a half times the sum.
    pub wake_ms: u64,
    /// Whether the store notifies other processes. Within one process, every store does.
    pub pushes: bool,
    /// How many interventions of operators must coincide with other calls for their keys.
    #[serde(default)]
    pub races: u64,
    /// The guard of the effects outside of the store: `token`, `lease`, or `none` if there are no
    /// effects.
    pub guard: String,
    /// The planted defect, if there is one.
    pub planted: Option<String>,
}
