// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance kit (STO-2): on the host's clock, on an injected clock, and with writes on the
//! calling thread.

use std::sync::Arc;

use parking_lot::Mutex;
use retryproof_sqlite::{SqliteConfig, SqliteStore, SqliteTx, SqliteTxSource, Synchronous};
use retryproof_testkit::{Ledger, StoreSetup, Subject, SubjectBuilder};

use crate::support::{Dir, Wall};

/// The ledger of the conformance kit: a table in the store's file, to which joined transactions
/// write.
struct Rows(Arc<Dir>);

impl Ledger<SqliteTx> for Rows {
    async fn write(&self, tx: &mut SqliteTx) -> Result<(), String> {
        tx.execute("INSERT INTO kit_ledger DEFAULT VALUES", [])
            .map(drop)
            .map_err(|error| error.to_string())
    }

    async fn lose(&self, tx: &mut SqliteTx) {
        tx.execute("INSERT OR ROLLBACK INTO kit_ledger VALUES (NULL)", [])
            .expect_err("the transaction is gone");
    }

    async fn rows(&self) -> u64 {
        let count =
            self.0.stranger().query_row("SELECT count(*) FROM kit_ledger", [], |row| row.get(0));
        count.map(i64::unsigned_abs).expect("the rows are counted")
    }
}

fn subject(dir: &Arc<Dir>, config: &SqliteConfig) -> SubjectBuilder<SqliteStore> {
    let store = SqliteStore::open_with(config.clone()).expect("the store opens");
    dir.stranger()
        .execute_batch("CREATE TABLE kit_ledger (what TEXT NOT NULL DEFAULT 'paid')")
        .expect("a table of the application");
    let source = SqliteTxSource::open_with(config).expect("a source of transactions");
    let another = {
        let (config, dir) = (config.clone(), Arc::clone(dir));
        move || {
            let (config, _dir) = (config.clone(), Arc::clone(&dir));
            async move { SqliteStore::open_with(config).expect("it opens again").into_shared() }
        }
    };
    let identities = {
        let (config, dir) = (config.clone(), Arc::clone(dir));
        move |setup: StoreSetup| {
            let _dir = &dir;
            let config = config.clone().with_table_name(setup.name);
            let config = match setup.secret {
                Some(secret) => config.with_identity_secret(secret),
                None => config,
            };
            let migrated = if setup.migrates { config.migrate() } else { Ok(()) };
            let opened = migrated.and_then(|()| SqliteStore::open_with(config));
            async move { opened.map(SqliteStore::into_shared) }
        }
    };
    let corrupt = {
        let dir = Arc::clone(dir);
        move |id: retryproof_core::Identity| {
            let spoilt = dir
                .stranger()
                .execute(
                    "UPDATE retryproof_records SET state = 7 WHERE scope = ?1 AND key = ?2",
                    (id.scope().as_str().as_bytes(), id.key().expose().as_bytes()),
                )
                .expect("the row is spoilt");
            async move { assert_eq!(spoilt, 1) }
        }
    };
    // SQLite's `data_version` changes with every commit of another connection.
    let watch = Mutex::new(dir.stranger());
    let writes = move || {
        let version: i64 =
            watch.lock().query_row("PRAGMA data_version", [], |row| row.get(0)).expect("a version");
        async move { version.unsigned_abs() }
    };
    Subject::of(store)
        .with_purge()
        .with_purge_claims()
        .with_wake_ups()
        .with_inspect()
        .with_force()
        .with_audit()
        .with_joined(source, Rows(Arc::clone(dir)))
        .with_another(another)
        .with_identities(identities)
        .with_corrupt(corrupt)
        .with_writes(writes)
}

fn config(dir: &Dir) -> SqliteConfig {
    dir.config().with_max_value(1 << 20)
}

mod on_the_hosts_clock {
    use super::*;

    async fn on_the_hosts_clock() -> Subject {
        let dir = Arc::new(Dir::new());
        let config = config(&dir);
        subject(&dir, &config).build()
    }

    retryproof_testkit::conformance! { time = real, factory = on_the_hosts_clock }
}

mod on_an_injected_clock {
    use super::*;

    async fn on_an_injected_clock() -> Subject {
        let dir = Arc::new(Dir::new());
        let wall = Wall::new();
        let config = wall.on(config(&dir)).with_synchronous(Synchronous::Normal);
        subject(&dir, &config).with_clock(move |by| wall.forward(by)).build()
    }

    retryproof_testkit::conformance! { time = real, factory = on_an_injected_clock }
}

mod in_place {
    use super::*;

    async fn in_place() -> Subject {
        let dir = Arc::new(Dir::new());
        let wall = Wall::new();
        let config =
            wall.on(config(&dir)).with_synchronous(Synchronous::Normal).with_in_place(true);
        subject(&dir, &config).with_clock(move |by| wall.forward(by)).build()
    }

    retryproof_testkit::conformance! { time = real, factory = in_place }
}
