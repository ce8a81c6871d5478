// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests imports into a store in memory.

use retryproof::{
    CodecId, Fingerprint, IdempotencyContext, IdempotencyEngine, MemoryStore, Opened, Payload,
    StoredResult,
};
use retryproof_testkit::{Fault, FaultStore, Faults, Operation};
use serde_json::Value;

use super::*;
use crate::verbs::export::{ExportCounts, records};
use crate::verbs::scan::Scan;

fn store() -> SharedStore {
    SharedStore::builder(MemoryStore::new()).with_inspect().build()
}

async fn exported(store: &SharedStore) -> Vec<u8> {
    let (mut lines, mut counts) = (Vec::new(), ExportCounts::default());
    let mut scan = Scan::new(store, None);
    let write = |bytes: &[u8]| {
        lines.extend_from_slice(bytes);
        Ok(true)
    };
    assert!(records(store, &mut scan, None, &mut counts, write).await.unwrap());
    lines
}

async fn imported(store: &SharedStore, text: &[u8]) -> ImportCounts {
    let mut counts = ImportCounts::default();
    let source = io::Cursor::new(text.to_vec());
    all(store, lines(source), &Interrupt::new(), &mut counts).await.unwrap();
    counts
}

fn context(key: &str, sent: &str) -> IdempotencyContext {
    let sent = Fingerprint::of(sent).unwrap();
    IdempotencyContext::builder("pay", key).fingerprint(sent).build().unwrap()
}

async fn stored(store: &SharedStore, key: &str) -> StoredResult {
    let id = Identity::of("pay", key).unwrap();
    match store.peek(&id).await.unwrap() {
        retryproof::store::Peeked::Complete(stored) => stored,
        other => panic!("expected a result, got {other:?}"),
    }
}

#[tokio::test]
async fn ops_7_an_imported_record_replays_the_same_bytes() {
    let (old, new) = (store(), store());
    let engine = IdempotencyEngine::new(old.clone());
    let value = || async { Ok::<_, io::Error>("receipt".to_owned()) };
    let _ = engine.execute(context("k", "300 EUR"), value).await.unwrap();
    let text = exported(&old).await;

    let counts = imported(&new, &text).await;
    assert_eq!(counts, ImportCounts { created: 1, ..ImportCounts::default() });
    let again = imported(&new, &text).await;
    assert_eq!(again, ImportCounts { existing: 1, ..ImportCounts::default() });
    let bytes = |stored: StoredResult| match stored.open(None).unwrap() {
        Opened::Value(payload) => payload.into_envelope(),
        other => panic!("expected a value, got {other:?}"),
    };
    assert_eq!(bytes(stored(&old, "k").await), bytes(stored(&new, "k").await));

    let engine = IdempotencyEngine::new(new);
    let fails = || async { Err::<String, _>(io::Error::other("must not run")) };
    let replay = engine.execute(context("k", "300 EUR"), fails).await.unwrap();
    assert_eq!(replay.into_value().as_deref(), Some("receipt"));
    let other = engine.execute(context("k", "900 EUR"), fails).await;
    let refused = other.unwrap_err().to_string();
    assert!(refused.contains("a different request"), "{refused}");
}

#[tokio::test]
async fn ops_7_an_import_never_touches_a_record() {
    let (old, new) = (store(), store());
    let engine = IdempotencyEngine::new(old.clone());
    for key in ["done", "running", "dead"] {
        let value = || async { Ok::<_, io::Error>("old".to_owned()) };
        let _ = engine.execute(context(key, ""), value).await.unwrap();
    }
    let done = Completion::new(
        Payload::new(CodecId::BYTES, 0, b"new").into_envelope(),
        Duration::from_secs(60),
        None,
    );
    for (key, lease) in [("done", 60_000), ("running", 60_000), ("dead", 10)] {
        let id = Identity::of("pay", key).unwrap();
        let owner = OwnerId::new();
        let request = AcquireRequest::new(owner, Duration::from_millis(lease), done.ttl);
        assert!(matches!(new.acquire(&id, &request).await.unwrap(), Acquired::Granted(_)));
        if key == "done" {
            assert_eq!(new.complete(&id, owner, &done).await.unwrap(), FencedWrite::Applied);
        }
    }
    let dead = Identity::of("pay", "dead").unwrap();
    while new.get(&dead).await.unwrap().unwrap().remaining.is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let before = new.get(&dead).await.unwrap().unwrap().token;

    let counts = imported(&new, &exported(&old).await).await;
    assert_eq!(counts, ImportCounts { existing: 1, busy: 2, ..ImportCounts::default() });
    assert_eq!(new.get(&dead).await.unwrap().unwrap().token, before);
    let Opened::Value(kept) = stored(&new, "done").await.open(None).unwrap() else {
        panic!("expected a value");
    };
    assert_eq!(kept.body(), b"new");
}

#[tokio::test]
async fn ops_7_expired_unfinished_and_wrong_lines_are_counted() {
    let old = store();
    let engine = IdempotencyEngine::new(old.clone());
    let value = || async { Ok::<_, io::Error>(()) };
    let _ = engine.execute(context("done", ""), value).await.unwrap();
    let done = String::from_utf8(exported(&old).await).unwrap();
    let number = |line: &str, name: &str| {
        let value: Value = serde_json::from_str(line).unwrap();
        value[name].to_string()
    };
    let expires_at = number(&done, "expires_at_ms");
    let text = [
        done.replace(&expires_at, "1000"),
        "\n".to_owned(),
        done.replace("\"complete\"", "\"in_progress\""),
        done.replace("_record\":1", "_record\":2"),
        done.replace(&expires_at, &u64::MAX.to_string()),
        "nonsense\n".to_owned(),
        done.clone(),
        // The last line has no newline.
        done.trim_end().to_owned(),
    ];
    let counts = imported(&store(), text.concat().as_bytes()).await;
    let expected = ImportCounts {
        created: 1,
        existing: 1,
        expired: 1,
        unfinished: 1,
        refused: 3,
        ..Default::default()
    };
    assert_eq!(counts, expected);
}

#[tokio::test]
async fn ops_7_a_lost_answer_is_repeated_and_an_outage_names_its_line() {
    let old = store();
    let engine = IdempotencyEngine::new(old.clone());
    let value = || async { Ok::<_, io::Error>(()) };
    let _ = engine.execute(context("k", ""), value).await.unwrap();
    let text = exported(&old).await;
    for operation in [Operation::Acquire, Operation::Complete] {
        for fault in [Fault::Refused, Fault::AnswerLost] {
            let faults = Faults::none();
            let faulty = FaultStore::new(MemoryStore::new(), faults.clone());
            let new = SharedStore::builder(faulty).with_inspect().build();
            faults.fail_next(operation, 1, fault);
            let counts = imported(&new, &text).await;
            let created = ImportCounts { created: 1, ..ImportCounts::default() };
            assert_eq!((counts, faults.injected()), (created, 1), "{operation:?} {fault:?}");
        }
    }

    let faults = Faults::none();
    let faulty = FaultStore::new(MemoryStore::new(), faults.clone());
    let new = SharedStore::builder(faulty).with_inspect().build();
    faults.fail_next(Operation::Acquire, 2, Fault::Refused);
    let mut counts = ImportCounts::default();
    let source = io::Cursor::new([b"nonsense\n".to_vec(), text].concat());
    let error = all(&new, lines(source), &Interrupt::new(), &mut counts).await.unwrap_err();
    assert!(error.code == 3 && error.to_string().starts_with("line 2: "), "{error}");
    assert_eq!(counts, ImportCounts { refused: 1, ..ImportCounts::default() });
}

#[tokio::test]
async fn ops_7_ctrl_c_ends_an_import_between_two_batches() {
    let interrupt = Interrupt::new();
    interrupt.send();
    let source = io::Cursor::new(b"nonsense".to_vec());
    let mut counts = ImportCounts::default();
    let error = all(&store(), lines(source), &interrupt, &mut counts).await.unwrap_err();
    assert_eq!((error.code, counts), (exit::INTERRUPTED, ImportCounts::default()));
}
