// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store with an audit table keeps each entry of an operator, and returns the entries newest
//! first.

use retryproof_core::store::{AuditEntry, ScanCursor, SharedStore};
use retryproof_core::{ErrorKind, FencingToken, Identity, IdentitySecret};

use super::caller::MS;
use super::need::Need;
use crate::subject::{StoreSetup, Subject};

/// How many entries the case about pages writes.
const ENTRIES: usize = 7;

impl Subject {
    /// Returns an entry that only this subject writes.
    fn entry(&self, reason: &str) -> AuditEntry {
        AuditEntry::new("release", self.store_name("operator"), reason)
    }
}

async fn append(store: &SharedStore, entry: &AuditEntry) {
    let appended = store.append_audit(entry).await.expect("the entry should be appended");
    assert!(appended, "the store should keep an audit table");
}

/// Reads the entries of this operator page by page, and runs `between` after the first page.
/// Returns the entries and the number of pages.
async fn entries_of(
    store: &SharedStore,
    operator: &str,
    limit: usize,
    between: Option<&AuditEntry>,
) -> (Vec<AuditEntry>, usize) {
    let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = store.audit_entries(after.as_ref(), limit).await;
        let page = page.expect("the entries should be readable");
        let page = page.expect("the store should keep an audit table");
        assert_eq!(page.unreadable, 0);
        found.extend(page.entries.into_iter().filter(|entry| entry.operator == operator));
        pages += 1;
        if let Some(between) = between.filter(|_| pages == 1) {
            append(store, between).await;
        }
        // Rebuild the cursor from its bytes, because a later process must be able to continue.
        match page.next {
            Some(next) => after = Some(ScanCursor::new(next.as_bytes())),
            None => return (found, pages),
        }
    }
}

/// Returns all entries of this subject and their times, newest first.
async fn all(s: &Subject, store: &SharedStore) -> (Vec<AuditEntry>, Vec<u64>) {
    let (mut found, _) = entries_of(store, &s.store_name("operator"), 1_000, None).await;
    let times = found.iter_mut().map(|entry| entry.at_micros.take());
    let times = times.map(|time| time.expect("an entry should have its time")).collect();
    (found, times)
}

/// Entries about a record and about the whole store come back as they were appended, newest first,
/// each with the time of the store's clock.
pub async fn ops_10_entries_come_back_newest_first(s: &Subject) {
    let requested = s.entry("a test").with_record(s.id("k"), FencingToken::new(7));
    let applied = requested.clone().with_outcome("applied");
    let unseen = s.entry("no token").with_record(s.id("k"), FencingToken::new(0));
    let whole = s.entry("about the whole store");
    for entry in [&requested, &applied] {
        append(s.store(), entry).await;
    }
    s.pass(20 * MS).await;
    for entry in [&unseen, &whole] {
        append(s.store(), entry).await;
    }
    let (found, times) = all(s, s.store()).await;
    assert_eq!(found, [whole, unseen, applied, requested]);
    let later = times[1].saturating_sub(times[2]);
    assert!(later >= 10_000, "20 ms passed between the second and the third entry, not {later} µs");
    assert!(
        times.windows(2).all(|pair| pair[0] >= pair[1]),
        "the newest entry should come first, but the times are {times:?}"
    );
}

/// Pages of any size return every entry once, even if entries are appended between two pages.
pub async fn ops_10_pages_lead_through_all_entries(s: &Subject) {
    let operator = s.store_name("operator");
    for at in 0..ENTRIES {
        append(s.store(), &s.entry(&format!("{at}"))).await;
    }
    let expected: Vec<_> = (0..ENTRIES).rev().map(|at| format!("{at}")).collect();
    for limit in [0, 1, 3, usize::MAX] {
        let new = s.entry("meanwhile");
        let (found, pages) = entries_of(s.store(), &operator, limit, Some(&new)).await;
        let found: Vec<_> = found.into_iter().map(|entry| entry.reason).collect();
        let found: Vec<_> = found.into_iter().filter(|reason| reason != "meanwhile").collect();
        assert_eq!(
            found, expected,
            "pages of {limit} entries should return every entry once, the newest first"
        );
        assert!(
            limit > 3 || pages >= ENTRIES / limit.max(1),
            "{ENTRIES} entries in pages of at most {limit} came in only {pages} pages"
        );
    }
    let foreign = ScanCursor::new(*b"of another store");
    let error = s.store().audit_entries(Some(&foreign), 1).await.expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// The longest texts and identities, and odd texts, are kept byte for byte.
pub async fn ops_10_the_longest_texts_are_kept(s: &Subject) {
    let operator = s.store_name("operator");
    let odd = "'; DROP TABLE x; -- \" ` \\ $1 ? {} é ☃ 🦀\n\t";
    let longest = |text: &str, bytes: usize| {
        let text = text.repeat(bytes / text.len());
        format!("{text}{}", "x".repeat(bytes - text.len()))
    };
    let scope = longest("é", 255 - s.id("k").scope().as_str().len());
    let id = s.identity(&scope, &longest("🦀", 512));
    let verb = longest("☃", AuditEntry::MAX_WORD_BYTES);
    let reason = longest("🦀", AuditEntry::MAX_REASON_BYTES);
    let token = FencingToken::new(i64::MAX.unsigned_abs());
    let entries = [
        AuditEntry::new(&verb, &operator, reason).with_record(id, token).with_outcome(&verb),
        AuditEntry::new(odd, &operator, odd).with_record(s.id("'; -- $1 ?"), token),
    ];
    for entry in &entries {
        append(s.store(), entry).await;
    }
    let (found, _) = all(s, s.store()).await;
    assert_eq!(found, [entries[1].clone(), entries[0].clone()]);
    let name = longest("é", AuditEntry::MAX_OPERATOR_BYTES);
    append(s.store(), &AuditEntry::new("release", &name, &operator)).await;
    let (found, _) = entries_of(s.store(), &name, 1_000, None).await;
    assert!(
        found.iter().any(|entry| entry.reason == operator),
        "the entry should be found: {found:?}"
    );
}

/// Another process sees the entries, and a purge deletes none.
pub async fn ops_10_a_purge_and_another_handle_keep_entries(s: &Subject) {
    let entry = s.entry("kept");
    append(s.store(), &entry).await;
    if s.offers(Need::Purge) {
        s.purge_all().await;
    }
    let expected = [entry];
    assert_eq!(all(s, s.store()).await.0, expected);
    if let Some(another) = s.another().await.filter(SharedStore::can_audit) {
        assert_eq!(all(s, &another).await.0, expected);
    }
}

/// In a store with hashed identities, an entry has the digest in place of the key. The returned
/// identity leads to the same record as the key.
pub async fn ops_10_an_audited_store_with_hashed_identities_keeps_no_key(s: &Subject) {
    let secret = IdentitySecret::new("a".repeat(32)).expect("32 bytes are enough");
    let setup = StoreSetup { name: s.store_name("a"), secret: Some(secret), migrates: true };
    let store = s.opened(setup).await.expect("the store under test should offer hashed identities");
    let store = store.expect("the store should be set up");
    assert!(store.can_audit(), "a store with hashed identities should have an audit table, too");
    let (id, token) = (s.id("canary-4711"), FencingToken::new(1));
    append(&store, &s.entry("hashed").with_record(id.clone(), token)).await;
    let (found, _) = all(s, &store).await;
    let [AuditEntry { record: Some((kept, _)), .. }] = &found[..] else {
        panic!("one entry about a record should be found: {found:?}")
    };
    assert!(IdentitySecret::is_digest(kept.key().expose()), "the key should be a digest");
    assert_eq!(kept.to_string(), store.identify(id).to_string());
    // The returned identity is already hashed. An entry with this identity must be stored under the
    // same digest and not be hashed again.
    append(&store, &s.entry("again").with_record(kept.clone(), token)).await;
    let again = all(s, &store).await.0.swap_remove(0);
    assert_eq!(
        again.record.as_ref().map(|(id, _)| Identity::to_string(id)),
        Some(kept.to_string())
    );
    assert_eq!(again.record.as_ref().map(|(id, _)| id), Some(kept));
}
