// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store's clock that moves during the run: leases and ttls end by it (ACQ-7), and by nothing
//! else. What does not depend on the time is judged as always.

use crate::script::{broken, manifest, run, run_of};

/// A history in which the clock decides how much of a lease of 100 ms is over at 50 ms.
const EARLY: &str = "1000-1002 acquire A granted 1
    1050-1052 acquire B took_over 2
    1060-1062 complete B done v=2
    1070-1072 complete A lost v=1";

#[test]
fn acq_7_a_clock_that_is_set_forward_ends_leases_early() {
    assert_eq!(broken(EARLY), ["S2"]);
    let moved = |by: &str, at: &str| format!("{EARLY}\n{at} fault jump moved={by}");
    assert!(broken(&moved("500", "1030-1031")).is_empty());
    assert_eq!(history::judge(&run(&moved("500", "1030-1031"))).counts.explained, 1);
    assert_eq!(broken(&moved("20", "1030-1031")), ["S2"], "it moved too little");
    assert_eq!(broken(&moved("500", "900-901")), ["S2"], "it moved before the lease");
    assert_eq!(broken(&moved("500", "1055-1056")), ["S2"], "it moved after the takeover");
    assert_eq!(broken(&moved("-500", "1030-1031")), ["S2"], "it moved the other way");
}

#[test]
fn acq_7_a_clock_that_is_set_back_ends_leases_late() {
    let late = "1000-1002 acquire A granted 1
        1030-1031 fault jump moved=-500
        1300-1302 acquire B busy 1 left=299
        1650-1652 acquire B took_over 2
        1660-1662 complete B done v=2";
    assert!(broken(late).is_empty());
    let unmoved = late.replace("moved=-500", "moved=0");
    assert_eq!(broken(&unmoved), ["S14"]);
    let early = late.replace("1650-1652", "1350-1352").replace("1660-1662", "1360-1362");
    assert_eq!(broken(&early), ["S2"]);
}

#[test]
fn s6_a_result_is_kept_for_its_ttl_by_a_clock_that_moves() {
    let kept = "1000-1002 acquire A granted 1
        1010-1012 complete A done v=1 ttl=1000
        1100-1101 fault jump moved=5000
        1200-1202 acquire B granted 2
        1210-1212 complete B done v=2";
    assert!(broken(kept).is_empty());
    // An hour's ttl is not over after five seconds.
    let long = kept.replace("ttl=1000", "ttl=3600000");
    assert_eq!(broken(&long), ["S4", "S6"]);
    // In between, the record was over, and may have been purged.
    let back = kept.replace("1200-", "1150-1151 fault jump moved=-5000\n1200-");
    assert!(broken(&back).is_empty());
}

#[test]
fn cmp_2_a_clock_that_moves_excuses_no_second_completion() {
    let twice = EARLY.replace("complete A lost v=1", "complete A done v=1");
    let moved = format!("{twice}\n1030-1031 fault jump moved=500");
    assert_eq!(broken(&moved), ["S3", "S4"]);
    let extended = format!("{EARLY}\n1030-1031 fault jump moved=500\n1080-1082 extend A done");
    assert_eq!(broken(&extended), ["S17"]);
}

#[test]
fn l4_l3_a_larger_token_that_was_granted_before_takes_nothing_over() {
    let rewound = "1000-1002 acquire X granted 899 lease=100 ttl=200
        1150-1152 acquire A took_over 900 lease=100
        1160-1162 complete A done v=1 ttl=200
        2500-2501 fault jump moved=-500
        2600-2602 acquire B granted 800 c1 lease=1000
        2603 act_start c1 800
        3400-3402 extend B done lease=1000
        3900 act_end c1 800 returned
        3910-3912 complete B done v=2";
    assert!(broken(rewound).is_empty(), "{:?}", broken(rewound));
}

/// A history in which the record with token 900 is over, and the clock is then set back.
const REWOUND: &str = "1000-1002 acquire A granted 900
    1010-1012 complete A done v=1 ttl=1000
    2500-2501 fault jump moved=-500
    2600-2602 acquire B granted 800
    2610-2612 complete B done v=2
    2700-2702 acquire C complete v=2 of=800";

#[test]
fn acq_10_tokens_may_fall_after_a_record_is_gone_and_its_clock_was_set_back() {
    assert!(broken(REWOUND).is_empty());
    assert_eq!(history::judge(&run(REWOUND)).counts.rewound, 1);
    // The record still existed, and so did the counter of its tokens.
    let kept = REWOUND.replace("ttl=1000", "ttl=3600000");
    assert!(broken(&kept).contains(&"S9"));
    // If the clock was set forward instead, a smaller token is wrong.
    assert!(broken(&REWOUND.replace("-500", "500")).contains(&"S9"));
    // The tokens of SQLite come from a counter.
    let sqlite = history::Manifest { store: "sqlite".into(), ..manifest() };
    let judgement = history::judge(&run_of(sqlite, REWOUND));
    assert!(judgement.violations.iter().any(|violation| violation.rule == "S9"));
}

#[test]
fn acq_10_a_token_may_have_fallen_with_a_grant_that_no_caller_heard_of() {
    let silent = "1000-1002 acquire A granted 900
        1010-1012 complete A done v=1 ttl=1000
        2500-2501 fault jump moved=-500
        2600-? acquire B lease=5000";
    for shown in ["2700-2702 acquire C busy 800 left=4900", "9000 dump in_progress 800"] {
        let script = format!("{silent}\n{shown}");
        assert!(broken(&script).is_empty(), "{shown}: {:?}", broken(&script));
        let kept = script.replace("ttl=1000", "ttl=3600000");
        assert!(!broken(&kept).is_empty(), "{shown}");
        assert!(!broken(&script.replace("-500", "500")).is_empty(), "{shown}");
    }
    // Only an answer to another caller shows the larger token.
    let busy = "1000-? acquire A lease=300 ttl=400
        1100-1102 acquire B busy 900 left=199
        2500-2501 fault jump moved=-500
        2600-2602 acquire C granted 800
        2610-2612 complete C done v=1";
    assert!(broken(busy).is_empty(), "{:?}", broken(busy));
    assert_eq!(broken(&busy.replace("ttl=400", "ttl=3600000")), ["S18"]);
    assert_eq!(broken(&busy.replace("-500", "500")), ["S18"]);
}

#[test]
fn cmp_2_tokens_that_fall_excuse_no_stale_owner() {
    let stale = "1000-1002 acquire A granted 900
        2500-2501 fault jump moved=-500
        3700-3702 acquire B took_over 901
        3710-3712 complete B done v=2 ttl=1000
        4800-4801 fault jump moved=-2000
        7900-7902 acquire C granted 300
        7910-7912 complete C done v=3
        7920-7922 complete B done v=2";
    assert_eq!(broken(stale), ["S4"]);
    let refused = stale.replace("7920-7922 complete B done v=2", "7920-7922 complete B lost v=2");
    assert!(broken(&refused).is_empty());
}

#[test]
fn l4_the_wall_clock_of_a_holder_excuses_no_lost_lease() {
    let lost = "1000-1002 acquire A granted 1 c1 lease=2000
        1003 act_start c1 1
        5000 act_end c1 1 returned
        3100-3102 acquire B took_over 2";
    assert!(broken(lost).contains(&"L4"));
    assert!(broken(&format!("{lost}\n1500-1501 fault leap victim=1")).contains(&"L4"));
    assert!(!broken(&format!("{lost}\n1500-1501 fault jump moved=5000")).contains(&"L4"));
}

#[test]
fn acq_7_after_a_clock_was_set_back_a_heartbeat_may_shorten_its_lease() {
    let shortened = |beat: &str| {
        format!(
            "1000-1002 acquire A granted 1 lease=1000
            1100-1101 fault jump moved=-5000
            {beat}
            2300-2302 acquire B took_over 2
            2310-2312 complete B done v=2"
        )
    };
    assert!(broken(&shortened("1200-1202 extend A done lease=1000")).is_empty());
    assert!(broken(&shortened("1200-? extend A lease=1000")).is_empty());
    assert_eq!(broken(&shortened("1400-1402 extend A done lease=1000")), ["S2"]);
    assert_eq!(broken(&shortened("1200-1202 extend A lost lease=1000")), ["S2", "S3"]);
    assert_eq!(broken(&shortened("")), ["S2"]);
    let answered = "1000-1002 acquire A granted 1 lease=1000
        1100-1101 fault jump moved=-5000
        1200-? extend A lease=1000
        1300-1302 acquire B busy 1 left=900";
    assert!(broken(answered).is_empty());
    assert_eq!(broken(&answered.replace("left=900", "left=800")), ["S14"]);
}

#[test]
fn sto_4_after_a_clock_was_set_back_a_heartbeat_may_shorten_how_long_its_record_is_kept() {
    let gone = |beat: &str| {
        format!(
            "1000-1002 acquire A granted 9 lease=340 ttl=400
            1100-1101 fault jump moved=-5000
            {beat}
            1700-1702 acquire B granted 5
            1710-1712 complete B done v=2"
        )
    };
    assert!(broken(&gone("1200-1202 extend A done lease=340")).is_empty());
    assert!(broken(&gone("1200-? extend A lease=340")).is_empty());
    assert!(!broken(&gone("1400-1402 extend A done lease=340")).is_empty());
    assert!(!broken(&gone("")).is_empty());
}

#[test]
fn acq_9_a_call_that_was_sent_twice_may_have_held_a_lease_that_a_move_of_the_clock_ended() {
    // The first copy of A's call was granted a lease of 600 ms. The clock was then set forward, so
    // B took over, and the second copy met B's result.
    let twice = "1000-1100 fault cut
        p7 1010-1300 acquire A complete v=2 of=2 lease=600
        1200-1201 fault jump moved=20000
        p4 1210-1215 acquire B took_over 2 lease=600
        p4 1250-1260 complete B done v=2";
    assert!(broken(twice).is_empty(), "{:?}", broken(twice));
    let unmoved = twice.replace("moved=20000", "moved=0");
    assert_eq!(broken(&unmoved), ["S2"]);
    let uncut = twice.replace("1000-1100 fault cut", "900-901 fault cut");
    assert_eq!(broken(&uncut), ["S2"]);
}
