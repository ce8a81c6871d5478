// SPDX-License-Identifier: MIT OR Apache-2.0
//! If an open transaction has locked a record's row, the answers about the record still name its
//! holder (REC-2).

use retryproof_core::IdempotencyStore;
use retryproof_core::OwnerId;
use retryproof_core::store::{Acquired, LiveLease};

use super::{MS, brief, granted, note};
use crate::support::{Table, id, request};

#[tokio::test]
async fn rec_2_a_locked_record_names_its_holder_to_every_caller() {
    let table = Table::new().await;
    let store = std::sync::Arc::new(table.store().await);
    let (locked, owner) = (id("locked"), OwnerId::new());
    granted(&store, &locked, &brief(owner, "holder")).await;
    tokio::time::sleep(5 * MS).await;
    let mut joined = table.stranger().await;
    joined.run(format!("BEGIN; SELECT 1 FROM \"{}\" FOR UPDATE", table.name)).await;
    // The store lets only a few connections wait for one locked record. There are more callers than
    // that, so some of them get the answer that another caller received.
    let all: Vec<_> = (0..20)
        .map(|_| {
            let (store, locked) = (std::sync::Arc::clone(&store), locked.clone());
            tokio::spawn(async move { store.acquire(&locked, &request(OwnerId::new())).await })
        })
        .collect();
    for one in all {
        match one.await.expect("no panic").expect("answered") {
            Acquired::Busy(LiveLease { remaining, holder, .. }) => {
                assert!(remaining.is_zero(), "{remaining:?}");
                assert_eq!(holder, Some(note(owner, "holder")));
            }
            other => panic!("{other:?}"),
        }
    }
    joined.run("ROLLBACK").await;
}
