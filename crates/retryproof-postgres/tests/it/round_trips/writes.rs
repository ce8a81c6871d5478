// SPDX-License-Identifier: MIT OR Apache-2.0
//! A replay writes nothing to the server's log (ACQ-8). The test counts on a separate server.

use retryproof_core::store::{Acquired, Peeked};
use retryproof_core::{IdempotencyStore, OwnerId};

use crate::support::server::Server;
use crate::support::{Table, execute, grant, id, replay, request};

#[tokio::test]
async fn acq_8_a_replay_writes_not_one_byte_of_log() {
    let server = Server::start().await;
    let table = Table::on(server.url()).await;
    let (first, second) = (table.store().await, table.store().await);
    for at in 0..1_000 {
        execute(&first, &id(&format!("k{at}")), "result").await;
    }
    let mut stranger = table.stranger().await;
    // VACUUM cleans the pages, so that no later read has to do that.
    stranger.run(format!("VACUUM \"{}\"", table.name)).await;
    stranger.run("CHECKPOINT").await;
    let position = "SELECT (pg_current_wal_insert_lsn()-'0/0')::bigint";
    let transaction = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    replay(&second, &id("k0")).await;
    let before = (stranger.number(position).await, stranger.number(transaction).await);
    for round in ["first contact", "known"] {
        for at in 0..1_000 {
            assert_eq!(replay(&second, &id(&format!("k{at}"))).await, "result", "{round}");
        }
    }
    let owner = OwnerId::new();
    for at in 0..1_000 {
        assert!(matches!(second.peek(&id(&format!("k{at}"))).await, Ok(Peeked::Complete(_))));
        assert!(matches!(second.peek(&id(&format!("none {at}"))).await, Ok(Peeked::Absent)));
    }
    let after = (stranger.number(position).await, stranger.number(transaction).await);
    println!("log bytes over 2,000 replays and 2,000 looks: {}", after.0 - before.0);
    assert_eq!(after, before, "log position and next transaction id");
    // A duplicate of a running call does not write either.
    grant(&first, &id("held"), owner).await;
    let before = (stranger.number(position).await, stranger.number(transaction).await);
    for _ in 0..100 {
        assert!(matches!(
            second.acquire(&id("held"), &request(OwnerId::new())).await,
            Ok(Acquired::Busy(_))
        ));
    }
    assert_eq!((stranger.number(position).await, stranger.number(transaction).await), before);
}
