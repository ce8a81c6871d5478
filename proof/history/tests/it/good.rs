// SPDX-License-Identifier: MIT OR Apache-2.0
//! Histories that keep every promise.

use crate::script::{broken, run};

/// The name and the script of each history.
pub(crate) const GOOD: [(&str, &str); 23] = [
    (
        "one run, replayed to a waiter and to a late caller",
        "0-30 respond c1 executed recorded=yes
         0-2 acquire A granted 1 call=1
         2 told 1 granted
         2 act_start c1 1
         20 act_end c1 1 returned
         21-25 complete A done v=7
         26 told 1 completed
         p2 5-31 respond c1 replayed wait=100 v=7 of=1
         p2 5-6 acquire B busy 1 left=95 call=1
         p2 7-27 wait - woken call=1
         p2 28-30 acquire C complete v=7 of=1 call=1
         50-52 look - complete v=7 of=1
         60 dump complete 1 bytes=9",
    ),
    (
        "a killed holder is taken over after its lease",
        "0-? respond c1
         0-2 acquire A granted 1 call=1
         2 act_start c1 1
         10-40 fault kill victim=1
         p2 20-21 acquire B busy 1 left=80 call=1
         p2 101-110 acquire C took_over 2 call=1
         p2 111-112 complete C done v=8",
    ),
    (
        "a stopped holder is fenced, notified, and answered like a duplicate",
        "0-260 respond c1 replayed fenced v=8 of=2
         0-2 acquire A granted 1 call=1
         2 told 1 granted
         2 act_start c1 1
         3-230 fault stop victim=1
         p2 150-152 acquire B took_over 2
         p2 153-154 complete B done v=8
         231 act_end c1 1 returned
         232-240 complete A lost v=7
         241 told 1 lease_lost
         241 fenced c1
         242-243 look - complete v=8 of=2",
    ),
    (
        "a stopped holder is fenced, finds no record, and gets its own value",
        "0-260 respond c1 executed recorded=no fenced v=7
         0-2 acquire A granted 1 call=1
         2 told 1 granted
         2 act_start c1 1
         3-230 fault stop victim=1
         p2 150-152 acquire B took_over 2
         p2 160-162 release B done
         231 act_end c1 1 returned
         232-240 complete A lost v=7
         241 told 1 lease_lost
         242-243 look - absent call=1",
    ),
    (
        "a late completion by the owner still recorded is accepted",
        "0-2 acquire A granted 1
         300-302 complete A done v=7
         310-312 acquire B complete v=7 of=1",
    ),
    (
        "a completion whose answer is lost is sent once more, and refused because its short ttl \
         is over by then",
        "0-2 acquire A granted 1 ttl=50
         9-90 fault cut
         10-115 complete A lost v=7 ttl=50
         p2 20-22 acquire B complete v=7 of=1
         p2 19-23 respond c5 replayed v=7 of=1
         p2 90-95 acquire C granted 2",
    ),
    (
        "a call is dropped, and its process killed before the release that follows an error in \
         the background",
        "0-30 respond c1 dropped
         0-2 acquire A granted 1 call=1
         2 act_start c1 1
         8-? extend A
         20 act_end c1 1 err note=e1
         35-90 fault kill victim=1
         p2 105-108 acquire B took_over 2",
    ),
    (
        "released is absent, and the next token is larger",
        "0-2 acquire A granted 1
         5-7 release A done
         8-9 acquire B granted 5
         9-10 release A lost
         11-12 release B done
         13-14 release B already_done",
    ),
    (
        "past its ttl a result counts as absent",
        "0-2 acquire A granted 1
         3-4 complete A done v=7 ttl=50
         30-31 look - complete v=7 of=1
         60-61 acquire B granted 2
         62-63 complete B done v=8
         64-65 complete A lost v=7",
    ),
    (
        "an acquire whose answer was lost gets its lease again",
        "0-? acquire A lease=100
         10-12 acquire A granted 1
         13-? complete A v=7
         20-22 complete A already_done v=7
         30-31 acquire B complete v=7 of=1",
    ),
    (
        "a completion without an answer may have taken effect, late",
        "0-2 acquire A granted 1
         5-? complete A v=7
         10-11 acquire B busy 1 left=92
         20-21 acquire B complete v=7 of=1",
    ),
    (
        "a takeover whose answer was lost says so when it is asked for again",
        "0-2 acquire A granted 1
         105-? acquire B
         120-122 acquire B took_over 2",
    ),
    (
        "a takeover whose answer was lost is over with its own short ttl, and asked for again it \
         is a first grant",
        "0-2 acquire A granted 1
         105-? acquire B lease=20 ttl=50
         200-202 acquire B granted 3",
    ),
    (
        "an acquire of a dropped call arrives after its owner has released",
        "0-? acquire A
         20-22 acquire A granted 1
         30-32 release A done
         200-202 acquire B took_over 3",
    ),
    (
        "a killed claimant may have taken over, and released nothing",
        "0-2 acquire A granted 1
         101-? acquire B lease=100
         120-121 acquire C busy 2 left=85
         150-152 complete A lost v=7
         202-210 acquire C took_over 3",
    ),
    (
        "an extension keeps the lease",
        "0-2 acquire A granted 1
         50-52 extend A done
         120-121 acquire B busy 1 left=31
         151-160 acquire B took_over 2",
    ),
    (
        "a mismatch runs nothing",
        "0-2 acquire A granted 1 fp=1 call=1
         3-4 complete A done v=7
         5-8 respond c2 mismatch fp=2
         6-7 acquire B complete v=7 of=1 stored=1 fp=2 call=2
         9-12 respond c3 replayed fp=1 v=7 of=1
         10-11 acquire C complete v=7 of=1 stored=1 fp=1 call=3",
    ),
    (
        "a tombstone is not replayed",
        "0-5 respond c1 executed recorded=tombstone
         0-1 acquire A granted 1 call=1 fp=1
         1 act_start c1 1
         2 act_end c1 1 returned
         3-4 complete A done as_tombstone
         6-9 respond c2 not_replayable
         7-8 acquire B tombstone call=2 stored=1",
    ),
    (
        "a dead holder's lease is released, and the late holder refused",
        "0-2 acquire A granted 1
         120-122 force_release 1 done
         130-132 acquire B granted 2
         140-141 complete A lost v=7
         150-151 complete B done v=8",
    ),
    (
        "a live lease is resolved on request, and its holder refused",
        "0-2 acquire A granted 1 fp=1
         10-12 force_resolve 1 even done v=9 of=1
         20-21 complete A lost v=7
         30-31 acquire B complete v=9 of=1 stored=1
         40-41 force_resolve 1 done v=9
         50-51 force_resolve 1 finished v=5",
    ),
    (
        "what was forgotten runs again within its ttl",
        "0-2 acquire A granted 1
         5-6 complete A done v=7
         10-12 force_forget 1 done
         20-21 acquire B granted 2
         25-26 complete B done v=8
         30-31 look - complete v=8 of=2
         40-41 force_forget 1 another_token token=2",
    ),
    (
        "what was erased stays done",
        "0-2 acquire A granted 1
         5-6 complete A done v=7
         10-12 force_erase 1 done
         20-21 acquire B tombstone
         30-31 complete A already_done v=7
         40-41 force_erase 1 done",
    ),
    (
        "refusals describe the record",
        "1-2 force_release 1 absent
         5-7 acquire A granted 1
         10-11 force_release 1 busy token=1 left=95
         20-21 force_forget 1 even busy token=1 left=85
         110-111 force_erase 1 unfinished
         120-122 acquire B took_over 2
         130-131 force_release 1 even another_token token=2
         140-141 complete B done v=8
         150-151 force_release 2 finished",
    ),
];

#[test]
fn what_is_right_passes() {
    for (name, script) in GOOD {
        let judgement = history::judge(&run(script));
        let texts: Vec<_> =
            judgement.violations.iter().map(|v| format!("{}: {}", v.rule, v.text)).collect();
        assert!(texts.is_empty(), "{name}: {texts:?}");
        assert_eq!(judgement.unsearched, 0, "{name}");
    }
}

#[test]
fn s6_an_acknowledged_write_that_a_failover_loses_is_counted_and_no_violation() {
    let lost = "0-2 acquire A granted 1
        10-12 complete A done v=7
        11-40 fault failover lossy
        50-51 acquire B granted 2";
    assert!(broken(lost).is_empty());
    assert_eq!(history::judge(&run(lost)).losses.len(), 1);
    let outside = lost.replace("11-40", "30-40");
    assert_eq!(broken(&outside), ["S6"]);
}

#[test]
fn s6_a_failover_in_the_middle_of_a_slot_move_may_lose_records_of_any_age() {
    let lost = "0-2 acquire A granted 1
        10-12 complete A done v=7
        700 moved since=500 lossy
        800-801 acquire B granted 2";
    assert!(broken(lost).is_empty());
    assert_eq!(history::judge(&run(lost)).losses.len(), 1);
    let before = lost.replace("800-801", "400-401");
    assert_eq!(broken(&before), ["S6"]);
    assert_eq!(broken(&lost.replace(" lossy", "")), ["S6"], "a move alone loses nothing");
}

#[test]
fn s14_a_slot_move_prolongs_a_lease_by_no_more_than_it_took() {
    let left = |ms: u64| {
        format!(
            "0-2 acquire A granted 1 lease=250
             100 moved since=80
             p2 205-206 acquire B busy 1 left={ms}"
        )
    };
    assert!(broken(&left(47)).is_empty());
    assert!(broken(&left(66)).is_empty());
    assert_eq!(broken(&left(70)), ["S14"]);
    assert_eq!(broken(&left(66).replace("100 moved since=80", "")), ["S14"]);
}

#[test]
fn s13_the_newest_token_may_be_one_that_a_failover_has_lost() {
    let lost = "0-2 acquire A granted 1
        120-122 acquire B took_over 4
        121-140 fault failover lossy
        500 dump in_progress 1";
    assert!(broken(lost).is_empty());
    let before = lost.replace("121-140", "130-140");
    assert_eq!(broken(&before), ["S13"]);
}

#[test]
fn s6_mariadb_may_forget_what_it_showed_before_it_was_durable_and_nobody_else_may() {
    let script = "0-2 acquire A granted 1
        10-? complete A v=7
        14-15 acquire B complete v=7 of=1
        16-90 fault restart
        400-410 acquire C took_over 2";
    let judged = |store: &str, script: &str| {
        let mut run = run(script);
        run.manifest.store = store.into();
        let judgement = history::judge(&run);
        (judgement.violations.iter().filter(|v| v.rule == "S6").count(), judgement.losses.len())
    };
    assert_eq!(judged("mariadb", script), (0, 1));
    assert_eq!(judged("postgres", script), (1, 0));
    let acknowledged = script.replace("10-? complete A v=7", "10-12 complete A done v=7");
    assert_eq!(judged("mariadb", &acknowledged).0, 1);
}

#[test]
fn s18_mariadb_may_forget_a_lease_that_it_showed_before_it_was_durable_and_nobody_else_may() {
    // B's grant had no answer, and its lease, with a ttl of an hour, is gone after the server died.
    let script = "0-2 acquire A granted 1 lease=50 ttl=100
        60-? acquire B lease=50 ttl=3600000
        62-63 acquire C busy 2 left=49
        64-90 fault restart
        95-96 wait 2 woken
        300-302 acquire D granted 3";
    let judged = |store: &str, script: &str| {
        let manifest = history::Manifest { store: store.into(), ..crate::script::manifest() };
        let violations = history::judge(&crate::script::run_of(manifest, script)).violations;
        violations.iter().map(|violation| violation.rule).collect::<Vec<_>>()
    };
    assert!(judged("mariadb", script).is_empty());
    assert_eq!(judged("postgres", script), ["S18"]);
    let heard = script.replace("60-? acquire B", "60-61 acquire B took_over 2");
    assert_eq!(judged("mariadb", &heard), ["S2"]);
    let long_before = script.replace("64-90", "2064-2090").replace("300-302", "3000-3002");
    assert_eq!(judged("mariadb", &long_before), ["S18"]);
    let kept = format!("{script}\n100-101 acquire E busy 2 left=9");
    assert_eq!(judged("mariadb", &kept), ["S18"], "the lease was there after the restart");
}
