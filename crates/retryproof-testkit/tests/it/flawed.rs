// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Flawed`]: a correct store into which one defect is planted.
//!
//! This file is over 400 lines long because it contains a whole store, and each defect beside the
//! correct code.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use retryproof_core::clock::{Clock, Instant, ManualClock, SystemClock};
use retryproof_core::store::{
    AcquireRequest, Acquired, Audit, AuditEntry, AuditPage, Completion, FencedWrite, Force,
    ForceAction, ForceRequest, Forced, Grant, HolderNote, IdempotencyStore, Inspect, LiveLease,
    Peeked, Purge, RecordState, RecordSummary, ScanCursor, ScanPage, ScannedRecord, SharedStore,
    StoreProfile, StoreStats,
};
use retryproof_core::{
    Blob, CodecId, Error, ErrorKind, FencingToken, Fingerprint, Identity, IdentitySecret, Key,
    OwnerId, Payload, Result, Scope, StoredResult, Tombstone,
};
use retryproof_testkit::{StoreSetup, Subject};
use tokio::sync::Notify;

use crate::books::Books;

/// The size of the largest value. It is small, so that the kit tries the limit.
const MAX_VALUE: usize = 2 << 20;

/// How long a dropped acquire blocks its key with `DroppedAcquireStays`, and how long a claim lasts
/// with `PurgeClaimNeverEnds`.
const STUCK: Duration = Duration::from_secs(1_000_000);

macro_rules! defects {
    ($($defect:ident)*) => {
        /// What is wrong with the store.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) enum Defect {
            Nothing,
            $($defect,)*
        }

        /// Every defect.
        pub(crate) const ALL: &[Defect] = &[$(Defect::$defect),*];
    };
}

defects! {
    AcquireNeverReplays
    AcquireSaysTakeover
    AcquireCostsOneMoreTrip
    BusyShowsAnotherToken
    BusyComparesNothing
    OwnersComparedInPart
    AnyOwnerCompletes
    AnyOwnerReleases
    AnyOwnerExtends
    CompletionOverwrites
    CompletionFencedByTime
    CompletionAnswersDoneTwice
    CompletionTtlFromAcquire
    CompletionDropsFingerprint
    EarlyTakeover
    TakeoverInTwoSteps
    TakeoverUnsaid
    TakeoverForgotten
    TakeoverKeepsFingerprint
    ReleaseIsATakeover
    ReleaseKeepsTheRecord
    ReleaseNeverEnds
    ExtendRevivesResults
    ExtendMakesRecords
    ExtendNeedsALiveLease
    ExtendNeverShortens
    TokenRepeatsAfterRelease
    TokenDrawnBeforeTheLock
    SameOwnerGetsANewToken
    SameOwnerIsBusy
    SameOwnerTakesBackItsResult
    ResultOutlivesItsTtl
    ResultIsCutAtAZero
    LookDeletesExpiredLeases
    LookShowsExpiredLeases
    ReplayWrites
    WakeUpLost
    WakeUpOfOneWaiterOnly
    ChangedReturnsForNothing
    ChangedSleepsWithoutALook
    ChangedHoldsTheStore
    NamesJoinedWithoutLengths
    NamesFolded
    NamesTrimmed
    NamesCut
    NamesPrinted
    SecretNotDeclared
    AnotherSecretAccepted
    ClientsClock
    PurgeIgnoresTheLease
    PurgeIgnoresTheTtl
    PurgeIgnoresItsLimit
    PurgeForgetsResults
    CorruptIsAbsent
    TooLargeIsAccepted
    DroppedAcquireStays
    HandlesKeepTheirOwnRecords
    HandlesWakeTheirOwnWaiters
    RemainingStandsStill
    TokensFallAtTakeovers
    ExtendChangesNothing
    ChangedSleepsOn
    ChangedIgnoresItsBound
    ChangedOnlyPolls
    EnvelopesAreRewritten
    UnreadableIsAbsent
    ScopesIgnored
    PurgeDoesNothing
    PurgeClaimNeverEnds
    PurgeClaimEndsWithAPurge
    PurgeClaimInTwoSteps
    PurgeTakesEverything
    DroppedCallsLeaveALock
    InspectHidesTheDead
    InspectCountsNothing
    InspectHidesTheNote
    InspectHidesTheAge
    InspectMisdatesTheEnd
    ScanGoesByCount
    ScanHidesTheDead
    ScanStopsAfterAPage
    ScanOfNothingGoesOn
    ScanSkipsTheUnreadable
    ForceIgnoresTheToken
    ForceIgnoresTheLease
    ForceIgnoresTheState
    ForceInTwoSteps
    ForceLosesADroppedRecord
    ForceKnowsNoAbsence
    ForceNeverEndsALiveLease
    ForceReleaseIsATakeover
    ForceResolveKeepsTheOwner
    ForceResolveTwiceIsFinished
    ForceResolveDropsTheFingerprint
    ForceForgetsTheToken
    ForceForgetsNothing
    ForceErasesNothing
    ForceErasesTheRecord
    ForceEraseDropsTheFingerprint
    ForceEraseStartsTheTtlAgain
    ForceWakesNobody
    AuditForgetsTheRecord
    AuditGoesByCount
    AuditReturnsTheOldestFirst
    AuditTimeStandsStill
    AuditCutsTexts
    AuditIsPurged
    NoteCut
    NoteLostAtABeat
    NoteLostAtCompletion
    NoteLostAtALateCompletion
    NoteNotCleared
    NoteOfTheLoser
    NoteOfTheZombie
    NoteSetOnce
    NoteOutlivesARelease
    NoteOutlivesAResult
    NoteInAcquiresOnly
    TakeoversStopAtOne
    TakeoversNeverReset
    JoinForgetsTheRecord
    JoinKeepsTheWrites
    JoinOutlivesItsTransaction
}

type Name = (String, String);

/// One handle on a flawed store.
pub(crate) struct Flawed {
    defect: Defect,
    clock: ManualClock,
    data: Arc<Data>,
    changes: Arc<Notify>,
    held_up: tokio::sync::Mutex<()>,
    locked: AtomicBool,
    secret: Option<IdentitySecret>,
}

#[derive(Default)]
struct Data {
    records: Mutex<HashMap<Name, Record>>,
    /// The notes of released records, which only a store with `NoteOutlivesARelease` keeps.
    residue: Mutex<HashMap<Name, Option<HolderNote>>>,
    last_token: AtomicU64,
    /// The mark of the identity secret; 0 without a secret, or before the store is set up.
    mark: AtomicI64,
    writes: AtomicU64,
    trips: AtomicU64,
    claimed_until: Mutex<Option<Instant>>,
    audit: Mutex<Vec<(Instant, AuditEntry)>>,
}

#[derive(Clone)]
struct Record {
    owner: OwnerId,
    token: FencingToken,
    until: Instant,
    purge_after: Instant,
    fingerprint: Option<Fingerprint>,
    value: Option<Blob>,
    took_over: bool,
    takeovers: u16,
    granted: Instant,
    note: Option<HolderNote>,
    corrupt: bool,
}

/// Returns a subject with everything that the kit can use.
pub(crate) fn subject(defect: Defect) -> Subject {
    let clock = ManualClock::new();
    let (data, changes) = (Arc::<Data>::default(), Arc::<Notify>::default());
    let open = {
        let (clock, data) = (clock.clone(), Arc::clone(&data));
        move || Flawed {
            defect,
            clock: clock.clone(),
            data: if defect == Defect::HandlesKeepTheirOwnRecords {
                Arc::default()
            } else {
                Arc::clone(&data)
            },
            changes: if defect == Defect::HandlesWakeTheirOwnWaiters {
                Arc::default()
            } else {
                Arc::clone(&changes)
            },
            held_up: tokio::sync::Mutex::default(),
            locked: AtomicBool::default(),
            secret: None,
        }
    };
    let first = open();
    let (counted, spoilt) = (Arc::clone(&first.data), Arc::clone(&first.data));
    let data = Arc::clone(&first.data);
    let books = Books::of(open());
    Subject::of(first)
        .with_joined(books.clone(), books)
        .with_purge()
        .with_purge_claims()
        .with_wake_ups()
        .with_inspect()
        .with_force()
        .with_audit()
        .with_clock(move |by| clock.advance(by))
        .with_another(move || {
            let another = open();
            async { SharedStore::builder(another).with_purge().with_inspect().with_audit().build() }
        })
        .with_identities(setup(defect, ManualClock::new()))
        .with_writes(move || {
            let writes = counted.writes.load(Ordering::SeqCst);
            async move { writes }
        })
        .with_corrupt(move |id| {
            let name = name(defect, &id);
            spoilt.records.lock().get_mut(&name).expect("a record").corrupt = true;
            async {}
        })
        .with_round_trips(move || data.trips.load(Ordering::SeqCst))
        .with_sequences(64)
        .build()
}

/// Opens stores by name, with and without an identity secret.
fn setup(
    defect: Defect,
    clock: ManualClock,
) -> impl Fn(StoreSetup) -> std::future::Ready<Result<SharedStore>> {
    let places = Mutex::new(HashMap::<String, (Arc<Data>, Arc<Notify>)>::new());
    move |StoreSetup { name, secret, migrates, .. }| {
        let (data, changes) = places.lock().entry(name).or_default().clone();
        let mark = secret.as_ref().map_or(0, IdentitySecret::mark);
        let is_new = data.last_token.load(Ordering::SeqCst) == 0;
        if migrates && is_new {
            let _ = data.mark.compare_exchange(0, mark, Ordering::SeqCst, Ordering::SeqCst);
        }
        let checked =
            IdentitySecret::check(secret.as_ref(), Some(data.mark.load(Ordering::SeqCst)));
        if defect != Defect::AnotherSecretAccepted
            && let Err(error) = checked
        {
            return std::future::ready(Err(error));
        }
        let store = Flawed {
            defect,
            clock: clock.clone(),
            data,
            changes,
            held_up: tokio::sync::Mutex::default(),
            locked: AtomicBool::default(),
            secret,
        };
        let shared =
            SharedStore::builder(store).with_purge().with_inspect().with_force().with_audit();
        std::future::ready(Ok(shared.build()))
    }
}

fn name(defect: Defect, id: &Identity) -> Name {
    let (scope, key) = (id.scope().as_str().to_owned(), id.key().expose().to_owned());
    match defect {
        Defect::NamesJoinedWithoutLengths => (String::new(), scope + &key),
        Defect::ScopesIgnored => (String::new(), scope.chars().take(13).collect::<String>() + &key),
        Defect::NamesFolded => (scope, key.to_lowercase()),
        Defect::NamesTrimmed => (scope, key.trim_end().to_owned()),
        Defect::NamesCut => (scope, key.chars().take(255).collect()),
        _ => (scope, key),
    }
}

impl Flawed {
    pub(crate) fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    fn now(&self) -> Instant {
        if self.has(Defect::ClientsClock) { SystemClock.now() } else { self.clock.now() }
    }

    /// If the store has `DroppedCallsLeaveALock`, takes a lock that a dropped call never unlocks.
    async fn locked(&self) {
        if self.has(Defect::DroppedCallsLeaveALock) {
            if self.locked.swap(true, Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            tokio::task::yield_now().await;
            self.locked.store(false, Ordering::SeqCst);
        }
    }

    fn records(&self) -> MutexGuard<'_, HashMap<Name, Record>> {
        self.data.records.lock()
    }

    fn name(&self, id: &Identity) -> Name {
        name(self.defect, id)
    }

    fn owner(&self, owner: OwnerId) -> OwnerId {
        let mut bytes = *owner.as_bytes();
        if self.has(Defect::OwnersComparedInPart) {
            bytes[15] = 0;
        }
        OwnerId::from_bytes(bytes)
    }

    fn wrote(&self) {
        self.data.writes.fetch_add(1, Ordering::SeqCst);
        if self.has(Defect::WakeUpOfOneWaiterOnly) {
            self.changes.notify_one();
        } else {
            self.changes.notify_waiters();
        }
    }

    fn standing(&self, found: Option<&Record>, now: Instant) -> Result<Peeked> {
        let Some(record) = found else { return Ok(Peeked::Absent) };
        if record.corrupt && !self.has(Defect::CorruptIsAbsent) {
            return Err(Error::corrupt("spoilt"));
        }
        let mut until = record.until;
        if self.has(Defect::EarlyTakeover) && record.value.is_none() {
            until -= (until - now.min(until)).min(Duration::from_millis(5));
        }
        if record.corrupt
            || (until <= now && !(self.has(Defect::ResultOutlivesItsTtl) && record.value.is_some()))
        {
            return Ok(Peeked::Absent);
        }
        if self.has(Defect::UnreadableIsAbsent)
            && record
                .value
                .as_ref()
                .is_some_and(|value| StoredResult::new(value.clone(), None).open(None).is_err())
        {
            return Ok(Peeked::Absent);
        }
        if self.has(Defect::RemainingStandsStill) && record.value.is_none() {
            return Ok(Peeked::Busy(LiveLease::new(Duration::from_secs(600), record.token)));
        }
        if self.has(Defect::BusyShowsAnotherToken) && record.value.is_none() {
            return Ok(Peeked::Busy(LiveLease::new(
                until - now,
                FencingToken::new(record.token.get() + 1_000_000),
            )));
        }
        Ok(match &record.value {
            Some(value) => {
                let mut value = value.clone();
                if self.has(Defect::EnvelopesAreRewritten)
                    && let Some(body) = value.get(8..)
                {
                    value = Payload::new(CodecId::BYTES, 0, body).envelope().clone();
                }
                if self.has(Defect::ResultIsCutAtAZero)
                    && let Some(cut) = value.iter().skip(8).position(|byte| *byte == 0)
                {
                    value = value[..8 + cut].to_vec().into();
                }
                let stored = StoredResult::new(value, record.fingerprint);
                Peeked::Complete(stored.with_holder(record.note.clone()))
            }
            None => {
                let lease = LiveLease::new(until - now, record.token);
                Peeked::Busy(lease.with_holder(record.note.clone()))
            }
        })
    }

    fn draw(&self, found: Option<&Record>) -> FencingToken {
        if self.has(Defect::TokenRepeatsAfterRelease) {
            return FencingToken::new(found.map_or(1, |record| record.token.get() + 1));
        }
        let drawn = self.data.last_token.fetch_add(1, Ordering::SeqCst) + 1;
        let falls = self.has(Defect::TokensFallAtTakeovers)
            && found.is_some_and(|record| record.value.is_none());
        FencingToken::new(if falls { 1_000_000 - drawn } else { drawn })
    }

    /// Returns the note that a grant leaves in the record.
    fn note(
        &self,
        name: &Name,
        found: Option<&Record>,
        req: &AcquireRequest,
    ) -> Option<HolderNote> {
        let running = found.filter(|record| record.value.is_none());
        let keeps = match (running, found) {
            (Some(record), _) if record.owner == req.owner => self.has(Defect::NoteSetOnce),
            (None, Some(_)) => self.has(Defect::NoteOutlivesAResult) && req.holder.is_none(),
            _ => false,
        };
        let keeps = keeps || (self.has(Defect::NoteNotCleared) && req.holder.is_none());
        match found {
            Some(record) if keeps => record.note.clone(),
            None if self.has(Defect::NoteOutlivesARelease) && req.holder.is_none() => {
                self.data.residue.lock().remove(name).flatten()
            }
            _ if self.has(Defect::NoteCut) => req.holder.as_ref().and_then(|note| {
                let cut = note.as_bytes().len().min(32);
                HolderNote::of_owner(&note.as_bytes()[..cut], req.owner)
            }),
            _ => req.holder.clone(),
        }
    }

    /// Returns how many times the key has been taken over, counting this request if it takes the
    /// key over.
    fn takeovers(&self, found: Option<&Record>, req: &AcquireRequest) -> u16 {
        let count = match found {
            Some(record) if record.value.is_none() => {
                record.takeovers + u16::from(record.owner != req.owner)
            }
            Some(record) if self.has(Defect::TakeoversNeverReset) => record.takeovers,
            _ => 0,
        };
        if self.has(Defect::TakeoversStopAtOne) { count.min(1) } else { count }
    }

    /// Decides whether the acquire is granted. Returns the token that the grant keeps, if any, and
    /// whether the grant is a takeover; or the answer that refuses the acquire.
    fn judge(&self, found: Option<&Record>, req: &AcquireRequest, now: Instant) -> Result<Judged> {
        let own = |record: &&Record| record.owner == req.owner && !record.corrupt;
        let mut running = found.filter(own).filter(|record| {
            record.value.is_none()
                || (self.has(Defect::SameOwnerTakesBackItsResult) && record.until > now)
        });
        if self.has(Defect::SameOwnerIsBusy) {
            running = None;
        }
        if let Some(record) = running {
            let kept = (!self.has(Defect::SameOwnerGetsANewToken)).then_some(record.token);
            return Ok(Judged::Granted(
                kept,
                record.took_over && !self.has(Defect::TakeoverForgotten),
            ));
        }
        Ok(match self.standing(found, now)? {
            Peeked::Busy(lease) => {
                let held = found.and_then(|record| record.fingerprint.as_ref());
                let differs = req.differs_from(held) && !self.has(Defect::BusyComparesNothing);
                Judged::Refused(Acquired::Busy(lease.with_mismatch(differs)))
            }
            Peeked::Complete(_) if self.has(Defect::AcquireNeverReplays) => Judged::Refused(
                Acquired::Busy(LiveLease::new(Duration::ZERO, FencingToken::new(0))),
            ),
            Peeked::Complete(stored) => Judged::Refused(Acquired::Complete(stored)),
            Peeked::Absent if self.has(Defect::AcquireSaysTakeover) => Judged::Granted(None, true),
            Peeked::Absent => {
                let expired = found.is_some_and(|record| record.value.is_none());
                Judged::Granted(None, expired && !self.has(Defect::TakeoverUnsaid))
            }
        })
    }
}

enum Judged {
    Granted(Option<FencingToken>, bool),
    Refused(Acquired),
}

impl fmt::Debug for Flawed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.has(Defect::NamesPrinted) {
            return f.debug_list().entries(self.records().keys()).finish();
        }
        f.debug_struct("Flawed").field("defect", &self.defect).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
impl IdempotencyStore for Flawed {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        let mut req = req.clone();
        req.owner = self.owner(req.owner);
        let req = &req;
        let trips = if self.has(Defect::AcquireCostsOneMoreTrip) { 2 } else { 1 };
        self.data.trips.fetch_add(trips, Ordering::SeqCst);
        if self.has(Defect::ChangedHoldsTheStore) {
            drop(self.held_up.lock().await);
        }
        let (now, name) = (self.now(), self.name(id));
        let mut early = None;
        if self.has(Defect::TokenDrawnBeforeTheLock) {
            early = Some(self.draw(None));
            // Every second caller is delayed after it has got its token and before it takes the
            // lock.
            if early.is_some_and(|token| token.get() % 2 == 0) {
                tokio::task::yield_now().await;
            }
        }
        let mut judged = self.judge(self.records().get(&name), req, now)?;
        if self.has(Defect::TakeoverInTwoSteps) {
            tokio::task::yield_now().await;
        } else {
            judged = self.judge(self.records().get(&name), req, now)?;
        }
        let (kept, took_over) = match judged {
            Judged::Granted(kept, took_over) => (kept, took_over),
            Judged::Refused(refused) => {
                if self.has(Defect::ReplayWrites) && matches!(refused, Acquired::Complete(_)) {
                    self.wrote();
                }
                if self.has(Defect::NoteOfTheLoser)
                    && let Some(record) = self.records().get_mut(&name)
                {
                    record.note.clone_from(&req.holder);
                }
                return Ok(refused);
            }
        };
        let stays = self.has(Defect::DroppedAcquireStays);
        let token = {
            let mut records = self.records();
            let found = records.get(&name);
            let token = kept.or(early).unwrap_or_else(|| self.draw(found));
            let before = found.and_then(|record| record.fingerprint);
            let keeps = self.has(Defect::TakeoverKeepsFingerprint) && before.is_some();
            let record = Record {
                owner: req.owner,
                token,
                until: if stays { now + STUCK } else { now + req.lease },
                purge_after: now + req.ttl,
                fingerprint: if keeps { before } else { req.fingerprint },
                value: None,
                took_over,
                takeovers: self.takeovers(found, req),
                granted: found.filter(|_| kept.is_some()).map_or(now, |record| record.granted),
                note: self.note(&name, found, req),
                corrupt: false,
            };
            records.insert(name.clone(), record);
            token
        };
        if stays {
            tokio::task::yield_now().await;
            if let Some(record) = self.records().get_mut(&name) {
                record.until = now + req.lease;
            }
        }
        self.wrote();
        Ok(Acquired::Granted(Grant::new(token, req.lease, took_over)))
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        self.locked().await;
        let (now, name) = (self.now(), self.name(id));
        let mut records = self.records();
        let standing = self.standing(records.get(&name), now)?;
        if let (Peeked::Absent, Some(record)) = (&standing, records.get(&name)) {
            if self.has(Defect::LookShowsExpiredLeases) && record.value.is_none() {
                return Ok(Peeked::Busy(LiveLease::new(Duration::ZERO, record.token)));
            }
            if self.has(Defect::LookDeletesExpiredLeases) {
                records.remove(&name);
            }
        }
        if self.has(Defect::NoteInAcquiresOnly) {
            return Ok(match standing {
                Peeked::Busy(lease) => Peeked::Busy(lease.with_holder(None)),
                Peeked::Complete(stored) => Peeked::Complete(stored.with_holder(None)),
                Peeked::Absent => Peeked::Absent,
            });
        }
        Ok(standing)
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        if self.has(Defect::ChangedReturnsForNothing) {
            return Ok(());
        }
        let _held = if self.has(Defect::ChangedHoldsTheStore) {
            Some(self.held_up.lock().await)
        } else {
            None
        };
        if self.has(Defect::WakeUpLost) {
            if matches!(self.peek(id).await?, Peeked::Busy(LiveLease { token, .. }) if token == seen)
            {
                tokio::task::yield_now().await;
                let _ = tokio::time::timeout(at_most, self.changes.notified()).await;
            }
            return Ok(());
        }
        let mut change = pin!(self.changes.notified());
        change.as_mut().enable();
        let blind = self.has(Defect::ChangedSleepsWithoutALook);
        if !blind
            && !matches!(self.peek(id).await?, Peeked::Busy(LiveLease { token, .. }) if token == seen)
        {
            return Ok(());
        }
        if self.has(Defect::ChangedSleepsOn) {
            tokio::time::sleep(at_most).await;
            return Ok(());
        }
        if self.has(Defect::ChangedIgnoresItsBound) {
            change.await;
            return Ok(());
        }
        if self.has(Defect::ChangedOnlyPolls) {
            // With this defect, a change does not wake the waiter before its next read.
            tokio::time::sleep(at_most.min(Duration::from_millis(50))).await;
            return Ok(());
        }
        // The caller reads the record again, whether the record has changed or the time is over.
        let _ = tokio::time::timeout(at_most, change).await;
        Ok(())
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        let owner = self.owner(owner);
        self.locked().await;
        let (now, name) = (self.now(), self.name(id));
        let mut records = self.records();
        if self.has(Defect::ExtendMakesRecords) && !records.contains_key(&name) {
            let (token, until) = (self.draw(None), now + lease);
            let made = Record {
                owner,
                token,
                until,
                purge_after: until,
                fingerprint: None,
                value: None,
                took_over: false,
                takeovers: 0,
                granted: now,
                note: None,
                corrupt: false,
            };
            records.insert(name, made);
            return Ok(FencedWrite::Applied);
        }
        let Some(record) = records.get_mut(&name) else { return Ok(FencedWrite::NotOwner) };
        let revives = self.has(Defect::ExtendRevivesResults);
        if (record.owner != owner && !self.has(Defect::AnyOwnerExtends))
            || (record.value.is_some() && !revives)
            || (self.has(Defect::ExtendNeedsALiveLease) && record.until <= now)
        {
            return Ok(FencedWrite::NotOwner);
        }
        let until = now + lease;
        if self.has(Defect::ExtendChangesNothing) {
            return Ok(FencedWrite::Applied);
        }
        record.until =
            if self.has(Defect::ExtendNeverShortens) { until.max(record.until) } else { until };
        record.value = None;
        if self.has(Defect::NoteLostAtABeat) {
            record.note = None;
        }
        drop(records);
        self.wrote();
        Ok(FencedWrite::Applied)
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        let owner = self.owner(owner);
        self.locked().await;
        if done.value.len() > MAX_VALUE && !self.has(Defect::TooLargeIsAccepted) {
            return Err(Error::new(ErrorKind::TooLarge, "too large").for_identity(id));
        }
        let (now, name) = (self.now(), self.name(id));
        let mut records = self.records();
        let Some(record) = records.get_mut(&name) else { return Ok(FencedWrite::NotOwner) };
        if record.owner != owner && !self.has(Defect::AnyOwnerCompletes) {
            if self.has(Defect::NoteOfTheZombie) {
                record.note = None;
            }
            return Ok(FencedWrite::NotOwner);
        }
        if record.value.is_some() && !self.has(Defect::CompletionOverwrites) {
            let again = self.has(Defect::CompletionAnswersDoneTwice);
            return Ok(if again { FencedWrite::Applied } else { FencedWrite::AlreadyApplied });
        }
        if self.has(Defect::CompletionFencedByTime) && record.until <= now {
            return Ok(FencedWrite::NotOwner);
        }
        if self.has(Defect::NoteLostAtCompletion)
            || (self.has(Defect::NoteLostAtALateCompletion) && record.until <= now)
        {
            record.note = None;
        }
        record.value = Some(done.value.clone());
        record.fingerprint =
            if self.has(Defect::CompletionDropsFingerprint) { None } else { done.fingerprint };
        record.until = if self.has(Defect::CompletionTtlFromAcquire) {
            record.purge_after
        } else {
            now + done.ttl
        };
        if !self.has(Defect::PurgeForgetsResults) {
            record.purge_after = record.until;
        }
        drop(records);
        self.wrote();
        Ok(FencedWrite::Applied)
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        let owner = self.owner(owner);
        if self.has(Defect::ReleaseNeverEnds) {
            std::future::pending::<()>().await;
        }
        let (now, name) = (self.now(), self.name(id));
        let mut records = self.records();
        let Some(record) = records.get_mut(&name) else { return Ok(FencedWrite::AlreadyApplied) };
        let any = self.has(Defect::AnyOwnerReleases);
        if !any && (record.owner != owner || record.value.is_some()) {
            return Ok(FencedWrite::NotOwner);
        }
        if self.has(Defect::ReleaseIsATakeover) {
            // Leave a residue that the next grant takes for a dead owner's lease.
            (record.owner, record.until, record.purge_after) = (OwnerId::new(), now, now);
        } else if self.has(Defect::ReleaseKeepsTheRecord) {
            (record.until, record.purge_after) = (now, now);
        } else if let Some(record) = records.remove(&name)
            && self.has(Defect::NoteOutlivesARelease)
        {
            self.data.residue.lock().insert(name, record.note);
        }
        drop(records);
        self.wrote();
        Ok(FencedWrite::Applied)
    }

    fn profile(&self) -> StoreProfile {
        let declares = !self.has(Defect::SecretNotDeclared);
        StoreProfile::new("flawed")
            .with_max_value(MAX_VALUE)
            .with_identity_secret(self.secret.clone().filter(|_| declares))
    }
}

impl Purge for Flawed {
    async fn claim_purge(&self, at_most: Duration) -> Result<bool> {
        let now = self.now();
        let is_free = || self.data.claimed_until.lock().is_none_or(|until| until <= now);
        let mut claimed = is_free();
        if self.has(Defect::PurgeClaimInTwoSteps) {
            tokio::task::yield_now().await;
        } else {
            claimed = is_free();
        }
        if claimed {
            let never = self.has(Defect::PurgeClaimNeverEnds);
            *self.data.claimed_until.lock() = Some(now + if never { STUCK } else { at_most });
        }
        Ok(claimed)
    }

    async fn purge(&self, limit: usize) -> Result<usize> {
        let now = self.now();
        if self.has(Defect::PurgeClaimEndsWithAPurge) {
            *self.data.claimed_until.lock() = None;
        }
        if self.has(Defect::AuditIsPurged) {
            self.data.audit.lock().clear();
        }
        let mut records = self.records();
        let over = |record: &Record| {
            let wrongly = match self.defect {
                Defect::PurgeIgnoresTheLease => record.value.is_none() && record.purge_after <= now,
                Defect::PurgeIgnoresTheTtl => record.until <= now,
                Defect::PurgeTakesEverything => true,
                Defect::PurgeForgetsResults if record.value.is_some() => record.purge_after <= now,
                _ => false,
            };
            let over = record.until <= now && record.purge_after <= now;
            (wrongly || over) && !self.has(Defect::PurgeDoesNothing)
        };
        let limit = if self.has(Defect::PurgeIgnoresItsLimit) { usize::MAX } else { limit };
        let gone: Vec<_> = records
            .iter()
            .filter(|(_, record)| over(record))
            .map(|(name, _)| name.clone())
            .take(limit)
            .collect();
        for name in &gone {
            records.remove(name);
        }
        Ok(gone.len())
    }
}

impl Flawed {
    fn summary(&self, record: &Record, now: Instant) -> RecordSummary {
        let state =
            if record.value.is_some() { RecordState::Complete } else { RecordState::InProgress };
        let remaining = (record.until > now).then(|| record.until - now);
        let bytes = record.value.as_ref().map_or(0, |value| value.len());
        let note = record.note.clone().filter(|_| !self.has(Defect::InspectHidesTheNote));
        let ago = now.saturating_duration_since(record.granted);
        let ago = (!self.has(Defect::InspectHidesTheAge)).then_some(ago);
        RecordSummary::new(state, record.token, remaining, bytes, record.fingerprint.is_some())
            .with_grant(ago, Some(record.takeovers), note)
            .with_end(if self.has(Defect::InspectMisdatesTheEnd) {
                Some(now.saturating_duration_since(record.granted))
            } else {
                now.checked_duration_since(record.until)
            })
    }
}

impl Inspect for Flawed {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        let now = self.now();
        let hidden =
            |record: &&Record| !self.has(Defect::InspectHidesTheDead) || record.until > now;
        let records = self.records();
        let found = records.get(&self.name(id)).filter(hidden);
        Ok(found.map(|record| self.summary(record, now)))
    }

    async fn scan(&self, after: Option<&ScanCursor>, limit: usize) -> Result<ScanPage> {
        let now = self.now();
        let records = self.records();
        let mut names: Vec<_> = records.keys().cloned().collect();
        names.sort_unstable();
        // The cursor contains the last name of the page before or, with `ScanGoesByCount`, the
        // number of records in all pages before.
        let text = after.map(|after| String::from_utf8_lossy(after.as_bytes()).into_owned());
        let counted = text.as_ref().and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
        let last = text.as_ref().and_then(|text| text.split_once('\n'));
        let by_count = self.has(Defect::ScanGoesByCount);
        let from = match last {
            _ if by_count => counted,
            Some((scope, key)) => {
                names.partition_point(|name| (name.0.as_str(), name.1.as_str()) <= (scope, key))
            }
            None => 0,
        };
        let least = usize::from(!self.has(Defect::ScanOfNothingGoesOn));
        let rest = names.get(from.min(names.len())..).unwrap_or_default();
        let page: Vec<_> = rest.iter().take(limit.max(least)).collect();
        let (mut found, mut unreadable) = (Vec::new(), 0);
        for name in &page {
            let record = &records[*name];
            if record.corrupt {
                unreadable += u64::from(!self.has(Defect::ScanSkipsTheUnreadable));
            } else if !self.has(Defect::ScanHidesTheDead) || record.until > now {
                let id = Identity::new(Scope::new(name.0.as_str())?, Key::new(&name.1)?);
                found.push(ScannedRecord::new(id, self.summary(record, now)));
            }
        }
        let ends =
            page.len() == rest.len() || page.is_empty() || self.has(Defect::ScanStopsAfterAPage);
        let next = page.last().filter(|_| !ends).map(|(scope, key)| {
            let last = format!("{scope}\n{key}");
            let text = if by_count { (from + page.len()).to_string() } else { last };
            ScanCursor::new(text.into_bytes())
        });
        Ok(ScanPage::new(found, unreadable, next))
    }

    async fn stats(&self) -> Result<StoreStats> {
        if self.has(Defect::InspectCountsNothing) {
            return Ok(StoreStats::default());
        }
        let records = self.records();
        let running = records.values().filter(|record| record.value.is_none()).count();
        Ok(StoreStats::new(records.len() as u64, running as u64, 0))
    }
}

impl Force for Flawed {
    async fn force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        let (now, name) = (self.now(), self.name(id));
        let refused = self.refused(&name, req, now)?;
        let refused = if self.has(Defect::ForceInTwoSteps) {
            tokio::task::yield_now().await;
            refused
        } else {
            self.refused(&name, req, now)?
        };
        if let Some(refused) = refused {
            return Ok(refused);
        }
        if self.has(Defect::ForceLosesADroppedRecord) {
            let taken = self.records().remove(&name);
            tokio::task::yield_now().await;
            self.records().extend(taken.map(|record| (name.clone(), record)));
        }
        let mut records = self.records();
        let Some(record) = records.get_mut(&name) else { return Ok(Forced::Applied) };
        match &req.action {
            ForceAction::Release if self.has(Defect::ForceReleaseIsATakeover) => {
                (record.owner, record.until) = (OwnerId::new(), now);
            }
            ForceAction::Forget if self.has(Defect::ForceForgetsNothing) => {}
            ForceAction::Erase if self.has(Defect::ForceErasesNothing) => {}
            ForceAction::Release | ForceAction::Forget => {
                if self.has(Defect::ForceForgetsTheToken) {
                    self.data.last_token.store(0, Ordering::SeqCst);
                }
                records.remove(&name);
            }
            ForceAction::Erase if self.has(Defect::ForceErasesTheRecord) => {
                records.remove(&name);
            }
            ForceAction::Resolve { by, done } => {
                if !self.has(Defect::ForceResolveKeepsTheOwner) {
                    record.owner = self.owner(*by);
                }
                record.value = Some(done.value.clone());
                record.fingerprint = match done.fingerprint {
                    None if !self.has(Defect::ForceResolveDropsTheFingerprint) => {
                        record.fingerprint
                    }
                    given => given,
                };
                record.note = None;
                record.until = now + done.ttl;
                record.purge_after = record.until;
            }
            ForceAction::Erase => {
                record.value = Some(Tombstone::new().into_envelope());
                if self.has(Defect::ForceEraseDropsTheFingerprint) {
                    record.fingerprint = None;
                }
                if self.has(Defect::ForceEraseStartsTheTtlAgain) {
                    record.until = now + Duration::from_secs(86_400);
                }
            }
        }
        drop(records);
        if !self.has(Defect::ForceWakesNobody) {
            self.wrote();
        }
        Ok(Forced::Applied)
    }
}

impl Flawed {
    /// Returns the answer to an intervention that changes nothing.
    fn refused(&self, name: &Name, req: &ForceRequest, now: Instant) -> Result<Option<Forced>> {
        let records = self.records();
        let Some(record) = records.get(name) else {
            let known = !self.has(Defect::ForceKnowsNoAbsence);
            return Ok(known.then_some(Forced::Absent));
        };
        if record.corrupt {
            return Err(Error::corrupt("spoilt"));
        }
        let mut seen = self.summary(record, now);
        if self.has(Defect::ForceIgnoresTheToken) {
            seen.token = req.token;
        }
        if self.has(Defect::ForceIgnoresTheLease) && seen.state == RecordState::InProgress {
            seen.remaining = None;
        }
        let mut req = req.clone();
        req.even_if_live &= !self.has(Defect::ForceNeverEndsALiveLease);
        let owner = if self.has(Defect::ForceResolveTwiceIsFinished) {
            OwnerId::new()
        } else {
            record.owner
        };
        let refused = req.refusal(owner, &seen);
        let of_state = matches!(refused, Some(Forced::Finished | Forced::Unfinished));
        Ok(refused.filter(|_| !(of_state && self.has(Defect::ForceIgnoresTheState))))
    }
}

impl Flawed {
    /// Returns the owner of an identity in progress.
    pub(crate) fn holder(&self, id: &Identity) -> Option<OwnerId> {
        let records = self.records();
        records
            .get(&self.name(id))
            .filter(|record| record.value.is_none())
            .map(|record| record.owner)
    }
}

impl Audit for Flawed {
    async fn append(&self, entry: &AuditEntry) -> Result<()> {
        let mut entry = entry.clone();
        if self.has(Defect::AuditForgetsTheRecord) {
            entry.record = None;
        }
        if self.has(Defect::AuditCutsTexts) {
            entry.reason = entry.reason.chars().take(200).collect();
        }
        self.data.audit.lock().push((self.now(), entry));
        Ok(())
    }

    async fn entries(&self, after: Option<&ScanCursor>, limit: usize) -> Result<AuditPage> {
        let all = self.data.audit.lock();
        let number = |bytes: &[u8]| bytes.try_into().map(usize::from_be_bytes);
        let cursor = after.map(|after| number(after.as_bytes())).transpose();
        let cursor =
            cursor.map_err(|_| Error::new(ErrorKind::Invalid, "another store's cursor"))?;
        // The page ends before this index of the list, which is sorted from the oldest entry to the
        // newest.
        let before = match cursor {
            Some(read) if self.has(Defect::AuditGoesByCount) => all.len().saturating_sub(read),
            cursor => cursor.unwrap_or(all.len()),
        };
        let first = before.saturating_sub(limit.max(1));
        // The time of an entry is the time since the first entry.
        let since = |at: Instant| match self.has(Defect::AuditTimeStandsStill) {
            true => 0,
            false => u64::try_from((at - all[0].0).as_micros()).expect("a test is short"),
        };
        let read = all[first..before].iter();
        let mut entries: Vec<_> =
            read.map(|(at, entry)| entry.clone().with_time(since(*at))).collect();
        if !self.has(Defect::AuditReturnsTheOldestFirst) {
            entries.reverse();
        }
        let next = if self.has(Defect::AuditGoesByCount) { all.len() - first } else { first };
        let next = (first > 0).then(|| ScanCursor::new(next.to_be_bytes()));
        Ok(AuditPage::new(entries, 0, next))
    }
}
