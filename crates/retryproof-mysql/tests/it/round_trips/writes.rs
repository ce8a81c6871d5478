// SPDX-License-Identifier: MIT OR Apache-2.0
//! A replay writes nothing to the server's log (ACQ-8). The test counts on a separate server.

use retryproof_core::store::{Acquired, Peeked};
use retryproof_core::{IdempotencyStore, OwnerId};
use retryproof_mysql::MysqlStore;
use sqlx::mysql::MySqlConnection;
use sqlx::{Executor as _, Row as _};

use crate::support::server::Server;
use crate::support::{execute, grant, id, replay, request};

/// Returns the position at which InnoDB's log ends.
async fn log_end(conn: &mut MySqlConnection) -> u64 {
    let row =
        conn.fetch_one("SHOW GLOBAL STATUS LIKE 'Innodb_lsn_current'").await.expect("answered");
    row.get::<String, _>(1).parse().expect("a number")
}

/// ACQ-8: 1,000 replays by a store that has seen the keys complete, 1,000 replays by a store that
/// reads them for the first time, 1,000 peeks and 1,000 busy answers add nothing to the log. No
/// other test uses the server, but the server sometimes writes by itself (statistics, purge). Each
/// kind of call therefore has several attempts: a call that writes would do so in all of them.
#[tokio::test]
async fn acq_8_a_thousand_replays_write_no_log() {
    let server = Server::start(&[]).await;
    server.config().migrate().await.expect("migrated");
    let store = MysqlStore::connect(server.config()).await.expect("connected");
    let held = id("held");
    grant(&store, &held, OwnerId::new()).await;
    for at in 0..1_000 {
        execute(&store, &id(&format!("k{at}")), "result").await;
    }
    let mut root = server.root().await;
    for kind in ["known key", "first contact", "look", "busy"] {
        let mut written = Vec::new();
        for _ in 0..6 {
            // This store has not yet seen any key complete.
            let other = MysqlStore::connect(server.config()).await.expect("connected");
            let before = log_end(&mut root).await;
            for at in 0..1_000 {
                let key = id(&format!("k{at}"));
                match kind {
                    "known key" => assert_eq!(replay(&store, &key).await, "result"),
                    "first contact" => assert_eq!(replay(&other, &key).await, "result"),
                    "look" => assert!(matches!(store.peek(&key).await, Ok(Peeked::Complete(_)))),
                    _ => {
                        let answer = store.acquire(&held, &request(OwnerId::new())).await;
                        assert!(matches!(answer, Ok(Acquired::Busy(_))));
                    }
                }
            }
            written.push(log_end(&mut root).await - before);
            if written.last() == Some(&0) {
                break;
            }
        }
        println!("log written by 1,000 times {kind}: {written:?} bytes");
        assert_eq!(written.last(), Some(&0), "{kind}: {written:?}");
    }
}
