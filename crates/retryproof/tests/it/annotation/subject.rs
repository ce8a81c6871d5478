// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attribute names the subject of a sealed result (SEAL-3).

use std::sync::Arc;

use retryproof::seal::{DataSubject, MasterKeys, MemoryKeyTable, Seals};
use retryproof::{
    IdempotencyEngine, IdentitySecret, MemoryStore, Rejected, SharedStore, idempotent,
};

use super::{Failure, Runs};

struct Till {
    engine: IdempotencyEngine,
    runs: Runs,
}

impl AsRef<IdempotencyEngine> for Till {
    fn as_ref(&self) -> &IdempotencyEngine {
        &self.engine
    }
}

struct Order {
    id: u64,
    customer: String,
}

impl Till {
    /// The method moves the order, whose customer is the subject.
    #[idempotent(key = order.id, subject = order.customer, scope = "charge")]
    async fn charge(&self, order: Order) -> Result<String, Failure> {
        let Order { id, customer } = order;
        Ok(format!("{customer} {id} {}", self.runs.next()))
    }

    #[idempotent(key = id, scope = "charge")]
    async fn unnamed(&self, id: u64) -> Result<String, Failure> {
        Ok(format!("{id} {}", self.runs.next()))
    }
}

#[tokio::test]
async fn ann_1_seal_3_the_subject_is_an_expression_over_the_parameters() {
    let secret = IdentitySecret::new("s".repeat(32)).unwrap();
    let memory = MemoryStore::builder().identity_secret(secret.clone()).build();
    let master = MasterKeys::parse(&format!("one:{}", "0f".repeat(32))).unwrap();
    let seals = Seals::new(MemoryKeyTable::new(), master);
    let store = SharedStore::from(memory).sealed_by(Arc::new(seals.clone())).unwrap();
    let till = Till { engine: IdempotencyEngine::new(store), runs: Runs::default() };
    let charge = |id, customer: &str| till.charge(Order { id, customer: customer.to_owned() });
    for _ in 0..2 {
        assert_eq!(charge(1, "ada").await.unwrap(), "ada 1 1");
        assert_eq!(charge(2, "bob").await.unwrap(), "bob 2 2");
        assert_eq!(till.unnamed(3).await.unwrap(), "3 3");
    }
    seals.destroy(&DataSubject::named(&secret, "ada")).await.unwrap();
    let gone = charge(1, "ada").await;
    assert!(matches!(gone, Err(Failure::Rejected(Rejected::NotReplayable))), "{gone:?}");
    assert_eq!(charge(2, "bob").await.unwrap(), "bob 2 2");
    assert_eq!(till.unnamed(3).await.unwrap(), "3 3");
    assert_eq!(till.runs.count(), 3, "nothing runs twice");
}
