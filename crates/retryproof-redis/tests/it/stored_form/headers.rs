// SPDX-License-Identifier: MIT OR Apache-2.0
//! Header fields: takeovers (ACQ-12), the token as a time, kept records (REC-3), hostile bytes
//! (CMP-8).

use std::time::Duration;

use retryproof_core::store::{Completion, FencedWrite, Inspect, Peeked};
use retryproof_core::{ErrorKind, FencingToken, IdempotencyStore, OwnerId};

use super::{Place, completed, granted, header, noted, stored};
use crate::support::{CANARY, DAY, LONG, body, completion, id, is, note};

#[tokio::test]
async fn acq_12_takeovers_are_counted() {
    let mut place = Place::new().await;
    let id = id("k");
    let mut owner = OwnerId::new();
    assert!(!granted(&place.store, &id, &noted(owner, None)).await.took_over);
    assert!(!granted(&place.store, &id, &noted(owner, None)).await.took_over, "the same owner");
    assert_eq!(place.summary(&id).await.takeovers, Some(0));
    for count in 1..=3 {
        place.end_lease(&id).await;
        owner = OwnerId::new();
        // The same owner acquires again, once before its lease ends and once after.
        let first = granted(&place.store, &id, &noted(owner, None)).await;
        let again = granted(&place.store, &id, &noted(owner, Some(note(owner)))).await;
        place.end_lease(&id).await;
        let late = granted(&place.store, &id, &noted(owner, None)).await;
        assert!(first.took_over && again.took_over && late.took_over);
        assert_eq!((again.token, late.token), (first.token, first.token));
        assert_eq!(place.summary(&id).await.takeovers, Some(count));
    }
    // The count stops at 32,767, and a completion keeps it.
    for (stored, count) in [(255_u16, 256), (32_766, 32_767), (32_767, 32_767)] {
        let mut record = place.read(&id).await;
        record[36..38].copy_from_slice(&stored.to_be_bytes());
        place.write(&id, &record, DAY).await;
        assert_eq!(place.summary(&id).await.takeovers, Some(stored));
        owner = OwnerId::new();
        assert!(granted(&place.store, &id, &noted(owner, Some(note(owner)))).await.took_over);
        let summary = place.summary(&id).await;
        assert_eq!((summary.takeovers, summary.holder), (Some(count), Some(note(owner))));
    }
    let kept = Completion::new(completion("x").value, Duration::from_millis(20), None);
    completed(&place.store, &id, owner, &kept).await;
    if let Some(summary) = place.store.get(&id).await.expect("inspected") {
        assert_eq!(summary.takeovers, Some(32_767));
    }
    while !matches!(place.store.peek(&id).await, Ok(Peeked::Absent)) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // A grant of a free key starts counting again, both after the ttl and after a release.
    for _ in 0..2 {
        assert!(!granted(&place.store, &id, &noted(owner, None)).await.took_over);
        assert_eq!(place.summary(&id).await.takeovers, Some(0));
        place.end_lease(&id).await;
        owner = OwnerId::new();
        assert!(granted(&place.store, &id, &noted(owner, None)).await.took_over);
        assert_eq!(place.summary(&id).await.takeovers, Some(1));
        assert_eq!(place.store.release(&id, owner).await.expect("released"), FencedWrite::Applied);
    }
}

#[tokio::test]
async fn rec_2_inspection_shows_the_age_of_the_grant() {
    let mut place = Place::new().await;
    let (id, owner) = (id("k"), OwnerId::new());
    granted(&place.store, &id, &noted(owner, None)).await;
    let age = place.summary(&id).await.granted_ago.expect("an age");
    assert!(age < LONG, "{age:?}");
    let mut record = place.read(&id).await;
    let token: u64 =
        std::str::from_utf8(&record[20..36]).expect("digits").parse().expect("a token");
    record[20..36].copy_from_slice(format!("{:016}", token - 3_600_000_000).as_bytes());
    place.write(&id, &record, DAY + LONG).await;
    let hour = Duration::from_secs(3_600);
    let age = place.summary(&id).await.granted_ago.expect("an age");
    assert!(age > hour && age < hour + LONG, "{age:?}");
    completed(&place.store, &id, owner, &completion("x")).await;
    assert!(place.summary(&id).await.granted_ago.expect("an age") > hour);
    // The token is from a clock that was ahead, so the age would be negative.
    record[20..36].copy_from_slice(b"9000000000000000");
    place.write(&id, &record, DAY + LONG).await;
    assert_eq!(place.summary(&id).await.granted_ago, Some(Duration::ZERO));
}

#[tokio::test]
async fn rec_3_a_kept_record_counts_as_absent() {
    let mut place = Place::new().await;
    let owner = OwnerId::from_bytes([7; 16]);
    for (at, (length, fingerprint, rest)) in [
        ([0, 0], "00", b"".to_vec()),
        ([0, 0], "03", b"abclog".to_vec()),
        ([0, 17], "00", [note(owner).as_bytes(), b"log"].concat()),
        ([0, 0], "00", vec![0xff; 100_000]),
    ]
    .into_iter()
    .enumerate()
    {
        let id = id(&format!("k{at}"));
        let kept = header(b'K', &length, fingerprint, &rest);
        place.write(&id, &kept, DAY).await;
        assert!(matches!(place.store.peek(&id).await, Ok(Peeked::Absent)));
        assert!(place.store.get(&id).await.expect("inspected").is_none());
        assert_eq!(
            place.store.stats().await.expect("counted").records,
            u64::try_from(at).expect("few")
        );
        let changed = place.store.wait_for_change(&id, FencingToken::new(42), LONG);
        tokio::time::timeout(LONG / 2, changed).await.expect("at once").expect("waited");
        for (fenced, answer) in [
            (place.store.extend(&id, owner, LONG).await, FencedWrite::NotOwner),
            (place.store.complete(&id, owner, &completion("x")).await, FencedWrite::NotOwner),
            (place.store.release(&id, owner).await, FencedWrite::AlreadyApplied),
        ] {
            assert_eq!(fenced.expect("answered"), answer);
        }
        assert_eq!(place.read(&id).await, kept, "nothing has changed");

        // Even the owner in the kept record gets a new grant with a new token.
        let request = noted(owner, Some(note(owner)));
        let grant = granted(&place.store, &id, &request).await;
        assert!(!grant.took_over && grant.token > FencingToken::new(42), "{grant:?}");
        let mut fresh = header(b'P', &[0, 17], "00", note(owner).as_bytes());
        fresh[20..38].copy_from_slice(format!("{:016}\0\0", grant.token.get()).as_bytes());
        assert_eq!(place.read(&id).await, fresh, "the log is gone");
        completed(&place.store, &id, owner, &completion("result")).await;
        assert_eq!(body(&stored(&place.fresh, &id).await), "result");
    }
    // If the stored token is ahead of the clock, the next token is still greater.
    let id = id("ahead");
    let mut kept = header(b'K', &[0, 0], "00", b"log");
    kept[20..36].copy_from_slice(b"9000000000000000");
    place.write(&id, &kept, DAY).await;
    let grant = granted(&place.store, &id, &noted(owner, None)).await;
    assert_eq!((grant.token.get(), grant.took_over), (9_000_000_000_000_001, false));
}

/// No call changes a record with a field that cannot be read. An extend, a completion and a release
/// compare only the owner, so they may answer that the caller is not the owner, instead of
/// reporting the damage.
#[tokio::test]
async fn cmp_8_hostile_bytes_in_a_header_fail_closed_and_stay() {
    let mut place = Place::new().await;
    let good = |state| header(state, &[0, 0], "03", b"abc");
    let fields: [(&str, usize, &[&[u8]]); 7] = [
        ("magic", 0, &[b"rp1", b"rp3", b"RP2", b"\0\0\0"]),
        ("state", 3, &[b"T", b"X", b"p", b"\0", b"\xff"]),
        ("token", 20, &[b"x", b"-", b" ", b"\0", b"0x00000000000042", b"000000000000004e"]),
        ("takeovers", 36, &[&[0x80, 0], &[0xff, 0xff]]),
        ("note length", 38, &[&[0, 1], &[0, 65], &[0x80, 0], &[0xff, 0xff]]),
        ("grace", 40, &[b"x", b"-", b" ", b"\0", b"0x00000000042", b"00000000001e3"]),
        ("fingerprint length", 53, &[b"04", b"64", b"65", b"99", b"x0", b"0x", b"-1", b"\0\0"]),
    ];
    for state in *b"PRKC" {
        for (field, at, values) in fields {
            for value in values {
                let mut record = good(state);
                record[at..at + value.len()].copy_from_slice(value);
                let what = format!("{field} {value:?} in {}", char::from(state));
                stays_unreadable(&mut place, &what, &record).await;
            }
        }
        let fingerprint_of_65_bytes = header(state, &[0, 0], "65", &[b'a'; 65]);
        stays_unreadable(&mut place, "fingerprint of 65 bytes", &fingerprint_of_65_bytes).await;
        for cut in [1, 3, 4, 20, 36, 38, 40, 53, 54] {
            stays_unreadable(&mut place, &format!("{cut} bytes"), &good(state)[..cut]).await;
        }
    }
}

async fn stays_unreadable(place: &mut Place, what: &str, record: &[u8]) {
    let (id, stranger) = (id(CANARY), OwnerId::new());
    let in_progress = record.get(3) == Some(&b'P');
    // A record in progress is tested twice: first its lease still runs, then its lease has ended.
    // The remaining lease is the key's remaining time minus a grace of a day.
    for lives in [DAY + LONG, DAY - LONG].into_iter().take(1 + usize::from(in_progress)) {
        place.write(&id, record, lives).await;
        let acquired = place.store.acquire(&id, &noted(stranger, None)).await;
        is(&acquired.map(drop).expect_err(what), ErrorKind::Corrupt, "by hand");
        let peeked = place.store.peek(&id).await;
        is(&peeked.map(drop).expect_err(what), ErrorKind::Corrupt, "by hand");
        for fenced in [
            place.store.extend(&id, stranger, LONG).await,
            place.store.complete(&id, stranger, &completion(CANARY)).await,
            place.store.release(&id, stranger).await,
        ] {
            match fenced {
                Ok(answer) => assert_ne!(answer, FencedWrite::Applied, "{what}"),
                Err(error) => is(&error, ErrorKind::Corrupt, "by hand"),
            }
        }
        // `get` and `wait_for_change` do not read to the end of the record, so they may not notice
        // a wrong length.
        for error in [
            place.store.get(&id).await.map(drop).err(),
            place.store.wait_for_change(&id, FencingToken::new(1), LONG).await.err(),
        ] {
            match error {
                Some(error) => is(&error, ErrorKind::Corrupt, "by hand"),
                None => assert!(what.contains("length"), "{what}"),
            }
        }
        assert_eq!(place.read(&id).await, record, "{what}");
    }
}
