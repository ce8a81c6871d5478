// SPDX-License-Identifier: MIT OR Apache-2.0
//! Histories that break a promise, each flagged by the rule that it is stored under, and by no
//! other. This file is over 400 lines long because the histories are one table.

use crate::script::broken;

/// The rule, the name and the script of each history.
const BAD: [(&str, &str, &str); 57] = [
    (
        "S1",
        "a second owner is granted a lease that runs",
        "0-2 acquire A granted 1
         20-22 acquire B granted 2",
    ),
    (
        "S1",
        "an extension was accepted, and the lease given away before its end",
        "0-2 acquire A granted 1
         90-92 extend A done
         150-152 acquire B granted 2",
    ),
    (
        "S2",
        "a takeover before expiry",
        "0-2 acquire A granted 1
         60-62 acquire B took_over 2",
    ),
    (
        "S2",
        "two takers of one lease: the second takes from the first at once",
        "0-2 acquire A granted 1
         105-108 acquire B took_over 2
         106-109 acquire C took_over 3",
    ),
    (
        "S2",
        "two takers of one lease under one token",
        "0-2 acquire A granted 1
         105-108 acquire B took_over 2
         106-109 acquire C took_over 2",
    ),
    ("S2", "a takeover without a predecessor", "0-2 acquire A took_over 1"),
    (
        "S2",
        "a takeover that does not say so",
        "0-2 acquire A granted 1
         105-108 acquire B granted 2",
    ),
    (
        "S2",
        "a takeover whose answer was lost, and that does not say so when it is asked for again",
        "0-2 acquire A granted 1
         105-? acquire B
         120-122 acquire B granted 2",
    ),
    (
        "S3",
        "a completion by an owner that was replaced",
        "0-2 acquire A granted 1
         105-108 acquire B took_over 2
         120-122 complete A done v=7",
    ),
    (
        "S3",
        "it is answered as if it had been its own",
        "0-2 acquire A granted 1
         105-108 acquire B took_over 2
         120-122 complete A already_done v=7",
    ),
    (
        "S3",
        "a stale release deletes the taker's record",
        "0-2 acquire A granted 1
         105-108 acquire B took_over 2
         120-122 release A done",
    ),
    (
        "S3",
        "the owner still recorded is refused, because its lease was over",
        "0-2 acquire A granted 1
         150-152 complete A lost v=7",
    ),
    (
        "S3",
        "an extension is refused to the owner still recorded",
        "0-2 acquire A granted 1
         50-52 extend A lost",
    ),
    (
        "S4",
        "one owner completes with two values",
        "0-2 acquire A granted 1
         10-12 complete A done v=7
         20-22 complete A done v=8",
    ),
    (
        "S4",
        "an owner that was never granted anything overwrites a result",
        "0-2 acquire A granted 1
         10-12 complete A done v=7
         20-22 complete B done v=8",
    ),
    (
        "S5",
        "the fingerprint of a result changes",
        "0-2 acquire A granted 1 fp=1
         10-12 complete A done v=7
         20-22 acquire B complete v=7 of=1 stored=1
         30-32 acquire B complete v=7 of=1 stored=2",
    ),
    (
        "S5",
        "an older result returns",
        "0-2 acquire A granted 1
         3-4 complete A done v=7 ttl=50
         60-61 acquire B granted 2
         62-? complete B v=8
         70-71 look - complete v=8 of=2
         80-81 look - complete v=7 of=1",
    ),
    (
        "S6",
        "a completed record is gone within its ttl",
        "0-2 acquire A granted 1
         10-12 complete A done v=7
         40-42 acquire B granted 2",
    ),
    (
        "S6",
        "a look finds nothing where a result was acknowledged",
        "0-2 acquire A granted 1
         10-12 complete A done v=7
         40-42 look - absent",
    ),
    (
        "S7",
        "other bytes than were completed",
        "0-2 acquire A granted 1
         10-12 complete A done v=7
         20-22 acquire B complete v=9 of=1",
    ),
    (
        "S7",
        "the engine decodes something else than the store holds",
        "0-2 acquire A granted 1
         10-12 complete A done v=7
         19-23 respond c5 replayed v=9 of=1
         20-22 acquire B complete v=7 of=1 call=5",
    ),
    (
        "S7",
        "bytes from a tombstone",
        "0-2 acquire A granted 1
         10-12 complete A done as_tombstone
         19-23 respond c5 replayed v=9 of=1
         20-22 acquire B tombstone call=5",
    ),
    (
        "S7",
        "bytes of a completion that was refused over a connection that held",
        "0-2 acquire A granted 1 ttl=50
         60-65 complete A lost v=7 ttl=50
         70-72 acquire B complete v=7 of=1",
    ),
    (
        "S8",
        "an action runs beside a replay",
        "0-2 acquire A granted 1
         10-12 complete A done v=7
         19-? respond c5
         20-22 acquire B complete v=7 of=1 call=5
         23 act_start c5 2",
    ),
    (
        "S9",
        "a takeover of a released lease",
        "0-2 acquire A granted 1
         10-12 release A done
         20-22 acquire B took_over 2",
    ),
    (
        "S9",
        "an owner completes after its release",
        "0-2 acquire A granted 1
         10-12 release A done
         20-22 complete A done v=7",
    ),
    (
        "S9",
        "a token that is smaller than one before",
        "0-2 acquire A granted 5
         10-12 complete A done v=7 ttl=50
         100-102 acquire B granted 3",
    ),
    (
        "S10",
        "two answers to one call",
        "0-9 respond c1 in_flight twice
         1-2 acquire A busy 1",
    ),
    (
        "S10",
        "executed, and nothing ran",
        "0-9 respond c1 executed recorded=yes
         1-2 acquire A granted 1 call=1
         3-4 complete A done v=7",
    ),
    (
        "S10",
        "in flight, and the action ran",
        "0-9 respond c1 in_flight
         1-2 acquire A granted 1 call=1
         3 act_start c1 1
         4 act_end c1 1 returned",
    ),
    (
        "S10",
        "said to be recorded without a confirmed completion",
        "0-9 respond c1 executed recorded=yes
         1-2 acquire A granted 1 call=1
         3 act_start c1 1
         4 act_end c1 1 returned
         5-? complete A v=7",
    ),
    (
        "S11",
        "a mismatch that ran",
        "0-2 acquire A granted 1 fp=1
         3-? respond c2 mismatch fp=2
         3-9 respond c3 mismatch fp=2
         4-5 acquire B busy 1 call=3
         6 act_start c3 2
         7 act_end c3 2 returned",
    ),
    (
        "S11",
        "replayed to another fingerprint",
        "0-2 acquire A granted 1 fp=1
         3-4 complete A done v=7
         5-9 respond c2 replayed fp=2 v=7 of=1
         6-7 acquire B complete v=7 of=1 stored=1 fp=2 call=2",
    ),
    (
        "S12",
        "the result of another key",
        "0-2 acquire A granted 1 key=a
         3-4 complete A done v=7 key=a
         5-6 acquire B complete v=7 of=1@a key=b",
    ),
    ("S13", "a record that cannot be read", "0-2 acquire A corrupt"),
    (
        "S13",
        "a lease with a value",
        "0-2 acquire A granted 1
         3 dump in_progress 1 bytes=5",
    ),
    (
        "S13",
        "an older token on record than was granted",
        "0-2 acquire A granted 4
         3-4 complete A done v=7
         5 dump complete 3 bytes=9",
    ),
    (
        "S14",
        "the rest of a lease by a client's clock",
        "0-2 acquire A granted 1
         10-12 acquire B busy 1 left=3600000",
    ),
    (
        "S14",
        "a beat that waited sets the end of the lease back",
        "0-2 acquire A granted 1
         10-80 extend A done
         60-62 extend A done
         82-83 acquire B busy 1 left=28",
    ),
    (
        "S15",
        "answered before its completion",
        "0-9 respond c1 executed recorded=yes
         1-2 acquire A granted 1 call=1
         3 act_start c1 1
         4 act_end c1 1 returned
         5-20 complete A done v=7",
    ),
    (
        "S15",
        "success without a record under propagate",
        "0-9 respond c1 executed recorded=no propagate
         1-2 acquire A granted 1 call=1
         3 act_start c1 1
         4 act_end c1 1 returned
         5-? complete A v=7",
    ),
    (
        "S16",
        "a failed action is completed",
        "0-9 respond c1 action_error note=e1
         1-2 acquire A granted 1 call=1
         3 act_start c1 1
         4 act_end c1 1 err note=e1
         4-5 release A lost
         5-6 complete A done v=7",
    ),
    (
        "S16",
        "an action that was dropped is released",
        "0-9 respond c1 dropped
         1-2 acquire A granted 1 call=1
         3 act_start c1 1
         4 act_end c1 1 dropped
         5-6 release A done",
    ),
    (
        "S16",
        "a call is dropped, and its process continues but never releases after the error",
        "0-30 respond c1 dropped
         0-2 acquire A granted 1 call=1
         2 act_start c1 1
         20 act_end c1 1 err note=e1
         900 proc",
    ),
    (
        "S17",
        "an extension after a takeover",
        "0-2 acquire A granted 1
         105-108 acquire B took_over 2
         120-122 extend A done",
    ),
    (
        "S18",
        "a result that cannot be stored yet, and then a lease again",
        "0-2 acquire A granted 1
         10-12 acquire B busy 1 left=90
         20-22 acquire C tombstone
         30-32 acquire D busy 1 left=70",
    ),
    (
        "S19",
        "a refused completion, but its caller gets a success",
        "0-260 respond c1 executed recorded=no
         0-2 acquire A granted 1 call=1
         2 act_start c1 1
         3-230 fault stop victim=1
         p2 150-152 acquire B took_over 2
         231 act_end c1 1 returned
         232-240 complete A lost v=7
         241 told 1 lease_lost
         242-243 look - busy 2 left=10 call=1",
    ),
    (
        "S19",
        "a refused completion without a record, whose value both the caller and the hook get",
        "0-260 respond c1 executed recorded=no fenced
         0-2 acquire A granted 1 call=1
         2 act_start c1 1
         3-230 fault stop victim=1
         p2 150-152 acquire B took_over 2
         p2 160-162 release B done
         231 act_end c1 1 returned
         232-240 complete A lost v=7
         241 told 1 lease_lost
         242-243 look - absent call=1
         244 fenced c1",
    ),
    (
        "S19",
        "a completion whose answer was lost is reported as refused",
        "0-60 respond c1 executed recorded=yes v=7
         0-2 acquire A granted 1 call=1
         2 told 1 granted
         2 act_start c1 1
         20 act_end c1 1 returned
         21-? complete A v=7
         22-24 complete A already_done v=7
         40 told 1 lease_lost",
    ),
    (
        "OPS-3",
        "a release deletes the record of a newer token than the operator saw",
        "0-2 acquire A granted 1
         105-108 acquire B took_over 2
         120-122 force_release 1 done",
    ),
    (
        "OPS-3",
        "a live lease is ended without the request to do so",
        "0-2 acquire A granted 1
         20-22 force_release 1 done",
    ),
    (
        "OPS-3",
        "work without a result is erased",
        "0-2 acquire A granted 1
         150-152 force_erase 1 done",
    ),
    (
        "OPS-3",
        "work without a result is said to be finished",
        "0-2 acquire A granted 1
         150-152 force_release 1 finished",
    ),
    (
        "OPS-4",
        "the holder of a released lease completes",
        "0-2 acquire A granted 1
         20-22 force_release 1 even done
         30-32 complete A done v=7",
    ),
    (
        "OPS-4",
        "a completion and a resolve both count",
        "0-2 acquire A granted 1
         20-30 force_resolve 1 even done v=9
         21-29 complete A done v=7",
    ),
    (
        "OPS-4",
        "a resolved result is not there",
        "0-2 acquire A granted 1
         20-22 force_resolve 1 even done v=9
         30-31 acquire B granted 2",
    ),
    (
        "OPS-4",
        "an erased answer is handed out",
        "0-2 acquire A granted 1
         5-6 complete A done v=7
         10-12 force_erase 1 done
         20-22 look - complete v=7 of=1",
    ),
];

/// Histories that break the time bounds.
const LATE: [(&str, &str, &str); 6] = [
    (
        "S19",
        "a lease with two ends",
        "0-2 acquire A granted 1
         2 told 1 granted
         3-4 complete A done v=7
         4 told 1 completed
         5 told 1 failed",
    ),
    (
        "L1",
        "a wait that does not end",
        "0-9000 respond c1 in_flight wait=100
         1-2 acquire B busy 1 left=20 call=1",
    ),
    (
        "L2",
        "a wake-up is lost",
        "0-2 acquire A granted 1 lease=90000
         5-9005 respond c9 replayed wait=10000 v=7 of=1
         5-6 acquire B busy 1 call=9
         20-22 complete A done v=7
         9000-9002 acquire B complete v=7 of=1 call=9",
    ),
    (
        "L3",
        "a dead holder is not replaced, although a caller waits",
        "0-2 acquire A granted 1
         5-? respond c9 wait=20000
         5-6 acquire B busy 1 call=9
         9000-9002 acquire B took_over 2 call=9",
    ),
    (
        "L4",
        "a running action loses its lease for nothing",
        "0-2 acquire A granted 1 lease=2000 call=1
         0-? respond c1
         2 act_start c1 1
         2010-2012 acquire B took_over 2
         2300 act_end c1 1 returned",
    ),
    (
        "L5",
        "something is left in progress at the end",
        "0-2 acquire A granted 1
         100 settle
         3000 dump in_progress 1 left=60000",
    ),
];

#[test]
fn each_bad_history_is_flagged_by_its_rule_and_by_no_other() {
    let mut flagged = std::collections::BTreeSet::new();
    let mut otherwise = Vec::new();
    for (rule, name, script) in BAD.into_iter().chain(LATE) {
        let rules = broken(script);
        if rules != [rule] {
            otherwise.push(format!("{rule} ({name}): {rules:?}"));
        }
        flagged.insert(rule);
    }
    assert!(otherwise.is_empty(), "{otherwise:#?}");
    for (rule, _, _) in history::rules::RULES.into_iter().map(|(id, text, _)| (id, text, ())) {
        assert!(flagged.contains(rule) || rule == "ACQ-10", "no history breaks {rule}");
    }
}

#[test]
fn acq_10_an_effect_of_an_older_token_is_flagged() {
    let script = "0-2 acquire A granted 1
        105-108 acquire B took_over 2
        110 effect applied 2
        111 effect refused 1
        112 effect applied 1";
    assert_eq!(broken(script), ["ACQ-10"]);
    assert!(broken(&script.replace("112 effect applied 1", "112 effect applied 2")).is_empty());
}

#[test]
fn what_is_not_certain_is_not_flagged() {
    // These histories would break rules like those above, but it is unknown how one of their calls
    // ended.
    for (_, script) in [
        (
            "released, perhaps",
            "0-2 acquire A granted 1\n 5-? release A\n 20-22 acquire B granted 2",
        ),
        (
            "granted to another in between, perhaps",
            "0-2 acquire A granted 1\n 101-? acquire C\n 150-152 complete A lost v=7",
        ),
        (
            "released by an operator, perhaps",
            "0-2 acquire A granted 1\n 5-? force_release 1 even\n 20-22 acquire B granted 2",
        ),
        ("at the very end of the lease", "0-9 acquire A granted 1\n 90-101 acquire B took_over 2"),
    ] {
        assert!(broken(script).is_empty(), "{script}");
    }
}
