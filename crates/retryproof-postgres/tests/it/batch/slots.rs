// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a completion does that finds no free slot: it waits briefly, shares a statement, or is sent
//! alone, and is never sent twice without need.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::store::FencedWrite;
use retryproof_core::{IdempotencyStore as _, Identity, OwnerId};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore};
use tokio::time::{Instant, timeout};

use super::{MANY, complete, granted, patient};
use crate::round_trips::proxied;
use crate::support::{Table, completion, grant, id};

/// Runs a step, in PL/pgSQL, before a shared statement changes a row of the table.
async fn before_each_row(table: &Table, step: &str) {
    let name = &table.name;
    let trigger = format!(
        "CREATE FUNCTION {name}_step() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF \
         current_query() LIKE '%complete_1%' THEN {step} END IF; RETURN NEW; END$$;\
         CREATE TRIGGER step BEFORE UPDATE ON {name} FOR EACH ROW EXECUTE FUNCTION {name}_step()"
    );
    table.stranger().await.run(trigger).await;
}

#[tokio::test]
async fn cmp_1_four_completions_run_at_a_time_and_another_waits_a_quarter_of_a_second() {
    let table = Table::new().await;
    let store = patient(&table).await;
    let mut held: Vec<(Identity, OwnerId)> = granted(&store, "k").await;
    held.truncate(4);
    let mut stranger = table.stranger().await;
    stranger.run(format!("BEGIN; SELECT 1 FROM \"{}\" FOR UPDATE", table.name)).await;
    let held = complete(&store, &held);
    tokio::time::sleep(Duration::from_millis(300)).await;

    let (fifth, owner) = (id("fifth"), OwnerId::new());
    grant(&store, &fifth, owner).await;
    let began = Instant::now();
    let fenced = store.complete(&fifth, owner, &completion("result")).await.expect("answered");
    assert_eq!(fenced, FencedWrite::Applied);
    assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());

    stranger.run("ROLLBACK").await;
    let told = timeout(Duration::from_secs(30), held.join_all()).await.expect("not held up");
    assert!(told.iter().all(|(_, fenced)| *fenced == FencedWrite::Applied), "{told:?}");
}

/// The owner still holds a record that the shared statement did not change.
#[tokio::test]
async fn cmp_2_a_completion_that_a_shared_statement_leaves_is_sent_alone() {
    let table = Table::new().await;
    before_each_row(&table, "RETURN NULL;").await;
    let store = patient(&table).await;
    let all = granted(&store, "k").await;
    let told = complete(&store, &all).join_all().await;
    assert!(told.iter().all(|(_, fenced)| *fenced == FencedWrite::Applied), "{told:?}");
}

/// Each of the 32 rows of a shared statement takes 20 ms here, so the statement takes longer than a
/// completion may be queued. Its completions wait for it. Only the first four, and those that four
/// shared statements leave in the queue, are sent alone.
#[tokio::test]
async fn cmp_1_a_completion_in_a_shared_statement_is_not_sent_again_alone() {
    let table = Table::new().await;
    before_each_row(&table, "PERFORM pg_sleep(0.02);").await;
    let store = patient(&table).await;
    let mut stranger = table.stranger().await;
    let mut sent = Vec::new();
    // On a busy machine, some of the statements have fewer completions, so try several rounds.
    while sent.last().is_none_or(|sent| *sent > 45) {
        assert!(sent.len() < 20, "160 completions always took more than 45 statements: {sent:?}");
        let round = format!("round {}", sent.len());
        let mut all = granted(&store, &round).await;
        all.extend(granted(&store, &format!("{round} more")).await);
        all.truncate(160);
        let told = complete(&store, &all).join_all().await;
        assert!(told.iter().all(|(_, fenced)| *fenced == FencedWrite::Applied), "{told:?}");
        // All rows of one statement have the same `xmin`.
        let statements = format!(
            "SELECT count(DISTINCT xmin::text) FROM \"{}\" WHERE state=1 AND \
             convert_from(key,'UTF8') LIKE '{round} %'",
            table.name
        );
        sent.push(stranger.number(statements).await);
    }
}

/// Behind a pooler and in the plain dialect, each completion is a statement of its own.
#[tokio::test]
async fn sto_9_completions_share_no_statement_where_none_can_be_prepared_or_called() {
    for (parameters, pooler) in [("", Pooler::Transaction), ("?dialect=plain", Pooler::Session)] {
        let table = Table::new().await;
        let (proxy, through) = proxied(&table.url).await;
        let config = PostgresConfig::from_url(&(through + parameters)).expect("a URL");
        let config = config.with_table_name(&table.name).with_pooler(pooler);
        let store = Arc::new(PostgresStore::connect(config).await.expect("connected"));
        // The first rounds open the connections and prepare the statement.
        let mut fewest = u64::MAX;
        for round in 0..5 {
            let all = granted(&store, &format!("round {round}")).await;
            let before = proxy.flights();
            let told = complete(&store, &all).join_all().await;
            fewest = fewest.min(proxy.flights() - before);
            assert!(told.iter().all(|(_, fenced)| *fenced == FencedWrite::Applied), "{told:?}");
        }
        assert_eq!(fewest, MANY as u64, "{pooler:?}");
    }
}
