// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store with hashed identities keeps digests instead of keys, and refuses any other secret.

use retryproof_core::store::{FencedWrite, SharedStore};
use retryproof_core::{ErrorKind, IdempotencyStore as _, Identity, IdentitySecret, Result};

use super::caller::{LONG, StoreCaller, body, busy, completed, granted};
use crate::subject::{StoreSetup, Subject};

const KEY: &str = "canary-4711";

fn secret(letter: &str) -> IdentitySecret {
    IdentitySecret::new(letter.repeat(32)).expect("32 bytes are enough")
}

impl Subject {
    async fn open(
        &self,
        name: &str,
        secret: Option<&IdentitySecret>,
        migrates: bool,
    ) -> Result<SharedStore> {
        let setup = StoreSetup { name: self.store_name(name), secret: secret.cloned(), migrates };
        self.opened(setup).await.expect("the store under test should offer hashed identities")
    }
}

/// The store keeps a digest instead of the key. The key still leads to its record through every
/// handle. A scan returns an identity that leads to the same record. A client that sends the digest
/// as its key does not reach this record.
pub async fn id_5_a_hashed_store_keeps_no_key(s: &Subject) {
    let secret = secret("a");
    let early = s.open("h", Some(&secret), false).await;
    assert!(early.is_err(), "a store that was not set up for hashed identities should be refused");
    let store = s.open("h", Some(&secret), true).await.expect("the store should be set up");
    let other = s.open("h", Some(&secret), false).await.expect("another handle should open");
    assert!(store.hashes_identities(), "the profile should have the secret");

    let id = s.id(KEY);
    let (holder, elsewhere) = (StoreCaller::new(&store, &id), StoreCaller::new(&other, &id));
    let token = granted(holder.acquire(LONG).await).token;
    assert_eq!(busy(elsewhere.acquire(LONG).await).1, token);
    assert_eq!(holder.extend(LONG).await, FencedWrite::Applied);
    let waiter = {
        let (store, id) = (store.clone(), id.clone());
        tokio::spawn(async move { store.wait_for_change(&id, token, LONG).await })
    };
    assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
    waiter.await.expect("the waiter should not panic").expect("the wait should succeed");
    assert_eq!(body(&completed(elsewhere.acquire(LONG).await)), b"done");

    // A page can be empty even if more pages follow, because its step of the scan may find only
    // keys of other tests on the same server.
    let (mut records, mut after) = (Vec::new(), None);
    loop {
        let page = store.scan(after.as_ref(), 1_000).await.expect("the scan should succeed");
        let page = page.expect("a store with hashed identities should support inspection, too");
        records.extend(page.records);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let [record] = &records[..] else { panic!("one record should be found: {records:?}") };
    let digest = record.id.key().expose();
    assert!(IdentitySecret::is_digest(digest), "the key should be a digest");
    assert_eq!(record.id.scope(), id.scope());
    assert_eq!(record.id.to_string(), store.identify(id.clone()).to_string());
    let get = async |id: &Identity| store.get(id).await.expect("the inspection should succeed");
    for known in [&id, &record.id] {
        assert_eq!(get(known).await.map(|record| record.token), Some(token));
    }
    let guessed = Identity::of(id.scope(), digest).expect("a digest should be a valid key");
    assert!(get(&guessed).await.is_none(), "a digest sent as a key should not reach the record");
}

/// A store that was set up with plain identities, or with one secret, refuses to be opened or
/// migrated with any other. The refusals change nothing.
pub async fn id_5_identities_never_mix(s: &Subject) {
    let (one, two) = (secret("a"), secret("b"));
    for (name, own) in [("p", None), ("h", Some(&one))] {
        let store = s.open(name, own, true).await.expect("the store should be set up");
        let id = s.id(KEY);
        let holder = StoreCaller::new(&store, &id);
        granted(holder.acquire(LONG).await);
        assert_eq!(holder.complete(b"done").await, FencedWrite::Applied);
        for other in [None, Some(&one), Some(&two)] {
            if other.map(IdentitySecret::mark) == own.map(IdentitySecret::mark) {
                continue;
            }
            for migrates in [false, true] {
                let error = s.open(name, other, migrates).await.expect_err("a refusal");
                assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            }
        }
        let again = s.open(name, own, true).await.expect("the store should be unchanged");
        let result = completed(StoreCaller::new(&again, &id).acquire(LONG).await);
        assert_eq!(body(&result), b"done");
    }
}
