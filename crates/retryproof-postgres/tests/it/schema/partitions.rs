// SPDX-License-Identifier: MIT OR Apache-2.0
//! A record table in hash partitions (STO-3): `migrate` creates it, refuses to change one that
//! exists, and the store works with it as with any other.

use retryproof_core::store::{Inspect as _, Purge as _, Severity};
use retryproof_core::{Error, ErrorKind};
use retryproof_postgres::{Pooler, PostgresStore, SqlDialect, partitioned_schema_sql};
use sqlx_core::row::Row as _;

use crate::plain::place::Place;
use crate::support::{Stranger, Table, execute, hex, id, pgbouncer, postgres, replay};

/// Creates a table with partitions.
async fn divided(partitions: usize) -> Table {
    let table = Table::absent(postgres());
    table.config().with_partitions(partitions).migrate().await.expect("migrated");
    table
}

/// Returns the number of the table's partitions.
async fn partitions(table: &Table) -> i64 {
    let count =
        format!("SELECT count(*) FROM pg_inherits WHERE inhparent='\"{}\"'::regclass", table.name);
    table.stranger().await.number(count).await
}

/// Returns a text that changes with each table, index, option and row of the schema.
async fn content(table: &Table) -> String {
    let name = &table.name;
    let relations = "string_agg(oid||relname||relkind::text||coalesce(reloptions::text,''),',' ORDER BY \
                     oid)";
    let rows = format!("(SELECT string_agg(name||value,',' ORDER BY name) FROM \"{name}_meta\")");
    let sql = format!("SELECT {relations}||{rows} FROM pg_class WHERE relname LIKE '{name}%'");
    table.stranger().await.row(sql).await.try_get(0).expect("a text")
}

fn refused(error: &Error, what: &str) {
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Config, Some("migrate")), "{error}");
    for part in [what, "leave out `partitions`", "new table", "partitions = "] {
        assert!(error.to_string().contains(part), "{part} in {error}");
    }
}

#[tokio::test]
async fn sto_3_each_partition_has_the_settings_of_a_table_and_its_indexes() {
    let table = divided(3).await;
    let (whole, mut stranger) = (Table::new().await, table.stranger().await);
    assert_eq!(partitions(&table).await, 3);
    let options = async |stranger: &mut Stranger, name: &str| -> String {
        let sql = format!("SELECT reloptions::text FROM pg_class WHERE oid='\"{name}\"'::regclass");
        stranger.row(sql).await.try_get(0).expect("options")
    };
    let expected = options(&mut stranger, &whole.name).await;
    assert_eq!(expected, "{fillfactor=70,autovacuum_vacuum_scale_factor=0.02}");
    for part in 0..3 {
        let name = format!("{}_p{part}", table.name);
        assert_eq!(options(&mut stranger, &name).await, expected);
        let external = format!(
            "SELECT count(*) FROM pg_attribute WHERE attrelid='\"{name}\"'::regclass AND \
             attstorage='e' AND attname IN ('result','log')"
        );
        assert_eq!(stranger.number(external).await, 2, "{name}");
        let indexes = format!(
            "SELECT count(*) FROM pg_indexes WHERE tablename='{name}' AND (indexdef LIKE \
             '%(purge_bucket)' OR indexdef LIKE '%UNIQUE%(key, scope)')"
        );
        assert_eq!(stranger.number(indexes).await, 2, "{name}");
    }
    // The version is that of a table without partitions, and the functions are the same (REC-1).
    let meta = format!(
        "SELECT count(*) FROM \"{}_meta\" AS a JOIN \"{}_meta\" AS b USING (name,value)",
        table.name, whole.name
    );
    assert_eq!(stranger.number(meta).await, 3);
}

#[tokio::test]
async fn sto_3_a_migration_is_repeated_with_and_without_the_number_of_partitions() {
    let table = divided(4).await;
    execute(&table.store().await, &id("kept"), "result").await;
    let before = content(&table).await;
    table.config().with_partitions(4).migrate().await.expect("there is nothing to do");
    table.config().migrate().await.expect("without the number, nothing is compared");
    assert_eq!(content(&table).await, before);
    // `connect` compares nothing.
    let store = PostgresStore::connect(table.config().with_partitions(9)).await.expect("connected");
    assert_eq!(replay(&store, &id("kept")).await, "result");
    let sql = partitioned_schema_sql(&table.name, SqlDialect::Postgres, 4).expect("within bounds");
    table.stranger().await.run(format!("BEGIN; {sql}; COMMIT")).await;
    assert_eq!(content(&table).await, before);
}

#[tokio::test]
async fn sto_3_a_table_in_another_form_is_refused_and_stays_unchanged() {
    let (whole, four) = (Table::new().await, divided(4).await);
    for (table, what) in [(&whole, "has no hash partitions"), (&four, "another number of hash")] {
        execute(&table.store().await, &id("kept"), "result").await;
        let before = content(table).await;
        for partitions in [2, 8] {
            let config = table.config().with_partitions(partitions);
            let error = config.migrate().await.expect_err("another form");
            refused(&error, what);
        }
        assert_eq!(content(table).await, before);
        assert_eq!(replay(&table.store().await, &id("kept")).await, "result");
    }
    // Partitions by another method count as none.
    let ranges = Table::absent(postgres());
    let range = format!(
        "CREATE TABLE \"{0}\" (key bytea) PARTITION BY RANGE (key); CREATE TABLE \"{0}_p0\" \
         PARTITION OF \"{0}\" DEFAULT; CREATE TABLE \"{0}_p1\" PARTITION OF \"{0}\" FOR VALUES \
         FROM ('a') TO ('b')",
        ranges.name
    );
    ranges.stranger().await.run(range).await;
    let error = ranges.config().with_partitions(2).migrate().await.expect_err("another method");
    refused(&error, "has no hash partitions");
}

/// The documentation of the crate says how to move the records of a table that exists.
#[tokio::test]
async fn sto_3_the_documented_statements_divide_a_table() {
    let table = Table::new().await;
    let store = table.store().await;
    for key in 0..20 {
        execute(&store, &id(&format!("{key}")), "result").await;
    }
    let readme = include_str!("../../../README.md");
    let after = readme.split_once("# Tables at size").expect("the section").1;
    let block = after.split_once("```sql").and_then(|(_, rest)| rest.split_once("```"));
    let (documented, _) = block.expect("the statements");
    let begin = documented.find("-- here the output").expect("the place of the schema");
    let (before, rest) = documented.split_at(begin);
    let (_, rest) = rest.split_once('\n').expect("the end of the line");
    let named = |sql: &str| sql.replace("retryproof_records", &table.name);
    let schema = partitioned_schema_sql(&table.name, SqlDialect::Postgres, 6);
    let schema = schema.expect("within bounds");
    let all = format!("{}{schema}\n{}", named(before), named(rest));
    table.stranger().await.run(all).await;
    assert_eq!(partitions(&table).await, 6);
    table.config().with_partitions(6).migrate().await.expect("there is nothing to do");
    for store in [store, table.store().await] {
        for key in 0..20 {
            assert_eq!(replay(&store, &id(&format!("{key}"))).await, "result");
        }
    }
    let index = format!(
        "SELECT count(*) FROM pg_indexes WHERE tablename='{0}' AND indexname='{0}_purge'",
        table.name
    );
    assert_eq!(table.stranger().await.number(index).await, 1);
}

#[tokio::test]
async fn sto_3_cfg_1_a_number_out_of_bounds_is_refused_before_a_connection() {
    let away = retryproof_postgres::PostgresConfig::from_url("postgres://u:canary@127.0.0.1:1/d");
    let away = away.expect("a valid URL");
    for dialect in [SqlDialect::Postgres, SqlDialect::Plain] {
        for partitions in [0, 1, 129, usize::MAX] {
            let config = away.clone().with_dialect(dialect).with_partitions(partitions);
            let error = config.migrate().await.expect_err("out of bounds");
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(error.to_string().contains("from 2 to 128"), "{error}");
        }
    }
}

/// The name of a partition is taken, so keys of that partition would have no place.
#[tokio::test]
async fn sto_3_a_table_that_lacks_a_partition_is_not_created() {
    let place = Place::absent("").await;
    let whole = Table::absent(postgres());
    for (table, config) in [(&whole, whole.config()), (&place.table, place.config())]
        .map(|(table, config)| (table, config.with_partitions(3)))
    {
        let mut stranger = table.stranger().await;
        stranger.run(format!("CREATE TABLE \"{}_p1\" ()", table.name)).await;
        let error = config.migrate().await.expect_err("a partition is missing");
        refused(&error, "another number of hash partitions");
        let connected = PostgresStore::connect(config.clone()).await;
        assert_eq!(connected.map(drop).expect_err("no table").kind(), ErrorKind::Schema);
        stranger.run(format!("DROP TABLE \"{}_p1\"", table.name)).await;
    }
    place.tap.take_forbidden();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sto_9_sto_3_both_dialects_divide_a_table_from_many_at_once() {
    for _ in 0..2 {
        let (place, whole) = (Place::absent("").await, Table::absent(postgres()));
        for (table, config) in [(&place.table, place.config()), (&whole, whole.config())] {
            let config = config.with_partitions(8);
            let all: Vec<_> = (0..6)
                .map(|_| {
                    let config = config.clone();
                    tokio::spawn(async move { config.migrate().await })
                })
                .collect();
            for one in all {
                one.await.expect("no panic").expect("migrated");
            }
            assert_eq!(partitions(table).await, 8);
            let store = PostgresStore::connect(config).await.expect("connected");
            execute(&store, &id("k"), "result").await;
            let other = table.config().with_partitions(4).with_dialect(SqlDialect::Plain);
            refused(&other.migrate().await.expect_err("eight"), "another number of hash");
        }
        // To find the number of partitions, the plain dialect reads the catalogue, but only if a
        // number is configured.
        let read = place.tap.take_forbidden();
        assert!(read.iter().all(|text| text.contains("pg_inherits")), "{read:?}");
        place.config().migrate().await.expect("there is nothing to do");
    }
}

/// Rows of different partitions can have the same ctid. A purge that identified rows by the ctid
/// alone would delete live records.
#[tokio::test]
async fn sto_4_a_purge_deletes_only_expired_records_of_all_partitions() {
    let pooled = |table: &Table| {
        let config = retryproof_postgres::PostgresConfig::from_url(&pgbouncer()).expect("a URL");
        config.with_table_name(&table.name).with_pooler(Pooler::Transaction)
    };
    for dialect in [SqlDialect::Postgres, SqlDialect::Plain] {
        for is_pooled in [false, true] {
            let table = divided(4).await;
            let config = if is_pooled { pooled(&table) } else { table.config() };
            let store = PostgresStore::connect(config.with_dialect(dialect)).await.expect("it is");
            for key in 0..100 {
                execute(&store, &id(&format!("{key}")), "result").await;
            }
            let expire = |keys: &str| {
                format!(
                    "UPDATE \"{}\" SET expires_at=now()-interval '1 s',purge_bucket=1 WHERE \
                     convert_from(key,'UTF8') {keys}",
                    table.name
                )
            };
            let mut stranger = table.stranger().await;
            assert_eq!(stranger.run(expire("LIKE '%3'")).await, 10);
            assert_eq!(store.purge(10_000).await.expect("purged"), 10, "{dialect:?}");
            let left = format!("SELECT count(*) FROM \"{}\"", table.name);
            assert_eq!(stranger.number(left.clone()).await, 90, "{dialect:?} {is_pooled}");
            for key in (0..100).filter(|key| key % 10 != 3) {
                assert_eq!(replay(&store, &id(&format!("{key}"))).await, "result");
            }
            // A limit that is smaller than the number of expired records.
            assert_eq!(stranger.run(expire("LIKE '%4'")).await, 10);
            assert_eq!(store.purge(7).await.expect("purged"), 7, "{dialect:?}");
            assert_eq!(stranger.number(left).await, 83, "{dialect:?} {is_pooled}");
        }
    }
}

#[tokio::test]
async fn ops_1_a_scan_and_a_count_cover_all_partitions() {
    let table = divided(4).await;
    let store = table.store().await;
    for key in 0..40 {
        execute(&store, &id(&format!("{key:02}")), "result").await;
    }
    let (mut after, mut keys) = (None, Vec::new());
    loop {
        let page = store.scan(after.as_ref(), 7).await.expect("scanned");
        keys.extend(page.records.into_iter().map(|record| record.id));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let all: Vec<_> = (0..40).map(|key| id(&format!("{key:02}"))).collect();
    assert_eq!(keys, all);
    let stats = store.stats().await.expect("counted");
    // Each partition has a page for its rows and two indexes of two pages each.
    assert_eq!(stats.records, 40);
    assert!(stats.bytes >= 4 * 5 * 8_192, "{stats:?}");
}

#[tokio::test]
async fn ops_5_the_partitions_are_diagnosed() {
    let table = divided(3).await;
    let mut stranger = table.stranger().await;
    assert_eq!(table.config().diagnose().await.expect("diagnosed"), []);
    stranger.run(format!("ALTER TABLE \"{}_p2\" SET (autovacuum_enabled=off)", table.name)).await;
    let found = table.config().diagnose().await.expect("diagnosed");
    let ids: Vec<_> = found.iter().map(|finding| (finding.id, finding.severity)).collect();
    assert_eq!(ids, [("autovacuum", Severity::Warning)], "{found:#?}");
    assert!(found[0].problem.contains("for the table"), "{found:#?}");
}

/// The dead rows of all partitions are added up: no partition alone has enough of them.
#[tokio::test]
async fn ops_5_dead_rows_of_all_partitions_are_counted() {
    let table = divided(4).await;
    let mut stranger = table.stranger().await;
    for part in 0..4 {
        // Autovacuum is on, but has no reason to run.
        let name = format!("{}_p{part}", table.name);
        let idle = "autovacuum_vacuum_threshold=1000000,autovacuum_analyze_threshold=1000000,\
                    autovacuum_vacuum_insert_threshold=1000000";
        stranger.run(format!("ALTER TABLE \"{name}\" SET ({idle})")).await;
    }
    let fill = format!(
        "INSERT INTO \"{}\" SELECT {}, n::text::bytea, 1, ''::bytea, 1, 0, now()+interval '1 day', \
         4000000000000000 FROM generate_series(1,16000) AS n",
        table.name,
        hex("s")
    );
    stranger.run(fill).await;
    stranger.run(format!("DELETE FROM \"{}\"", table.name)).await;
    for _ in 0..200 {
        let found = table.config().diagnose().await.expect("diagnosed");
        if found.iter().any(|finding| finding.problem.contains("16000 dead rows")) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
        // A server process reports what it has deleted at its next statement, at most once a
        // second, or when it has been idle for 10 s.
        stranger.run("SELECT 1").await;
    }
    panic!("the dead rows should be counted");
}
