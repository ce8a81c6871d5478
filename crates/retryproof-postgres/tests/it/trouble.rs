// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers that refuse connections or calls: each causes a typed error that names the remedy and
//! shows no key, nothing is half-written, and the store recovers without a restart.
//!
//! This file is over 400 lines long because each kind of trouble is one test, and the tests share
//! the functions that cause it.

mod far;
mod lines;
mod locked_rows;

use std::time::Duration;

use retryproof_core::store::{AcquireRequest, Acquired, FencedWrite};
use retryproof_core::{Error, ErrorKind, IdempotencyStore, OwnerId};
use retryproof_postgres::{
    PgConnectOptions, PgPool, Pooler, PostgresConfig, PostgresStore, SqlDialect,
};
use tokio::time::Instant;

use crate::round_trips::{self, proxied};
use crate::support::{
    CANARY, DAY, LONG, Table, assert_masked, completion, execute, grant, hex, id, pgbouncer,
    postgres, replay, request, service, whole,
};

/// Creates a role with its own password, and returns the role's name and URL. The role is dropped
/// with the table of the test.
async fn role(table: &Table, attributes: &str) -> (String, String) {
    let name = format!("r_{}", table.name);
    table
        .stranger()
        .await
        .run(format!("CREATE ROLE {name} LOGIN PASSWORD 'secret' {attributes}"))
        .await;
    (name.clone(), as_user(&table.url, &format!("{name}:secret")))
}

fn as_user(url: &str, user: &str) -> String {
    let (_, rest) = url.split_once('@').expect("a URL with a user");
    format!("postgres://{user}@{rest}")
}

async fn drop_role(table: &Table, name: &str) {
    let gone =
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename='{name}'");
    table.stranger().await.run(gone).await;
    table.stranger().await.run(format!("DROP OWNED BY {name}; DROP ROLE {name}")).await;
}

fn on(url: &str, table: &Table) -> PostgresConfig {
    PostgresConfig::from_url(url).expect("a valid URL").with_table_name(&table.name)
}

async fn refused(config: PostgresConfig) -> Error {
    let error = PostgresStore::connect(config).await.expect_err("it is refused");
    assert_eq!(error.operation(), Some("connect"));
    assert_masked(&error);
    error
}

/// Makes every insert or update fail with this error code, unless the SQL condition `unless` is
/// true.
async fn spoil(table: &Table, code: &str, unless: &str) {
    let name = &table.name;
    let sql = format!(
        "CREATE OR REPLACE FUNCTION f_{name}() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN IF {unless} THEN RETURN NEW; END IF; RAISE EXCEPTION 'spoilt' USING ERRCODE='{code}'; END $$; \
         CREATE OR REPLACE TRIGGER spoilt BEFORE INSERT OR UPDATE ON \"{name}\" \
         FOR EACH ROW EXECUTE FUNCTION f_{name}()"
    );
    table.stranger().await.run(sql).await;
}

async fn mend(table: &Table) {
    let name = &table.name;
    table
        .stranger()
        .await
        .run(format!("DROP TRIGGER spoilt ON \"{name}\"; DROP FUNCTION f_{name}()"))
        .await;
}

#[tokio::test]
async fn cfg_1_a_wrong_password_is_named_and_not_shown() {
    let url = service("RETRYPROOF_TEST_POSTGRES_PASSWORD", "postgres");
    let (user, _) = url["postgres://".len()..].split_once(':').expect("a user");
    let error = refused(
        PostgresConfig::from_url(&as_user(&url, &format!("{user}:{CANARY}"))).expect("a URL"),
    )
    .await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("password"), "{error}");
}

/// A role that does not exist, a wrong password, and a role with too many connections: no error
/// names the role.
#[tokio::test]
async fn id_4_no_refusal_shows_the_user() {
    let table = Table::new().await;
    let (name, url) = role(&table, "CONNECTION LIMIT 1").await;
    let only = crate::support::Stranger::to(&url).await;
    let wrong = url.replace(":secret@", ":wrong@");
    let unknown = as_user(&url, "canary-4711:secret");
    for (url, code) in [(url, "53300"), (wrong, "28P01"), (unknown, "28")] {
        let error = refused(on(&url, &table)).await;
        let shown = whole(&error);
        assert!(shown.contains(code) && !shown.contains(&name), "{shown}");
    }
    drop(only);
    drop_role(&table, &name).await;
}

/// A password that changes while the store runs has to cause an `Unavailable` error, because the
/// engine repeats a completion only after such an error. Without the repetition, the work would run
/// again.
#[tokio::test]
async fn cmp_3_a_password_that_changes_under_a_running_store_is_unavailable() {
    let table = Table::new().await;
    drop(table.store().await);
    let (name, url) = role(&table, "SUPERUSER").await;
    let store = PostgresStore::connect(on(&url, &table)).await.expect("it connects");
    let owner = OwnerId::new();
    grant(&store, &id("held"), owner).await;

    let rename = |password: &str| format!("ALTER ROLE {name} PASSWORD '{password}'");
    let kill =
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename='{name}'");
    table.stranger().await.run(format!("{}; {kill}", rename("other"))).await;
    let refused = store.complete(&id("held"), owner, &completion(CANARY)).await;
    let error = refused.map(drop).expect_err("refused");
    assert!(error.is_retryable() && whole(&error).contains("28P01"), "{}", whole(&error));
    assert_masked(&error);

    table.stranger().await.run(rename("secret")).await;
    let completed = store.complete(&id("held"), owner, &completion(CANARY)).await;
    assert_eq!(completed.expect("completed"), FencedWrite::Applied);
    drop(store);
    drop_role(&table, &name).await;
}

#[tokio::test]
async fn cfg_1_a_missing_database_is_named() {
    let (base, _) =
        postgres().rsplit_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("a database");
    let config = PostgresConfig::from_url(&format!("{base}/nowhere")).expect("a URL");
    for error in [config.migrate().await.expect_err("no database"), refused(config).await] {
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("database does not exist"), "{error}");
    }
}

#[tokio::test]
async fn sto_5_a_refused_connection_is_unavailable() {
    let config = PostgresConfig::from_url("postgres://u:canary-4711@127.0.0.1:1/d").expect("a URL");
    for error in [config.migrate().await.expect_err("no server"), refused(config).await] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("host and port"), "{error}");
    }
}

#[tokio::test]
async fn sto_5_missing_privileges_are_named() {
    let table = Table::new().await;
    let (name, url) = role(&table, "").await;
    // The user may not read the version row, so the migration cannot know whether anything is left
    // to do.
    assert!(on(&url, &table).migrate().await.is_err());
    let refuse = refused(on(&url, &table)).await;
    assert_eq!(refuse.kind(), ErrorKind::Unexpected, "{refuse}");
    assert!(refuse.to_string().contains("GRANT"), "{refuse}");
    let grants = "SELECT, INSERT, UPDATE, DELETE";
    let sql = format!(
        "GRANT {grants} ON \"{0}\" TO {name}; GRANT SELECT ON \"{0}_meta\" TO {name}",
        table.name
    );
    table.stranger().await.run(sql).await;
    for function in ["grant_1", "complete_1"] {
        let function = format!("EXECUTE ON FUNCTION \"{}_{function}\"", table.name);
        table.stranger().await.run(format!("REVOKE {function} FROM PUBLIC")).await;
        let refuse = refused(on(&url, &table)).await;
        assert!(refuse.to_string().contains("EXECUTE"), "{refuse}");
        table.stranger().await.run(format!("GRANT {function} TO {name}")).await;
    }
    on(&url, &table).migrate().await.expect("there is nothing to do, so no privilege is needed");
    let store = PostgresStore::connect(on(&url, &table)).await.expect("the privileges do");
    let other = PostgresStore::connect(on(&url, &table)).await.expect("the privileges do");
    execute(&store, &id("done"), "result").await;
    // A privilege is revoked while the stores run. They grant nothing new, but still replay
    // completed keys, even if they have not seen them complete.
    let call = format!("EXECUTE ON FUNCTION \"{}_grant_1\"", table.name);
    table.stranger().await.run(format!("REVOKE {call} FROM {name}")).await;
    let error = other.acquire(&id(CANARY), &request(OwnerId::new())).await.expect_err("revoked");
    assert!(error.to_string().contains("EXECUTE"), "{error}");
    assert_eq!(replay(&other, &id("done")).await, "result");
    table.stranger().await.run(format!("GRANT {call} TO {name}")).await;
    table
        .stranger()
        .await
        .run(format!("REVOKE INSERT, UPDATE ON \"{}\" FROM {name}", table.name))
        .await;
    let error =
        store.acquire(&id(CANARY), &request(OwnerId::new())).await.map(drop).expect_err("revoked");
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    assert!(error.to_string().contains("GRANT"), "{error}");
    assert_masked(&error);
    assert_eq!(replay(&store, &id("done")).await, "result");
    table.stranger().await.run(format!("GRANT {grants} ON \"{}\" TO {name}", table.name)).await;
    execute(&store, &id(CANARY), "result").await;
    drop((store, other));
    drop_role(&table, &name).await;
}

#[tokio::test]
async fn sto_3_a_function_that_is_gone_or_old_comes_back_where_its_table_is() {
    let table = Table::new().await;
    execute(&table.store().await, &id("done"), "result").await;
    let (name, url) = role(&table, "SUPERUSER").await;
    let mut admin = table.stranger().await;
    // A schema with the user's name comes first in the user's search path, so an object that is
    // created without the name of a schema goes there.
    admin.run(format!("CREATE SCHEMA {name}")).await;
    for function in ["grant_1", "complete_1"] {
        admin.run(format!("DROP FUNCTION \"{}_{function}\"", table.name)).await;
        assert_eq!(refused(on(&url, &table)).await.kind(), ErrorKind::Schema);
        on(&url, &table).migrate().await.expect("made again");
    }
    let strays = format!("SELECT count(*) FROM pg_class WHERE relnamespace='{name}'::regnamespace");
    assert_eq!(admin.number(strays).await, 0, "an empty table would hide the records");
    let store = PostgresStore::connect(on(&url, &table)).await.expect("connected");
    assert_eq!(replay(&store, &id("done")).await, "result");
    let old = format!(
        "CREATE OR REPLACE FUNCTION \"{}_grant_1\"(a_scope bytea, a_key bytea, a_owner bytea, \
         a_lease bigint, a_ttl bigint, a_step bigint, a_fp bytea, a_holder bytea, a_there boolean, \
         a_patience bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN 0; END $$",
        table.name
    );
    admin.run(old).await;
    on(&url, &table).migrate().await.expect("replaced");
    execute(&store, &id("new"), "result").await;
    drop(store);
    admin.run(format!("DROP SCHEMA {name}")).await;
    drop_role(&table, &name).await;
}

#[tokio::test]
async fn sto_5_a_user_that_may_not_make_tables_is_told_so() {
    let table = Table::absent(postgres());
    let (name, url) = role(&table, "").await;
    let error = on(&url, &table).migrate().await.expect_err("it may not");
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    assert!(error.to_string().contains("CREATE"), "{error}");
    drop_role(&table, &name).await;
}

#[tokio::test]
async fn sto_5_sto_9_a_read_only_server_is_unavailable_and_replays() {
    for dialect in [SqlDialect::Postgres, SqlDialect::Plain] {
        let table = Table::new().await;
        let (name, url) = role(&table, "SUPERUSER").await;
        let (done, held, owner) = (id("done"), id("held"), OwnerId::new());
        let config = on(&url, &table).with_dialect(dialect);
        let store = PostgresStore::connect(config.clone()).await.expect("connected");
        let other = PostgresStore::connect(config.clone()).await.expect("connected");
        execute(&store, &done, "result").await;
        grant(&store, &held, owner).await;
        let read_only = format!("ALTER ROLE {name} SET default_transaction_read_only=on");
        let cut = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename='{name}'"
        );
        table.stranger().await.run(format!("{read_only}; {cut}")).await;

        let error = refused(config).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("read-only"), "{error}");
        for error in [
            store
                .acquire(&id(CANARY), &request(OwnerId::new()))
                .await
                .map(drop)
                .expect_err("read-only"),
            store.extend(&held, owner, LONG).await.map(drop).expect_err("read-only"),
            store
                .complete(&held, owner, &completion(CANARY))
                .await
                .map(drop)
                .expect_err("read-only"),
        ] {
            assert!(error.is_retryable() && error.to_string().contains("read-only"), "{error}");
            assert_masked(&error);
        }
        assert_eq!(replay(&store, &done).await, "result");
        // The other store has not seen the record complete.
        assert_eq!(replay(&other, &done).await, "result", "{dialect:?}");
        // Once the server accepts writes again, the store works without a restart.
        table
            .stranger()
            .await
            .run(format!("ALTER ROLE {name} RESET default_transaction_read_only; {cut}"))
            .await;
        assert_eq!(
            store.complete(&held, owner, &completion("late")).await.expect("completed"),
            FencedWrite::Applied
        );
        drop((store, other));
        drop_role(&table, &name).await;
    }
}

#[tokio::test]
async fn sto_1_acq_8_acq_9_a_full_disk_is_full_and_replays() {
    let table = Table::new().await;
    let (proxy, through) = proxied(&table.url).await;
    let store = round_trips::store(&through, &table, Pooler::Session).await;
    execute(&store, &id("done"), "result").await;
    spoil(&table, "53100", "false").await;
    let before = proxy.flights();
    let error =
        store.acquire(&id(CANARY), &request(OwnerId::new())).await.map(drop).expect_err("full");
    assert_eq!(proxy.flights() - before, 1, "a refused acquire costs one round trip, too");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("disk"), "{error}");
    assert_masked(&error);
    // A store that has not seen the record complete replays it too.
    assert_eq!(replay(&table.store().await, &id("done")).await, "result");
    // An acquire that the holder sends again fails too, and does not find its own record busy.
    mend(&table).await;
    let (held, owner) = (id("held"), OwnerId::new());
    grant(&store, &held, owner).await;
    spoil(&table, "53100", "false").await;
    let error = store.acquire(&held, &request(owner)).await.map(drop).expect_err("full");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    mend(&table).await;
    execute(&store, &id(CANARY), "result").await;
}

/// Each time, the row changes between the read and the write of a repeated acquire. The holder gets
/// an error, and does not find its own record busy.
#[tokio::test]
async fn acq_9_a_repeated_acquire_that_loses_each_race_fails() {
    let table = Table::new().await;
    let store = table.store().await;
    let (held, owner, name) = (id(CANARY), OwnerId::new(), &table.name);
    let first = grant(&store, &held, owner).await;
    let brief = AcquireRequest::new(OwnerId::new(), Duration::from_millis(10), DAY);
    let ended = id("ended");
    assert!(matches!(store.acquire(&ended, &brief).await, Ok(Acquired::Granted(_))));
    tokio::time::sleep(Duration::from_millis(20)).await;
    let skip = format!(
        "CREATE FUNCTION f_{name}() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RETURN NULL; END $$; CREATE TRIGGER spoilt BEFORE UPDATE ON \"{name}\" \
         FOR EACH ROW EXECUTE FUNCTION f_{name}()"
    );
    table.stranger().await.run(skip).await;
    let error = store.acquire(&held, &request(owner)).await.expect_err("each is lost");
    assert!(error.is_retryable() && error.to_string().contains("changed"), "{error}");
    assert_masked(&error);
    // Another caller finds the record busy, although its lease has ended.
    let other = store.acquire(&ended, &request(OwnerId::new())).await;
    assert!(matches!(&other, Ok(Acquired::Busy(lease)) if lease.remaining.is_zero()), "{other:?}");
    mend(&table).await;
    assert_eq!(grant(&store, &held, owner).await.token, first.token);
}

#[tokio::test]
async fn sto_5_with_too_few_connections_it_goes_on_with_those_it_has() {
    let table = Table::new().await;
    let (name, url) = role(&table, "CONNECTION LIMIT 4").await;
    let grants = format!("GRANT ALL ON \"{0}\", \"{0}_meta\" TO {name}", table.name);
    table.stranger().await.run(grants).await;
    let config = on(&url, &table).with_call_timeout(Duration::from_secs(60));
    let store = std::sync::Arc::new(PostgresStore::connect(config).await.expect("connected"));
    let all: Vec<_> = (0..32)
        .map(|at| {
            let store = std::sync::Arc::clone(&store);
            tokio::spawn(async move { execute(&store, &id(&at.to_string()), "result").await })
        })
        .collect();
    for one in all {
        one.await.expect("each got its turn");
    }
    let error = refused(on(&url, &table)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("no more connections"), "{error}");
    drop(store);
    drop_role(&table, &name).await;
}

#[tokio::test]
async fn sto_5_lost_races_are_run_again() {
    let table = Table::new().await;
    let store = table.store().await;
    table.stranger().await.run(format!("CREATE SEQUENCE s_{0}", table.name)).await;
    for code in ["40001", "40P01"] {
        let id = id(code);
        spoil(&table, code, &format!("nextval('s_{}') % 4 = 0", table.name)).await;
        execute(&store, &id, "result").await;
        assert_eq!(replay(&store, &id).await, "result");
    }
    let mut stranger = table.stranger().await;
    stranger.run(format!("ALTER SEQUENCE s_{0} RESTART", table.name)).await;
    spoil(&table, "40P01", &format!("nextval('s_{}') < 0", table.name)).await;
    let began = Instant::now();
    let error = store
        .acquire(&id(CANARY), &request(OwnerId::new()))
        .await
        .map(drop)
        .expect_err("each is lost");
    let took = began.elapsed();
    assert!(error.is_retryable(), "{error}");
    assert_masked(&error);
    // The statement was sent six times, with pauses of 1, 4, 9, 16 and 25 ms.
    assert_eq!(stranger.number(format!("SELECT last_value FROM s_{}", table.name)).await, 6);
    assert!(took >= Duration::from_millis(55), "{took:?}");
    mend(&table).await;
    stranger.run(format!("DROP SEQUENCE s_{0}", table.name)).await;
}

#[tokio::test]
async fn sto_5_a_cancelled_statement_is_unavailable() {
    let table = Table::new().await;
    let store = table.store().await;
    spoil(&table, "57014", "false").await;
    let error = store
        .acquire(&id(CANARY), &request(OwnerId::new()))
        .await
        .map(drop)
        .expect_err("cancelled");
    assert!(error.is_retryable() && error.to_string().contains("statement_timeout"), "{error}");
    mend(&table).await;
    execute(&store, &id(CANARY), "result").await;
}

#[tokio::test]
async fn id_4_details_of_a_constraint_are_not_shown() {
    let table = Table::new().await;
    let store = table.store().await;
    let sql =
        format!("ALTER TABLE \"{}\" ADD CONSTRAINT c CHECK (octet_length(result)<10)", table.name);
    table.stranger().await.run(sql).await;
    let (id, owner) = (id(CANARY), OwnerId::new());
    grant(&store, &id, owner).await;
    let error = store
        .complete(&id, owner, &completion(CANARY))
        .await
        .expect_err("the constraint is broken");
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    assert!(std::error::Error::source(&error).expect("a source").to_string().contains("23514"));
    assert_masked(&error);
}

#[tokio::test]
async fn cmp_8_a_row_that_we_did_not_write_fails_closed_and_stays() {
    for url in [postgres(), pgbouncer()] {
        let table = Table::new().await;
        let store = PostgresStore::connect(on(&url, &table)).await.expect("connected");
        let changes = [
            "state = 7",
            "owner = ''",
            "token = -1",
            "fp = decode(repeat('00', 65), 'hex')",
            "fp = ''",
            "result = NULL",
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let id = id(&format!("{CANARY} {at}"));
            execute(&store, &id, CANARY).await;
            let spoil = format!(
                "UPDATE \"{}\" SET {change} WHERE key={}",
                table.name,
                hex(id.key().expose())
            );
            assert_eq!(table.stranger().await.run(spoil).await, 1);
            for error in [
                store.acquire(&id, &request(OwnerId::new())).await.map(drop).expect_err(change),
                store.peek(&id).await.map(drop).expect_err(change),
            ] {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{change}: {error}");
                assert!(
                    error.to_string().contains(change.split(' ').next().expect("a column")),
                    "{error}"
                );
                assert_masked(&error);
            }
        }
        // No caller is granted a damaged record, even after the record has expired.
        let over = format!(
            "UPDATE \"{}\" SET expires_at=to_timestamp(0), purge_bucket=0 WHERE state=7",
            table.name
        );
        assert_eq!(table.stranger().await.run(over).await, 1);
        let id = id(&format!("{CANARY} 0"));
        let error = store
            .acquire(&id, &request(OwnerId::new()))
            .await
            .map(drop)
            .expect_err("a foreign state");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

#[tokio::test]
async fn cfg_1_encryption_that_is_not_to_be_had_is_refused() {
    let table = Table::new().await;
    let error = refused(on(&format!("{}?sslmode=require", table.url), &table)).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("sslmode"), "{error}");
}

#[tokio::test]
async fn run_2_an_applications_pool_lends_its_settings_and_no_connection() {
    let table = Table::new().await;
    let options: PgConnectOptions = table.url.parse().expect("a valid URL");
    let pool: PgPool =
        sqlx_core::pool::PoolOptions::new().max_connections(1).connect_lazy_with(options);
    let taken = pool.acquire().await.expect("the application's only connection");
    let config = PostgresConfig::from_pool(&pool).with_table_name(&table.name);
    let store = PostgresStore::connect(config).await.expect("connected beside it");
    execute(&store, &id("k"), "result").await;
    drop(taken);
}
