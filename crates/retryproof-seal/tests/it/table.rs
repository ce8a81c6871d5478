// SPDX-License-Identifier: MIT OR Apache-2.0
//! SEAL-3: every table of keys behaves alike.

use retryproof_core::seal::DataSubject;
use retryproof_seal::{KeyId, KeyRow, KeyTable, MemoryKeyTable, WrappedKey};

use crate::secret;

pub(crate) fn wrapped(master: &str, byte: u8) -> WrappedKey {
    WrappedKey { master: master.to_owned(), bytes: vec![byte; 60] }
}

fn row(subject: &DataSubject, id: u8) -> KeyRow {
    let wrapped = Some(wrapped("one", id));
    KeyRow { id: KeyId([id; 16]), subject: *subject.digest(), wrapped }
}

/// Checks that a table of keys keeps its promises.
pub(crate) async fn judged(table: &dyn KeyTable) {
    let names: Vec<_> = (0..5).map(|n| DataSubject::named(&secret(), &n.to_string())).collect();
    assert_eq!(table.of_subject(&names[0]).await.unwrap(), None);
    assert_eq!(table.destroy(&names[0]).await.unwrap(), None);
    assert_eq!(table.by_id(KeyId([0; 16])).await.unwrap(), None);
    for (at, name) in names.iter().enumerate() {
        let row = row(name, u8::try_from(at).unwrap());
        assert_eq!(table.add(row.clone()).await.unwrap(), row);
        assert_eq!(table.of_subject(name).await.unwrap().as_ref(), Some(&row));
        assert_eq!(table.by_id(row.id).await.unwrap(), Some(row));
    }
    // If a subject already has a row, `add` keeps that row.
    let late = table.add(row(&names[0], 9)).await.unwrap();
    assert_eq!(late, row(&names[0], 0));
    assert_eq!(table.by_id(KeyId([9; 16])).await.unwrap(), None);

    // A destroyed row cannot be replaced or added again.
    assert_eq!(table.destroy(&names[1]).await.unwrap(), Some(row(&names[1], 1)));
    let gone = KeyRow { wrapped: None, ..row(&names[1], 1) };
    assert_eq!(table.destroy(&names[1]).await.unwrap().as_ref(), Some(&gone));
    assert!(!table.replace(gone.id, &wrapped("one", 1), &wrapped("two", 1)).await.unwrap());
    assert_eq!(table.add(row(&names[1], 8)).await.unwrap(), gone);
    assert_eq!(table.by_id(gone.id).await.unwrap().as_ref(), Some(&gone));

    // A rotation lists the rows that are not under the new master key, and replaces each of them.
    let ids = async |master: &str, after: Option<u8>, limit| {
        let after = after.map(|id| KeyId([id; 16]));
        let rows = table.not_under(master, after, limit).await.unwrap();
        rows.into_iter().map(|row| row.id.0[0]).collect::<Vec<_>>()
    };
    assert!(ids("one", None, 9).await.is_empty());
    assert_eq!(ids("two", None, 2).await, [0, 2]);
    assert_eq!(ids("two", Some(2), 9).await, [3, 4]);
    let (id, old, new) = (KeyId([2; 16]), wrapped("one", 2), wrapped("two", 7));
    assert!(!table.replace(id, &wrapped("one", 3), &new).await.unwrap());
    assert!(table.replace(id, &old, &new).await.unwrap());
    assert!(!table.replace(id, &old, &new).await.unwrap());
    assert_eq!(table.by_id(id).await.unwrap().unwrap().wrapped, Some(new));
    assert_eq!(ids("two", None, 9).await, [0, 3, 4]);
}

#[tokio::test]
async fn seal_3_a_table_in_memory_keeps_its_promises() {
    judged(&MemoryKeyTable::new()).await;
}
