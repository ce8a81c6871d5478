// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planted bugs, each of which the tests must find.

/// A bug that can be planted in the store or in the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Defect {
    /// Store: a completion is accepted even if another owner holds the lease.
    NoOwnerCheck,
    /// Store: a heartbeat of any owner extends the lease.
    BeatAnyOwner,
    /// Store: a lease is taken over one tick before its end.
    EarlyTakeover,
    /// Client: reads that the record is free, then writes its lease without looking again.
    GetThenSet,
    /// Store: a release deletes the record, whatever its state and owner.
    ReleaseAnyOwner,
    /// Store: an extension puts a finished or absent record back in progress.
    ExtendRevives,
    /// Store: a completion replaces another owner's COMPLETE record.
    CompleteOverwrites,
    /// Store: the caller's clock decides whether a lease is over.
    ClientClock,
    /// Client: a waiter whose wait is over answers "in flight" without a last look.
    WaiterBlind,
    /// Client: runs the action and compares fingerprints afterwards.
    MismatchAfterRun,
    /// Client: never compares fingerprints.
    PrintIgnored,
    /// Client: two identities share one record.
    IdentitiesMerged,
    /// Client: heartbeats continue after the action's end.
    BeatsGoOn,
    /// Client: answers before it has sent its completion.
    AckBeforeCompletion,
    /// Client: looks, then subscribes, then sleeps.
    WakeLost,
    /// Client: a dropped waiter does not pass on the wake-up that was meant for one of several.
    WakeKept,
    /// Client: a refused caller takes the wake-up that was meant for one of several, finds the
    /// record free and leaves.
    WakeSpent,
    /// Client: sleeps until it is woken, without a time limit.
    SleepForever,
    /// Client: does not check its deadline if the holder is still busy.
    DeadlineIgnored,
    /// Client: completes although the action failed.
    FailureCompletes,
    /// Client: releases if its completion stays in doubt.
    DoubtReleases,
    /// Client: waits only for the answer to its completion, without a limit.
    DoubtHangs,
    /// Store: refuses the recorded owner once its lease is over.
    FencedByTime,
    /// Store: a second completion by the same owner is refused.
    RepeatRefused,
    /// Store: the ttl runs from the acquire.
    TtlFromAcquire,
    /// Store: tokens restart after the record has been deleted.
    TokenRestarts,
    /// Store: a repeated acquire of the same owner gets another token.
    TokenRedrawn,
    /// Store: a purge removes an unfinished record as soon as its lease is over.
    PurgeEager,
    /// Store: a takeover is reported as a first grant.
    TakeoverUntold,
    /// Store: a takeover whose answer was lost is reported as a first grant when the acquire is
    /// repeated.
    TakeoverForgotten,
    /// Store: a result is replayed after its ttl until a purge removes it.
    ReplaysExpired,
    /// Store: a result counts as absent one tick before its ttl is over.
    ForgetsEarly,
}

/// All defects.
pub const DEFECTS: [Defect; 32] = [
    Defect::NoOwnerCheck,
    Defect::BeatAnyOwner,
    Defect::EarlyTakeover,
    Defect::GetThenSet,
    Defect::ReleaseAnyOwner,
    Defect::ExtendRevives,
    Defect::CompleteOverwrites,
    Defect::ClientClock,
    Defect::WaiterBlind,
    Defect::MismatchAfterRun,
    Defect::PrintIgnored,
    Defect::IdentitiesMerged,
    Defect::BeatsGoOn,
    Defect::AckBeforeCompletion,
    Defect::WakeLost,
    Defect::WakeKept,
    Defect::WakeSpent,
    Defect::SleepForever,
    Defect::DeadlineIgnored,
    Defect::FailureCompletes,
    Defect::DoubtReleases,
    Defect::DoubtHangs,
    Defect::FencedByTime,
    Defect::RepeatRefused,
    Defect::TtlFromAcquire,
    Defect::TokenRestarts,
    Defect::TokenRedrawn,
    Defect::PurgeEager,
    Defect::TakeoverUntold,
    Defect::TakeoverForgotten,
    Defect::ReplaysExpired,
    Defect::ForgetsEarly,
];
