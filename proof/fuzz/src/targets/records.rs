// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stores read back: records of Redis, MySQL and SQLite (CMP-8), and notes about holders
//! (REC-2).

use std::time::Duration;

use retryproof_core::store::HolderNote;
use retryproof_core::{Error, ErrorKind, Identity, OwnerId};
use retryproof_store_kit::{Record, RecordPhase};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::kind;
use crate::error::Failure;
use crate::product::mysql::columns;
use crate::product::redis::record as redis_record;
use crate::product::sqlite::record as sqlite_record;

/// Checks the error about a record that cannot be read: its kind is "corrupt", and it shows nothing
/// of the record.
fn unreadable(error: &Error) -> u64 {
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}");
    assert!(text.len() < 400, "{text}");
    kind(text)
}

/// Returns what a caller of the store sees of a record.
fn seen(record: &Record) -> (bool, u64, u16, bool, bool, bool) {
    let phase = match &record.phase {
        RecordPhase::InProgress(left) => {
            assert!(left.is_none_or(|left| !left.is_zero()), "a lease without time left is absent");
            left.is_some()
        }
        RecordPhase::Complete(value) => {
            assert!(value.as_ref().is_none_or(|(_, left)| !left.is_zero()));
            value.is_some()
        }
        RecordPhase::Released => false,
    };
    let (fingerprint, note) = (record.fingerprint.is_some(), record.holder.is_some());
    let is_held = record.is_held_by(record.owner);
    (phase, record.token.get(), record.takeovers, fingerprint, note, is_held)
}

fn kind_of(record: &Record) -> u64 {
    let (phase, token, takeovers, fingerprint, note, is_held) = seen(record);
    kind((phase, 64 - token.leading_zeros(), takeovers > 0, fingerprint, note, is_held))
}

pub(super) fn note(input: &[u8]) -> u64 {
    let (owner, bytes) = input.split_at(input.len().min(4));
    let mut id = [0; 16];
    id[12..12 + owner.len()].copy_from_slice(owner);
    let owner = OwnerId::from_bytes(id);
    let Some(note) = HolderNote::of_owner(bytes, owner) else { return 0 };
    assert_eq!(note.as_bytes(), bytes);
    let shown = format!("{note:?}");
    assert!(!shown.is_empty());
    if let (Some(lease), false) = (note.lease(), note.is_newer()) {
        let again = HolderNote::new(owner, lease, note.trace(), note.label().unwrap_or_default());
        assert_eq!((again.lease(), again.trace()), (Some(lease), note.trace()));
        assert_eq!(again.label(), note.label());
    }
    kind((note.is_newer(), note.label().is_some(), note.trace().is_some(), note.lease().is_some()))
}

/// Checks how Redis records are read. The input is a record. If the input begins with `key `, the
/// rest is a record's key instead.
pub(super) fn redis(input: &[u8]) -> u64 {
    if let Some(key) = input.strip_prefix(b"key ") {
        let identity: Option<Identity> = redis_record::identity("rp", key);
        let is_key = identity.as_ref().map(|id| redis_record::key("rp", id));
        assert!(is_key.is_none_or(|again| again == key));
        return kind(identity.is_some());
    }
    let header = match redis_record::Header::of_record(input) {
        Ok(header) => header,
        Err(error) => return unreadable(&error),
    };
    assert_eq!(&redis_record::token_digits(header.token)[..], &input[20..36]);
    assert!((redis_record::HEADER..=input.len()).contains(&header.value_at()));
    for pttl in [i64::MIN, -2, 0, 1, 60_000, i64::MAX] {
        let left = header.remaining(pttl);
        let most = Duration::from_millis(u64::try_from(pttl).unwrap_or(0));
        assert!(left.is_none_or(|left| !left.is_zero() && left <= most));
    }
    let lease = header.live_lease(input, Duration::from_secs(1));
    let stored = match redis_record::stored_result(&header, input.to_vec()) {
        Ok(stored) => stored,
        Err(error) => return unreadable(&error),
    };
    assert_eq!(stored.fingerprint().is_some(), header.has_fingerprint());
    assert_eq!(stored.holder(), lease.holder.as_ref());
    let opened = stored.open(None);
    kind((
        std::mem::discriminant(&header.phase),
        header.takeovers > 0,
        header.has_fingerprint(),
        lease.holder.is_some(),
        opened.is_ok(),
    ))
}

/// Checks how MySQL records are read. The first byte says which columns there are and how long the
/// first one is; the columns follow.
pub(super) fn mysql(input: &[u8]) -> u64 {
    let (shape, rest) = input.split_first().unwrap_or((&0, &[]));
    let (first, value) = rest.split_at(rest.len().min(usize::from(*shape) * 2));
    let value = (!value.is_empty()).then_some(value);
    let read = |first| columns::decode(Some(first), (shape % 5 > 0).then_some(|| value));
    let record = match read(first) {
        Ok(record) => record,
        Err(error) => return unreadable(&error),
    };
    if !matches!(record.phase, RecordPhase::Released) {
        let again =
            read(&mysql_head(&record)).expect("a record that was read should be read again");
        let differs = shape % 5 > 0 && seen(&again) != seen(&record);
        assert!(!differs, "{record:?}, {again:?}");
    }
    kind_of(&record)
}

/// Returns the first column, in the form that the statements write.
fn mysql_head(record: &Record) -> Vec<u8> {
    let (state, left) = match &record.phase {
        RecordPhase::InProgress(left) => (0, *left),
        RecordPhase::Complete(value) => (1, value.as_ref().map(|(_, left)| *left)),
        RecordPhase::Released => (2, None),
    };
    let left = left.map_or(-1, |left| i64::try_from(left.as_micros()).unwrap_or(i64::MAX));
    let fingerprint = record.fingerprint.as_ref().map(|fingerprint| fingerprint.as_bytes());
    let length = fingerprint.map_or(-1, |bytes| i64::try_from(bytes.len()).unwrap_or(0));
    let (token, takeovers) = (record.token.get(), record.takeovers);
    let numbers = format!("{state},{token},{takeovers},{left},{length};");
    let note = record.holder.as_ref().map_or(&[][..], HolderNote::as_bytes);
    [record.owner.as_bytes(), numbers.as_bytes(), fingerprint.unwrap_or_default(), note].concat()
}

thread_local! {
    static TABLE: Connection = {
        let table = Connection::open_in_memory().expect("SQLite should open");
        let columns = "CREATE TABLE r (a, b, c, d, e, f, g, h); INSERT INTO r (a) VALUES (0);";
        table.execute_batch(columns).expect("the table should be created");
        table
    };
}

const WRITE: &str = "UPDATE r SET a = ?1, b = ?2, c = ?3, d = ?4, e = ?5, f = ?6, g = ?7, h = ?8";
const READ: &str = "SELECT a, b, c, d, e, f, g, h FROM r WHERE ?1 != x'' AND ?2 != x''";
const PEEK: &str = "SELECT a, b, c, d FROM r WHERE ?1 != x'' AND ?2 != x''";

/// Reads eight columns from the input; one byte gives the type and length of each.
pub(super) fn sqlite(input: &[u8]) -> u64 {
    let mut rest = input;
    let columns: Vec<Value> = (0..8).map(|_| column(&mut rest)).collect();
    let result = TABLE.with(|table| row(table, &columns));
    match result {
        Ok(Some(record)) => kind_of(&record),
        Ok(None) => panic!("the row is there"),
        Err(Failure::Store(error)) => unreadable(&error),
        Err(Failure::Driver(error)) => panic!("SQLite failed: {error}"),
    }
}

fn row(table: &Connection, columns: &[Value]) -> Result<Option<Record>, Failure> {
    table.prepare_cached(WRITE)?.execute(params_from_iter(columns))?;
    let id = Identity::of("s", "k").map_err(Failure::Store)?;
    let now = || 1_000;
    let record = sqlite_record::read_record(&mut *table.prepare_cached(READ)?, &id, now)?;
    let peeked = sqlite_record::read_record(&mut *table.prepare_cached(PEEK)?, &id, now)?;
    if let (Some(record), Some(peeked)) = (&record, &peeked) {
        assert_eq!(record.token, peeked.token);
        assert_eq!(record.owner, peeked.owner);
        assert!(peeked.holder.is_none() && peeked.fingerprint.is_none());
    }
    Ok(record)
}

fn column(rest: &mut &[u8]) -> Value {
    let Some((first, after)) = rest.split_first() else { return Value::Null };
    let mut take = |length: usize| {
        let (taken, left) = after.split_at(after.len().min(length));
        *rest = left;
        taken
    };
    let length = usize::from(first >> 3);
    match first & 7 {
        0 => {
            take(0);
            Value::Integer(i64::from(first >> 3))
        }
        1 => Value::Integer(
            take(length.min(8)).iter().fold(0, |all, byte| all << 8 | i64::from(*byte)),
        ),
        2 => Value::Integer(
            -take(length.min(7)).iter().fold(0, |all, byte| all << 8 | i64::from(*byte)),
        ),
        3 => {
            take(0);
            Value::Null
        }
        4 => Value::Text(String::from_utf8_lossy(take(length)).into_owned()),
        5 => {
            take(0);
            Value::Real(0.5)
        }
        6 => Value::Blob(take(16).to_vec()),
        _ => Value::Blob(take(length).to_vec()),
    }
}
