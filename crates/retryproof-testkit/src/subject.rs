// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Subject`]: a store under test, with the abilities beyond the contract that the kit can use.
//!
//! This file is over 400 lines long because `Concrete`, which the type-erased `SharedStore` and the
//! kit's own operations share, implements every method of the contract again.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::{
    AcquireRequest, Acquired, Audit, AuditEntry, AuditPage, Completion, Dialect, ExpiryClock,
    FencedWrite, Force, ForceRequest, Forced, Inspect, Join, JoinStatement, Peeked, Purge,
    RecordSummary, ScanCursor, ScanPage, SharedStore, SharedStoreBuilder, StoreProfile, StoreStats,
    TxSource,
};
use retryproof_core::{
    FencingToken, IdempotencyStore, Identity, IdentitySecret, Key, OwnerId, Result, Scope,
};

use crate::doom::{Doomed, doom};
use crate::ledger::{JoinedLedger, Ledger, Of};
use crate::script::{Transcript, script};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Make<T> = Box<dyn Fn() -> Boxed<T> + Send + Sync>;
type OpenStore = Box<dyn Fn(StoreSetup) -> Boxed<Result<SharedStore>> + Send + Sync>;

/// A store under test, with the abilities beyond the contract that the kit can use. A factory
/// creates a subject for each case.
///
/// No two subjects share identities, so subjects can share a server and run concurrently.
pub struct Subject {
    store: SharedStore,
    concrete: Box<dyn OnConcrete>,
    hooks: Hooks,
    paused: bool,
    mark: String,
}

#[derive(Default)]
struct Hooks {
    another: Option<Make<SharedStore>>,
    clock: Option<Box<dyn Fn(Duration) + Send + Sync>>,
    corrupt: Option<Box<dyn Fn(Identity) -> Boxed<()> + Send + Sync>>,
    writes: Option<Make<u64>>,
    joined: Option<Box<dyn JoinedLedger>>,
    identities: Option<OpenStore>,
    sequences: Option<u32>,
    keeps_claims: bool,
    wakes: bool,
    round_trips: Option<Box<dyn Fn() -> u64 + Send + Sync>>,
}

/// A separate store that a case opens under a name that the kit chooses (ID-5).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreSetup {
    /// The name of the table, or the prefix of the keys: letters, digits and underscores.
    pub name: String,
    /// The identity secret; `None` for plain identities.
    pub secret: Option<IdentitySecret>,
    /// Whether to set the store up before it is opened, as a deployment does. The store may be set
    /// up already.
    pub migrates: bool,
}

/// Declares what a store can do beyond the contract. Cases that [need](crate::conformance::Need)
/// more than was declared are skipped, and the [summary](crate::conformance::summary) names them.
#[must_use = "a builder does nothing until `build` is called"]
pub struct SubjectBuilder<S> {
    concrete: Concrete<S>,
    shared: SharedStoreBuilder<Concrete<S>>,
    hooks: Hooks,
}

impl Subject {
    /// Starts with a store that offers only the contract and uses the runtime's clock: the host's
    /// clock under `time = real`, the paused clock under `time = paused`.
    pub fn of<S: IdempotencyStore>(store: S) -> SubjectBuilder<S> {
        let concrete = Concrete(Arc::new(store));
        SubjectBuilder {
            shared: SharedStore::builder(concrete.clone()),
            concrete,
            hooks: Hooks::default(),
        }
    }

    /// Returns the store in the form in which an engine holds it.
    #[must_use]
    pub fn store(&self) -> &SharedStore {
        &self.store
    }

    /// Opens another handle on the same data, as another process would; `None` if `with_another`
    /// was not called.
    pub(crate) async fn another(&self) -> Option<SharedStore> {
        Some(self.hooks.another.as_ref()?().await)
    }

    /// Damages the stored record; `None` if `with_corrupt` was not called.
    pub(crate) async fn corrupt(&self, id: &Identity) -> Option<()> {
        self.hooks.corrupt.as_ref()?(id.clone()).await;
        Some(())
    }

    /// Returns the source of the transactions that the store joins, with its ledger; `None` if
    /// `with_joined` was not called.
    pub(crate) fn joined(&self) -> Option<&dyn JoinedLedger> {
        self.hooks.joined.as_deref()
    }

    /// Opens a separate store for a case; `None` if `with_identities` was not called.
    pub(crate) async fn opened(&self, setup: StoreSetup) -> Option<Result<SharedStore>> {
        Some(self.hooks.identities.as_ref()?(setup).await)
    }

    /// Returns a name for a store that only this subject uses.
    pub(crate) fn store_name(&self, what: &str) -> String {
        format!("k{}_{what}", self.mark.trim_end_matches('.'))
    }

    /// Runs [`script`] on the concrete store.
    pub(crate) async fn concrete(&self, id: Identity) -> Transcript {
        self.concrete.script(id).await
    }

    /// Runs [`doom`] on the concrete store.
    pub(crate) async fn doom(&self, id: Identity, call: Doomed, times: u32) -> bool {
        self.concrete.doom(id, call, times).await
    }

    /// Returns the number of writes that the store has made, if it counts them.
    pub(crate) async fn writes(&self) -> Option<u64> {
        match &self.hooks.writes {
            Some(writes) => Some(writes().await),
            None => None,
        }
    }

    pub(crate) fn has_another(&self) -> bool {
        self.hooks.another.is_some()
    }

    pub(crate) fn has_corrupt(&self) -> bool {
        self.hooks.corrupt.is_some()
    }

    pub(crate) fn has_identities(&self) -> bool {
        self.hooks.identities.is_some()
    }

    /// Returns whether the store's clock differs from the runtime's.
    pub(crate) fn has_clock_apart(&self) -> bool {
        let own = self.store.profile().expiry_clock != ExpiryClock::Process;
        self.hooks.clock.is_some() || (own && !self.paused)
    }

    pub(crate) fn wakes(&self) -> bool {
        self.hooks.wakes
    }

    pub(crate) fn keeps_claims(&self) -> bool {
        self.hooks.keeps_claims
    }

    /// Returns the number of round trips that the store has made, if it counts them.
    pub(crate) fn round_trips(&self) -> Option<u64> {
        self.hooks.round_trips.as_ref().map(|count| count())
    }

    pub(crate) fn counts_round_trips(&self) -> bool {
        self.hooks.round_trips.is_some()
    }

    pub(crate) fn counts_writes(&self) -> bool {
        self.hooks.writes.is_some()
    }

    pub(crate) fn can_inspect(&self) -> bool {
        self.store.can_inspect()
    }

    /// Returns how many random sequences of steps the property test runs.
    pub(crate) fn sequences(&self) -> u32 {
        self.hooks.sequences.unwrap_or(if self.is_exact() { 256 } else { 48 })
    }

    /// Returns an identity that only this subject uses.
    pub(crate) fn id(&self, key: &str) -> Identity {
        self.identity("kit", key)
    }

    /// Like [`id`](Self::id), but with a scope. Different pairs always give different identities,
    /// because each scope begins with the subject's mark, which has a fixed length.
    pub(crate) fn identity(&self, scope: &str, key: &str) -> Identity {
        let scope = Scope::new(format!("{}{scope}", self.mark)).expect("the scope should be valid");
        Identity::new(scope, Key::new(key).expect("the key should be valid"))
    }

    /// Returns whether the store's clock moves only when a case advances it. Expiry can then be
    /// tested to the microsecond.
    pub(crate) fn is_exact(&self) -> bool {
        self.paused || self.hooks.clock.is_some()
    }

    /// Returns whether the runtime's clock is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Lets time pass only for the runtime, without waiting.
    ///
    /// # Panics
    /// On a runtime of several threads, whose clock cannot be shifted.
    pub(crate) async fn skew(&self, by: Duration) {
        if self.paused {
            tokio::time::advance(by).await;
        } else {
            tokio::time::pause();
            tokio::time::advance(by).await;
            tokio::time::resume();
        }
    }

    /// Lets time pass only for the store. On the host's clock, this blocks the runtime for the same
    /// time.
    ///
    /// # Panics
    /// On the host's clock with a runtime of several threads, whose clock cannot be stopped.
    #[expect(clippy::disallowed_methods, reason = "the case is about time that passes")]
    pub(crate) fn pass_in_store_alone(&self, by: Duration) {
        if self.hooks.clock.is_some() {
            self.pass_in_store(by);
        } else {
            tokio::time::pause();
            std::thread::sleep(by);
            tokio::time::resume();
        }
    }

    /// Lets time pass only for the store.
    pub(crate) fn pass_in_store(&self, by: Duration) {
        if let Some(advance) = &self.hooks.clock {
            advance(by);
        }
    }

    pub(crate) fn pause(&mut self) {
        self.paused = true;
    }

    /// Lets time pass for the store and the runtime. If the store has its own clock and the runtime
    /// uses the host's clock, time passes only for the store.
    pub(crate) async fn pass(&self, by: Duration) {
        self.pass_in_store(by);
        if self.paused {
            tokio::time::advance(by).await;
        } else if self.hooks.clock.is_none() {
            tokio::time::sleep(by).await;
        }
    }
}

impl<S: IdempotencyStore> SubjectBuilder<S> {
    /// Declares that the store can purge.
    pub fn with_purge(mut self) -> Self
    where
        S: Purge,
    {
        self.shared = self.shared.with_purge();
        self
    }

    /// Declares that at most one process at a time gets a claim on the purge (STO-6). A store whose
    /// records only one process sees may grant every claim.
    pub fn with_purge_claims(mut self) -> Self {
        self.hooks.keeps_claims = true;
        self
    }

    /// Declares that a change wakes the waiters of the same handle at once (ACQ-4). The contract
    /// allows a store to poll instead.
    pub fn with_wake_ups(mut self) -> Self {
        self.hooks.wakes = true;
        self
    }

    /// Declares that the store can be inspected.
    pub fn with_inspect(mut self) -> Self
    where
        S: Inspect,
    {
        self.shared = self.shared.with_inspect();
        self
    }

    /// Declares that operators can change the store's records.
    pub fn with_force(mut self) -> Self
    where
        S: Force,
    {
        self.shared = self.shared.with_force();
        self
    }

    /// Declares that the store keeps an audit table.
    pub fn with_audit(mut self) -> Self
    where
        S: Audit,
    {
        self.shared = self.shared.with_audit();
        self
    }

    /// Declares how to open another handle on the same data, as another process would.
    pub fn with_another<F, Fut>(mut self, open: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = SharedStore> + Send + 'static,
    {
        self.hooks.another = Some(Box::new(move || Box::pin(open())));
        self
    }

    /// Declares how to open a store with an identity secret, or without one (ID-5).
    pub fn with_identities<F, Fut>(mut self, open: F) -> Self
    where
        F: Fn(StoreSetup) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<SharedStore>> + Send + 'static,
    {
        self.hooks.identities = Some(Box::new(move |setup| Box::pin(open(setup))));
        self
    }

    /// Declares that the store's clock moves only when `advance` is called.
    pub fn with_clock(mut self, advance: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        self.hooks.clock = Some(Box::new(advance));
        self
    }

    /// Declares how to get the number of round trips that this handle of the store has made. The
    /// kit then compares them with the store's
    /// [profile](retryproof_core::store::StoreProfile::max_round_trips) (ACQ-8). A
    /// [`WireProxy`](crate::wire::WireProxy) counts them.
    pub fn with_round_trips(mut self, count: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.hooks.round_trips = Some(Box::new(count));
        self
    }

    /// Declares how to damage an identity's stored record without using the store. Afterwards, the
    /// record must be unreadable (CMP-8).
    pub fn with_corrupt<F, Fut>(mut self, corrupt: F) -> Self
    where
        F: Fn(Identity) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.hooks.corrupt = Some(Box::new(move |id| Box::pin(corrupt(id))));
        self
    }

    /// Declares how to get a number that changes with every write of the store, such as a count of
    /// the writes or a hash of all versions of rows (ACQ-8).
    pub fn with_writes<F, Fut>(mut self, writes: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = u64> + Send + 'static,
    {
        self.hooks.writes = Some(Box::new(move || Box::pin(writes())));
        self
    }

    /// Declares that the store joins the transactions of `source` (CMP-7). The `ledger` writes in
    /// these transactions.
    pub fn with_joined<D, T>(mut self, source: T, ledger: impl Ledger<T::Tx>) -> Self
    where
        D: Dialect,
        S: Join<Dialect = D>,
        T: TxSource<D> + Clone,
    {
        self.shared = self.shared.with_join();
        self.hooks.joined = Some(Box::new(Of { source, ledger, dialect: PhantomData }));
        self
    }

    /// Sets how many random sequences of steps the kit compares with the model. The default is 256,
    /// or 48 if the store uses the host's clock.
    pub fn with_sequences(mut self, sequences: u32) -> Self {
        self.hooks.sequences = Some(sequences);
        self
    }

    /// Builds the subject.
    #[must_use]
    pub fn build(self) -> Subject {
        let Self { concrete, shared, hooks } = self;
        let mark: String =
            OwnerId::new().as_bytes().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Subject {
            store: shared.build(),
            concrete: Box::new(concrete),
            hooks,
            paused: false,
            mark: format!("{mark}."),
        }
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("store", &self.store)
            .field("mark", &self.mark)
            .finish_non_exhaustive()
    }
}

impl<S: fmt::Debug> fmt::Debug for SubjectBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubjectBuilder").field("store", &self.concrete.0).finish_non_exhaustive()
    }
}

/// Lets the type-erased `SharedStore` and the kit's operations on the concrete type use the same
/// store.
struct Concrete<S>(Arc<S>);

impl<S> Clone for Concrete<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: fmt::Debug> fmt::Debug for Concrete<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The kit's operations on the concrete store, with the store's type erased.
trait OnConcrete: Send + Sync {
    fn script(&self, id: Identity) -> Boxed<Transcript>;
    fn doom(&self, id: Identity, call: Doomed, times: u32) -> Boxed<bool>;
}

impl<S: IdempotencyStore> OnConcrete for Concrete<S> {
    fn script(&self, id: Identity) -> Boxed<Transcript> {
        let store = Arc::clone(&self.0);
        Box::pin(async move { script(&*store, &id).await })
    }

    fn doom(&self, id: Identity, call: Doomed, times: u32) -> Boxed<bool> {
        let store = Arc::clone(&self.0);
        Box::pin(async move { doom(&*store, &id, &call, times).await })
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: IdempotencyStore> IdempotencyStore for Concrete<S> {
    async fn acquire(&self, id: &Identity, req: &AcquireRequest) -> Result<Acquired> {
        self.0.acquire(id, req).await
    }

    async fn peek(&self, id: &Identity) -> Result<Peeked> {
        self.0.peek(id).await
    }

    async fn wait_for_change(
        &self,
        id: &Identity,
        seen: FencingToken,
        at_most: Duration,
    ) -> Result<()> {
        self.0.wait_for_change(id, seen, at_most).await
    }

    async fn extend(&self, id: &Identity, owner: OwnerId, lease: Duration) -> Result<FencedWrite> {
        self.0.extend(id, owner, lease).await
    }

    async fn complete(
        &self,
        id: &Identity,
        owner: OwnerId,
        done: &Completion,
    ) -> Result<FencedWrite> {
        self.0.complete(id, owner, done).await
    }

    async fn release(&self, id: &Identity, owner: OwnerId) -> Result<FencedWrite> {
        self.0.release(id, owner).await
    }

    fn profile(&self) -> StoreProfile {
        self.0.profile()
    }
}

impl<S: Purge> Purge for Concrete<S> {
    async fn purge(&self, limit: usize) -> Result<usize> {
        self.0.purge(limit).await
    }

    async fn claim_purge(&self, at_most: Duration) -> Result<bool> {
        self.0.claim_purge(at_most).await
    }
}

impl<S: Inspect> Inspect for Concrete<S> {
    async fn get(&self, id: &Identity) -> Result<Option<RecordSummary>> {
        self.0.get(id).await
    }

    async fn stats(&self) -> Result<StoreStats> {
        self.0.stats().await
    }

    async fn scan(&self, after: Option<&ScanCursor>, limit: usize) -> Result<ScanPage> {
        self.0.scan(after, limit).await
    }
}

impl<S: Force> Force for Concrete<S> {
    async fn force(&self, id: &Identity, req: &ForceRequest) -> Result<Forced> {
        self.0.force(id, req).await
    }
}

impl<S: Audit> Audit for Concrete<S> {
    async fn append(&self, entry: &AuditEntry) -> Result<()> {
        self.0.append(entry).await
    }

    async fn entries(&self, after: Option<&ScanCursor>, limit: usize) -> Result<AuditPage> {
        self.0.entries(after, limit).await
    }
}

impl<S: Join> Join for Concrete<S> {
    type Dialect = S::Dialect;

    fn completion<'a>(
        &'a self,
        id: &'a Identity,
        owner: &'a OwnerId,
        done: &'a Completion,
    ) -> JoinStatement<'a> {
        self.0.completion(id, owner, done)
    }

    fn committed(&self, id: &Identity) {
        self.0.committed(id);
    }
}
