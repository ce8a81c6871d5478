// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every adapter has to do, and the servers that it is tested on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use retryproof::store::{Dialect, OwnedTx, Peeked, TxSource};
use retryproof::{
    Acquisition, CodecId, ExecuteError, HeldLease, IdempotencyContext, IdempotencyEngine,
    IdempotencyStore as _, JoinError, JoinedEngine, Outcome, Payload,
};
use sea_orm::{ConnectionTrait as _, Database, DatabaseConnection, Statement};

/// An adapter on a pool with one connection. Each transaction therefore finds whatever the previous
/// one left on the connection.
pub(crate) trait Driver: 'static {
    /// The name of the variable with the server's URL, without the prefix `RETRYPROOF_TEST_`.
    const SERVICE: &'static str;
    type Dialect: Dialect;
    type Tx: OwnedTx<Self::Dialect>;
    type Source: TxSource<Self::Dialect, Tx = Self::Tx>;

    async fn connect(url: &str) -> Self;
    fn source(&self) -> Self::Source;
    /// Writes inside of an open transaction.
    async fn write(tx: &mut Self::Tx, sql: &str);
    /// Writes outside of any transaction, as the rest of the application does.
    async fn write_alone(&self, sql: &str);
    /// Calls `complete_in` in a transaction that the program begins and ends.
    async fn complete_in(
        &self,
        held: HeldLease,
        sql: &str,
        value: Payload,
        commits: bool,
    ) -> Result<(), JoinError>;
}

pub(crate) struct World<D: Driver> {
    pub(crate) engine: IdempotencyEngine,
    pub(crate) driver: D,
    pub(crate) joined: JoinedEngine<D::Tx>,
    table: String,
    /// A connection that does not use the driver under test.
    stranger: DatabaseConnection,
}

/// Returns the variable of this name in the environment, or in the file that `cargo xtask services`
/// wrote.
fn url(service: &str) -> String {
    let name = format!("RETRYPROOF_TEST_{service}");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/services/env");
    let written = || {
        let lines = std::fs::read_to_string(file).ok()?;
        lines.lines().find_map(|line| Some(line.strip_prefix(&name)?.strip_prefix('=')?.to_owned()))
    };
    std::env::var(&name).ok().or_else(written).unwrap_or_else(|| {
        panic!("no {name} for this test: run `cargo xtask services up {}`", service.to_lowercase())
    })
}

pub(crate) fn ctx(key: &str) -> IdempotencyContext {
    let ctx = IdempotencyContext::builder("drivers.tests", key);
    ctx.lease(Duration::from_secs(30)).wait_timeout(Duration::from_secs(20)).build().unwrap()
}

impl<D: Driver> World<D> {
    pub(crate) async fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let url = url(D::SERVICE);
        let table =
            format!("drivers_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let store = format!("{url}?table={table}");
        retryproof::migrate(&store).await.expect("the schema is made");
        let engine =
            IdempotencyEngine::new(retryproof::connect(&store).await.expect("the store connects"));
        let driver = D::connect(&url).await;
        let joined = engine.joined(driver.source()).expect("the store joins");
        let stranger = Database::connect(url.as_str()).await.expect("a stranger connects");
        let world = Self { engine, driver, joined, table, stranger };
        world.run(&format!("CREATE TABLE {} (what VARCHAR(40) NOT NULL)", world.ledger())).await;
        world
    }

    pub(crate) fn ledger(&self) -> String {
        format!("{}_ledger", self.table)
    }

    pub(crate) fn insert(&self, what: &str) -> String {
        format!("INSERT INTO {} VALUES ('{what}')", self.ledger())
    }

    async fn run(&self, sql: &str) {
        self.stranger
            .execute_unprepared(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub(crate) async fn rows(&self) -> i64 {
        let count = format!("SELECT COUNT(*) AS n FROM {}", self.ledger());
        let count = Statement::from_string(self.stranger.get_database_backend(), count);
        let row = self.stranger.query_one_raw(count).await.unwrap().expect("a row");
        row.try_get("", "n").unwrap()
    }

    pub(crate) async fn standing(&self, key: &str) -> Peeked {
        self.engine.store().peek(ctx(key).identity()).await.unwrap()
    }

    async fn held(&self, key: &str) -> HeldLease {
        match self.engine.try_acquire(&ctx(key)).await.unwrap() {
            Acquisition::Granted(held) => held,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn pay(
        &self,
        key: &str,
    ) -> Result<Outcome<String>, ExecuteError<&'static str>> {
        let sql = self.insert(key);
        self.joined
            .execute(ctx(key), async |tx: &mut D::Tx| {
                D::write(tx, &sql).await;
                Ok(format!("paid {key}"))
            })
            .await
    }

    pub(crate) async fn end(self) {
        let (table, ledger) = (&self.table, self.ledger());
        self.run(&format!("DROP TABLE {ledger}")).await;
        self.run(&format!("DROP TABLE {table}")).await;
        self.run(&format!("DROP TABLE {table}_meta")).await;
    }
}

pub(crate) async fn commits_record_and_writes_together_or_neither<D: Driver>() {
    let world = World::<D>::new().await;
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Executed("paid k".to_owned()));
    assert_eq!(world.pay("k").await.unwrap(), Outcome::Replayed("paid k".to_owned()));
    assert_eq!(world.rows().await, 1);
    let sql = world.insert("never");
    let failed = world
        .joined
        .execute(ctx("f"), async |tx: &mut D::Tx| {
            D::write(tx, &sql).await;
            Err::<String, _>("declined")
        })
        .await;
    assert!(matches!(failed, Err(ExecuteError::Action("declined"))), "{failed:?}");
    assert!(matches!(world.standing("f").await, Peeked::Absent), "the key is free");
    assert!(world.pay("f").await.unwrap().is_executed());
    assert_eq!(world.rows().await, 2);
    world.end().await;
}

pub(crate) async fn a_lost_lease_is_refused_and_its_writes_are_gone<D: Driver>() {
    let world = World::<D>::new().await;
    let sql = world.insert("overtaken");
    let refused = world
        .joined
        .execute(ctx("k"), async |tx: &mut D::Tx| {
            D::write(tx, &sql).await;
            world.run(&format!("DELETE FROM {}", world.table)).await;
            Ok::<_, &'static str>(String::new())
        })
        .await;
    assert!(matches!(refused, Err(ExecuteError::LeaseLost)), "{refused:?}");
    assert_eq!(world.rows().await, 0);
    world.end().await;
}

pub(crate) async fn a_dropped_call_leaves_neither_and_its_pool_as_it_was<D: Driver>() {
    let world = World::<D>::new().await;
    let sql = world.insert("never");
    let written = tokio::sync::Notify::new();
    let call = world.joined.execute(ctx("k"), async |tx: &mut D::Tx| {
        D::write(tx, &sql).await;
        written.notify_one();
        std::future::pending::<Result<String, &'static str>>().await
    });
    tokio::select! {
        _ = call => unreachable!("it never ends"),
        () = written.notified() => {}
    }
    // The dropped transaction no longer locks the table, although no other call has used the pool
    // since the drop.
    let ledger = world.ledger();
    let renamed = async {
        world.run(&format!("ALTER TABLE {ledger} RENAME TO {ledger}_2")).await;
        world.run(&format!("ALTER TABLE {ledger}_2 RENAME TO {ledger}")).await;
    };
    tokio::time::timeout(Duration::from_secs(10), renamed).await.expect("the transaction is over");
    world.driver.write_alone(&world.insert("alone")).await;
    assert_eq!(world.rows().await, 1, "this write is committed, and the dropped one is not");
    // The key was released at once, so this call runs before the lease would have ended.
    let paid =
        tokio::time::timeout(Duration::from_secs(10), world.pay("k")).await.expect("in time");
    assert_eq!(paid.unwrap(), Outcome::Executed("paid k".to_owned()));
    world.driver.write_alone(&world.insert("alone")).await;
    assert_eq!(world.rows().await, 3);
    world.end().await;
}

pub(crate) async fn complete_in_joins_a_transaction_that_the_program_began<D: Driver>() {
    let world = World::<D>::new().await;
    let value = || Payload::new(CodecId::JSON, 1, b"\"joined\"");
    for (key, commits) in [("1", true), ("2", false)] {
        let held = world.held(key).await;
        world.driver.complete_in(held, &world.insert(key), value(), commits).await.unwrap();
    }
    assert_eq!(world.pay("1").await.unwrap(), Outcome::Replayed("joined".to_owned()));
    assert!(matches!(world.standing("2").await, Peeked::Absent));
    assert_eq!(world.rows().await, 1);
    // Deleting the record makes the holder lose its lease before it completes.
    let held = world.held("3").await;
    world.run(&format!("DELETE FROM {}", world.table)).await;
    let refused = world.driver.complete_in(held, &world.insert("3"), value(), true).await;
    assert!(matches!(refused, Err(JoinError::LeaseLost)), "{refused:?}");
    assert_eq!(world.rows().await, 1);
    world.end().await;
}

/// MariaDB and MySQL end a transaction by themselves, for example after a deadlock. Here, the
/// action itself ends the transaction.
pub(crate) async fn a_transaction_that_is_gone_is_not_joined<D: Driver>() {
    let world = World::<D>::new().await;
    let (before, after) = (world.insert("before"), world.insert("after"));
    let gone = world
        .joined
        .execute(ctx("k"), async |tx: &mut D::Tx| {
            D::write(tx, &before).await;
            D::write(tx, "ROLLBACK").await;
            D::write(tx, &after).await;
            Ok::<_, &'static str>(String::new())
        })
        .await;
    assert!(matches!(gone, Err(ExecuteError::Completion(_))), "{gone:?}");
    assert_eq!(world.rows().await, 0);
    world.driver.write_alone(&world.insert("alone")).await;
    assert!(world.pay("k").await.unwrap().is_executed());
    assert_eq!(world.rows().await, 2);
    world.end().await;
}

/// Defines the tests of one adapter, from the functions above.
macro_rules! suite {
    ($module:ident, $driver:ty: $($test:ident => $run:ident,)*) => {
        mod $module {
            use super::*;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                crate::suite::$run::<$driver>().await;
            })*
        }
    };
    ($module:ident, $driver:ty) => {
        $crate::suite::suite!($module, $driver:
            cmp_7_commits_record_and_writes_together_or_neither => commits_record_and_writes_together_or_neither,
            cmp_7_cmp_2_a_lost_lease_is_refused_and_its_writes_are_gone => a_lost_lease_is_refused_and_its_writes_are_gone,
            cmp_7_a_dropped_call_leaves_neither_and_its_pool_as_it_was => a_dropped_call_leaves_neither_and_its_pool_as_it_was,
            cmp_7_complete_in_joins_a_transaction_that_the_program_began => complete_in_joins_a_transaction_that_the_program_began,
        );
    };
}
pub(crate) use suite;
