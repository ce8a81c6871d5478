// SPDX-License-Identifier: MIT OR Apache-2.0
//! SEAL-3, SEAL-4: the table of keys in a SQLite file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use retryproof_core::ErrorKind;
use retryproof_core::seal::{DataSubject, Sealer as _};
use retryproof_seal::{Destruction, KeyTable as _, Seals, SqliteKeyTable};
use retryproof_testkit::folder::Folder;

use crate::{ada, call, engine, is_replayed, is_tombstone, master, secret, store, table};

fn file() -> (Folder, PathBuf) {
    let folder = Folder::new("seal").unwrap();
    let path = folder.path().join("keys.db");
    (folder, path)
}

#[tokio::test]
async fn seal_3_a_table_in_a_file_keeps_its_promises() {
    let (_folder, path) = file();
    SqliteKeyTable::migrate(&path).unwrap();
    table::judged(&SqliteKeyTable::open(&path).unwrap()).await;
    SqliteKeyTable::migrate(&path).unwrap();
    let rows = SqliteKeyTable::open(&path).unwrap().not_under("", None, 9).await.unwrap();
    assert_eq!(rows.len(), 4, "a repeated migration changes nothing");
}

#[tokio::test]
async fn seal_3_a_missing_table_is_not_created_by_opening_it() {
    let (folder, path) = file();
    let missing = SqliteKeyTable::open(&path).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Schema, "{missing}");
    assert!(!path.exists());
    std::fs::write(&path, b"").unwrap();
    assert_eq!(SqliteKeyTable::open(&path).unwrap_err().kind(), ErrorKind::Schema);
    let other = folder.path().join("other");
    std::fs::write(&other, [0x41; 4096]).unwrap();
    let foreign = SqliteKeyTable::open(&other).unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::Corrupt, "{foreign}");
}

/// Two processes use a new subject at the same time: both seal with the same key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seal_3_two_processes_create_one_key() {
    let (_folder, path) = file();
    SqliteKeyTable::migrate(&path).unwrap();
    let store = store();
    let seals = [0, 1].map(|_| {
        Seals::caching(SqliteKeyTable::open(&path).unwrap(), master(&["one"]), Duration::ZERO)
    });
    for round in 0..20 {
        let subject = format!("subject {round}");
        let calls = seals.each_ref().map(|seals| {
            let (engine, subject) = (engine(&store, seals), subject.clone());
            let key = format!("{subject} {:p}", seals);
            tokio::spawn(async move {
                assert!(call(&engine, &subject, &key).await.unwrap().is_executed());
                key
            })
        });
        for (running, other) in calls.into_iter().zip([1, 0]) {
            let key = running.await.unwrap();
            let replayed = call(&engine(&store, &seals[other]), &subject, &key).await;
            assert!(is_replayed(&replayed, &subject, &key), "{replayed:?}");
        }
    }
    let rows = SqliteKeyTable::open(&path).unwrap().not_under("", None, 100).await.unwrap();
    assert_eq!(rows.len(), 20);
}

/// After a key is destroyed, no file in the folder contains its wrapped form, and none ever contains
/// the name of a subject.
#[tokio::test]
async fn seal_4_a_destroyed_key_is_in_no_file() {
    let (folder, path) = file();
    SqliteKeyTable::migrate(&path).unwrap();
    let (keys, store) = (SqliteKeyTable::open(&path).unwrap(), store());
    let seals = Seals::new(keys.clone(), master(&["one"]));
    let engine = engine(&store, &seals);
    for subject in ["ada", "canary-bob"] {
        assert!(call(&engine, subject, subject).await.unwrap().is_executed());
    }
    let found = |bytes: &[u8]| {
        let files = std::fs::read_dir(folder.path()).unwrap();
        files
            .map(|file| std::fs::read(file.unwrap().path()).unwrap())
            .any(|file| file.windows(bytes.len()).any(|part| part == bytes))
    };
    let wrapped = keys.of_subject(&ada()).await.unwrap().unwrap().wrapped.unwrap().bytes;
    // Search for parts of the wrapped key too, because new data may overwrite only a part of it.
    let found_part = || wrapped.chunks(12).any(found);
    assert!(found(&wrapped), "the search works");
    assert_eq!(seals.destroy(&ada()).await.unwrap(), Destruction::Destroyed);
    assert!(!found_part() && !found(b"canary"));
    assert!(is_tombstone(&call(&engine, "ada", "ada").await));
    assert!(is_replayed(
        &call(&engine, "canary-bob", "canary-bob").await,
        "canary-bob",
        "canary-bob"
    ));
    assert!(found(DataSubject::named(&secret(), "canary-bob").digest()));
}

/// The time in which the table's other connections reach the lock that the test holds.
const REACHED: Duration = Duration::from_millis(200);

/// Of two processes that destroy a key at the same time, one destroys it, and the other finds it
/// destroyed.
#[tokio::test]
async fn seal_4_of_two_processes_one_destroys() {
    let (_folder, path) = file();
    SqliteKeyTable::migrate(&path).unwrap();
    let seals = [0, 1].map(|_| Seals::new(SqliteKeyTable::open(&path).unwrap(), master(&["one"])));
    seals[0].key_for(&ada()).await.unwrap();
    let lock = rusqlite::Connection::open(&path).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let both = seals.map(|seals| tokio::spawn(async move { seals.destroy(&ada()).await.unwrap() }));
    tokio::time::sleep(REACHED).await;
    lock.execute_batch("COMMIT").unwrap();
    let [one, two] = both;
    let mut found = [one.await.unwrap(), two.await.unwrap()];
    found.sort_by_key(|found| *found != Destruction::Destroyed);
    assert_eq!(found, [Destruction::Destroyed, Destruction::Already]);
}

/// A key that another process creates during a `destroy` is either destroyed or left unchanged, and
/// the result says which.
#[tokio::test]
async fn seal_4_a_destruction_beside_the_creation_tells_the_truth() {
    let (_folder, path) = file();
    SqliteKeyTable::migrate(&path).unwrap();
    let table = SqliteKeyTable::open(&path).unwrap();
    let creating = rusqlite::Connection::open(&path).unwrap();
    creating.execute_batch("BEGIN IMMEDIATE").unwrap();
    let row = "INSERT INTO retryproof_keys(id, subject, master, wrapped, created_at) \
               VALUES(randomblob(16), ?1, 'one', randomblob(60), 0)";
    creating.execute(row, [ada().digest()]).unwrap();
    let destroying = tokio::spawn({
        let table = table.clone();
        async move { table.destroy(&ada()).await.unwrap() }
    });
    tokio::time::sleep(REACHED).await;
    creating.execute_batch("COMMIT").unwrap();
    let found = destroying.await.unwrap().and_then(|row| row.wrapped);
    let left = table.of_subject(&ada()).await.unwrap().unwrap().wrapped;
    assert_ne!(found.is_some(), left.is_some(), "found {found:?}, left {left:?}");
}

/// SQLite moves rows when a page gets full, and now and then it leaves a copy of a row in the
/// unused part of a page. The test creates tables until one contains such a copy.
#[tokio::test]
async fn seal_4_no_copy_of_a_moved_key_is_left() {
    let (_folder, path) = file();
    let (subject, wrapped) = (0..500).find_map(|_| copied(&path)).expect("a row with a copy");
    let table = SqliteKeyTable::open(&path).unwrap();
    let before = table.destroy(&subject).await.unwrap().unwrap().wrapped.unwrap();
    assert_eq!(before.bytes, wrapped);
    let bytes = std::fs::read(&path).unwrap();
    let is_left = |part: &[u8]| bytes.windows(PART).any(|found| found == part);
    assert!(!wrapped.chunks_exact(PART).any(is_left), "a copy is left");
}

/// The length in bytes of the parts of a wrapped key by which the tests find a copy. They do not
/// look for the whole key, because new data may have overwritten a part of the copy.
const PART: usize = 12;

/// Creates a table of 1,000 rows, and rotates it to a master key with a longer id, so that rows
/// move. Returns the subject and the wrapped key of a row whose copy is in the file.
fn copied(path: &Path) -> Option<(DataSubject, Vec<u8>)> {
    let _ = std::fs::remove_file(path);
    SqliteKeyTable::migrate(path).unwrap();
    let mut conn = rusqlite::Connection::open(path).unwrap();
    // Use the settings of the table's own connections.
    conn.execute_batch("PRAGMA secure_delete=ON").unwrap();
    let tx = conn.transaction().unwrap();
    let subjects: Vec<_> =
        (0..1_000).map(|at| DataSubject::named(&secret(), &format!("subject {at}"))).collect();
    for subject in &subjects {
        let row = "INSERT INTO retryproof_keys(id, subject, master, wrapped, created_at) \
                   VALUES(randomblob(16), ?1, 'one', randomblob(60), 0)";
        tx.prepare_cached(row).unwrap().execute([subject.digest()]).unwrap();
    }
    let rotate = "UPDATE retryproof_keys SET master='another-master-key-2026', \
                  wrapped=randomblob(60)";
    tx.execute(rotate, []).unwrap();
    let mut parts = HashMap::new();
    for subject in &subjects {
        let find = "SELECT wrapped FROM retryproof_keys WHERE subject=?1";
        let wrapped: Vec<u8> = tx.query_row(find, [subject.digest()], |row| row.get(0)).unwrap();
        for part in wrapped.chunks_exact(PART) {
            parts.insert(part.to_vec(), (0, *subject, wrapped.clone()));
        }
    }
    tx.commit().unwrap();
    for found in std::fs::read(path).unwrap().windows(PART) {
        if let Some((times, subject, wrapped)) = parts.get_mut(found) {
            *times += 1;
            if *times == 2 {
                return Some((*subject, wrapped.clone()));
            }
        }
    }
    None
}
