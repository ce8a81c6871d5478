// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long random walks through a small store, compared with a plain map.

use std::collections::HashMap;

use retryproof_core::Fingerprint;

use super::*;

/// A record of the plain map.
#[derive(Clone)]
struct Plain {
    owner: OwnerId,
    token: FencingToken,
    took_over: bool,
    expires: u64,
    purge_after: u64,
    value: Option<(Vec<u8>, Option<Fingerprint>)>,
}

#[test]
fn acq_8_a_long_random_walk_agrees_with_a_plain_map() {
    for seed in 1..=20_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = move |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let clock = ManualClock::new();
        let store = MemoryStore::builder().max_records(40).clock(Arc::new(clock.clone())).build();
        let mut plain: HashMap<Identity, Plain> = HashMap::new();
        let owners: Vec<_> = (0..4).map(|_| OwnerId::new()).collect();
        let ids: Vec<_> = (0..60).map(id).collect();
        let mut now = 0_u64;
        let mut last_token = 0;
        for step in 0..20_000 {
            let id = &ids[usize::try_from(next(60)).unwrap()];
            let owner = owners[usize::try_from(next(4)).unwrap()];
            let long = 1 + next(3_000);
            let span = Duration::from_millis(long);
            let over = |record: &Plain| record.expires <= now;
            let purgeable = |record: &Plain| record.expires <= now && record.purge_after <= now;
            let known = plain.get(id).cloned();
            match next(12) {
                0..=4 => {
                    let fingerprint = (next(2) == 0).then(|| Fingerprint::new(&[3; 33]).unwrap());
                    let req =
                        AcquireRequest::new(owner, span, 2 * span).with_fingerprint(fingerprint);
                    let answer = ready(store.acquire(id, &req));
                    let live = plain.values().filter(|record| !purgeable(record)).count();
                    match (answer, &known) {
                        (
                            Ok(Acquired::Complete(result)),
                            Some(Plain { value: Some((value, fp)), .. }),
                        ) if !over(known.as_ref().unwrap()) => {
                            assert_eq!(
                                (bytes(&result), result.fingerprint().copied()),
                                (value.clone(), *fp)
                            );
                            continue;
                        }
                        (
                            Ok(Acquired::Busy(LiveLease { remaining, token, .. })),
                            Some(record @ Plain { value: None, .. }),
                        ) if !over(record) && record.owner != owner => {
                            assert_eq!(
                                (remaining, token),
                                (Duration::from_millis(record.expires - now), record.token)
                            );
                            continue;
                        }
                        (Ok(Acquired::Granted(grant)), _) => {
                            let renewed = known.as_ref().is_some_and(|r| {
                                r.value.is_none() && r.owner == owner && r.token == grant.token
                            });
                            let took = known.as_ref().is_some_and(|r| {
                                if renewed {
                                    r.took_over
                                } else {
                                    r.value.is_none() && r.owner != owner
                                }
                            });
                            // A record that was ready for a purge might already have been purged.
                            // The grant is then not a takeover.
                            assert!(
                                grant.took_over == took || known.as_ref().is_some_and(purgeable),
                                "step {step}"
                            );
                            assert!(renewed || known.as_ref().is_none_or(over));
                            assert!(
                                renewed
                                    || grant.token.get()
                                        > known.as_ref().map_or(0, |r| r.token.get()),
                                "{last_token}"
                            );
                            last_token = last_token.max(grant.token.get());
                            let record = Plain {
                                owner,
                                token: grant.token,
                                took_over: grant.took_over,
                                expires: now + long,
                                purge_after: now + 2 * long,
                                value: None,
                            };
                            plain.insert(id.clone(), record);
                        }
                        (Err(error), known) => {
                            assert_eq!(error.kind(), ErrorKind::Full);
                            assert!(
                                live >= 40 && known.as_ref().is_none_or(purgeable),
                                "step {step}: {live} live"
                            );
                        }
                        (answer, _) => panic!("step {step}: {answer:?}"),
                    }
                }
                5 => {
                    let expected =
                        known.as_ref().filter(|record| !over(record)).map(|r| r.value.is_some());
                    let found = match ready(store.peek(id)).unwrap() {
                        Peeked::Absent => None,
                        Peeked::Busy(_) => Some(false),
                        Peeked::Complete(_) => Some(true),
                    };
                    assert_eq!(found, expected, "step {step}");
                }
                6..=8 => {
                    let value =
                        vec![u8::try_from(next(250)).unwrap(); usize::try_from(next(700)).unwrap()];
                    let fingerprint = (next(2) == 0).then(|| Fingerprint::new(&[3; 33]).unwrap());
                    let done = Completion::new(envelope(&value), span, fingerprint);
                    let fenced = ready(store.complete(id, owner, &done)).unwrap();
                    match known {
                        Some(mut record)
                            if record.owner == owner
                                && record.value.is_none()
                                && !purgeable(&record) =>
                        {
                            assert_eq!(fenced, FencedWrite::Applied, "step {step}");
                            record.value = Some((value, fingerprint));
                            record.expires = now + long;
                            record.purge_after = record.expires;
                            plain.insert(id.clone(), record);
                        }
                        Some(mut record) if purgeable(&record) => {
                            // Another call might have reclaimed the record already.
                            if fenced == FencedWrite::Applied {
                                record.value = Some((value, fingerprint));
                                record.expires = now + long;
                                record.purge_after = record.expires;
                                plain.insert(id.clone(), record);
                            }
                        }
                        Some(record) if record.owner == owner => {
                            assert_eq!(fenced, FencedWrite::AlreadyApplied)
                        }
                        _ => assert_eq!(fenced, FencedWrite::NotOwner),
                    }
                }
                9 => {
                    let fenced = ready(store.extend(id, owner, span)).unwrap();
                    if let Some(record) = plain.get_mut(id)
                        && fenced == FencedWrite::Applied
                    {
                        assert!(record.value.is_none() && record.owner == owner);
                        record.expires = now + long;
                    } else {
                        assert!(known.is_none_or(|r| r.value.is_some()
                            || r.owner != owner
                            || purgeable(&r)));
                    }
                }
                10 => {
                    let fenced = ready(store.release(id, owner)).unwrap();
                    match known {
                        Some(record)
                            if record.value.is_none()
                                && record.owner == owner
                                && !purgeable(&record) =>
                        {
                            assert_eq!(fenced, FencedWrite::Applied);
                            plain.remove(id);
                        }
                        Some(record) if purgeable(&record) => {
                            if fenced != FencedWrite::NotOwner {
                                plain.remove(id);
                            }
                        }
                        Some(_) => assert_eq!(fenced, FencedWrite::NotOwner),
                        None => assert_eq!(fenced, FencedWrite::AlreadyApplied),
                    }
                }
                _ => {
                    if next(10) == 0 {
                        let gone = ready(store.purge(usize::MAX)).unwrap();
                        assert!(gone <= plain.values().filter(|record| purgeable(record)).count());
                        plain.retain(|_, record| !purgeable(record));
                        assert_eq!(
                            ready(store.stats()).unwrap().records,
                            plain.len() as u64,
                            "step {step}"
                        );
                    }
                    let forth = next(200);
                    now += forth;
                    clock.advance(Duration::from_millis(forth));
                }
            }
        }
        clock.advance(HOUR);
        ready(store.purge(usize::MAX)).unwrap();
        assert_eq!(
            ready(store.stats()).unwrap(),
            StoreStats::default(),
            "every byte is accounted for"
        );
        for id in &ids[..40] {
            grant(&store, id, &request(SECOND, SECOND));
        }
    }
}
