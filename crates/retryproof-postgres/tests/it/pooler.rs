// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pooler in transaction mode is detected: when the store connects, or by the first statement that
//! fails because of it.

use std::sync::Arc;
use std::time::Duration;

use retryproof_core::{IdempotencyStore, OwnerId};
use retryproof_postgres::{Pooler, PostgresConfig, PostgresStore};

use crate::round_trips::store;
use crate::support::{
    Stranger, Table, completion, execute, id, pgbouncer, postgres, replay, request,
};
use crate::waiting::wake_ups;

#[tokio::test]
async fn sto_5_a_pooler_in_transaction_mode_is_found_out() {
    let table = Table::new().await;
    for (url, direct) in [(postgres(), "direct: true"), (pgbouncer(), "direct: false")] {
        let store = store(&url, &table, Pooler::Detect).await;
        assert!(format!("{store:?}").contains(direct), "{store:?}");
        execute(&store, &id(direct), "result").await;
    }
}

#[tokio::test]
async fn sto_5_acq_4_a_pooler_that_was_denied_is_found_out_by_the_first_stray_statement() {
    let table = Table::new().await;
    let config =
        PostgresConfig::from_url(&pgbouncer()).expect("a URL").with_table_name(&table.name);
    // Set `Pooler::Session`, so that the store does not look for a pooler when it connects. A
    // pooler that hands out its connections in turn could also escape that check.
    let connect = || async {
        PostgresStore::connect(config.clone().with_pooler(Pooler::Session))
            .await
            .expect("connected")
    };
    let stores = [Arc::new(connect().await), Arc::new(connect().await)];
    // Between two rounds, this other client takes the connection that the pooler would hand out
    // next. It keeps the connection for one round.
    let mut stranger = Stranger::to(&pgbouncer()).await;
    let mut round = 0;
    while stores.iter().any(|store| format!("{store:?}").contains("direct: true")) {
        assert!(round < 200, "nothing goes astray");
        stranger.run(if round % 2 == 0 { "COMMIT" } else { "BEGIN; SELECT 1" }).await;
        let calls: Vec<_> = (0..24)
            .map(|at| {
                let (store, id) =
                    (Arc::clone(&stores[at % 2]), id(&format!("astray {round} {at}")));
                let owner = OwnerId::new();
                tokio::spawn(async move {
                    drop(store.acquire(&id, &request(owner)).await?);
                    // Completions of several callers share one statement.
                    store.complete(&id, owner, &completion("result")).await
                })
            })
            .collect();
        for call in calls {
            // Ignore the result, because some of these calls fail.
            let _ = call.await.expect("no panic");
        }
        round += 1;
    }
    for (at, store) in stores.iter().enumerate() {
        execute(store, &id(&format!("found out {at}")), "result").await;
        assert_eq!(replay(store, &id(&format!("found out {at}"))).await, "result");
    }
    // The pooler has accepted LISTEN, but forwards no notifications, so the waiters poll. If they
    // still relied on notifications, the first poll would come after more than 150 ms (ACQ-4).
    let took = wake_ups(&stores[0], &stores[1], "polled ", 9).await;
    assert!(took[4] < Duration::from_millis(100), "{took:?}");
}
